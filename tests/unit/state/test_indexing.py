"""An index built at once finds what one that was filled row by row finds."""

from __future__ import annotations

import os

import numpy as np
import pytest

from headgate.state import index
from headgate.state.integrity import hash_of

ROWS = 20_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a large table is built, and by many threads, so that rows spill over from their shares."""
    monkeypatch.setattr(index, "ROWS_MIN", 1)
    monkeypatch.setattr(index, "THREADS_MAX", 64)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


def made_words(keys: np.ndarray, key_words: int, alive: np.ndarray) -> np.ndarray:
    words = np.zeros((len(keys), key_words + 2), np.int64)
    words[:, 0] = np.where(alive, index.HEADER_ALIVE, 0)
    for place in range(key_words):
        words[:, 1 + place] = keys * (place + 1)
    return words


@pytest.mark.parametrize("key_words", [1, 2])
@pytest.mark.parametrize("spread", [1, 7919, 2**40])
def test_every_live_row_is_found_and_no_other(key_words: int, spread: int) -> None:
    random = np.random.default_rng(key_words + spread % 1000)
    keys = random.permutation(ROWS).astype(np.int64) * spread
    alive = random.random(ROWS) < 0.9
    words = made_words(keys, key_words, alive)
    entries = np.zeros(1 << 15, np.int64)
    dead = index.build_index(entries, words, ROWS, key_words)
    assert dead == np.count_nonzero(~alive)
    wanted = np.ascontiguousarray(words[:, 1 : 1 + key_words].T)
    found = np.empty(ROWS, np.int64)
    index.find_all(entries, words, wanted, np.zeros(ROWS, np.uint8), found)
    assert np.array_equal(found, np.where(alive, np.arange(ROWS), -1))


def test_rows_can_be_taken_out_of_an_index_that_was_built_at_once() -> None:
    keys = np.arange(ROWS, dtype=np.int64)
    words = made_words(keys, 1, np.ones(ROWS, np.bool_))
    entries = np.zeros(1 << 15, np.int64)
    index.build_index(entries, words, ROWS, 1)
    for slot in range(0, ROWS, 2):
        index.remove(entries, words, slot, 1)
    found = np.empty(ROWS, np.int64)
    index.find_all(entries, words, keys.reshape(1, -1), np.zeros(ROWS, np.uint8), found)
    assert np.array_equal(found, np.where(keys % 2, keys, -1))


def test_rows_whose_homes_are_all_at_the_end_go_round_to_the_beginning() -> None:
    size = 1 << 12
    every = np.arange(400_000, dtype=np.int64)
    homes = np.array([int(hash_of(np.array([key]))) & (size - 1) for key in every])
    keys = every[homes >= size - 8][:300]
    assert len(keys) == 300
    words = made_words(keys, 1, np.ones(300, np.bool_))
    entries = np.zeros(size, np.int64)
    index.build_index(entries, words, 300, 1)
    found = np.empty(300, np.int64)
    index.find_all(entries, words, keys.reshape(1, -1), np.zeros(300, np.uint8), found)
    assert np.array_equal(found, np.arange(300))
    assert entries[0] != 0


def test_dead_slots_are_released_and_the_lowest_is_taken_first() -> None:
    words = made_words(np.arange(10, dtype=np.int64), 1, np.arange(10) % 3 == 0)
    assert index.release_all_dead(words, 9).tolist() == [8, 7, 5, 4, 2, 1]
    assert (
        words[:9, 0] == np.where(np.arange(9) % 3 == 0, index.HEADER_ALIVE, index.HEADER_RELEASED)
    ).all()
    assert index.release_all_dead(words[::3].copy(), 4).tolist() == []
