"""The bars: what was asked of the schemes, and whether a run met it.

A bar is met or not by the figures of one run; how much that says on a noisy machine is in the
report, beside the bars.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Figure, Row, figures, model_ratio, split
from bench.race import MODEL
from bench.workloads import CONTENTION, COST_US, make_workload
from headgate.lab.simulation import plan_batch, speedups
from headgate.parallel.decision import Thresholds

MODEL_BAR, UNIFORM_BAR = 0.95, 1.8
PLAN_NS_BAR = 30.0
LINEAR_BAR = 2.0  # how much dearer an operation may be to plan in the largest batch
EXPLORATIONS = ("strata", "depth", "ready", "tstream")
# Thousand events a second of the public MorphStream artifact on a machine with two cores, no added
# cost, 100,000 keys, nothing durable: its TPG and its PAT.
MORPHSTREAM = {"ledger": (41, 185), "grep_sum": (94, 374), "bidding": (127, None),
               "tolls": (140, 281)}  # fmt: skip
TPG_FACTOR, PAT_FACTOR = 100, 20


@dataclass(frozen=True)
class Bar:
    """A figure, what it must be, and what it is called."""

    group: str
    words: str
    found: float
    limit: float
    is_least: bool = True  # else the limit is the most it may be
    remark: str = ""

    @property
    def is_met(self) -> bool:
        return self.found >= self.limit if self.is_least else self.found <= self.limit

    @property
    def verdict(self) -> str:
        return "met" if self.is_met else "not met"

    @property
    def limit_words(self) -> str:
        return f"{'at least' if self.is_least else 'at most'} {show(self.limit)}"


def show(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def all_bars(rows: Sequence[Row], planned: Sequence[Row], incorrect: frozenset[str]) -> list[Bar]:
    """Every bar that the measurements of this run can judge."""
    return [
        *_cheap_bars(rows, incorrect),
        *_costed_bars(rows, incorrect),
        *sorted(_plan_bars(planned), key=lambda bar: bar.group),
        *_public_bars(rows),
    ]


def _cheap_bars(rows: Sequence[Row], incorrect: frozenset[str]) -> Iterator[Bar]:
    group = "cheap operations, one thread: model / best fixed scheme"
    mine = [r for r in rows if r["section"] in ("applications", "dynamic") and not r["cost_us"]]
    for (section, name, phase), found in split(mine, "section", "application", "phase").items():
        placed = model_ratio(figures(found), incorrect, 1)
        words = f"dynamic workload, phase {phase}" if section == "dynamic" else name
        if placed:
            yield Bar(group, words, placed[0], MODEL_BAR, remark=f"best: {placed[1].name}")


def _costed_bars(rows: Sequence[Row], incorrect: frozenset[str]) -> Iterator[Bar]:
    mine = [row for row in rows if row["section"] == "contention" and row["cost_us"]]
    for (name, phase), found in split(mine, "application", "phase").items():
        cost = f"{found[0]['cost_us']:g} µs per operation, two threads"
        model = [f.ratio for f in figures(found) if f.scheme == MODEL and f.threads == 2]
        placed = model_ratio(figures(found), incorrect, 2)
        if phase == "uniform" and model:
            yield Bar(f"{cost}: model / serial", f"{name}, uniform keys", model[0], UNIFORM_BAR)
        elif placed:
            remark = f"best: {placed[1].name} with {placed[1].ratio:.2f} × serial"
            yield Bar(
                f"{cost}: model / best fixed scheme", f"{name}, {phase} keys", placed[0],
                MODEL_BAR, remark=remark,
            )  # fmt: skip


STEPS = {
    "links, strata of operations, chains and theirs": (
        "link operations", "strata of operations", "chains and their strata",
    ),
    "links and strata of operations": ("link operations", "strata of operations"),
    "links, chains and their strata": ("link operations", "chains and their strata"),
    "graph of whole transactions": ("graph of whole transactions",),
}  # fmt: skip


def plan_ns(planned: Sequence[Row], steps: Sequence[str]) -> dict[int, float]:
    """By size: nanoseconds an operation of these steps together."""
    found: dict[int, float] = {}
    for row in planned:
        if row["step"] in steps:
            found[row["operations"]] = found.get(row["operations"], 0.0) + row["ns"]
    return found


def _plan_bars(planned: Sequence[Row]) -> Iterator[Bar]:
    group = "planning, ns per operation"
    for words, steps in STEPS.items() if planned else ():
        each = plan_ns(planned, steps)
        small, large = min(each), max(each)
        yield Bar(group, f"{words}, {small:,} operations", each[small], PLAN_NS_BAR, False)
        growth = each[large] / each[small]
        remark = f"{each[large]:.1f} ns per operation among {large:,}"
        yield Bar("planning is linear", words, growth, LINEAR_BAR, False, remark)


def _public_bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """The aims: multiples of the public figures, by the model on as many threads as are best."""
    mine = [row for row in rows if row["section"] == "throughput"]
    for (name,), found in split(mine, "application").items():
        best = max(
            (one for one in figures(found) if one.scheme == MODEL),
            key=lambda one: one.thousand_per_s,
        )
        tpg, pat = MORPHSTREAM[name]
        group = "thousand events/s, no added cost, 100,000 keys, in memory"
        for system, theirs, factor in (("TPG", tpg, TPG_FACTOR), ("PAT", pat, PAT_FACTOR)):
            if theirs:
                words = f"{name}: {factor} × MorphStream's {system} of {theirs}"
                remark = f"{best.thousand_per_s / theirs:.0f} × {system}, by {best.name}"
                yield Bar(group, words, best.thousand_per_s, factor * theirs, remark=remark)


# --- the order of the schemes -------------------------------------------------------------------

SIMULATED = ("ready", "ready-operation", "tstream", "pat", "lal", "lwm")
SIMULATED_CORES = 24  # as in MorphStream's evaluation
SIMULATED_EVENTS = 10_240


@dataclass(frozen=True)
class Standing:
    """Where the schemes stand at one point under contention."""

    where: str
    graph: Figure  # the best of operation chains and of the graph of operations
    partitions: Figure
    locks: tuple[Figure, ...]  # LAL and LWM
    expected: Mapping[str, float]  # the speed-up of each on many simulated cores

    @property
    def is_papers(self) -> bool:
        behind = max(one.ratio for one in self.locks)
        return self.graph.ratio >= self.partitions.ratio >= behind

    @property
    def words(self) -> str:
        order = sorted((self.graph, self.partitions, *self.locks), key=lambda one: -one.ratio)
        places = ", ".join(f"{one.name} {one.ratio:.2f}" for one in order)
        verdict = "the papers' order" if self.is_papers else self._why()
        return f"{self.where}: {places}: {verdict}."

    def _why(self) -> str:
        """Why not, by what the threads of the others spent their time on."""
        busy = ", ".join(
            f"{one.scheme} {one.shares['useful']:.0%}"
            for one in (self.partitions, *self.locks)
            if one.shares
        )
        words = "not the papers' order, which is that of many cores"
        if busy:
            words += (
                f"; here the threads spend this part of their time usefully: {busy}, and another "
                "scheme can only gain the rest"
            )
        order = sorted(self.expected, key=lambda scheme: -self.expected[scheme])
        places = ", ".join(f"{scheme} {self.expected[scheme]:.1f}" for scheme in order)
        return f"{words}; simulated on {SIMULATED_CORES} cores: {places}"


def standings(rows: Sequence[Row]) -> list[Standing]:
    """The order of the schemes at each costed point under contention, on two threads."""
    mine = [r for r in rows if r["section"] == "contention" and r["phase"] != "uniform"]
    found = []
    for (name, phase), race in split(mine, "application", "phase").items():
        two = {one.scheme: one for one in figures(race) if one.threads == 2}
        graph = [one for one in two.values() if one.scheme.partition("-")[0] in EXPLORATIONS]
        locks = tuple(two[scheme] for scheme in ("lal", "lwm") if scheme in two)
        if graph and locks and "pat" in two:
            best = max(graph, key=lambda one: one.ratio)
            where = f"{name}, {phase} keys"
            found.append(Standing(where, best, two["pat"], locks, simulated(name, phase)))
    return found


@functools.cache
def simulated(application: str, phase: str) -> dict[str, float]:
    """The speed-up of the schemes over serial for such a batch, on more cores than we have."""
    workload = make_workload(
        application, cost_us=COST_US, batch_events=SIMULATED_EVENTS, **CONTENTION[phase]
    )
    with workload.open() as engine:
        graph = engine.explain(workload.target, workload.batch(0), **workload.options).graph
    batch = plan_batch(graph, 1000 * COST_US)
    found = speedups(batch, Thresholds(), (SIMULATED_CORES,), SIMULATED)
    return {scheme: values[0] for scheme, values in found.items()}
