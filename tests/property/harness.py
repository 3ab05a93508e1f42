"""The harness: one program run by an engine compiled, by one interpreted, and by the oracle.

Whatever is done to the three must give the same results and the same tables; the two engines must
agree byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property.family import FAMILY

Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def decoded(results: pa.Table) -> pa.Table:
    """Results with texts in place of dictionary codes, in one chunk: what equal means for them."""
    columns = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in results.combine_chunks().columns
    ]
    return pa.table(columns, names=results.column_names)


def sorted_table(engine: hg.Engine, table: hg.Table) -> pa.Table:
    found = engine.sql(f'select * from "{table.name}"').arrow()
    return found.sort_by([(name, "ascending") for name in table.key]).combine_chunks()


def same_bytes(one: pa.Table, other: pa.Table) -> bool:
    """Equal schemas and values, NaN counting as itself and -0.0 not as 0.0."""
    if not one.schema.equals(other.schema) or one.num_rows != other.num_rows:
        return False
    return one.combine_chunks().equals(other.combine_chunks()) or _rows(one) == _rows(other)


def _rows(table: pa.Table) -> list[str]:
    # Arrow calls NaN unequal to itself; the repr of a float is exact.
    return [repr(row) for row in table.to_pylist()]


class Harness:
    """Two engines and an oracle over the same declarations."""

    def __init__(self, names: Iterable[str], rows: Rows, **where: Any) -> None:
        self.members = [FAMILY[name] for name in names]
        self.tables = list(dict.fromkeys(t for member in self.members for t in member.tables))
        self.where = where
        self.engines = [self.open(compiled) for compiled in (True, False)]
        self.oracle = SerialOracle(self.tables, [member.interpreted for member in self.members])
        for table in self.tables:
            self.load(table, rows.get(table.name, ()))

    def open(self, compiled: bool) -> hg.Engine:
        transactions = [member.form(compiled) for member in self.members]
        return hg.open(None, tables=self.tables, transactions=transactions)

    def load(self, table: hg.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        expected = self.oracle.load(table, rows)
        for engine in self.engines:
            assert engine.load(table, list(rows)) == expected

    def run(self, name: str, events: Any, **options: Any) -> None:
        expected = self.oracle.run(FAMILY[name].interpreted, events, **options)
        found = [
            engine.run(FAMILY[name].form(compiled), events, **options)
            for engine, compiled in zip(self.engines, (True, False), strict=True)
        ]
        self.compare_results(found, expected)

    def compare_results(self, found: Sequence[pa.Table], expected: Sequence[Any]) -> None:
        for results in found:
            assert results_difference(results, expected) is None
        assert same_bytes(decoded(found[0]), decoded(found[1]))

    def compare_tables(self) -> None:
        for engine in self.engines:
            assert difference(engine, self.oracle) is None
        for table in self.tables:
            one, other = (sorted_table(engine, table) for engine in self.engines)
            assert same_bytes(one, other)
