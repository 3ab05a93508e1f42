"""The key index: from the words of a key to the slot of its row, compiled.

Open addressing with linear probing. An entry is one word: the low 32 bits hold the slot plus one
(0 means empty), the high 32 bits a part of the key's hash, so that a probe that does not match is
known without touching the row. A key is compared in the row itself, which the caller needs next.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from headgate.state.compiled import mix, numba, prefetch
from headgate.state.layout import HEADER_ALIVE, HEADER_RELEASED, WORD_BYTES
from headgate.state.spaces import Slots, Words

SLOT_MASK = np.int64(0xFFFFFFFF)
TAG_MASK = np.int64(-0x100000000)
ENTRIES_MIN = 16
BLOCK = 128  # keys whose memory is asked for before the first of them is looked up
ROWS_MIN = 1 << 17  # a smaller table is filled by one thread
AHEAD = 64  # rows whose places are asked for before the first of them is inserted
THREADS_MAX = 4
at: Any = np.uint64  # an index that cannot count from the end: the kernels need not ask


@numba.njit(cache=True, nogil=True)
def _row_hash(words: Words, slot: int, key_words: int) -> Any:
    value = np.int64(0)
    for place in range(key_words):
        value = mix(value, words[slot, 1 + place])
    return value


@numba.njit(cache=True, nogil=True)
def find(entries: np.ndarray, words: Words, key: int) -> int:
    """The slot of a one-word key, or -1."""
    mask = len(entries) - 1
    value = mix(np.int64(0), key)
    place = value & mask
    while True:
        entry = entries[place]
        if entry == 0:
            return -1
        slot = (entry & SLOT_MASK) - 1
        # Another key may have the same tag, too: the row decides, and it is needed next anyway.
        if (entry ^ value) & TAG_MASK == 0 and words[slot, 1] == key:
            return slot
        place = (place + 1) & mask


@numba.njit(cache=True, nogil=True)
def find_wide(entries: np.ndarray, words: Words, keys: Words, row: int) -> int:
    """The slot of the key in column `row` of `keys` (key words x rows), or -1."""
    mask = len(entries) - 1
    value = np.int64(0)
    for part in range(len(keys)):
        value = mix(value, keys[part, row])
    place = value & mask
    while True:
        entry = entries[place]
        if entry == 0:
            return -1
        if (entry ^ value) & TAG_MASK == 0:
            slot = (entry & SLOT_MASK) - 1
            same = True
            for part in range(len(keys)):
                if words[slot, 1 + part] != keys[part, row]:
                    same = False
                    break
            if same:
                return slot
        place = (place + 1) & mask


@numba.njit(cache=True, nogil=True)
def fetch(entries: np.ndarray, words: Words, keys: Words, first: int, last: int) -> None:
    """Ask for the index entries, and then for the rows, of the keys first..last."""
    mask = len(entries) - 1
    places = np.empty(BLOCK, np.int64)
    index_base, row_base = np.int64(entries.ctypes.data), np.int64(words.ctypes.data)
    row_bytes = WORD_BYTES * words.shape[1]
    for row in range(first, last):
        value = np.int64(0)
        for part in range(len(keys)):
            value = mix(value, keys[part, row])
        places[row - first] = value & mask
        prefetch(index_base + WORD_BYTES * (value & mask))
    for row in range(last - first):
        entry = entries[places[row]]
        prefetch(row_base + row_bytes * ((entry & SLOT_MASK) - 1))


@numba.njit(cache=True, nogil=True)
def find_all(
    entries: np.ndarray, words: Words, keys: Words, skip: np.ndarray, out: np.ndarray
) -> None:
    """The slots of all keys (key words x rows); rows with skip != 0 get -1."""
    count = keys.shape[1]
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        fetch(entries, words, keys, first, last)
        for row in range(first, last):
            if skip[row]:
                out[row] = -1
            elif len(keys) == 1:
                out[row] = find(entries, words, keys[0, row])
            else:
                out[row] = find_wide(entries, words, keys, row)


@numba.njit(cache=True, nogil=True)
def insert(entries: np.ndarray, words: Words, slot: int, key_words: int) -> None:
    """Add the row in this slot; its key must not be in the index and there must be room."""
    mask = len(entries) - 1
    value = _row_hash(words, slot, key_words)
    place = value & mask
    while entries[place] != 0:
        place = (place + 1) & mask
    entries[place] = (value & TAG_MASK) | (slot + 1)


@numba.njit(cache=True, nogil=True)
def remove(entries: np.ndarray, words: Words, slot: int, key_words: int) -> None:
    """Take the row in this slot out and close the gap, so that no probe ends early."""
    mask = len(entries) - 1
    place = _row_hash(words, slot, key_words) & mask
    while (entries[place] & SLOT_MASK) - 1 != slot:
        place = (place + 1) & mask
    gap = place
    while True:
        place = (place + 1) & mask
        entry = entries[place]
        if entry == 0:
            break
        home = _row_hash(words, (entry & SLOT_MASK) - 1, key_words) & mask
        # Measured round the ring: an entry whose home lies behind the gap stays, since before its
        # home no probe looks for it; any other one moves into the gap and leaves a new one.
        if ((place - home) & mask) >= ((place - gap) & mask):
            entries[gap] = entry
            gap = place
    entries[gap] = 0


@numba.njit(cache=True, nogil=True)
def insert_slots(entries: np.ndarray, words: Words, slots: Slots, width: int) -> None:
    """Add the rows in these slots, whose keys are not in the index."""
    for slot in slots:
        insert(entries, words, slot, width)


@numba.njit(cache=True, nogil=True)
def remove_slots(entries: np.ndarray, words: Words, slots: Slots, width: int) -> None:
    """Take out the rows in these slots, all of them in the index."""
    for slot in slots:
        remove(entries, words, slot, width)


@numba.njit(cache=True, nogil=True)
def insert_live(entries: np.ndarray, words: Words, count: int, key_words: int) -> None:
    """Add every live row among the first `count` slots to an empty index."""
    for slot in range(count):
        if words[slot, 0] & HEADER_ALIVE:
            insert(entries, words, slot, key_words)


@numba.njit(cache=True, nogil=True)
def insert_new(entries: np.ndarray, words: Words, first: int, last: int, width: int) -> int:
    """Add the rows in slots first..last; returns the first whose key is there already, or -1."""
    mask = len(entries) - 1
    base = np.int64(entries.ctypes.data)
    for slot in range(first, last):
        ahead = _row_hash(words, min(slot + AHEAD, last - 1), width)
        prefetch(base + WORD_BYTES * (ahead & mask))
        value = _row_hash(words, slot, width)
        place = value & mask
        while entries[place] != 0:
            entry = entries[place]
            if (entry ^ value) & TAG_MASK == 0:
                same = True
                for part in range(1, 1 + width):
                    same &= words[(entry & SLOT_MASK) - 1, part] == words[slot, part]
                if same:
                    return slot
            place = (place + 1) & mask
        entries[place] = (value & TAG_MASK) | (slot + 1)
    return -1


@numba.njit(cache=True, nogil=True)
def find_or_take(
    entries: np.ndarray,
    words: Words,
    keys: Words,
    skip: np.ndarray,
    out: np.ndarray,
    free: Slots,
    free_count: int,
    count: int,
    taken: Slots,
) -> tuple[int, int, int]:
    """As find_all, but a missing key takes a free slot (dead, in the index) listed in `taken`.

    Returns the new free_count, count and the number of slots taken. There must be room for all.
    """
    key_words = len(keys)
    taken_count = 0
    for row in range(keys.shape[1]):
        if row % BLOCK == 0:
            fetch(entries, words, keys, row, min(row + BLOCK, keys.shape[1]))
        if skip[row]:
            out[row] = -1
            continue
        slot = find_wide(entries, words, keys, row)
        if slot < 0:
            if free_count > 0:
                free_count -= 1
                slot = free[free_count]
            else:
                slot = count
                count += 1
            words[slot, 0] = 0
            for part in range(key_words):
                words[slot, 1 + part] = keys[part, row]
            insert(entries, words, slot, key_words)
            taken[taken_count] = slot
            taken_count += 1
        out[row] = slot
    return free_count, count, taken_count


@numba.njit(cache=True, nogil=True)
def release_dead(
    entries: np.ndarray,
    words: Words,
    slots: Slots,
    key_words: int,
    free: Slots,
    free_count: int,
) -> int:
    """Take the dead ones among these slots out of the index and into the free list, each once.

    What a removal looks at is asked for before: its place in the index, then the rows there.
    """
    mask = len(entries) - 1
    index_base, row_base = np.int64(entries.ctypes.data), np.int64(words.ctypes.data)
    for place in range(len(slots)):
        slot = slots[place]
        far, near = slots[min(place + 32, len(slots) - 1)], slots[min(place + 16, len(slots) - 1)]
        prefetch(index_base + WORD_BYTES * (_row_hash(words, far, key_words) & mask))
        home = _row_hash(words, near, key_words)
        for more in range(2):
            other = (entries[(home + more) & mask] & SLOT_MASK) - 1
            prefetch(row_base + WORD_BYTES * words.shape[1] * other)
        if words[slot, 0] & (HEADER_ALIVE | HEADER_RELEASED) == 0:
            words[slot, 0] |= HEADER_RELEASED
            remove(entries, words, slot, key_words)
            free[free_count] = slot
            free_count += 1
    return free_count


@numba.njit(cache=True, nogil=True)
def merge_freed(free: Slots, count: int, more: Slots) -> None:
    """Merge slots that ascend into the first ones of a list, which descends and has room for them.

    From its end on, which has the lowest: as a rule little of it has to move.
    """
    target, place = count + len(more) - 1, 0
    while place < len(more):
        if count > 0 and free[count - 1] < more[place]:
            count -= 1
            free[target] = free[count]
        else:
            free[target] = more[place]
            place += 1
        target -= 1


@numba.njit(cache=True, nogil=True)
def transpose(words: Words, slots: Slots) -> np.ndarray:
    """The words of these rows by column, touching each row once."""
    out = np.empty((words.shape[1], len(slots)), np.int64)
    base, last = np.int64(words.ctypes.data), len(slots) - 1
    for row in range(len(slots)):
        prefetch(base + WORD_BYTES * words.shape[1] * slots[min(row + AHEAD, last)])
        for word in range(words.shape[1]):
            out[word, row] = words[slots[row], word]
    return out


@numba.njit(cache=True, nogil=True)
def gather_words(
    words: Words, slots: Slots, places: np.ndarray, narrow: np.ndarray, out: Words
) -> int:
    """Some words of these rows by column, and the slots in 32 bits, touching each row once.

    Returns how many of the rows are alive.
    """
    alive, width, flat = 0, words.shape[1], words.reshape(-1)
    base, last = np.int64(words.ctypes.data), len(slots) - 1
    for row in range(len(slots)):
        prefetch(base + WORD_BYTES * width * slots[min(row + AHEAD, last)])
        slot = slots[row]
        narrow[row] = slot
        first = slot * width
        alive += flat[at(first)] & HEADER_ALIVE
        for column in range(len(places)):
            out[column, row] = flat[at(first + places[column])]
    return alive


@numba.njit(cache=True, nogil=True)
def count_alive(words: Words, slots: Slots) -> int:
    """How many of these rows are alive."""
    alive = 0
    for row in range(len(slots)):
        alive += words[slots[row], 0] & HEADER_ALIVE
    return alive


@numba.njit(cache=True, nogil=True)
def put_words(words: Words, slots: Slots, word: int, values: np.ndarray) -> None:
    """Set one word of each of these rows."""
    for row in range(len(slots)):
        words[slots[row], word] = values[row]


@numba.njit(cache=True, nogil=True)
def set_words(words: Words, slots: Slots, word: int, value: int) -> None:
    """Set one word of all of these rows to one value."""
    for row in range(len(slots)):
        words[slots[row], word] = value


# --- the index of a whole table at once -----------------------------------------------------------


# To insert row by row is to wait for memory at every row. Here the place of each row in the index
# is asked for some rows ahead. Every thread goes through all rows and inserts those that belong
# into its own share of the index, so no two write to one place. What does not fit into its share
# goes in at the end, so every probe still ends where it should: no place between a row's home and
# its entry is empty.


def build_index(entries: np.ndarray, words: Words, count: int, key_words: int) -> int:
    """Fill the empty index with every live row among the first `count` slots.

    Returns how many of them are dead.
    """
    threads = 1 if count < ROWS_MIN else min(THREADS_MAX, _cores())
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


def _cores() -> int:
    """How many threads may work at once; a worker of Spark is told by OMP_NUM_THREADS."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    cores = os.cpu_count() or 1
    return max(1, min(cores, int(said))) if said.isdecimal() else cores


@numba.njit(cache=True, nogil=True)
def _insert_share(
    entries: np.ndarray, words: Words, count: int, key_words: int, first: int, last: int
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
        if slot < count and words[slot, 0] & HEADER_ALIVE:
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
def release_all_dead(words: Words, count: int) -> Slots:
    """Mark every dead slot among the first `count` as released; returns them, the lowest last."""
    dead = 0
    for slot in range(count):
        dead += 1 - (words[slot, 0] & HEADER_ALIVE)
    free = np.empty(dead, np.int64)
    for slot in range(count if dead else 0):
        if words[slot, 0] & HEADER_ALIVE == 0:
            words[slot, 0] = HEADER_RELEASED
            dead -= 1
            free[dead] = slot
    return free
