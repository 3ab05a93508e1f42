"""Values: the values of a column in JSON and in an address: how they are read and described.

Invariant: a value that fits its description is read exactly, and no other is read at all. A null is
read as it is: the engine rejects the event and says which column it was.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from headgate.errors import InputError, not_among
from headgate.state.schema import BIGINT_MAX, INT_MAX, Column, ColumnType
from headgate.transactions import Transaction

Read = Callable[[Any], Any]
_PLAIN_KINDS = {"boolean", "int", "bigint", "string", "timestamp", "date", "decimal"}
_NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_FLOAT_MAX = float.fromhex("0x1.fffffep+127")


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
            values.append(reader_of(column.type)(_from_text(column.type, text)))
        except (ValueError, OverflowError, ArithmeticError):
            raise InputError(
                f"key column {column.name!r} should be {_words(column.type)}"
            ) from None
    return tuple(values)


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
    """The function that reads a value of this type; it raises ValueError for any other."""
    if kind.element is not None:
        return _array_reader(reader_of(kind.element))
    if kind.kind == "decimal":
        return _decimal_reader(kind)
    return _READERS[kind.kind]


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise ValueError


def _integer_reader(bound: int) -> Read:
    def read(value: Any) -> int:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)  # JSON does not tell 1.0 from 1
        if type(value) is not int or not -bound - 1 <= value <= bound:
            raise ValueError
        return value

    return read


def _double(value: Any) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if isinstance(value, str) and value in _NOT_NUMBERS:
        return _NOT_NUMBERS[value]
    raise ValueError


def _single(value: Any) -> float:
    number = _double(value)
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise ValueError
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    return value


def _timestamp(value: Any) -> datetime.datetime:
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise ValueError
    moment = datetime.datetime.fromisoformat(value)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return moment.astimezone(datetime.UTC)


def _date(value: Any) -> datetime.date:
    if not isinstance(value, str) or _DATE.fullmatch(value) is None:
        raise ValueError
    return datetime.date.fromisoformat(value)


def _decimal_reader(kind: ColumnType) -> Read:
    bound = Decimal(10) ** (kind.precision - kind.scale)

    def read(value: Any) -> Decimal:
        # A JSON number may already have been rounded by whoever wrote or read it.
        if type(value) is not int and (
            not isinstance(value, str) or _DECIMAL.fullmatch(value) is None
        ):
            raise ValueError
        number = Decimal(value)
        if abs(number) >= bound or number != round(number, kind.scale):
            raise ValueError
        return number

    return read


def _array_reader(read: Read) -> Read:
    def read_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError
        return [read(item) for item in value]

    return read_all


_READERS: Mapping[str, Read] = {
    "boolean": _boolean,
    "int": _integer_reader(INT_MAX),
    "bigint": _integer_reader(BIGINT_MAX),
    "float": _single,
    "double": _double,
    "string": _text,
    "timestamp": _timestamp,
    "date": _date,
}


def _words(kind: ColumnType) -> str:
    hints = {
        "decimal": f'a {kind}, written as a string: "1.50"',
        "timestamp": 'a timestamp: "2024-01-01T12:00:00Z"',
        "date": 'a date: "2024-01-01"',
        "array": f"an {kind}",
    }
    return hints.get(kind.kind, f"{'an' if kind.kind == 'int' else 'a'} {kind}")


def describe(kind: ColumnType) -> dict[str, Any]:
    """The JSON schema of a column's values, as answers have them and calls take them."""
    if kind.element is not None:
        return {"type": "array", "items": describe(kind.element)}
    if kind.kind == "decimal":
        whole = kind.precision - kind.scale
        fraction = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        return {"type": "string", "pattern": rf"^-?[0-9]{{1,{max(whole, 1)}}}{fraction}$"}
    return dict(_DESCRIPTIONS[kind.kind])


def _number_description(**more: Any) -> dict[str, Any]:
    return {"anyOf": [{"type": "number", **more}, {"enum": list(_NOT_NUMBERS)}]}


_DESCRIPTIONS: Mapping[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "int": {"type": "integer", "format": "int32", "minimum": -INT_MAX - 1, "maximum": INT_MAX},
    "bigint": {
        "type": "integer",
        "format": "int64",
        "minimum": -BIGINT_MAX - 1,
        "maximum": BIGINT_MAX,
    },
    "float": _number_description(minimum=-_FLOAT_MAX, maximum=_FLOAT_MAX),
    "double": _number_description(),
    "string": {"type": "string", "pattern": r"^[^\u0000]*$"},
    "timestamp": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
}
