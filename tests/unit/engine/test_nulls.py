"""Nulls through a store: constraints, the log, snapshots, past epochs, calls, migrations."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle

SCHEMA = "id bigint, email string NULL, boss bigint NULL, age int NULL DEFAULT 30, part int NULL"
people = hg.Table(
    "people",
    SCHEMA,
    key="id",
    unique=["email", ("age", "part")],
    references={"boss": "people"},
    check="age > 10 or part = 1",
)


@hg.transaction(event="id bigint, email string NULL, boss bigint NULL, age int NULL, part int NULL")
def put(event, row=people.at("id", create=True), out=hg.output("was int NULL, email string NULL")):
    out.was = row.age
    out.email = event.email
    row.email = event.email
    row.boss = event.boss
    row.age = event.age
    row.part = event.part


@hg.transaction(event="id bigint, age int NULL", compiled=False)
def grow(event, row=people.at("id")):
    row.age = event.age


def person(number: int, **columns: Any) -> dict[str, Any]:
    return {"id": number, "email": None, "boss": None, "age": None, "part": None, **columns}


def opened(path: Path | None, **options: Any) -> hg.Engine:
    return hg.open(path, tables=[people], transactions=[put, grow], **options)


def shown(engine: hg.Engine, **options: Any) -> list[dict[str, Any]]:
    return engine.sql("from people order by id", **options).arrow().to_pylist()


EVENTS = [
    person(1, email="a", age=20, part=1),
    person(2),
    person(3),
    person(4, email="a"),
    person(5, boss=9),
    person(5, boss=1, age=20),
    person(6, age=20, part=1),
    person(7, age=5),
    person(8, age=5, part=None, boss=1),
    person(9, age=5, part=1),
    person(2, age=20, part=1),
    person(1, email=None, age=None, part=1),
    person(2, age=20, part=1),
]
REASONS = [
    None, None, None, "unique failed: people: email", "reference failed: people.boss: people",
    None, "unique failed: people: age, part", None, None, None,
    "unique failed: people: age, part", None, None,
]  # fmt: skip


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_null_is_nobodys_twin_refers_to_nothing_and_passes_a_check(form: str) -> None:
    function = put.signature.function
    one = hg.transaction(event=put.event.ddl, compiled=form == "compiled")(function)
    oracle = SerialOracle([people], [one])
    wanted = oracle.run(one, EVENTS)
    assert [row["reason"] for row in wanted] == REASONS
    with hg.open(None, tables=[people], transactions=[one]) as engine:
        assert engine.run(one, EVENTS).to_pylist() == wanted
        assert shown(engine) == oracle.table("people")


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_nulls_come_back_from_the_log_and_from_a_snapshot(tmp_path: Path, recovery: str) -> None:
    epochs: dict[int, list[dict[str, Any]]] = {}
    with opened(tmp_path / "store", recovery=recovery) as engine:
        engine.load(people, [{"id": 100, "boss": 100}, {"id": 101, "email": "z", "age": None}])
        for first in range(0, len(EVENTS), 4):
            engine.run(put, EVENTS[first : first + 4])
            engine.call(grow, id=101, age=first or None)
            epochs[engine.epoch] = shown(engine)
    with opened(tmp_path / "store", recovery=recovery) as engine:
        assert shown(engine) == epochs[engine.epoch]
        engine.snapshot()
    with opened(tmp_path / "store", recovery=recovery) as engine:
        assert shown(engine) == epochs[engine.epoch]
        for epoch, rows in epochs.items() if recovery == "strong" else ():
            assert shown(engine, epoch=epoch) == rows
        assert [engine.get(people, row["id"]) for row in shown(engine)] == shown(engine)
        assert engine.call(put, **person(8, email="a")).reason is None  # the index is made anew
        assert engine.call(put, **person(9, email="a")).reason == "unique failed: people: email"


def test_a_call_with_a_key_is_known_again_by_its_nulls(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as engine:
        first = engine.call_once("k", put, **person(1, email="x"))
        assert (first.was, first.email) == (30, "x")
        second = engine.call_once("l", put, **person(1))
        assert (second.was, second.email) == (None, None)
    with opened(tmp_path / "store") as engine:
        assert dict(engine.call_once("k", put, **person(1, email="x"))) == dict(first)
        assert dict(engine.call_once("l", put, **person(1))) == dict(second)
        with pytest.raises(hg.InputError):
            engine.call_once("k", put, **person(1, email=None))


def test_updates_show_null_in_the_row_and_null_for_a_row_that_is_gone() -> None:
    @hg.transaction(event="id bigint, age int NULL")
    def leave(event, row=people.at("id", create=True)):
        row.age = event.age
        if event.age == 99:
            hg.delete(row)

    with hg.open(None, tables=[people], transactions=[leave]) as engine:
        events = [{"id": 1, "age": None}, {"id": 2, "age": 12}, {"id": 1, "age": 99}]
        found = engine.run(leave, events, updates=True).column("row").to_pylist()
    assert found == [person(1), person(2, age=12), None]


def test_events_that_are_held_back_keep_their_nulls(tmp_path: Path) -> None:
    @hg.transaction(event="ts timestamp, id bigint, age int NULL")
    def later(event, row=people.at("id", create=True), out=hg.output("age int NULL")):
        row.age = event.age
        out.age = event.age

    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    events = [
        {"ts": start + dt.timedelta(seconds=place), "id": place, "age": [None, 20][place % 2]}
        for place in range(6)
    ]
    options: dict[str, Any] = {"order_by": "ts", "watermark": "2 seconds"}
    with hg.open(tmp_path / "store", tables=[people], transactions=[later]) as engine:
        first = engine.run(later, events, **options).column("age").to_pylist()
    with hg.open(tmp_path / "store", tables=[people], transactions=[later]) as engine:
        rest = engine.flush(later, **options).column("age").to_pylist()
    assert first + rest == [None, 20] * 3


def test_an_order_column_is_never_null() -> None:
    with opened(None) as engine, pytest.raises(hg.InputError, match="declares 'age' NULL"):
        engine.run(grow, [], order_by="age")


def test_an_event_column_that_names_a_row_is_never_null() -> None:
    with pytest.raises(hg.DeclarationError, match="'id' is declared NULL, and a key is never null"):

        @hg.transaction(event="id bigint NULL")
        def touch(event, row=people.at("id")):
            row.age = 1


# --- declarations that change ---------------------------------------------------------------------

FIRST = hg.Table("t", "id bigint, n int DEFAULT 3, s string", key="id")
ROWS = [{"id": 1, "n": 1, "s": "a"}, {"id": 2, "s": "b"}]


def _made(path: Path) -> None:
    with hg.open(path, tables=[FIRST]) as engine:
        engine.load(FIRST, ROWS)


def _rows(path: Path, ddl: str, *migrations: hg.Migration, **options: Any) -> list[dict[str, Any]]:
    table = hg.Table("t", ddl, key="id")
    with hg.open(path, tables=[table], migrations=migrations) as engine:
        return engine.sql("from t order by id", **options).arrow().to_pylist()


def test_a_nullable_column_without_a_default_is_added_by_its_declaration(tmp_path: Path) -> None:
    _made(tmp_path / "s")
    found = _rows(tmp_path / "s", "id bigint, n int DEFAULT 3, s string, x double NULL")
    assert [row["x"] for row in found] == [None, None]
    with pytest.raises(hg.DeclarationError, match=r"add it by a migration.*y int NULL DEFAULT 5"):
        _rows(tmp_path / "s", "id bigint, n int DEFAULT 3, s string, x double NULL, "
              "y int NULL DEFAULT 5")  # fmt: skip


def test_a_column_becomes_nullable_and_back_when_every_row_has_a_value(tmp_path: Path) -> None:
    _made(tmp_path / "s")
    older = hg.Migration("older").add_column("t", "x int DEFAULT 7")
    allowed = hg.Migration("allowed").allow_null("t", "x").add_column("t", "y int NULL DEFAULT 5")
    ddl = "id bigint, n int DEFAULT 3, s string, x int NULL DEFAULT 7, y int NULL DEFAULT 5"
    found = _rows(tmp_path / "s", ddl, older, allowed)
    assert [(row["x"], row["y"]) for row in found] == [(7, 5), (7, 5)]
    table = hg.Table("t", ddl, key="id")

    @hg.transaction(event="id bigint, x int NULL")
    def change(event, row=table.at("id")):
        row.x = event.x

    forbidden = hg.Migration("forbidden").forbid_null("t", "x")
    never = ddl.replace("x int NULL", "x int")
    with hg.open(tmp_path / "s", tables=[table], transactions=[change]) as engine:
        engine.call(change, id=2, x=None)
        hurt = engine.epoch
    with pytest.raises(hg.DeclarationError, match="the column 'x' has no value: 1 row: id=2"):
        _rows(tmp_path / "s", never, older, allowed, forbidden)
    with hg.open(tmp_path / "s", tables=[table], transactions=[change]) as engine:
        engine.call(change, id=2, x=8)
    assert [row["x"] for row in _rows(tmp_path / "s", never, older, allowed, forbidden)] == [7, 8]
    past = _rows(tmp_path / "s", never, older, allowed, forbidden, epoch=hurt)
    assert [row["x"] for row in past] == [7, None]


def test_the_difference_to_a_store_is_told_as_a_migration(tmp_path: Path) -> None:
    _made(tmp_path / "s")
    with pytest.raises(hg.DeclarationError, match=r"\.allow_null\('t', 's'\)"):
        _rows(tmp_path / "s", "id bigint, n int DEFAULT 3, s string NULL")
