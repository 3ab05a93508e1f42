"""Scratch: memory that batch after batch uses again.

The first touch of a page can cost more than all the work on it. So arrays that are of no use after
their batch lie in one piece of memory that stays; what did not fit is asked for as usual, and from
the next batch on there is room for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WORD_BYTES = 8
_LINE_WORDS = 8
# Arrays of one length that are gone through side by side must not all begin at the same place of a
# page: they would push each other out of the first cache.
_STAGGER_WORDS = 11 * _LINE_WORDS


class Scratch:
    """Gives out arrays that hold until the next `begin`."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.int64)
        self._asked = 0

    def begin(self) -> None:
        """All arrays that were given out are free again."""
        if self._asked > len(self._block):
            self._block = np.empty(self._asked + self._asked // 4, np.int64)
        self._asked = 0

    def empty(self, count: int, dtype: Any = np.int64) -> np.ndarray:
        """An array of so many values, whatever they are."""
        size = count * np.dtype(dtype).itemsize
        words = -(-size // _WORD_BYTES)
        first = self._asked
        self._asked += -(-words // _LINE_WORDS) * _LINE_WORDS + _STAGGER_WORDS
        if self._asked > len(self._block):
            return np.empty(count, dtype)
        found = self._block[first : first + words]
        return found if dtype is np.int64 else found.view(dtype)[:count]

    def full(self, count: int, value: int, dtype: Any = np.int64) -> np.ndarray:
        """An array of so many times one value."""
        found = self.empty(count, dtype)
        found.fill(value)
        return found

    def zeros(self, count: int) -> np.ndarray:
        return self.full(count, 0)
