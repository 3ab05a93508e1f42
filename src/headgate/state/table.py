"""Tables: the declaration of typed rows with a key, their constraints, and how rows are named.

A declaration is a value: it holds no rows, so the same table can be opened by many engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headgate.errors import DeclarationError, shown
from headgate.state.check import Check, parse_check
from headgate.state.display import html_table
from headgate.state.durations import Expiry, parse_expires
from headgate.state.parameters import Row, Rows, Versions
from headgate.state.ranges import (
    Index,
    RowRange,
    between_index,
    bound_columns,
    check_limit,
    check_named,
    named_columns,
    parse_index,
    parse_shard_by,
    where_index,
)
from headgate.state.row_form import parse_key, refuse_arrays, with_defaults
from headgate.state.row_history import RowHistory, RowWindow, parse_history, parse_window
from headgate.state.schema import Schema, split_list
from headgate.state.types import Column, ColumnType, logical_value


@dataclass(frozen=True, init=False)
class Table:
    """A table of typed rows with a key.

    >>> accounts = Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
    >>> accounts.key
    ('id',)

    `unique` names columns that no two rows share, `references` columns that hold the key of a row
    of another table (or of this one, given by its name). Both hold when a transaction ends. `index`
    names columns, alone or several together, by which rows can be asked for (`where`, `between`).
    `history` keeps the versions of each row ("10 minutes", "100 rows") for `window`; `by` names the
    event column that has their time, where events have several timestamps.
    In a store with shards, rows are placed by their key, or by the columns of it that `shard_by`
    names, or with `replicate=True` each shard has all of them.
    `expires` says when a row is no more, by event time: "ts + 30 days", or a column alone.

    >>> cards = Table("cards", "number string, account bigint, pin int", key="number",
    ...               unique=[("account", "pin")], references={"account": accounts})
    >>> cards.references[0].reason
    'reference failed: cards.account: accounts'
    """

    name: str
    schema: Schema
    key: tuple[str, ...]
    check: Check | None
    unique: tuple[Unique, ...]
    references: tuple[Reference, ...]
    index: tuple[Index, ...]
    history: RowHistory | None
    shard_by: tuple[str, ...]
    replicate: bool
    expires: Expiry | None

    def __init__(
        self,
        name: str,
        schema: str,
        key: str | Iterable[str],
        check: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        *,
        unique: Any = (),
        references: Any = None,
        index: Any = (),
        history: str | None = None,
        by: str | None = None,
        shard_by: str | Iterable[str] = (),
        replicate: bool = False,
        expires: str | None = None,
    ) -> None:
        where = f"table {name!r}"
        given: Any = name
        if not isinstance(given, str) or not name.isidentifier() or name.startswith("__"):
            raise DeclarationError(f"{where}: a table's name is a plain word, such as 'accounts'")
        parsed = with_defaults(Schema.parse(schema, where), defaults or {}, where)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "schema", parsed)
        object.__setattr__(self, "key", parse_key(key, parsed, where))
        refuse_arrays(parsed, where)
        parsed_check = None if check is None else parse_check(check, parsed, f"{where}: check")
        object.__setattr__(self, "check", parsed_check)
        object.__setattr__(self, "unique", parse_unique(name, unique, parsed, where))
        refers = parse_references(name, references or {}, parsed, where)
        object.__setattr__(self, "references", refers)
        object.__setattr__(self, "index", parse_index(name, index, parsed, self.key, where))
        object.__setattr__(self, "history", parse_history(history, by, parsed, where))
        object.__setattr__(self, "shard_by", parse_shard_by(shard_by, replicate, self.key, where))
        object.__setattr__(self, "replicate", bool(replicate))
        object.__setattr__(self, "expires", parse_expires(expires, parsed, where))

    def __repr__(self) -> str:
        """The declaration as it is written; all that it says, for kernels are known by it."""
        words = [repr(self.name), repr(self.schema.ddl), f"key={', '.join(self.key)!r}"]
        if self.check is not None:
            words.append(f"check={self.check.text!r}")
        if self.unique:
            words.append(f"unique={[one.columns for one in self.unique]!r}")
        if self.references:
            words.append(f"references={ {one.columns: one.parent for one in self.references}!r}")
        if self.index:
            words.append(f"index={[one.columns for one in self.index]!r}")
        if self.history is not None:
            words.append(f"history={self.history.extent.text!r}")
            words += [] if self.history.by is None else [f"by={self.history.by!r}"]
        if self.expires is not None:
            words.append(f"expires={self.expires.text!r}")
        return f"Table({', '.join(words)})"

    def _repr_html_(self) -> str:
        rows = [
            (
                column.name,
                column.kept_as,
                "yes" if column.name in self.key else "",
                "" if column.default is None else logical_value(column.type, column.default),
            )
            for column in self.schema
        ]
        told = [f"table {self.name}"]
        told += [] if self.check is None else [f"check {self.check.text}"]
        told += [one.name for one in (*self.constraints, *self.index)]
        told += [] if self.history is None else [f"history {self.history.extent.text}"]
        told += [] if self.expires is None else [f"expires {self.expires.text}"]
        return html_table("; ".join(told), ["column", "type", "key", "default"], rows)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """What it promises over several rows, in the order in which it is judged."""
        return (*self.unique, *self.references)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in its order."""
        return tuple(self.schema[name] for name in self.key)

    def at(
        self,
        *columns: str | Callable[..., Any],
        mode: str = "write",
        create: bool = False,
        reads: str | Iterable[str] = (),
    ) -> Row:
        """The row whose key is in these event columns, or computed by functions.

        `mode="read"` promises not to change it; `create=True` inserts a missing row from the
        table's defaults. `reads` names other parameters whose rows the new values of this one
        depend on, where the engine should not find that out from the function alone.

        A function computes a column of the key, or all of them as a tuple, from the event and
        the rows of parameters declared before, which its own parameters name.

        >>> stock = Table("stock", "sku bigint, left int", key="sku")
        >>> stock.at(lambda event, order: order.sku).keys
        (key(event, order),)
        """
        return cast(Row, self._access("at", columns, mode, create, reads))

    def each(
        self,
        *columns: str | Callable[..., Any],
        mode: str = "write",
        create: bool = False,
        reads: str | Iterable[str] = (),
    ) -> Rows:
        """The rows whose keys are in this array column of the event, in its order.

        Or a row for each row of a parameter declared before that names several: a function
        computes its key, or a column of it, from that one row, and from the event and others.

        >>> stock = Table("stock", "sku bigint, left int", key="sku")
        >>> stock.each(lambda line: line.sku).follows
        True
        """
        return cast(Rows, self._access("each", columns, mode, create, reads))

    def where(
        self,
        *columns: str,
        index: str | Sequence[str] | None = None,
        mode: str = "write",
        descending: bool = False,
        limit: int | None = None,
        reads: str | Iterable[str] = (),
        **named: str,
    ) -> Rows:
        """The rows whose columns have the values of these event columns, as an index finds them.

        `orders.where("customer")`: a column of the table and of the event; by other names
        `orders.where(customer="buyer")`, or `orders.where("buyer", index="customer")`. They are the
        first columns of an index, or of the key. Rows come in the order of that index, those of
        equal columns by their keys; with `descending` in the reverse of it; at most `limit` rows.
        """
        given = (*columns, *named.values())
        where = f"table {self.name!r}.where({', '.join(map(repr, map(_key_part, given)))})"
        check_named(self.name, given, where)
        chosen, found = where_index(self, columns, named, index, where)
        span = RowRange(chosen, len(found), descending, check_limit(limit, where))
        return cast(Rows, self._access("where", found, mode, False, reads, span))

    def between(
        self,
        low: str | Sequence[str],
        high: str | Sequence[str],
        *,
        index: str | Sequence[str] | None = None,
        mode: str = "write",
        descending: bool = False,
        limit: int | None = None,
        reads: str | Iterable[str] = (),
    ) -> Rows:
        """The rows from `low` to `high`, both inclusive, by the key or by an index.

        Both are event columns; several together are compared as tuples are, with as many of the
        index's first columns. Where low is beyond high there is no row. For the order, `descending`
        and `limit` see `where`.
        """
        where = f"table {self.name!r}.between({_key_part(low)!r}, {_key_part(high)!r})"
        check_named(self.name, (low, high), where)
        bounds = bound_columns(low, where), bound_columns(high, where)
        chosen = between_index(self, *bounds, index, where)
        span = RowRange(chosen, len(bounds[0]), descending, check_limit(limit, where))
        named = (*bounds[0], *bounds[1])
        return cast(Rows, self._access("between", named, mode, False, reads, span))

    def window(self, *columns: str, size: str) -> Versions:
        """The versions of the row whose key is in these event columns, as far back as `size`.

        `size="5 minutes"`: those written before this event whose time is within the five minutes up
        to the event's; `size="100 rows"`: the last hundred. They can be counted, walked, and added
        up column by column: `speeds.window("road", size="5 minutes").speed.mean()`.
        """
        where = f"table {self.name!r}.window({', '.join(map(repr, columns))})"
        seen = parse_window(self, size, where)
        return cast(Versions, self._access("window", columns, "read", False, (), window=seen))

    def _access(
        self,
        form: str,
        columns: tuple[str | Callable[..., Any], ...],
        mode: str,
        create: bool,
        reads: str | Iterable[str],
        span: RowRange | None = None,
        window: RowWindow | None = None,
    ) -> Access:
        keys = tuple(_key_part(column) for column in columns)
        where = f"table {self.name!r}.{form}({', '.join(map(repr, keys))})"
        if mode not in ("write", "read"):
            raise DeclarationError(f"{where}: mode is 'write' or 'read', not {mode!r}")
        if create and mode == "read":
            raise DeclarationError(f"{where}: create=True needs mode='write'")
        if not all(isinstance(one, str | KeyFunction) for one in keys):
            raise DeclarationError(
                f"{where}: name the event's columns by their names, as texts"
                + (", or give a def or a lambda that computes the key" if form == "at" else "")
            )
        computed = [one for one in keys if isinstance(one, KeyFunction)]
        if form not in ("at", "each"):
            check_named(self.name, columns, where)
        if computed and form == "each" and (len(computed) < len(keys) or create):
            raise DeclarationError(
                f"{where}: the rows of each(function) are there already, and functions alone "
                "compute their keys; the event is at hand in those"
            )
        gives_all = len(keys) == 1 and bool(computed)  # as a tuple, where there are several
        if span is None and len(keys) != len(self.key) and not gives_all:
            many = "columns" if len(self.key) > 1 else "column"
            raise DeclarationError(
                f"{where}: the key has {len(self.key)} {many} ({', '.join(self.key)}), "
                f"so name {len(self.key)} event {many}, not {len(columns)}"
            )
        stated = tuple(split_list(reads) if isinstance(reads, str) else reads)
        named = tuple(one for one in keys if isinstance(one, str))
        parts = keys if computed else ()
        return Access(self, form, named, mode == "read", create, stated, parts, span, window)


@dataclass(frozen=True)
class KeyFunction:
    """A function that computes a key, or a column of one, from the event and from rows."""

    function: Callable[..., Any]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of what it takes, which are names of the transaction's parameters."""
        code = self.function.__code__
        return tuple(code.co_varnames[: code.co_argcount])

    def __repr__(self) -> str:
        return f"key({', '.join(self.parameters)})"


def _key_part(given: Any) -> Any:
    """A part of a key as it was given: a column's name, or a function."""
    return KeyFunction(given) if hasattr(given, "__code__") else given


@dataclass(frozen=True, repr=False)
class Access:
    """Which rows of a table one parameter of a transaction stands for."""

    table: Table
    # "at": one row; "each": one row per element of an array column; "where", "between": a range;
    # "window": the versions of one row
    form: str
    columns: tuple[str, ...]  # of the event, that keys or parts of them stand in
    read_only: bool
    create: bool
    reads: tuple[str, ...] = ()  # other parameters whose rows these depend on, as stated
    keys: tuple[str | KeyFunction, ...] = ()  # the parts of a key that is computed, else none
    span: RowRange | None = None  # of "where" and "between"
    window: RowWindow | None = None  # of "window"

    def __repr__(self) -> str:
        """All that it says; kernels are known by it, with the code of its functions."""
        words = [repr(self.table), repr(self.form), repr(self.keys or self.columns)]
        words += ["read_only"] if self.read_only else []
        words += ["create"] if self.create else []
        words += [f"reads={self.reads!r}"] if self.reads else []
        words += [repr(self.span)] if self.span is not None else []
        words += [repr(self.window)] if self.window is not None else []
        return f"Access({', '.join(words)})"

    @property
    def is_dynamic(self) -> bool:
        """Whether its rows depend on others, which earlier events of a batch may change."""
        return bool(self.keys)

    @property
    def follows(self) -> bool:
        """Whether it has a row for each row of another parameter."""
        return self.form == "each" and bool(self.keys)

    @property
    def functions(self) -> tuple[KeyFunction, ...]:
        """Those that compute its key, or columns of it."""
        return tuple(one for one in self.keys if isinstance(one, KeyFunction))

    @property
    def gives_tuple(self) -> bool:
        """Whether one function computes all columns of a key of several."""
        return len(self.keys) == 1 < len(self.table.key)

    @property
    def named(self) -> list[tuple[str, Column]]:
        """The event's columns that keys or bounds stand in, each with the column of the table that
        it is compared with."""
        parts = self.keys or self.columns
        if self.gives_tuple:
            return []
        pairs = zip(parts, self._targets, strict=True)
        return [(one, column) for one, column in pairs if isinstance(one, str)]

    @property
    def _targets(self) -> tuple[Column, ...]:
        if self.span is None:
            return self.table.key_columns
        names = self.span.index.words(self.table.key)[: self.span.count]
        return tuple(self.table.schema[name] for name in names) * (len(self.columns) // len(names))

    @property
    def is_single(self) -> bool:
        """Whether it names one row for every event: a span of one, which needs no offsets."""
        return self.form in ("at", "window")

    @property
    def needs_row(self) -> bool:
        """Whether there must be such a row: a range and a window may be empty."""
        return not self.create and self.span is None and self.window is None

    @property
    def is_by_list(self) -> bool:
        """Whether its keys are the elements of array columns."""
        return self.form == "each" and not self.keys

    @property
    def stated(self) -> tuple[Any, ...]:
        """All that was said of it but the table, as plain values."""
        said = (self.form, self.columns, self.read_only, self.create, self.reads)
        said += () if self.span is None else self.span.stated
        said += () if self.window is None else self.window.stated
        if not self.keys:
            return said
        parts = (one if isinstance(one, str) else one.parameters for one in self.keys)
        return (*said, tuple(parts))


# --- constraints ----------------------------------------------------------------------------------
# What a table promises over several rows: unique columns, references to other rows. A constraint is
# a value with a name, which is the reason of every transaction that would break it. It must hold
# when a transaction ends; in between it may be broken.


@dataclass(frozen=True)
class Unique:
    """No two rows of a table have the same values in these columns."""

    table: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"unique {self.table}: {', '.join(self.columns)}"

    @property
    def reason(self) -> str:
        return f"unique failed: {self.table}: {', '.join(self.columns)}"


@dataclass(frozen=True)
class Reference:
    """The values in these columns of every row are the key of a row of another table."""

    table: str
    columns: tuple[str, ...]
    parent: str

    @property
    def name(self) -> str:
        return f"reference {self.table}.{', '.join(self.columns)}: {self.parent}"

    @property
    def reason(self) -> str:
        return f"reference failed: {self.table}.{', '.join(self.columns)}: {self.parent}"


Constraint = Unique | Reference


def parse_unique(name: str, given: Any, schema: Schema, where: str) -> tuple[Unique, ...]:
    """`unique=["email", ("street", "number")]`: each item a column or several together."""
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, (list, tuple)):
        raise DeclarationError(f"{where}: unique is a list of columns, not {shown(given)}")
    return tuple(
        Unique(name, named_columns(item, schema, f"{where}: unique"))
        for item in dict.fromkeys(items)
    )


def parse_references(name: str, given: Any, schema: Schema, where: str) -> tuple[Reference, ...]:
    """`references={"customer": customers}`: a column, or several together, to a table's key."""
    if not isinstance(given, Mapping):
        raise DeclarationError(
            f"{where}: references is a dict {{column: table}}, not {type(given).__name__}"
        )
    found = []
    for item, parent in given.items():
        columns = named_columns(item, schema, f"{where}: references")
        if isinstance(parent, str):
            found.append(Reference(name, columns, parent))
        elif hasattr(parent, "key_columns"):
            check_reference(columns, schema, parent.name, parent.key_columns, where)
            found.append(Reference(name, columns, parent.name))
        else:
            raise DeclarationError(
                f"{where}: references: {parent!r} is not a table; hand in the table, or its name"
            )
    return tuple(found)


def check_reference(
    columns: Sequence[str], schema: Schema, parent: str, key: Sequence[Column], where: str
) -> None:
    """Refuse columns that cannot hold the parent's key."""
    label = f"{where}: references {parent!r} by {', '.join(columns)}"
    if len(columns) != len(key):
        raise DeclarationError(
            f"{label}: its key has {len(key)} column(s): {', '.join(one.name for one in key)}"
        )
    for name, column in zip(columns, key, strict=True):
        if not fits_key(schema[name].type, column.type):
            raise DeclarationError(
                f"{label}: column {name!r} is a {schema[name].type}, "
                f"the key {parent}.{column.name} a {column.type}"
            )


def fits_key(given: ColumnType, key: ColumnType) -> bool:
    """Whether every value of the given column is a value of the key."""
    if given.kind == "decimal" and key.kind == "decimal":
        return given.scale == key.scale and given.precision <= key.precision
    return given.kind == key.kind or (given.kind, key.kind) == ("int", "bigint")
