"""Limits: what one request may cost the server, whoever sends it."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds on bodies, queries, answers and clients that do not read what they asked for."""

    body_bytes_max: int = 1 << 20
    query_seconds_max: float = 30.0
    rows_max: int = 100_000
    query_memory: str = "1GB"
    queries_waiting_max: int = 256
    calls_waiting_max: int = 10_000
    followers_max: int = 1000
    stall_seconds_max: float = 60.0  # how long a client may read nothing of its answer

    def __post_init__(self) -> None:
        for name in ("body_bytes_max", "query_seconds_max", "rows_max"):
            if getattr(self, name) <= 0:
                raise InputError(f"the limit {name} is {getattr(self, name)}; it must be above 0")
