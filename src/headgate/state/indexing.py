"""Indexing: the key index of a whole table built at once, by several threads.

To insert row by row is to wait for memory at every row. Here the place of each row in the index is
asked for some rows ahead. Every thread goes through all rows and inserts those that belong into its
own share of the index, so no two write to one place. What does not fit into its share goes in at
the end, so every probe still ends where it should: no place between a row's home and its entry is
empty.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from headgate.state.compiled import numba
from headgate.state.index import ALIVE, RELEASED, TAG_MASK, WORD_BYTES, insert, mix
from headgate.state.prefetch import prefetch

ROWS_MIN = 1 << 17  # a smaller table is filled by one thread
AHEAD = 64  # rows whose places are asked for before the first of them is inserted
THREADS_MAX = 4
at: Any = np.uint64  # an index that cannot count from the end: the kernels need not ask


def build_index(entries: np.ndarray, words: np.ndarray, count: int, key_words: int) -> int:
    """Fill the empty index with every live row among the first `count` slots.

    Returns how many of them are dead.
    """
    threads = 1 if count < ROWS_MIN else min(THREADS_MAX, os.cpu_count() or 1)
    bounds = [len(entries) * number // threads for number in range(threads + 1)]
    with ThreadPoolExecutor(threads, thread_name_prefix="headgate-index") as pool:
        shares = [
            pool.submit(_insert_share, entries, words, count, key_words, first, last)
            for first, last in pairwise(bounds)
        ]
        found = [share.result() for share in shares]
    for _, spilled in found:
        for slot in spilled.tolist():
            insert(entries, words, slot, key_words)
    return count - int(found[0][0])


@numba.njit(cache=True, nogil=True)
def _insert_share(
    entries: np.ndarray, words: np.ndarray, count: int, key_words: int, first: int, last: int
) -> tuple[int, np.ndarray]:
    """Insert the live rows whose home is in first..last, without leaving it.

    Returns how many live rows there are, and the slots of those that found no place.
    """
    mask = len(entries) - 1
    base = np.int64(entries.ctypes.data)
    homes, found = np.empty(AHEAD, np.int64), np.empty(AHEAD, np.int64)
    spilled, spills = np.empty(AHEAD, np.int64), 0
    alive, waiting = 0, 0
    for slot in range(count + 1):
        if slot < count and words[slot, 0] & ALIVE:
            alive += 1
            value = mix(np.int64(0), words[slot, 1])
            for part in range(1, key_words):
                value = mix(value, words[slot, 1 + part])
            home = value & mask
            mine = first <= home and home < last
            prefetch(base + WORD_BYTES * (home if mine else first))
            # Written in any case: a branch that nobody can foresee would cost more.
            homes[at(waiting)] = home
            found[at(waiting)] = (value & TAG_MASK) | (slot + 1)
            waiting += mine
        if waiting < AHEAD and slot < count:
            continue
        for number in range(waiting):
            place = homes[number]
            while place < last and entries[at(place)] != 0:
                place += 1
            if place < last:
                entries[at(place)] = found[number]
                continue
            if spills == len(spilled):
                spilled = np.append(spilled, np.empty(spills, np.int64))
            spilled[spills] = (found[number] & 0xFFFFFFFF) - 1
            spills += 1
        waiting = 0
    return alive, spilled[:spills]


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
