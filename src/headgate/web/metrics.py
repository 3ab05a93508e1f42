"""Metrics: what the server counts, in the text format of Prometheus.

All of it is counted in the one thread of the event loop, so nothing is locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
        bounds = [*map(_number, self._bounds), "+Inf"]
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            yield _line(f"{name}_bucket", {**labels, "le": bound}, total)
        yield _line(f"{name}_sum", labels, self._sum)
        yield _line(f"{name}_count", labels, total)


class Metrics:
    """The counts of one server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._latency: dict[str, Histogram] = {}
        self._outcomes: Counter[tuple[str, str]] = Counter()
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

    def text(self, epoch: int, tables: Mapping[str, int]) -> str:
        """Everything that was counted; the epoch and the rows are those of this moment."""
        lines: list[str] = []
        lines += _family("headgate_epoch", "gauge", "The newest durable epoch.", [({}, epoch)])
        rows = [({"table": name}, count) for name, count in tables.items()]
        lines += _family("headgate_rows", "gauge", "Rows of a table.", rows)
        outcomes = [
            ({"transaction": name, "outcome": outcome}, count)
            for (name, outcome), count in sorted(self._outcomes.items())
        ]
        what = "Calls over HTTP by outcome."
        lines += _family("headgate_calls_total", "counter", what, outcomes)
        what = "Clients that follow results now."
        lines += _family("headgate_followers", "gauge", what, [({}, self.followers)])
        requests = [
            ({"route": route, "status": str(status)}, count)
            for (route, status), count in sorted(self._requests.items())
        ]
        lines += _family("headgate_requests_total", "counter", "Requests.", requests)
        lines += self._histograms()
        return "\n".join(lines) + "\n"

    def _histograms(self) -> Iterator[str]:
        name = "headgate_request_seconds"
        yield from _head(name, "histogram", "From the first byte of a request to its last answer.")
        for route, latency in sorted(self._latency.items()):
            yield from latency.lines(name, {"route": route})
        name = "headgate_call_seconds"
        yield from _head(
            name, "histogram", "A call in the engine, with the sync of its log record."
        )
        yield from self.call_seconds.lines(name, {})


def _family(
    name: str, kind: str, what: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield from _head(name, kind, what)
    for labels, value in samples:
        yield _line(name, labels, value)


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    text = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels.items())
    return f"{name}{{{text}}} {_number(value)}" if text else f"{name} {_number(value)}"


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
