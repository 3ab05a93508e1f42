"""Limits: what one request may cost the server, whoever sends it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds on bodies, queries, answers and clients that do not read what they asked for."""

    body_bytes_max: int = 1 << 20
    query_seconds_max: float = 30.0
    rows_max: int = 100_000
    query_memory_bytes: int = 1 << 30
    query_workers: int = 4  # processes for queries: as many run at once
    queries_waiting_max: int = 256
    answer_bytes_max: int = 64 << 20
    unread_bytes_max: int = 512 << 20  # of all answers that clients have not read yet
    calls_waiting_max: int = 10_000
    followers_max: int = 1000
    head_bytes_max: int = 16 << 10
    headers_max: int = 100
    head_seconds_max: float = 8.0  # from the first byte of a request, or a connection, to its body
    body_seconds_max: float = 20.0
    idle_seconds_max: float = 75.0  # longer than clients keep a connection: they are who ends it
    stall_seconds_max: float = 30.0  # how long a client may read nothing of its answer
    connections_max: int = 4000
    connections_each_max: int = 2000  # of one address

    def __post_init__(self) -> None:
        for name in ("body_bytes_max", "query_seconds_max", "rows_max", "query_memory_bytes"):
            value = getattr(self, name)
            if not 0 < value < math.inf:  # nan is neither
                raise InputError(f"the limit {name} is {value}; it must be a number above 0")

    @property
    def query_memory(self) -> str:
        """The memory of a query, as DuckDB reads it."""
        return f"{self.query_memory_bytes / (1 << 20):g} MiB"
