"""Slot order: slots in the order of what their rows say, compiled, by all threads there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from headgate.state.compiled import numba
from headgate.state.layout import HEADER_ALIVE
from headgate.state.order_words import order_word
from headgate.state.spaces import Slots
from headgate.state.tree import FILLED
from headgate.state.words import word_at as get

DIGIT_BITS = 11
SLOT_BITS = 32  # a slot stands in half a word, as in the index of keys
THREADS_MAX = 4
SURVEY_ROWS = 512  # they are in the cache for the next word
LEAST, GREATEST, FIRST, LAST, ASCENDS, SURVEY_WORDS = range(6)
at: Any = np.uint64  # an index that cannot count from the end: the kernels need not ask
T = TypeVar("T")


def in_shares(work: Callable[[int, int], T], count: int, is_large: bool) -> list[T]:
    """Do the work for so many, from one to another; where it is much, threads share them."""
    threads = min(THREADS_MAX, os.cpu_count() or 1) if is_large else 1
    edges = np.linspace(0, count, threads + 1).astype(int).tolist()
    if len(edges) == 2:
        return [work(0, count)]
    with ThreadPoolExecutor(len(edges) - 1, thread_name_prefix="headgate-index") as pool:
        return list(pool.map(work, edges[:-1], edges[1:]))


# --- words that are few: each slot goes to its place at once --------------------------------------


@dataclass(frozen=True)
class Survey:
    """What the entries of live rows are like: by share of them and by word, see `_survey`."""

    counts: list[int]
    shares: list[np.ndarray]

    @property
    def alive(self) -> int:
        """How many live rows there are."""
        return sum(self.counts)

    def _of(self, part: int) -> np.ndarray:
        there = [one[part] for one, n in zip(self.shares, self.counts, strict=True) if n]
        return np.array(there, np.int64).reshape(len(there), SURVEY_WORDS)

    def ascends(self, part: int) -> bool:
        """Whether a word is nowhere less than in the slot before."""
        found = self._of(part)
        return bool(found[:, ASCENDS].all() and (found[:-1, LAST] <= found[1:, FIRST]).all())

    def least(self, part: int) -> int:
        return int(self._of(part)[:, LEAST].min())

    def bits(self, part: int) -> int:
        """How many bits tell one value of a word from another."""
        return (int(self._of(part)[:, GREATEST].max()) - self.least(part)).bit_length()


def surveyed(rows: tuple[int, int], recipe: np.ndarray, count: int, is_large: bool) -> Survey:
    """Look at the entries of the live rows in so many slots."""

    def look(first: int, last: int) -> tuple[int, np.ndarray]:
        out = np.zeros((len(recipe), SURVEY_WORDS), np.int64)
        return int(_survey(*rows, recipe, out, first, last)), out

    found = in_shares(look, count, is_large)
    return Survey([n for n, _ in found], [out for _, out in found])


def dealt(
    given: tuple[int, ...], found: Survey, part: int, leaves: np.ndarray, count: int,
    is_large: bool,
) -> np.ndarray:  # fmt: skip
    """The live ones of so many slots in the order of a word, those of equal ones as they are; the
    leaves of a tree that is filled so are noted, too."""
    least, size = found.least(part), 1 << found.bits(part)

    def counted(first: int, last: int) -> tuple[int, np.ndarray]:
        counts = np.zeros(size, np.int32)
        _count_words(*given, least, counts, first, last)
        return first, counts

    shares = in_shares(counted, count, is_large)
    total = np.sum([counts for _, counts in shares], axis=0, dtype=np.int32)
    place, places = np.cumsum(total, dtype=np.int32) - total, {}
    for first, counts in shares:
        places[first] = place
        place = place + counts
    order = np.empty(found.alive, np.int32)

    def deal(first: int, last: int) -> None:
        _deal_slots(*given, least, places[first], order, leaves, first, last)

    in_shares(deal, count, is_large)
    return order


@numba.njit(cache=True, nogil=True)
def _survey(
    rows: int, row_words: int, recipe: np.ndarray, out: np.ndarray, first: int, last: int
) -> int:
    """What the entries of the live rows in these slots are like, by word: the least, the greatest,
    the first, the last, and whether they ascend with the slots. Returns how many there are."""
    alive = 0
    for begin in range(first, last, SURVEY_ROWS):
        end, more = min(begin + SURVEY_ROWS, last), 0
        for part in range(len(recipe)):
            offset, kind, count = recipe[part, 0], recipe[part, 1], alive
            least, greatest, first_word, last_word, ascends = out[part]
            for slot in range(begin, end):
                row = rows + 8 * row_words * slot
                if get(row, 0) & HEADER_ALIVE == 0:
                    continue
                word = order_word(row, offset, kind)
                if count == 0:
                    least, greatest, first_word, last_word, ascends = word, word, word, word, 1
                least, greatest = min(least, word), max(greatest, word)
                ascends &= last_word <= word
                last_word = word
                count += 1
            out[part, LEAST], out[part, GREATEST] = least, greatest
            out[part, FIRST], out[part, LAST], out[part, ASCENDS] = first_word, last_word, ascends
            more = count
        alive = more
    return alive


@numba.njit(cache=True, nogil=True)
def _count_words(
    rows: int, row_words: int, offset: int, kind: int, least: int, counts: np.ndarray,
    first: int, last: int,
) -> None:  # fmt: skip
    """How many live rows in these slots have each word, counted from the least on."""
    for slot in range(first, last):
        row = rows + 8 * row_words * slot
        if get(row, 0) & HEADER_ALIVE:
            counts[at(order_word(row, offset, kind) - least)] += 1


@numba.njit(cache=True, nogil=True)
def _deal_slots(
    rows: int, row_words: int, offset: int, kind: int, least: int, places: np.ndarray,
    order: np.ndarray, leaves: np.ndarray, first: int, last: int,
) -> None:  # fmt: skip
    """Put the live rows in these slots into their order, where for each word `places` has the next
    place, and note the leaf of each."""
    for slot in range(first, last):
        row = rows + 8 * row_words * slot
        if get(row, 0) & HEADER_ALIVE:
            word = order_word(row, offset, kind) - least
            place = places[at(word)]
            places[at(word)] = place + 1
            order[at(place)] = slot
            leaves[at(slot)] = place // FILLED + 1


# --- words that are many: digit after digit -------------------------------------------------------


def sort_slots(column: np.ndarray, order: Slots, spare: Slots) -> tuple[Slots, Slots]:
    """Sort slots by a column, those of equal values as they were; returns both arrays again."""
    values = np.empty(len(order), np.int64)
    is_sorted, least, greatest = _gather(column, order, values)
    if is_sorted:
        return order, spare
    others, bits = np.empty_like(values), (int(greatest) - int(least)).bit_length()
    if bits <= SLOT_BITS:
        return _sort_packed(values, others, int(least), bits, order), spare
    values -= least  # may wrap around: the difference counts as a number without a sign
    for shift in range(0, bits, DIGIT_BITS):
        _sort_digit(values.view(np.uint64), others.view(np.uint64), shift, order, spare)
        order, spare, values, others = spare, order, others, values
    return order, spare


def _sort_packed(
    values: np.ndarray, others: np.ndarray, least: int, bits: int, order: Slots
) -> Slots:
    """The same where a value and its slot go into one word: so half as much has to be moved."""
    _pack(values, least, order)
    for shift in range(SLOT_BITS, SLOT_BITS + bits, DIGIT_BITS):
        _sort_words(values.view(np.uint64), others.view(np.uint64), shift)
        values, others = others, values
    order[:] = values & ((1 << SLOT_BITS) - 1)
    return order


@numba.njit(cache=True, nogil=True)
def _pack(values: np.ndarray, least: int, order: Slots) -> None:
    for place in range(len(values)):
        values[place] = (values[place] - least) << SLOT_BITS | order[place]


@numba.njit(cache=True, nogil=True)
def _sort_words(words: np.ndarray, others: np.ndarray, shift: int) -> None:
    """Sort words by one digit into the other array."""
    mask, places = np.uint64((1 << DIGIT_BITS) - 1), np.zeros((1 << DIGIT_BITS) + 1, np.int64)
    for word in words:
        places[np.int64((word >> np.uint64(shift)) & mask) + 1] += 1
    for digit in range(1, len(places)):
        places[digit] += places[digit - 1]
    for word in words:
        mine = np.int64((word >> np.uint64(shift)) & mask)
        others[places[mine]] = word
        places[mine] += 1


@numba.njit(cache=True, nogil=True)
def _gather(column: np.ndarray, order: Slots, out: np.ndarray) -> tuple[bool, int, int]:
    """The values in this order; whether they ascend, the least and the greatest of them."""
    if len(order) == 0:
        return True, 0, 0
    before = least = greatest = column[order[0]]
    is_sorted = True
    for place in range(len(order)):
        value = column[order[place]]
        out[place] = value
        is_sorted &= before <= value
        least, greatest, before = min(least, value), max(greatest, value), value
    return is_sorted, least, greatest


@numba.njit(cache=True, nogil=True)
def _sort_digit(
    values: np.ndarray, others: np.ndarray, shift: int, order: Slots, spare: Slots
) -> None:
    """Sort values and their slots by one digit into the other arrays."""
    mask, places = np.uint64((1 << DIGIT_BITS) - 1), np.zeros((1 << DIGIT_BITS) + 1, np.int64)
    for place in range(len(values)):
        places[np.int64((values[place] >> np.uint64(shift)) & mask) + 1] += 1
    for digit in range(1, len(places)):
        places[digit] += places[digit - 1]
    for place in range(len(values)):
        mine = np.int64((values[place] >> np.uint64(shift)) & mask)
        target = places[mine]
        others[target], spare[target] = values[place], order[place]
        places[mine] = target + 1
