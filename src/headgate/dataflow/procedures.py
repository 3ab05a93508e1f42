"""Procedures: functions over a whole batch, as declared, and triggers that their new rows start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headgate.dataflow.aggregates import AGGREGATES
from headgate.dataflow.partitions import Division, Partition
from headgate.dataflow.streams import Stream, Taken, Window, stream_of
from headgate.errors import DeclarationError, shown
from headgate.state.table import Table

BATCH_NAME = "batch"  # what SQL calls the rows of the one thing that a procedure takes


@dataclass(frozen=True, eq=False)
class Procedure:
    """A function over one whole batch and a `tx`; made by `@hg.procedure`."""

    name: str
    function: Callable[..., Any]
    takes: tuple[Taken, ...]
    gives: tuple[Stream, ...]
    reads: tuple[Table, ...]
    writes: tuple[Table, ...]
    retries: int
    parts: Division | None = None  # how it is to be divided
    partition: Partition | None = None  # which part of it this is
    told: str = "procedure"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that it declares."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    @cached_property
    def has_rows(self) -> bool:
        """Whether its function takes rows; of windows with aggregates it may take these alone."""
        are_plain = not any(map(has_aggregates, self.takes))
        return are_plain or len(_needed(self.function)) > len(self.takes) + 1

    def __call__(self, *given: Any) -> Any:
        """Call the plain function, as in a unit test of it."""
        return self.function(*given)

    def __repr__(self) -> str:
        return f"<procedure {self.name}({', '.join(map(_told, self.takes))})>"


def _told(taken: Taken) -> str:
    return repr(taken) if isinstance(taken, Window) else taken.name


def procedure(
    *takes: Taken,
    output: Stream | Sequence[Stream] | None = None,
    reads: Table | Iterable[Table] = (),
    writes: Table | Iterable[Table] = (),
    retries: int = 0,
    name: str | None = None,
    partition_by: str | None = None,
    partitions: int | None = None,
    align: int | None = None,
) -> Callable[[Callable[..., Any]], Procedure]:
    """Declare a function as a procedure over the batches of streams, or over windows of them.

    It is called with the rows of each stream as an Arrow table (of a window with aggregates with
    these, see `Stream.window`), in the order in which they are named, and with `tx`, its one way to
    tables: `tx.sql`, `tx.insert`, `tx.update`, `tx.upsert`, `tx.delete`. `reads` and `writes` name
    the tables; what it writes it may read. What it returns, as Arrow, a frame or a list of dicts,
    is the batch on its `output`; of several outputs a dict by their names. `return
    hg.abort("why")` or an exception undoes all of it; it is tried again `retries` times, and then
    the batch is aborted for good, and so it is for all that would have taken what it gives.

    Windows beside one another move on batch by batch of one number: it is called whenever one of
    them slides, over the newest whole content of each, once all have been whole. Windows of time
    have one clock. With streams beside them it is called for each batch that has rows of these.

    With `partition_by`, a column, it is `partitions` nodes: each takes the rows of its own keys of
    each batch, as a transaction of its own, sees its own rows of the tables that it writes, and
    writes no others. With workers they run at once; `align` lets none of them begin batch n * align
    + 1 before all are done with n * align.

    >>> votes, phones = Stream("votes", "phone bigint"), Table("phones", "phone bigint", "phone")
    >>> @procedure(votes, writes=phones)
    ... def note(batch, tx):
    ...     tx.insert(phones, tx.sql("select distinct phone from batch"))
    >>> note
    <procedure note(votes)>
    """
    if not takes or not all(isinstance(one, Stream | Window) for one in takes):
        given = shown(takes[0]) if takes else "nothing"
        raise DeclarationError(
            f"@hg.procedure takes streams, as in @hg.procedure(votes, output=valid); not {given}"
        )

    def declare(function: Callable[..., Any]) -> Procedure:
        label: str = name or str(getattr(function, "__name__", "?"))
        where = f"procedure {label!r}"
        _check_function(function, takes, where)
        given: Any = retries
        if not isinstance(given, int) or isinstance(given, bool) or given < 0:
            raise DeclarationError(f"{where}: retries is a number from 0 on, not {shown(retries)}")
        outputs = several(output, Stream, f"{where}: output")
        read = several(reads, Table, f"{where}: reads")
        written = several(writes, Table, f"{where}: writes")
        _check_takes(takes, (*read, *written), where)
        for table in written:
            if table.history is not None:
                raise DeclarationError(
                    f"{where}: writes {table.name!r}, which keeps the versions that transactions "
                    "leave: let a transaction write it, or declare it without history="
                )
        parts = Division.said(partition_by, partitions, align, where)
        return Procedure(label, function, tuple(takes), outputs, read, written, retries, parts)

    return declare


def _needed(function: Any) -> list[inspect.Parameter]:
    """The parameters of a function that must be given."""
    found = inspect.signature(function).parameters.values()
    return [one for one in found if one.default is inspect.Parameter.empty]


def _check_function(function: Any, takes: Sequence[Taken], where: str) -> None:
    if not hasattr(function, "__code__"):
        raise DeclarationError(f"{where}: @hg.procedure(...) goes on a plain Python function")
    needed = _needed(function)
    kinds = {one.kind for one in needed}
    kept = [one for one in takes if has_aggregates(one)]
    wanted = (len(takes) + 1, len(takes) + 1 + len(kept))
    if kinds - {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY} or (
        len(needed) not in wanted
    ):
        label = getattr(function, "__name__", "f")
        alone, both = list[str](), list[str]()
        for name, aggregates in sql_names(takes):
            alone.append(aggregates or name)
            both += [name, aggregates] if aggregates else [name]
        if kept:
            of = "the window" if len(takes) == 1 else "each window that has them"
            raise DeclarationError(
                f"{where}: its function takes the aggregates of {of}, then tx: "
                f"def {label}({', '.join(alone)}, tx); or its rows before them: "
                f"def {label}({', '.join(both)}, tx)"
            )
        raise DeclarationError(
            f"{where}: its function takes a batch of each of its streams, then tx: "
            f"def {label}({', '.join(alone)}, tx)"
        )


def has_aggregates(taken: Taken) -> bool:
    """Whether aggregates are kept of what is taken."""
    return isinstance(taken, Window) and taken.aggregates is not None


def sql_names(takes: Sequence[Taken]) -> list[tuple[str, str | None]]:
    """What SQL calls the rows of each that a procedure takes, and the aggregates that are kept."""
    if len(takes) == 1:
        return [(BATCH_NAME, AGGREGATES if has_aggregates(takes[0]) else None)]
    names = [stream_of(one).name for one in takes]
    return [
        (name, f"{name}_{AGGREGATES}" if has_aggregates(one) else None)
        for name, one in zip(names, takes, strict=True)
    ]


def _check_takes(takes: Sequence[Taken], tables: Sequence[Table], where: str) -> None:
    names = [stream_of(one).name for one in takes]
    for name in names:
        if names.count(name) > 1:
            told = ", ".join(map(_told, takes))
            raise DeclarationError(
                f"{where}: it takes one stream twice: {told}; its SQL would have {name!r} twice: "
                "let a procedure before it give the rows on a stream of another name"
            )
    known = [name.lower() for name in (*names, *(table.name for table in tables))]
    for _, aggregates in sql_names(takes):
        if aggregates is not None and aggregates.lower() in known:
            raise DeclarationError(
                f"{where}: {aggregates!r} is what its SQL calls those of its window, and a stream "
                "or table that it declares is called so, too; give that another name"
            )


def several(given: Any, kind: type, where: str) -> tuple[Any, ...]:
    """One thing, or several, or none, as a tuple."""
    if given is None:
        return ()
    found = (given,) if isinstance(given, kind) else given
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise DeclarationError(f"{where}: takes a {kind.__name__} or a list, not {shown(given)}")
    items = tuple(found)
    for one in items:
        if not isinstance(one, kind):
            raise DeclarationError(f"{where}: {shown(one)} is no {kind.__name__}")
    names = [one.name for one in items]
    if len(set(names)) < len(names):
        raise DeclarationError(f"{where}: one is named twice: {', '.join(names)}")
    return items


# --- triggers on insert ---------------------------------------------------------------------------
# Functions that a procedure's new rows start, inside its transaction.
#
# A trigger belongs to a table in a dataflow. Whenever a procedure of the dataflow adds rows to
# the table it is called with these rows, right behind the statement; what it writes commits or
# aborts with what started it. Invariant: triggers do not lead in a circle, and their tables count
# as those of every node that may start them.


INSERTED = "inserted"  # what a trigger's SQL calls the rows that started it


@dataclass(frozen=True, eq=False)
class Trigger:
    """A function over rows that were added to a table; made by `@hg.on_insert`."""

    name: str
    function: Callable[..., Any]
    table: Table
    reads: tuple[Table, ...]
    writes: tuple[Table, ...]
    told: str = "trigger"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that it declares."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    def __call__(self, *given: Any) -> Any:
        """Call the plain function, as in a unit test of it."""
        return self.function(*given)

    def __repr__(self) -> str:
        return f"<trigger {self.name}: on insert into {self.table.name}>"


def on_insert(
    table: Table,
    *,
    reads: Table | Iterable[Table] = (),
    writes: Table | Iterable[Table] = (),
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Trigger]:
    """Declare a function that rows which procedures add to a table start.

    It is called with the new rows, whole, as an Arrow table, which its SQL calls `inserted`, and
    with a `tx` as procedures have it, in the same transaction. `hg.abort` or an exception aborts
    all of it. Give it to `hg.Dataflow(..., triggers=[...])`.

    >>> voters = Table("voters", "phone bigint", "phone")
    >>> totals = Table("totals", "id int, voters bigint", "id")
    >>> @on_insert(voters, writes=totals)
    ... def count(rows, tx):
    ...     tx.upsert(totals, [{"id": 1, "voters": rows.num_rows}])
    >>> count
    <trigger count: on insert into voters>
    """
    given: Any = table
    if not isinstance(given, Table):
        raise DeclarationError(f"@hg.on_insert takes a table, not {shown(table)}")

    def declare(function: Callable[..., Any]) -> Trigger:
        label = name or str(getattr(function, "__name__", "?"))
        where = f"trigger {label!r}"
        code = getattr(function, "__code__", None)
        if code is None or code.co_argcount != 2:
            raise DeclarationError(
                f"{where}: its function takes rows and tx: def {label}(rows, tx)"
            )
        read, written = (several(one, Table, where) for one in (reads, writes))
        return Trigger(label, function, table, read, written)

    return declare


def started_by(tables: Iterable[Table], triggers: Sequence[Trigger]) -> tuple[Trigger, ...]:
    """The triggers that writes to these tables may start, those of triggers with them."""
    found: dict[str, Trigger] = {}
    left = [table.name for table in tables]
    while left:
        name = left.pop()
        for one in triggers:
            if one.table.name == name and one.name not in found:
                found[one.name] = one
                left += [table.name for table in one.writes]
    return tuple(found.values())


def checked(given: Any, where: str) -> tuple[Trigger, ...]:
    """The triggers of a dataflow, refused where they lead in a circle."""
    found = several(given, Trigger, f"{where}: triggers")
    for one in found:
        if any(after is one for after in started_by(one.writes, found)):
            raise DeclarationError(
                f"{where}: the trigger {one.name!r} on {one.table.name!r} would start itself by "
                "what it writes; triggers lead in no circle"
            )
    return found
