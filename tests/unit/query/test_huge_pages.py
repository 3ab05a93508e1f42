"""Pages: arrays in memory of their own, of any size, on any system."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from headgate.query import mirror

LARGE = mirror.PAGE_BYTES // 8 // 3 + 7  # three lines of it take more than a page


@pytest.mark.parametrize("length", [0, 5, LARGE])
def test_every_word_is_of_its_own(length: int) -> None:
    words, other = mirror.empty_words(3, length), mirror.empty_words(3, length)
    values = np.arange(3 * length).reshape(3, length)
    other[:] = -1
    words[:] = values
    assert words.shape == (3, length) and words.dtype == np.int64
    assert np.array_equal(words, values) and (other == -1).all()


def test_a_view_holds_the_memory() -> None:
    view = mirror.empty_words(3, LARGE)[2, 4:]
    view[:] = 7
    mirror.empty_words(3, LARGE)[:] = 8
    assert (view == 7).all()


class Refusing(mmap.mmap):
    def madvise(self, *_: Any) -> None:
        raise OSError("no such advice")


def test_a_system_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror.mmap, "mmap", Refusing)
    assert mirror.empty_words(3, LARGE).shape == (3, LARGE)
    monkeypatch.delattr(mirror.mmap, "MADV_HUGEPAGE")
    assert mirror.empty_words(3, LARGE).shape == (3, LARGE)
