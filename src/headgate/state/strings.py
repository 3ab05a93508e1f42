"""Strings: every text in rows and events is one int64 code, equal exactly when the texts are.

A text's code is a 63-bit hash of its UTF-8 bytes, so a literal's code is known at compile time. The
pool keeps the bytes of every code. Two texts with one hash (about once in 10**18 pairs) are told
apart: the second takes the next free code, and both stay in the pool for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import check_invariant
from headgate.state.compiled import numba

CODE_MASK = np.int64(0x7FFFFFFFFFFFFFFF)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD = 0xFFFFFFFFFFFFFFFF
_FIRST_CELLS = 1024
_FEW = 4  # texts that are interned without a kernel


@numba.njit(cache=True, nogil=True)
def hash_bytes(data: np.ndarray, start: int, end: int) -> Any:
    """A 63-bit hash of data[start:end], never 0 (the code of the empty text)."""
    # The length goes in first: what is missing of the last word counts as zero bytes, and a text
    # that ends in them must not have the hash of the shorter one.
    value = np.uint64(0x51ED270B9F2D6C3B) ^ (np.uint64(end - start) * _MULTIPLIER)
    place = start
    while place + 8 <= end:
        word = np.uint64(0)
        for byte in range(8):
            word |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
        value = (value ^ word) * _MULTIPLIER
        value ^= value >> np.uint64(29)
        place += 8
    word = np.uint64(0)
    shift = np.uint64(0)
    while place < end:
        word |= np.uint64(data[place]) << shift
        shift += np.uint64(8)
        place += 1
    value = (value ^ word) * np.uint64(0xD6E8FEB86659FD93)
    value ^= value >> np.uint64(32)
    value *= _MULTIPLIER
    value ^= value >> np.uint64(32)
    code = np.int64(value & np.uint64(0x7FFFFFFFFFFFFFFF))
    return code if code != 0 else np.int64(1)


@numba.njit(cache=True, nogil=True)
def _entry_of(cells: np.ndarray, codes: np.ndarray, code: int) -> int:
    """The entry that has this code, or -1 - (the free cell where it would go)."""
    mask = len(cells) - 1
    place = code & mask
    while True:
        entry = cells[place]
        if entry < 0:
            return -1 - place
        if codes[entry] == code:
            return entry
        place = (place + 1) & mask


@numba.njit(cache=True, nogil=True)
def _same(arena: np.ndarray, start: int, data: np.ndarray, first: int, size: int) -> bool:
    for byte in range(size):
        if arena[start + byte] != data[first + byte]:
            return False
    return True


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
                cells[-1 - entry] = count
                count += 1
                break
            same_size = starts[entry + 1] - starts[entry] == size
            if same_size and _same(arena, starts[entry], data, first, size):
                break
            # Two texts with one hash. Neither may ever be forgotten: without the first, the second
            # would be looked for under its own hash, not found there, and get a second code.
            sticky[entry] = True
            moved = True
            code = (code + 1) & CODE_MASK if code != CODE_MASK else np.int64(1)
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
    return kept


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
        wanted = np.ascontiguousarray(codes, np.int64)
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
        entry = self._entry(code)
        check_invariant(entry >= 0, f"the string pool has no text for the code {code}")
        start, end = self._starts[entry : entry + 2].tolist()
        return self._arena[start:end].tobytes().decode()

    def compact(self, used: Iterable[np.ndarray]) -> None:
        """Forget the texts whose code is in none of the arrays (and no literal)."""
        live = np.zeros(self.count, np.bool_)
        for codes in used:
            _mark(self._cells, self._codes, np.ascontiguousarray(codes, np.int64), live)
        self.count = int(
            _keep(self._codes, self._starts, self._arena, self._sticky, live, self.count)
        )
        _rebuild(self._cells, self._codes, self.count)

    def _reserve(self, texts: int, size: int) -> None:
        need = self.count + texts
        if need > len(self._codes):
            room = max(need, 2 * len(self._codes))
            self._codes = np.concatenate([self._codes, np.zeros(room - len(self._codes), np.int64)])
            self._sticky = np.concatenate([self._sticky, np.zeros(room - len(self._sticky), bool)])
            extra = np.zeros(room + 1 - len(self._starts), np.int64)
            self._starts = np.concatenate([self._starts, extra])
        if 2 * need > len(self._cells):  # half of them stay empty, so that probes are short
            self._cells = np.full(1 << (2 * need - 1).bit_length(), -1, np.int64)
            _rebuild(self._cells, self._codes, self.count)
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
