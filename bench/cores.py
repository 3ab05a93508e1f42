"""The benchmark of cheap transfers on cores: said of 1 to 64 by the simulation, seen on two.

Transfers of `bench queries` run one after another and by shares, on one thread and on two, in turn
in one engine; only what runs the transactions is timed, by the scheduler itself, not the way of the
events there and of the results back. The planned batch is then replayed at costs that were measured
just before. Of two threads the quickest run counts in which no core was taken away; where there was
none, because the machine has other work, the quickest of all is given, and marked.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

import pyarrow as pa
from rich.console import Console

import headgate as hg
from bench.transfers import check_total, make_events, open_bank, transfer
from headgate.lab.measuring import forget, measure_thresholds, spend, taken_ns
from headgate.lab.simulation import plan_batch, simulate
from headgate.parallel.decision import Thresholds, load_thresholds
from headgate.parallel.scheduler import Scheduler
from headgate.parallel.scheme import make_scheme
from headgate.state.compiled import cache_folder

SIZES = (10_240, 102_400)
RUNS = (("serial", 1), ("shares", 1), ("shares", 2))
CORES = (1, 2, 4, 8, 16, 32, 64)
BAR_CORES, BAR_EVENTS, BAR = 16, 102_400, 4.0


@dataclass(frozen=True)
class Seen:
    """What one run took for each transaction, and whether it had its cores all the time."""

    ns: float
    was_undisturbed: bool


@dataclass(frozen=True)
class Cheap:
    """Batches of one size: what was seen, and what the simulation says, as speed-ups."""

    events: int
    serial_ns: float  # of one transaction
    seen: dict[int, float]  # by threads: at their best
    medians: dict[int, float]  # by threads: of the rounds
    undisturbed: int  # runs of two threads
    said: dict[int, float]  # by cores


def scheduler_of(engine: hg.Engine) -> Scheduler:
    (executor,) = engine._executors.values()
    return executor.scheduler


def run_once(engine: hg.Engine, events: pa.Table, name: str, threads: int) -> Seen:
    """One batch; the scheduler says what running it took, by nothing that it knew before."""
    engine.run(transfer, events.slice(0, 1), scheme="serial")  # makes the scheduler
    scheduler = scheduler_of(engine)
    forget(scheduler)
    spent = spend(lambda: engine.run(transfer, events, scheme=name, threads=threads))
    return Seen(taken_ns(scheduler, make_scheme(name, threads)), spent.switches == 0)


def quickest_ns(seen: list[Seen]) -> float:
    undisturbed = [one.ns for one in seen if one.was_undisturbed]
    return min(undisturbed or [one.ns for one in seen])


def measure(events: int, rounds: int, costs: Thresholds, rows: int | None = None) -> Cheap:
    """Run batches of this size in turn, and replay one of them."""
    found: dict[tuple[str, int], list[Seen]] = defaultdict(list)
    with open_bank(None, rows) as engine:
        for number in range(rounds + 2):
            batch = make_events(events, number, rows=rows)
            for run in RUNS:
                one = run_once(engine, batch, *run)
                if number >= 2:  # the first ones load kernels and make room
                    found[run].append(one)
        check_total(engine, rows)
        graph = engine.explain(transfer, batch).graph
    serial = found["serial", 1]
    serial_ns = quickest_ns(serial)
    planned = plan_batch(graph, serial_ns * events / graph.units.operations)
    threads = {count: found["shares", count] for count in (1, 2)}
    said = {count: planned.serial_ns / simulate(planned, "shares", count, costs) for count in CORES}
    return Cheap(
        events,
        serial_ns,
        {count: serial_ns / quickest_ns(runs) for count, runs in threads.items()},
        {
            count: median(one.ns / other.ns for one, other in zip(serial, runs, strict=True))
            for count, runs in threads.items()
        },
        sum(one.was_undisturbed for one in found["shares", 2]),
        said,
    )


def lines(one: Cheap) -> list[str]:
    """What was seen and said of batches of one size."""
    mark = "" if one.undisturbed else ", none of them with its cores all the time"
    seen = [
        f"{one.seen[count]:.2f} on {count} at best, {one.medians[count]:.2f} in the median"
        for count in one.seen
    ]
    said = ", ".join(f"{count}: {speed:.2f}" for count, speed in one.said.items())
    return [
        f"{one.events:,} transfers of {one.serial_ns:.1f} ns one after another; by shares",
        f"  seen, by threads: {'; '.join(seen)}{mark}",
        f"  said, by cores: {said}",
    ]


def main(quick: bool) -> None:
    console = Console(highlight=False)
    with console.status("measuring what planning, threads and barriers cost here"):
        before = load_thresholds(cache_folder())
        costs, was_disturbed = measure_thresholds(before, 0.5 if quick else 2.0)
    console.print(f"{costs}\nload of the machine {os.getloadavg()[0]:.1f}", soft_wrap=True)
    if was_disturbed:
        console.print("the machine was busy: what threads cost is as it was known before")
    with console.status("transfers one after another and by shares"):
        found = [measure(events, 20 if quick else 100, costs) for events in SIZES]
    for line in (line for one in found for line in lines(one)):
        console.print(line, soft_wrap=True)
    reached = next(one.said[BAR_CORES] for one in found if one.events == BAR_EVENTS)
    verdict = "met" if reached >= BAR else "not met"
    console.print(
        f"simulated on {BAR_CORES} cores, batches of {BAR_EVENTS:,}: {reached:.2f}, "
        f"at least {BAR:g}: {verdict}"
    )
