"""Comparing: the first difference between an engine, or its results, and the oracle, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.testing.scalars import same

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.engine.engine import Engine
    from headgate.state.table import Table
    from headgate.testing.oracle import SerialOracle


def difference(engine: Engine, oracle: SerialOracle) -> str | None:
    """Where the engine's tables differ from the oracle's, or None where they do not."""
    if engine.epoch != oracle.epoch:
        return f"the engine is at epoch {engine.epoch}, the oracle at {oracle.epoch}"
    for table in oracle.declared.values():
        found = engine.sql(f'select * from "{table.name}"').dicts()
        words = _table_difference(table, found, oracle.table(table))
        if words is not None:
            return words
    return None


def results_difference(
    found: pa.Table | Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> str | None:
    """Where the results of a run differ from the oracle's, or None where they do not.

    >>> results_difference([{"outcome": "aborted"}], [{"outcome": "late"}])
    "result 0: outcome is 'aborted', the oracle says 'late'"
    """
    rows = found if isinstance(found, Sequence) else found.to_pylist()
    for number, (row, wanted) in enumerate(zip(rows, expected, strict=False)):
        words = _row_difference(row, wanted)
        if words is not None:
            return f"result {number}: {words}"
    if len(rows) != len(expected):
        return f"there are {len(rows)} results, the oracle has {len(expected)}"
    return None


def _table_difference(
    table: Table, found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> str | None:
    rows = {_key(table, row): row for row in found}
    if len(rows) < len(found):
        return f"table {table.name}: {len(found) - len(rows)} keys are there more than once"
    for wanted in expected:
        key = _key(table, wanted)
        if key not in rows:
            return f"table {table.name}: the row {_words(table, key)} is missing"
        words = _row_difference(rows.pop(key), wanted)
        if words is not None:
            return f"table {table.name}: row {_words(table, key)}: {words}"
    for key in rows:
        return f"table {table.name}: the oracle has no row {_words(table, key)}"
    return None


def _key(table: Table, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in table.key)


def _words(table: Table, key: Sequence[Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(table.key, key, strict=True))


def _row_difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    if list(found) != list(expected):
        return f"the columns are {', '.join(found)}, the oracle has {', '.join(expected)}"
    for name, value in expected.items():
        if not same(found[name], value):
            return f"{name} is {found[name]!r}, the oracle says {value!r}"
    return None
