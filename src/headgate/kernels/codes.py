"""Codes: the few distinct reasons of a batch as a dictionary, in one compiled pass."""

from __future__ import annotations

import numpy as np

from headgate.state.compiled import numba

_FEW = 64  # a batch has about this many reasons at most; more are found by sorting


@numba.njit(cache=True, nogil=True)
def _encode_few(
    aborted: np.ndarray,
    reason: np.ndarray,
    indices: np.ndarray,
    valid: np.ndarray,
    codes: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Number the reasons in order of appearance; returns how many there are, -1 for too many."""
    count = 0
    for position in aborted:
        place = 0
        while place < count and codes[place] != reason[position]:
            place += 1
        if place == count:
            if count == len(codes):
                return -1
            codes[count] = reason[position]
            counts[count] = 0
            count += 1
        counts[place] += 1
        indices[position] = place
        valid[position // 8] |= np.uint8(1 << (position % 8))
    return count


def encode_reasons(
    aborted: np.ndarray, reason: np.ndarray, indices: np.ndarray, valid: np.ndarray
) -> tuple[list[int], list[int]]:
    """Set indices and validity bits, zeros so far, of the positions that did not commit; returns
    the distinct codes, and how many events have each."""
    if not len(aborted):
        return [], []
    codes, counts = np.empty(_FEW, np.int64), np.empty(_FEW, np.int64)
    count = int(_encode_few(aborted, reason, indices, valid, codes, counts))
    if count >= 0:
        return codes[:count].tolist(), counts[:count].tolist()
    codes, firsts, numbers, counts = np.unique(
        reason[aborted], return_index=True, return_inverse=True, return_counts=True
    )
    appearance = np.argsort(firsts)  # numbered in order of appearance, as the few are
    indices[aborted] = np.argsort(appearance)[numbers]
    np.bitwise_or.at(valid, aborted // 8, np.uint8(1) << (aborted % 8).astype(np.uint8))
    return codes[appearance].tolist(), counts[appearance].tolist()


@numba.njit(cache=True, nogil=True)
def clear_bits(aborted: np.ndarray, valid: np.ndarray) -> None:
    """Say of these positions that they have no value."""
    for position in aborted:
        valid[position // 8] &= np.uint8(0xFF ^ (1 << (position % 8)))


@numba.njit(cache=True, nogil=True)
def lacks(bits: np.ndarray, offset: int, route: np.ndarray, owners: np.ndarray) -> bool:
    """Whether a value is null, by these validity bits, that its event's transaction needs."""
    for row in range(len(route)):
        place = offset + row
        if owners[route[row]] and not bits[place // 8] >> (place % 8) & 1:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def own_bits(route: np.ndarray, owners: np.ndarray, bits: np.ndarray) -> None:
    """Set the bits, zeros so far, of the events whose transaction has the column."""
    for row in range(len(route)):
        if owners[route[row]]:
            bits[row // 8] |= np.uint8(1 << (row % 8))


@numba.njit(cache=True, nogil=True)
def pick(route: np.ndarray, number: int, mine: np.ndarray, all_of: np.ndarray) -> None:
    """Put what one transaction gave among what all of them gave."""
    for row in range(len(route)):
        if route[row] == number:
            all_of[row] = mine[row]
