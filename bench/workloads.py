"""Workloads: the papers' applications with generators whose every characteristic can be set.

A batch depends on the parameters, the seed and its number alone: any batch can be made again by
itself, on any machine. An event that is to abort always does, any other never: the abort ratio of
a run is that of its events. Defaults are those of MorphStream's evaluation (table 6, section 8.1);
what it does not give comes from TStream's (section 6.1.1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from apps import bidding, grep_sum, tolls
from bench import transactions

FIRST_US = 1_704_067_200_000_000  # 2024-01-01
STEP_US = 1_000  # between two events; no two have the same timestamp
PLENTY = 10**12  # what a row starts with, so that only those events abort that are to
TOO_MUCH = 10**15
REDRAWS = 8  # how often a key that an event already has is drawn again before the next one is taken

COST_US = 10.0  # of an operation, where schemes are to show what they can do
# What is hot, and how hot: names of points under contention, and the parameters they change.
CONTENTION: dict[str, dict[str, Any]] = {
    "uniform": {"theta": 0.0},
    "skewed": {"theta": 1.0},
    "few": {"theta": 1.0, "keys": 100},
}

Columns = dict[str, Any]
Routes = Mapping[int, hg.Transaction]


# --- parameters -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The characteristics of a workload; letters are those of MorphStream's table 6."""

    keys: int = 100_000  # rows of each table
    events: int = 102_400
    batch_events: int = 10_240  # T: events between two punctuations
    theta: float = 0.2  # Zipf skew: the k-th hottest key is drawn in proportion to 1 / k**theta
    abort_ratio: float = 0.01  # a
    length: int = 1  # l: keys in a list, where the application has lists
    accesses: int = 1  # r: rows an update of Grep-Sum works with, its own among them
    mix: tuple[float, ...] = (1.0,)  # weights of the transactions, in the order of the routes
    cost_us: float = 10.0  # C: added to every operation; with 0 the cheap forms run
    partitions: int = 1  # key k is in partition k % partitions; with 1 keys are drawn freely
    multi_partition_ratio: float = 0.25  # of the events; the others stay in one partition
    partitions_touched: int = 4  # at most so many by one such event
    disorder: int = 0  # an event may arrive after so many later ones, never across a punctuation
    seed: int = 7
    first_event: int = 0  # its number; timestamps go on from there
    steps_per_us: float | None = None  # of `busy`; None: as measured on this machine

    def __post_init__(self) -> None:
        shares = ("abort_ratio", "multi_partition_ratio")
        wrong = [name for name in shares if not 0 <= getattr(self, name) <= 1]
        floors = {"keys": 1, "batch_events": 1, "length": 1, "accesses": 1, "partitions": 1}
        floors |= {"partitions_touched": 1, "events": 0, "theta": 0, "cost_us": 0, "disorder": 0}
        wrong += [name for name, least in floors.items() if getattr(self, name) < least]
        if wrong:
            raise ValueError(f"{wrong[0]} cannot be {getattr(self, wrong[0])}")
        if self.keys % self.partitions:
            raise ValueError(f"{self.keys} keys do not make {self.partitions} equal partitions")
        if min(self.mix) < 0 or sum(self.mix) <= 0:
            raise ValueError(f"mix cannot be {self.mix}")

    @property
    def work(self) -> int:
        """The steps of `busy` that take `cost_us`."""
        return max(1, round(self.cost_us * (self.steps_per_us or transactions.steps_per_us())))


def between(start: Parameters, end: Parameters, share: float) -> Parameters:
    """The parameters on the way from one to another: skew, aborts and mix change evenly."""
    mix = tuple(a + (b - a) * share for a, b in zip(start.mix, end.mix, strict=True))
    theta = start.theta + (end.theta - start.theta) * share
    abort_ratio = start.abort_ratio + (end.abort_ratio - start.abort_ratio) * share
    return replace(start, mix=mix, theta=theta, abort_ratio=abort_ratio)


# --- drawing keys -----------------------------------------------------------------------------


def zipf_shares(keys: int, theta: float) -> np.ndarray:
    """The probability of each rank, the hottest first."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -theta
    return weights / weights.sum()


@functools.lru_cache(16)
def _cumulative(keys: int, theta: float) -> np.ndarray:
    return np.cumsum(zipf_shares(keys, theta))


@functools.lru_cache(16)
def _spread(keys: int, seed: int) -> np.ndarray:
    """Which key has which rank: hot rows lie anywhere, and stay hot while the skew changes."""
    return np.random.default_rng(seed).permutation(keys)


def _ranks(random: np.random.Generator, keys: int, theta: float, shape: Any) -> np.ndarray:
    if theta == 0:
        return random.integers(0, keys, shape)
    found = np.searchsorted(_cumulative(keys, theta), random.random(shape), side="right")
    return np.minimum(found, keys - 1)


def _repeats(keys: np.ndarray) -> np.ndarray:
    """Where a key of an event is one that the event already has further to the left."""
    columns = np.ascontiguousarray(keys.T)
    found = np.zeros(columns.shape, np.bool_)
    for place in range(1, len(columns)):
        for earlier in range(place):
            found[place] |= columns[earlier] == columns[place]
    return found.T


@dataclass(frozen=True)
class Draw:
    """What every application's events begin with: who is what, who aborts, which keys."""

    parameters: Parameters
    random: np.random.Generator
    number: np.ndarray  # of the event, in order of time
    kind: np.ndarray  # by event: the place of its transaction in the routes
    fails: np.ndarray  # by event: whether it is to abort

    def keys(self, partition: np.ndarray) -> np.ndarray:
        """Keys in these partitions, one row an event, no key twice in a row of them."""
        given = self.parameters
        each, apart = given.keys // given.partitions, given.partitions
        if partition.shape[1] > each:
            raise ValueError(f"{each} keys in a partition, an event needs {partition.shape[1]}")
        spread = _spread(each, given.seed)
        keys = spread[_ranks(self.random, each, given.theta, partition.shape)] * apart + partition
        rows, attempt = np.arange(len(keys)), 0
        while True:
            again = _repeats(keys[rows])
            kept = again.any(axis=1)
            rows, again = rows[kept], again[kept]
            if not len(rows):
                return keys
            some, where = keys[rows], partition[rows][again]
            fresh = spread[_ranks(self.random, each, given.theta, len(where))] * apart + where
            some[again] = fresh if attempt < REDRAWS else (some[again] + apart) % given.keys
            keys[rows] = some
            attempt += 1

    def partitions(self, width: int) -> np.ndarray:
        """The partition of each of an event's keys: one for all of them, or several."""
        given, count = self.parameters, len(self.number)
        first = self.random.integers(0, given.partitions, count)
        several = self.random.random(count) < given.multi_partition_ratio
        step = np.arange(width) % given.partitions_touched
        return (first[:, None] + np.where(several[:, None], step, 0)) % given.partitions

    def whole(self, low: int, high: int, shape: Any = None) -> np.ndarray:
        return self.random.integers(low, high, len(self.number) if shape is None else shape)


def _lists(values: np.ndarray, kept: np.ndarray | None = None) -> pa.Array:
    """One list an event; an empty one where it is not kept."""
    count, width = values.shape
    sizes = np.full(count, width) if kept is None else np.where(kept, width, 0)
    flat = values if kept is None else values[kept]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.ravel()))


# --- applications -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Application:
    """Tables, both forms of the transactions, first rows, and the columns of drawn events."""

    name: str
    tables: tuple[hg.Table, ...]
    cheap: Routes
    costed: Routes
    rows: Callable[[Parameters], dict[str, pa.Table]]
    columns: Callable[[Draw], Columns]
    defaults: Parameters


def _ledger_rows(given: Parameters) -> dict[str, pa.Table]:
    ids, plenty = np.arange(given.keys), np.full(given.keys, PLENTY)
    return {
        "accounts": pa.table({"id": ids, "balance": plenty}),
        "assets": pa.table({"id": ids, "quantity": plenty}),
    }


def _ledger_columns(draw: Draw) -> Columns:
    """A transfer fails for want of money, a deposit because it takes more than is there."""
    partition = draw.partitions(4)
    account, asset = draw.keys(partition[:, :2]), draw.keys(partition[:, 2:])
    lost = np.where(draw.kind == 1, TOO_MUCH, -TOO_MUCH)
    return {
        "src_account": account[:, 0],
        "dst_account": account[:, 1],
        "src_asset": asset[:, 0],
        "dst_asset": asset[:, 1],
        "amount": np.where(draw.fails, lost, draw.whole(1, 100)),
        "quantity": draw.whole(1, 10),
    }


def _record_rows(given: Parameters) -> dict[str, pa.Table]:
    values = np.random.default_rng(given.seed).integers(0, grep_sum.LIMIT, given.keys)
    return {"records": pa.table({"id": np.arange(given.keys), "value": values})}


def _grep_sum_columns(draw: Draw) -> Columns:
    """A sum fails by a ceiling below 0, an update by a value that brings a record below 0."""
    given = draw.parameters
    keys = draw.keys(draw.partitions(given.length + given.accesses - 1))
    return {
        "keys": _lists(keys[:, : given.length]),
        "sources": _lists(keys[:, given.length :], draw.kind == 1),
        "ceiling": np.where(draw.fails, -1, TOO_MUCH),
        "value": np.where(draw.fails, -2 * grep_sum.LIMIT, draw.whole(1, 100)),
    }


def _item_rows(given: Parameters) -> dict[str, pa.Table]:
    random = np.random.default_rng(given.seed)
    prices = random.integers(1, 100, given.keys).astype(np.float64)
    quantities = PLENTY + random.integers(0, 100, given.keys)
    columns = {"id": np.arange(given.keys), "price": prices, "quantity": quantities}
    return {"items": pa.table(columns)}


def _bidding_columns(draw: Draw) -> Columns:
    """A bid fails by its price; a list fails as a whole by its last price or quantity."""
    length = draw.parameters.length
    keys = draw.keys(draw.partitions(length))
    prices = draw.whole(1, 100, keys.shape).astype(np.float64)
    quantities = draw.whole(1, 10, keys.shape)
    prices[draw.fails, -1] = -1.0
    quantities[draw.fails, -1] = -TOO_MUCH
    return {
        "item": keys[:, 0],
        "price": np.where(draw.fails, 0.5, 100.0),
        "quantity": draw.whole(1, 10),
        "items": _lists(keys, draw.kind != 0),
        "prices": _lists(prices, draw.kind == 1),
        "quantities": _lists(quantities, draw.kind == 2),
    }


def _road_rows(given: Parameters) -> dict[str, pa.Table]:
    ids, none = np.arange(given.keys), np.zeros(given.keys, np.int64)
    return {
        "speeds": pa.table({"segment": ids, "average": np.zeros(given.keys), "reports": none}),
        "counts": pa.table({"segment": ids, "vehicles": none}),
    }


def _report_columns(draw: Draw) -> Columns:
    return _reports(draw, draw.keys(draw.partitions(1))[:, 0], draw.fails)


def _grouped_report_columns(draw: Draw) -> Columns:
    """The lower half of the segments is skewed and aborts, the upper half uniform and does not."""
    half = replace(draw.parameters, keys=draw.parameters.keys // 2, partitions=1)
    hot = replace(draw, parameters=half).keys(np.zeros((len(draw.number), 1), np.int64))[:, 0]
    calm = draw.random.random(len(draw.number)) < 0.5
    segment = np.where(calm, draw.whole(half.keys, draw.parameters.keys), hot)
    return _reports(draw, segment, draw.fails & ~calm)


def _reports(draw: Draw, segment: np.ndarray, fails: np.ndarray) -> Columns:
    """Every segment has a usual speed of its own, so that some are congested and some are not."""
    speed = 20.0 + segment * 7 % 50 + draw.whole(-10, 10)
    return {"vehicle": draw.number, "segment": segment, "speed": np.where(fails, -1.0, speed)}


LEDGER = Application(
    "ledger",
    (transactions.accounts, transactions.assets),
    {0: transactions.deposit, 1: transactions.transfer},
    {0: transactions.costed_deposit, 1: transactions.costed_transfer},
    _ledger_rows,
    _ledger_columns,
    Parameters(mix=(1, 1)),
)
GREP_SUM = Application(
    "grep_sum",
    (grep_sum.records,),
    {0: grep_sum.grep, 1: grep_sum.update},
    {0: transactions.costed_grep, 1: transactions.costed_update},
    _record_rows,
    _grep_sum_columns,
    Parameters(accesses=2, mix=(1, 1)),
)
BIDDING = Application(
    "bidding",
    (bidding.items,),
    {0: bidding.bid, 1: bidding.alter, 2: bidding.top},
    {0: transactions.costed_bid, 1: transactions.costed_alter, 2: transactions.costed_top},
    _item_rows,
    _bidding_columns,
    Parameters(length=20, mix=(6, 1, 1)),
)
# A thousand segments: ten times TStream's, as MorphStream has ten times its state.
TOLLS = Application(
    "tolls",
    (tolls.speeds, tolls.counts),
    {0: tolls.report},
    {0: transactions.costed_report},
    _road_rows,
    _report_columns,
    Parameters(keys=1_000, events=409_600, batch_events=40_960),
)
GROUPED_TOLLS = replace(
    TOLLS,
    name="grouped_tolls",
    columns=_grouped_report_columns,
    defaults=replace(TOLLS.defaults, theta=0.8, abort_ratio=0.5),
)
APPLICATIONS = {found.name: found for found in (LEDGER, GREP_SUM, BIDDING, TOLLS, GROUPED_TOLLS)}


# --- workloads --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """An application with its parameters; `drift` is what they have become by the last batch.

    >>> workload = make_workload("ledger", keys=100, events=30, batch_events=20, cost_us=0)
    >>> [batch.num_rows for batch in workload.batches()]
    [20, 10]
    """

    application: Application
    parameters: Parameters
    drift: Parameters | None = None

    def __post_init__(self) -> None:
        if len(self.parameters.mix) != len(self.application.cheap):
            names = ", ".join(found.name for found in self.application.cheap.values())
            raise ValueError(f"mix is {self.parameters.mix}, but the transactions are {names}")

    @property
    def name(self) -> str:
        return self.application.name

    @property
    def tables(self) -> tuple[hg.Table, ...]:
        return self.application.tables

    @property
    def is_costed(self) -> bool:
        return self.parameters.cost_us > 0

    @property
    def routes(self) -> Routes:
        """The transactions by the value of the column `kind`."""
        return self.application.costed if self.is_costed else self.application.cheap

    @property
    def transactions(self) -> tuple[hg.Transaction, ...]:
        return tuple(self.routes.values())

    @property
    def target(self) -> Any:
        """What `engine.run` takes as its transaction: the routes, or the only one there is."""
        return self.routes if len(self.routes) > 1 else self.transactions[0]

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of `engine.run` and `engine.sink`."""
        routed = {"route_by": "kind"} if len(self.routes) > 1 else {}
        return {"order_by": "ts", **routed}

    @property
    def batch_count(self) -> int:
        return -(-self.parameters.events // self.parameters.batch_events)

    def vary(self, **changes: Any) -> Workload:
        """The same with other parameters, as the next point of a sweep."""
        drift = None if self.drift is None else replace(self.drift, **changes)
        return replace(self, parameters=replace(self.parameters, **changes), drift=drift)

    def rows(self) -> dict[str, pa.Table]:
        """The first rows of each table."""
        return self.application.rows(self.parameters)

    def open(self, path: Any = None) -> hg.Engine:
        """An engine with the tables filled."""
        engine = hg.open(path, tables=self.tables, transactions=self.transactions)
        for name, rows in self.rows().items():
            engine.load(name, rows)
        return engine

    def at(self, number: int) -> Parameters:
        """The parameters of this batch."""
        if self.drift is None:
            return self.parameters
        return between(self.parameters, self.drift, number / max(1, self.batch_count - 1))

    def batch(self, number: int) -> pa.Table:
        """The events between two punctuations, in order of arrival."""
        given = self.at(number)
        first = number * given.batch_events
        count = min(given.batch_events, given.events - first)
        if not 0 <= number < self.batch_count:
            raise ValueError(f"there is no batch {number}; there are {self.batch_count}")
        random = np.random.default_rng([given.seed, given.first_event, number])
        weights = np.array(given.mix) / sum(given.mix)
        kind = np.searchsorted(np.cumsum(weights)[:-1], random.random(count), side="right")
        fails = random.random(count) < given.abort_ratio
        place = given.first_event + first + np.arange(count)
        late = random.random(count) * given.disorder
        columns = self.application.columns(Draw(given, random, place, kind, fails))
        return self._table(given, place, kind, columns, late)

    def _table(
        self,
        given: Parameters,
        place: np.ndarray,
        kind: np.ndarray,
        columns: Columns,
        late: np.ndarray,
    ) -> pa.Table:
        stamp = pa.array(FIRST_US + place * STEP_US, pa.timestamp("us", tz="UTC"))
        found: Columns = {"ts": stamp}
        if len(self.routes) > 1:
            found["kind"] = kind
        found.update(columns)
        if self.is_costed:
            found["work"] = np.full(len(place), given.work)
        table = pa.table(found)
        if given.disorder == 0:
            return table
        return table.take(np.argsort(place + late, kind="stable")).combine_chunks()

    def batches(self) -> Iterator[pa.Table]:
        return (self.batch(number) for number in range(self.batch_count))


def make_workload(name: str, **changes: Any) -> Workload:
    """A workload by the name of its application, with its defaults where nothing else is said."""
    application = APPLICATIONS[name]
    return Workload(application, replace(application.defaults, **changes))


# --- the dynamic workload ---------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """A stretch of the dynamic workload: a name, what changes in it, and its events."""

    name: str
    changes: str
    workload: Workload


def dynamic_ledger(batches_per_phase: int = 10, **changes: Any) -> tuple[Phase, ...]:
    """The four phases of MorphStream's section 8.2.2 over the Streaming Ledger, one after another.

    The paper gives trends, not figures: these cross the ranges of its table 6. All phases have the
    same tables and transactions, so that one engine runs them in turn.
    """
    base = replace(LEDGER.defaults, theta=0.0, abort_ratio=0.0, mix=(0.9, 0.1), **changes)
    base = replace(base, events=batches_per_phase * base.batch_events)
    usual = replace(base, theta=LEDGER.defaults.theta)
    swapped = replace(usual, mix=(0.1, 0.9))
    steps = [
        ("deposits", "nothing: mostly deposits on scattered keys", base, base),
        ("skew", "the skew of the keys rises from 0 to 1", base, replace(base, theta=1.0)),
        ("transfers", "the share of transfers rises from 0.1 to 0.9", usual, swapped),
        ("aborts", "the share of aborts rises from 0 to 0.9", swapped,
         replace(swapped, abort_ratio=0.9)),
    ]  # fmt: skip
    return tuple(
        Phase(name, what, Workload(LEDGER, replace(start, first_event=place * base.events), end))
        for place, (name, what, start, end) in enumerate(steps)
    )
