"""Windows: each event sees the versions of a row as of its turn and time, however batches fall.

Shapes of events are drawn by a seed: late ones, aborts, deletes and rows that come again. Stores
are closed and killed between batches, and hold what the oracle holds, version by version.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import random
from typing import Any

import pytest

import headgate as hg
from headgate.state import trail
from headgate.state.version_rows import trail_of
from headgate.testing import SerialOracle, difference, results_difference
from tests.property.test_durable import Life

pytestmark = pytest.mark.timeout(900)  # on a busy machine compiling takes long
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EVENT = "kind string, ts timestamp, id bigint, other bigint, x double, k bigint"

roads = hg.Table(
    "roads", "id bigint, x double, n bigint NULL", key="id", check="x < 90", history="20 seconds"
)
plans = hg.Table("plans", "id bigint, mean double NULL, most double", key="id")


@hg.transaction(event=EVENT)
def drive(event, road=roads.at("id", create=True), near=roads.at("other", create=True)):
    road.x = event.x
    road.n = event.k
    near.x = near.x * 0.5
    if event.k == 3:
        return hg.abort("three")
    if event.k == 4:
        hg.delete(near)


@hg.transaction(event=EVENT)
def plan(
    event,
    seen=roads.window("id", size="20 seconds"),
    few=roads.window("other", size="5 seconds"),
    mine=plans.at("k", create=True),
    out=hg.output("count bigint, total double, last double NULL, n bigint, first bigint NULL"),
):
    mine.mean = few.x.mean()
    mine.most = max(mine.most, seen.x.max() or 0.0)
    out.count = len(seen) * 1000 + len(few)
    out.total = seen.x.sum()
    out.last = few.x.last()
    out.n = seen.n.count() * 1000 + seen.n.sum()
    out.first = seen.n.first()
    for one in few:
        out.total -= one.x * 0.25


ROUTES = {"drive": drive, "plan": plan}
TABLES = [roads, plans]


def events(seed: int, count: int, *, is_late: bool = True, kinds: Any = None) -> list[Any]:
    draw, found, second = random.Random(seed), [], 0
    for _ in range(count):
        second += draw.choice((0, 0, 1, 2))
        time = second - (draw.randrange(30) if is_late and draw.random() < 0.1 else 0)
        found.append({
            "kind": draw.choice(kinds or ("drive", "drive", "plan")),
            "ts": START + dt.timedelta(seconds=max(time, 0)),
            "id": draw.randrange(3), "other": draw.randrange(3),
            "x": draw.choice((0.1, 0.7, 1e16, -1e16, 33.3, 95.0)), "k": draw.randrange(9),
        })  # fmt: skip
    return found


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_windows_straddle_batches_and_stops(recovery: str) -> None:
    draw = random.Random(recovery)
    life = Life(TABLES, ROUTES.values(), recovery)
    oracle = SerialOracle(TABLES, ROUTES.values())
    for seed in range(12):
        given = events(seed, draw.choice((1, 7, 90)))
        options: Any = {"route_by": "kind", "order_by": draw.choice((None, "ts"))}
        expected = oracle.run(ROUTES, given, **options)
        assert results_difference(life.engine.run(ROUTES, given, **options), expected) is None
        assert difference(life.engine, oracle) is None
        life.stop(draw.choice(("close", "kill", "go on")))
    assert difference(life.engine, oracle) is None


def test_results_and_versions_do_not_depend_on_where_batches_end() -> None:
    given, found = events(5, 200), []
    for size in (200, 17, 1):
        with hg.open(None, tables=TABLES, transactions=list(ROUTES.values())) as engine:
            ran = engine.run(ROUTES, given, route_by="kind", batch_size=size)
            kept = engine.sql("select * from roads_history order by id, version_number").rows()
            found.append((ran.drop_columns(["epoch", "position"]).to_pylist(), kept))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("late", ["reject", "append"])
def test_late_events_see_and_leave_versions_of_their_own_time(late: str) -> None:
    options: Any = {"route_by": "kind", "order_by": "ts", "watermark": "3 seconds", "late": late}
    oracle = SerialOracle(TABLES, ROUTES.values())
    with hg.open(None, tables=TABLES, transactions=list(ROUTES.values())) as engine:
        for seed in range(6):
            given = events(seed + 40, 40)
            expected = oracle.run(ROUTES, given, **options)
            assert results_difference(engine.run(ROUTES, given, **options), expected) is None
        found = engine.flush(ROUTES, **options)
        assert results_difference(found, oracle.flush(ROUTES, **options)) is None
        assert difference(engine, oracle) is None


@pytest.mark.parametrize("scheme", ["auto", "shares", "ready", "ready-chain-lazy", "lock"])
def test_a_scheme_that_cannot_keep_versions_says_so(scheme: str) -> None:
    oracle = SerialOracle(TABLES, ROUTES.values())
    with hg.open(None, tables=TABLES, transactions=list(ROUTES.values())) as engine:
        options: Any = {"route_by": "kind", "order_by": "ts"}
        given = events(9, 60)
        found = engine.run(ROUTES, given, scheme=scheme, threads=2, **options)
        assert results_difference(found, oracle.run(ROUTES, given, **options)) is None
        decisions = engine.decisions()
        assert {one.scheme for one in decisions} == {"serial"}
        assert any("versions" in one.why for one in decisions) or scheme == "auto"


@pytest.mark.parametrize("scheme", ["shares", "ready", "strata", "ready-operation-eager"])
def test_threads_share_windows_that_no_event_of_the_batch_changes(scheme: str) -> None:
    oracle = SerialOracle(TABLES, ROUTES.values())
    with hg.open(None, tables=TABLES, transactions=list(ROUTES.values())) as engine:
        before = events(3, 80, kinds=("drive",))
        engine.run(drive, before, order_by="ts", scheme="serial")
        oracle.run(drive, before, order_by="ts")
        given = events(4, 120, kinds=("plan",))
        found = engine.run(plan, given, order_by="ts", scheme=scheme, threads=2)
        assert results_difference(found, oracle.run(plan, given, order_by="ts")) is None
        assert difference(engine, oracle) is None
        assert not any("versions" in one.why for one in engine.decisions())


def test_explain_knows_a_window_as_a_read_of_its_row() -> None:
    with hg.open(None, tables=TABLES, transactions=list(ROUTES.values())) as engine:
        engine.run(drive, events(3, 80, kinds=("drive",)), order_by="ts")
        given = [
            {**events(1, 1)[0], "kind": kind, "id": 1, "other": 2} for kind in ("drive", "plan")
        ]
        assert engine.explain(ROUTES, given, route_by="kind").parametric > 0


# --- versions as rows -----------------------------------------------------------------------------


def test_versions_are_rows_of_a_table_that_time_travel_and_sql_read(tmp_path: Any) -> None:
    store = tmp_path / "store"
    with hg.open(store, tables=TABLES, transactions=[drive]) as engine:
        for second in range(3):
            time = START + dt.timedelta(seconds=10 * second)
            given = {"kind": "", "ts": time, "id": 1, "other": 2, "x": float(second), "k": 1}
            engine.call(drive, **given)
        asked = "select version_number, x from roads_history where id = 1 order by 1"
        assert engine.sql(asked).rows() == [(1, 1.0), (2, 2.0)]
        assert engine.sql(asked, epoch=2).rows() == [(0, 0.0), (1, 1.0)]
        assert engine.get("roads_history", (1, 2))["version_time"] == time
        with pytest.raises(hg.InputError, match="transactions make these rows"):
            engine.load("roads_history", [])
    with hg.open(store) as engine:
        assert engine.sql(asked).rows() == [(1, 1.0), (2, 2.0)]


# --- declarations ---------------------------------------------------------------------------------

kept = hg.Table("kept", "id bigint, x double, s string", key="id", history="1 minute")
bare = hg.Table("bare", "id bigint, x double", key="id")
last = hg.Table("last", "id bigint, x double", key="id", history="10 rows")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bare.window("id", size="1 minute"), "keeps no versions"),
        (lambda: kept.window("id", size="2 minutes"), "goes beyond the table's history"),
        (lambda: kept.window("id", size="5 rows"), "say both in the same way"),
        (lambda: kept.window("id", size="soon"), "is not a duration"),
        (lambda: kept.window("id", size=3), "a time like '10 minutes'"),
        (lambda: last.window("id", size="0 rows"), "more than nothing"),
        (lambda: last.window("id", "x", size="1 rows"), "the key has 1 column"),
        (lambda: last.window(lambda event: 1, size="1 rows"), "computes the key of one row"),
        (lambda: hg.Table("a", "id int", key="id", history="long"), "is not a duration"),
        (lambda: hg.Table("a", "id int", key="id", by="ts"), "by= goes with history"),
        (lambda: hg.Table("a", "id int", key="id", history="3 rows", by="ts"), "by= names"),
        (
            lambda: hg.Table("a", "id int, version_time date", key="id", history="3 rows"),
            "a column 'version_time' of their own",
        ),
    ],
)
def test_what_cannot_be_a_history_or_a_window_is_refused(make: Any, words: str) -> None:
    with pytest.raises(hg.DeclarationError) as refused:
        make()
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("id bigint", "this event has none"),
        ("a timestamp, b timestamp, id bigint", "has 2 of them"),
        ("ts timestamp NULL, id bigint", "never null"),
        ("ts timestamp, id string", "event column 'id' is a string"),
    ],
)
def test_a_window_needs_the_key_and_one_time(event: str, words: str) -> None:
    with pytest.raises(hg.DeclarationError) as refused:

        @hg.transaction(event=event, compiled=False)
        def look(event, seen=kept.window("id", size="1 minute")):
            pass

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("seen.y.sum()", "has no column 'y'"),
        ("seen.s.max()", "adds up columns that are numbers"),
        ("seen.count()", "has no column 'count'"),
        ("seen.id.sum()", "and not of the key"),
        ("seen.version_time.max()", "and not of the key"),
        ("min(seen.x)", "a column of a window is no list: call window.column.min()"),
        ("sum(seen.x)", "a column of a window is no list"),
        ("seen[0:1]", "slice"),
        ("seen[0.5]", "a window gives a version by a whole number"),
    ],
)
def test_a_column_that_cannot_be_added_up_is_refused_when_it_compiles(
    body: str, words: str, tmp_path: Any
) -> None:
    names: dict[str, Any] = {"kept": kept}
    text = f"def look(event, seen=kept.window('id', size='1 minute')):\n    a = {body}\n"
    (tmp_path / "look.py").write_text(text)
    exec(compile(text, str(tmp_path / "look.py"), "exec"), names)
    with pytest.raises(hg.DeclarationError) as refused:
        hg.transaction(event="ts timestamp, id bigint")(names["look"])
    assert words in str(refused.value)


@pytest.mark.parametrize("body", ["min(seen.x)", "sum(seen.x)", "seen[0:1]", "seen[0.5]"])
def test_what_a_window_has_not_aborts_a_plain_function_with_one_reason(body: str) -> None:
    names: dict[str, Any] = {"kept": kept}
    exec(f"def look(event, seen=kept.window('id', size='1 minute')):\n    {body}\n", names)
    look = hg.transaction(event="ts timestamp, id bigint", compiled=False)(names["look"])
    event = {"ts": START, "id": 1}
    (wanted,) = SerialOracle([kept], [look]).run(look, [event])
    with hg.open(None, tables=[kept], transactions=[look]) as engine:
        assert engine.call(look, **event).reason == wanted["reason"]
    assert "a window" in wanted["reason"]


big = hg.Table("big", "id bigint, n bigint", key="id", history="40 rows")


@pytest.mark.parametrize("compiled", [True, False])
def test_the_mean_of_ints_is_rounded_once_though_their_sum_may_leave_64_bits(
    compiled: bool,
) -> None:
    @hg.transaction(event="n bigint, id bigint", compiled=compiled)
    def note(
        event,
        seen=big.window("id", size="40 rows"),
        row=big.at("id", create=True),
        out=hg.output("mean double NULL"),
    ):
        row.n = event.n
        out.mean = seen.n.mean()

    draw = random.Random(1)
    edges = [2**63 - 1, -(2**63), 2**62, -(2**62) - 1, 2**53 + 1, 0, -1]
    first = [(0, 2**63 - 1)] * 4 + [(1, -(2**63))] * 4 + [(2, 2**63 - 1), (2, 1), (2, 2)]
    drawn = [(n % 3, draw.choice([*edges, draw.randrange(-(2**63), 2**63)])) for n in range(150)]
    events = [{"id": number, "n": n} for number, n in [*first, *drawn]]
    oracle = SerialOracle([big], [note])
    wanted = oracle.run(note, events)
    with hg.open(None, tables=[big], transactions=[note]) as engine:
        assert results_difference(engine.run(note, events), wanted) is None
    assert {row["outcome"] for row in wanted} == {"committed"}
    assert [row["mean"] for row in wanted[1:4]] == [2.0**63] * 3


# --- migrations -----------------------------------------------------------------------------------


def note(table: hg.Table) -> Any:
    @hg.transaction(event="ts timestamp, id bigint, x double", compiled=False)
    def write(
        event,
        row=table.at("id", create=True),
        seen=table.window("id", size=table.history.extent.text),
        out=hg.output("count bigint"),
    ):
        row.x = event.x
        out.count = len(seen)

    return write


def test_history_is_declared_from_now_on_and_grows(tmp_path: Any) -> None:
    store, time = tmp_path / "store", START
    with hg.open(store, tables=[hg.Table("kept", "id bigint, x double", key="id")]) as engine:
        engine.load("kept", [{"id": 1, "x": 0.0}])
    for size, counts in (("2 rows", (0, 1, 2, 2)), ("3 rows", (2, 3, 3, 3)), ("1 rows", (1, 1))):
        table = hg.Table("kept", "id bigint, x double", key="id", history=size)
        write = note(table)
        with hg.open(store, tables=[table], transactions=[write]) as engine:
            found = [engine.call(write, ts=time, id=1, x=1.0).count for _ in counts]
        assert tuple(found) == counts, size


def test_versions_follow_a_migration_of_their_table(tmp_path: Any) -> None:
    store = tmp_path / "store"
    table = hg.Table("kept", "id bigint, x double, y int DEFAULT 3", key="id", history="1 hour")
    write = note(table)
    with hg.open(store, tables=[table], transactions=[write]) as engine:
        for second in range(4):
            engine.call(write, ts=START + dt.timedelta(seconds=second), id=1, x=0.5)
    after = hg.Table(
        "held", "id bigint, twice double, x double, z bigint DEFAULT 3", key="id", history="1 hour"
    )
    change = (
        hg.Migration("another form")
        .rename_table("kept", "held")
        .add_column("held", "twice double", value="2 * x", after="id")
        .rename_column("held", "y", "z")
        .widen("held", "z bigint")
    )
    write = note(after)
    with hg.open(store, tables=[after], transactions=[write], migrations=[change]) as engine:
        assert engine.sql("select twice, x, z from held_history").rows() == [(1.0, 0.5, 3)] * 4
        assert engine.call(write, ts=START + dt.timedelta(seconds=9), id=1, x=2.0).count == 4
        assert engine.sql("select count(*) from kept_history", epoch=4).rows() == [(4,)]


def test_history_is_not_lost_without_a_word(tmp_path: Any) -> None:
    store = tmp_path / "store"
    write = note(kept)
    with hg.open(store, tables=[kept], transactions=[write]) as engine:
        engine.call(write, ts=START, id=1, x=0.5)
    plain = hg.Table("kept", "id bigint, x double, s string", key="id")
    with pytest.raises(hg.DeclarationError, match=r"drop_table\('kept_history'\)"):
        hg.open(store, tables=[plain])
    rows = hg.Table("kept", "id bigint, x double, s string", key="id", history="2 rows")
    change = hg.Migration("by number from now on").drop_table("kept_history")
    write = note(rows)
    with hg.open(store, tables=[rows], transactions=[write], migrations=[change]) as engine:
        assert [engine.call(write, ts=START, id=1, x=0.5).count for _ in range(4)] == [0, 1, 2, 2]


# --- rows that expire -----------------------------------------------------------------------------

fading = hg.Table(
    "fading",
    "id bigint, x double, due timestamp",
    key="id",
    history="20 seconds",
    by="ts",
    expires="due + 4 seconds",
)


@hg.transaction(event="kind string, ts timestamp, id bigint, x double", compiled=False)
def touch(
    event,
    row=fading.at("id", create=True),
    seen=fading.window("id", size="20 seconds"),
    out=hg.output("count bigint, total double"),
):
    out.count = len(seen)
    out.total = seen.x.sum()
    row.x = event.x
    row.due = event.ts


@hg.transaction(event="kind string, ts timestamp, id bigint, x double", compiled=False)
def glance(
    event, seen=fading.window("id", size="20 seconds"), out=hg.output("count bigint, total double")
):
    out.count = len(seen)
    out.total = seen.x.sum()


@pytest.mark.parametrize("stop", ["close", "kill"])
def test_the_versions_of_a_row_end_when_it_expires(stop: str) -> None:
    routes = {"drive": touch, "plan": glance}
    life = Life([fading], routes.values())
    oracle = SerialOracle([fading], routes.values())
    for seed in range(8):
        given = [
            {**{name: one[name] for name in ("kind", "ts", "x")}, "id": one["id"] * 2 % 5}
            for one in events(seed, 25, is_late=False)
        ]
        for one in given:
            one["ts"] += dt.timedelta(seconds=30 * seed)
        options: Any = {"route_by": "kind", "order_by": "ts"}
        expected = oracle.run(routes, given, **options)
        assert results_difference(life.engine.run(routes, given, **options), expected) is None
        assert difference(life.engine, oracle) is None
        life.stop(stop)
    assert difference(life.engine, oracle) is None


def word_of(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


tallies = hg.Table("tallies", "id bigint, n bigint", key="id", history="1000 rows")


@hg.transaction(event="id bigint, gone boolean", compiled=False)
def tally(event, row=tallies.at("id", create=True)):
    row.n += 1
    if event.gone:
        hg.delete(row)


@pytest.mark.parametrize("count", [1, 8, 63, 64, 65, 128, 512, 576])
def test_a_row_that_is_deleted_gives_back_all_that_its_versions_took(count: int) -> None:
    events = [{"id": 1, "gone": n == count} for n in range(count + 1)]
    events += [{"id": 1, "gone": False}] * 70
    oracle = SerialOracle([tallies], [tally])
    with hg.open(None, tables=[tallies], transactions=[tally]) as engine:
        engine.run(tally, events)
        oracle.run(tally, events)
        assert difference(engine, oracle) is None
        engine.run(tally, [{"id": 1, "gone": True}])
        words = trail_of(engine._memory.rows, tallies).words
        # The most that was ever in use is free again, node by node: none is lost, none twice.
        for pool in (trail.LEAVES, trail.INNERS):
            free, node = [], int(words[pool + trail.FREE_NODE])
            size = trail.FAN * (trail.LEAF_ENTRY if pool == trail.LEAVES else words[trail.ENTRY])
            while node >= 0:
                free.append(node)
                node = word_of(int(words[pool]) + 8 * node * int(size))
            assert sorted(free) == list(range(int(words[pool + trail.USED_NODES])))
