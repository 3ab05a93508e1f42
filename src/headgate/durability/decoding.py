"""Decoding: bytes that match their checksum become values, or an error that names their place.

A checksum proves that bytes are as they were written, not who wrote them. Invariant: nothing that
was read from a file is used as a size, a place or a slot before it was found within its bounds; so
forged bytes give a named error, never a wrong place in memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import ALIVE, SLOT
from headgate.errors import DamageError, HeadgateError, StoreError

JSON_BYTES_MAX = 256 << 20


@contextmanager
def decoding(path: str, offset: int) -> Iterator[None]:
    """Whatever goes wrong with bytes that are in memory already is damage at this place."""
    try:
        yield
    except HeadgateError:
        raise
    except (
        pa.ArrowException, OSError, ValueError, TypeError, LookupError, ArithmeticError,
        AttributeError, struct.error, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        what = f"the content cannot be read ({type(error).__name__}: {str(error)[:200]})"
        raise layout.damage(path, offset, what) from error


@contextmanager
def accessing(path: str) -> Iterator[None]:
    """What the system refuses of a store's files is an error of the store, with its place.

    That a file is not there is for the caller to judge.
    """
    try:
        yield
    except (FileNotFoundError, HeadgateError):
        raise
    except OSError as error:
        raise StoreError(
            f"cannot read {error.filename or path}: {error.strerror or error}; see who may read "
            "it, and whether it is a file"
        ) from error
    except (MemoryError, RecursionError) as error:
        name = type(error).__name__
        raise layout.damage(path, 0, f"the content cannot be held in memory ({name})") from error


@contextmanager
def finding(path: str) -> Iterator[None]:
    """As `accessing`, where also a file or a folder that is not there is damage."""
    try:
        with accessing(path):
            yield
    except FileNotFoundError as error:
        raise missing(error, path) from error


def missing(error: FileNotFoundError, path: str) -> DamageError:
    """The error for what a store must have and has not."""
    return layout.damage(str(error.filename or path), 0, "it is missing, or a link to nowhere")


def json_of(content: bytes) -> dict[str, Any]:
    """An object of JSON; ValueError for anything else."""
    if len(content) > JSON_BYTES_MAX:
        raise ValueError(f"{len(content)} bytes of JSON")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def batch_of(content: pa.Buffer) -> pa.RecordBatch:
    """The one record batch of an Arrow IPC stream, whose buffers are within their bounds."""
    batch = pa.ipc.open_stream(content).read_next_batch()
    batch.validate()
    for column in batch.columns:
        # Numbers can be anything; what points into other bytes is looked at one by one.
        if (
            pa.types.is_dictionary(column.type)
            or column.type.num_buffers > 2
            or pa.types.is_nested(column.type)
        ):
            column.validate(full=True)
    return batch


def checked_changes(table: str, batch: pa.RecordBatch, slots: int) -> pa.RecordBatch:
    """Changes of a table as they were read; ValueError unless each slot is below the bound."""
    schema, names = batch.schema, batch.schema.names
    if names[:1] != [SLOT] or schema.field(0).type != pa.int64() or names.count(SLOT) > 1:
        raise ValueError(f"changes of table {table!r} begin with {names[:1]}")
    if ALIVE in names:
        if names.index(ALIVE) != 1 or names.count(ALIVE) > 1 or schema.field(1).type != pa.bool_():
            raise ValueError(f"changes of table {table!r} begin with {names[:2]}")
        if batch.column(1).null_count:
            raise ValueError(f"changes of table {table!r} do not say which rows are gone")
    _check_slots(table, batch.column(0), slots)
    return batch


def checked_image(table: str, batch: pa.RecordBatch, slots: int) -> pa.RecordBatch:
    """Rows of a snapshot; ValueError unless their slots ascend and are below the bound."""
    if batch.schema.names[:1] != [SLOT] or batch.column(0).type != pa.int64():
        raise ValueError(f"a block of table {table!r} begins with {batch.schema.names[:1]}")
    numbers = _check_slots(table, batch.column(0), slots)
    if len(numbers) > 1 and not bool((numbers[1:] > numbers[:-1]).all()):
        raise ValueError(f"the slots of table {table!r} do not ascend")
    return batch


def _check_slots(table: str, column: pa.Array, slots: int) -> np.ndarray:
    numbers: np.ndarray = column.to_numpy(zero_copy_only=False)
    if column.null_count or not 0 <= slots <= layout.SLOTS_MAX:
        raise ValueError(f"table {table!r} has {slots} slots, {column.null_count} of them null")
    # Seen as unsigned, a negative slot is the highest: one pass finds both.
    if len(numbers) and int(numbers.view(np.uint64).max()) >= slots:
        low, high = int(numbers.min()), int(numbers.max())
        raise ValueError(f"table {table!r} has {slots} slots, and here are slots {low} to {high}")
    return numbers


def checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """The description of a commit; ValueError unless all of it is of the form it must have."""
    source = meta["source"]
    is_source = source is None or (
        isinstance(source, list) and [type(one) for one in source] == [str, int]
    )
    if not is_source or not isinstance(meta["inlets"], dict):
        raise ValueError(f"a source {source!r}, inlets {type(meta['inlets']).__name__}")
    for counts in (meta["rows"], meta["slots"]):
        check_counts(counts)
    for inlet in meta["inlets"].values():
        mark = inlet["watermark_us"]
        if not isinstance(mark, int | None) or type(inlet["arrivals"]) is not int:
            raise ValueError(f"an inlet {inlet!r}")
        if type(inlet["held"]) is not bool or type(inlet.get("drops", 0)) is not int:
            raise ValueError(f"an inlet {inlet!r}")
    return meta


def check_counts(counts: Mapping[str, Any]) -> None:
    """ValueError unless each table has a count that can be one of slots."""
    for table, count in counts.items():
        if type(count) is not int or not 0 <= count <= layout.SLOTS_MAX:
            raise ValueError(f"table {table!r} with {count!r} rows or slots")
