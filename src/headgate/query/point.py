"""Point reads: one row by its key, or those that an index finds, out of the replica.

A getter is generated for its table. It knows where it found a key last time; the key stands in the
row itself, so a place that is no longer right is noticed, and the copy's mark tells whether the row
changed while it was read. What cannot be answered like this goes the long way, under a lock.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import InputError, shown
from headgate.io import give_way
from headgate.query.replica import Copy, Replica
from headgate.state import index
from headgate.state.columns import to_stored
from headgate.state.layout import HEADER_ALIVE, WORD_BYTES, Field, Layout
from headgate.state.objects import fitted
from headgate.state.order_words import order_words
from headgate.state.ordered import ordered_index
from headgate.state.ranges import Index
from headgate.state.rows import TableRows
from headgate.state.table import Table
from headgate.state.types import ColumnType

Row = dict[str, Any]
PLACES_MAX = 1 << 20  # keys whose place a getter remembers; then it begins anew

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY_ZERO = datetime.date(1970, 1, 1).toordinal()
_FORMATS = {"u1": "B", "i4": "i", "i8": "q", "f4": "f", "f8": "d"}
_SIMPLE = ("int", "bigint", "float", "double")
_NAMES = {
    "delta": datetime.timedelta,
    "zero": _EPOCH,
    "day": datetime.date.fromordinal,
    "decimal": decimal.Decimal,
    "date": datetime.date,
    "datetime": datetime.datetime,
}
# The one type of Python, for a key's kind, that is compared with a row's key as it is. True is
# equal to 1, and 0.0 to Decimal(0), and neither can be a key: what has another type goes the long
# way, which fits it or refuses it.
_EXACT_TYPES = {
    "boolean": "bool",
    "int": "int",
    "bigint": "int",
    "string": "str",
    "timestamp": "datetime",
    "date": "date",
    "decimal": "decimal",
}


def make_getter(
    copy: Copy, replica: Replica, refresh: Callable[[str], None]
) -> Callable[[Any], Row | None]:
    """The function that `engine.get` calls with a key."""
    places: dict[Any, int] = {}
    row_bytes = copy.rows.layout.words * WORD_BYTES
    has_texts = any(field.type.kind == "string" for field in copy.rows.layout.fields)

    def find(key: Any) -> Row | None:
        with replica.lock:
            if copy.mark is None:
                refresh(copy.table.name)
            if not copy.rows.is_indexed:
                copy.rows.make_index()
            slot = slot_of(copy.rows, key)
            if slot < 0:
                return None
            if len(places) >= PLACES_MAX:
                places.clear()
            places[key] = slot * row_bytes
            if has_texts:
                _note_texts(copy.rows, slot, replica)
            found: Row = read(copy.view, slot * row_bytes)
            return found

    names: dict[str, Any] = {
        **_NAMES,
        "copy": copy,
        "replica": replica,
        "give_way": give_way,
        "places": places,
        "texts": replica.texts,
        "unpack": struct.Struct(row_format(copy.rows.layout)).unpack_from,
        "find": find,
    }
    exec(getter_source(copy.rows), names)  # text of our own making, from declared names
    read = names["read"]
    getter: Callable[[Any], Row | None] = names["get"]
    return getter


def slot_of(rows: TableRows, key: Any) -> int:
    """The slot of a key, -1 when there is no such row; InputError for what cannot be a key."""
    words = key_words(rows, key)
    if len(words) == 1:
        return int(index.find(rows.entries, rows.words, words[0]))
    keys = np.array(words, np.int64).reshape(-1, 1)
    return int(index.find_wide(rows.entries, rows.words, keys, 0))


def key_words(rows: TableRows, key: Any) -> list[int]:
    """A key as its row has it, a word for each column; InputError for what cannot be a key."""
    names = rows.table.key
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) != len(names):
        wanted = f"a tuple of {len(names)}" if len(names) > 1 else "one value"
        raise InputError(
            f"table {rows.table.name!r}: its key is ({', '.join(names)}), so hand in {wanted}; "
            f"not {shown(key)}"
        )
    return [_key_word(rows, name, part) for name, part in zip(names, parts, strict=True)]


def _key_word(rows: TableRows, name: str, part: Any) -> int:
    kind = rows.table.schema[name].type
    if kind.kind == "bigint" and type(part) is int and -(1 << 63) <= part < 1 << 63:
        return part
    where = f"table {rows.table.name!r}: key column {name!r}"
    try:
        value, fault = fitted(part, kind)
        stored = None if fault else to_stored(pa.array([value], kind.arrow), kind, rows.pool, where)
    except TypeError:  # of another kind altogether
        stored = None
    if stored is None or stored.faults is not None:
        raise InputError(f"{where}: {shown(part)} cannot be a key of type {kind}")
    return int(stored.values[0])


def _note_texts(rows: TableRows, slot: int, replica: Replica) -> None:
    """Remember the texts of a row, for the next read of it."""
    record = rows.records[slot]
    if len(replica.texts) > PLACES_MAX:
        replica.texts.clear()
    for field in rows.layout.fields:
        if field.type.kind == "string":
            code = int(record[field.name])
            if code not in replica.texts:
                replica.texts[code] = rows.pool.text(code)


# --- the text of a getter ---------------------------------------------------------------------


def row_format(layout: Layout) -> str:
    """A row's bytes for `struct`: the header, then the fields in the order of their places."""
    text, place = "<q", WORD_BYTES
    for field in sorted(layout.fields, key=lambda field: field.offset):
        code = _FORMATS[field.format]
        text += "x" * (field.offset - place) + code
        place = field.offset + struct.calcsize("<" + code)
    nulls = len(layout.all_null)
    return text + "x" * ((layout.words - nulls) * WORD_BYTES - place if nulls else 0) + "q" * nulls


def getter_source(rows: TableRows) -> str:
    """Two functions: `get` for a key, and `read` for a row whose place is known."""
    fields = rows.layout.fields
    numbers = {field.name: place for place, field in enumerate(fields)}
    placed = sorted(fields, key=lambda field: field.offset)
    nulls = [f"n{word}" for word in sorted(rows.layout.all_null)]
    targets = ", ".join([*(f"v{numbers[field.name]}" for field in placed), *nulls])
    values = {f.name: _value_or_none(f, f"v{numbers[f.name]}") for f in fields}
    keys = [values[name] for name in rows.table.key]
    key = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
    exact = _exact(rows.table)
    row = ", ".join(f"{name!r}: {value}" for name, value in values.items())
    return f"""
def get(key):
    if replica.is_busy:
        give_way()
    mark = copy.mark
    if mark is not None:
        try:
            place = places.get(key)
        except TypeError:  # no key at all: the long way says so
            place = None
        if place is not None:
            head, {targets} = unpack(copy.view, place)
            try:
                if {exact} and head & {HEADER_ALIVE} and {key} == key:
                    row = {{{row}}}
                    if copy.mark is mark:
                        return row
            except KeyError:
                pass  # a text that nobody met yet
    return find(key)

def read(view, place):
    head, {targets} = unpack(view, place)
    return {{{row}}}
"""


def _exact(table: Table) -> str:
    """The expression for whether a key is of the very types that may be compared."""
    types = [_EXACT_TYPES[column.type.kind] for column in table.key_columns]
    if len(types) == 1:
        return f"type(key) is {types[0]}"
    parts = [f"type(key[{place}]) is {one}" for place, one in enumerate(types)]
    return " and ".join(["type(key) is tuple", *parts])


def _value_or_none(field: Field, name: str) -> str:
    """The same where there may be none."""
    value = _value(field.type, name)
    if not field.nullable:
        return value
    return f"(None if n{field.null_word} & {int(field.null_mask)} else {value})"


def _value(kind: ColumnType, name: str) -> str:
    """The expression that makes a Python value of a stored one."""
    if kind.kind in _SIMPLE:
        return name
    if kind.kind == "boolean":
        return f"{name} != 0"
    if kind.kind == "string":
        return f"texts[{name}]"
    if kind.kind == "timestamp":
        return f"zero + delta(0, 0, {name})"
    if kind.kind == "date":
        return f"day({_DAY_ZERO} + {name})"
    return f"decimal({name}).scaleb({-kind.scale})"


# --- rows that an index finds ---------------------------------------------------------------------
# The rows of the replica that an index finds, instead of all that there are.
#
# They are a superset of what a condition asks for, and the query itself still runs over them: so
# its answer is the same with an index and without. What an index cannot say exactly is not asked
# of it.


_SIZES = {"int": 1 << 31, "bigint": 1 << 63}
_EXACT: dict[str, type] = {"string": str, "double": float, "boolean": bool}


def index_for(table: Table, where: Mapping[str, Any]) -> tuple[Index, tuple[str, ...]] | None:
    """The index that most columns of a condition are the first of, and these; None if there is
    none."""
    best: tuple[Index, tuple[str, ...]] | None = None
    for one in (*table.index, Index(table.name, ())):
        names = one.words(table.key)
        count = next((n for n, name in enumerate(names) if name not in where), len(names))
        if count and (best is None or count > len(best[1])):
            best = one, names[:count]
    return best


def is_exact(value: Any, kind: ColumnType) -> bool:
    """Whether a value is one that the column can have, and equal to nothing else that it has."""
    size = _SIZES.get(kind.kind)
    if size is not None:
        return isinstance(value, int) and not isinstance(value, bool) and -size <= value < size
    return kind.kind in _EXACT and type(value) is _EXACT[kind.kind]


def indexed_rows(copy: Copy, where: Mapping[str, Any]) -> pa.Table | None:
    """The rows that an index finds for a condition, by slot; None where it can find none.

    The caller has the replica's lock, and the copy is up to date.
    """
    chosen = index_for(copy.table, where)
    if chosen is None:
        return None
    index, names = chosen
    kinds = [copy.table.schema[name].type for name in names]
    if not all(is_exact(where[name], kind) for name, kind in zip(names, kinds, strict=True)):
        return None
    words = _words(copy, where, names)
    slots = np.sort(ordered_index(copy.rows, index).ready().scan(words, words))
    return pa.Table.from_batches([copy.rows.arrow(slots)])


def _words(copy: Copy, where: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """The words of a bound, see ranges.words_of."""
    found = []
    for column in map(copy.table.schema.__getitem__, names):
        kind, value = column.type, where[column.name]
        stored = to_stored(pa.array([value], kind.arrow), kind, copy.rows.pool, copy.table.name)
        found += [0] * column.nullable + [int(order_words(stored.values, kind)[0])]
    return found
