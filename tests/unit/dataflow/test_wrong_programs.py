"""A program that is wrong behind a node that wrote: nothing is seen that is in no record."""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headgate as hg

counts = hg.Table("counts", "k bigint, n bigint DEFAULT 0", key="k")
others = hg.Table("others", "k bigint", key="k")
moves = hg.Table("moves", "k bigint, ts timestamp", key="k", history="5 minutes")
first, second = hg.Stream("first", "k bigint"), hg.Stream("second", "k bigint")


@hg.transaction(event=first, output=second)
def count(event: hg.Event, row: hg.Row = counts.at("k", create=True)) -> None:
    row.n += 1


def flow(declared: list[hg.Table]) -> hg.Dataflow:
    @hg.procedure(second, writes=declared)
    def follow(batch: Any, tx: Any) -> None:
        if 2 in batch.column("k").to_pylist():
            tx.insert(others, [{"k": 1}])

    return hg.Dataflow("flow", [count, follow])


def opened(path: Path, declared: list[hg.Table]) -> hg.Engine:
    return hg.open(
        str(path), tables=[counts, others], dataflows=flow(declared), recovery="weak",
        changed_code="accept",
    )  # fmt: skip


def test_a_weak_epoch_that_cannot_end_stops_the_engine_and_is_not_there_when_it_is_opened(
    tmp_path: Path,
) -> None:
    engine = opened(tmp_path / "store", [])
    engine.push(first, [{"k": 1}])
    with pytest.raises(hg.DeclarationError, match="does not declare"):
        engine.push(first, [{"k": 2}])
    with pytest.raises(hg.HeadgateError, match="stopped"):
        engine.push(first, [{"k": 1}])
    engine.close()
    with opened(tmp_path / "store", [others]) as again:
        assert again.sql("from counts order by k").rows() == [(1, 1)]
        again.push(first, [{"k": 2}])
        assert again.sql("from counts order by k").rows() == [(1, 1), (2, 1)]
        assert again.sql("from others").rows() == [(1,)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select id from counts", r"'counts' is a table: declare it, reads=\[counts\]"),
        ("select k from nowhere", "nowhere does not exist"),
        ("select nothing from batch", "nothing"),
        ("selec k from batch", "syntax error"),
        ("select k from moves_history", "'moves_history' has the versions of 'moves'"),
        ("select k from batch where k = ?", "Values were not provided"),
        ("select k from batch; select 2", "write one query, not 2"),
        ("update others set k = 1", "only SELECT reads a store"),
        ("pragma threads=1", "is refused"),
        ("select * from 'x.parquet'", "Cannot access file"),
        ("  ", "this is empty"),
        ("-- only words", "write one query, not 0"),
    ],
)
def test_sql_that_is_wrong_loses_no_batch(tmp_path: Path, query: str, told: str) -> None:
    """An abort is for good, and nothing is wrong with the rows: they wait for a better program."""

    def opened_with(asked: str) -> hg.Engine:
        @hg.procedure(first, writes=others)
        def note(batch: Any, tx: Any) -> None:
            tx.insert(others, tx.sql(asked))

        said: Any = {"tables": [counts, others, moves], "dataflows": hg.Dataflow("noting", [note])}
        return hg.open(str(tmp_path / "store"), **said)

    with (
        opened_with(query) as engine,
        pytest.raises(hg.DeclarationError, match=f"(?s)procedure 'note'.*{told}.*are taken"),
    ):
        engine.push(first, [{"k": 3}])
    with opened_with("select k from batch") as engine:
        assert engine.sql("from others").rows() == [(3,)]


def test_what_the_rows_make_of_right_sql_aborts_their_batch(tmp_path: Path) -> None:
    @hg.procedure(first, writes=others)
    def note(batch: Any, tx: Any) -> None:
        tx.sql("select case when k = 3 then error('three') end from batch")
        tx.sql("select k from batch where k = ?", [batch.column("k")[0].as_py()])

    with hg.open(None, tables=[others], dataflows=hg.Dataflow("noting", [note])) as engine:
        engine.push(first, [{"k": 3}])
        engine.push(first, [{"k": 4}])
        said = "select outcome from results where transaction = 'note' order by batch"
        assert [row[0] for row in engine.sql(said).rows()] == ["aborted", "committed"]


FACTOR = 1
SEEN: list[int] = []


def times(value: int) -> int:
    return value * FACTOR


class Rule:
    """What multiplies: by code, which is one of two."""

    def once(self, value: int) -> int:
        return value * 1

    def ten_times(self, value: int) -> int:
        return value * 10


def rule_of(factor: int) -> Any:
    """An object of a class whose code depends on the factor."""
    made = Rule.once if factor == 1 else Rule.ten_times
    return type("Made", (), {"__module__": __name__, "__call__": made, "go": made})()


def by_closure(factor: int) -> Any:
    return lambda batch, tx: put(tx, [row["k"] * factor for row in rows(batch)])


def by_module(factor: int) -> Any:
    return lambda batch, tx: put(tx, [row["k"] * FACTOR for row in rows(batch)])


def by_function(factor: int) -> Any:
    return lambda batch, tx: put(tx, [times(row["k"]) for row in rows(batch)])


def by_default(factor: int) -> Any:
    def note(batch: Any, tx: Any, by: int = factor) -> None:
        SEEN.append(by)  # what changes by itself is no constant
        put(tx, [row["k"] * by for row in rows(batch)])

    return note


def by_text(factor: int) -> Any:
    asked = f"select k * {factor} as k from batch"
    return lambda batch, tx: put(tx, tx.sql(asked).column("k").to_pylist())


def by_call(go: Callable[[int], int]) -> Any:
    return lambda batch, tx: put(tx, [go(row["k"]) for row in rows(batch)])


def by_partial(factor: int) -> Any:
    return by_call(functools.partial(operator.mul, factor))


def by_function_of_partial(factor: int) -> Any:
    return by_call(functools.partial(Rule.once if factor == 1 else Rule.ten_times, None))


def by_bound_method(factor: int) -> Any:
    return by_call(Rule().once if factor == 1 else Rule().ten_times)


def by_object_that_is_called(factor: int) -> Any:
    return by_call(rule_of(factor))


def by_method(factor: int) -> Any:
    rule = rule_of(factor)
    return lambda batch, tx: put(tx, [rule.go(row["k"]) for row in rows(batch)])


def by_class(factor: int) -> Any:
    rule = type(rule_of(factor))
    return lambda batch, tx: put(tx, [rule().go(row["k"]) for row in rows(batch)])


def put(tx: Any, keys: list[int]) -> None:
    tx.upsert(others, [{"k": key} for key in keys])


def rows(batch: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


@pytest.mark.parametrize(
    "how",
    [by_closure, by_module, by_function, by_default, by_text, by_partial, by_function_of_partial,
     by_bound_method, by_object_that_is_called, by_method, by_class],
)  # fmt: skip
def test_weak_recovery_refuses_a_procedure_whose_constants_have_changed(
    tmp_path: Path, how: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "store")

    def opened_with(factor: int, **options: Any) -> hg.Engine:
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", factor)
        flows = hg.Dataflow(
            "noting", [hg.procedure(first, writes=others, name="note")(how(factor))]
        )
        return hg.open(path, tables=[others], dataflows=flows, recovery="weak", **options)

    with opened_with(1) as engine:
        engine.push(first, [{"k": 7}])
    with opened_with(1) as engine:
        assert engine.sql("from others").rows() == [(7,)]
    with pytest.raises(hg.StoreError, match="a constant that its code goes by"):
        opened_with(10)
    with opened_with(1) as engine:
        assert engine.sql("from others").rows() == [(7,)]
        engine.snapshot()
    with opened_with(10) as engine:  # nothing is to be run again
        assert engine.sql("from others").rows() == [(7,)]


@pytest.mark.parametrize(
    "said",
    ["from {} import go\n", "import {} as rules\ngo = lambda k: rules.go(k)\n",
     "def go(k):\n    from {} import go\n    return go(k)\n"],
    ids=["from", "import", "in the body"],
)  # fmt: skip
def test_weak_recovery_knows_the_other_modules_of_a_program(
    tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rules = f"rules_{tmp_path.name}"
    program = f"{said.format(rules)}def note(batch, tx):\n    put(tx, [go(7)])\n"

    def opened(factor: int) -> hg.Engine:
        (tmp_path / f"{rules}.py").write_text(f"def go(k):\n    return k * {factor}  # a rule\n")
        sys.modules.pop(rules, None)
        importlib.invalidate_caches()
        names: dict[str, Any] = {"put": put, "__name__": "a_program"}
        exec(program, names)
        flow = hg.Dataflow("noting", [hg.procedure(first, writes=others)(names["note"])])
        return hg.open(tmp_path / "store", tables=[others], dataflows=flow, recovery="weak")

    with opened(2) as engine:
        engine.push(first, [{"k": 1}])
    with pytest.raises(hg.StoreError, match="logged as input of a dataflow that has changed"):
        opened(3)
    with opened(2) as engine:
        assert engine.sql("from others").rows() == [(14,)]


def test_a_constant_that_changes_while_the_engine_is_open_lets_no_rows_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, module = str(tmp_path / "store"), sys.modules[__name__]

    @hg.procedure(first, writes=others)
    def note(batch: Any, tx: Any) -> None:
        tx.upsert(others, [{"k": times(7)}])

    def opened() -> hg.Engine:
        flow = hg.Dataflow("noting", [note])
        return hg.open(path, tables=[others], dataflows=flow, recovery="weak")

    with opened() as engine:
        engine.push(first, [{"k": 7}])
        monkeypatch.setattr(module, "FACTOR", 10)
        with pytest.raises(
            hg.DeclarationError, match=r"'FACTOR' of 'note'.*1 became 10.*not taken"
        ):
            engine.push(first, [{"k": 8}])
        monkeypatch.setattr(module, "FACTOR", 1)
        engine.push(first, [{"k": 9}])  # as it was: nothing is stopped
        assert engine.epoch == 2
    with opened() as engine:
        assert engine.sql("from others").rows() == [(7,)]


def test_who_pushes_is_told_that_rows_are_taken_when_another_thread_closes(tmp_path: Path) -> None:
    inside = threading.Event()
    many = hg.Stream("many", "k bigint", batch="1 row")

    @hg.procedure(many, writes=others)
    def note(batch: Any, tx: Any) -> None:
        inside.set()
        time.sleep(0.05)
        tx.insert(others, batch)

    def opened() -> hg.Engine:
        path = str(tmp_path / "store")
        return hg.open(path, tables=[others], dataflows=hg.Dataflow("noting", [note]))

    with opened() as engine, ThreadPoolExecutor(1) as pool:
        pushed = pool.submit(engine.push, many, [{"k": k} for k in range(30)])
        assert inside.wait(60)
        engine.close()
        with pytest.raises(hg.StoreError, match=r"are taken, and run.*do not hand them in again"):
            pushed.result()
    with opened() as engine:
        engine.stream(many).settle()
        assert engine.counts()["others"] == 30
