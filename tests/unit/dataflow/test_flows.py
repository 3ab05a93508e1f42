"""A dataflow: rows come in, go through its nodes batch by batch, and are recorded with each."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.dataflow import stepping
from headgate.durability import StoreReader
from headgate.testing import SimulatedDisk
from tests.unit.dataflow.shows import (
    NOON,
    PATH,
    TABLES,
    Stage,
    contestants,
    count,
    show,
    tallies,
    trend,
    valid,
    validate,
    vote,
    voters,
    votes,
)


@pytest.fixture(params=[None, "/show"], ids=["in memory", "in a store"])
def stage(request: pytest.FixtureRequest) -> Any:
    made = Stage(path=request.param)
    yield made
    made.engine.close()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executions take so long that each is an epoch of its own."""
    monkeypatch.setattr(stepping, "TOGETHER_SECONDS", 0.0)


def of(results: pa.Table, name: str) -> list[dict[str, Any]]:
    return [row for row in results.to_pylist() if row["transaction"] == name]


def test_results_have_the_columns_of_all_streams_before_there_are_any(stage: Stage) -> None:
    query = "select epoch, batch, contestant, votes from results where transaction = 'trending'"
    assert stage.engine.sql(query).rows() == []
    stage.engine.push(votes, [vote(1, 10), vote(2, 11, 2)])
    assert stage.engine.sql(query).rows() == []


def test_an_interrupt_between_executions_and_their_commit_stops_the_engine(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran is in the rows, and in no record: to go on would be to run it twice."""

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stepping.Stepping, "_execute_behind", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage.engine.push(votes, [vote(1, 10), vote(2, 11, 2)])
    with pytest.raises(hg.StoreError, match="stopped"):
        stage.engine.push(votes, [vote(3, 12), vote(4, 13)])


def test_votes_go_through_the_nodes_in_order(stage: Stage) -> None:
    results = stage.engine.push(votes, [vote(1, 10), vote(2, 11, 2), vote(3, 10), vote(4, 12, 9)])
    assert stage.tallies() == {1: 1, 2: 1}
    assert stage.phones() == [10, 11]
    ran = [(row["epoch"], row["batch"]) for row in of(results, "validate")]
    assert ran == [(2, 1), (2, 2)]  # what takes no time shares an epoch
    assert [row["phone"] for row in of(results, "valid")] == [10, 11]
    counted = [(row["epoch"], row["outcome"]) for row in of(results, "count")]
    assert counted == [(2, "committed")] * 2  # in the epoch of what it is nested with
    assert of(results, "trending") == []  # three rows make the first window


def test_rows_of_an_open_batch_wait_for_it_and_can_be_flushed(stage: Stage) -> None:
    stage.engine.push(votes, [vote(1, 10)])
    assert stage.tallies() == {}
    stage.engine.push(votes, [vote(2, 11), vote(3, 12)])
    assert stage.tallies() == {1: 2}
    stage.engine.flush(votes)
    assert stage.tallies() == {1: 3}
    assert stage.engine.flush(votes).num_rows == 0
    metrics = stage.engine.metrics()
    assert metrics.streams["votes"].flushes == 1  # the second had nothing to flush
    node = metrics.nodes["count"]
    assert node["rows"] == node.rows == node.as_dict()["rows"] == 3
    assert metrics.as_dict()["nodes"]["count"] == node.as_dict()


def test_what_comes_at_once_is_put_in_order_first(stage: Stage) -> None:
    results = stage.engine.push(votes, [vote(4, 14), vote(1, 11), vote(3, 13), vote(2, 12)])
    assert [row["phone"] for row in of(results, "votes")] == [11, 12, 13, 14]
    assert [row["batch"] for row in of(results, "votes")] == [1, 1, 2, 2]


def test_a_malformed_row_is_rejected_and_the_others_go_on(stage: Stage) -> None:
    rows: list[dict[str, Any]] = [vote(1, 10), {**vote(2, 11), "phone": None}, vote(3, 12)]
    results = stage.engine.push(votes, rows)
    wrong = [row for row in of(results, "votes") if row["outcome"] != "committed"]
    assert [(row["outcome"], row["reason"], row["contestant"]) for row in wrong] == [
        ("rejected", "null value: phone", 1)
    ]
    assert stage.phones() == [10, 12]


def test_an_abort_leaves_nothing_and_who_comes_after_is_told(stage: Stage, apart: None) -> None:
    results = stage.engine.push(votes, [vote(1, 10), vote(2, 666), vote(3, 12), vote(4, 13)])
    assert stage.phones() == [12, 13]
    told = {
        (row["transaction"], row["batch"]): row["reason"]
        for row in results.to_pylist()
        if row["outcome"] == "aborted"
    }
    assert told == {
        ("validate", 1): "a bad phone",
        ("count", 1): "not run: validate aborted batch 1",
        ("trend", 1): "not run: validate aborted batch 1",
    }
    assert {row["epoch"] for row in of(results, "trend")} == {2, 4}  # told with the abort itself


def test_a_window_slides_over_batches(stage: Stage) -> None:
    numbers = [1, 1, 2, 2, 2, 3]
    results = stage.engine.push(votes, [vote(n, 10 + n, c) for n, c in enumerate(numbers)])
    found = [(row["batch"], row["contestant"], row["votes"]) for row in of(results, "trending")]
    assert found == [
        (2, 1, 2), (2, 2, 1),  # 1 1 2
        (2, 2, 2), (2, 1, 1),  # 1 2 2
        (3, 2, 3),  # 2 2 2
        (3, 2, 2), (3, 3, 1),  # 2 2 3
    ]  # fmt: skip


def test_calls_run_between_executions_and_see_whole_nests(stage: Stage) -> None:
    seen = []

    def look() -> None:
        seen.append(stage.engine.call(count, **vote(0, 0, 3)).committed)

    thread = threading.Thread(target=look)
    thread.start()
    stage.engine.push(votes, [vote(n, 10 + n) for n in range(20)])
    thread.join()
    assert seen == [True]
    assert stage.tallies() == {1: 20, 3: 1}


def test_a_stream_has_a_handle(stage: Stage) -> None:
    handle = stage.engine.stream(votes)
    handle.check([vote(1, 1)]).push([vote(1, 10)])
    handle.flush()
    assert stage.phones() == [10]
    assert handle.columns == ["ts", "phone", "contestant"]
    with pytest.raises(hg.InputError, match="no column 'phone'"):
        handle.check(pa.schema([("ts", pa.timestamp("us"))]))
    with pytest.raises(hg.InputError, match=r"'valid' is given by 'validate'.*sources are: votes"):
        stage.engine.push(valid, [])
    with pytest.raises(hg.InputError, match=r"no stream 'nobody'.*streams are: votes"):
        stage.engine.push("nobody", [])
    with pytest.raises(hg.InputError, match=r"say it in hg\.Stream"):
        stage.engine.stream(votes, order_by="ts")  # type: ignore[call-overload]


def test_nodes_are_counted(stage: Stage) -> None:
    stage.engine.push(votes, [vote(1, 10), vote(2, 11), vote(3, 666), vote(4, 12), vote(5, 13)])
    found = stage.engine.stream(votes).metrics()
    told = {name: (one.batches, one.rows, one.aborts) for name, one in found.items()}
    assert told == {"validate": (2, 4, 1), "count": (2, 2, 1), "trend": (2, 2, 1)}
    assert all(one.seconds > 0 and one.waiting == 0 for one in found.values())


def test_streams_are_in_the_results_of_the_engine(stage: Stage) -> None:
    stage.engine.push(votes, [vote(1, 10), vote(2, 11)])
    found = stage.rows("select batch, phone from results where transaction = 'valid' order by 2")
    assert found == [(1, 10), (1, 11)]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_store_goes_on_where_it_was(recovery: str, how: str) -> None:
    stage, whole = Stage(recovery=recovery), Stage(recovery=recovery)
    rows = [vote(n, 100 + n % 9, n % 4) for n in range(15)]
    for first in range(0, len(rows), 5):
        for one in (stage, whole):
            one.engine.push(votes, rows[first : first + 5])
        stage.again(how)
    for query in ("select * from tallies order by 1", "select * from voters order by 1"):
        assert stage.rows(query) == whole.rows(query)
    trends = "select batch, contestant, votes from results where transaction = 'trending'"
    assert stage.rows(trends) == whole.rows(trends)
    assert stage.executions() == whole.executions()


def test_an_execution_is_known_by_its_nodes_and_its_batch(apart: None) -> None:
    stage = Stage()
    stage.engine.push(votes, [vote(1, 10), vote(2, 11), vote(3, 12)])
    found = [one.origin for one in StoreReader.open(PATH, stage.disk).commits()]
    assert found == [None, ("dataflow validate + count", 1), ("dataflow trend", 1)]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_snapshot_holds_what_is_under_way(recovery: str) -> None:
    stage = Stage(recovery=recovery)
    stage.engine.push(votes, [vote(n, 10 + n, 1 + n % 2) for n in range(5)])
    stage.engine.snapshot()
    stage.again("kill")
    results = stage.engine.push(votes, [vote(6, 16, 2)])
    assert [row["batch"] for row in of(results, "validate")] == [3]
    assert [(row["contestant"], row["votes"]) for row in of(results, "trending")][:2] == [
        (1, 2), (2, 1),
    ]  # fmt: skip


def test_an_engine_without_a_dataflow_says_so() -> None:
    with hg.open(None, tables=TABLES) as engine, pytest.raises(hg.InputError, match="dataflows="):
        engine.push(votes, [vote(1, 1)])


def test_batches_by_time_are_whole_when_a_later_row_is_there() -> None:
    timed = hg.Stream("timed", "ts timestamp, n int", order_by="ts", batch="1 minute")
    seen: list[list[int]] = []

    @hg.procedure(timed)
    def look(batch: pa.Table, tx: hg.Tx) -> None:
        seen.append(batch.column("n").to_pylist())

    def row(second: int, n: int) -> dict[str, Any]:
        return {"ts": NOON + datetime.timedelta(seconds=second), "n": n}

    with hg.open(None, dataflows=[hg.Dataflow("clock", [look])]) as engine:
        engine.push(timed, [row(5, 1), row(50, 2)])
        assert seen == []
        results = engine.push(timed, [row(70, 3), row(3, 4), row(200, 5), row(-90, 6)])
        assert seen == [[1, 2, 4], [3]]
        late = [row for row in results.to_pylist() if row["outcome"] == "late"]
        assert [(one["n"], one["batch"]) for one in late] == [(6, None)]
        engine.flush(timed)
    assert seen[-1] == [5]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_rows_of_a_time_that_was_flushed_are_late(recovery: Any) -> None:
    timed = hg.Stream("timed", "ts timestamp, n int", order_by="ts", batch="1 minute")
    seen: list[list[int]] = []

    @hg.procedure(timed)
    def look(batch: pa.Table, tx: hg.Tx) -> None:
        seen.append(batch.column("n").to_pylist())

    def row(second: int, n: int) -> dict[str, Any]:
        return {"ts": NOON + datetime.timedelta(seconds=second), "n": n}

    def late_of(results: pa.Table) -> list[int]:
        return [row["n"] for row in results.to_pylist() if row["outcome"] == "late"]

    disk, flow = SimulatedDisk(), hg.Dataflow("clock", [look])
    for n in range(2):  # what was flushed is known after a restart, too
        with hg.open("/clock", dataflows=[flow], recovery=recovery, disk=disk) as engine:
            if n == 0:
                engine.push(timed, [row(5, 1), row(50, 2)])
                engine.flush(timed)
                assert seen == [[1, 2]]
            assert late_of(engine.push(timed, [row(10 - n, 3), row(-80, 4)])) == [4, 3]
    with hg.open("/clock", dataflows=[flow], recovery=recovery, disk=disk) as engine:
        seen.clear()
        assert late_of(engine.push(timed, [row(59, 6), row(61, 7)])) == [6]
        engine.flush(timed)
        assert seen == [[7]]
        assert late_of(engine.push(timed, [row(70, 8), row(500, 9), row(130, 10)])) == [8]
    assert seen == [[7], [10]]


def test_windows_of_time_are_whole_when_a_later_row_is_there() -> None:
    timed = hg.Stream("timed", "ts timestamp, n int", order_by="ts")
    seen: list[list[int]] = []

    @hg.procedure(timed.window("2 minutes", slide="1 minute"))
    def look(batch: pa.Table, tx: hg.Tx) -> None:
        seen.append(batch.column("n").to_pylist())

    def row(second: int, n: int) -> dict[str, Any]:
        return {"ts": NOON + datetime.timedelta(seconds=second), "n": n}

    with hg.open(None, dataflows=[hg.Dataflow("clock", [look])]) as engine:
        engine.push(timed, [row(5, 1), row(50, 2)])
        assert seen == []
        engine.push(timed, [row(70, 3)])
        assert seen == [[1, 2]]
        engine.push(timed, [row(130, 4)])
        assert seen == [[1, 2], [1, 2, 3]]
        engine.push(timed, [row(1000, 5)])
        assert seen[2:] == [[3, 4], [4]]


def test_several_inputs_are_aligned_by_their_batches() -> None:
    left = hg.Stream("left_side", "n int")
    right = hg.Stream("right_side", "m int")
    both = hg.Stream("both", "n int, m int")
    rest = hg.Stream("rest", "n int")

    @hg.procedure(left, right, output=[both, rest])
    def join(n: pa.Table, m: pa.Table, tx: hg.Tx) -> Any:
        pairs = tx.sql("select n, m from left_side, right_side where n = m")
        return {both: pairs, "rest": tx.sql("select n from left_side where n > 100")}

    with hg.open(None, dataflows=[hg.Dataflow("joining", [join])]) as engine:
        engine.push(left, [{"n": 1}, {"n": 2}, {"n": 101}])
        assert engine.push(left, [{"n": 3}]).num_rows == 1  # it waits for the other side
        first = engine.push(right, [{"m": 2}])
        second = engine.push(right, [{"m": 3}, {"m": 4}])
    assert [(row["batch"], row["n"]) for row in of(first, "both")] == [(1, 2)]
    assert [(row["batch"], row["n"]) for row in of(first, "rest")] == [(1, 101)]
    assert [(row["batch"], row["n"]) for row in of(second, "both")] == [(2, 3)]


def test_events_that_commit_flow_on() -> None:
    moves = hg.Stream("moves", "contestant int, by bigint")
    after = hg.Stream("after", "contestant int, total bigint")
    seen: list[Any] = []

    @hg.transaction(event=moves, compiled=False, output=after)
    def move(
        event: Any,
        tally: Any = tallies.at("contestant", create=True),
        out: Any = hg.output("total bigint"),
    ) -> Any:
        if event.by < 0:
            return hg.abort("backwards")
        tally.votes += event.by
        out.total = tally.votes

    @hg.procedure(after, reads=tallies)
    def look(batch: pa.Table, tx: hg.Tx) -> None:
        seen.append((batch.to_pylist(), tx.sql("select sum(votes) s from tallies").to_pylist()))

    flow = hg.Dataflow("moving", [move, look], nest=[[move, look]])
    with hg.open(None, tables=TABLES, dataflows=flow) as engine:
        rows = [{"contestant": 1, "by": 5}, {"contestant": 1, "by": -1}, {"contestant": 2, "by": 2}]
        results = engine.push(moves, rows)
        assert engine.epoch == 1
    outcomes = [(row["outcome"], row["reason"]) for row in of(results, "move")]
    assert outcomes == [("committed", None), ("aborted", "backwards"), ("committed", None)]
    given = [{"contestant": 1, "total": 5}, {"contestant": 2, "total": 2}]
    assert seen == [(given, [{"s": 7}])]


def test_a_changed_graph_is_refused_while_batches_of_the_old_one_are_under_way() -> None:
    stage = Stage()
    stage.engine.push(votes, [vote(1, 10)])
    other = hg.Dataflow("show", [validate, count])
    with pytest.raises(hg.DeclarationError, match=r"has changed.*under way.*votes \(1 rows\)"):
        stage.again("close", other)
    stage.flow = show()
    stage.engine = stage.open()
    stage.engine.flush(votes)
    engine = stage.again("close", other)
    engine.push(votes, [vote(2, 11), vote(3, 12)])
    assert stage.tallies() == {1: 3}
    # A node that comes back begins with the next batch.
    results = stage.again("close", show()).push(votes, [vote(4, 13), vote(5, 14)])
    assert [row["batch"] for row in of(results, "trend")] == [3]


def test_a_flow_is_drawn_as_text_and_as_svg() -> None:
    assert show().show().splitlines() == [
        "dataflow show",
        "  nest validate + count:",
        "    votes -> validate -> valid",
        "    valid -> count",
        "  valid.window('3 rows', slide='1 row') -> trend -> trending",
    ]
    svg = show().svg()
    assert svg.startswith("<svg") and svg.count('class="node"') == 3 and 'class="nest"' in svg
    assert repr(show()) == "<dataflow show: validate, count, trend>"
    assert repr(trend) == "<procedure trend(valid.window('3 rows', slide='1 row'))>"
    assert contestants in validate.tables and voters in validate.tables


def test_a_migration_keeps_what_is_under_way() -> None:
    stage = Stage()
    stage.engine.push(votes, [vote(1, 10), vote(2, 11), vote(3, 12)])
    stage.said["migrations"] = [hg.Migration("more").add_column("tallies", "more int DEFAULT 3")]
    wider = hg.Table(
        "tallies", "contestant int, votes bigint DEFAULT 0, more int DEFAULT 3", key="contestant"
    )

    @hg.transaction(event=valid, compiled=False, name="count")
    def counting(event: Any, tally: Any = wider.at("contestant", create=True)) -> None:
        tally.votes += 1

    stage.said["tables"] = [*TABLES[:2], wider]
    flow = hg.Dataflow("show", [validate, counting, trend], nest=[[validate, counting]])
    results = stage.again("close", flow).push(votes, [vote(4, 13)])
    assert [row["batch"] for row in of(results, "validate")] == [2]
    assert stage.rows("select votes, more from tallies") == [(4, 3)]


def test_a_wrong_program_is_told_when_its_store_is_opened() -> None:
    """What waits for it is not lost: the right program goes on with it."""
    asked = hg.Stream("asked_for", "n bigint")
    passed = hg.Stream("passed_on", "n bigint")
    mode = ["stop"]

    @hg.procedure(asked, output=passed)
    def first(batch: pa.Table, tx: hg.Tx) -> Any:
        return batch

    @hg.procedure(passed, writes=tallies)
    def second(batch: pa.Table, tx: hg.Tx) -> None:
        if mode[-1] == "stop":
            tx.insert(voters, [{"phone": 1}])
        tx.upsert(tallies, [{"contestant": 1, "votes": batch.num_rows}])

    stage = Stage(hg.Dataflow("f", [first, second]))
    with pytest.raises(hg.DeclarationError, match="does not declare"):
        stage.engine.push(asked, [{"n": 1}, {"n": 2}])
    assert stage.engine.stream(asked).metrics()["second"].waiting == 1
    with pytest.raises(hg.DeclarationError, match="does not declare"):
        stage.again("close")
    mode.append("go")
    stage.engine = stage.open()
    assert stage.tallies() == {1: 2}
