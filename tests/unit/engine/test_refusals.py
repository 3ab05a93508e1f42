"""Refusals at a definition: in words of a user, and what may look like one and is not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import headgate as hg
from tests.unit.engine.refusing import refusal

marked = hg.Table("marked", "id bigint, mark string, size double", key="id", index=["mark", "size"])


def _store_bool(event, out=hg.output("n bigint NULL")):
    out.n = event.is_on


def _round(event, out=hg.output("m decimal(9,2) NULL")):
    out.m = round(event.m, 1)


def _add(event, rows=marked.where("mark"), out=hg.output("n bigint")):
    out.n = rows + 1


def _by_size(event, rows=marked.where(size="n"), out=hg.output("n bigint")):
    out.n = len(rows)


@pytest.mark.parametrize(
    ("function", "event", "words"),
    [
        (_store_bool, "is_on boolean NULL", "is bigint, and a bool cannot be stored in it"),
        (_round, "m decimal(9,2) NULL", "no compiled form of round(decimal(9,2) or None, 1);"),
        (_add, "mark string", "no compiled form of add(rows of table 'marked', 1);"),
        (_by_size, "n int", "event column 'n' is a int, the column marked.size a double"),
    ],
)
def test_a_refusal_names_types_as_a_user_knows_them(function: Any, event: str, words: str) -> None:
    assert words in refusal(hg.DeclarationError, lambda: hg.transaction(event=event)(function))


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_and_arrays_are_true_when_there_are_any(compiled: bool) -> None:
    @hg.transaction(event="mark string, numbers array<bigint>", compiled=compiled)
    def look(event, rows=marked.where("mark"), out=hg.output("n bigint")):
        if rows:
            out.n = 1
        if not event.numbers:
            out.n += 2
        if not rows and bool(event.numbers):
            out.n += 4

    with hg.open(None, tables=[marked], transactions=[look]) as engine:
        engine.load(marked, [{"id": 1, "mark": "a", "size": 0.5}])
        events = [{"mark": mark, "numbers": given} for mark in "ab" for given in ([], [7])]
        assert engine.run(look, events).column("n").to_pylist() == [3, 1, 2, 4]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_window_is_true_when_it_has_versions(compiled: bool) -> None:
    kept = hg.Table("kept", "id bigint, n bigint", key="id", history="3 rows")

    @hg.transaction(event="id bigint, other bigint", compiled=compiled)
    def put(
        event,
        row=kept.at("id", create=True),
        seen=kept.window("other", size="2 rows"),
        out=hg.output("n bigint"),
    ):
        row.n += 1
        if seen:
            out.n = len(seen)
        if not seen:
            out.n = -1

    with hg.open(None, tables=[kept], transactions=[put]) as engine:
        events = [{"id": 1, "other": other} for other in (2, 1, 1, 1)]
        assert engine.run(put, events).column("n").to_pylist() == [-1, 1, 2, 2]


def test_three_sequences_of_other_lengths_are_told_as_python_tells_it() -> None:
    lengths = list(itertools.product(range(3), repeat=3))
    events = [{name: [1] * n for name, n in zip("abc", one, strict=True)} for one in lengths]
    found = []
    for compiled in (True, False):

        @hg.transaction(
            event="a array<bigint>, b array<bigint>, c array<bigint>", compiled=compiled
        )
        def add(event, out=hg.output("n bigint")):
            for x, y, z in zip(event.a, event.b, event.c, strict=True):
                out.n += x * y * z

        with hg.open(None, tables=[marked], transactions=[add]) as engine:
            results = engine.run(add, events)
            found.append(results.select(["outcome", "reason", "n"]).to_pylist())
    assert found[0] == found[1]
    assert len({row["reason"] for row in found[0]}) == 5


def test_a_history_beyond_all_times_is_too_much() -> None:
    told = refusal(
        hg.DeclarationError, lambda: hg.Table("t", "id int", key="id", history="1000000000 days")
    )
    assert told.endswith("'1000000000 days' must be less; it is beyond all times and counts")
