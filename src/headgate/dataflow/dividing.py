"""Dividing: a procedure with partitions as the nodes that it stands for in the graph.

Each partition is a node with the stream of what it gives, and one behind them puts these together
again, batch by batch: so what comes after has whole batches, and knows nothing of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headgate.dataflow.partitions import Partition
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.streams import Stream
from headgate.errors import DeclarationError
from headgate.state.table import Table

KINDS = ("int", "bigint", "string")  # of keys


def together(*parts: Any) -> pa.Table:
    """What the partitions of a procedure gave, and the tx, which it does not need."""
    return pa.concat_tables(parts[:-1])


def divided(step: Procedure, where: str) -> Iterator[Procedure]:
    """The nodes that a procedure stands for: itself, or its partitions and who unites them."""
    said = step.parts
    if said is None:
        yield step
        return
    _check(step, said.column, where)
    tables = frozenset(table.name for table in step.writes)
    for number in range(said.count):
        mine = Partition(step.name, said.column, number, said.count, said.align, tables)
        gives = tuple(_part_of(stream, number) for stream in step.gives)
        name = f"{step.name}_{number}"
        yield replace(step, name=name, gives=gives, parts=None, partition=mine)
    for stream in step.gives:
        takes = tuple(_part_of(stream, number) for number in range(said.count))
        name = f"{stream.name}_of_{step.name}"
        yield Procedure(name, together, takes, (stream,), (), (), 0)


def _part_of(stream: Stream, number: int) -> Stream:
    return Stream(f"{stream.name}_{number}", stream.schema.ddl, order_by=stream.order_by)


def _check(step: Procedure, column: str, where: str) -> None:
    what = f"{where}: procedure {step.name!r}: partition_by={column!r}"
    if len(step.takes) != 1 or not isinstance(step.takes[0], Stream):
        raise DeclarationError(f"{what} is for a procedure over one stream, and no window")
    if len(step.gives) > 1:
        raise DeclarationError(f"{what}: partitions give one stream, not {len(step.gives)}")
    taken = step.takes[0].schema.require(column, what)
    if taken.nullable or taken.type.kind not in KINDS or taken.type.element is not None:
        raise DeclarationError(f"{what}: a key is a column of {', '.join(KINDS)} that is not null")
    for table in step.writes:
        _check_key(table, column, taken.type, what)


def _check_key(table: Table, column: str, kind: Any, what: str) -> None:
    if column not in table.key or table.schema[column].type != kind:
        raise DeclarationError(
            f"{what}: the table {table.name!r}, which it writes, has no column {column!r} of this "
            f"type in its key, {', '.join(table.key)}: a partition writes the rows of its own keys"
        )
