"""Values: what calls hand in for their columns, as rows store it, with no detour through Arrow.

Only what is plainly of a column's type is read here: a value of just that type, within its bounds,
for which there is nothing to reject or to refuse. All else is left to `from_dicts`, which decides
what becomes of it and says why. Invariant: what is read here is what it would have become there.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.engine.calls.keyed import with_keys
from headgate.engine.events import from_dicts
from headgate.state.objects import fitted
from headgate.state.schema import Schema
from headgate.state.types import BOUNDS, FLOAT_END, ColumnType
from headgate.transactions import Transaction

TOGETHER_MAX = 4096  # calls of one round, and one caller's more; those are a batch

Word = int | float | str  # a text has its code only where it is put among others
Read = Callable[[Any], Word | None]
_DOUBLE_EXACT_MAX = 2**53  # every integer up to here is a double
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.date().toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
_WIDE = decimal.Context(prec=64)


class CallReader:
    """Reads the columns of calls of one transaction."""

    def __init__(self, event: Schema) -> None:
        found = [(column.name, read_of(column.type), column.nullable) for column in event]
        self._reads = [(name, read, null) for name, read, null in found if read is not None]
        self._is_able = len(self._reads) == len(found)  # else a column is an array
        self.names: frozenset[str] = frozenset(event.names)

    def read(self, columns: Mapping[str, Any]) -> list[Word | None] | None:
        """The words of one event in the order of its columns, None for null; None unless all of it
        is plain."""
        if not self._is_able:
            return None
        words = []
        try:
            for name, read, nullable in self._reads:
                word = read(columns[name])
                if word is None and not (nullable and columns[name] is None):
                    return None
                words.append(word)
        except Exception:  # of a zone of the caller's own; by the way of a batch it is told
            return None
        return words


@dataclass(frozen=True)
class FewEvents:
    """The events of few calls: their words, and what they were read from."""

    rows: Sequence[Sequence[Word | None]]
    columns: Sequence[Mapping[str, Any]]
    keys: Sequence[tuple[str, str] | None]  # by call: its key and digest

    def table(self, transaction: Transaction) -> pa.Table:
        """The same as a batch is handed in."""
        return events_table(transaction, self.columns, self.keys)


def events_table(
    transaction: Transaction,
    columns: Sequence[Mapping[str, Any]],
    keys: Sequence[tuple[str, str] | None],
) -> pa.Table:
    """The events of calls as a batch is handed in."""
    events = from_dicts(columns, transaction.event, f"call {transaction.name!r}")
    if any(keys):
        pairs = [(None, None) if key is None else key for key in keys]
        events = with_keys(events, [key for key, _ in pairs], [digest for _, digest in pairs])
    return events


def read_of(kind: ColumnType) -> Read | None:
    """How values of a column of this type are read; None when none are."""
    if kind.kind == "decimal":
        return lambda value: _decimal(value, kind)
    return _READS.get(kind.kind)


def _boolean(value: Any) -> Word | None:
    return int(value) if type(value) is bool else None


def _integer(least: int, greatest: int) -> Read:
    def read(value: Any) -> Word | None:
        return value if type(value) is int and least <= value <= greatest else None

    return read


def _double(value: Any) -> Word | None:
    if type(value) is float:
        return value
    if type(value) is int and -_DOUBLE_EXACT_MAX <= value <= _DOUBLE_EXACT_MAX:
        return float(value)
    return None


def _float(value: Any) -> Word | None:
    """As it is handed in: it is rounded to 32 bits where it is put among others."""
    found = _double(value)
    if found is None or not isinstance(found, float):
        return None
    return found if not math.isfinite(found) or abs(found) < FLOAT_END else None


def _string(value: Any) -> Word | None:
    if type(value) is not str:
        return None
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
    return value


def _timestamp(value: Any) -> Word | None:
    if type(value) is datetime.datetime:
        zone = value.tzinfo
        if zone is None:
            return (value - _NAIVE_EPOCH) // _MICROSECOND
        if zone is not datetime.UTC:
            offset = value.utcoffset()
            if offset is None or offset.microseconds:
                return None
        value = (value - _EPOCH) // _MICROSECOND  # which a zone may move beyond the years
    return _moment(value)


def _date(value: Any) -> Word | None:
    if type(value) is datetime.date:
        return value.toordinal() - _EPOCH_DAY
    return _day(value)


def _decimal(value: Any, kind: ColumnType) -> Word | None:
    if type(value) is not decimal.Decimal and type(value) is not int:
        return None
    found, fault = fitted(value, kind)
    return None if fault else int(found.scaleb(kind.scale, _WIDE))


_moment = _integer(*BOUNDS["timestamp"])
_day = _integer(*BOUNDS["date"])
_READS: dict[str, Read] = {
    "boolean": _boolean,
    "int": _integer(*BOUNDS["int"]),
    "bigint": _integer(*BOUNDS["bigint"]),
    "float": _float,
    "double": _double,
    "string": _string,
    "timestamp": _timestamp,
    "date": _date,
}
