"""Groups: the parts of a batch that share no row, for which different decisions may be made."""

from __future__ import annotations

import numpy as np

from headgate.parallel.graph import Operations
from headgate.state.compiled import numba

SHARE_MIN = 0.1  # a group smaller than this part of the batch is not worth a decision of its own


@numba.njit(cache=True, nogil=True)
def _components(starts: np.ndarray, rows: np.ndarray, row_count: int) -> np.ndarray:
    """For each transaction the number of its component: who is connected by rows is in one."""
    parent = np.arange(row_count)
    for transaction in range(len(starts) - 1):
        first = starts[transaction]
        for operation in range(first + 1, starts[transaction + 1]):
            one, other = rows[first], rows[operation]
            while parent[one] != one:
                parent[one] = parent[parent[one]]
                one = parent[one]
            while parent[other] != other:
                parent[other] = parent[parent[other]]
                other = parent[other]
            if one != other:
                parent[max(one, other)] = min(one, other)
    component = np.full(len(starts) - 1, -1, np.int64)
    for transaction in range(len(starts) - 1):
        if starts[transaction] < starts[transaction + 1]:
            row = rows[starts[transaction]]
            while parent[row] != row:
                row = parent[row]
            component[transaction] = row
    return component


def contended(operations: Operations, row_count: int, threads: int) -> np.ndarray | None:
    """Which transactions belong to large components, when the rest is a group of its own, too."""
    count = operations.units
    component = _components(operations.starts, operations.rows, row_count)
    sizes = np.bincount(component + 1, minlength=row_count + 1)
    sizes[0] = 0  # those that touch no row
    is_contended: np.ndarray = sizes[component + 1] >= max(2, count // (4 * threads))
    share = np.count_nonzero(is_contended) / max(1, count)
    return is_contended if SHARE_MIN <= share <= 1 - SHARE_MIN else None
