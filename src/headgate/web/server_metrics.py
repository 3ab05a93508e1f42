"""Metrics: what the server counts, in the text format of Prometheus.

All of it is counted in the one thread of the event loop, so nothing is locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from headgate.engine.metrics import Metrics
from headgate.engine.prometheus import engine_lines, family, head, line, number

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of values by upper bound, with their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        total = 0
        bounds = [*map(number, self._bounds), "+Inf"]
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            yield line(f"{name}_bucket", {**labels, "le": bound}, total)
        yield line(f"{name}_sum", labels, self._sum)
        yield line(f"{name}_count", labels, total)


class ServerMetrics:
    """The counts of one server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._latency: dict[str, Histogram] = {}
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._replays: Counter[str] = Counter()
        self.call_seconds = Histogram(BUCKETS)
        self.followers = 0

    def note_request(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        latency = self._latency.get(route)
        if latency is None:
            latency = self._latency[route] = Histogram(BUCKETS)
        latency.observe(seconds)

    def note_call(self, transaction: str, outcome: str, seconds: float) -> None:
        self._outcomes[transaction, outcome] += 1
        self.call_seconds.observe(seconds)

    def note_replay(self, transaction: str) -> None:
        """A call with a key was answered with the result it had before."""
        self._replays[transaction] += 1

    def text(self, epoch: int, tables: Mapping[str, int], engine: Metrics | None = None) -> str:
        """Everything that was counted; the epoch and the rows are those of this moment."""
        lines: list[str] = []
        lines += family("headgate_epoch", "gauge", "The newest durable epoch.", [({}, epoch)])
        rows = [({"table": name}, count) for name, count in tables.items()]
        lines += family("headgate_rows", "gauge", "Rows of a table.", rows)
        outcomes = [
            ({"transaction": name, "outcome": outcome}, count)
            for (name, outcome), count in sorted(self._outcomes.items())
        ]
        what = "Calls over HTTP by outcome."
        lines += family("headgate_calls_total", "counter", what, outcomes)
        replays = [({"transaction": name}, count) for name, count in sorted(self._replays.items())]
        what = "Calls with a key that had been run before, answered again."
        lines += family("headgate_replayed_calls_total", "counter", what, replays)
        what = "Clients that follow results now."
        lines += family("headgate_followers", "gauge", what, [({}, self.followers)])
        requests = [
            ({"route": route, "status": str(status)}, count)
            for (route, status), count in sorted(self._requests.items())
        ]
        lines += family("headgate_requests_total", "counter", "Requests.", requests)
        lines += self._histograms()
        if engine is not None:
            lines += engine_lines(engine)
        return "\n".join(lines) + "\n"

    def _histograms(self) -> Iterator[str]:
        name = "headgate_request_seconds"
        yield from head(name, "histogram", "From the first byte of a request to its last answer.")
        for route, latency in sorted(self._latency.items()):
            yield from latency.lines(name, {"route": route})
        name = "headgate_call_seconds"
        yield from head(name, "histogram", "A call in the engine, with the sync of its log record.")
        yield from self.call_seconds.lines(name, {})
