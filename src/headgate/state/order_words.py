"""Order words: columns of rows as words whose order is that of their values, compiled.

Floats come by their value, 0.0 like -0.0 and NaN last; texts by their codes, which who compares
takes as texts. A column that may be null has a word before its own that says whether it is, and the
value of zeros then. The words of some columns and of the key are a row's entry in an index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.compiled import linked
from headgate.state.layout import Field
from headgate.state.types import ColumnType
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

# How a column stands in a row; the last: not its value, but whether it is null.
WHOLE, HALF, BYTE, DOUBLE, SINGLE, IS_NULL = range(6)
# Of a nullable one with more: from which bit of the row on its null bit stands. Null is the last.
NULLABLE, NULL_SHIFT = 8, 4
_LAST = np.int64(0x7FFFFFFFFFFFFFFF)


@linked
def double_order(bits: int) -> Any:
    """The bits of a double as a word of the same order: 0.0 is -0.0, and NaN is the last."""
    if (bits & _LAST) > 0x7FF0000000000000:
        return _LAST
    if bits < 0:
        return np.int64(0) if bits << 1 == 0 else bits ^ _LAST
    return bits


@linked
def single_order(bits: int) -> Any:
    """The same for a float of 32 bits."""
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        return _LAST
    if bits < 0:
        return np.int64(0) if bits & 0x7FFFFFFF == 0 else bits ^ 0x7FFFFFFF
    return bits


@linked
def order_word(row: int, offset: int, kind: int) -> Any:
    """A column of a row, by its offset in bytes, as a word to be ordered by."""
    word = get(row + (offset & ~7), 0)
    if kind == WHOLE:
        return word
    if kind & NULLABLE:
        bit = kind >> NULL_SHIFT
        is_null = get(row, bit >> 6) >> (bit & 63) & 1
        kind = kind & (NULLABLE - 1)
        if kind == IS_NULL:
            return is_null
        if is_null:
            return _LAST
        if kind == WHOLE:
            return word
    if kind == DOUBLE:
        return double_order(word)
    shift = 8 * (offset & 7)
    if kind == BYTE:
        return word >> shift & 0xFF
    half = word << (32 - shift) >> 32
    return half if kind == HALF else single_order(half)


@linked
def read_entry(width: int, recipe: int, row: int, out: int) -> None:
    """The words of the entry that a row says, as many as the width.

    The `recipe` has the offset and the kind of each of them in a row.
    """
    for part in range(width):
        put(out, part, order_word(row, get(recipe, 2 * part), get(recipe, 2 * part + 1)))


KINDS = {"i8": WHOLE, "i4": HALF, "u1": BYTE, "f8": DOUBLE}
KINDS["f4"] = SINGLE


def kind_of(field: Field) -> int:
    """How a column stands in a row, see order_word."""
    if not field.nullable:
        return KINDS[field.format]
    return KINDS[field.format] | NULLABLE | field.null_bit << NULL_SHIFT


def entry_words(field: Field) -> list[tuple[tuple[int, int], bool]]:
    """The words of a column in an entry, each an offset and a kind, and whether it is a text."""
    value = (field.offset, KINDS[field.format]), field.type.kind == "string"
    if not field.nullable:
        return [value]
    return [((0, kind_of(field) & ~(NULLABLE - 1) | IS_NULL), False), value]


def order_words(values: np.ndarray, kind: ColumnType) -> np.ndarray:
    """Stored values of a column as words to be ordered by, as entries.order_word makes them."""
    if kind.kind not in ("float", "double"):
        return values.astype(np.int64)
    last = np.int64(0x7FFFFFFFFFFFFFFF)
    width, bits = (np.int32, 0x7FFFFFFF) if kind.kind == "float" else (np.int64, last)
    plain = np.where(values == 0, np.zeros_like(values), values)  # -0.0 is 0.0
    words = np.ascontiguousarray(plain).view(width).astype(np.int64)
    words = np.where(words < 0, words ^ np.int64(bits), words)
    return np.where(np.isnan(values), last, words)
