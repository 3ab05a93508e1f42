"""Policies: which of the nodes that could run a worker runs next.

FIFO takes the oldest batch through the graph before it begins another: the least time in the
system. Round-robin takes the nodes in turn, each until its input is empty or it has had its share.
Chain frees the most rows per second: it looks at the graph as a chart of rows against time, and
gives each node the slope of the segment of the lower envelope that it lies on; a batch may wait for
ever behind others that free more. Chain-flush is Chain as long as nothing has waited too long, and
FIFO for what has. Invariant: a policy chooses among what may run, and so never touches the order of
batches at a node or of nodes for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headgate.dataflow.nodes import FlowGraph, Unit

SHARE_BATCHES = 8  # of round-robin: so many in a row of one node
SECONDS_LEAST = 1e-12  # nothing is done in no time, though few rows may round to it
PATHS_MAX = 256  # of a graph that Chain looks at
POLICIES = ("fifo", "round-robin", "chain", "chain-flush")


class Chance(NamedTuple):
    """A unit that could run its next batch now."""

    place: int  # of the unit in dataflow order
    unit: Unit
    number: int
    rows: int
    since: float


class UnitPace(NamedTuple):
    """What is known of a unit: how long a row takes it, and how many rows it makes of one."""

    seconds: float
    selectivity: float


Paces = Callable[[], Mapping[str, UnitPace]]


class Policy(Protocol):
    """Chooses among chances; there is at least one."""

    def choose(self, chances: Sequence[Chance], now: float) -> Chance: ...


class Fifo:
    """The oldest batch first, and it in dataflow order."""

    def choose(self, chances: Sequence[Chance], now: float) -> Chance:
        return min(chances, key=lambda chance: (chance.number, chance.place))


class RoundRobin:
    """One node after another."""

    def __init__(self) -> None:
        self._last, self._left = -1, 0

    def choose(self, chances: Sequence[Chance], now: float) -> Chance:
        by_place = {chance.place: chance for chance in chances}
        if self._left and self._last in by_place:
            self._left -= 1
            return by_place[self._last]
        later = [place for place in by_place if place > self._last]
        self._last, self._left = min(later or by_place), SHARE_BATCHES - 1
        return by_place[self._last]


class Chain:
    """What frees the most rows per second first; of as much the oldest batch."""

    def __init__(self, graph: FlowGraph, paces: Paces) -> None:
        self._paths, self._paces = paths_of(graph), paces

    def choose(self, chances: Sequence[Chance], now: float) -> Chance:
        slopes = slopes_of(self._paths, self._paces())
        return min(
            chances, key=lambda chance: (-slopes[chance.unit.name], chance.number, chance.place)
        )


class ChainFlush:
    """Chain; but what has waited for so long goes first, oldest first."""

    def __init__(self, graph: FlowGraph, paces: Paces, wait_seconds: float) -> None:
        self._chain, self._fifo, self._wait = Chain(graph, paces), Fifo(), wait_seconds

    def choose(self, chances: Sequence[Chance], now: float) -> Chance:
        late = [chance for chance in chances if now - chance.since > self._wait]
        return self._fifo.choose(late, now) if late else self._chain.choose(chances, now)


def make_policy(name: str, graph: FlowGraph, paces: Paces, wait_seconds: float) -> Policy:
    """The policy of a name."""
    if name == "fifo":
        return Fifo()
    if name == "round-robin":
        return RoundRobin()
    return Chain(graph, paces) if name == "chain" else ChainFlush(graph, paces, wait_seconds)


# --- the chart of Chain ---------------------------------------------------------------------------


def paths_of(graph: FlowGraph) -> list[list[str]]:
    """The ways of a batch through the graph, by units, from those that take sources on."""
    found: list[list[str]] = []

    def walk(unit: Unit, way: list[str]) -> None:
        way = [*way, unit.name]
        after = graph.followers[unit.name]
        if not after and len(found) < PATHS_MAX:
            found.append(way)
        for one in after:
            if len(found) < PATHS_MAX:
                walk(one, way)

    for unit in graph.units:
        if any(name in graph.sources for name in unit.needed):
            walk(unit, [])
    return found


def slopes_of(paths: Sequence[Sequence[str]], paces: Mapping[str, UnitPace]) -> dict[str, float]:
    """By unit: the slope of its segment of the lower envelope, the steepest of all its ways."""
    found: dict[str, float] = {}
    for way in paths:
        for name, slope in zip(way, _envelope([paces[name] for name in way]), strict=True):
            found[name] = max(slope, found.get(name, float("-inf")))
    return found


def _envelope(paces: Sequence[UnitPace]) -> list[float]:
    """Of one way: rows freed per second on each segment, for each unit of it."""
    times, sizes = [0.0], [1.0]
    for place, pace in enumerate(paces):
        is_last = place == len(paces) - 1  # what leaves the graph waits no more
        times.append(times[-1] + sizes[-1] * pace.seconds)
        sizes.append(0.0 if is_last else sizes[-1] * pace.selectivity)
    found: list[float] = []
    while len(found) < len(paces):
        here = len(found)
        rest = range(here + 1, len(times))
        slopes = {
            end: (sizes[here] - sizes[end]) / max(times[end] - times[here], SECONDS_LEAST)
            for end in rest
        }
        end = max(rest, key=lambda one: slopes[one])
        found += [slopes[end]] * (end - here)
    return found
