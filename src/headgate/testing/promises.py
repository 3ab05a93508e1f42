"""Promises: the oracle's own judgement of unique columns and references, over whole tables.

It keeps no index and looks at every row each time, so that there is nothing to forget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.state.constraint import Constraint, Unique
from headgate.state.table import Table
from headgate.testing.records import Record

Key = tuple[Any, ...]
Contents = Mapping[str, Mapping[Key, Record]]


def broken_promise(
    written: Iterable[Table], declared: Mapping[str, Table], rows: Contents
) -> str | None:
    """The reason of the first constraint that these tables do not keep, or None.

    Only constraints that the written tables take part in: table by table, its unique columns, its
    references, then the references to it by the name of the table that has them.
    """
    for table in written:
        owned: list[Constraint] = [*table.unique, *table.references]
        for name in sorted(declared):
            owned += [one for one in declared[name].references if one.parent == table.name]
        for constraint in owned:
            if not _is_kept(constraint, rows):
                return constraint.reason
    return None


def _is_kept(constraint: Constraint, rows: Contents) -> bool:
    records = rows[constraint.table].values()
    values = [tuple(record.values[name] for name in constraint.columns) for record in records]
    if isinstance(constraint, Unique):
        return len(set(values)) == len(values)
    return all(value in rows[constraint.parent] for value in values)
