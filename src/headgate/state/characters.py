"""Characters: the texts behind codes as kernels reach them: order, length, parts, and new ones.

`texts` is the address of a pool's window (see `strings`): where its arrays are, and the texts that
kernels made since they were last taken over into them. All of a text's meaning is in its UTF-8
bytes: their order is that of code points, and a part of one text that is another text begins where
a code point does.

Invariant: a code has one text, from whichever thread it is asked for: a text that is made gets the
code that the pool has for it, or would give it, under one lock for all who add texts.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
from numba.core import types

from headgate.state.compiled import linked, numba
from headgate.state.words import (
    byte_at,
    bytes_at,
    give_way,
    load,
    set_byte,
    store,
    swap_if,
    word_at,
)

CODE_MAX = 0x7FFFFFFFFFFFFFFF
# A text that a function makes has at most so many bytes in UTF-8. One that comes in may be longer:
# a loop that doubles a text is the mistake that must not take the memory of all.
MADE_BYTES_MAX = 16 << 20
TOO_LONG = "a function makes no text of more than 16 MiB"
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

# The words of a window.
(
    VIEW,  # the address of the words below
    LOCK,  # 1 while a text is being added
    HEADS,  # of the lists of made texts: by the low bits of a code
    HEADS_MASK,  # how many there are, less one
    NEWEST,  # the made text that came last
    MADE,  # how many there are
) = range(6)
WINDOW_WORDS = 6
# The words of a view: the arrays of the pool. When they move there is another view: whoever has
# begun with the one before goes on with it.
CELLS, CELLS_MASK, CODES, STARTS, ARENA, STICKY = range(6)
# The words of a made text, before its bytes.
NEXT, OLDER, CODE, SIZE, IS_STICKY = range(5)
MADE_BYTES = 8 * 5
DIGITS_MAX = 20  # of an integer, its sign included
_FIRST_HEADS = 1 << 16  # what is not used of them takes no memory

# Symbols, not pointers, so that kernels that use them can be cached on disk.
_allocate = types.ExternalFunction("malloc", types.int64(types.int64))
_free = types.ExternalFunction("free", types.void(types.int64))
_compare_bytes = types.ExternalFunction("memcmp", types.intc(*[types.int64] * 3))
_find_bytes = types.ExternalFunction("memmem", types.int64(*[types.int64] * 4))


@linked
def hash_at(address: int, size: int) -> Any:
    """A 63-bit hash of the bytes from an address on, never 0 (the code of the empty text)."""
    # The length goes in first: what is missing of the last word counts as zero bytes, and a text
    # that ends in them must not have the hash of the shorter one.
    value = np.uint64(0x51ED270B9F2D6C3B) ^ (np.uint64(size) * _MULTIPLIER)
    place, end = address, address + size
    while place + 8 <= end:
        value = (value ^ bytes_at(place)) * _MULTIPLIER
        value ^= value >> np.uint64(29)
        place += 8
    word = np.uint64(0)
    shift = np.uint64(0)
    while place < end:
        word |= np.uint64(byte_at(place)) << shift
        shift += np.uint64(8)
        place += 1
    value = (value ^ word) * np.uint64(0xD6E8FEB86659FD93)
    value ^= value >> np.uint64(32)
    value *= _MULTIPLIER
    value ^= value >> np.uint64(32)
    code = np.int64(value & np.uint64(0x7FFFFFFFFFFFFFFF))
    return code if code != 0 else np.int64(1)


@linked
def entry_of(cells: int, mask: int, codes: int, code: int) -> Any:
    """The entry that has this code, or -1 - (the free cell where it would go)."""
    # An entry is complete when its cell is set, and is reached by way of it alone: no need to wait
    # for what others may be writing.
    place = code & mask
    while True:
        entry = word_at(cells, place)
        if entry < 0:
            return -1 - place
        if word_at(codes, entry) == code:
            return entry
        place = (place + 1) & mask


@linked
def same_bytes(one: int, other: int, size: int) -> bool:
    return bool(_compare_bytes(one, other, size) == 0)


@linked
def code_after(code: int) -> Any:
    """The code that is tried next for a text whose own belongs to another."""
    return code + 1 if code != CODE_MAX else 1


# --- a text by its code ---------------------------------------------------------------------------


@linked
def _known(texts: int, code: int) -> tuple[int, int]:
    """The address and size of a text in the pool's own arrays; a size of -1 for none."""
    view = load(texts, VIEW)
    entry = entry_of(word_at(view, CELLS), word_at(view, CELLS_MASK), word_at(view, CODES), code)
    if entry < 0:
        return 0, -1
    starts = word_at(view, STARTS)
    start = word_at(starts, entry)
    return word_at(view, ARENA) + start, word_at(starts, entry + 1) - start


@linked
def _made(texts: int, code: int) -> Any:
    """The address of a made text, 0 for none."""
    found = load(load(texts, HEADS), code & load(texts, HEADS_MASK))
    while found != 0 and load(found, CODE) != code:
        found = load(found, NEXT)
    return found


@linked
def _bytes_of(texts: int, code: int) -> tuple[int, int]:
    """The address and size of any text; a size of -1 for a code that has none."""
    if code == 0:
        return 0, 0
    address, size = _known(texts, code)
    if size < 0:
        made = _made(texts, code)
        if made != 0:
            return made + MADE_BYTES, load(made, SIZE)
    return address, size


@linked
def characters_of(texts: int, code: int) -> tuple[int, int]:
    """The address of a text's bytes, and how many there are."""
    address, size = _bytes_of(texts, code)
    if size < 0:
        raise RuntimeError("a code has no text; this is a bug in Headgate, please report it")
    return address, size


# --- what is asked of texts -----------------------------------------------------------------------


@linked
def compare_texts(texts: int, left: int, right: int) -> Any:
    """Less than 0, 0 or more, as the first text comes before, is, or comes after the second."""
    if left == right:
        return 0
    one, size = characters_of(texts, left)
    other, other_size = characters_of(texts, right)
    found = _compare_bytes(one, other, min(size, other_size))
    return np.int64(found) if found != 0 else size - other_size


@linked
def length_of(texts: int, code: int) -> Any:
    """How many code points a text has."""
    address, size = characters_of(texts, code)
    count = 0
    for place in range(address, address + size):
        count += byte_at(place) & 0xC0 != 0x80  # all bytes but those that go on with a code point
    return count


@linked
def contains(texts: int, code: int, part: int) -> Any:
    address, size = characters_of(texts, code)
    wanted, wanted_size = characters_of(texts, part)
    return wanted_size == 0 or (size > 0 and _find_bytes(address, size, wanted, wanted_size) != 0)


@linked
def starts_with(texts: int, code: int, part: int) -> Any:
    address, size = characters_of(texts, code)
    wanted, wanted_size = characters_of(texts, part)
    return wanted_size <= size and same_bytes(address, wanted, wanted_size)


@linked
def ends_with(texts: int, code: int, part: int) -> Any:
    address, size = characters_of(texts, code)
    wanted, wanted_size = characters_of(texts, part)
    return wanted_size <= size and same_bytes(address + size - wanted_size, wanted, wanted_size)


# --- new texts ------------------------------------------------------------------------------------


@linked
def lock(texts: int) -> None:
    """Keep all others from adding texts; a thread that waits lets others have its core."""
    while not swap_if(texts, LOCK, 0, 1):
        give_way()


@linked
def unlock(texts: int) -> None:
    store(texts, LOCK, 0)


@linked
def _copy(source: int, size: int, target: int) -> None:
    for place in range(size):
        set_byte(target + place, byte_at(source + place))


@linked
def _note_twin(texts: int, code: int) -> None:
    """Have the pool keep a text for good, whose code another text would have had."""
    made = _made(texts, code)
    if made != 0:
        store(made, IS_STICKY, 1)
    view = load(texts, VIEW)
    entry = entry_of(word_at(view, CELLS), word_at(view, CELLS_MASK), word_at(view, CODES), code)
    if entry >= 0:
        set_byte(load(view, STICKY) + entry, 1)


@linked
def _code_for(texts: int, address: int, size: int) -> tuple[int, int]:
    """The code of these bytes, and whether they have it already: 1, or 0 for a new text.

    It is not their hash where another text has that: the steps are those of `StringPool`.
    """
    code = hash_at(address, size)
    while True:
        known, known_size = _bytes_of(texts, code)
        if known_size < 0:
            return code, 0
        if known_size == size and same_bytes(known, address, size):
            return code, 1
        code = code_after(code)


@linked
def _insert(texts: int, made: int, size: int) -> Any:
    """The code of a text that was made; it stays among those of the window if it is new."""
    own = hash_at(made + MADE_BYTES, size)
    code, is_known = _code_for(texts, made + MADE_BYTES, size)
    twin = own
    while twin != code:
        _note_twin(texts, twin)
        twin = code_after(twin)
    if is_known:
        _free(made)
        return code
    heads, head = load(texts, HEADS), code & load(texts, HEADS_MASK)
    store(made, NEXT, load(heads, head))
    store(made, OLDER, load(texts, NEWEST))
    store(made, CODE, code)
    store(made, SIZE, size)
    store(made, IS_STICKY, code != own)
    store(heads, head, made)  # from here on others see it
    store(texts, NEWEST, made)
    store(texts, MADE, load(texts, MADE) + 1)
    return code


@linked
def _coded(texts: int, made: int, size: int) -> Any:
    """The code of a text whose bytes have been written."""
    code, is_known = _code_for(texts, made + MADE_BYTES, size)
    if is_known:
        _free(made)
        return code
    lock(texts)  # and look again: another thread may have made it meanwhile
    code = _insert(texts, made, size)
    unlock(texts)
    return code


@linked
def join(texts: int, left: int, right: int) -> Any:
    """The code of the text that is one text and then another."""
    if left == 0 or right == 0:
        return left + right  # one of them is empty, and has the code 0
    one, size = characters_of(texts, left)
    other, other_size = characters_of(texts, right)
    if size + other_size > MADE_BYTES_MAX:
        raise ValueError(TOO_LONG)
    made = _allocate(MADE_BYTES + size + other_size)
    if made == 0:
        raise MemoryError("no memory for a text")
    _copy(one, size, made + MADE_BYTES)
    _copy(other, other_size, made + MADE_BYTES + size)
    return _coded(texts, made, size + other_size)


@linked
def digits_of(texts: int, number: int) -> Any:
    """The code of an integer's decimal digits."""
    made = _allocate(MADE_BYTES + DIGITS_MAX)
    if made == 0:
        raise MemoryError("no memory for a text")
    is_negative = number < 0
    rest = np.uint64(0) - np.uint64(number) if is_negative else np.uint64(number)
    size, left = np.int64(is_negative), rest
    while left != 0 or size == is_negative:
        left //= np.uint64(10)
        size += 1
    for place in range(size - 1, -1, -1):
        digit = np.int64(rest % np.uint64(10))
        rest //= np.uint64(10)
        is_sign = is_negative and place == 0
        set_byte(made + MADE_BYTES + place, 45 if is_sign else 48 + digit)
    return _coded(texts, made, size)


@linked
def release_made(texts: int) -> None:
    """Forget the texts that kernels made: the pool has them, and no kernel runs."""
    heads, mask = load(texts, HEADS), load(texts, HEADS_MASK)
    made = load(texts, NEWEST)
    while made != 0:
        older = load(made, OLDER)
        store(heads, load(made, CODE) & mask, 0)
        _free(made)
        made = older
    store(texts, NEWEST, 0)
    store(texts, MADE, 0)


# --- the window -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _lock(window: int) -> None:
    lock(window)


@numba.njit(cache=True, nogil=True)
def _unlock(window: int) -> None:
    unlock(window)


@numba.njit(cache=True, nogil=True)
def _release(window: int) -> None:
    release_made(window)


class TextWindow:
    """By which kernels reach the texts of a pool and add to them, see characters.py.

    As a context it keeps all others from adding, so that the pool can.
    """

    def __init__(self) -> None:
        self.words = np.zeros(WINDOW_WORDS, np.int64)
        self.address = _address(self.words)
        self._view = np.zeros(STICKY + 1, np.int64)
        self._past: list[Any] = []  # views and arrays that kernels which run may still look at
        self._held = threading.RLock()  # for threads of Python, which must not wait in a kernel
        self._depth = 0
        self._heads: list[np.ndarray] = []
        self._make_heads(_FIRST_HEADS)
        weakref.finalize(self, _let_go, self.words, self._heads)

    def _make_heads(self, count: int) -> None:
        self._heads[:] = [np.zeros(count, np.int64)]
        self.words[HEADS], self.words[HEADS_MASK] = _address(self._heads[0]), count - 1

    def __enter__(self) -> None:
        self._held.acquire()
        self._depth += 1
        if self._depth == 1:
            _lock(self.address)

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            _unlock(self.address)
        self._held.release()

    def show(self, arrays: tuple[np.ndarray, ...]) -> None:
        """Have kernels find these arrays of a pool; those before stay as long as one may run."""
        view = np.zeros(STICKY + 1, np.int64)
        view[[CELLS, CODES, STARTS, ARENA, STICKY]] = [_address(array) for array in arrays]
        view[CELLS_MASK] = len(arrays[0]) - 1
        self._past.append((self._view, arrays))
        self._view = view
        self.words[VIEW] = _address(view)

    def clear(self) -> None:
        """Forget what the pool has taken over; no kernel runs."""
        made = int(self.words[MADE])
        _release(self.address)
        del self._past[:-1]
        if made > len(self._heads[0]):  # so many may come again
            self._make_heads(1 << made.bit_length())


def _let_go(words: np.ndarray, heads: list[np.ndarray]) -> None:
    """Free the texts that were made for a pool that is no more."""
    _release(_address(words))
    heads.clear()


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
