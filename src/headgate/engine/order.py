"""Order: the serial order of a batch's events: by their order columns, ties by arrival.

Events mostly arrive nearly sorted, so sorted input is recognised in one pass; the rest is a stable
radix sort over the bits that differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InputError
from headgate.state.compiled import numba
from headgate.state.schema import BIGINT_MAX, ColumnType

DIGIT_BITS = 11
_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}


def parse_duration(text: str, where: str) -> int:
    """A duration like "10 seconds" or "1 hour 30 minutes" in microseconds.

    >>> parse_duration("1 minute 10 seconds", "watermark")
    70000000
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", str(text))
    rest = re.sub(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)|\s|interval", "", str(text))
    total = 0
    for amount, unit in parts:
        size = _UNITS_US.get(unit.lower().rstrip("s"))
        if size is None:
            rest = unit
            break
        total += round(float(amount) * size)
    if not parts or rest:
        units = ", ".join(f"{unit}s" for unit in _UNITS_US)
        raise InputError(
            f"{where}: {text!r} is not a duration; write it as '10 seconds' (units: {units})"
        )
    return total


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
def _is_sorted(keys: np.ndarray, rows: np.ndarray) -> bool:
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
def _radix_sort(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
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


def sort_rows(keys: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """The event rows sorted by the keys, the first key counting most, ties as they stand."""
    for key in reversed(keys):
        if len(rows) > 1 and not _is_sorted(key, rows):
            rows = _radix_sort(key, rows)
    return rows
