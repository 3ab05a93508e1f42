"""A plain batch goes the straight path, and gives there what it gives on the general way: the same
results, the same rows, the same bytes in the log."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.engine import batch as batches
from headgate.engine.straight_path import StraightPath
from headgate.testing import SerialOracle, SimulatedClock, difference, results_difference

KEYS = 12
DAY_US = 86_400_000_000

boxes = hg.Table(
    "boxes", "id bigint, n bigint, x double, at timestamp, small int, on date, flag boolean",
    key="id", check="n < 1000",
)  # fmt: skip
plain = hg.Table("plain", "id int, n bigint", key="id")


def move(
    event,
    one=boxes.at("src"),
    two=boxes.at("dst"),
    other=plain.at("small"),
    seen=boxes.at("dst", mode="read"),
    out=hg.output("n bigint, x double, little int, flag boolean, at timestamp, word string"),
):
    if event.n == 7:
        return hg.abort("seven")
    if event.n == 8:
        return hg.abort("check failed: boxes: n < 1000")
    one.n += event.n
    two.n -= event.n // (event.small - 3)
    two.x = event.x * 2.0
    one.at = event.at
    one.on = event.on
    other.n += one.n + seen.n
    out.n = one.n
    out.x = two.x
    out.little = event.small
    out.flag = event.n > 2
    out.at = event.at
    out.word = "many" if event.n > 5 else "few"


def drop(event, one=boxes.at("src"), two=boxes.at("dst"), out=hg.output("n bigint")):
    if event.n > 5:
        hg.delete(two)
    one.n += 1
    out.n = two.n


def raise_again(event, one=boxes.at("src"), out=hg.output("n bigint")):
    out.n = event.n
    try:
        one.n = 10 // (event.n - 3)
    except Exception:
        raise ValueError("again")  # noqa: B904


# --- several transactions, lists, texts, rows that are made -------------------------------------

cells = hg.Table("cells", "name string, n bigint DEFAULT 5, share decimal(9,2)", key="name")


def put(event, cell=cells.at("name", create=True), out=hg.output("n bigint, seen bigint")):
    if event.share < 0:
        return hg.abort("negative")
    cell.n += 10 // event.n
    cell.share = event.share
    out.n = cell.n


def total(event, found=boxes.each("ids", mode="read"), out=hg.output("n bigint, x double")):
    for row in found:
        out.n += row.n
    out.x = 0.25 * len(found)


def spread(event, rows=boxes.each("ids"), cell=cells.at("name")):
    for row in rows:
        row.n += 1 if event.flag else cell.n
    if event.n == 3:
        hg.delete(cell)


MIXED = {
    "put": hg.transaction(event="ts timestamp, name string, n bigint, share decimal(9,2)")(put),
    "total": hg.transaction(event="ts timestamp, ids array<bigint>")(total),
    "spread": hg.transaction(
        event="ts timestamp, ids array<bigint>, name string, flag boolean, n bigint"
    )(spread),
}
ROUTES = st.sampled_from(["put", "put", "total", "spread"])
CELLS = [{"name": name, "n": place, "share": 0} for place, name in enumerate("abc")]


EVENT = "ts timestamp, src bigint, dst bigint, small int, n bigint, x double, at timestamp, on date"
TYPES = {
    "ts": pa.timestamp("us", tz="UTC"), "src": pa.int64(), "dst": pa.int64(), "small": pa.int32(),
    "n": pa.int64(), "x": pa.float64(), "at": pa.timestamp("us", tz="UTC"), "on": pa.date32(),
}  # fmt: skip
FORMS = {one.__name__: hg.transaction(event=EVENT)(one) for one in (move, drop, raise_again)}
FIRST = {
    "boxes": [
        {"id": key, "n": 90 * key, "x": 0.5, "at": 0, "small": key, "on": 0, "flag": True}
        for key in range(KEYS)
    ],
    "plain": [{"id": key, "n": 0} for key in range(KEYS)],
}
OPTIONS = st.sampled_from([{}, {"order_by": "ts"}, {"order_by": "small"}, {"order_by": "on"}])


def table_of(columns: dict[str, Any]) -> pa.Table:
    """The columns in the declared types; days have 32 bits."""
    return pa.table({
        name: pa.array(np.asarray(columns[name]).astype(np.int32)).view(kind) if name == "on"
        else pa.array(columns[name]).cast(kind)
        for name, kind in TYPES.items()
    })  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Events that are mostly plain: in order or nearly, and cut out of a longer table."""
    count, seed = draw(st.integers(1, 200)), draw(st.integers(0, 10**6))
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "ts": np.sort(random.integers(0, 50, count)), "src": random.integers(0, KEYS + 1, count),
        "dst": random.integers(0, KEYS + 1, count), "small": random.integers(0, KEYS, count),
        "n": random.integers(0, 10, count), "x": random.random(count),
        "at": random.integers(-DAY_US, DAY_US, count), "on": random.integers(-9, 9, count),
    }  # fmt: skip
    if draw(st.booleans()):
        columns["small"] = np.sort(columns["small"])
    columns["on"] = np.sort(columns["on"])
    if draw(st.integers(0, 4)) == 0:
        columns["ts"][draw(st.integers(0, count - 1))] = draw(st.sampled_from([-1, 7, 2**62]))
    table = table_of(columns)
    if draw(st.integers(0, 4)) == 0:
        table = table.append_column("beside", pa.array(["x"] * count))
    if draw(st.integers(0, 5)) == 0:
        table = pa.concat_tables([table.slice(0, count // 2), table.slice(count // 2)])
    first = draw(st.integers(0, 3))
    return table.slice(first) if first < count else table


@st.composite
def mixed_events(draw: st.DrawFn) -> pa.Table:
    """Events of three transactions; what one does not need is mostly null."""
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    kinds = draw(st.lists(ROUTES, min_size=1, max_size=40))
    wild = draw(st.integers(0, 9)) == 0
    rows = []
    for place, kind in enumerate(kinds):
        row = {
            "ts": int(place // 3), "kind": kind, "n": int(random.integers(0, 9)),
            "share": decimal.Decimal(int(random.integers(-20, 500))) / 100,
            "name": str(random.choice(list("abcdefg"))), "flag": bool(random.integers(0, 2)),
            "ids": [int(key) for key in random.integers(0, KEYS, random.integers(0, 4))],
        }  # fmt: skip
        needed = {"ts", "kind", *MIXED[kind].event.names}
        rows.append(
            {n: v if n in needed or random.random() < 0.5 else None for n, v in row.items()}
        )
    if wild:
        rows[0][str(random.choice(list(rows[0])))] = None
    kinds_of = {
        "ts": TYPES["ts"], "kind": pa.string(), "n": pa.int64(), "share": pa.decimal128(9, 2),
        "name": pa.string(), "flag": pa.bool_(), "ids": pa.list_(pa.int64()),
    }  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds_of))


def is_shown(events: pa.Table) -> bool:
    """Whether Python has all of its values: the oracle takes them as such."""
    return bool(pc.max(events.column("ts").cast(pa.int64())).as_py() < 2**60)


def opened(path: Path | None, form: Any) -> hg.Engine:
    clock = SimulatedClock()
    engine = hg.open(path, tables=[boxes, plain], transactions=[form], clock=clock)
    for name, rows in FIRST.items():
        engine.load(name, rows)
    return engine


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Takes the straight path away for what runs under it."""

    def without(engine: hg.Engine, *given: Any, **named: Any) -> pa.Table:
        with monkeypatch.context() as patch:
            patch.setattr(batches, "straight_of", lambda terms, executor: None)
            return engine.run(*given, **named)

    return without


@pytest.mark.parametrize("name", FORMS)
def test_both_ways_give_the_same(name: str, general: Any) -> None:
    taken = []

    @settings(max_examples=60)
    @given(batch=st.lists(tables(), min_size=1, max_size=3), options=OPTIONS)
    def check(batch: list[pa.Table], options: dict[str, Any]) -> None:
        form = FORMS[name]
        with opened(None, form) as straight, opened(None, form) as other:
            oracle = SerialOracle([boxes, plain], [form])
            for table, rows in FIRST.items():
                oracle.load({"boxes": boxes, "plain": plain}[table], rows)
            is_judged = all(is_shown(events) for events in batch)
            for events in batch:
                found = straight.run(form, events, **options)
                expected = general(other, form, events, **options)
                assert found.schema.equals(expected.schema, check_metadata=True)
                assert found.equals(expected)
                if is_judged:
                    wanted = oracle.run(form, events.to_pylist(), **options)
                    assert results_difference(found, wanted) is None
                for table in FIRST:
                    mine, theirs = straight._memory.rows[table], other._memory.rows[table]
                    assert (mine.words == theirs.words).all()
            assert not is_judged or difference(straight, oracle) is None
            mine, theirs = straight.metrics(), other.metrics()
            assert {k: v.outcomes for k, v in mine.streams.items()} == {
                k: v.outcomes for k, v in theirs.streams.items()
            }
            taken.extend(
                path is not None for one in straight._said.values()
                for path in one._terms.straight.values()
            )  # fmt: skip

    check()
    assert any(taken)


@pytest.mark.parametrize("values", [(0, 1), (0, 9), (6, 9)], ids=["none", "some", "most"])
@pytest.mark.parametrize("size", [1, 7, 500])
def test_the_log_has_the_same_bytes(
    values: tuple[int, int], size: int, tmp_path: Path, general: Any
) -> None:
    form, random, count = FORMS["move"], np.random.default_rng(5), 5 * size
    columns = {
        "ts": np.arange(count), "src": random.integers(0, KEYS, count),
        "dst": random.integers(0, KEYS, count), "small": random.integers(4, KEYS, count),
        "n": random.integers(*values, count), "x": random.random(count),
        "at": np.arange(count), "on": np.zeros(count, np.int32),
    }  # fmt: skip
    events = table_of(columns)
    with opened(tmp_path / "a", form) as straight, opened(tmp_path / "b", form) as other:
        for first in range(0, count, size):
            straight.run(form, events.slice(first, size), order_by="ts")
            general(other, form, events.slice(first, size), order_by="ts")
        straight.run(form, events, order_by="ts", batch_size=size)
        general(other, form, events, order_by="ts", batch_size=size)
        assert straight._journal.log_bytes == other._journal.log_bytes
        rows = "select * from results order by epoch, position"
        assert straight.sql(rows).arrow().equals(other.sql(rows).arrow())
    with hg.open(tmp_path / "a", tables=[boxes, plain], transactions=[form]) as again:
        assert again.sql("select sum(n) from boxes").rows() == _sum(tmp_path / "b", form)


def _sum(path: Path, form: Any) -> list[tuple[Any, ...]]:
    with hg.open(path, tables=[boxes, plain], transactions=[form]) as engine:
        return engine.sql("select sum(n) from boxes").rows()


def test_a_plain_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing here would test what it says."""
    ran, run = [], StraightPath.run
    monkeypatch.setattr(
        StraightPath, "run", lambda *given, **named: (ran.append(1), run(*given, **named))[1]
    )
    events = table_of({name: [0] * 5 for name in TYPES})
    with opened(None, FORMS["drop"]) as engine:
        engine.run(FORMS["drop"], events, order_by="ts")
        engine.run(FORMS["drop"], events.slice(1, 3), order_by="ts", scheme="serial")
        assert len(ran) == 2
        engine.run(FORMS["drop"], events, order_by="ts", isolation="PL3")
        engine.run(FORMS["drop"], events, order_by="ts", watermark="1 second", name="w")
        late = table_of({**{name: [0] * 5 for name in TYPES}, "ts": [1, 0, 2, 3, 4]})
        engine.run(FORMS["drop"], late, order_by="ts")
        assert len(ran) == 2
        engine.run(FORMS["drop"], pa.concat_tables([events, events]), order_by="ts")
        assert len(ran) == 3


def test_routes_lists_texts_and_new_rows_give_the_same_both_ways(general: Any) -> None:
    taken = []

    @settings(max_examples=80)
    @given(batch=st.lists(mixed_events(), min_size=1, max_size=3))
    def check(batch: list[pa.Table]) -> None:
        options = {"route_by": "kind", "order_by": "ts"}
        given = {"tables": [boxes, cells], "transactions": list(MIXED.values())}
        oracle = SerialOracle([boxes, cells], list(MIXED.values()))
        with hg.open(None, **given) as straight, hg.open(None, **given) as other:
            for target in (straight, other, oracle):
                target.load(boxes, FIRST["boxes"])
                target.load(cells, CELLS)
            for events in batch:
                found = straight.run(MIXED, events, **options)
                expected = general(other, MIXED, events, **options)
                assert found.equals(expected) and found.schema.equals(expected.schema)
                wanted = oracle.run(MIXED, events.to_pylist(), **options)
                assert results_difference(found, wanted) is None
                for table in ("boxes", "cells"):
                    mine, theirs = straight._memory.rows[table], other._memory.rows[table]
                    assert (mine.words == theirs.words).all()
            assert difference(straight, oracle) is None
            (stream,) = straight._said.values()
            taken.append(any(one is not None for one in stream._terms.straight.values()))

    check()
    assert all(taken)


def test_one_transaction_behind_a_route_gives_the_same_both_ways(general: Any) -> None:
    """Its outputs are of all widths, though events have a route."""
    form, count = FORMS["move"], 40
    columns = {name: np.arange(count) % KEYS for name in TYPES} | {"ts": np.arange(count)}
    events = table_of(columns).append_column("kind", pa.array(["m"] * count))
    options = {"route_by": "kind", "order_by": "ts"}
    with opened(None, form) as straight, opened(None, form) as other:
        found = straight.run({"m": form}, events, **options)
        assert found.equals(general(other, {"m": form}, events, **options))
