"""Metrics: what an engine counts of each stream, batch by batch, in memory that does not grow.

Nothing is counted event by event in the interpreter: whoever makes a batch's results counts them
on the way. Times go into buckets that grow by a fifth, so a quantile is right to a tenth.

In the text format that Prometheus reads they are at /metrics of the HTTP server; without it,
`hg.prometheus(engine, "headgate.prom")` writes a file for the textfile collector of the node
exporter, whole or not at all.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from headgate.errors import not_among
from headgate.execution.run import LATE, OUTCOMES, REJECTED
from headgate.io import RealDisk, replace_file

if TYPE_CHECKING:
    from headgate.engine.engine import Engine


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


_BOUNDS = range(24, 112, 8)  # the buckets that are shown, by fours: 64 µs to 67 s

Samples = Iterable[tuple[Mapping[str, str], float]]


def prometheus(engine: Engine | Metrics, path: str | os.PathLike[str] | None = None) -> str:
    """The counts of an engine in Prometheus' text format, also written to a file if one is named.

    >>> import headgate as hg
    >>> with hg.open(None) as engine:
    ...     print(hg.prometheus(engine).splitlines()[2])
    headgate_epoch 0
    """
    metrics = engine if isinstance(engine, Metrics) else engine.metrics()
    text = "\n".join(metric_lines(metrics)) + "\n"
    if path is not None:
        replace_file(RealDisk(), os.path.abspath(path), text.encode())
    return text


def metric_lines(metrics: Metrics) -> Iterator[str]:
    """Everything that an engine counts, line by line."""
    yield from family("headgate_epoch", "gauge", "The newest epoch.", [({}, metrics.epoch)])
    rows = [({"table": name}, count) for name, count in metrics.rows.items()]
    yield from family("headgate_rows", "gauge", "Rows of a table.", rows)
    yield from engine_lines(metrics)


def _expiry_lines(metrics: Metrics) -> Iterator[str]:
    for name, kind, what, counts in (
        ("headgate_expired_total", "counter", "Rows that expired.", metrics.expired),
        (
            "headgate_overdue",
            "gauge",
            "Rows that stay for those that refer to them.",
            metrics.overdue,
        ),
    ):
        if counts:
            found = [({"table": table}, count) for table, count in counts.items()]
            yield from family(name, kind, what, found)


def engine_lines(metrics: Metrics) -> Iterator[str]:
    """What an engine counts beside its epoch and rows."""
    whole: tuple[tuple[str, str, str, float], ...] = (
        ("headgate_epochs_total", "counter", "Epochs committed.", metrics.epochs),
        ("headgate_retries_total", "counter", "Transactions run again.", metrics.retries),
        ("headgate_log_bytes_total", "counter", "Bytes of log written.", metrics.log_bytes),
        ("headgate_held", "gauge", "Events held back by watermarks.", metrics.held),
    )
    for name, kind, what, value in whole:
        yield from family(name, kind, what, [({}, value)])
    yield from _expiry_lines(metrics)
    for name, what, times in (
        ("headgate_log_seconds", "Writing a log record.", metrics.log),
        ("headgate_sync_seconds", "Waiting until an epoch is durable.", metrics.sync),
        ("headgate_snapshot_seconds", "Making a snapshot.", metrics.snapshots),
    ):
        yield from head(name, "histogram", what)
        yield from histogram(name, {}, times)
    yield from _stream_lines(list(metrics.streams.values()))


def _stream_lines(streams: list[StreamMetrics]) -> Iterator[str]:
    outcomes = [
        ({"stream": one.name, "outcome": outcome}, count)
        for one in streams
        for outcome, count in one.outcomes.items()
    ]
    yield from family("headgate_events_total", "counter", "Events by outcome.", outcomes)
    reasons = [
        ({"stream": one.name, "reason": reason}, count)
        for one in streams
        for reason, count in one.reasons.items()
    ]
    what = "Events that did not commit, by reason."
    yield from family("headgate_reasons_total", "counter", what, reasons)
    plain = (
        ("headgate_batches_total", "counter", "Batches of a stream.", "batches"),
        ("headgate_flushes_total", "counter", "Flushes of a stream.", "flushes"),
        ("headgate_stream_log_bytes_total", "counter", "Bytes of log of a stream.", "log_bytes"),
        ("headgate_stream_held", "gauge", "Events a stream holds back.", "held"),
        ("headgate_lag_seconds", "gauge", "From a stream's youngest event to now.", "lag_seconds"),
    )
    for name, kind, what, which in plain:
        found = [({"stream": one.name}, one[which]) for one in streams if one[which] is not None]
        yield from family(name, kind, what, found)
    for name, what, which in (
        ("headgate_watermark_seconds", "A stream's watermark, in seconds since 1970.", "watermark"),
        ("headgate_latest_seconds", "The time of its youngest event.", "latest"),
    ):
        moments = [(one.name, one[which]) for one in streams if one[which] is not None]
        seconds = [({"stream": label}, moment.timestamp()) for label, moment in moments]
        yield from family(name, "gauge", what, seconds)
    name = "headgate_step_seconds"
    yield from head(name, "histogram", "The steps of a batch: order, execute, log, sync.")
    for one in streams:
        for step, times in one.steps.items():
            yield from histogram(name, {"stream": one.name, "step": step}, times)


def histogram(name: str, labels: Mapping[str, str], times: Times) -> Iterator[str]:
    """Times as a histogram of Prometheus."""
    reached, place = 0, 0
    for bound in _BOUNDS:
        reached += sum(times.buckets[place : bound + 1])
        place = bound + 1
        words = {**labels, "le": number(round(bound_seconds(bound), 9))}
        yield line(f"{name}_bucket", words, reached)
    yield line(f"{name}_bucket", {**labels, "le": "+Inf"}, times.count)
    yield line(f"{name}_sum", labels, times.seconds)
    yield line(f"{name}_count", labels, times.count)


def family(name: str, kind: str, what: str, samples: Samples) -> Iterator[str]:
    """A metric with all its samples."""
    yield from head(name, kind, what)
    for labels, value in samples:
        yield line(name, labels, value)


def head(name: str, kind: str, what: str) -> Iterator[str]:
    """The two lines that begin a metric."""
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    """One sample."""
    text = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels.items())
    return f"{name}{{{text}}} {number(value)}" if text else f"{name} {number(value)}"


def number(value: Any) -> str:
    """A value as Prometheus reads it."""
    return str(value) if isinstance(value, int) else repr(float(value))


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
