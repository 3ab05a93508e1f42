"""Answers: what a query found as bytes, JSON or an Arrow stream, whichever the client accepts.

JSON keeps every value exact: integers are JSON integers (a reader in JavaScript needs BigInt beyond
2**53), decimals and DuckDB's 128-bit sums are strings, timestamps are ISO 8601 in UTC ending in Z,
dates ISO 8601, and the floats that JSON lacks are "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

from headgate.web.limits import Refused

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
EPOCH_HEADER = "headgate-epoch"
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC
_CODEC_OPTIONS = pa.ipc.IpcWriteOptions()


@dataclass(frozen=True)
class Body:
    """A body with its media type, and the headers that go with it."""

    body: bytes
    media: str = JSON
    headers: Mapping[str, str] | None = None


def chosen_media(accept: str | None) -> str:
    """The media type to answer a query with; Refused when the client accepts neither."""
    if not accept:
        return JSON
    best, media = 0.0, None
    for part in accept.split(","):
        word, *options = [piece.strip().lower() for piece in part.split(";")]
        weight = _weight(options)
        for candidate in (JSON, ARROW):
            if weight > best and _matches(word, candidate):
                best, media = weight, candidate
    if media is None:
        raise Refused(406, "not_acceptable", f"the answer is {JSON} or {ARROW}; accept one of them")
    return media


def _weight(options: list[str]) -> float:
    for option in options:
        if option.startswith("q="):
            try:
                return float(option[2:])
            except ValueError:
                return 0.0
    return 1.0


def _matches(word: str, media: str) -> bool:
    return word in (media, "*/*", media.partition("/")[0] + "/*")


def table_answer(table: pa.Table, epoch: int | None, media: str) -> Body:
    """The rows of a query, with the epoch they are of."""
    headers = {} if epoch is None else {EPOCH_HEADER: str(epoch)}
    if media == ARROW:
        return Body(arrow_bytes(table), ARROW, headers)
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    rows = list(zip(*(_plain_column(column) for column in table.columns), strict=True))
    if not table.num_columns:
        rows = []
    return Body(encode({"epoch": epoch, "columns": columns, "rows": rows}), JSON, headers)


def arrow_bytes(table: pa.Table) -> bytes:
    """A table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_CODEC_OPTIONS) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def encode(value: Any) -> bytes:
    """JSON; all but plain values and times must have been made plain before."""
    return orjson.dumps(value, default=_exact, option=_OPTIONS)


def plain(value: Any) -> Any:
    """One value as JSON has it; the columns of a result, for one."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _plain_column(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    if _needs_care(kind):
        return [plain(value) for value in _python_values(column)]
    found: list[Any] = column.to_pylist()
    return found


def _needs_care(kind: pa.DataType) -> bool:
    """Whether orjson alone would lose something or refuse."""
    easy = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_string(kind)
    return not (easy or pa.types.is_decimal(kind))


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """Python values, or their texts where Python has none: an interval, a year beyond 9999."""
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        found = _texts(column)
    return found


def _texts(column: pa.ChunkedArray) -> list[Any]:
    try:
        found: list[Any] = column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        found = [_text(value) for chunk in column.chunks for value in chunk]
    return found


def _text(value: pa.Scalar) -> str | None:
    try:
        return str(value.as_py()) if value.is_valid else None
    except (ValueError, OverflowError):
        return f"a {value.type} that has no text"


def _exact(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, int):  # beyond 64 bits
        return str(value)
    return str(value)
