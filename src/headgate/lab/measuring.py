"""Measuring: what planning, threads, barriers, signals, versions and aborts cost here.

The real kernels run batches of a ledger in memory, each batch several times; the quickest counts,
for whatever else the machine does can only make it slower. A cost is the difference between two
such times that differ in nothing else. One thread is timed by the processor's clock, which stands
still while others have the core; of two threads those runs count in which no core was taken away.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.compiling.actions import abort
from headgate.engine.engine import Engine, open_engine
from headgate.engine.ordering import Arranger
from headgate.engine.terms import of_calls
from headgate.errors import InvariantError
from headgate.execution.run import Run
from headgate.kernels import ticks
from headgate.lab.simulation import plan_batch
from headgate.parallel.crew import workers
from headgate.parallel.decision import Thresholds
from headgate.parallel.scheduler import Scheduler
from headgate.parallel.scheme import SERIAL, Scheme, make_scheme
from headgate.parallel.units import UnitCrew
from headgate.state.table import Table
from headgate.transactions import transaction

ROWS = 100_000
EVENTS = 10_240
LONG_EVENTS = 102_400
CHAIN_EVENTS = 512  # on one row: a stratum each
THREADS = (2, 16)  # are woken to see what one more takes
TRIES_MIN = 9
SECONDS = 0.5  # so long a batch is tried, for the machine may be busy at first
ABORT_EVERY = 32
PRICE_SHARE_MAX = 0.1  # of a transaction: where sharing it costs more, threads are not thought of

accounts = Table("accounts", "id bigint, balance bigint", key="id")


@transaction(event="src bigint, dst bigint, amount bigint")
def transfer(event: Any, src: Any = accounts.at("src"), dst: Any = accounts.at("dst")) -> Any:
    if src.balance < event.amount:
        return abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount


def measure_thresholds(before: Thresholds, seconds: float = SECONDS) -> tuple[Thresholds, bool]:
    """The costs on this machine, and whether it was too busy to tell those of two threads.

    What could not be told stays as before, as it does on a machine of one core.
    """
    with open_engine(None, [accounts], [transfer]) as engine:
        engine.load(
            accounts, pa.table({"id": np.arange(ROWS), "balance": np.full(ROWS, 1_000_000_000)})
        )
        lab = _Laboratory(engine, seconds)
        found = _measure_planning(lab, before)
        if len(os.sched_getaffinity(0)) > 1:
            threads = _measure_threads(lab, found)
            found = found if lab.was_disturbed else threads
    price_ns = 2 * (found.plan_ns_per_operation + found.signal_ns)  # of a transaction of two rows
    least_ns = round(price_ns / PRICE_SHARE_MAX, 1)
    return replace(found, cost_ns_min=least_ns), lab.was_disturbed


def _measure_planning(lab: _Laboratory, before: Thresholds) -> Thresholds:
    """The costs that one thread shows."""
    batch = lab.transfers(EVENTS)
    operations = 2 * EVENTS
    serial_ns = lab.batch_ns(batch, SERIAL)
    plan_ns = lab.batch_ns(batch, make_scheme("strata", 1)) - serial_ns
    unit_plan_ns, unit_work_ns = lab.units_ns(batch, make_scheme("strata-operation", 1))
    return replace(
        before,
        plan_ns_per_operation=_at_least(1.0, plan_ns / operations),
        unit_plan_ns_per_operation=_at_least(1.0, unit_plan_ns / operations),
        version_ns_per_operation=_at_least(1.0, (unit_work_ns - serial_ns) / operations),
    )


def _measure_threads(lab: _Laboratory, costs: Thresholds) -> Thresholds:
    """The costs of two threads that work together: never less than what one of them shows."""
    two = lab.transfers(2)
    start_ns = lab.batch_ns(two, make_scheme("nolock", 2)) - lab.batch_ns(two, SERIAL)
    start_ns = _at_least(1000.0, start_ns)
    batch = lab.transfers(EVENTS)
    signals = EVENTS + lab.edges(batch)
    work_ns = lab.batch_ns(batch, SERIAL)
    plan_ns = costs.plan_ns_per_operation * 2 * EVENTS
    alone_ns = lab.batch_ns(batch, make_scheme("ready", 1)) - work_ns - plan_ns
    shared_ns = lab.batch_ns(batch, make_scheme("ready", 2)) - work_ns / 2 - plan_ns - start_ns
    chain = lab.chain(CHAIN_EVENTS)
    met_ns = lab.batch_ns(chain, make_scheme("strata", 2)) - start_ns
    met_ns -= lab.batch_ns(chain, make_scheme("strata", 1))
    failing = lab.transfers(EVENTS, ABORT_EVERY)
    aborted_ns = []
    for threads in (1, 2):
        eager = make_scheme("ready-operation-eager", threads)
        aborted_ns.append(lab.batch_ns(failing, eager) - lab.batch_ns(batch, eager))
    share_start_ns = _at_least(1000.0, lab.run_ns(two, make_scheme("shares", 2)))
    return replace(
        costs,
        share_start_ns=share_start_ns,
        share_ns_per_operation=_share_ns(lab, share_start_ns),
        thread_ns=_at_least(100.0, lab.thread_ns()),
        start_ns=start_ns,
        signal_ns=_at_least(1.0, max(alone_ns, shared_ns) / signals),
        barrier_ns=_at_least(50.0, met_ns / CHAIN_EVENTS),
        abort_ns=_at_least(100.0, max(aborted_ns) / (EVENTS // ABORT_EVERY)),
    )


def _share_ns(lab: _Laboratory, start_ns: float) -> float:
    """What planning at once adds to an operation, by one thread or by two if that is more: they
    take rows from each other's caches. Of a long batch, where starting counts for little."""
    batch, operations = lab.transfers(LONG_EVENTS), 2 * LONG_EVENTS
    work_ns = lab.run_ns(batch, SERIAL)
    alone_ns = lab.run_ns(batch, make_scheme("shares", 1)) - start_ns
    shared_ns = 2 * (lab.run_ns(batch, make_scheme("shares", 2)) - start_ns)
    return _at_least(1.0, (max(alone_ns, shared_ns) - work_ns) / operations)


def _at_least(least: float, value: float) -> float:
    """A difference of two times may come out below what is possible at all."""
    return max(least, round(value, 1))


@dataclass(frozen=True)
class Spent:
    """One run: its time on the wall, and that of all threads by the processor's clock."""

    wall_ns: int
    processor_ns: int
    switches: int  # how often a thread had to leave its core to others


def spend(action: Callable[[], object]) -> Spent:
    """Do it and say what it took."""
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    wall, processor = time.perf_counter_ns(), time.process_time_ns()
    action()
    wall, processor = time.perf_counter_ns() - wall, time.process_time_ns() - processor
    return Spent(wall, processor, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches)


def forget(scheduler: Scheduler) -> None:
    """Let it know nothing of what batches took."""
    scheduler.cost_ns = scheduler.attempts.pace_ns = None


def taken_ns(scheduler: Scheduler, scheme: Scheme) -> float:
    """What a transaction took in the one batch since, serially or by shares."""
    return (scheduler.cost_ns if scheme.is_serial else scheduler.attempts.pace_ns) or 0.0


@dataclass(frozen=True)
class _Batch:
    """A batch that was put in order and resolved, ready to run again and again."""

    works: Any
    order: np.ndarray
    route: np.ndarray


class _Laboratory:
    """Runs prepared batches in an engine of its own and keeps the time."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.seconds = seconds
        self.was_disturbed = False
        terms = of_calls(transfer)
        self.executor = engine._batches.executor(terms.route.transactions)
        self.program = self.executor.program
        self.arranger = Arranger(terms, self.program)
        self.random = np.random.default_rng(7)
        self.epoch = 1

    def transfers(self, count: int, abort_every: int | None = None) -> _Batch:
        """Transfers between rows drawn evenly; some may ask for more than there is."""
        amount = np.ones(count, np.int64)
        if abort_every is not None:
            amount[::abort_every] = 10**15
        src, dst = self.random.integers(0, ROWS, (2, count))
        return self._prepared(src, dst, amount)

    def chain(self, count: int) -> _Batch:
        """Transfers between the same two rows: each waits for the one before it."""
        rows = np.zeros(count, np.int64)
        return self._prepared(rows, rows + 1, np.ones(count, np.int64))

    def _prepared(self, src: np.ndarray, dst: np.ndarray, amount: np.ndarray) -> _Batch:
        events = pa.table({"src": src, "dst": dst, "amount": amount})
        arranged = self.arranger.arrange(events, None)
        self.program.resolve(arranged.works)
        return _Batch(arranged.works, arranged.order, arranged.route)

    def batch_ns(self, batch: _Batch, scheme: Scheme) -> float:
        """What the batch takes by this scheme, planning included."""
        return self._quickest_ns(scheme, [spent for spent, _ in self._runs(batch, scheme)])

    def run_ns(self, batch: _Batch, scheme: Scheme) -> float:
        """The same without what is made for any batch, as the scheduler sees it."""
        runs = [replace(spent, wall_ns=ns) for spent, ns in self._runs(batch, scheme)]
        return self._quickest_ns(scheme, [replace(one, processor_ns=one.wall_ns) for one in runs])

    def _runs(self, batch: _Batch, scheme: Scheme) -> list[tuple[Spent, int]]:
        """Each run, and what the scheduler says it took, serially or by shares."""
        scheduler, found = self.executor.scheduler, []

        def run() -> None:
            self.executor.execute(batch.works, batch.order, batch.route, self._next(), scheme)

        run()  # loads the kernels
        for _ in self._tries():
            forget(scheduler)
            spent = spend(run)
            found.append((spent, round(taken_ns(scheduler, scheme) * len(batch.order))))
        return found

    def _quickest_ns(self, scheme: Scheme, spent: list[Spent]) -> float:
        if scheme.threads == 1:
            return min(one.processor_ns for one in spent)
        undisturbed = [one for one in spent if one.switches == 0]
        self.was_disturbed |= not undisturbed
        return min(one.wall_ns for one in undisturbed or spent)

    def thread_ns(self) -> float:
        """What it takes to wake one more thread, which has nothing to do."""
        taken = []
        for threads in THREADS:
            calls = [ticks.cycles_per_second] * threads  # known long since
            taken.append(min(spend(partial(workers.run, calls)).wall_ns for _ in self._tries()))
        return (taken[1] - taken[0]) / (THREADS[1] - THREADS[0])

    def _tries(self) -> Iterator[int]:
        """Numbers for as long as it is worth trying."""
        began, number = time.monotonic(), 0
        while number < TRIES_MIN or time.monotonic() - began < self.seconds:
            yield number
            number += 1

    def units_ns(self, batch: _Batch, scheme: Scheme) -> tuple[float, float]:
        """What the plan by operations takes, and the work over versions."""
        plan_ns, work_ns = [], []
        for _ in self._tries():
            run = Run(self.program, batch.works, batch.order, batch.route, self._next())
            self._find_rows(run)
            began = time.process_time_ns()
            crew = UnitCrew(self.executor.scheduler.unit_batch(run), scheme)
            planned = time.process_time_ns()
            crew.work()
            crew.install()
            plan_ns.append(planned - began)
            work_ns.append(time.process_time_ns() - planned)
            run.release(run.changed())
        return min(plan_ns), min(work_ns)

    def edges(self, batch: _Batch) -> int:
        """How many signals there are from one transaction of the batch to another."""
        graph = self.executor.explain(batch.works, batch.order, batch.route).graph
        return plan_batch(graph, 0.0).graph.edges

    def _find_rows(self, run: Run) -> None:
        kernel = self.program.kernel
        if kernel is None:
            raise InvariantError("the ledger of the calibration is not compiled")
        kernel.resolve(0, len(run.order), run.frame.address)

    def _next(self) -> int:
        self.epoch += 1
        return self.epoch
