"""No value makes a message fail: also one that cannot be shown, or is of no use at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import headgate as hg

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id")


@hg.transaction(event="id bigint, amount bigint", compiled=False)
def add(event, account=accounts.at("id", create=True)):
    account.balance += event.amount


class Hidden:
    def __repr__(self) -> str:
        raise RuntimeError("no")


HIDDEN: Any = Hidden()
EVENT = {"id": 1, "amount": 1}
Attempt = Callable[[hg.Engine, Path], Any]
ATTEMPTS: dict[str, Attempt] = {
    "event": lambda engine, _: engine.run(add, [{"id": HIDDEN, "amount": 1}]),
    "call": lambda engine, _: engine.call(add, id=HIDDEN, amount=1),
    "key of a row": lambda engine, _: engine.get(accounts, HIDDEN),
    "keys of a row": lambda engine, _: engine.get(accounts, (HIDDEN, 1)),
    "row": lambda engine, _: engine.load(accounts, [{"id": HIDDEN, "balance": 1}]),
    "late": lambda engine, _: engine.run(add, [EVENT], late=HIDDEN),
    "scheme": lambda engine, _: engine.run(add, [EVENT], scheme=HIDDEN),
    "threads": lambda engine, _: engine.run(add, [EVENT], threads=HIDDEN),
    "size": lambda engine, _: engine.run(add, [EVENT], batch_size=HIDDEN),
    "epoch": lambda engine, _: engine.sql("select 1", epoch=HIDDEN),
    "a number of many digits": lambda engine, _: engine.get(accounts, 10**5000),
    "durability": lambda _, path: hg.open(path, durability=HIDDEN),
    "recovery": lambda _, path: hg.open(path, recovery=HIDDEN),
    "retain": lambda _, path: hg.open(path, retain=HIDDEN),
    "migrations": lambda _, path: hg.open(path, migrations=[HIDDEN]),
    "key": lambda *_: hg.Table("t", "id bigint", key=HIDDEN),
}


@pytest.mark.parametrize("what", ATTEMPTS)
def test_a_value_that_cannot_be_shown_is_told_by_its_type(tmp_path: Path, what: str) -> None:
    with hg.open(None, tables=[accounts], transactions=[add]) as engine:
        with pytest.raises(hg.HeadgateError):
            ATTEMPTS[what](engine, tmp_path / "store")
        assert engine.stopped is None


def test_a_column_is_no_events() -> None:
    with (
        hg.open(None, tables=[accounts], transactions=[add]) as engine,
        pytest.raises(hg.InputError, match=r"cannot read a Series; hand in .*a pandas frame"),
    ):
        engine.run(add, pd.Series([1, 2]))


def test_an_unknown_scheme_is_told_the_forms_that_there_are() -> None:
    with (
        hg.open(None, tables=[accounts], transactions=[add]) as engine,
        pytest.raises(hg.InputError, match=r"strata.* take one of .*chain.*eager"),
    ):
        engine.run(add, [EVENT], scheme="fast")
