"""Groups: the memory behind the aggregates of one window, and what they are as an Arrow table.

The arrays are those that kernels/window_groups.py reads and writes by their addresses. Texts have
codes of a pool of their own, which forgets those that no row has any more. Invariant: between two
calls every address in the frame is that of an array that is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.dataflow.aggregates import Aggregate, Aggregates
from headgate.kernels import window_groups as kernels
from headgate.kernels.exact_sums import SCRATCH_WORDS, SUM_WORDS
from headgate.state.columns import to_arrow, to_stored
from headgate.state.strings import StringPool
from headgate.state.types import Column

FIRST_ROWS, FIRST_GROUPS = 64, 16
_TEXTS = 1024  # that may be of no use before they are looked through
_REAL = ("float", "double")
_EXTREMES = {"min": 0, "max": kernels.GREATEST}


class OutOfRange(Exception):
    """A sum of whole numbers is none that a bigint has; its words are the reason of an abort."""


class Groups:
    """Rows in a line, some of which are in the window, and what is said of their groups."""

    def __init__(self, aggregates: Aggregates) -> None:
        self._declared = aggregates
        self._pool = StringPool()
        self._columns, self._keys = aggregates.values, aggregates.by
        self._has_masks = any(column.nullable for column in self._keys)
        self._kept_texts = 0
        self._has_texts = any(one.type.kind == "string" for one in (*self._columns, *self._keys))
        self._lists = [one for one in aggregates.items if one.function in _EXTREMES]
        self._reals = [one for one in self._columns if one.type.kind in _REAL]
        summed = {one.column for one in aggregates.items if one.function in ("sum", "avg")}
        self._reals = [one for one in self._reals if one in summed]
        self._frame = np.zeros(kernels.FRAME_WORDS, np.int64)
        self._address = int(self._frame.ctypes.data)
        self._arrays: dict[int, np.ndarray] = {}
        self._recipe = np.array([*self._parts()], np.int64).reshape(-1, kernels.RECIPE_WORDS)
        self._declare(summed)
        self._make_rows(FIRST_ROWS)
        self._make_groups(FIRST_GROUPS)
        self._make_line(FIRST_ROWS)

    # --- how they are laid out ----------------------------------------------------------------

    def _declare(self, summed: set[Column | None]) -> None:
        """What does not change: how wide rows are, and what their columns are for."""
        frame, columns = self._frame, self._columns
        frame[kernels.KEYS] = len(self._keys) + self._has_masks
        frame[kernels.COLUMNS] = len(columns)
        frame[kernels.LISTS] = 1 + len(self._lists)
        frame[kernels.EXACTS] = len(self._reals)
        exact_of = [self._reals.index(one) if one in self._reals else kernels.NOT_EXACT
                    for one in columns]  # fmt: skip
        kinds = [kernels.REAL if one.type.kind in _REAL else kernels.TEXT
                 if one.type.kind == "string" else kernels.WHOLE
                 for one in (self._column(each) for each in self._lists)]  # fmt: skip
        ways = [_EXTREMES[one.function] for one in self._lists]
        self._put(kernels.ADDED, np.array([one in summed for one in columns], np.int64))
        self._put(kernels.EXACT_OF, np.array(exact_of, np.int64))
        places = [columns.index(self._column(one)) for one in self._lists]
        self._put(kernels.LIST_OF, np.array([0, *places], np.int64))
        listed = [kind | way for kind, way in zip(kinds, ways, strict=True)]
        self._put(kernels.LIST_KIND, np.array([0, *listed], np.int64))
        self._put(kernels.SCRATCH, np.zeros(SCRATCH_WORDS, np.int64))
        if kernels.TEXT in kinds:
            frame[kernels.TEXTS] = self._pool.reach()

    @staticmethod
    def _column(one: Aggregate) -> Column:
        if one.column is None:
            raise ValueError(f"{one.text} is of no column")
        return one.column

    def _put(self, word: int, array: np.ndarray) -> None:
        self._arrays[word] = array
        self._frame[word] = array.ctypes.data

    def _widen(self, widths: dict[int, int], size: int) -> None:
        """Have room for more rows or groups in the arrays that have some words of each."""
        for word, width in widths.items():
            array = np.zeros((size, width), np.int64)
            before = self._arrays.get(word)
            if before is not None:
                array[: len(before)] = before
            self._put(word, array)

    def _make_rows(self, size: int) -> None:
        before = len(self._arrays.get(kernels.ROW_GROUP, ()))
        lists, columns = int(self._frame[kernels.LISTS]), len(self._columns)
        single = (kernels.ROW_GROUP, kernels.ROW_TIME, kernels.ROW_NUMBER, kernels.ROW_PRESENT,
                  kernels.FREE_ROWS)  # fmt: skip
        widths = {**dict.fromkeys(single, 1), kernels.ROW_WORDS: columns}
        self._widen({**widths, kernels.ROW_LINKS: 2 * lists}, size)
        self._free(kernels.FREE_ROWS, kernels.FREE_ROW_COUNT, before, size)

    def _make_groups(self, size: int) -> None:
        before = len(self._arrays.get(kernels.GROUP_ROWS, ()))
        frame = self._frame
        lists, keys = int(frame[kernels.LISTS]), int(frame[kernels.KEYS])
        columns, exacts = len(self._columns), len(self._reals)
        single = (kernels.GROUP_ROWS, kernels.GROUP_REFS, kernels.GROUP_HASH, kernels.GROUP_FLAG,
                  kernels.FREE_GROUPS, kernels.ORDER, kernels.CHANGED, kernels.SPARE)  # fmt: skip
        widths = {
            kernels.GROUP_KEYS: keys, kernels.GROUP_COUNTS: columns,
            kernels.GROUP_SUMS: 2 * columns, kernels.GROUP_ENDS: 2 * lists,
            kernels.GROUP_EXACT: SUM_WORDS * exacts, kernels.GROUP_ROUNDED: exacts,
        }  # fmt: skip
        self._turn()
        self._widen({**dict.fromkeys(single, 1), **widths}, size)
        self._free(kernels.FREE_GROUPS, kernels.FREE_GROUP_COUNT, before, size)
        old = self._arrays.get(kernels.CELLS)
        self._put(kernels.CELLS, np.full(4 * size, -1, np.int64))
        frame[kernels.MASK] = 4 * size - 1
        if old is not None:
            kernels.place_all(self._address, old)

    def _turn(self) -> None:
        """The kernel lets the order of groups and the place beside it take turns: which is which is
        what the frame says."""
        arrays = self._arrays
        order = arrays.get(kernels.ORDER)
        if order is not None and self._frame[kernels.ORDER] != order.ctypes.data:
            arrays[kernels.ORDER], arrays[kernels.SPARE] = arrays[kernels.SPARE], order

    def _free(self, stack: int, count: int, first: int, last: int) -> None:
        """Slots that were never used are free, the lowest of them first."""
        have = int(self._frame[count])
        self._arrays[stack][have : have + last - first, 0] = np.arange(last - 1, first - 1, -1)
        self._frame[count] = have + last - first

    def _make_line(self, size: int) -> None:
        """Have a line that begins where it is, and has room for so many rows."""
        frame, line = self._frame, np.zeros(size, np.int64)
        begin, end = int(frame[kernels.BEGIN]), int(frame[kernels.END])
        if end > begin:
            line[: end - begin] = self._arrays[kernels.LINE][begin:end]
        self._put(kernels.LINE, line)
        frame[kernels.BEGIN], frame[kernels.END] = 0, end - begin
        frame[kernels.INSIDE] -= begin

    # --- rows ---------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many rows there are, staged ones with them."""
        return int(self._frame[kernels.END] - self._frame[kernels.BEGIN])

    @property
    def inside(self) -> int:
        """How many of them are in the window."""
        return int(self._frame[kernels.INSIDE] - self._frame[kernels.BEGIN])

    def stage(self, rows: pa.Table, times: np.ndarray, numbers: np.ndarray) -> None:
        """Rows come behind those that are there, with their times and numbers, which ascend."""
        count = rows.num_rows
        if int(self._frame[kernels.FREE_ROW_COUNT]) < count:
            self._make_rows(_room(self.count + count))
        line = self._arrays[kernels.LINE]
        if int(self._frame[kernels.END]) + count > len(line):
            self._make_line(max(len(line), _room(2 * (self.count + count))))
        keys, words, present = self._words(rows)
        given = keys, words, present, times, numbers
        done = kernels.stage(self._address, 0, *given)
        while done < count:
            self._make_groups(2 * len(self._arrays[kernels.GROUP_ROWS]))
            done = kernels.stage(self._address, done, *given)

    def _words(self, rows: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By row: the words of its key, those of its values, and a bit for each that is there."""
        if self._has_texts and self._pool.count > 2 * self._kept_texts + _TEXTS:
            self._forget_texts()
        count = rows.num_rows
        keys = np.zeros((count, int(self._frame[kernels.KEYS])), np.int64)
        words = np.zeros((count, len(self._columns)), np.int64)
        present = np.full(count, (1 << len(self._columns)) - 1, np.int64)
        for place, column in enumerate(self._keys):
            keys[:, place], nulls = self._column_words(rows, column)
            if nulls is not None:
                keys[:, -1] |= nulls.astype(np.int64) << place
        for place, column in enumerate(self._columns):
            words[:, place], nulls = self._column_words(rows, column)
            if nulls is not None:
                present &= ~(nulls.astype(np.int64) << place)
        return keys, words, present

    def _column_words(
        self, rows: pa.Table, column: Column
    ) -> tuple[np.ndarray | int, np.ndarray | None]:
        given, kind = rows.column(column.name), column.type
        if kind.element is not None:  # which are counted
            return 0, given.is_null().to_numpy() if given.null_count else None
        found = to_stored(given, kind, self._pool, column.name, nullable=True)
        if kind.kind in _REAL:
            return found.values.astype(np.float64).view(np.int64), found.nulls
        return found.values.astype(np.int64), found.nulls

    def _forget_texts(self) -> None:
        """Texts that no row has are forgotten."""
        frame, arrays = self._frame, self._arrays
        slots = arrays[kernels.LINE][int(frame[kernels.BEGIN]) : int(frame[kernels.END])]
        groups = arrays[kernels.ROW_GROUP][slots, 0]
        is_text = [one.type.kind == "string" for one in (*self._keys, *self._columns)]
        words = np.hstack([arrays[kernels.GROUP_KEYS][groups][:, : len(self._keys)],
                           arrays[kernels.ROW_WORDS][slots]])  # fmt: skip
        used = [words[:, place] for place in np.flatnonzero(is_text)]
        self._pool.compact(used)
        self._kept_texts = self._pool.count

    def merge(self, count: int, entered: int) -> None:
        """The rows that came last take their places among the others, by their times; what is
        before a time enters."""
        kernels.merge(self._address, count, entered, np.zeros(count, np.int64))

    def unstage(self, count: int) -> None:
        """The rows that came last have not come; none of them is in the window."""
        kernels.unstage(self._address, count)

    def move(self, leaving: int, inside: int) -> None:
        """So many rows leave, and then the first so many are in the window."""
        kernels.move(self._address, leaving, inside)

    def rows_before(self, time: int) -> int:
        """How many rows are before a time."""
        return int(kernels.rows_before(self._address, time))

    def time_at(self, place: int) -> int:
        """The time of a row, by its place among them."""
        return int(kernels.time_at(self._address, place))

    # --- what they say ------------------------------------------------------------------------

    def _parts(self) -> Sequence[tuple[int, int, int]]:
        """What the kernel is to say of each group: of each column of the table, and at last which
        columns of its key are null."""
        parts = [(kernels.KEY, place, 0) for place in range(len(self._keys))]
        for one in self._declared.items:
            if one.column is None:
                parts.append((kernels.ROWS, 0, 0))
                continue
            place, kind = self._columns.index(one.column), one.column.type
            if one.function in _EXTREMES:
                parts.append((kernels.EXTREME, 1 + self._lists.index(one), 0))
            elif one.function == "count":
                parts.append((kernels.VALUES, place, 0))
            elif kind.kind in _REAL:
                is_sum = one.function == "sum"
                parts.append((kernels.EXACT_SUM if is_sum else kernels.EXACT_MEAN, place, 0))
            elif one.function == "avg":
                parts.append((kernels.MEAN, place, 10**kind.scale))
            else:
                parts.append(
                    (kernels.WIDE_SUM if kind.kind == "decimal" else kernels.SUM, place, 0)
                )
        return [*parts, (kernels.KEY, len(self._keys), 0)] if self._has_masks else parts

    def table(self) -> pa.Table:
        """The aggregates of the rows in the window, a row for each group, in the order of the first
        row that each has in the window."""
        count = kernels.arrange(self._address)
        out = np.zeros((len(self._recipe), 3, count), np.int64)
        nulls = np.zeros((len(self._recipe), count), np.uint8)
        beyond = kernels.emit(self._address, self._recipe, out, nulls)
        if beyond >= 0:
            one = self._declared.items[beyond - len(self._keys)]
            raise OutOfRange(f"out of range: {one.text} is no bigint; declare a decimal column")
        arrays = [
            to_arrow(
                out[place, 0], one.type, self._pool,
                (out[-1, 0] >> place & 1).astype(np.bool_) if one.nullable else None,
            )
            for place, one in enumerate(self._keys)
        ]  # fmt: skip
        has_nulls = nulls.any()
        for place, one in enumerate(self._declared.items, len(self._keys)):
            arrays.append(self._array(one, out[place], nulls[place] if has_nulls else None))
        return pa.Table.from_arrays(arrays, schema=self._declared.schema)

    def _array(self, one: Aggregate, out: np.ndarray, said: np.ndarray | None) -> pa.Array:
        """One aggregate of all groups; what the kernel said of it beside its words, if anything."""
        words, nulls = out[0], None if said is None else said == kernels.NULL
        if one.function in _EXTREMES:
            kind = self._column(one).type
            values = words.view(np.float64) if kind.kind in _REAL else words
            return to_arrow(values, kind, self._pool, nulls)
        mask = None
        if nulls is not None and nulls.any():
            mask = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        if one.function == "avg" and said is not None:
            self._divide(one, out, said)
        data = words
        if pa.types.is_decimal(one.arrow):
            data = np.ascontiguousarray(out[:2].T)
        return pa.Array.from_buffers(one.arrow, len(words), [mask, pa.py_buffer(data)])

    def _divide(self, one: Aggregate, out: np.ndarray, said: np.ndarray) -> None:
        """Means whose sums no double has: the quotient of whole numbers, rounded once."""
        unit = 10 ** self._column(one).type.scale
        for row in np.flatnonzero(said == kernels.LONG_DIVISION).tolist():
            low, high, count = (int(word) for word in out[:, row])
            total = (high << 64) | (low & (1 << 64) - 1)
            out[0, row] = np.array(total / (count * unit)).view(np.int64)


def _room(count: int) -> int:
    """A power of two with room for so many."""
    return 1 << max(count - 1, 1).bit_length()
