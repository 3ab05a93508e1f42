"""The bounds of the ledger benchmark: what the same transfers cost with nothing around them.

The simple loop is the bound: an int64 open-addressing index in two arrays and the balances in a
third; no order, no undo, no check, no results. Beside it stands the same loop over the engine's own
index and rows, which is what the bound used to be.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pyarrow as pa

from headgate.state import index
from headgate.state.rows import TableRows


@numba.njit(nogil=True)
def _place(key: int, mask: int) -> Any:
    return np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask


@numba.njit(nogil=True)
def fill(keys: np.ndarray, known: np.ndarray, places: np.ndarray) -> None:
    mask = len(known) - 1
    for number in range(len(keys)):
        place = _place(keys[number], mask)
        while places[place] >= 0:
            place = (place + 1) & mask
        known[place], places[place] = keys[number], number


@numba.njit(nogil=True)
def find(known: np.ndarray, places: np.ndarray, key: int) -> int:
    mask = len(known) - 1
    place = _place(key, mask)
    while places[place] >= 0:
        if known[place] == key:
            return places[place]
        place = (place + 1) & mask
    return -1


@numba.njit(nogil=True)
def simple_loop(
    known: np.ndarray,
    places: np.ndarray,
    balance: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    amount: np.ndarray,
) -> None:
    for event in range(len(src)):
        source, target = find(known, places, src[event]), find(known, places, dst[event])
        if source >= 0 and target >= 0 and balance[source] >= amount[event]:
            balance[source] -= amount[event]
            balance[target] += amount[event]


@numba.njit(nogil=True)
def loop_over_rows(
    entries: np.ndarray,
    words: np.ndarray,
    balance: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    amount: np.ndarray,
) -> None:
    for event in range(len(src)):
        source = index.find(entries, words, src[event])
        target = index.find(entries, words, dst[event])
        if balance[source] >= amount[event]:
            balance[source] -= amount[event]
            balance[target] += amount[event]


def _columns(events: pa.Table) -> list[np.ndarray]:
    return [events.column(name).chunk(0).to_numpy() for name in ("src", "dst", "amount")]


class SimpleBound:
    """The bare loop over arrays of its own."""

    def __init__(self, rows: pa.Table) -> None:
        self.ids = rows.column("id").to_numpy()
        size = 1 << int(len(self.ids) / 0.6).bit_length()
        self.known, self.places = np.zeros(size, np.int64), np.full(size, -1, np.int64)
        fill(self.ids, self.known, self.places)
        self.balance = rows.column("balance").to_numpy().copy()

    def run(self, events: pa.Table) -> None:
        simple_loop(self.known, self.places, self.balance, *_columns(events))


class OwnIndexBound:
    """The same over a copy of the engine's rows, found by the engine's own index."""

    def __init__(self, table: TableRows) -> None:
        self.entries, self.words = table.entries.copy(), table.words.copy()
        self.balance = self.words.view(np.float64)[:, 2].copy()

    def run(self, events: pa.Table) -> None:
        loop_over_rows(self.entries, self.words, self.balance, *_columns(events))
