"""Overwriting: changed rows put over their old versions, in the copy that readers read.

The kernels here keep the interpreter's lock on purpose: they are short, and a thread that gives it
up beside busy readers waits many times longer to have it back.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.state.columns import to_stored
from headgate.state.compiled import numba
from headgate.state.layout import HEADER_EPOCH_SHIFT, WORD_BYTES
from headgate.state.rows import Rows

_ALIVE = 1


@numba.njit(cache=True)
def _read_bits(bits: np.ndarray, first: int, out: np.ndarray) -> None:
    for place in range(len(out)):
        bit = first + place
        out[place] = (bits[bit >> 3] >> (bit & 7)) & 1


@numba.njit(cache=True)
def _all_stay(words: np.ndarray, slots: np.ndarray, alive: np.ndarray, keys: np.ndarray) -> bool:
    """Whether all these rows were and are alive, with the same keys."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot >= len(words) or not alive[row] or words[slot, 0] & 1 == 0:
            return False
        for part in range(len(keys)):
            if words[slot, 1 + part] != keys[part, row]:
                return False
    return True


@numba.njit(cache=True)
def _put(words: np.ndarray, slots: np.ndarray, place: int, values: np.ndarray) -> None:
    for row in range(len(slots)):
        words[slots[row], place] = values[row]


@numba.njit(cache=True)
def _put_header(words: np.ndarray, slots: np.ndarray, header: int) -> None:
    for row in range(len(slots)):
        words[slots[row], 0] = header


def numbers_of(column: pa.Array) -> np.ndarray:
    """The values of an int64 array without nulls."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def flags_of(column: pa.Array) -> np.ndarray:
    """The values of a boolean array without nulls."""
    out = np.empty(len(column), np.bool_)
    _read_bits(np.frombuffer(column.buffers()[1], np.uint8), column.offset, out)
    return out


def overwrite(
    rows: Rows, slots: np.ndarray, alive: np.ndarray, changes: pa.RecordBatch, epoch: int
) -> bool:
    """Put the rows in their slots if that is all there is to do: none comes, goes or has a new key.

    Else nothing is changed, and False says that the index needs mending, too.
    """
    stored = [
        to_stored(changes.column(field.name), field.type, rows.pool, rows.table.name).values
        for field in rows.layout.fields
    ]
    values = dict(zip((field.name for field in rows.layout.fields), stored, strict=True))
    keys = rows.key_words([values[name] for name in rows.table.key])
    if not _all_stay(rows.words, slots, alive, keys):
        return False
    for field in rows.layout.fields:
        if field.is_key:
            continue
        if values[field.name].dtype.itemsize == WORD_BYTES:
            words = np.ascontiguousarray(values[field.name]).view(np.int64)
            _put(rows.words, slots, field.offset // WORD_BYTES, words)
        else:
            rows.records[field.name][slots] = values[field.name]
    _put_header(rows.words, slots, (epoch << HEADER_EPOCH_SHIFT) | _ALIVE)
    return True
