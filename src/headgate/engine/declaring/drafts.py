"""Drafts: a store's declarations while a migration changes them, step by step.

Invariant: a draft says at any moment where its rows are in the files; no step touches a row.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.errors import DeclarationError
from headgate.state.check import names_in, renamed_in
from headgate.state.durations import Expiry, parse_expires
from headgate.state.row_history import ENDING, versions_of
from headgate.state.schema import Schema, refuse_twins
from headgate.state.stored_names import Storage
from headgate.state.table import Table
from headgate.state.types import Column, ColumnType, default_value, is_wider, widened_value

Columns = tuple[str, ...]
_ZEROS: dict[str, int | float | str | bool] = {
    "string": "", "boolean": False, "float": 0.0, "double": 0.0
}  # fmt: skip


@dataclass
class Draft:
    """One table: `origin` is what it was called before the first step."""

    origin: str
    name: str
    columns: list[Column]
    key: Columns
    check: str | None
    unique: list[Columns]
    references: list[tuple[Columns, str]]
    storage: Storage
    index: list[Columns] = field(default_factory=list)  # no step is about it: no row depends on it
    history: str | None = None
    by: str | None = None
    expires: str | None = None  # no step is about it, either
    shard_by: Columns = ()  # nor about these
    replicate: bool = False
    is_tested: bool = False  # its rows must be held to its check and constraints
    is_rewritten: bool = False  # every row of it is written anew

    @classmethod
    def read(cls, name: str, description: Mapping[str, Any]) -> Draft:
        return cls(
            name,
            name,
            list(Schema.parse(description["columns"])),
            tuple(description["key"]),
            description.get("check"),
            [tuple(columns) for columns in description.get("unique", ())],
            [(tuple(columns), parent) for columns, parent in description.get("references", ())],
            Storage.read(name, description),
            [tuple(columns) for columns in description.get("index", ())],
            description.get("history"),
            description.get("by"),
            description.get("expires"),
            tuple(description.get("shard_by", ())),
            description.get("replicate", False),
        )

    def table(self) -> Table:
        """The table as it is declared now; DeclarationError when that is none."""
        return Table(
            self.name,
            Schema(tuple(self.columns)).ddl,
            self.key,
            self.check,
            unique=list(self.unique),
            references=dict(self.references),
            index=list(self.index),
            history=self.history,
            by=self.by,
            expires=self.expires,
            shard_by=self.shard_by,
            replicate=self.replicate,
        )

    @property
    def where(self) -> str:
        return f"table {self.name!r}"

    def place(self, column: str) -> int:
        """Where a column stands; DeclarationError that lists the columns when there is none."""
        Schema(tuple(self.columns)).require(column, self.where)
        return [one.name for one in self.columns].index(column)

    def order_as_versions_of(self, draft: Draft) -> None:
        """Have its columns in the order that versions of the other table have."""
        wanted = versions_of(draft.table())
        if wanted is not None:
            names = list(wanted.schema.names)
            self.columns.sort(key=lambda one: names.index(one.name))

    def refuse_known(self, column: str) -> None:
        if any(one.name == column for one in self.columns):
            raise DeclarationError(f"{self.where}: there is a column {column!r} already")

    def add(self, column: Column, value: str | None, after: str | None, first: bool) -> None:
        self.refuse_known(column.name)
        if column.default is None and value is None and not column.nullable:
            raise DeclarationError(
                f"{self.where}: the new column {column.name!r} needs a value for the rows there "
                f"are: '{column.ddl} DEFAULT ...', or value='an SQL expression over the row', or "
                f"none: '{column.ddl} NULL'"
            )
        place = len(self.columns) if after is None else self.place(after) + 1
        self.storage = self.storage.with_new(column.name, [one.name for one in self.columns])
        self.columns.insert(0 if first else place, column)
        if value is not None and not column.nullable:
            # Every row gets its value with the migration; until then, in replay, any will do.
            self.storage = self.storage.filled(column.name, _zero(column.type))
        if value is not None or (column.nullable and column.default is not None):
            self.is_rewritten = True

    def drop(self, column: str) -> None:
        place = self.place(column)
        if column in self.key:
            raise DeclarationError(
                f"{self.where}: {column!r} is part of the key, and a key stays what it is: declare "
                "a new table with the other key and load the rows into it"
            )
        users = self._users(column)
        if users:
            raise DeclarationError(
                f"{self.where}: {column!r} is named by {users[0][0]}; {users[0][1]} before it"
            )
        if self._expiry is not None and self._expiry.column == column:
            self.expires = None
        del self.columns[place]
        self.index = [columns for columns in self.index if column not in columns]
        self.storage = self.storage.without(column)

    @property
    def _expiry(self) -> Expiry | None:
        return parse_expires(self.expires, Schema(tuple(self.columns)), self.where)

    def _users(self, column: str) -> list[tuple[str, str]]:
        """What names a column, and the step that ends that."""
        found = []
        if self.check is not None and column in [name for name, _, _ in names_in(self.check)]:
            found.append((f"the check {self.check!r}", f".set_check({self.name!r}, ...)"))
        for columns in self.unique:
            if column in columns:
                step = f".drop_unique({self.name!r}, {_said(columns)})"
                found.append((f"unique {', '.join(columns)}", step))
        for columns, parent in self.references:
            if column in columns:
                step = f".drop_reference({self.name!r}, {_said(columns)})"
                found.append((f"the reference to {parent!r}", step))
        return found

    def rename(self, old: str, new: str) -> None:
        place = self.place(old)
        self.refuse_known(new)
        if self._expiry is not None:
            self.expires = self._expiry.renamed(old, new)
        self.columns[place] = replace(self.columns[place], name=new)

        def renamed(columns: Columns) -> Columns:
            return tuple(new if name == old else name for name in columns)

        self.key, self.shard_by = renamed(self.key), renamed(self.shard_by)
        self.unique = [renamed(columns) for columns in self.unique]
        self.references = [(renamed(columns), parent) for columns, parent in self.references]
        self.index = [renamed(columns) for columns in self.index]
        if self.check is not None:
            self.check = renamed_in(self.check, old, new)
        self.storage = self.storage.renamed(old, new)

    def widen(self, column: str, kind: ColumnType) -> None:
        place = self.place(column)
        old = self.columns[place]
        if not is_wider(kind, old.type):
            raise DeclarationError(
                f"{self.where}: column {column!r} is a {old.type}, and a {kind} does not hold "
                "every value of it exactly and more; add a column with value='...', drop this one "
                "and give the new one its name"
            )
        default = old.default
        if default is not None:
            default = widened_value(kind, old.type, default)
        if column in self.storage.fill:
            fill = widened_value(kind, old.type, self.storage.fill[column])
            self.storage = self.storage.filled(column, fill)
        self.columns[place] = replace(old, type=kind, default=default)
        self.is_tested |= bool(self.check)

    def set_default(self, column: str, value: Any) -> None:
        place = self.place(column)
        old = self.columns[place]
        where = f"{self.where}: column {column!r}"
        new = None if value is None else default_value(old.type, value, where)
        if old.default is not None and not old.nullable and column not in self.storage.fill:
            # Rows older than the column have shown this default, and go on to show it.
            self.storage = self.storage.filled(column, old.default)
        self.columns[place] = replace(old, default=new)

    def allow_null(self, column: str) -> None:
        place = self.place(column)
        old = self.columns[place]
        if old.nullable:
            raise DeclarationError(f"{self.where}: column {column!r} may be null already")
        if old.default is not None or column in self.storage.fill:
            # Rows older than the column have no value in the files, which would be null now.
            self.is_rewritten = True
            self.storage = self.storage.unfilled(column)
        self.columns[place] = replace(old, nullable=True)

    def forbid_null(self, column: str) -> None:
        place = self.place(column)
        old = self.columns[place]
        if not old.nullable:
            raise DeclarationError(f"{self.where}: column {column!r} is never null already")
        # No row has null now; versions of rows that had are older, and any value will do for them.
        fill = _zero(old.type) if old.default is None else old.default
        self.storage = self.storage.filled(column, fill)
        self.columns[place] = replace(old, nullable=False)
        self.is_tested = True

    def set_check(self, check: str | None) -> None:
        self.check = check
        self.is_tested |= check is not None

    def add_unique(self, columns: Columns) -> None:
        if columns in self.unique:
            raise DeclarationError(f"{self.where}: {_said(columns)} is unique already")
        self.unique.append(columns)
        self.is_tested = True

    def drop_unique(self, columns: Columns) -> None:
        if columns not in self.unique:
            known = _known("unique", self.unique)
            raise DeclarationError(f"{self.where}: {_said(columns)} is not unique; {known}")
        self.unique.remove(columns)

    def add_reference(self, columns: Columns, parent: str) -> None:
        if any(known == columns for known, _ in self.references):
            raise DeclarationError(f"{self.where}: {_said(columns)} is a reference already")
        self.references.append((columns, parent))
        self.is_tested = True

    def drop_reference(self, columns: Columns) -> None:
        found = [one for one in self.references if one[0] == columns]
        if not found:
            known = _known("a reference", [one for one, _ in self.references])
            raise DeclarationError(f"{self.where}: {_said(columns)} is no reference; {known}")
        self.references.remove(found[0])


def _zero(kind: ColumnType) -> int | float | str | bool:
    return _ZEROS.get(kind.kind, 0)


def _said(columns: Sequence[str]) -> str:
    return repr(columns[0] if len(columns) == 1 else tuple(columns))


def _known(what: str, found: Sequence[Columns]) -> str:
    if not found:
        return f"no columns of this table are {what}"
    is_one = len(found) == 1
    return f"{', '.join(map(_said, found))} {'is' if is_one else 'are'} {what}"


@dataclass
class Drafts:
    """All tables and streams of a store, and the transactions that get other names."""

    tables: dict[str, Draft]
    streams: dict[str, Any]
    dropped: list[Draft] = field(default_factory=list)
    transactions: dict[str, str] = field(default_factory=dict)  # old name -> new name

    @classmethod
    def read(cls, version: Mapping[str, Any]) -> Drafts:
        tables = {name: Draft.read(name, one) for name, one in version.get("tables", {}).items()}
        return cls(tables, copy.deepcopy(dict(version.get("streams", {}))))

    def next(self) -> Drafts:
        """The same as the beginning of another migration."""
        tables = {
            name: replace(
                copy.copy(one),
                columns=list(one.columns),
                unique=list(one.unique),
                references=list(one.references),
                index=list(one.index),
                is_tested=False,
                is_rewritten=False,
            )
            for name, one in self.tables.items()
        }
        return Drafts(tables, copy.deepcopy(self.streams))

    def __getitem__(self, name: str) -> Draft:
        if name not in self.tables:
            known = ", ".join(self.tables) or "none"
            raise DeclarationError(f"no table {name!r}; the tables are: {known}")
        return self.tables[name]

    def rename_table(self, old: str, new: str) -> None:
        draft = self[old]
        owner = self._owner_of(old)
        if owner is not None:
            raise DeclarationError(
                f"table {old!r} has the versions of table {owner.name!r} and follows it: "
                f".rename_table({owner.name!r}, ...) renames both, .drop_table({old!r}) ends the "
                "history"
            )
        if new in self.tables:
            raise DeclarationError(f"there is a table {new!r} already")
        refuse_twins([*(one for one in self.tables if one != old), new], "tables", "the store")
        draft.name = new
        self.tables = {new if name == old else name: one for name, one in self.tables.items()}
        if draft.history is not None and old + ENDING in self.tables:
            self.rename_table(old + ENDING, new + ENDING)
        for one in self.tables.values():
            one.references = [
                (columns, new if parent == old else parent) for columns, parent in one.references
            ]

    def drop_table(self, name: str) -> None:
        draft = self[name]
        for other in self.tables.values():
            for columns, parent in other.references:
                if parent == name and other.name != name:
                    step = f".drop_reference({other.name!r}, {_said(columns)})"
                    raise DeclarationError(
                        f"table {other.name!r} refers to {name!r}; {step} before it"
                    )
        del self.tables[name]
        self.dropped.append(draft)
        owner = self._owner_of(name)
        if draft.history is not None and name + ENDING in self.tables:
            self.drop_table(name + ENDING)
        elif owner is not None:
            owner.history = owner.by = None  # from now on it keeps no versions

    def _owner_of(self, name: str) -> Draft | None:
        """The table whose versions a table has, where it has some."""
        owner = self.tables.get(name.removesuffix(ENDING)) if name.endswith(ENDING) else None
        return None if owner is None or owner.history is None else owner

    def versions_of(self, name: str) -> Draft | None:
        """The table of the versions of a table, where it keeps some."""
        draft = self.tables.get(name)
        return None if draft is None or draft.history is None else self.tables.get(name + ENDING)

    def rename_transaction(self, old: str, new: str) -> None:
        if old not in self.streams:
            known = ", ".join(self.streams) or "none"
            raise DeclarationError(
                f"no transaction {old!r} has run here; the transactions are: {known}"
            )
        if new in self.streams:
            raise DeclarationError(f"there is a transaction {new!r} already")
        self.streams = {new if name == old else name: one for name, one in self.streams.items()}
        first = next((one for one, name in self.transactions.items() if name == old), old)
        self.transactions[first] = new
