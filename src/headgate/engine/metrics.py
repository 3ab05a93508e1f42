"""Metrics: what an engine counts of each stream, batch by batch, in memory that does not grow.

Nothing is counted event by event in the interpreter: whoever makes a batch's results counts them
on the way. Times go into buckets that grow by a fifth, so a quantile is right to a tenth.
"""

from __future__ import annotations

import datetime
import logging
import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from headgate.errors import not_among
from headgate.execution.run import LATE, OUTCOMES, REJECTED

STEPS = ("order", "execute", "log", "sync")
REASONS_MAX = 100  # further reasons of a stream are counted together
OTHER_REASONS = "other reasons"
SHARE_WARNED = 0.01  # of the last events of a stream late or rejected
SHARE_EVENTS = 10_000
SHARE_EVENTS_LEAST = 100  # a share of fewer says little
SHARE_LEAST = 10  # fewer bad ones than this may be an accident

_PER_OCTAVE = 4
_FIRST_SECONDS = 1e-6
_BUCKETS = 36 * _PER_OCTAVE  # up to 19 hours
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LOG = logging.getLogger("headgate.streams")


class _AsMapping(Mapping[str, Any]):
    """The fields of a dataclass, also by their names in brackets and as a dict of plain values."""

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    if not TYPE_CHECKING:  # a type checker finds an unknown name itself, unless it sees this

        def __getattr__(self, name: str) -> Any:
            among = not_among(name, self, "attributes")
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; {among}")

    def __contains__(self, name: object) -> bool:
        return any(one.name == name for one in fields(self))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[str]:
        return (one.name for one in fields(self))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(fields(self))  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        """Everything as dicts and plain values, for JSON or a log."""
        return {name: _plain(self[name]) for name in self}


def _plain(value: Any) -> Any:
    if isinstance(value, _AsMapping):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value.isoformat() if isinstance(value, datetime.datetime) else value


@dataclass(frozen=True, repr=False, eq=False)
class Times(_AsMapping):
    """How often something was done, and how many seconds it took."""

    count: int
    seconds: float  # all together
    p50: float
    p95: float
    p99: float
    most: float
    buckets: tuple[int, ...] = field(default=(), compare=False)

    def as_dict(self) -> dict[str, Any]:
        return {name: self[name] for name in self if name != "buckets"}

    def __repr__(self) -> str:
        if not self.count:
            return "<never>"
        shown = (f"{name} {1000 * self[name]:.3g}" for name in ("p50", "p95", "p99", "most"))
        return f"<{self.count} times: {', '.join(shown)} ms>"


@dataclass(frozen=True, repr=False, eq=False)
class StreamMetrics(_AsMapping):
    """What a stream did since the engine was opened, and where it stands."""

    name: str
    events: int
    batches: int
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    held: int
    watermark: datetime.datetime | None  # of several queries the one that is furthest behind
    latest: datetime.datetime | None  # the time of the youngest event
    lag_seconds: float | None  # from the youngest event to now
    flushes: int
    log_bytes: int
    steps: Mapping[str, Times]

    def __repr__(self) -> str:
        outcomes = ", ".join(f"{count} {name}" for name, count in self.outcomes.items() if count)
        held = f", {self.held} held" if self.held else ""
        return f"<stream {self.name}: {self.events} events: {outcomes or 'none yet'}{held}>"


@dataclass(eq=False)
class NodeMetrics(_AsMapping):
    """What a node of a dataflow did since the engine was opened.

    `rows` are those of its batches, each once, however often it was tried; `seconds` is the time
    that its function, or its transactions, took, retries with it; `queue_seconds` the time that its
    batches were whole and waited for it; `waiting` how many are whole on something that it takes
    and not done by it, those that wait for another input with them.
    """

    batches: int = 0
    rows: int = 0
    rows_out: int = 0
    aborts: int = 0
    retries: int = 0
    restarts: int = 0
    seconds: float = 0.0
    queue_seconds: float = 0.0
    waiting: int = 0


@dataclass(frozen=True, repr=False, eq=False)
class Metrics(_AsMapping):
    """What an engine did since it was opened, all in all and of each stream."""

    epoch: int
    epochs: int  # committed since the engine was opened
    retries: int
    held: int  # by all inlets, also those that no stream of this program feeds
    rows: Mapping[str, int]
    expired: Mapping[str, int]  # by table whose rows expire: how many did
    overdue: Mapping[str, int]  # and how many stay, since other rows refer to them
    log_bytes: int
    log: Times
    sync: Times
    snapshots: Times
    streams: Mapping[str, StreamMetrics]
    nodes: Mapping[str, NodeMetrics] = field(default_factory=dict)  # of dataflows

    def of_flows(self, nodes: Mapping[str, NodeMetrics], open_rows: Mapping[str, int]) -> Metrics:
        """With what nodes of dataflows did, and the rows in the open batches of sources."""
        streams = {name: replace(one, held=open_rows.get(name, one.held))
                   for name, one in self.streams.items()}  # fmt: skip
        held = self.held + sum(open_rows.values())
        return replace(self, held=held, streams=streams, nodes=nodes)

    def __repr__(self) -> str:
        names = ", ".join(self.streams) or "none yet"
        return f"<metrics at epoch {self.epoch}: streams {names}>"


class Stopwatch:
    """Times of one thing, in buckets; any thread may note one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * _BUCKETS
        self._count = 0
        self._seconds = 0.0
        self._most = 0.0

    def note(self, seconds: float) -> None:
        place = 0
        if seconds > _FIRST_SECONDS:
            place = 1 + int(math.log2(seconds / _FIRST_SECONDS) * _PER_OCTAVE)
        with self._lock:
            self._counts[min(place, _BUCKETS - 1)] += 1
            self._count += 1
            self._seconds += seconds
            self._most = max(self._most, seconds)

    def times(self) -> Times:
        """What was noted so far."""
        with self._lock:
            counts, count, most = tuple(self._counts), self._count, self._most
            total = self._seconds
        p50, p95, p99 = (min(_quantile(counts, count, one), most) for one in (0.5, 0.95, 0.99))
        return Times(count, total, p50, p95, p99, most, counts)


def bound_seconds(place: int) -> float:
    """The upper end of a bucket."""
    return float(_FIRST_SECONDS * 2.0 ** (place / _PER_OCTAVE))


def _quantile(counts: Sequence[int], count: int, share: float) -> float:
    """The middle of the bucket, by its logarithm, in which this share of all is reached."""
    reached = 0
    for place, here in enumerate(counts):
        reached += here
        if here and reached >= share * count:
            return bound_seconds(place) / float(2.0 ** (0.5 / _PER_OCTAVE))
    return 0.0


class Tally:
    """How many events of one batch had each outcome, and each reason for one."""

    def __init__(self) -> None:
        self.outcomes: list[int] = [0] * len(OUTCOMES)
        self.reasons: dict[tuple[int, str], int] = {}  # by outcome and reason

    def add(self, outcome: int, count: int, reason: str | None = None) -> None:
        self.outcomes[outcome] += count
        if reason is not None:
            self.reasons[outcome, reason] = self.reasons.get((outcome, reason), 0) + count

    @property
    def events(self) -> int:
        return sum(self.outcomes)

    def commonest(self, outcome: int) -> str:
        """The reason that most events of this outcome have; each of them has one."""
        mine = {reason: count for (one, reason), count in self.reasons.items() if one == outcome}
        return max(mine, key=mine.__getitem__)


class Meter:
    """The counts of one stream; noted under the engine's lock, read by any thread."""

    def __init__(self, name: str, *, is_source: bool = False) -> None:
        self.name = name
        self._is_source = is_source  # of a dataflow
        self.batches: int = 0
        self.flushes: int = 0
        self.log_bytes: int = 0
        self.inlets: set[str] = set()  # where its events come in
        self.latest_us: int | None = None
        self.steps: dict[str, Stopwatch] = {step: Stopwatch() for step in STEPS}
        self._outcomes = [0] * len(OUTCOMES)
        self._reasons: dict[str, int] = {}
        self._commonest: dict[int, str] = {}  # by outcome: the reason most given in a batch
        self._last: deque[tuple[int, int, int]] = deque()  # batches: events, late, rejected
        self._shares = [0, 0, 0]  # their sums
        self._is_warned = False

    def note_batch(
        self,
        tally: Tally,
        latest_us: int | None = None,
        times: tuple[float, float, float] | None = None,
        *,
        is_flush: bool = False,
    ) -> None:
        """Add what was counted of a batch.

        The times are when it began, when it was in order and when it had run.
        """
        if times is not None:
            began, ordered, executed = times
            self.steps["order"].note(ordered - began)
            self.steps["execute"].note(executed - ordered)
        self.batches += 1
        self.flushes += is_flush
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("stream %r: a batch of %d results", self.name, tally.events)
        if latest_us is not None:
            self.latest_us = latest_us if self.latest_us is None else max(self.latest_us, latest_us)
        for outcome, count in enumerate(tally.outcomes):
            self._outcomes[outcome] += count
        for (_, reason), count in tally.reasons.items():
            self._note_reason(reason, count)
        for outcome in (LATE, REJECTED):
            if tally.outcomes[outcome]:
                self._commonest[outcome] = tally.commonest(outcome)
        self._note_share(tally.events, tally.outcomes[LATE], tally.outcomes[REJECTED])

    def _note_reason(self, reason: str, count: int) -> None:
        if reason not in self._reasons and len(self._reasons) >= REASONS_MAX:
            reason = OTHER_REASONS
        self._reasons[reason] = self._reasons.get(reason, 0) + count

    def _note_share(self, events: int, late: int, rejected: int) -> None:
        """Warn once when too many of the last events are late or rejected, until it is better."""
        if not events:
            return
        self._last.append((events, late, rejected))
        for place, count in enumerate((events, late, rejected)):
            self._shares[place] += count
        while len(self._last) > 1 and self._shares[0] - self._last[0][0] >= SHARE_EVENTS:
            for place, count in enumerate(self._last.popleft()):
                self._shares[place] -= count
        total, bad = self._shares[0], self._shares[1] + self._shares[2]
        if self._is_warned:
            self._is_warned = bad > total * SHARE_WARNED / 2
        elif total < SHARE_EVENTS_LEAST or bad < SHARE_LEAST:
            return
        elif bad > total * SHARE_WARNED:
            self._is_warned = True
            self._warn(total, bad)

    def _warn(self, total: int, bad: int) -> None:
        word, advice = "rejected", "see the reasons in engine.metrics() and in the results"
        if self._shares[1] >= self._shares[2]:
            word, advice = "late", "give the stream a longer watermark, or late='append'"
            if self.flushes:  # which no watermark is long enough for
                advice = (
                    "a flush (of idle=, too) moves the watermark to the youngest event, so flush "
                    "only when no older ones can come any more, or use late='append'"
                )
        reason = self._commonest[LATE if word == "late" else REJECTED]
        found = "carry= helps to find them and send them again"
        if self._is_source:
            found = "they are in the results, under the name of the stream"
            if word == "late":
                advice = "hand rows in by their time, or cut the stream into batches by rows"
        LOG.warning(
            "stream %r: %.1f %% of the last %d events are late or rejected, most of them %s "
            "(%s): %s. They did not run; %s.",
            self.name, 100 * bad / total, total, word, reason, advice, found,
        )  # fmt: skip

    def outcomes(self) -> dict[str, int]:
        return dict(zip(OUTCOMES, self._outcomes, strict=True))

    def reasons(self) -> dict[str, int]:
        """How often each reason was given, the commonest first."""
        return dict(sorted(self._reasons.items(), key=lambda one: -one[1]))


def stream_metrics(meter: Meter, held: int, watermark_us: int | None, now_us: int) -> StreamMetrics:
    """What a meter shows at this moment."""
    outcomes = meter.outcomes()
    latest = meter.latest_us
    return StreamMetrics(
        name=meter.name,
        events=sum(outcomes.values()),
        batches=meter.batches,
        outcomes=outcomes,
        reasons=meter.reasons(),
        held=held,
        watermark=moment(watermark_us),
        latest=moment(latest),
        lag_seconds=None if latest is None else (now_us - latest) / 1e6,
        flushes=meter.flushes,
        log_bytes=meter.log_bytes,
        steps={step: watch.times() for step, watch in meter.steps.items()},
    )


def moment(time_us: int | None) -> datetime.datetime | None:
    """Microseconds since 1970 as a moment; None where it is none that Python knows."""
    if time_us is None:
        return None
    try:
        return _EPOCH + datetime.timedelta(microseconds=time_us)
    except OverflowError:
        return None
