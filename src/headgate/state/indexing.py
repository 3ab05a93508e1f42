"""Indexing: the key index of a whole table built at once, by several threads.

To insert row by row is to wait for memory at every row. Here the rows are first told apart by the
part of the index they belong to, and then each part, small enough for a core's own cache, is filled
by itself. What does not fit into its part goes in at the end, so every probe still ends where it
should: no place between a row's home and its entry is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np

from headgate.state.index import ALIVE, RELEASED, TAG_MASK, _row_hash, insert_live

BUCKET_SHIFT = 15  # entries of a bucket: 2**15 of 8 bytes fit into a core's second cache
ROWS_MIN = 1 << 17  # a smaller table is filled row by row
CHUNK_ROWS = 1 << 21
THREADS_MAX = 4


def build_index(entries: np.ndarray, words: np.ndarray, count: int, key_words: int) -> None:
    """Fill the empty index with every live row among the first `count` slots."""
    if count < ROWS_MIN or len(entries) >> BUCKET_SHIFT < THREADS_MAX:
        insert_live(entries, words, count, key_words)
        return
    threads = min(THREADS_MAX, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="headgate-index") as pool:
        builder = _Builder(entries, words, key_words, threads, pool)
        for first in range(0, count, CHUNK_ROWS):
            builder.add(first, min(first + CHUNK_ROWS, count))


class _Builder:
    """Fills an index chunk by chunk, each in three steps that the threads share.

    A chunk is long enough that every part of the index gets many of its rows, and short enough
    that it needs little memory: touching new memory can cost more than the work itself.
    """

    def __init__(
        self,
        entries: np.ndarray,
        words: np.ndarray,
        key_words: int,
        threads: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._entries, self._words = entries, words
        self._rule = (key_words, len(entries) - 1, BUCKET_SHIFT)
        self._threads, self._pool = threads, pool
        self._buckets = len(entries) >> BUCKET_SHIFT
        rows = min(CHUNK_ROWS, len(words))
        self._found, self._homes = np.empty(rows, np.int64), np.empty(rows, np.uint32)

    def add(self, first: int, last: int) -> None:
        """Insert the live rows among the slots first..last."""
        shares = [(first + low, first + high) for low, high in self._shares(last - first)]
        counts = np.zeros((self._threads, self._buckets), np.int64)
        self._each(_count, [
            (self._words, *share, *self._rule, counts[number])
            for number, share in enumerate(shares)
        ])  # fmt: skip
        # Bucket by bucket, and in each the share of every thread: no two write to one place.
        ends = np.cumsum(counts.T.reshape(-1)).reshape(self._buckets, self._threads)
        starts = np.ascontiguousarray((ends - counts.T).T)
        self._each(_sort, [
            (self._words, *share, *self._rule, starts[number], self._found, self._homes)
            for number, share in enumerate(shares)
        ])  # fmt: skip
        sorted_rows = (self._entries, self._found, self._homes)
        bounds = [0, *ends[:, -1].tolist()]
        parts = [
            (*sorted_rows, bounds[low], bounds[high], high << BUCKET_SHIFT)
            for low, high in self._shares(self._buckets)
        ]
        for spilled in self._each(_insert_part, parts):
            _insert_rest(*sorted_rows, spilled)

    def _shares(self, count: int) -> list[tuple[int, int]]:
        bounds = [count * number // self._threads for number in range(self._threads + 1)]
        return list(pairwise(bounds))

    def _each(self, work: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
        begun = [self._pool.submit(work, *each) for each in arguments]
        return [done.result() for done in begun]


@numba.njit(cache=True, nogil=True)
def _count(
    words: np.ndarray,
    first: int,
    last: int,
    key_words: int,
    mask: int,
    shift: int,
    counts: np.ndarray,
) -> None:
    """How many of these rows belong into each bucket."""
    for slot in range(first, last):
        if words[slot, 0] & ALIVE:
            home = _row_hash(words, slot, key_words) & mask
            counts[home >> shift] += 1


@numba.njit(cache=True, nogil=True)
def _sort(
    words: np.ndarray,
    first: int,
    last: int,
    key_words: int,
    mask: int,
    shift: int,
    starts: np.ndarray,
    found: np.ndarray,
    homes: np.ndarray,
) -> None:
    """Put the entries of these rows, and where they belong, at the next place of their bucket."""
    for slot in range(first, last):
        if words[slot, 0] & ALIVE:
            value = _row_hash(words, slot, key_words)
            home = value & mask
            place = starts[home >> shift]
            starts[home >> shift] = place + 1
            found[place] = (value & TAG_MASK) | (slot + 1)
            homes[place] = np.uint32(home)


@numba.njit(cache=True, nogil=True)
def _insert_part(
    entries: np.ndarray, found: np.ndarray, homes: np.ndarray, first: int, last: int, stop: int
) -> np.ndarray:
    """Insert the sorted entries first..last below `stop`; returns those that found no place."""
    spilled = np.empty(last - first, np.int64)
    count = 0
    for number in range(first, last):
        place = np.int64(homes[number])
        while place < stop and entries[place] != 0:
            place += 1
        if place < stop:
            entries[place] = found[number]
        else:
            spilled[count] = number
            count += 1
    return spilled[:count].copy()


@numba.njit(cache=True, nogil=True)
def _insert_rest(
    entries: np.ndarray, found: np.ndarray, homes: np.ndarray, numbers: np.ndarray
) -> None:
    mask = len(entries) - 1
    for number in numbers:
        place = np.int64(homes[number])
        while entries[place] != 0:
            place = (place + 1) & mask
        entries[place] = found[number]


@numba.njit(cache=True, nogil=True)
def release_all_dead(words: np.ndarray, count: int) -> np.ndarray:
    """Mark every dead slot among the first `count` as released; returns them, the lowest last."""
    dead = 0
    for slot in range(count):
        dead += 1 - (words[slot, 0] & ALIVE)
    free = np.empty(dead, np.int64)
    for slot in range(count if dead else 0):
        if words[slot, 0] & ALIVE == 0:
            words[slot, 0] = RELEASED
            dead -= 1
            free[dead] = slot
    return free
