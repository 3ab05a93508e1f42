"""Stored tables: the rows of a store's files at one epoch, as any process can read them.

Rows that were written before a column was declared show its default, as they do to the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import StoreReader
from headgate.state.schema import Column, Schema, logical_value

ALL_STREAMS = "*"  # the name under which a reader finds the results of all streams
UNROUTED = "unrouted"  # and that of events that no route took: they have no transaction


def of_stream(results: pa.RecordBatch, stream: str) -> pa.RecordBatch:
    """The recorded results that belong to a stream."""
    if stream == ALL_STREAMS:
        return results
    names = results.column("transaction")
    if stream == UNROUTED:
        return results.filter(names.is_null())
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    return results.filter(pc.equal(names, stream))


def read_table(
    reader: StoreReader,
    name: str,
    epoch: int | None = None,
    *,
    slot_range: tuple[int, int] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The declared columns, or those named, also of rows older than their declaration."""
    found = reader.table(name, epoch, slot_range=slot_range, columns=columns)
    declared = Schema.parse(reader.manifest["tables"][name]["columns"])
    wanted = [column for column in declared if columns is None or column.name in columns]
    arrays = [_complete(found, column) for column in wanted]
    return pa.table(arrays, schema=pa.schema([(c.name, c.type.arrow) for c in wanted]))


def _complete(found: pa.Table, column: Column) -> pa.ChunkedArray:
    if column.name in found.column_names:
        array = found.column(column.name)
    else:
        array = pa.chunked_array([pa.nulls(found.num_rows, column.type.arrow)])
    if array.null_count and column.default is not None:
        value = logical_value(column.type, column.default)
        array = array.fill_null(pa.scalar(value, column.type.arrow))
    return array
