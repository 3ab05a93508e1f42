"""Bodies: what requests carry as JSON, and what a query found as JSON or an Arrow stream.

Invariant: a parameter arrives as what it was, or not at all. What JSON has no word for is an object
of its type and its text: {"type": "decimal", "value": "1.50"}. A number that is beyond all doubles,
or longer than Python's integers may be written, is a Decimal: for a column to find out of range.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headgate.errors import InputError
from headgate.query.sql import check_query
from headgate.web.limits import Refused

_LONG = re.compile(rb"[0-9]{19}")  # perhaps an integer that orjson would read as a float
_BEYOND = re.compile(rb"[0-9]{300}|[eE][+]?[0-9]{2}")  # perhaps a number that orjson refuses
_DIGITS_MAX = 4000  # of an integer; Python refuses to read, or to write, one of a few more
_BITS_64 = range(-(2**63), 2**64)
_TEXT_MAX = 1000


def read_json(body: bytes) -> Any:
    """What a body says, with every integer as it stands there; InputError when it is not JSON."""
    try:
        found = orjson.loads(body)
        return _read_long(body) if _LONG.search(body) is not None else found
    except orjson.JSONDecodeError as error:
        why = error.msg
    except (RecursionError, ValueError) as error:
        raise InputError(f"the body cannot be read: {error}") from None
    if _BEYOND.search(body) is not None:
        with contextlib.suppress(RecursionError, ValueError, InputError):
            found = _read_long(body)
            # What was read must be what orjson reads but for its numbers: texts in UTF-8.
            json.dumps(found, ensure_ascii=False, default=str).encode()
            return found
    raise InputError(f"the body is not JSON: {why}")


def _read_long(body: bytes) -> Any:
    return json.loads(
        body.decode(), parse_int=_integer, parse_float=_number, parse_constant=_refuse_word
    )


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _DIGITS_MAX else Decimal(text)


def _number(text: str) -> float | Decimal:
    found = float(text)
    if not math.isinf(found):
        return found
    try:
        return Decimal(text)
    except ArithmeticError:  # an exponent that no Decimal has
        return Decimal(found)


def _refuse_word(word: str) -> Any:
    raise ValueError(f"{word} is no word of JSON")


def sent_integer(value: int) -> int:
    """An integer that can be written: one of a length that cannot has a shorter one's meaning."""
    if abs(value) < _LARGEST:
        return int(value)
    return _LARGEST if value > 0 else -_LARGEST


_LARGEST: int = 10 ** (_DIGITS_MAX - 1)  # out of range of whatever column it is for


def write_json(body: Any) -> bytes:
    """A body; InputError when it holds what JSON has not."""
    try:
        return orjson.dumps(body)
    except TypeError as error:
        why = error
    try:  # orjson has no integers beyond 64 bits
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"this cannot be sent: {why}") from None


def sent_parameters(query: Any, parameters: Any) -> Any:
    """The parameters of a query as JSON has them; InputError that names what cannot be one."""
    check_query(query, parameters)
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        for name in parameters:
            if not isinstance(name, str):
                raise InputError(f"a parameter's name is a text, not {name!r}")
        return {name: _sent(value) for name, value in parameters.items()}
    return [_sent(value) for value in parameters]


def _sent(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple):
        return [_sent(item) for item in value]
    if isinstance(value, int):
        return int(value) if value in _BITS_64 else _typed("integer", str(int(value)))
    if isinstance(value, float):
        is_finite = value - value == 0
        return float(value) if is_finite else _typed("double", _FLOAT_WORDS[str(float(value))])
    if isinstance(value, Decimal):
        return _typed("decimal", str(value))
    if isinstance(value, datetime.datetime):
        return _typed("timestamp", value.isoformat())
    if isinstance(value, datetime.date):
        return _typed("date", value.isoformat())
    raise InputError(
        f"a {type(value).__name__} cannot be a parameter of a query over HTTP; there are: None, "
        "bool, int, float, str, Decimal, date, datetime, and lists of them"
    )


_FLOAT_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _typed(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "value": text}


def read_parameters(parameters: Any) -> Any:
    """The parameters as Python values; InputError when one is not what it says it is."""
    if isinstance(parameters, dict):
        return {name: _read(value) for name, value in parameters.items()}
    return None if parameters is None else [_read(value) for value in parameters]


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]
    if isinstance(value, Decimal):
        raise InputError("a number among the parameters is beyond all doubles")
    if not isinstance(value, dict):
        return value
    kind, text = value.get("type"), value.get("value")
    read = PARAMETER_TYPES.get(kind) if isinstance(kind, str) else None
    if read is None or not isinstance(text, str) or len(value) != 2:
        raise InputError(
            'a parameter that is an object has a type and a text: {"type": "decimal", "value": '
            f'"1.50"}}; the types are: {", ".join(PARAMETER_TYPES)}'
        )
    try:
        if len(text) > _TEXT_MAX or not text.isascii():
            raise ValueError(text)
        return read(text)
    except (ValueError, ArithmeticError, KeyError):
        raise InputError(f"the parameter {text[:40]!r} is no {kind}") from None


_FLOATS = {word: float(name) for name, word in _FLOAT_WORDS.items()}


def _double(text: str) -> float:
    return _FLOATS[text] if text in _FLOATS else float(text)


PARAMETER_TYPES: Mapping[str, Callable[[str], Any]] = {
    "integer": int,
    "double": _double,
    "decimal": Decimal,
    "date": datetime.date.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
}


# --- answers: what a query found as bytes ---------------------------------------------------------
# JSON keeps every value exact: integers are JSON integers (a reader in JavaScript needs BigInt
# beyond 2**53), decimals and DuckDB's 128-bit sums are strings, timestamps are ISO 8601 in UTC
# ending in Z, dates ISO 8601, and the floats that JSON lacks are "NaN", "Infinity" and "-Infinity".


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
