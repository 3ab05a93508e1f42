"""Prometheus: what an engine counts, in the text format that Prometheus reads.

It is at /metrics of the HTTP server; without one, `hg.prometheus(engine, "headgate.prom")` writes a
file for the textfile collector of the node exporter, whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headgate.engine.metrics import Metrics, NodeMetrics, StreamMetrics, Times, bound_seconds
from headgate.io import RealDisk, replace_file

if TYPE_CHECKING:
    from headgate.engine.engine import Engine

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
    if metrics.nodes:
        yield from _node_lines(metrics.nodes)


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


def _node_lines(nodes: Mapping[str, NodeMetrics]) -> Iterator[str]:
    """What nodes of dataflows did, and what waits for them."""
    for name, kind, what, which in (
        ("batches_total", "counter", "Batches that a node is done with.", "batches"),
        ("rows_total", "counter", "Rows of its batches.", "rows"),
        ("rows_out_total", "counter", "Rows that it gave.", "rows_out"),
        ("aborts_total", "counter", "Batches that it aborted for good.", "aborts"),
        ("retries_total", "counter", "Tries again of batches that it aborted.", "retries"),
        ("restarts_total", "counter", "Runs again over what a call had changed.", "restarts"),
        ("seconds_total", "counter", "Seconds in its function or transactions.", "seconds"),
        ("queue_seconds_total", "counter", "Seconds its batches waited.", "queue_seconds"),
        ("waiting", "gauge", "Whole batches that wait for it.", "waiting"),
    ):
        found = [({"node": node}, getattr(one, which)) for node, one in nodes.items()]
        yield from family(f"headgate_node_{name}", kind, what, found)


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
