"""Workers: threads that run the units of dataflows, several batches under way at once.

A worker owns units, an instruction queue and the buffers of what its units take. Pinned, a unit is
always run by the same worker: buffers inside a worker need no lock, those between two have one
producer and one consumer. In a pool any worker takes any unit that could run, under one lock. With
one thread there are no workers: who hands rows in runs what can run, by the policy.

Who may run is settled by numbers that only grow, so that any thread may look at them: a batch is
whole on all that comes to the unit (dataflow order, pessimistic), the unit is done with the one
before it (batch order), no unit that shares a written table with it is behind it in the order of
one thread, and there is room for what it gives. Invariant: tables and streams hold the same bytes
as with one thread; and the unit that comes first in that order can always run, so that nothing
stands still.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.dataflow.buffers import Buffer, LocalBuffer, OrderedMerge, PipeBuffer, Waiting
from headgate.dataflow.nodes import FlowGraph, Unit
from headgate.dataflow.order_of_units import Order, composed
from headgate.dataflow.policies import POLICIES, Chance, Policy, UnitPace, make_policy
from headgate.engine.journal import stopped
from headgate.errors import DeclarationError, not_among, shown
from headgate.state.durations import parse_duration

ARCHITECTURES = ("one-thread", "pool", "pinned")
IDLE_SECONDS = 1.0  # a thread that has had nothing to do for so long ends; another is soon made


@dataclass(frozen=True, init=False)
class Workers:
    """How the nodes of a dataflow are run.

    >>> Workers(2, policy="chain-flush")
    Workers(2, architecture='pinned', policy='chain-flush')

    `architecture` is "one-thread" (who hands rows in runs them), "pool" (any worker runs any node)
    or "pinned" (each node has its worker; `pins` names it by number, else neighbours share one).
    `policy` is "fifo", "round-robin", "chain" or "chain-flush", with `wait` for the last. At most
    `buffer` batches wait between two nodes. With `compose` a node that needs no table, or is over a
    window, runs right behind the one whose stream only it takes.
    """

    count: int
    architecture: str
    policy: str
    buffer: int
    wait_us: int
    compose: bool
    pins: tuple[tuple[str, int], ...]

    def __init__(
        self,
        count: int = 1,
        architecture: str | None = None,
        policy: str = "fifo",
        buffer: int = 16,
        wait: str = "1 second",
        compose: bool = True,
        pins: Mapping[str, int] | None = None,
    ) -> None:
        chosen = architecture or ("one-thread" if count == 1 else "pinned")
        for what, given, known in (
            ("architecture", chosen, ARCHITECTURES), ("policy", policy, POLICIES),
        ):  # fmt: skip
            if given not in known:
                among = not_among(str(given), known, "known ones")
                raise DeclarationError(f"hg.Workers: no {what} {shown(given)}; {among}")
        for what, number in (("count", count), ("buffer", buffer)):
            given_number: Any = number
            if type(given_number) is not int or number < 1:
                raise DeclarationError(f"hg.Workers: {what} is a number from 1 on, not {number!r}")
        if chosen == "one-thread" and count > 1:
            raise DeclarationError(f"hg.Workers: one-thread is of 1 worker, not of {count}")
        pinned = tuple(sorted((pins or {}).items()))
        for name, number in pinned:
            if chosen != "pinned" or number not in range(count):
                raise DeclarationError(
                    f"hg.Workers: pins has {name!r} on worker {number!r}; pins are for pinned "
                    f"workers, which have the numbers 0 to {count - 1}"
                )
        said: dict[str, Any] = {
            "count": count, "architecture": chosen, "policy": policy, "buffer": buffer,
            "wait_us": parse_duration(wait, "hg.Workers: wait"), "compose": compose, "pins": pinned,
        }  # fmt: skip
        for field, value in said.items():
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        return f"Workers({self.count}, architecture={self.architecture!r}, policy={self.policy!r})"


class Runs(Protocol):
    """The dataflows that workers run."""

    graph: FlowGraph

    def done(self, unit: Unit) -> int: ...

    def closed(self, stream: str) -> int: ...

    def came(self, source: str, number: int) -> int: ...

    # Gives streams, batches and their rows.
    def run_unit(self, unit: Unit, number: int) -> Iterable[tuple[str, int, int]]: ...

    def paces(self) -> Mapping[str, UnitPace]: ...

    def now(self) -> float: ...


def pinned(graph: FlowGraph, workers: Workers, behind: Mapping[str, Unit]) -> dict[str, int]:
    """By unit: its worker. Neighbours share one, what is composed always; partitions of a procedure
    do not; what is pinned stays."""
    heads: dict[str, str] = {}
    for unit in graph.units:
        heads.setdefault(unit.name, unit.name)
        if unit.name in behind:
            heads[behind[unit.name].name] = heads[unit.name]
    groups = list(dict.fromkeys(heads.values()))
    given = dict(workers.pins)
    found = {}
    for unit in graph.units:
        place = groups.index(heads[unit.name]) * workers.count // len(groups)
        if unit.partition is not None:  # each on another, as far as there are so many
            place = unit.partition.number * workers.count // unit.partition.count
        pins = [given[node.name] for node in unit.nodes if node.name in given]
        found[unit.name] = pins[0] if pins else place
    return found


# --- the threads ----------------------------------------------------------------------------------


class FlowWorker:
    """A thread with its units; it looks at its instructions first, then at its units."""

    def __init__(self, number: int, shift: Shift, policy: Policy) -> None:
        self.number, self._shift, self._policy = number, shift, policy
        self.instructions: deque[Callable[[], None]] = deque()
        self.wake = threading.Event()
        self.merges: dict[str, OrderedMerge] = {}  # by unit that is its own
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def tell(self, instruction: Callable[[], None]) -> None:
        """Have it do something to what is its own, before it runs anything; from any thread."""
        self.instructions.append(instruction)
        self.wake.set()

    def end(self) -> None:
        """An instruction: its thread ends."""
        self._is_ending = True

    def start(self) -> None:
        """Be there, if it is not; under the lock of the shift."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._live, name=f"headgate-worker-{self.number}"
            )
            self._thread.start()

    @property
    def is_there(self) -> bool:
        """Whether it has a thread."""
        return self._thread is not None

    def join(self) -> None:
        """Return when its thread has ended."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _live(self) -> None:
        try:
            self._work(self._shift)
        except BaseException as error:  # this thread has no caller
            self._shift.fail(error)
            self._shift.leave(self)
            with self._shift.changed:
                # Only now: another thread in its place, before all are told to pause, would be at
                # work unseen, and fail when nobody expects it. One may be wanted already, though.
                self._thread = None
                if not self._shift.is_paused:
                    self.start()

    def _work(self, shift: Shift) -> None:
        while True:
            self.wake.clear()
            while self.instructions:
                self.instructions.popleft()()
            turn = shift.turn_for(self)
            if turn is not None:
                shift.run(self, turn)
            elif self._is_ending or not self.wake.wait(IDLE_SECONDS):
                with shift.changed:
                    if self._is_ending or not (self.instructions or self.wake.is_set()):
                        self._thread, self._is_ending = None, False
                        return

    def choose(self, units: Iterable[tuple[int, Unit]]) -> Chance | None:
        """The unit that runs next, of those that it may take."""
        turns = []
        for place, unit in units:
            waiting = self.merges[unit.name].whole(self._shift.done(unit))
            if waiting is not None and self._shift.order.may_run(unit, waiting.number):
                turns.append(Chance(place, unit, *waiting))
        return self._policy.choose(turns, self._shift.now()) if turns else None


class Shift:
    """The workers of an engine's dataflows, and what they share."""

    def __init__(self, running: Runs, workers: Workers) -> None:
        graph = running.graph
        self._running, self._graph = running, graph
        self.order = Order(graph, running, workers.buffer)
        self.done, self.now = running.done, running.now
        self.behind: dict[str, Unit] = composed(graph) if workers.compose else {}
        self.changed = threading.Condition()
        self.is_paused: bool = True
        self._is_pool = workers.architecture == "pool"
        self._in_flight: set[str] = set()  # of a pool
        self._busy: set[int] = set()  # workers that are at a unit, or about to be
        self._failure: BaseException | None = None
        self._is_over: str | None = None  # why it has ended, for good
        wait = workers.wait_us / 1e6
        policies = [
            make_policy(workers.policy, graph, running.paces, wait) for _ in range(workers.count)
        ]
        self._workers = [FlowWorker(n, self, policy) for n, policy in enumerate(policies)]
        self._homes = dict.fromkeys((unit.name for unit in graph.units), 0)
        if not self._is_pool:
            self._homes = pinned(graph, workers, self.behind)
        self._own: list[list[tuple[int, Unit]]] = [[] for _ in self._workers]
        self._inputs: dict[str, list[tuple[FlowWorker, Buffer]]] = {
            one: [] for one in graph.streams
        }
        for place, unit in enumerate(graph.units):
            self._settle_in(place, unit)

    def _settle_in(self, place: int, unit: Unit) -> None:
        """Give a unit its worker and its buffers, with what is there already."""
        home = self._homes[unit.name]
        worker, buffers = self._workers[home], []
        self._own[home].append((place, unit))
        for name in unit.needed:
            giver = self._graph.givers.get(name)
            is_near = self._is_pool or (
                giver is not None and self._homes[self._graph.unit_of[giver.name].name] == home
            )
            buffer: Buffer = LocalBuffer() if is_near else PipeBuffer()
            for number in range(self.done(unit) + 1, self._running.closed(name) + 1):
                buffer.put(Waiting(number, 0, self.now()))
            self._inputs[name].append((worker, buffer))
            buffers.append(buffer)
        merge = OrderedMerge(buffers)
        for one in self._workers if self._is_pool else [worker]:
            one.merges[unit.name] = merge

    # --- what a worker does -------------------------------------------------------------------

    def turn_for(self, worker: FlowWorker) -> Chance | None:
        """What a worker runs next; None when it is to wait."""
        self._busy.add(worker.number)  # before it looks: who waits for rest sees it
        turn = None
        if not (self.is_paused or self._failure):
            turn = (
                self._from_pool(worker)
                if self._is_pool
                else worker.choose(self._own[worker.number])
            )
        if turn is None:
            self.leave(worker)
        return turn

    def _from_pool(self, worker: FlowWorker) -> Chance | None:
        with self.changed:
            free = [one for one in self._own[0] if one[1].name not in self._in_flight]
            turn = worker.choose(free)
            if turn is not None:
                self._in_flight.add(turn.unit.name)
            return turn

    def run(self, worker: FlowWorker, turn: Chance) -> None:
        """Run a unit's batch, and right behind it what is composed with it."""
        unit: Unit | None = turn.unit
        try:
            while unit is not None:
                # Of a pool, others may take the unit only when its batch has been delivered, so
                # that each buffer has one producer; and it is let go once: when others may take
                # it, it is perhaps another's already.
                self.deliver(self._running.run_unit(unit, turn.number))
                done, unit = unit, self._behind(worker, unit, turn.number)
                self._in_flight.discard(done.name)
                self._wake_all()  # who waited for this one, or for room
        except BaseException as error:
            if unit is not None:
                self._in_flight.discard(unit.name)
            self.fail(error)
        finally:
            self.leave(worker)
        self._wake_all()

    def _wake_all(self) -> None:
        for one in self._workers:
            self._wake(one)

    def _wake(self, worker: FlowWorker) -> None:
        """Have a worker look again; one that had nothing to do for long may be gone."""
        worker.wake.set()
        if not worker.is_there and not self.is_paused:
            with self.changed:
                worker.start()

    def fail(self, error: BaseException) -> None:
        """A worker cannot go on: all pause, and who hands rows in is told."""
        with self.changed:
            self._failure = self._failure or error
            self.is_paused = True
            self.changed.notify_all()

    def _behind(self, worker: FlowWorker, unit: Unit, number: int) -> Unit | None:
        """What runs right behind a unit, if it may."""
        only = self.behind.get(unit.name)
        if only is None or self._homes[only.name] != self._homes[unit.name] or self.is_paused:
            return None
        with self.changed:
            if only.name in self._in_flight or not self._is_next(only, number):
                return None
            self._in_flight.add(only.name)
            return only

    def _is_next(self, unit: Unit, number: int) -> bool:
        merge = self._workers[self._homes[unit.name]].merges[unit.name]
        found = merge.whole(self.done(unit))
        return found is not None and found.number == number and self.order.may_run(unit, number)

    def leave(self, worker: FlowWorker) -> None:
        """A worker is at nothing any more: who waits for that, or for what it did, looks again."""
        self._busy.discard(worker.number)
        with self.changed:
            self.changed.notify_all()

    # --- what others do -----------------------------------------------------------------------

    def deliver(self, news: Iterable[tuple[str, int, int]]) -> None:
        """Batches are whole: into the buffers of who takes them. Of a source under the engine's
        lock, of a unit by the worker that ran it: each buffer has one producer at a time."""
        now = self.now()
        for stream, number, rows in news:
            for worker, buffer in self._inputs[stream]:
                if self._is_pool:
                    with self.changed:
                        buffer.put(Waiting(number, rows, now))
                else:
                    buffer.put(Waiting(number, rows, now))
                for one in self._workers if self._is_pool else [worker]:
                    self._wake(one)

    def start(self) -> None:
        """Let the workers go on, where they are not there any more as new threads."""
        with self.changed:
            if self._is_over is not None:
                return
            self.is_paused = False
            for worker in self._workers:
                worker.start()
                worker.wake.set()

    def await_idle(self) -> None:
        """Return when all that came in has run; raises what a worker could not go on over.

        Whoever interrupts the wait, by Ctrl-C or SIGTERM, has the workers end what they are at and
        begin nothing more.
        """
        try:
            with self.changed:
                self.changed.wait_for(lambda: self._cannot_go_on or self.order.is_idle())
        except BaseException:
            self.rest()
            raise
        if self._is_over is not None and not self.order.is_idle():
            raise stopped(self._is_over)
        if self._failure is not None:
            self.rest()
            failure, self._failure = self._failure, None
            raise failure

    def await_room(self, stream: str) -> None:
        """Return when a source may take more; the workers are on it."""
        with self.changed:
            self.changed.wait_for(lambda: self._cannot_go_on or self.order.has_room_at(stream))
        if self._is_over is not None:
            raise stopped(self._is_over)

    @property
    def _cannot_go_on(self) -> bool:
        return self._failure is not None or self._is_over is not None

    def rest(self) -> None:
        """Return when no worker runs anything; they begin nothing more until `start`."""
        self.is_paused = True
        with self.changed:
            self.changed.wait_for(lambda: not self._busy)

    def end(self, reason: str) -> None:
        """The threads end, each after what it is at; who waits for them is told why."""
        with self.changed:
            self.is_paused, self._is_over = True, reason
            self.changed.notify_all()
        for worker in self._workers:
            worker.tell(worker.end)
        for worker in self._workers:
            worker.join()
