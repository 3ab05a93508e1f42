"""Indexed reads: the rows of the replica that an index finds, instead of all that there are.

They are a superset of what a condition asks for, and the query itself still runs over them: so its
answer is the same with an index and without. What an index cannot say exactly is not asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.query.replica import Copy
from headgate.state.columns import to_stored
from headgate.state.ordered import order_words, ordered_index
from headgate.state.ranges import Index
from headgate.state.table import Table
from headgate.state.types import ColumnType

_SIZES = {"int": 1 << 31, "bigint": 1 << 63}
_EXACT: dict[str, type] = {"string": str, "double": float, "boolean": bool}


def index_for(table: Table, where: Mapping[str, Any]) -> tuple[Index, tuple[str, ...]] | None:
    """The index that most columns of a condition are the first of, and these; None if there is
    none."""
    best: tuple[Index, tuple[str, ...]] | None = None
    for one in (*table.index, Index(table.name, ())):
        names = one.words(table.key)
        count = next((n for n, name in enumerate(names) if name not in where), len(names))
        if count and (best is None or count > len(best[1])):
            best = one, names[:count]
    return best


def is_exact(value: Any, kind: ColumnType) -> bool:
    """Whether a value is one that the column can have, and equal to nothing else that it has."""
    size = _SIZES.get(kind.kind)
    if size is not None:
        return isinstance(value, int) and not isinstance(value, bool) and -size <= value < size
    return kind.kind in _EXACT and type(value) is _EXACT[kind.kind]


def indexed_rows(copy: Copy, where: Mapping[str, Any]) -> pa.Table | None:
    """The rows that an index finds for a condition, by slot; None where it can find none.

    The caller has the replica's lock, and the copy is up to date.
    """
    chosen = index_for(copy.table, where)
    if chosen is None:
        return None
    index, names = chosen
    kinds = [copy.table.schema[name].type for name in names]
    if not all(is_exact(where[name], kind) for name, kind in zip(names, kinds, strict=True)):
        return None
    words = _words(copy, [where[name] for name in names], kinds)
    slots = np.sort(ordered_index(copy.rows, index).ready().scan(words, words))
    return pa.Table.from_batches([copy.rows.arrow(slots)])


def _words(copy: Copy, values: Sequence[Any], kinds: Sequence[ColumnType]) -> list[int]:
    found = []
    for value, kind in zip(values, kinds, strict=True):
        stored = to_stored(pa.array([value], kind.arrow), kind, copy.rows.pool, copy.table.name)
        found.append(int(order_words(stored.values, kind)[0]))
    return found
