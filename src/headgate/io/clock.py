"""Clocks: what time it is, and how long something took; nothing else in the package asks."""

from __future__ import annotations

import functools
import time
from typing import Protocol

give_way = functools.partial(time.sleep, 0)  # lets another thread that waits for it run


class Clock(Protocol):
    """A source of time that a test can hold still."""

    def time_us(self) -> int:
        """Microseconds since 1970-01-01 UTC; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever grow, for durations."""
        ...

    def busy(self) -> float:
        """Seconds that this thread has had a processor: what work costs on a busy machine, too."""
        ...


class RealClock:
    """The machine's own clock."""

    def time_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def busy(self) -> float:
        return time.thread_time()
