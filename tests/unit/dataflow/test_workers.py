"""Workers: buffers, ordered merges, policies and threads, by themselves and under a dataflow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.dataflow import policies
from headgate.dataflow.buffers import LocalBuffer, OrderedMerge, PipeBuffer, Waiting
from headgate.dataflow.order_of_units import composed
from headgate.dataflow.policies import Chance, UnitPace, make_policy, paths_of, slopes_of
from headgate.dataflow.workers import Shift, pinned
from headgate.engine.batch import Batches

KINDS = [LocalBuffer, PipeBuffer]


def batch(number: int, rows: int = 1) -> Waiting:
    return Waiting(number, rows, float(number))


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_gives_what_was_put_in_its_order(kind: Any) -> None:
    buffer = kind()
    assert (buffer.first(), buffer.take()) == (None, None)
    for number in (1, 2):
        buffer.put(batch(number))
    assert buffer.first() == batch(1)
    assert [buffer.take() for _ in range(3)] == [batch(1), batch(2), None]
    buffer.put(batch(3))
    assert buffer.take() == batch(3)


def test_between_two_threads_nothing_is_lost_doubled_or_overtaken() -> None:
    buffer, count = PipeBuffer(), 20_000
    seen: list[int] = []

    def consume() -> None:
        while len(seen) < count:
            found = buffer.take()
            if found is not None:
                seen.append(found.number)

    thread = threading.Thread(target=consume)
    thread.start()
    for number in range(count):
        buffer.put(batch(number))
    thread.join()
    assert seen == list(range(count))


def test_a_merge_takes_the_lowest_number_and_all_of_one_number() -> None:
    left, right = LocalBuffer(), LocalBuffer()
    merge = OrderedMerge([left, right])
    left.put(batch(1))
    assert merge.next_input() is None  # a lower one may still come on the right
    right.put(batch(1))
    assert merge.next_input() == 0
    left.take()
    assert merge.next_input() == 1  # of the same number, though the left is empty now
    right.take()
    left.put(batch(2))
    assert merge.next_input() is None


def test_a_batch_is_whole_when_it_is_there_on_all_inputs() -> None:
    left, right = LocalBuffer(), PipeBuffer()
    merge = OrderedMerge([left, right])
    for number in (1, 2, 3):
        left.put(batch(number, 2))
    assert merge.whole(0) is None
    right.put(batch(1, 5))
    assert merge.whole(0) == Waiting(1, 7, 1.0)
    assert merge.whole(0) == Waiting(1, 7, 1.0)  # until it is done
    assert merge.whole(1) is None
    right.put(batch(2))
    assert merge.whole(1) == Waiting(2, 3, 2.0)


# --- policies -------------------------------------------------------------------------------------

ROWS = "k bigint"
S = [hg.Stream(f"s{n}", ROWS) for n in range(4)]
counts = hg.Table("counts", "k bigint, n bigint DEFAULT 0", key="k")
others = hg.Table("others", "k bigint, n bigint DEFAULT 0", key="k")


def passing(taken: Any, output: Any, name: str, **said: Any) -> Any:
    def step(rows: pa.Table, tx: hg.Tx) -> Any:
        return rows if output is not None else None

    return hg.procedure(taken, output=output, name=name, **said)(step)


LINE = hg.Dataflow(
    "line", [passing(S[0], S[1], "a"), passing(S[1], S[2], "b"), passing(S[2], None, "c")]
)
A, B, C = LINE.graph.units


def turns(*said: tuple[Any, int, float]) -> list[Chance]:
    places = {unit.name: place for place, unit in enumerate(LINE.graph.units)}
    return [Chance(places[unit.name], unit, number, 1, since) for unit, number, since in said]


def chosen(name: str, waiting: list[Chance], paces: dict[str, UnitPace] | None = None) -> str:
    known = paces or dict.fromkeys("abc", UnitPace(1.0, 1.0))
    policy = make_policy(name, LINE.graph, lambda: known, wait_seconds=10.0)
    return policy.choose(waiting, now=100.0).unit.name


def test_fifo_takes_the_oldest_batch_on() -> None:
    assert chosen("fifo", turns((A, 3, 0), (B, 2, 5), (C, 2, 9))) == "b"


def test_round_robin_takes_nodes_in_turn_each_with_its_share() -> None:
    policy: Any = make_policy("round-robin", LINE.graph, dict, wait_seconds=1.0)
    waiting = turns((A, 9, 0), (C, 1, 0))
    order = "".join(policy.choose(waiting, now=0.0).unit.name for _ in range(18))
    assert order == "a" * 8 + "c" * 8 + "aa"


def test_chain_follows_the_lower_envelope() -> None:
    # Rows against time: a keeps all for 1 s, b drops nine of ten in 1 s, c the rest in 10 s.
    paces = {"a": UnitPace(1.0, 1.0), "b": UnitPace(1.0, 0.1), "c": UnitPace(100.0, 0.0)}
    slopes = slopes_of(paths_of(LINE.graph), paces)
    assert slopes["a"] == slopes["b"] == pytest.approx(0.45)  # one segment: both lead to the drop
    assert slopes["c"] == pytest.approx(0.1 / 10.0)
    assert chosen("chain", turns((A, 9, 99), (C, 1, 0)), paces) == "a"


def test_chain_copes_with_nodes_that_take_no_time_or_give_nothing() -> None:
    paces = {"a": UnitPace(3.0, 0.0), "b": UnitPace(1e-9, 1.0), "c": UnitPace(0.0, 1.0)}
    slopes = slopes_of(paths_of(LINE.graph), paces)
    assert slopes["a"] == pytest.approx(1 / 3)
    assert slopes["b"] == slopes["c"] == 0.0
    assert chosen("chain", turns((B, 1, 0), (C, 1, 0)), paces) == "b"


def test_what_chain_would_starve_chain_flush_runs() -> None:
    """A node that frees little waits for ever behind one that always has new batches."""
    paces = {"a": UnitPace(1e-3, 0.01), "b": UnitPace(1.0, 1.0), "c": UnitPace(1.0, 0.0)}
    ran: dict[str, list[str]] = {"chain": [], "chain-flush": []}
    for name, found in ran.items():
        policy = make_policy(name, LINE.graph, lambda: paces, wait_seconds=10.0)
        for second in range(60):  # a new batch for a every second; one for c since the beginning
            waiting = turns((A, 100 + second, float(second)))
            waiting += turns((C, 1, 0.0)) if "c" not in found else []
            found.append(policy.choose(waiting, now=float(second)).unit.name)
    assert "c" not in ran["chain"]
    assert ran["chain-flush"].index("c") == 11


def test_cheap_nodes_and_windows_run_behind_what_they_take() -> None:
    nodes = [
        passing(S[0], S[1], "first", writes=counts),
        passing(S[1], S[2], "plain"),
        passing(S[2].window("2 rows"), S[3], "windowed", writes=counts),
        passing(S[3], None, "last", writes=others),
    ]
    flow = hg.Dataflow("f", nodes)
    behind = composed(flow.graph)
    assert {name: unit.name for name, unit in behind.items()} == {
        "first": "plain", "plain": "windowed",
    }  # fmt: skip
    assert pinned(flow.graph, hg.Workers(2), behind) == {
        "first": 0, "plain": 0, "windowed": 0, "last": 1,
    }  # fmt: skip
    moved = hg.Workers(2, pins={"last": 0, "first": 1})
    assert pinned(flow.graph, moved, {})["first"] == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"count": 0}, "count is a number from 1 on"),
    ({"policy": "fair"}, "no policy 'fair'"),
    ({"architecture": "cloud"}, "no architecture 'cloud'"),
    ({"count": 2, "architecture": "one-thread"}, "of 1 worker"),
    ({"count": 2, "pins": {"a": 2}}, "worker 2"),
    ({"buffer": 0}, "buffer is a number"),
]


@pytest.mark.parametrize(("said", "told"), WRONG)
def test_what_makes_no_sense_is_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(hg.DeclarationError, match=told):
        hg.Workers(**said)


def test_dataflows_of_one_engine_share_workers_and_pins_name_nodes() -> None:
    one = hg.Dataflow("one", [passing(S[0], None, "a")], workers=hg.Workers(2))
    two = hg.Dataflow("two", [passing(S[1], None, "b")], workers=hg.Workers(3))
    with pytest.raises(hg.DeclarationError, match="share them"):
        hg.open(None, dataflows=[one, two])
    lost = hg.Dataflow("one", [passing(S[0], None, "a")], workers=hg.Workers(2, pins={"z": 0}))
    with pytest.raises(hg.DeclarationError, match="pins has 'z'"):
        hg.open(None, dataflows=[lost])


# --- under a dataflow -----------------------------------------------------------------------------


def pipeline(work: Any, buffer: int = 4, **said: Any) -> hg.Dataflow:
    """Two nodes over tables of their own; both call `work` before they write."""

    def node(taken: Any, output: Any, name: str, table: hg.Table) -> Any:
        def step(rows: pa.Table, tx: hg.Tx) -> Any:
            work(name, rows)
            tx.upsert(table, [{"k": row["k"], "n": 1} for row in rows.to_pylist()])
            return rows if output is not None else None

        return hg.procedure(taken, output=output, name=name, writes=table)(step)

    nodes = [node(S[0], S[1], "front", counts), node(S[1], None, "back", others)]
    return hg.Dataflow("pipe", nodes, workers=hg.Workers(2, buffer=buffer, **said))


@pytest.mark.parametrize("architecture", ["pool", "pinned"])
def test_nodes_on_two_workers_run_different_batches_at_once(architecture: str) -> None:
    together = threading.Barrier(2, timeout=20)
    met: list[tuple[str, int]] = []

    def work(name: str, rows: pa.Table) -> None:
        k = rows.column("k")[0].as_py()
        if (name, k) in (("front", 1), ("back", 0)):
            together.wait()  # each waits for the other: neither could alone
            met.append((name, k))

    flow = pipeline(work, architecture=architecture)
    with hg.open(None, tables=[counts, others], dataflows=[flow]) as engine:
        stream = engine.stream(S[0])
        for k in range(2):
            stream.send([{"k": k}])
        stream.settle()
        assert sorted(met) == [("back", 0), ("front", 1)]
        assert engine.sql("select count(*) from others").rows() == [(2,)]


def test_a_source_waits_for_room_and_nothing_is_lost() -> None:
    gate, seen = threading.Event(), []

    def work(name: str, rows: pa.Table) -> None:
        if name == "back":
            gate.wait(30)
            seen.append(rows.column("k")[0].as_py())

    with hg.open(None, tables=[counts, others], dataflows=[pipeline(work, buffer=2)]) as engine:
        stream, sent = engine.stream(S[0]), []

        def send() -> None:
            for k in range(20):
                stream.send([{"k": k}])
                sent.append(k)

        sender = threading.Thread(target=send)
        sender.start()
        deadline = time.monotonic() + 20
        while len(sent) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        assert len(sent) <= 6  # two wait between the nodes, two at the source, one at each node
        waiting = engine.stream(S[0]).metrics()
        assert waiting["back"].waiting <= 3
        gate.set()
        sender.join(30)
        stream.settle()
    assert seen == list(range(20))


@pytest.mark.parametrize("architecture", ["pool", "pinned"])
def test_a_node_that_two_ways_lead_to_is_waited_for_on_neither(architecture: str) -> None:
    """Its batches wait on the short way for the long one, which must not wait for room there."""
    seen = []

    @hg.procedure(S[0], S[1])
    def join(left: pa.Table, right: pa.Table, tx: hg.Tx) -> None:
        seen.append((left.column("k")[0].as_py(), right.column("k")[0].as_py()))

    source = hg.Stream("s0", ROWS, batch="1 row")
    crew = hg.Workers(2, architecture=architecture, buffer=1)
    long_way = passing(source, S[1], "long_way")
    both = hg.procedure(source, S[1], name="join")(join.function)
    flow = hg.Dataflow("f", [long_way, both], workers=crew)
    with hg.open(None, dataflows=[flow]) as engine:
        engine.push(source, [{"k": k} for k in range(6)])
    assert seen == [(k, k) for k in range(6)]


@pytest.mark.parametrize("policy", policies.POLICIES)
def test_whatever_the_policy_nodes_that_share_a_table_keep_their_order(policy: str) -> None:
    ran: list[tuple[str, int]] = []

    def node(name: str) -> Any:
        def step(rows: pa.Table, tx: hg.Tx) -> None:
            ran.append((name, rows.column("k")[0].as_py()))
            tx.upsert(counts, [{"k": 0, "n": len(ran)}])

        return hg.procedure(S[0], writes=counts, name=name)(step)

    flow = hg.Dataflow("f", [node("one"), node("two")], workers=hg.Workers(policy=policy))
    with hg.open(None, tables=[counts], dataflows=[flow]) as engine:
        for k in range(3):
            engine.push(S[0], [{"k": k}])
    assert ran == [(name, k) for k in range(3) for name in ("one", "two")]


def test_a_call_that_changes_what_was_read_restarts_the_execution() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    @hg.transaction(event="k bigint", compiled=False)
    def bump(event: Any, count: Any = counts.at("k", create=True)) -> None:
        count.n += 100

    @hg.procedure(S[0], writes=counts)
    def add(batch: pa.Table, tx: hg.Tx) -> None:
        before = tx.sql("select coalesce(max(n), 0) as n from counts").to_pylist()[0]["n"]
        calls.append(before)
        begun.set()
        go_on.wait(20)
        tx.upsert(counts, [{"k": 1, "n": before + 1}])

    flow = hg.Dataflow("f", [add], workers=hg.Workers(2))
    with hg.open(None, tables=[counts], transactions=[bump], dataflows=[flow]) as engine:
        stream = engine.stream(S[0])
        stream.send([{"k": 1}])
        begun.wait(20)
        assert engine.call(bump, k=1).committed  # it does not wait for one that reads ahead
        go_on.set()
        stream.settle()
        assert engine.sql("select n from counts").rows() == [(101,)]
        assert calls == [0, 100]
        assert stream.metrics()["add"].restarts == 1


def test_an_error_of_the_program_is_told_to_who_waits_and_the_batch_stays() -> None:
    is_wrong = [True]

    @hg.procedure(S[0], reads=counts)
    def write(batch: pa.Table, tx: hg.Tx) -> None:
        if is_wrong[0]:
            tx.insert(others, batch)

    flow = hg.Dataflow("f", [write], workers=hg.Workers(2))
    with hg.open(None, tables=[counts, others], dataflows=[flow]) as engine:
        with pytest.raises(hg.DeclarationError, match="which it does not declare"):
            engine.push(S[0], [{"k": 1}])
        is_wrong[0] = False
        engine.push(S[0], [{"k": 2}])
        assert engine.stream(S[0]).metrics()["write"].batches == 2


def test_a_worker_that_cannot_choose_does_not_leave_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def choose(self: Any, *said: Any) -> Any:
        raise hg.errors.InvariantError("a bad chart")

    flow = pipeline(lambda *said: None)
    with hg.open(None, tables=[counts, others], dataflows=[flow]) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(policies.Fifo, "choose", choose)
            with pytest.raises(hg.errors.InvariantError, match="a bad chart"):
                engine.push(S[0], [{"k": 1}])
        engine.push(S[0], [{"k": 2}])
        assert engine.sql("select k from others order by 1").rows() == [(1,), (2,)]


def test_who_reads_ahead_does_not_look_in_the_middle_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Batches.commit_flow

    def slow(self: Batches, *given: Any) -> None:
        commit(self, *given)
        time.sleep(0.002)  # the memory has the epoch, and the dataflows have yet to note it

    monkeypatch.setattr(Batches, "commit_flow", slow)
    tables = [hg.Table(f"t{n}", "k bigint, n bigint", key="k") for n in range(3)]

    def counting(place: int) -> Any:
        table, output = tables[place], S[place + 1] if place < 2 else None

        def step(rows: pa.Table, tx: hg.Tx) -> Any:
            text = f"select b.k, coalesce(t.n, 0) + 1 n from batch b left join t{place} t using (k)"
            tx.upsert(table, tx.sql(text))
            return None if output is None else rows

        said = {"reads": [table], "writes": [table], "name": f"count {place}"}
        return hg.procedure(S[place], output=output, **said)(step)

    flow = hg.Dataflow("counting", [counting(place) for place in range(3)], workers=hg.Workers(3))
    with hg.open(str(tmp_path / "store"), tables=tables, dataflows=[flow]) as engine:
        stream = engine.stream(S[0])
        for _ in range(40):
            stream.send([{"k": k} for k in range(3)])
        stream.settle()
        for table in tables:
            assert engine.sql(f"select distinct n from {table.name}").rows() == [(40,)]


def test_a_worker_of_a_pool_lets_go_of_a_unit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = Shift._behind

    def slow(self: Shift, worker: Any, unit: Any, number: int) -> Any:
        time.sleep(0.03 if unit.name == "a" else 0.0)  # others run b, c and the next of a
        return behind(self, worker, unit, number)

    monkeypatch.setattr(Shift, "_behind", slow)
    steps = hg.Table("steps", "n bigint, who string", key="n")

    def noting(taken: hg.Stream, output: Any, name: str) -> Any:
        @hg.procedure(taken, output=output, reads=steps, writes=steps, name=name)
        def note(batch: pa.Table, tx: hg.Tx) -> Any:
            number = tx.sql("select count(*) as n from steps")["n"][0].as_py()
            time.sleep(0.06 if name == "a" else 0.0)
            tx.insert(steps, [{"n": number, "who": f"{name} {batch['k'][0].as_py()}"}])
            return batch if output is not None else None

        return note

    nodes = [noting(S[0], S[1], "a"), noting(S[1], S[2], "b"), noting(S[2], None, "c")]
    crew = hg.Workers(3, architecture="pool", compose=False)
    with hg.open(None, tables=[steps], dataflows=[hg.Dataflow("f", nodes, workers=crew)]) as engine:
        for number in range(5):
            engine.stream(S[0]).send([{"k": number}])
        engine.stream(S[0]).settle()
        found = [who for (who,) in engine.sql("select who from steps order by n").rows()]
    assert found == [f"{name} {number}" for number in range(5) for name in "abc"]


PROGRAM = """
import os, sys, time
import headgate as hg
from tests.unit.dataflow.test_workers import S, counts, others, pipeline

def work(name, rows):
    os.write(1, f"begin {name}\\n".encode())  # whole, beside the other thread's
    time.sleep(0.8)
    os.write(1, f"end {name}\\n".encode())

with hg.open(sys.argv[1], tables=[counts, others], dataflows=[pipeline(work)]) as engine:
    engine.push(S[0], [{"k": k} for k in range(1)])
    stream = engine.stream(S[0])
    for k in range(1, 12):
        stream.send([{"k": k}])
    os.write(1, b"ready\\n")  # whole, too
    stream.settle()  # it is here that a signal finds it, half a second or more later
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(number: int, tmp_path: Path) -> None:
    root, path = Path(__file__).parents[3], str(tmp_path / "store")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path], cwd=root, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert program.stdout is not None
    lines: list[str] = []
    is_sent = False
    for line in program.stdout:  # to its end by one reader: what another has buffered is lost
        lines.append(line.strip())
        if not is_sent and "ready" in lines and lines[-1] == "begin back":
            time.sleep(0.3)  # it has said that it is ready, and is not in settle() that very moment
            program.send_signal(number)
            is_sent = True
    program.wait(timeout=60)
    for name in ("front", "back"):  # whoever had begun came to its end
        assert lines.count(f"begin {name}") == lines.count(f"end {name}")
    assert program.returncode in (-number, 128 + number, 1)
    seen: list[int] = []

    def work(name: str, rows: pa.Table) -> None:
        seen.append(rows.column("k")[0].as_py())

    with hg.open(path, tables=[counts, others], dataflows=[pipeline(work)]) as engine:
        both = "select count(*) from counts join others using (k)"
        assert engine.sql(both).rows() == engine.sql("select count(*) from counts").rows()
        assert all(one.waiting == 0 for one in engine.stream(S[0]).metrics().values())
