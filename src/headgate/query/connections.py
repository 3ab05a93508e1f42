"""Connections to DuckDB, which are kept: to make one takes longer than most queries.

Nothing of a query stays in them. Invariant: what was made before a fork is neither used nor ended
in the child: threads that it waits for are not there, and DuckDB would end the process with it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb

_KEPT_MAX = 8
_made: weakref.WeakSet[Any] = weakref.WeakSet()
_kept: weakref.WeakSet[KeptConnections] = weakref.WeakSet()


def connect(settings: Mapping[str, Any] | None = None) -> Any:
    """A new DuckDB in memory, with nothing in it."""
    connection = duckdb.connect(":memory:", config=dict(settings or {}))
    _made.add(connection)
    return connection


class KeptConnections:
    """Connections that are kept between queries; one of which the query failed is closed."""

    def __init__(self) -> None:
        self._is_closed = False
        self.forget()
        _kept.add(self)

    @contextmanager
    def one(self, settings: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """A connection with these settings."""
        wanted = dict(settings or {})
        connection = self._take(wanted)
        if connection is None:
            connection = connect(wanted)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._is_closed and len(self._free) < _KEPT_MAX:
                self._free.append((wanted, connection))
                return
        connection.close()

    def close(self) -> None:
        """Close those that are kept; those in use are closed when they come back."""
        with self._lock:
            self._is_closed = True
            for _, connection in self._free:
                connection.close()
            self._free.clear()

    def forget(self) -> None:
        """Begin with none, and close none."""
        self._lock = threading.Lock()
        self._free: list[tuple[dict[str, Any], Any]] = []

    def _take(self, settings: dict[str, Any]) -> Any:
        with self._lock:
            for place, (kept, _) in enumerate(self._free):
                if kept == settings:
                    return self._free.pop(place)[1]
        return None


# Of the process, for what is asked without any rows: what a query names, and what DuckDB knows.
shared = KeptConnections()
atexit.register(shared.close)  # what is left to the end of the interpreter, DuckDB calls a leak


def _leave_all_to_parent() -> None:
    for connection in _made:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))  # so that nothing ever ends it
    for connections in _kept:
        connections.forget()


os.register_at_fork(after_in_child=_leave_all_to_parent)
