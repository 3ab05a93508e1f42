"""Pages: arrays of words in memory of their own, in huge pages where the system has them.

To get new memory from the system costs more than to fill it: it is cleared and mapped page by page.
NumPy asks for huge pages, too, but its arrays do not begin with one, so that an array of a few
megabytes hardly has any.
"""

from __future__ import annotations

import mmap

import numpy as np

from headgate.state.spaces import Words

PAGE_BYTES = 1 << 21


def empty_words(lines: int, length: int) -> Words:
    """An array of lines x length words, whatever is in them."""
    size = lines * length * np.dtype(np.int64).itemsize
    if size < PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty((lines, length), np.int64)
    pages, flags = -(-size // PAGE_BYTES), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        region = mmap.mmap(-1, pages * PAGE_BYTES, flags=flags)
        region.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a system without them, or without memory, which NumPy says in its own way
        return np.empty((lines, length), np.int64)
    return np.frombuffer(region, np.int64, lines * length).reshape(lines, length)
