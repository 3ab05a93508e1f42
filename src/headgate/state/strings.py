"""Strings: every text in rows and events is one int64 code, equal exactly when the texts are.

A text's code is a 63-bit hash of its UTF-8 bytes, so a literal's code is known at compile time. The
pool keeps the bytes of every code. Two texts with one hash (about once in 10**18 pairs) are told
apart: the second takes the next free code, and both stay in the pool for good.

Kernels that need more than a code reach the pool by its window (characters.py), and add the texts
that they make there; the pool takes them over, with the codes that they have, before it is asked
for anything. Invariant: what a kernel that runs may look at stays where it is.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import check_invariant
from headgate.state.characters import (
    CODE,
    IS_STICKY,
    MADE_BYTES,
    NEWEST,
    OLDER,
    SIZE,
    TextWindow,
    entry_of,
    hash_at,
    same_bytes,
)
from headgate.state.compiled import numba
from headgate.state.words import byte_at, load, store

CODE_MASK = np.int64(0x7FFFFFFFFFFFFFFF)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD = 0xFFFFFFFFFFFFFFFF
_FIRST_CELLS = 1024
_NOBODY = contextlib.nullcontext()  # where no kernel adds texts
_FEW = 4  # texts that are interned without a kernel


@numba.njit(cache=True, nogil=True)
def hash_bytes(data: np.ndarray, start: int, end: int) -> Any:
    """A 63-bit hash of data[start:end], never 0 (the code of the empty text)."""
    return hash_at(np.int64(data.ctypes.data) + start, end - start)


@numba.njit(cache=True, nogil=True)
def _entry_of(cells: np.ndarray, codes: np.ndarray, code: int) -> int:
    """The entry that has this code, or -1 - (the free cell where it would go)."""
    place = entry_of(np.int64(cells.ctypes.data), len(cells) - 1, np.int64(codes.ctypes.data), code)
    return int(place)


@numba.njit(cache=True, nogil=True)
def _same(arena: np.ndarray, start: int, data: np.ndarray, first: int, size: int) -> bool:
    one, other = np.int64(arena.ctypes.data) + start, np.int64(data.ctypes.data) + first
    return same_bytes(one, other, size)


@numba.njit(cache=True, nogil=True)
def _publish(cells: np.ndarray, place: int, entry: int) -> None:
    """Show an entry that is complete: kernels of other threads may look for it."""
    store(np.int64(cells.ctypes.data), place, entry)


@numba.njit(cache=True, nogil=True)
def _intern(
    cells: np.ndarray,
    codes: np.ndarray,
    starts: np.ndarray,
    arena: np.ndarray,
    sticky: np.ndarray,
    count: int,
    offsets: np.ndarray,
    data: np.ndarray,
    out: np.ndarray,
) -> int:
    """Write each text's code to `out`, adding unknown texts; the arrays are large enough."""
    for row in range(len(out)):
        first = np.int64(offsets[row])
        size = np.int64(offsets[row + 1]) - first
        if size == 0:
            out[row] = 0
            continue
        code = hash_bytes(data, first, first + size)
        moved = False
        while True:
            entry = _entry_of(cells, codes, code)
            if entry < 0:
                codes[count] = code
                for byte in range(size):  # a slice would take seconds to compile
                    arena[starts[count] + byte] = data[first + byte]
                starts[count + 1] = starts[count] + size
                sticky[count] = moved
                _publish(cells, -1 - entry, count)
                count += 1
                break
            same_size = starts[entry + 1] - starts[entry] == size
            if same_size and _same(arena, starts[entry], data, first, size):
                break
            # Two texts with one hash. Neither may ever be forgotten: without the first, the second
            # would be looked for under its own hash, not found there, and get a second code.
            sticky[entry] = True
            moved = True
            code = code + 1 if code != CODE_MASK else np.int64(1)
        out[row] = code
    return count


@numba.njit(cache=True, nogil=True)
def _rebuild(cells: np.ndarray, codes: np.ndarray, count: int) -> None:
    cells[:] = -1
    for entry in range(count):
        cells[-1 - _entry_of(cells, codes, codes[entry])] = entry


@numba.njit(cache=True, nogil=True)
def _sizes(
    cells: np.ndarray,
    codes: np.ndarray,
    starts: np.ndarray,
    wanted: np.ndarray,
    offsets: np.ndarray,
) -> int:
    """Fill the offsets of the wanted texts laid end to end; returns the first unknown row or -1."""
    offsets[0] = 0
    for row in range(len(wanted)):
        size = np.int64(0)
        if wanted[row] != 0:
            entry = _entry_of(cells, codes, wanted[row])
            if entry < 0:
                return row
            size = starts[entry + 1] - starts[entry]
        offsets[row + 1] = offsets[row] + size
    return -1


@numba.njit(cache=True, nogil=True)
def _gather(
    cells: np.ndarray,
    codes: np.ndarray,
    starts: np.ndarray,
    arena: np.ndarray,
    wanted: np.ndarray,
    offsets: np.ndarray,
    out: np.ndarray,
) -> None:
    for row in range(len(wanted)):
        if wanted[row] != 0:
            start = starts[_entry_of(cells, codes, wanted[row])]
            for byte in range(offsets[row + 1] - offsets[row]):
                out[offsets[row] + byte] = arena[start + byte]


@numba.njit(cache=True, nogil=True)
def _mark(cells: np.ndarray, codes: np.ndarray, used: np.ndarray, live: np.ndarray) -> None:
    for row in range(len(used)):
        if used[row] != 0:
            entry = _entry_of(cells, codes, used[row])
            if entry >= 0:
                live[entry] = True


@numba.njit(cache=True, nogil=True)
def _keep(codes: np.ndarray, starts: np.ndarray, arena: np.ndarray, sticky: np.ndarray,
          live: np.ndarray, count: int) -> int:  # fmt: skip
    """Move the live entries to the front; codes stay what they are."""
    kept, end = 0, np.int64(0)
    for entry in range(count):
        if live[entry] or sticky[entry]:
            start, size = starts[entry], starts[entry + 1] - starts[entry]
            for byte in range(size):
                arena[end + byte] = arena[start + byte]
            codes[kept], sticky[kept], starts[kept] = codes[entry], sticky[entry], end
            end += size
            kept += 1
    starts[kept] = end
    # A kernel that meets a new entry half written must not take it for one that is no more there.
    codes[kept:count] = 0
    return kept


# --- texts that kernels made ----------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _measure_made(newest: int, taken: int) -> tuple[int, int]:
    """How many texts were made after the one that was taken last, and of how many bytes."""
    count, size = 0, 0
    while newest != taken:
        count += 1
        size += load(newest, SIZE)
        newest = load(newest, OLDER)
    return count, size


@numba.njit(cache=True, nogil=True)
def _take(
    cells: np.ndarray, codes: np.ndarray, starts: np.ndarray, arena: np.ndarray,
    sticky: np.ndarray, count: int, newest: int, taken: int,
) -> int:  # fmt: skip
    """Add those texts, with the codes that they have; the arrays are large enough."""
    while newest != taken:
        entry = _entry_of(cells, codes, load(newest, CODE))
        if entry < 0:
            size = load(newest, SIZE)
            codes[count] = load(newest, CODE)
            for byte in range(size):
                arena[starts[count] + byte] = byte_at(newest + MADE_BYTES + byte)
            starts[count + 1] = starts[count] + size
            sticky[count] = load(newest, IS_STICKY) != 0
            _publish(cells, -1 - entry, count)
            count += 1
        newest = load(newest, OLDER)
    return count


def text_code(text: str) -> int:
    """The code a text has unless the pool has met another with the same hash before."""
    data = text.encode()
    return _plain_hash(data) if data else 0


def _plain_hash(data: bytes) -> int:
    """As `hash_bytes`, for the few texts of a program: they must not wait for a compiler."""
    value = 0x51ED270B9F2D6C3B ^ (len(data) * int(_MULTIPLIER) & _WORD)
    whole = len(data) // 8 * 8
    for place in range(0, whole, 8):
        word = int.from_bytes(data[place : place + 8], "little")
        value = (value ^ word) * int(_MULTIPLIER) & _WORD
        value ^= value >> 29
    value = (value ^ int.from_bytes(data[whole:], "little")) * 0xD6E8FEB86659FD93 & _WORD
    value ^= value >> 32
    value = value * int(_MULTIPLIER) & _WORD
    value ^= value >> 32
    return value & int(CODE_MASK) or 1


class StringPool:
    """The texts behind the codes, one pool for all tables of an engine."""

    def __init__(self) -> None:
        self.count = 0
        self._cells = np.full(_FIRST_CELLS, -1, np.int64)
        self._codes = np.zeros(_FIRST_CELLS, np.int64)
        self._starts = np.zeros(_FIRST_CELLS + 1, np.int64)
        self._sticky = np.zeros(_FIRST_CELLS, np.bool_)
        self._arena = np.zeros(1 << 16, np.uint8)
        self._window: TextWindow | None = None  # of a pool whose characters kernels look at
        self._taken = 0  # the made text that was taken over last

    def reach(self) -> int:
        """The address by which kernels reach the texts; it stays."""
        if self._window is None:
            self.add_literals(("True", "False"))  # the texts of booleans
            self._window = TextWindow()
            self._show()
        return self._window.address

    def settle(self) -> None:
        """Take over what kernels made, and give its memory back; none of them runs."""
        if self._window is not None:
            with self._alone():
                self._window.clear()
                self._taken = 0

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """While no other thread adds a text, and all that were added are known."""
        return _NOBODY if self._window is None else self._alone_with(self._window)

    @contextlib.contextmanager
    def _alone_with(self, window: TextWindow) -> Iterator[None]:
        with window:
            self._take_made(int(window.words[NEWEST]))
            yield

    def _take_made(self, newest: int) -> None:
        if newest != self._taken:
            count, size = _measure_made(newest, self._taken)
            self._reserve(count, size)
            arrays = self._cells, self._codes, self._starts, self._arena, self._sticky
            self.count = int(_take(*arrays, self.count, newest, self._taken))
            self._taken = newest

    def _show(self) -> None:
        if self._window is not None:
            arrays = self._cells, self._codes, self._starts, self._arena, self._sticky
            self._window.show(arrays)

    def add_literals(self, texts: Iterable[str]) -> None:
        """Texts that kernels know by their code: they must have their own hash as code."""
        for text in texts:
            code = int(self.intern(pa.array([text], pa.string()))[0])
            check_invariant(code == text_code(text), f"two literals share a hash: {text!r}")
            entry = self._entry(code) if code else -1
            if entry >= 0:
                self._sticky[entry] = True

    def intern(self, texts: pa.Array) -> np.ndarray:
        """The codes of an Arrow string array; nulls get the code of the empty text."""
        if pa.types.is_dictionary(texts.type):
            return self._intern_dictionary(texts)
        if pa.types.is_string_view(texts.type):
            texts = texts.cast(pa.string())
        if texts.null_count:
            texts = texts.fill_null("")
        with self._alone():
            return self._interned(texts)

    def _interned(self, texts: pa.Array) -> np.ndarray:
        if len(texts) <= _FEW:
            return np.array([self._intern_one(_encoded(text)) for text in texts], np.int64)
        out = np.empty(len(texts), np.int64)
        offsets, data = _string_buffers(texts)
        size = int(offsets[-1]) - int(offsets[0])
        self._reserve(len(texts), size)
        self.count = int(
            _intern(self._cells, self._codes, self._starts, self._arena, self._sticky,
                    self.count, offsets, data, out)
        )  # fmt: skip
        return out

    def _intern_one(self, text: bytes) -> int:
        """As `_intern`, for one of few texts: a program's own need not wait for a compiler."""
        if not text:
            return 0
        code, moved = _plain_hash(text), False
        while True:
            entry = self._entry(code)
            if entry < 0:
                break
            start, end = self._starts[entry : entry + 2].tolist()
            if self._arena[start:end].tobytes() == text:
                return code
            self._sticky[entry] = moved = True
            code = code + 1 if code != int(CODE_MASK) else 1
        self._reserve(1, len(text))
        entry, start = self.count, int(self._starts[self.count])
        self._codes[entry], self._sticky[entry] = code, moved
        self._arena[start : start + len(text)] = np.frombuffer(text, np.uint8)
        self._starts[entry + 1] = start + len(text)
        self._cells[-1 - self._entry(code)] = entry  # to make room may have moved the cells
        self.count += 1
        return code

    def _entry(self, code: int) -> int:
        """As `_entry_of`."""
        mask = len(self._cells) - 1
        place = code & mask
        while (entry := int(self._cells[place])) >= 0 and int(self._codes[entry]) != code:
            place = (place + 1) & mask
        return entry if entry >= 0 else -1 - place

    def _intern_dictionary(self, texts: pa.DictionaryArray) -> np.ndarray:
        codes = np.append(self.intern(texts.dictionary.cast(pa.large_string())), 0)
        places = texts.indices
        if places.null_count:  # in a wider type: the place behind the last may be one too many
            places = places.cast(pa.int64()).fill_null(len(codes) - 1)
        return codes[places.to_numpy(zero_copy_only=False)]

    def texts(self, codes: np.ndarray) -> pa.Array:
        """The Arrow string array behind the codes."""
        with self._alone():
            return self._texts(np.ascontiguousarray(codes, np.int64))

    def _texts(self, wanted: np.ndarray) -> pa.Array:
        offsets = np.empty(len(wanted) + 1, np.int64)
        unknown = _sizes(self._cells, self._codes, self._starts, wanted, offsets)
        check_invariant(unknown < 0, f"the string pool has no text for the code at row {unknown}")
        data = np.empty(int(offsets[-1]), np.uint8)
        _gather(self._cells, self._codes, self._starts, self._arena, wanted, offsets, data)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        large = pa.Array.from_buffers(pa.large_string(), len(wanted), buffers)
        return large.cast(pa.string())

    def text(self, code: int) -> str:
        """The text behind one code."""
        if code == 0:
            return ""
        with self._alone():
            entry = self._entry(code)
            check_invariant(entry >= 0, f"the string pool has no text for the code {code}")
            start, end = self._starts[entry : entry + 2].tolist()
            return self._arena[start:end].tobytes().decode()

    def compact(self, used: Iterable[np.ndarray]) -> None:
        """Forget the texts whose code is in none of the arrays (and no literal); no kernel runs."""
        self.settle()
        live = np.zeros(self.count, np.bool_)
        for codes in used:
            _mark(self._cells, self._codes, np.ascontiguousarray(codes, np.int64), live)
        self.count = int(
            _keep(self._codes, self._starts, self._arena, self._sticky, live, self.count)
        )
        _rebuild(self._cells, self._codes, self.count)

    def _reserve(self, texts: int, size: int) -> None:
        before = self._cells, self._codes, self._arena
        self._make_room(texts, size)
        if any(map(operator.is_not, before, (self._cells, self._codes, self._arena))):
            self._show()

    def _make_room(self, texts: int, size: int) -> None:
        need = self.count + texts
        if need > len(self._codes):
            room = max(need, 2 * len(self._codes))
            self._codes = np.concatenate([self._codes, np.zeros(room - len(self._codes), np.int64)])
            self._sticky = np.concatenate([self._sticky, np.zeros(room - len(self._sticky), bool)])
            extra = np.zeros(room + 1 - len(self._starts), np.int64)
            self._starts = np.concatenate([self._starts, extra])
        if 2 * need > len(self._cells):  # half of them stay empty, so that probes are short
            cells = np.full(1 << (2 * need - 1).bit_length(), -1, np.int64)
            _rebuild(cells, self._codes, self.count)
            self._cells = cells
        end = int(self._starts[self.count]) + size
        if end > len(self._arena):
            room = max(end, 2 * len(self._arena))
            self._arena = np.concatenate([self._arena, np.zeros(room - len(self._arena), np.uint8)])


def _encoded(text: Any) -> bytes:
    """The bytes of an Arrow text."""
    buffer = text.as_buffer()
    return b"" if buffer is None else buffer.to_pybytes()


def _string_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        texts = texts.cast(pa.large_string())
    width = np.int32 if pa.types.is_string(texts.type) else np.int64
    _, offset_buffer, data_buffer = texts.buffers()
    every = np.frombuffer(offset_buffer, width)
    data = np.zeros(1, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return every[texts.offset : texts.offset + len(texts) + 1], data
