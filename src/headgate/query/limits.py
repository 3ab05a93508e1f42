"""Limits: how much a query may answer, and a hand on it while it runs, to stop it.

A limit holds for the thread that set it, and for every query that runs in it meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyarrow as pa

from headgate.errors import LimitError

_current: ContextVar[Limit | None] = ContextVar("limit", default=None)


class Limit:
    """The bounds of one query; `stop` may be called from any thread, also before it runs.

    DuckDB holds to them as far as it can: not within one call of a function over one value. Queries
    of strangers run in a process of their own for that reason (web/worker.py).
    """

    def __init__(
        self,
        rows_max: int | None = None,
        memory: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.rows_max = rows_max
        self.memory = memory
        self.threads = threads
        self._lock = threading.Lock()
        self._connection: Any = None
        self._reason: str | None = None

    def stop(self, reason: str) -> None:
        """End the query; whoever runs it gets a LimitError with this reason."""
        with self._lock:
            self._reason = self._reason or reason
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def watching(self, connection: Any) -> Iterator[None]:
        """While a query runs on this connection, `stop` interrupts it."""
        with self._lock:
            self.check()
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def check(self) -> None:
        """LimitError when the query was told to stop."""
        if self._reason is not None:
            raise LimitError(self._reason)

    def read(self, reader: pa.RecordBatchReader) -> pa.Table:
        """All that a query found, as long as that is not too much."""
        batches, count = [], 0
        for batch in reader:
            self.check()
            count += batch.num_rows
            if self.rows_max is not None and count > self.rows_max:
                raise LimitError(
                    f"the query finds more than {self.rows_max:,} rows: ask for less; add LIMIT"
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=reader.schema)


def current_limit() -> Limit | None:
    """The limit of the query that this thread is about to run."""
    return _current.get()


@contextmanager
def limited(limit: Limit) -> Iterator[None]:
    """Queries that this thread runs inside are held to the limit."""
    token = _current.set(limit)
    try:
        yield
    finally:
        _current.reset(token)
