"""Windows as plain Python sees them: the same trails, counted and added up by the same code.

Values are what the function would see of a row; sums are those of the trail, so that they have the
same bits as in a kernel.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headgate.compiling.uncompiled import Exact, Int64
from headgate.compiling.version_windows import NO_PLACE, NOT_WALKED
from headgate.state import survey, trail
from headgate.state.ordered import address
from headgate.state.row_history import RowWindow
from headgate.state.types import ColumnType
from headgate.state.version_rows import Trail

Shown = Callable[[Any], Any]  # a version's words -> its columns as attributes
NOT_SUMMED = "a window adds up columns that are numbers or times and not of the key"


class WindowView:
    """The versions of one row that an event sees."""

    __slots__ = ("_given", "_shown", "_trail")

    def __init__(self, kept: Trail, window: RowWindow, slot: int, time: int, shown: Shown) -> None:
        extent, head = window.extent, kept.head(slot)
        first, last = int(head[trail.FIRST]), int(head[trail.NEXT])
        after, until = (time - extent.size, time) if extent.is_timed else (-1, 0)
        if not extent.is_timed:
            first = max(first, last - extent.size)
        self._trail, self._shown = kept, shown
        self._given = (slot, first, last, after, until)

    def __len__(self) -> int:
        return int(self.sums(-1)[trail.VERSIONS])

    def __getitem__(self, place: int) -> Any:
        if not isinstance(place, int):
            raise TypeError(NO_PLACE)
        wanted = place + len(self) if place < 0 else place
        number = self._pick(wanted) if wanted >= 0 else -1
        if number < 0:
            raise IndexError("index out of range")
        return self._row(number)

    def __iter__(self) -> Iterator[Any]:
        number = self._pick(0)
        while number >= 0:
            yield self._row(number)
            number = self._pick(0, number + 1)

    def __getattr__(self, name: str) -> WindowColumnView:
        schema = self._trail.versions.table.schema
        if name not in schema:
            raise AttributeError(
                f"a window of table {self._trail.rows.table.name!r} has no column {name!r}; "
                f"the columns are: {', '.join(schema.names)}; len(window) counts its versions"
            )
        return WindowColumnView(self, name, schema[name].type, self._trail.columns)

    def sums(self, column: int) -> np.ndarray:
        """What the trail adds up over the window, see state/trail.py."""
        found = np.zeros(trail.SUM_WORDS + 1, np.int64)
        survey.survey_one(self._trail.address, *self._given, column, address(found))
        return found

    def _pick(self, wanted: int, first: int | None = None) -> int:
        slot, begin, *rest = self._given
        start = begin if first is None else first
        return int(survey.pick_one(self._trail.address, slot, start, *rest, wanted))

    def _row(self, number: int) -> Any:
        slot = survey.row_of(self._trail.address, self._given[0], number)
        return self._shown(self._trail.versions.words[slot])


class WindowColumnView:
    """One column of the versions of a window."""

    __slots__ = ("_kind", "_name", "_summed", "_view")

    def __init__(
        self, view: WindowView, name: str, kind: ColumnType, summed: tuple[str, ...]
    ) -> None:
        self._view, self._name, self._kind, self._summed = view, name, kind, summed

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(NOT_WALKED)

    def count(self) -> int:
        return Int64(self._sums()[trail.COUNT])

    def sum(self) -> Any:
        return self._total(self._sums())

    def mean(self) -> Any:
        if self._kind.kind == "decimal":
            raise TypeError("the mean of decimals has no exact result; use sum() and count()")
        sums = self._sums()
        count = int(sums[trail.COUNT])
        if self._kind.kind in ("float", "double"):
            return None if count == 0 else self._total(sums) / count
        return None if count == 0 else self._whole(sums) / count

    def min(self) -> Any:
        return self._extreme(trail.MIN)

    def max(self) -> Any:
        return self._extreme(trail.MAX)

    def first(self) -> Any:
        return getattr(self._view[0], self._name) if len(self._view) else None

    def last(self) -> Any:
        return getattr(self._view[-1], self._name) if len(self._view) else None

    def _sums(self) -> np.ndarray:
        if self._name not in self._summed:
            raise TypeError(f"{NOT_SUMMED}; {self._name!r} is a {self._kind}")
        return self._view.sums(self._summed.index(self._name))

    def _total(self, sums: np.ndarray) -> Any:
        if self._kind.kind in ("float", "double"):
            return float(sums[trail.TOTAL : trail.LOW].view(np.float64)[0]) + 0.0
        if self._kind.kind == "decimal":
            return Exact(decimal.Decimal(self._whole(sums)).scaleb(-self._kind.scale))
        return Int64(self._whole(sums))

    def _whole(self, sums: np.ndarray) -> int:
        """The sum of ints, of however many bits."""
        return (int(sums[trail.TOTAL]) << 32) + int(sums[trail.LOW])

    def _extreme(self, which: int) -> Any:
        sums = self._sums()
        if sums[trail.COUNT] == 0:
            return None
        word = sums[which : which + 1]
        if self._kind.kind in ("float", "double"):
            return float(word.view(np.float64)[0])
        if self._kind.kind == "decimal":
            return Exact(decimal.Decimal(int(word[0])).scaleb(-self._kind.scale))
        return Int64(word[0])
