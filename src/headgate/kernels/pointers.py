"""Pointers: how generated kernels reach rows, events and words by their addresses.

A step takes the addresses of its arrays, not the arrays: Numba counts references for each array
handed to a function, and twenty atomic additions cost more than the transaction itself. Python
holds every array while a kernel runs.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.extending import intrinsic

from headgate.compiling import bounds
from headgate.compiling.numba_types import (
    STORED_LLVM,
    EventType,
    OutputType,
    RecordType,
    RowsType,
    fixed_load,
)
from headgate.state.compiled import linked
from headgate.state.words import set_word as _set_word
from headgate.state.words import word_at

I64 = llvm.IntType(64)
BITS = 8  # of a byte: where the validity of a column stands is counted in them


def address(array: np.ndarray) -> int:
    """Where the array's first byte stands; the array must outlive the use of it."""
    if bounds.IS_ON:
        bounds.note(array)
    return int(pa.py_buffer(array).address)  # many times faster than NumPy's own ways to ask


LINE_WORDS = 8  # of a cache line


def own_lines(count: int) -> np.ndarray:
    """So many zeros on cache lines that nothing else has a word in.

    What one thread writes all the time must not share a line with what another writes: the line
    would go from core to core with each word. Small arrays made in turn lie side by side.
    """
    return np.zeros(count + 2 * LINE_WORDS, np.int64)[LINE_WORDS : LINE_WORDS + count]


def record_at(record: RecordType, row_bytes: int) -> Any:
    """An intrinsic (address of the words, slot) -> the record in that slot."""

    @intrinsic
    def at(typing_context: Any, words: Any, slot: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.add(args[0], builder.mul(args[1], I64(row_bytes)))

        return record(types.int64, types.int64), generate

    return at


def output_at(output: OutputType) -> Any:
    """An intrinsic (address of the words, position, how many there are) -> the output there.

    The first words of all positions stand together, then the second ones, and so on.
    """

    @intrinsic
    def at(typing_context: Any, words: Any, position: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = cgutils.create_struct_proxy(output)(context, builder)
            found.first = builder.add(args[0], builder.mul(args[1], I64(8)))
            found.stride = builder.mul(args[2], I64(8))
            return found._getvalue()

        return output(types.int64, types.int64, types.int64), generate

    return at


def event_at(event: EventType) -> Any:
    """An intrinsic (address of the column addresses, row) -> the event."""

    @intrinsic
    def at(typing_context: Any, columns: Any, row: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = cgutils.create_struct_proxy(event)(context, builder)
            found.columns, found.row = args
            return found._getvalue()

        return event(types.int64, types.int64), generate

    return at


def rows_at(rows: RowsType) -> Any:
    """An intrinsic (address of the words, of the slots, first, last) -> rows of an `each`."""

    @intrinsic
    def at(typing_context: Any, words: Any, slots: Any, first: Any, last: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = cgutils.create_struct_proxy(rows)(context, builder)
            found.base = args[0]
            found.slots = builder.add(args[1], builder.mul(args[2], I64(8)))
            found.count = builder.sub(args[3], args[2])
            return found._getvalue()

        return rows(types.int64, types.int64, types.int64, types.int64), generate

    return at


@functools.cache  # one for all programs: what calls it is then the same, too
def key_at(place: int, stored: str) -> Any:
    """An intrinsic (address of the column addresses, row) -> the word of a key column."""
    kind = STORED_LLVM[stored]

    @intrinsic
    def at(typing_context: Any, columns: Any, row: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            slot = builder.inttoptr(builder.add(args[0], I64(8 * place)), I64.as_pointer())
            size = context.get_abi_sizeof(kind)
            spot = builder.add(fixed_load(builder, slot), builder.mul(args[1], I64(size)))
            value = fixed_load(builder, builder.inttoptr(spot, kind.as_pointer()))
            if stored == "u1":
                return builder.zext(value, I64)
            return value if stored == "i8" else builder.sext(value, I64)

        return types.int64(types.int64, types.int64), generate

    return at


@intrinsic
def _fixed_word(typing_context: Any, address: Any, place: Any) -> Any:
    """The same of a word that does not change while the kernel runs: it is loaded once."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        offset = builder.mul(args[1], I64(8))
        pointer = builder.inttoptr(builder.add(args[0], offset), I64.as_pointer())
        return fixed_load(builder, pointer)

    return types.int64(types.int64, types.int64), generate


is_inside = bounds.is_inside


@linked
def _checked_get(address: int, place: int) -> Any:
    return word_at(address, place) if is_inside(address + 8 * place) else 0


@linked
def _checked_set(address: int, place: int, value: int) -> None:
    if is_inside(address + 8 * place):
        _set_word(address, place, value)


fixed_word = _checked_get if bounds.IS_ON else _fixed_word
get_word = _checked_get if bounds.IS_ON else word_at
set_word = _checked_set if bounds.IS_ON else _set_word
