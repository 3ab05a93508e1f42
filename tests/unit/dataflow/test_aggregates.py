"""Aggregates of a window: kept as rows come and go, and what its rows say however it came to be."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.dataflow import stepping
from headgate.dataflow.aggregates import Aggregates
from headgate.dataflow.groups import Groups
from headgate.dataflow.streams import Window
from headgate.dataflow.under_way import EMPTY, node_inlet
from headgate.dataflow.windows import HeldRows
from headgate.kernels import window_groups as kernels
from headgate.state.schema import Schema
from headgate.testing import SimulatedDisk
from headgate.testing.window_rows import aggregated
from tests.unit.dataflow.shows import NOON

COLUMNS = (
    "ts timestamp, g int NULL, h string, x bigint NULL, y double NULL, f float NULL, "
    "n string NULL, d decimal(10,2), b boolean NULL"
)
ALL = (
    "count(*) as c, count(x) as cx, sum(x) as sx, avg(x) as ax, min(y) as least, max(y) as most, "
    "sum(y) as sy, avg(y) as ay, sum(f) as sf, max(f) as mf, min(n) as first_n, max(n) as last_n, "
    "sum(d) as sd, avg(d) as ad, min(ts) as begin, max(ts) as until, min(b) as mb"
)
stream = hg.Stream("events", COLUMNS, order_by="ts")
seen = hg.Table("seen", "n bigint, v bigint", key="n")
REALS = (0.0, -0.0, 0.1, 1e300, -1e300, 1e-310, 5e-324, 2.0**53, 1.0)
ODD = (math.nan, math.inf, -math.inf)


def events(draw: random.Random, count: int, second: int, *, is_late: bool) -> list[dict[str, Any]]:
    """Rows of all kinds of values, some of them null, some late."""

    def or_null(value: Any) -> Any:
        return None if draw.random() < 0.3 else value

    found = []
    for _ in range(count):
        second += draw.choice((0, 0, 1, 1, 2, 9))
        back = draw.randrange(15) if is_late and draw.random() < 0.2 else 0
        real = draw.choice(ODD if draw.random() < 0.05 else REALS)
        found.append({
            "ts": NOON + datetime.timedelta(seconds=second - back),
            "g": or_null(draw.randrange(3)), "h": draw.choice("ab"),
            "x": or_null(draw.choice((draw.randrange(-9, 9), 2**58, -(2**58)))),
            "y": or_null(real), "f": or_null(draw.choice((0.5, -0.25, 3.0, math.inf))),
            "n": or_null(draw.choice(("", "a", "ä", "long " * 9))),
            "d": Decimal(draw.randrange(-999, 9999)).scaleb(-2), "b": or_null(draw.random() < 0.5),
        })  # fmt: skip
    return found


def bytes_of(table: pa.Table) -> bytes:
    """A table as bytes: NaN is NaN, and -0.0 is not 0.0."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


class Keeping:
    """A procedure that holds its aggregates against the rows of its window, and may abort."""

    def __init__(self, window: Window, *, has_aborts: bool, is_weak: bool) -> None:
        self.window, self.calls = window, 0
        self._has_aborts, self._is_weak, self._tried = has_aborts, is_weak, set[bytes]()

    def keep(self, batch: pa.Table, aggregates: pa.Table, tx: hg.Tx) -> Any:
        self.calls += 1
        assert self.window.aggregates is not None
        expected = aggregated(self.window.aggregates, batch.to_pylist())
        assert repr(aggregates.to_pylist()) == repr(expected.to_pylist())
        if self.calls < 3:
            asked = tx.sql("select sum(c)::bigint as n from aggregates").to_pylist()
            assert asked == [{"n": len(batch)}]
        kind = sum(aggregates.column("c").to_pylist()) + len(aggregates)
        if self._has_aborts and kind % 5 == 0:
            return hg.abort("for good")
        mark = bytes_of(batch)
        if self._has_aborts and not self._is_weak and kind % 5 == 1 and mark not in self._tried:
            self._tried.add(mark)
            return hg.abort("once")
        return None


@pytest.mark.parametrize("seed", range(12))
def test_aggregates_are_those_of_the_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    batch = "3 rows" if seed % 4 > 1 else None
    stream = hg.Stream("events", COLUMNS, order_by="ts", batch=batch)
    if seed % 3 == 0:  # batches that are taken at once come one by one
        monkeypatch.setattr(stepping, "TOGETHER_SECONDS", 0.0)
    size = draw.randrange(1, 12)
    slide, unit = draw.randrange(1, size + 1), ("rows", "seconds")[seed % 2]
    by = draw.choice((None, "g", "h", "g, h"))
    window = stream.window(f"{size} {unit}", f"{slide} {unit}", aggregate=ALL, by=by)
    is_weak, is_killed = seed in (5, 10), seed % 3 == 1
    keeping = Keeping(window, has_aborts=seed % 4 > 1, is_weak=is_weak)
    said: Any = {"retries": seed % 2} if seed % 5 else {}
    writes = [seen] if seed % 3 else []  # without a table it is an onlooker
    node = hg.procedure(window, writes=writes, name="keep", **said)(keeping.keep)
    disk, second = SimulatedDisk(), 0

    @hg.procedure(stream.window(f"{size} {unit}", f"{slide} {unit}"))
    def plain(batch: pa.Table, tx: hg.Tx) -> None: ...

    opened: Any = {
        "tables": [seen], "dataflows": hg.Dataflow("f", [node, plain]),
        "recovery": "weak" if is_weak else "strong",
    }  # fmt: skip
    engine = hg.open("/kept", disk=disk, **opened)
    for push in range(8):
        rows = events(draw, draw.randrange(1, draw.choice((3, 9, 40))), second, is_late=True)
        second = max(int((row["ts"] - NOON).total_seconds()) for row in rows)
        engine.push(stream, rows)
        inlets = engine._memory.inlets
        held = [inlets.get(node_inlet(name), EMPTY).held for name in ("keep", "plain")]
        kept, plain_rows = (0 if one is None else one.num_rows for one in held)
        assert kept == plain_rows  # no row stays that no window has any more
        if push % 4 == 3:
            if is_killed:
                disk = disk.after_kill()
            else:
                engine.close()
            engine = hg.open("/kept", disk=disk, **opened)
    failed = engine.sql("select reason from results where reason like 'error%'").rows()
    engine.close()
    assert failed == []
    assert keeping.calls > 0


def windows_of(rows: list[dict[str, Any]], window: Window, *, is_killed: bool) -> list[bytes]:
    """The aggregates of all windows, where the process may die after each push."""
    found: list[bytes] = []

    @hg.procedure(window, writes=seen)
    def keep(aggregates: pa.Table, tx: hg.Tx) -> None:
        found.append(bytes_of(aggregates))

    disk, said = SimulatedDisk(), {"tables": [seen], "dataflows": hg.Dataflow("f", [keep])}
    engine = hg.open("/same", disk=disk, **said)  # type: ignore[arg-type]
    for first in range(0, len(rows), 7):
        engine.push(stream, rows[first : first + 7])
        if is_killed:
            disk = disk.after_kill()
            engine = hg.open("/same", disk=disk, **said)  # type: ignore[arg-type]
    engine.close()
    return found


@pytest.mark.parametrize("unit", ["rows", "seconds"])
def test_aggregates_have_the_same_bytes_when_they_are_made_anew(unit: str) -> None:
    """Whatever came and went before: also sums of floats, and which of equal values is least."""
    rows = events(random.Random(7), 120, 0, is_late=True)
    window = stream.window(f"20 {unit}", f"3 {unit}", aggregate=ALL, by="h")
    kept = windows_of(rows, window, is_killed=False)
    assert len(kept) > 10
    assert kept == windows_of(rows, window, is_killed=True)


def test_sums_of_floats_do_not_drift() -> None:
    plain = hg.Stream("plain", "v double")
    sums: list[float] = []

    @hg.procedure(plain.window("2 rows", "1 row", aggregate="sum(v) as total, avg(v) as mean"))
    def keep(aggregates: pa.Table, tx: hg.Tx) -> None:
        sums.append(aggregates.column("total").to_pylist()[0])

    with hg.open(None, dataflows=hg.Dataflow("f", [keep])) as engine:
        engine.push(plain, [{"v": v} for v in (1e300, 0.1, 0.2, math.nan, 1.0, 2.0, math.inf, 3.0)])
    assert repr(sums) == repr(
        [1e300, 0.1 + 0.2, math.nan, math.nan, 3.0, math.inf, math.inf]
    )  # once something is gone, nothing of it is left


def test_exact_sums_are_rounded_once() -> None:
    schema = Schema.parse("v double")
    declared = Aggregates.parse("sum(v) as total", None, schema, "test")
    assert declared is not None
    draw = np.random.default_rng(3)
    half = np.array([2.0**54, 2.0, 5e-324])  # what is just above it decides, however far below
    for count in (0, 1, 2, 3, 10, 100, 1000):
        values = half if count == 0 else draw.integers(-(2**63), 2**63 - 1, count).view(np.float64)
        values = values[np.isfinite(values)]
        if count == 1000:  # all near to each other: what is rounded is a half now and then
            values = draw.integers(-(2**53), 2**53, count) * 2.0 ** draw.integers(-3, 3, count)
        groups, numbers = Groups(declared), np.arange(len(values))
        groups.stage(pa.table({"v": values}), numbers, numbers)
        groups.move(0, len(values))
        rows = [{"v": float(value)} for value in values]
        assert bytes_of(groups.table()) == bytes_of(aggregated(declared, rows))
        groups.move(len(values) - 1, 1)
        assert groups.table().column("total").to_pylist() == [rows[-1]["v"]]


def test_groups_and_texts_that_are_gone_leave_room() -> None:
    schema = Schema.parse("k string, n string")
    declared = Aggregates.parse("count(*) as c, max(n) as most", "k", schema, "test")
    assert declared is not None
    groups, line = Groups(declared), list[dict[str, Any]]()
    for turn in range(12):
        rows = [
            {"k": f"key {turn * 350 + n % 700}", "n": f"text {turn} {n * 7919}"} for n in range(900)
        ]
        numbers = np.arange(turn * 900, turn * 900 + 900)
        groups.stage(pa.Table.from_pylist(rows, schema.arrow), numbers, numbers)
        line = [*line, *rows][-1000:]
        groups.move(max(groups.count - 1000, 0), len(line))
        assert groups.table().equals(aggregated(declared, line))
    assert groups._pool.count < 5000
    assert len(groups._arrays[kernels.GROUP_ROWS]) <= 2048


def test_a_group_is_found_behind_one_that_is_gone() -> None:
    """Groups of one home stand behind each other in the cells."""
    schema, draw = Schema.parse("k bigint"), random.Random(2)
    declared = Aggregates.parse("count(*) as c", "k", schema, "test")
    assert declared is not None
    groups, line = Groups(declared), list[dict[str, Any]]()
    keys = [draw.getrandbits(62) for _ in range(30)]
    for turn in range(500):
        rows = [{"k": draw.choice(keys)} for _ in range(3)]
        numbers = np.arange(3 * turn, 3 * turn + 3)
        groups.stage(pa.Table.from_pylist(rows, schema.arrow), numbers, numbers)
        line = [*line, *rows][-18:]
        groups.move(max(groups.count - 18, 0), len(line))
        assert groups.table().equals(aggregated(declared, line))


def test_a_sum_that_is_no_bigint_aborts_and_the_window_moves_on() -> None:
    plain, out = hg.Stream("plain", "v bigint"), hg.Stream("out", "total bigint")

    @hg.procedure(plain.window("2 rows", aggregate="sum(v) as total"), output=out)
    def keep(aggregates: pa.Table, tx: hg.Tx) -> pa.Table:
        return aggregates

    top = 2**63 - 1
    with hg.open(None, dataflows=hg.Dataflow("f", [keep])) as engine:
        for pair in ((top, 1), (top, -1), (-top, -2), (-top, -1)):
            engine.push(plain, [{"v": v} for v in pair])
        told = engine.sql("select reason from results where transaction = 'keep'").rows()
        given = engine.sql("select total from results where transaction = 'out'").rows()
    assert given == [(top - 1,), (-top - 1,)]
    assert told[0] == told[2] == (
        "out of range: sum(v) as total is no bigint; declare a decimal column",
    )  # fmt: skip


def test_rows_are_put_together_for_who_asks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = hg.Stream("plain", "k int, v bigint")
    window = plain.window("6 rows", "2 rows", aggregate="sum(v) as total", by="k")
    asked, found = ["select * from aggregates order by total"], list[Any]()

    @hg.procedure(window)
    def keep(aggregates: pa.Table, tx: hg.Tx) -> None:
        found.append(tx.sql(asked[0]).to_pylist())

    def whole(self: HeldRows) -> pa.Table:
        raise AssertionError("nobody asked for rows")

    rows = [{"k": n % 2, "v": n} for n in range(10)]
    with hg.open(None, dataflows=hg.Dataflow("f", [keep])) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(HeldRows, "whole", property(whole))
            engine.push(plain, rows)
        asked[0] = "select count(*) as n from plain"
        engine.push(plain, rows[:2])
    assert found[0] == [{"k": 0, "total": 6}, {"k": 1, "total": 9}]
    assert [len(one) for one in found] == [2, 2, 2, 1]
    assert found[-1] == [{"n": 6}]


def test_a_column_that_is_new_while_rows_wait_is_null_there() -> None:
    disk, found = SimulatedDisk(), list[Any]()

    def opened(columns: str, aggregate: str) -> tuple[hg.Engine, hg.Stream]:
        source = hg.Stream("source", columns)

        @hg.procedure(source.window("3 rows", aggregate=aggregate))
        def keep(aggregates: pa.Table, tx: hg.Tx) -> None:
            found.append(aggregates.to_pylist())

        return hg.open("/new", disk=disk, dataflows=hg.Dataflow("f", [keep])), source

    engine, source = opened("v bigint", "sum(v) as total")
    engine.push(source, [{"v": 1}, {"v": 2}])
    engine.close()
    engine, source = opened("v bigint, w int NULL", "count(w) as n, max(v) as most")
    engine.push(source, [{"v": 3, "w": 4}])  # what is kept is made from the rows: it may change
    engine.close()
    assert found == [[{"n": 1, "most": 3}]]


def test_weak_recovery_refuses_other_aggregates() -> None:
    disk, plain = SimulatedDisk(), hg.Stream("plain", "v bigint")

    def opened(aggregate: str) -> hg.Engine:
        @hg.procedure(plain.window("2 rows", aggregate=aggregate), writes=seen)
        def keep(aggregates: pa.Table, tx: hg.Tx) -> None:
            tx.insert(seen, "select (select count(*) from seen) as n, v from aggregates")

        flow = hg.Dataflow("f", [keep])
        return hg.open("/weak", tables=seen, dataflows=flow, disk=disk, recovery="weak")

    engine = opened("sum(v) as v")
    engine.push(plain, [{"v": 1}, {"v": 2}])
    disk = disk.after_kill()
    with pytest.raises(hg.HeadgateError, match="dataflow that has changed"):
        opened("max(v) as v")
    engine = opened("sum(v) as v")
    assert engine.sql("select * from seen").rows() == [(0, 3)]
    engine.close()


def refused() -> Iterator[tuple[Any, str]]:
    """What cannot be kept, and what is said of it."""
    plain = hg.Stream("plain", "k int, v bigint, r double, s string, a array<int>")

    def kept(text: Any, by: Any = None) -> Any:
        return lambda: plain.window("3 rows", aggregate=text, by=by)

    yield kept(3), "aggregate is a text such as 'count"
    yield kept(""), "aggregate is a text such as 'count"
    yield kept(None, "k"), "say which"
    yield kept("sum(v)"), "has no name; write 'sum.v. as total'"
    yield kept("k, sum(v) as t"), "name it in by="
    yield kept("median(v) as m"), "cannot be kept as rows come and go.*in SQL over batch"
    yield kept("summ(v) as m"), "did you mean 'sum'"
    yield kept("sum(v + 1) as m"), "cannot read .*is to be a column of the stream"
    yield kept("count(distinct v) as m"), "each value once, is asked in SQL over batch"
    yield kept("sum(w) as m"), "no column 'w'"
    yield kept("sum(*) as m"), "is of no column"
    yield kept("sum(s) as m"), "is a string, and no number"
    yield kept("min(a) as m"), "has no order"
    yield kept("sum(v) as k", "k"), "two columns of its aggregates are called 'k'"
    yield kept("sum(v) as m", "r"), "is a double, which names no group"
    yield kept("sum(v) as m", 3), "by is a column or a list of them"
    window = plain.window("3 rows", aggregate="count(*) as n")
    yield lambda: hg.procedure(window)(lambda tx: None), "def .*aggregates, tx"
    other = hg.Table("aggregates", "k int", key="k")
    yield (
        lambda: hg.procedure(window, reads=other)(lambda aggregates, tx: None),
        "is what its SQL calls those of its window",
    )


@pytest.mark.parametrize(("declare", "words"), [*refused()], ids=lambda one: str(one)[:30])
def test_what_cannot_be_kept_is_refused_with_what_to_do(declare: Any, words: str) -> None:
    with pytest.raises(hg.DeclarationError, match=words):
        declare()


def test_a_window_shows_its_aggregates() -> None:
    window = stream.window("5 rows", aggregate="count(*) as n, sum(x) as total", by=["g", "h"])
    assert repr(window) == (
        "events.window('5 rows', aggregate='count(*) as n, sum(x) as total', by='g, h')"
    )
