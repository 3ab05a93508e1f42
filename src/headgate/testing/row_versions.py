"""Versions: what the oracle keeps of rows, and windows over them, by looking at every version.

It keeps no tree: a window is the list of its versions, and a sum adds floats in the order that is
promised: whole groups of eight, and of eight of those, are added up first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgate.state.row_history import NUMBER, TIME, Extent, versions_of
from headgate.state.table import Access, Table
from headgate.state.types import ColumnType
from headgate.testing.records import Key, Record, View
from headgate.testing.scalars import Int64, place, seen, within

GROUP = 8
SUMMED = ("int", "bigint", "float", "double", "decimal", "timestamp", "date")


def keep_version(
    table: Table, key: Key, record: Record, time: int, rows: dict[Key, Record]
) -> None:
    """Add a row, as a transaction left it, to the versions there are; drop what is too old."""
    versions = versions_of(table)
    if table.history is None or versions is None:
        return
    kept, extent = history_of(key, rows), table.history.extent
    if not record.alive:
        for one in kept:
            del rows[(*key, one.values[NUMBER])]
        return
    number = kept[-1].values[NUMBER] + 1 if kept else 0
    values = {**record.values, NUMBER: number, TIME: time}
    made = Record(versions.schema, {name: values[name] for name in versions.schema.names})
    rows[(*key, number)] = made
    kept.append(made)
    while _is_too_old(kept, extent):
        del rows[(*key, kept.pop(0).values[NUMBER])]


def _is_too_old(kept: Sequence[Record], extent: Extent) -> bool:
    """Whether the first of some versions is beyond what is kept."""
    if not extent.is_timed:
        return len(kept) > extent.size
    latest = max(one.values[TIME] for one in kept)
    return bool(kept[0].values[TIME] <= latest - extent.size)


def history_of(key: Key, rows: Mapping[Key, Record]) -> list[Record]:
    """The versions of one row in the order in which they were written."""
    return [rows[one] for one in sorted(rows) if one[:-1] == key]


def event_time(table: Table, event: Any, values: Mapping[str, Any]) -> int:
    """The time of an event for a table with history."""
    name = None if table.history is None else table.history.time_column(event, "oracle")
    return 0 if name is None else int(values[name])


class SeenWindow:
    """The versions of a row that an event sees."""

    def __init__(self, access: Access, key: Key, time: int, rows: Mapping[Key, Record]) -> None:
        if access.window is None:
            raise ValueError("this access names no window")
        kept, extent = history_of(key, rows), access.window.extent
        if extent.is_timed:
            low = time - extent.size
            kept = [one for one in kept if low < one.values[TIME] <= time]
        else:
            kept = kept[-extent.size :]
        self._kept, self._table = kept, access.table

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, which: int) -> View:
        if not isinstance(which, int):
            raise TypeError(
                "a window gives a version by a whole number, as window[-1], and has no slices: "
                "write a loop"
            )
        return View(self._kept[which], (), read_only=True)

    def __iter__(self) -> Iterator[View]:
        return iter([View(one, (), read_only=True) for one in self._kept])

    def __getattr__(self, name: str) -> SeenColumn:
        versions = versions_of(self._table)
        if versions is None or name not in versions.schema:
            raise AttributeError(f"no column {name!r}")
        is_summed = name in self._table.schema and name not in self._table.key
        kind = versions.schema[name].type
        return SeenColumn(self._kept, name, kind, is_summed and kind.kind in SUMMED)


class SeenColumn:
    """One column of the versions of a window."""

    def __init__(
        self, kept: Sequence[Record], name: str, kind: ColumnType, is_summed: bool
    ) -> None:
        self._kept, self._name, self._kind, self._is_summed = kept, name, kind, is_summed

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "a column of a window is no list: call window.column.min(), or loop over the versions"
        )

    def _values(self) -> dict[int, Any]:
        """By number: the values there are, and None for none."""
        if not self._is_summed:
            what = "a window adds up columns that are numbers or times and not of the key"
            raise TypeError(f"{what}; {self._name!r} is a {self._kind}")
        return {one.values[NUMBER]: one.values[self._name] for one in self._kept}

    def _present(self) -> list[Any]:
        return [value for value in self._values().values() if value is not None]

    def count(self) -> Any:
        return Int64(len(self._present()))

    def sum(self) -> Any:
        if self._kind.kind in ("float", "double"):
            found = _added(self._values())
            return 0.0 if found is None else found + 0.0
        total = sum(self._present())
        if self._kind.kind != "decimal":
            within(int(total), 64)
        return seen(total, self._kind)

    def mean(self) -> Any:
        if self._kind.kind == "decimal":
            raise TypeError("the mean of decimals has no exact result; use sum() and count()")
        count = len(self._present())
        if count == 0:
            return None
        if self._kind.kind in ("float", "double"):
            return self.sum() / count
        return sum(map(int, self._present())) / count  # the sum itself may have more than 64 bits

    def min(self) -> Any:
        found = self._present()
        return seen(min(found, key=place), self._kind) if found else None

    def max(self) -> Any:
        found = self._present()
        return seen(max(found, key=place), self._kind) if found else None

    def first(self) -> Any:
        return self._shown(0) if self._kept else None

    def last(self) -> Any:
        return self._shown(-1) if self._kept else None

    def _shown(self, which: int) -> Any:
        value = self._kept[which].values[self._name]
        return None if value is None else seen(value, self._kind)


def _added(values: Mapping[int, Any]) -> float | None:
    """The sum of floats by their numbers: the largest whole groups there are, one after another."""
    found, number = None, min(values, default=0)
    while number <= max(values, default=-1):
        size = 1
        while number % (GROUP * size) == 0 and _is_whole(values, number, GROUP * size):
            size *= GROUP
        found = _plus(found, _group(values, number, size))
        number += size
    return found


def _is_whole(values: Mapping[int, Any], first: int, size: int) -> bool:
    return all(number in values for number in range(first, first + size))


def _group(values: Mapping[int, Any], first: int, size: int) -> float | None:
    """The sum of a whole group: of its eight parts, one after another."""
    if size == 1:
        return values.get(first)
    found, part = None, size // GROUP
    for begin in range(first, first + size, part):
        found = _plus(found, _group(values, begin, part))
    return found


def _plus(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
