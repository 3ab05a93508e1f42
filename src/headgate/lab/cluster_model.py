"""The cluster on paper: how long an epoch takes on more nodes than there are, and why not less.

An epoch is drawn event by event, its components are found as an engine with shards finds them, and
what is left is arithmetic over measured costs: what passes the driver, what a job takes, what the
fullest node runs, what travels. Nodes are alike, as far from each other as the executors were that
the costs are of, and nothing fails. Invariant: with one cost raised no epoch becomes shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headgate.errors import InputError
from headgate.lab.designing import dealt
from headgate.shards.components import CROSS, Touched, find_components
from headgate.shards.placement import Placement

OPERATIONS = 2  # of a transfer
BANKS = 1024  # rows of one bank stay together, as `shard_by="bank"` has it
STOPPED = 1.1  # a design that twice the nodes make less faster than this has stopped scaling
LOCAL, MIXED, EXECUTORS, SHUFFLED = "driver", "mixed", "executors", "shuffled"
DESIGNS = {
    LOCAL: "all events on one thread of the driver",
    MIXED: "components within a shard on their nodes, what travels in the driver",
    EXECUTORS: "the same, and what travels in tasks of a second job",
    SHUFFLED: "events by a shuffle to their nodes, only hashes to the driver (not built)",
}


@dataclass(frozen=True)
class ClusterCosts:
    """What a study measured with two executors of one core on one machine."""

    fetch_ms: float = 46.0  # events from Spark to the driver
    fetch_ns: float = 340.0
    driver_ms: float = 20.0  # a batch in the driver beside its events: its record, synced
    order_ns: float = 50.0  # of an event that the driver runs itself, beside its transaction
    deal_ms: float = 10.0  # more than that, where tasks run it: files of shares and results
    deal_ns: float = 250.0  # of an event that goes to a task: its home, its file, its result
    components_ns: float = 250.0  # of an event, where some have rows on several shards
    job_ms: float = 95.0
    task_ms: float = 30.0  # of a core, for each task
    task_ns: float = 150.0  # of an event in a task, beside its transaction: read, parts, results
    travel_ns: float = 400.0  # of an event whose rows travel, there and back
    shuffle_ms: float = 118.0  # more than a job without one
    shuffle_ns: float = 220.0  # of an event, over all nodes
    hash_ns: float = 350.0  # of an event, its hashes to the driver


@dataclass(frozen=True)
class EpochLoad:
    """What an epoch is of: the events, and where they come to run."""

    events: int
    at_home: np.ndarray  # shard -> events
    travelling: int
    largest: int  # of the components that travel
    is_crossed: bool  # whether any event has rows on two shards

    @property
    def home(self) -> int:
        return int(self.at_home.sum())


def draw_rows(
    events: int, keys: int, cross: float, skew: float, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The two rows of each transfer: in one bank, but for a share of them; the first by Zipf."""
    draw = np.random.default_rng(seed)
    ranks = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    reach = np.cumsum(ranks)
    src, dst = (np.searchsorted(reach, draw.random(events) * reach[-1]) for _ in range(2))
    bank = np.where(draw.random(events) < cross, dst % BANKS, src % BANKS)
    dst = np.minimum(dst // BANKS, keys // BANKS - 1) * BANKS + bank
    return src.astype(np.int64), dst.astype(np.int64)


def load_of(src: np.ndarray, dst: np.ndarray, shards: int) -> EpochLoad:
    """Where these transfers run: their components, found as the engine finds them."""
    events = len(src)
    operations = np.repeat(np.arange(events), OPERATIONS)
    known, rows = np.unique(np.stack([src, dst], 1).ravel(), return_inverse=True)
    touched = Touched(
        {}, {}, operations, rows, np.ones(len(rows), np.bool_), known % BANKS % shards
    )
    return load_by(touched, events, shards)


def load_by(touched: Touched, events: int, shards: int) -> EpochLoad:
    """Where the events of a batch run that name these rows."""
    found = find_components(touched, events, Placement({}, shards))
    homes = found.homes[found.numbers]
    travelling = homes == CROSS
    sizes = found.sizes[found.homes == CROSS]
    return EpochLoad(
        events, np.bincount(homes[~travelling], minlength=shards), int(travelling.sum()),
        int(sizes.max(initial=0)), bool(travelling.any()),
    )  # fmt: skip


@dataclass(frozen=True)
class Epoch:
    """What an epoch takes by one design on so many nodes, part by part."""

    design: str
    nodes: int
    events: int
    parts_ms: Mapping[str, float]

    @property
    def ms(self) -> float:
        return sum(self.parts_ms.values())

    @property
    def latency_ms(self) -> float:
        """Of an event on average, epoch behind epoch: half of one until its own begins."""
        return 1.5 * self.ms

    @property
    def rate(self) -> float:
        """Events a second, epoch after epoch."""
        return 1e3 * self.events / self.ms


def epoch_of(
    design: str, load: EpochLoad, nodes: int, event_us: float, costs: ClusterCosts, cores: int = 1
) -> Epoch:
    """How long an epoch takes; `event_us` is the transaction of one event."""
    if design not in DESIGNS:
        raise InputError(f"no design {design!r}; there are: {', '.join(DESIGNS)}")
    if nodes < 1 or cores < 1:
        raise InputError(f"nodes and cores are numbers from 1 on, not {nodes} and {cores}")
    million, events = 1e-6, load.events
    parts = {"record": costs.driver_ms}
    fetch = costs.fetch_ms + events * costs.fetch_ns * million
    if design == LOCAL:
        parts["fetch"] = fetch
        parts["transactions"] = events * (costs.order_ns * million + event_us / 1e3)
        return Epoch(design, nodes, events, parts)
    slots = nodes * cores
    if design == SHUFFLED:
        parts["shuffle"] = costs.shuffle_ms + events * costs.shuffle_ns * million / nodes
        parts["hashes"] = events * costs.hash_ns * million if load.is_crossed else 0.0
    else:
        parts["fetch"] = fetch
        parts["dealing out"] = costs.deal_ms + events * costs.deal_ns * million
    if load.is_crossed:
        parts["components"] = events * costs.components_ns * million
    parts["job"] = costs.job_ms + costs.task_ms
    each_ms = event_us / 1e3 + costs.task_ns * million
    parts["fullest node"] = float(dealt(load.at_home.astype(float), slots).max()) * each_ms
    if load.travelling:
        parts |= _travel(design, load, slots, event_us, costs)
    return Epoch(design, nodes, events, parts)


def _travel(
    design: str, load: EpochLoad, slots: int, event_us: float, costs: ClusterCosts
) -> dict[str, float]:
    """What components take that have rows on several shards."""
    moved = load.travelling * costs.travel_ns / 1e6
    if design == MIXED:
        alone = load.travelling * event_us / 1e3
        return {"travelling rows": moved, "travelling, in the driver": alone}
    longest = max(load.largest, load.travelling / slots)
    name = "largest component" if load.largest > load.travelling / slots else "travelling, in tasks"
    each_ms = event_us / 1e3 + costs.task_ns / 1e6
    return {
        "travelling rows": moved, "second job": costs.job_ms + costs.task_ms,
        name: longest * each_ms,
    }  # fmt: skip


# --- curves ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One design over numbers of nodes, and where and why it stops."""

    epochs: tuple[Epoch, ...]

    @property
    def stops(self) -> Epoch:
        """The first from which twice the nodes, or the next number given, gain little."""
        for one, more in zip(self.epochs, self.epochs[1:], strict=False):
            if more.rate < one.rate * (1 + (STOPPED - 1) * np.log2(more.nodes / one.nodes)):
                return one
        return self.epochs[-1]

    @property
    def why(self) -> str:
        """What most of the epoch is that no further node makes shorter."""
        place = self.epochs.index(self.stops)
        at = self.epochs[min(place + 1, len(self.epochs) - 1)]
        name = max(at.parts_ms, key=lambda one: at.parts_ms[one])
        is_last = place == len(self.epochs) - 1
        goes_on = "still scales" if is_last else f"stops at {self.epochs[place].nodes}"
        return f"{goes_on}: {at.parts_ms[name] / at.ms:.0%} of an epoch is {name}"


def curves(
    loads: Mapping[int, EpochLoad], event_us: float, costs: ClusterCosts, cores: int = 1
) -> dict[str, Curve]:
    """Every design over numbers of nodes, each with its own load."""
    return {
        design: Curve(
            tuple(epoch_of(design, load, nodes, event_us, costs, cores)
                  for nodes, load in loads.items())
        )
        for design in DESIGNS
    }  # fmt: skip


def loads_of(
    nodes: Sequence[int], events: int, keys: int, cross: float, skew: float, shards_of_a_node: int
) -> dict[int, EpochLoad]:
    """By number of nodes: where drawn events run."""
    rows = draw_rows(events, keys, cross, skew)
    return {count: load_of(*rows, shards_of_a_node * count) for count in nodes}
