"""Loading: the first rows of a table, put in place and checked before anything is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT
from headgate.errors import InputError
from headgate.events import as_table, complete_rows
from headgate.execution.kernel import build_check, first_failure
from headgate.execution.pointers import address
from headgate.state.constraint import Unique
from headgate.state.integrity import first_violation
from headgate.state.rows import Rows


def fill(rows: Rows, given: Any, epoch: int, tables: Mapping[str, Rows]) -> range:
    """Put whatever rows a user hands in into a table, all or none; returns their slots."""
    where = f"load {rows.table.name!r}"
    complete = complete_rows(as_table(given, rows.table.schema, where), rows.table, where)
    if complete.num_rows == 0:
        return range(0)
    slots = rows.load(complete, epoch)
    _refuse_failed_check(rows, slots)
    _refuse_broken(rows, slots, tables)
    return slots


def _refuse_failed_check(rows: Rows, slots: range) -> None:
    check = rows.table.check
    if check is None:
        return
    rows.pool.add_literals(sorted(check.texts))
    failed = first_failure(build_check(rows.table), address(rows.words), slots)
    if failed is not None:
        key = rows.key_text(failed)
        rows.unload(slots)
        raise InputError(f"load {rows.table.name!r}: the row {key} fails the check {check.text!r}")


def _refuse_broken(rows: Rows, slots: range, tables: Mapping[str, Rows]) -> None:
    for constraint in rows.table.constraints:
        slot = first_violation(tables, constraint)
        if slot is not None:
            key = rows.key_text(slot)
            rows.unload(slots)
            hint = "" if isinstance(constraint, Unique) else f"; load {constraint.parent!r} first"
            raise InputError(f"load {rows.table.name!r}: the row {key}: {constraint.reason}{hint}")


def loaded_changes(rows: Rows, slots: range) -> pa.RecordBatch:
    """The loaded rows as the log takes them."""
    arrays = [
        pa.array(np.arange(slots.start, slots.stop)),
        pa.array(np.ones(len(slots), np.bool_)),
        *rows.arrow(slice(slots.start, slots.stop)).columns,
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[SLOT, ALIVE, *rows.table.schema.names])
