"""The fingerprint of a program, which stores hold: it follows what is declared, not its looks."""

from __future__ import annotations

import enum
import sys
from typing import Any

import numpy as np
import pytest

import headgate as hg
from headgate.compiling.cache import code_fingerprint, signature_form
from headgate.compiling.signature import OutputColumns, Parameter, Signature
from headgate.engine.rerun import fingerprint_of
from headgate.state.schema import Schema
from headgate.state.table import Access, Table
from headgate.state.types import Column, ColumnType

owners = hg.Table("owners", "name string", key="name")
accounts = hg.Table(
    "accounts",
    "id bigint, owner string DEFAULT 'none', due decimal(8,2) DEFAULT 1.5, at timestamp",
    key="id",
    check="due >= 0",
    unique=[("owner", "due")],
    references={"owner": owners},
)


class Fee(enum.IntEnum):
    LOW = 1


class Odd(int):
    def __repr__(self) -> str:
        return "odd"


FEE, ODD, WIDE = Fee.LOW, Odd(3), np.int64(4)


@hg.transaction(event="src bigint, ids array<bigint>", compiled=False)
def pay(
    event,
    account=accounts.at("src", create=True),
    others=accounts.each("ids", mode="read"),
    out=hg.output("n bigint"),
):
    if event.src == FEE:
        return hg.abort("no")
    out.n = ODD + WIDE


COLUMNS = (
    ("id", ("bigint", 0, 0, None, ()), None),
    ("owner", ("string", 0, 0, None, ()), "none"),
    ("due", ("decimal", 8, 2, None, ()), 150),
    ("at", ("timestamp", 0, 0, None, ()), None),
)
TABLE = (
    "table",
    "accounts",
    COLUMNS,
    ("id",),
    "due >= 0",
    (("owner", "due"),),
    ((("owner",), "owners"),),
)
FORM = (
    "transaction",
    "pay",
    (
        ("src", ("bigint", 0, 0, None, ()), None),
        ("ids", ("array", 0, 0, ("bigint", 0, 0, None, ()), ()), None),
    ),
    (
        ("event", "event"),
        ("rows", "account", TABLE, "at", ("src",), False, True, ()),
        ("rows", "others", TABLE, "each", ("ids",), True, False, ()),
        ("output", "out", (("n", ("bigint", 0, 0, None, ()), None),)),
    ),
)


def test_a_declaration_has_this_form_and_no_other() -> None:
    """Stores of weak recovery hold its digest: with another, they ask for changed_code='accept'."""
    assert signature_form(pay.signature) == FORM
    assert code_fingerprint(FORM) == "51d60a8c7ce0e39dae268c2cda9c8e34"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bytecode is of a version of Python")
def test_a_program_has_this_fingerprint_and_no_other() -> None:
    assert fingerprint_of([pay]) == "85eab9989f9433c36a936f45c12dcba4"


def test_how_things_are_shown_and_where_ours_stand_make_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fingerprint_of([pay])

    def fail(self: Any) -> str:
        raise AssertionError("it is shown")

    kinds = (
        Table,
        Schema,
        Column,
        ColumnType,
        Access,
        Parameter,
        Signature,
        OutputColumns,
        Fee,
        Odd,
    )
    for kind in kinds:
        monkeypatch.setattr(kind, "__repr__", fail)
    monkeypatch.setattr(hg, "__version__", "99", raising=False)
    assert fingerprint_of([pay]) == before
    monkeypatch.setattr(hg.abort, "__module__", "headgate.elsewhere")
    assert fingerprint_of([pay]) == before


def test_what_is_declared_makes_one() -> None:
    def made(**options: Any) -> str:
        given: dict[str, Any] = {"name": "t", "schema": "id bigint, n int", "key": "id", **options}
        table = hg.Table(**given)

        def add(event, row=table.at("id")):
            row.n += 1

        return fingerprint_of([hg.transaction(event="id bigint", compiled=False)(add)])

    variants: list[dict[str, Any]] = [
        {},
        {"name": "u"},
        {"schema": "id bigint, n bigint"},
        {"schema": "id bigint, n int DEFAULT 1"},
        {"check": "n > 0"},
        {"unique": ["n"]},
        {"check": "n >= 0"},
    ]
    assert len({made(**one) for one in variants}) == len(variants)
    assert made() == made()
