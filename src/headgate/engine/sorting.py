"""Sorting: the serial order of events by their order columns, ties as they arrived.

Events mostly arrive nearly sorted, so sorted input is recognised in one pass; the rest is a stable
radix sort over the bits that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.state.compiled import numba
from headgate.state.spaces import EventRows
from headgate.state.types import BIGINT_MAX, ColumnType

DIGIT_BITS = 11


def sort_key(stored: np.ndarray, kind: ColumnType, texts: pa.Array | None = None) -> np.ndarray:
    """int64 values that sort as the column's values do; `texts` for a string column."""
    if texts is not None:
        ranks = pc.rank(texts, sort_keys="ascending", tiebreaker="dense")
        return np.asarray(ranks.to_numpy(zero_copy_only=False), np.int64)
    if kind.kind in ("float", "double"):
        bits = np.asarray(stored, np.float64).view(np.int64)
        # Negative floats sort backwards by their bits; flipping the others mends it. -0.0 is 0.0,
        # and NaN comes after all numbers, whatever its sign.
        bits = np.where(stored == 0, 0, np.where(np.isnan(stored), BIGINT_MAX, bits))
        return np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
    return np.asarray(stored, np.int64)


@numba.njit(cache=True, nogil=True)
def _is_sorted(keys: np.ndarray, rows: EventRows) -> bool:
    for place in range(1, len(rows)):
        if keys[rows[place - 1]] > keys[rows[place]]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def is_sorted_throughout(keys: np.ndarray) -> bool:
    """Whether all events already stand in order."""
    for place in range(1, len(keys)):
        if keys[place - 1] > keys[place]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _radix_sort(keys: np.ndarray, rows: EventRows) -> EventRows:
    """The rows stably sorted by their keys: one counting pass per digit that differs."""
    low = keys[rows[0]]
    high = low
    for place in range(len(rows)):
        low = min(low, keys[rows[place]])
        high = max(high, keys[rows[place]])
    span = np.uint64(high) - np.uint64(low)
    source, target = rows.copy(), np.empty_like(rows)
    counts = np.empty((1 << DIGIT_BITS) + 1, np.int64)
    mask = np.uint64((1 << DIGIT_BITS) - 1)
    shift: Any = np.uint64(0)
    while shift < np.uint64(64) and span >> shift:
        counts[:] = 0
        for place in range(len(source)):
            digit = ((np.uint64(keys[source[place]]) - np.uint64(low)) >> shift) & mask
            counts[np.int64(digit) + 1] += 1
        for digit in range(1 << DIGIT_BITS):
            counts[digit + 1] += counts[digit]
        for place in range(len(source)):
            digit = ((np.uint64(keys[source[place]]) - np.uint64(low)) >> shift) & mask
            target[counts[np.int64(digit)]] = source[place]
            counts[np.int64(digit)] += 1
        source, target = target, source
        shift = shift + np.uint64(DIGIT_BITS)
    return source


def sort_rows(keys: Sequence[np.ndarray], rows: EventRows) -> EventRows:
    """The event rows sorted by the keys, the first key counting most, ties as they stand."""
    for key in reversed(keys):
        if len(rows) > 1 and not _is_sorted(key, rows):
            rows = _radix_sort(key, rows)
    return rows
