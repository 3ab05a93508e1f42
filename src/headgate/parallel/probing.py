"""Probing: when a batch runs serially for no other reason than to learn what a transaction costs.

What a transaction costs can be told from serial batches only. While batches run in parallel, it is
asked again after so many of them, and as soon as some in a row go clearly faster or slower than
they did: a single one may just have been held up.
"""

from __future__ import annotations

PROBE_BATCHES = 64
CHANGE_MIN = 1.5
CHANGED_BATCHES = 3


class Probing:
    """Keeps count of the parallel batches since the last serial one."""

    def __init__(self) -> None:
        self._batches = 0
        self._pace_ns: float | None = None  # of a transaction, when they began to run in parallel
        self._changed = 0  # the last so many batches
        self.is_due = False

    def learnt(self) -> None:
        """A serial batch was measured."""
        self._batches, self._pace_ns, self._changed, self.is_due = 0, None, 0, False

    def ran(self, pace_ns: float) -> None:
        """A parallel batch took so long for each transaction."""
        self._batches += 1
        if self._pace_ns is None:
            self._pace_ns = pace_ns
        slower, faster = self._pace_ns * CHANGE_MIN, self._pace_ns / CHANGE_MIN
        self._changed = 0 if faster <= pace_ns <= slower else self._changed + 1
        self.is_due = self._batches >= PROBE_BATCHES or self._changed >= CHANGED_BATCHES
