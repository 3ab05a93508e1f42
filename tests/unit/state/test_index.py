"""The key index against a dict: random keys, collisions by the dozen, deletes in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.state import index

WIDTHS = (1, 2, 3)
WORDS = st.one_of(st.integers(-3, 3), st.sampled_from((2**63 - 1, -(2**63), 2**32, 1 << 40)))
NO_SKIP = np.zeros(64, np.uint8)


class Indexed:
    """Rows in slots with an index over them, and the dict that says what should be found."""

    def __init__(self, width: int, entries: int) -> None:
        self.width = width
        self.words = np.zeros((64, 1 + width), np.int64)
        self.entries = np.zeros(entries, np.int64)
        self.slots: dict[tuple[int, ...], int] = {}

    def insert(self, key: tuple[int, ...]) -> None:
        slot = min(set(range(64)) - set(self.slots.values()))
        self.words[slot] = (1, *key)
        index.insert(self.entries, self.words, slot, self.width)
        self.slots[key] = slot

    def remove(self, key: tuple[int, ...]) -> None:
        slot = self.slots.pop(key)
        index.remove(self.entries, self.words, slot, self.width)
        self.words[slot, 0] = 0

    def find(self, keys: list[tuple[int, ...]]) -> list[int]:
        words = np.array(keys, np.int64).T.copy()
        out = np.empty(len(keys), np.int64)
        index.find_all(self.entries, self.words, words, NO_SKIP[: len(keys)], out)
        return [int(slot) for slot in out]


@settings(max_examples=150)
@given(data=st.data(), width=st.sampled_from(WIDTHS))
def test_every_key_is_found_and_no_other(data: st.DataObject, width: int) -> None:
    """Sixteen entries for up to twelve keys: nearly every probe meets another key first."""
    keys = st.tuples(*[WORDS] * width)
    indexed, asked = Indexed(width, 16), []
    for key in data.draw(st.lists(keys, max_size=30)):
        if key in indexed.slots:
            indexed.remove(key)
        elif len(indexed.slots) < 12:
            indexed.insert(key)
        asked.append(key)
        assert indexed.find(asked) == [indexed.slots.get(old, -1) for old in asked]


@given(keys=st.lists(WORDS, min_size=1, max_size=12), skipped=st.sets(st.integers(0, 11)))
def test_a_skipped_row_is_not_looked_up(keys: list[int], skipped: set[int]) -> None:
    indexed = Indexed(1, 64)
    for key in dict.fromkeys(keys):
        indexed.insert((key,))
    skip = np.array([place in skipped for place in range(len(keys))], np.uint8)
    out = np.empty(len(keys), np.int64)
    index.find_all(indexed.entries, indexed.words, np.array([keys], np.int64), skip, out)
    expected = [-1 if skip[place] else indexed.slots[key,] for place, key in enumerate(keys)]
    assert list(out) == expected


@pytest.mark.parametrize("width", WIDTHS)
def test_one_word_and_several_are_looked_up_alike(width: int) -> None:
    indexed = Indexed(width, 128)
    keys = [tuple(number * 7 + part for part in range(width)) for number in range(40)]
    for key in keys:
        indexed.insert(key)
    words = np.array(keys, np.int64).T.copy()
    for row, key in enumerate(keys):
        wide = index.find_wide(indexed.entries, indexed.words, words, row)
        assert wide == indexed.slots[key]
        if width == 1:
            assert index.find(indexed.entries, indexed.words, words[0, row]) == wide


def test_the_first_key_that_is_there_already_is_reported() -> None:
    words = np.array([[1, 5], [1, 6], [1, 5], [1, 6]], np.int64)
    entries = np.zeros(16, np.int64)
    assert index.insert_new(entries, words, 0, 2, 1) == -1
    assert index.insert_new(entries, words, 2, 4, 1) == 2
