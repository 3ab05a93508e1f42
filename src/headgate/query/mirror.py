"""The mirror: a table's rows of one committed epoch as Arrow columns.

It is kept in chunks of slots; a refresh makes new chunks in place of those that changed and leaves
the old ones to whoever still reads them. So a reader's table never changes under it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.state.columns import to_arrow
from headgate.state.compiled import numba
from headgate.state.layout import HEADER_ALIVE, WORD_BYTES
from headgate.state.rows import TableRows, field_values
from headgate.state.spaces import Slots, Words

CHUNK_SLOTS = 1 << 16
RUN_CHUNKS = 8  # made at once, in one piece of memory; see `_make`
THREADS_MAX = 4
THREAD_RUNS = 4  # fewer take less time than to start a thread for them
_BLOCK_SLOTS = 512  # their words fit the first-level cache, which every column reads again
_at: Any = np.uint64  # an index that cannot count from the end: the kernel need not ask


class Mirror:
    """Columnar copies of one table's rows; used under the replica's lock."""

    def __init__(self, rows: TableRows) -> None:
        self._rows = rows
        # Each field, and the word that it stands in, the header not counted.
        self._fields = [(one, one.offset // WORD_BYTES - 1) for one in rows.layout.fields]
        self._chunks: list[pa.RecordBatch] = []
        self._dirty: set[int] = set()
        self._table: pa.Table | None = None

    def note(self, changed: Slots) -> None:
        """Remember that these slots changed since the last refresh."""
        known = len(self._chunks)
        if len(self._dirty) < known:
            marks = np.zeros(known + 1, np.bool_)
            marks[np.minimum(changed // CHUNK_SLOTS, known)] = True
            # Beyond the known chunks nothing is to be made anew: it is made when first asked for.
            self._dirty.update(np.flatnonzero(marks[:known]).tolist())

    def note_chunk(self, chunk: int) -> None:
        """Remember that the slots of one chunk changed."""
        if chunk < len(self._chunks):
            self._dirty.add(chunk)

    def table(self) -> pa.Table:
        """The rows of the last committed epoch; the same object as long as none changed."""
        count = -(-self._rows.count // CHUNK_SLOTS)
        known = len(self._chunks)
        if self._table is not None and not self._dirty and count == known:
            return self._table
        runs = list(_runs([*sorted(self._dirty), *range(known, count)]))
        for run, batches in zip(runs, self._make_all(runs), strict=True):
            self._chunks[run.start : run.stop] = batches
        self._dirty.clear()
        self._table = pa.Table.from_batches(self._chunks, schema=self._rows.table.schema.arrow)
        return self._table

    def _make_all(self, runs: Sequence[range]) -> list[list[pa.RecordBatch]]:
        """All runs, many of them on several threads; this one works, too, and waits for none that
        has not begun: beside other programs a new thread may be long in coming."""
        made: list[list[pa.RecordBatch]] = [[] for _ in runs]
        left = iter(range(len(runs)))

        def work() -> None:
            for number in left:
                made[number] = self._make(runs[number])

        helpers = min(THREADS_MAX, os.cpu_count() or 1, len(runs) // THREAD_RUNS) - 1
        if helpers <= 0:
            work()
            return made
        with ThreadPoolExecutor(helpers, thread_name_prefix="headgate-columns") as pool:
            helping = [pool.submit(work) for _ in range(helpers)]
            work()
            for one in helping:
                one.cancel()
        for one in helping:
            if not one.cancelled():
                one.result()  # which raises what it raised
        return made

    def _make(self, run: range) -> list[pa.RecordBatch]:
        """The chunks of a run, all of whose columns are in one piece of memory.

        It is large, for huge pages, and not larger, since the last chunk in use holds all of it.
        """
        count = self._rows.count
        bounds = [min(chunk * CHUNK_SLOTS, count) for chunk in range(run.start, run.stop + 1)]
        words = empty_words(self._rows.layout.words - 1, bounds[-1] - bounds[0])
        ends = [0]
        for first, last in pairwise(bounds):
            ends.append(int(_gather_live(self._rows.words, first, last, words, ends[-1])))
        return [self._batch(words[:, begin:end]) for begin, end in pairwise(ends)]

    def _batch(self, words: Words) -> pa.RecordBatch:
        rows = self._rows
        arrays = []
        for field, place in self._fields:
            nulls = field.nulls_in(words[field.null_word - 1]) if field.nullable else None
            values = field_values(field, words[place])
            arrays.append(to_arrow(values, field.type, rows.pool, nulls))
        return pa.RecordBatch.from_arrays(arrays, schema=rows.table.schema.arrow)


def _runs(chunks: Iterable[int]) -> Iterator[range]:
    """These chunks, ascending, in runs without a gap."""
    run = range(0)
    for chunk in chunks:
        if len(run) and chunk == run.stop and len(run) < RUN_CHUNKS:
            run = range(run.start, chunk + 1)
            continue
        if len(run):
            yield run
        run = range(chunk, chunk + 1)
    if len(run):
        yield run


@numba.njit(cache=True, nogil=True)
def _gather_live(words: Words, first: int, last: int, out: Words, begin: int) -> int:
    """Put the live rows among slots first..last, column by column and without their headers, into
    `out` from place `begin` on; returns the place behind the last."""
    flat, width = words.reshape(-1), words.shape[1]
    for block in range(first, last, _BLOCK_SLOTS):
        stop, end = min(block + _BLOCK_SLOTS, last), begin
        for word in range(1, width):
            end = begin
            for slot in range(block, stop):
                # Written in any case: that costs less than to ask.
                out[_at(word - 1), _at(end)] = flat[_at(slot * width + word)]
                end += flat[_at(slot * width)] & HEADER_ALIVE
        begin = end
    return begin


# --- memory for the words of chunks ---------------------------------------------------------------
# To get new memory from the system costs more than to fill it: it is cleared and mapped page by
# page. NumPy asks for huge pages, too, but its arrays do not begin with one, so that an array of a
# few megabytes hardly has any.

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
