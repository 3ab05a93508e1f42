"""Codes: the few distinct reasons of a batch as a dictionary, in one compiled pass."""

from __future__ import annotations

import numpy as np

from headgate.state.compiled import numba

_FEW = 64  # a batch has about this many reasons at most; more are found by sorting


@numba.njit(cache=True, nogil=True)
def _encode_few(
    outcome: np.ndarray,
    reason: np.ndarray,
    indices: np.ndarray,
    valid: np.ndarray,
    codes: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Number the reasons in order of appearance; returns how many there are, -1 for too many."""
    count = 0
    for position in range(len(outcome)):
        indices[position] = 0
        if outcome[position] == 0:
            continue
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
    outcome: np.ndarray, reason: np.ndarray, indices: np.ndarray, valid: np.ndarray
) -> tuple[list[int], list[int]]:
    """Fill indices and validity bits of the events that ran; returns the distinct codes, and how
    many events have each."""
    codes, counts = np.empty(_FEW, np.int64), np.empty(_FEW, np.int64)
    count = int(_encode_few(outcome, reason, indices, valid, codes, counts))
    if count >= 0:
        return codes[:count].tolist(), counts[:count].tolist()
    failed = np.flatnonzero(outcome)
    codes, firsts, numbers, counts = np.unique(
        reason[failed], return_index=True, return_inverse=True, return_counts=True
    )
    appearance = np.argsort(firsts)  # numbered in order of appearance, as the few are
    indices[failed] = np.argsort(appearance)[numbers]
    bits = np.packbits(outcome != 0, bitorder="little")
    valid[: len(bits)] |= bits
    return codes[appearance].tolist(), counts[appearance].tolist()
