"""JSON values: the values of a column in JSON and in an address: sent, read and described.

Invariant: a value of the kind that its column has is read exactly, and no other is read at all. One
that the column cannot hold (too large, not exact, a null) is read as it is, too: the engine rejects
the event and says which column it was, as it does for every other way in.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from headgate.errors import InputError, not_among
from headgate.state.objects import fitted, is_missing, unwrapped
from headgate.state.types import BIGINT_MAX, INT_MAX, Column, ColumnType
from headgate.transactions import Transaction
from headgate.web.bodies import sent_integer

Read = Callable[[Any], Any]
_PLAIN_KINDS = {"boolean", "int", "bigint", "string", "timestamp", "date", "decimal"}
_NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_FINER = re.compile(r"(\.[0-9]{6})([0-9]+)")  # a fraction of more digits than microseconds have
_EXACT_MAX = 2**53  # up to here a double holds every integer
_BEYOND = 10**400  # for the engine to find out of range: what is beyond all doubles
# Numbers that JSON has no word for, as an object of their type and their text.
NUMBER_PATTERNS = {
    "decimal": r"-?([0-9]+(\.[0-9]+)?(E[+-]?[0-9]{1,9})?|Infinity)",
    "double": r"-?Infinity",
}


class EventReader:
    """Reads the body of a call: one JSON object with every column of the event."""

    def __init__(self, transaction: Transaction) -> None:
        event = transaction.event
        self.transaction = transaction
        kinds = {column.type.kind for column in transaction.output or ()}
        self.is_plain = kinds <= _PLAIN_KINDS  # every result is JSON as it is
        self._where = f"call {transaction.name!r}"
        self._columns = tuple(
            (column.name, column.type, reader_of(column.type)) for column in event
        )

    def read(self, body: Any) -> dict[str, Any]:
        """The columns; InputError that names the one that is missing, unknown or wrong."""
        if not isinstance(body, dict):
            raise InputError(f"{self._where}: the body is a JSON object with the event's columns")
        found = {}
        for name, kind, read in self._columns:
            if name not in body:
                raise self._wrong_columns(body, name)
            value = body[name]
            try:
                found[name] = None if value is None else read(value)
            except (ValueError, OverflowError, ArithmeticError):
                raise InputError(
                    f"{self._where}: column {name!r} should be {_words(kind)}"
                ) from None
        if len(body) > len(found):
            raise self._wrong_columns(body, "")
        return found

    def _wrong_columns(self, body: Mapping[str, Any], missing: str) -> InputError:
        """The words of `engine.call` for a column too many, or else for one that is missing."""
        names = [name for name, _, _ in self._columns]
        for name in body:
            if name not in names:
                among = not_among(name, names, "columns")
                return InputError(f"{self._where}: no column {name!r}; {among}")
        known = ", ".join(names)
        return InputError(
            f"{self._where}: the column {missing!r} is missing; an event has: {known}"
        )


def read_key(columns: Sequence[Column], given: Mapping[str, str]) -> tuple[Any, ...]:
    """The key of a row out of the texts of an address."""
    values = []
    for column in columns:
        text = given.get(column.name)
        if text is None:
            raise InputError(f"the key column {column.name!r} is missing")
        try:
            values.append(_held(column.type, _from_text(column.type, text)))
        except (ValueError, OverflowError, ArithmeticError):
            raise InputError(
                f"key column {column.name!r} should be {_words(column.type)}"
            ) from None
    return tuple(values)


def _held(kind: ColumnType, sent: Any) -> Any:
    """A value that a column of this type can hold; ValueError for any other."""
    value = reader_of(kind)(sent)
    if fitted(value, kind)[1]:
        raise ValueError
    return value


def _from_text(kind: ColumnType, text: str) -> Any:
    """The JSON value that a text in an address stands for."""
    if kind.kind in ("int", "bigint"):
        if re.fullmatch(r"-?[0-9]{1,20}", text) is None:
            raise ValueError(text)
        return int(text)
    if kind.kind == "boolean":
        return {"true": True, "false": False}.get(text)
    return text


def reader_of(kind: ColumnType) -> Read:
    """The function that reads a value of this kind; it raises ValueError for any other."""
    if kind.element is not None:
        return _array_reader(reader_of(kind.element))
    return _READERS[kind.kind]


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise ValueError


def _typed(value: Any, *kinds: str) -> Decimal:
    """A number that came as an object of its type and its text."""
    if isinstance(value, dict) and len(value) == 2 and value.get("type") in kinds:
        text = value.get("value")
        if isinstance(text, str) and re.fullmatch(NUMBER_PATTERNS[value["type"]], text):
            return Decimal(text)
    raise ValueError


def _integer(value: Any) -> int | float | Decimal:
    if type(value) is int or isinstance(value, Decimal):
        return value
    if type(value) is float:  # JSON does not tell 1.0 from 1
        return int(value) if value.is_integer() else value
    return _typed(value, "decimal", "double")


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) <= _EXACT_MAX else value
    if isinstance(value, Decimal):
        return _BEYOND if value > 0 else -_BEYOND
    if isinstance(value, str) and value in _NOT_NUMBERS:
        return _NOT_NUMBERS[value]
    raise ValueError


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _timestamp(value: Any) -> datetime.datetime | np.datetime64:
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise ValueError
    finer = _FINER.search(value)
    moment = datetime.datetime.fromisoformat(_FINER.sub(r"\1", value))
    if finer is not None and finer[2].strip("0"):
        return _inexact(moment, finer[2])
    return _in_utc(moment)


def _in_utc(moment: datetime.datetime) -> datetime.datetime:
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    try:
        return moment.astimezone(datetime.UTC)
    except OverflowError:  # before the year 1 or after 9999, in UTC
        return moment


def _inexact(moment: datetime.datetime, digits: str) -> np.datetime64:
    """A time between two microseconds, as near as it can be said; for the engine to reject."""
    micros = np.datetime64(_in_utc(moment).replace(tzinfo=None), "us").astype(np.int64)
    if not _NANOSECONDS[0] < micros < _NANOSECONDS[1]:
        micros = np.int64(0)
    return np.datetime64(int(micros) * 1000 + max(int(digits[:3].ljust(3, "0")), 1), "ns")


_NANOSECONDS = (-(2**63) // 1000 + 1, 2**63 // 1000 - 1)  # the microseconds that have these


def _date(value: Any) -> datetime.date:
    if not isinstance(value, str) or _DATE.fullmatch(value) is None:
        raise ValueError
    return datetime.date.fromisoformat(value)


def _decimal(value: Any) -> Decimal:
    # A JSON number may already have been rounded by whoever wrote or read it.
    if type(value) is int or (isinstance(value, str) and _DECIMAL.fullmatch(value) is not None):
        return Decimal(value)
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:  # a very long integer
        return value
    return _typed(value, "decimal")


def _array_reader(read: Read) -> Read:
    def read_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError
        return [None if item is None else read(item) for item in value]

    return read_all


_READERS: Mapping[str, Read] = {
    "boolean": _boolean,
    "int": _integer,
    "bigint": _integer,
    "decimal": _decimal,
    "float": _double,
    "double": _double,
    "string": _text,
    "timestamp": _timestamp,
    "date": _date,
}


def sent_value(value: Any, kind: ColumnType | None = None) -> Any:
    """A value of an event as `reader_of` its column reads it; of no known column, as it seems.

    What the engine takes for missing is null: the text "NaN" is a number only to a double.
    """
    value = unwrapped(value)
    is_double = kind is None or kind.kind in ("float", "double")
    if isinstance(value, list | tuple | np.ndarray):
        element = None if kind is None else kind.element
        return [sent_value(item, element) for item in value]
    if isinstance(value, float) and not math.isfinite(value) and is_double:
        return next(word for word, one in _NOT_NUMBERS.items() if repr(one) == repr(value))
    if is_missing(value):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return {"type": "double", "value": "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, Decimal):
        return {"type": "decimal", "value": str(value)}
    if isinstance(value, int) and not isinstance(value, bool):
        return sent_integer(value)
    return _sent_time(value)


def _sent_time(value: Any) -> Any:
    """A time or a date as a text; any other value as it is."""
    if isinstance(value, np.datetime64):
        unit = np.datetime_data(value.dtype)[0]
        if unit in ("Y", "M", "W", "D"):  # only a day is a value of a column
            return str(value)
        return f"{value.astype('datetime64[s]') if unit in ('h', 'm') else value}Z"
    if isinstance(value, datetime.datetime):
        return _in_utc(value).isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, datetime.date) else value


def _words(kind: ColumnType) -> str:
    hints = {
        "decimal": f'a {kind}, written as a string: "1.50"',
        "timestamp": 'a timestamp: "2024-01-01T12:00:00Z"',
        "date": 'a date: "2024-01-01"',
        "array": f"an {kind}",
    }
    return hints.get(kind.kind, f"{'an' if kind.kind == 'int' else 'a'} {kind}")


def describe(kind: ColumnType) -> dict[str, Any]:
    """The JSON schema of a column's values, as answers have them."""
    if kind.element is not None:
        return {"type": "array", "items": describe(kind.element)}
    if kind.kind == "decimal":
        whole = kind.precision - kind.scale
        fraction = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        return {"type": "string", "pattern": rf"^-?[0-9]{{1,{max(whole, 1)}}}{fraction}$"}
    return dict(_DESCRIPTIONS[kind.kind])


def describe_event(kind: ColumnType) -> dict[str, Any]:
    """The JSON schema of the values that a call takes: also those that its result rejects."""
    found: dict[str, Any]
    if kind.element is not None:
        found = {"type": "array", "items": describe_event(kind.element)}
    elif kind.kind in ("int", "bigint"):
        number = {"type": "number", "format": _DESCRIPTIONS[kind.kind]["format"]}
        found = {"anyOf": [number, _described("decimal"), _described("double")]}
    elif kind.kind == "decimal":
        text = {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}
        found = {"anyOf": [text, {"type": "integer"}, _described("decimal")]}
    else:
        found = describe(kind)
    return {"anyOf": [found, {"type": "null"}], "description": f"{kind}; others are rejected"}


def _described(kind: str) -> dict[str, Any]:
    """The JSON schema of a number that comes as an object."""
    text = {"type": "string", "pattern": f"^({NUMBER_PATTERNS[kind]})$"}
    return {
        "type": "object",
        "properties": {"type": {"enum": [kind]}, "value": text},
        "required": ["type", "value"],
        "additionalProperties": False,
    }


_NUMBER = {"anyOf": [{"type": "number"}, {"enum": list(_NOT_NUMBERS)}]}


_DESCRIPTIONS: Mapping[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "int": {"type": "integer", "format": "int32", "minimum": -INT_MAX - 1, "maximum": INT_MAX},
    "bigint": {
        "type": "integer",
        "format": "int64",
        "minimum": -BIGINT_MAX - 1,
        "maximum": BIGINT_MAX,
    },
    "float": _NUMBER,
    "double": _NUMBER,
    "string": {"type": "string"},
    "timestamp": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
}
