"""Signatures: what a transaction's function takes, in words the kernels and the oracle share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headgate.compiling.actions import delete
from headgate.compiling.bytecode import Effects, effects_of
from headgate.compiling.numba_types import EventType, OutputType, RecordType, RowsType
from headgate.compiling.texts import texts_type
from headgate.compiling.version_windows import WindowType
from headgate.errors import InvariantError
from headgate.state.durations import Period
from headgate.state.layout import Layout, record_layout, row_layout
from headgate.state.row_history import versions_of
from headgate.state.schema import Schema
from headgate.state.table import Access, Table
from headgate.state.version_rows import summed_columns


@dataclass(frozen=True)
class OutputColumns:
    """The columns a transaction adds to its results."""

    schema: Schema


@dataclass(frozen=True)
class Parameter:
    """One parameter of the function: the event, rows of a table, or the output."""

    name: str
    stands_for: Access | OutputColumns | None  # None: the event


@dataclass(frozen=True)
class Signature:
    """A transaction's name, function and parameters."""

    name: str
    function: Callable[..., Any]
    event: Schema
    parameters: tuple[Parameter, ...]
    compiled: bool
    is_reaching: bool = False  # it looks at the characters of texts, see texts.py
    tick: Period | None = None  # how often the engine makes an event of it, where it does

    @cached_property
    def functions(self) -> dict[Any, Any]:
        """Its function and those it calls as far as they are compiled: all kernels share them."""
        return {}

    @cached_property
    def effects(self) -> Effects:
        """What the function may do to rows, at the most."""
        return effects_of(self.function, delete)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        found = (parameter.stands_for for parameter in self.parameters)
        return tuple(access for access in found if isinstance(access, Access))

    @cached_property
    def row_names(self) -> tuple[str, ...]:
        """The names of the parameters that stand for rows, in the order of the accesses."""
        return tuple(one.name for one in self.parameters if isinstance(one.stands_for, Access))

    def source_of(self, place: int) -> int:
        """Whose rows, one by one, those of an access follow; its own place where it does not."""
        access = self.accesses[place]
        names = {name for one in access.functions for name in one.parameters}
        for source, role in enumerate(self.accesses[:place] if access.follows else ()):
            if self.row_names[source] in names and not role.is_single:
                return source
        return place

    def root_of(self, place: int) -> int:
        """The access whose span is that of this one: the first that it follows, or itself."""
        source = self.source_of(place)
        return place if source == place else self.root_of(source)

    @cached_property
    def key_functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions that compute keys, in the order of the accesses."""
        return tuple(one.function for access in self.accesses for one in access.functions)

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether the keys of some rows depend on other rows."""
        return any(access.is_dynamic for access in self.accesses)

    @cached_property
    def key_room(self) -> int:
        """How many words a key is computed in, and one more; 0 where none is computed."""
        sizes = [len(access.table.key) for access in self.accesses if access.is_dynamic]
        return 1 + max(sizes) if sizes else 0

    @cached_property
    def output(self) -> Schema | None:
        for parameter in self.parameters:
            if isinstance(parameter.stands_for, OutputColumns):
                return parameter.stands_for.schema
        return None

    @cached_property
    def out_layout(self) -> Layout | None:
        """The layout of its output records, None when it has no output."""
        return None if self.output is None else record_layout(self.output)

    @cached_property
    def out_words(self) -> int:
        """The size of its output record."""
        return 0 if self.out_layout is None else self.out_layout.words

    @cached_property
    def written(self) -> tuple[Table, ...]:
        """The tables that it may change, each once, in the order of its parameters."""
        found = (access.table for access in self.accesses if not access.read_only)
        return tuple(dict.fromkeys(found))

    @cached_property
    def places(self) -> dict[str, int]:
        """Where the address of each event column stands."""
        return column_places(self.event)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables it touches, each once, in the order of the parameters."""
        return tuple(dict.fromkeys(access.table for access in self.accesses))


def column_places(event: Schema) -> dict[str, int]:
    """Where each event column's address stands; an array column takes two places, and so does a
    nullable one: where its validity stands is counted in bits, 0 for a column without nulls."""
    places, place = {}, 0
    for column in event:
        places[column.name] = place
        place += 2 if column.type.element is not None or column.nullable else 1
    return places


def event_type(signature: Signature) -> EventType:
    places = column_places(signature.event)
    fields = []
    for column in signature.event:
        kind = column.type.element or column.type
        element = kind.kind if column.type.element is not None else None
        fields.append(
            (
                column.name,
                column.type.kind,
                kind.precision,
                kind.scale,
                places[column.name],
                element,
                column.nullable,
            )
        )
    return EventType(f"the event of {signature.name!r}", tuple(fields))


def rows_type(access: Access) -> RecordType | RowsType | WindowType:
    """What stands for an access: its row, all of its rows, or its versions."""
    if access.window is not None:
        return window_type(access)
    if access.is_single:
        return row_type(access)
    words = row_layout(access.table.schema, access.table.key).words
    return RowsType(row_type(access), 8 * words)


def row_type(access: Access) -> RecordType:
    layout = row_layout(access.table.schema, access.table.key)
    is_watched = access.table.history is not None and not access.read_only
    return RecordType(f"table {access.table.name!r}", _fields(layout), access.read_only, is_watched)


def window_type(access: Access) -> WindowType:
    """The versions of a row."""
    versions = versions_of(access.table)
    if versions is None:
        raise InvariantError(f"table {access.table.name!r} keeps no versions")
    layout = row_layout(versions.schema, versions.key)
    label = f"the versions of table {access.table.name!r}"
    return WindowType(RecordType(label, _fields(layout), True), summed_columns(access.table))


def output_type(name: str, schema: Schema) -> OutputType:
    return OutputType(f"the output of {name!r}", _fields(record_layout(schema)))


def _fields(layout: Layout) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        (
            *(f.name, f.type.kind, f.type.precision, f.type.scale, f.offset, f.format, f.is_key),
            f.null_bit,
        )
        for f in layout.fields
    )


def argument_types(signature: Signature) -> tuple[Any, ...]:
    """The Numba types of the function's arguments, in the order of its parameters."""
    found: list[Any] = [texts_type] if signature.is_reaching else []
    for parameter in signature.parameters:
        role = parameter.stands_for
        if role is None:
            found.append(event_type(signature))
        elif isinstance(role, OutputColumns):
            found.append(output_type(signature.name, role.schema))
        else:
            found.append(rows_type(role))
    return tuple(found)
