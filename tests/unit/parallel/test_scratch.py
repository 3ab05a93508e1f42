"""Memory that batch after batch uses again."""

from __future__ import annotations

import numpy as np

from headgate.parallel.precedence import Scratch


def test_arrays_do_not_overlap_and_have_their_length() -> None:
    scratch = Scratch()
    for _ in range(3):  # without room, and then with it
        scratch.begin()
        arrays = [scratch.full(count, count) for count in (0, 1, 7, 1000)]
        small = scratch.full(13, -1, np.int8)
        assert [len(array) for array in arrays] == [0, 1, 7, 1000]
        assert all((array == len(array)).all() for array in arrays)
        assert small.dtype == np.int8
        assert small.tolist() == [-1] * 13
        assert all(array.dtype == np.int64 for array in arrays)


def test_the_next_batch_has_the_same_memory() -> None:
    scratch = Scratch()
    scratch.begin()
    scratch.empty(100)
    scratch.begin()
    first = scratch.zeros(100)
    scratch.begin()
    assert np.shares_memory(first, scratch.empty(100))
    assert not np.shares_memory(first, scratch.empty(100))


def test_more_than_there_is_room_for_is_given_all_the_same() -> None:
    scratch = Scratch()
    scratch.begin()
    scratch.empty(10)
    scratch.begin()
    kept = scratch.full(10, 3)
    large = scratch.full(10_000, 4)
    assert (kept == 3).all()
    assert (large == 4).all()
