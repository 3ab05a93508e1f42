"""Transactions: their declaration, its checks, their compilation, and how a user names one.

A declared transaction is sound: its columns exist, its types fit, its function compiles. An engine
knows each transaction, and each table, by one definition. Another definition of the same name, as a
notebook makes when a cell runs again, is never taken for the known one, and the message tells the
two apart.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, cast

from headgate.compiling import cache
from headgate.compiling.aborts import refuse_lost_aborts
from headgate.compiling.bytecode import (
    Code,
    called_functions,
    first_unset,
    is_user_function,
    references,
)
from headgate.compiling.compiler import compile_along, compile_checked
from headgate.compiling.determinism import refuse_chance
from headgate.compiling.keys import check_key_compiles, check_sources, refuse_writes
from headgate.compiling.refusals import refuse_forms, refuse_no_function
from headgate.compiling.signature import (
    OutputColumns,
    Parameter,
    Signature,
    argument_types,
)
from headgate.errors import DeclarationError, InputError, InvariantError, not_among
from headgate.kernels.building import check_compiles
from headgate.state.durations import parse_period, tick_event
from headgate.state.flowing import DeclaredStream, given_streams
from headgate.state.parameters import Output
from headgate.state.schema import Schema, refuse_twins
from headgate.state.table import Access, Table, fits_key

RESULT_COLUMNS = ("epoch", "position", "transaction", "outcome", "reason")
RESULT_WORDS = ("committed", "keys")  # of `Result`, which no column may mean instead


if TYPE_CHECKING:
    import typing_extensions as typing  # as a checker knows it: with defaults

    P = typing.ParamSpec("P", default=...)
    R = typing.TypeVar("R", default=Any)
else:
    import typing

    P = typing.ParamSpec("P")
    R = typing.TypeVar("R")
Q = typing.ParamSpec("Q")
S = typing.TypeVar("S")


@dataclass(frozen=True, eq=False)
class Transaction(Generic[P, R]):
    """A Python function over one event and the rows it declares; made by `@hg.transaction`."""

    signature: Signature
    takes: DeclaredStream | None = None  # the stream whose events it runs in a dataflow
    gives: tuple[DeclaredStream, ...] = ()  # those that its committed events flow on to

    @property
    def name(self) -> str:
        """The name under which results and addresses know it."""
        return self.signature.name

    @property
    def event(self) -> Schema:
        """The columns of its events."""
        return self.signature.event

    @property
    def output(self) -> Schema | None:
        """The columns it adds to its results, if any."""
        return self.signature.output

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain Python function, as in a unit test of it."""
        function: Callable[P, R] = self.signature.function
        return function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<transaction {self.name}({', '.join(self.event.names)})>"


def output(schema: str) -> Output:
    """Columns that a transaction adds to its results, given as the default of a parameter.

    >>> output("balance double").schema.names
    ('balance',)
    """
    parsed = Schema.parse(schema, "output")
    for column in parsed:
        if column.type.element is not None:
            raise DeclarationError(f"output: column {column.name!r}: arrays are not supported")
        if column.name.lower() in RESULT_COLUMNS:
            raise DeclarationError(
                f"output: column {column.name!r} is a column of every result; choose another name"
            )
        if column.name in RESULT_WORDS:
            raise DeclarationError(
                f"output: column {column.name!r}: every result has a {column.name!r} of its own; "
                "choose another name"
            )
    return cast(Output, OutputColumns(parsed))


def transaction(
    event: str | DeclaredStream | None = None,
    *,
    every: str | None = None,
    size: str | None = None,
    compiled: bool = True,
    name: str | None = None,
    output: DeclaredStream | Sequence[DeclaredStream] | None = None,
) -> Callable[[Callable[Q, S]], Transaction[Q, S]]:
    """Declare a function as a transaction over events of this schema.

    Where `event` is a stream it is a node of a dataflow, too: it runs the events of each batch of
    the stream. With an `output` those that commit flow on to that stream, whose columns are columns
    of `hg.output(...)` or of the event.

    With `every`, such as "1 minute", the engine makes its events as time passes, in streams that
    have it in `ticks`: they have columns `start` and `end`, `size` apart, or `every`.

    >>> from headgate.state.table import Table
    >>> seats = Table("seats", "id bigint, taken boolean", key="id")
    >>> @transaction(event="seat bigint", compiled=False)
    ... def book(event, seat=seats.at("seat")):
    ...     seat.taken = True
    >>> book.name
    'book'
    """

    given: Any = event if every is None else tick_event(event)
    stream = given if isinstance(given, DeclaredStream) else None
    if stream is None and (given is None or callable(given)):
        raise DeclarationError(
            f"transaction {getattr(given, '__name__', '?')!r}: @hg.transaction needs the columns "
            'of the event: write @hg.transaction(event="ts timestamp, amount double")'
        )
    label: Any = name
    if label is not None and (not isinstance(label, str) or not label):
        raise DeclarationError(f"a transaction's name is a text, not {label!r}")

    def declare(function: Callable[Q, S]) -> Transaction[Q, S]:
        if not hasattr(function, "__code__"):
            raise DeclarationError(
                f"@hg.transaction(event=...) goes on a plain Python function, not on {function!r}"
            )
        label = name or function.__name__
        where = f"transaction {label!r}"
        schema = Schema.parse(given, f"{where}: event") if stream is None else stream.schema
        _check_event(schema, where)
        parameters = _parameters(function, schema, where)
        tick = None if every is None else parse_period(every, size, where)
        signature = Signature(label, function, schema, parameters, compiled, tick=tick)
        _refuse_unsound(signature, where)
        if compiled:
            signature = _compilable(signature, where)
        columns = (*signature.event, *(signature.output or ()))
        return Transaction(signature, stream, given_streams(output, stream, columns, where))

    return declare


def _check_event(schema: Schema, where: str) -> None:
    for column in schema:
        if not column.name.isidentifier():
            raise DeclarationError(f"{where}: event column {column.name!r} is not a plain word")
        if column.default is not None:
            raise DeclarationError(
                f"{where}: event column {column.name!r} has a default; "
                "defaults belong to tables, fill nulls before the event reaches Headgate"
            )


def _parameters(function: Any, event: Schema, where: str) -> tuple[Parameter, ...]:
    declared = list(inspect.signature(function).parameters.values())
    if not declared or declared[0].default is not inspect.Parameter.empty:
        raise DeclarationError(f"{where}: the first parameter is the event and has no default")
    found = [Parameter(declared[0].name, None)]
    outputs = 0
    for parameter in declared[1:]:
        role = parameter.default
        if isinstance(role, Access):
            _check_access(role, event, f"{where}: parameter {parameter.name!r}")
            if role.table.history is not None and (role.window or not role.read_only):
                role.table.history.time_column(event, f"{where}: parameter {parameter.name!r}")
            check_sources(role, found, f"{where}: parameter {parameter.name!r}")
        elif isinstance(role, OutputColumns):
            outputs += 1
            _check_output(role, event, where)
        else:
            is_table = hasattr(role, "key_columns")
            made = f", as in {role.name}.at(...)" if is_table else ""
            raise DeclarationError(
                f"{where}: parameter {parameter.name!r} needs a default that says what it stands "
                'for: table.at("column"), table.each("column") or hg.output("column type")' + made
            )
        found.append(Parameter(parameter.name, role))
    if outputs > 1:
        raise DeclarationError(f"{where}: one hg.output(...) at most")
    return tuple(found)


def _check_output(role: OutputColumns, event: Schema, where: str) -> None:
    for column in role.schema:
        if not column.name.isidentifier() or keyword.iskeyword(column.name):
            raise DeclarationError(f"{where}: output column {column.name!r} is not a plain word")
        if column.name in event and column.type != event[column.name].type:
            raise DeclarationError(
                f"{where}: output column {column.name!r} is a {column.type}, "
                f"the event's column of that name a {event[column.name].type}"
            )


def _check_access(access: Access, event: Schema, where: str) -> None:
    for name, key in access.named:
        column = event.require(name, f"{where}: event")
        kind = column.type
        if access.is_by_list:
            if kind.element is None:
                raise DeclarationError(
                    f"{where}: each({name!r}) needs an array column, {name!r} is a {kind}"
                    + ("; so for each column of the key" if len(access.columns) > 1 else "")
                )
            kind = kind.element
        if not fits_key(kind, key.type):
            raise DeclarationError(
                f"{where}: event column {name!r} is a {kind}, "
                f"{'the key' if access.span is None else 'the column'} "
                f"{access.table.name}.{key.name} a {key.type}"
            )
        if column.nullable:
            raise DeclarationError(
                f"{where}: event column {name!r} is declared NULL, and a key is never null"
            )


def _refuse_unsound(signature: Signature, where: str) -> None:
    """What no form of the function may do, judged by its bytecode."""
    refuse_no_function(signature.function, where)
    _refuse_event_set(signature.function, where)
    refuse_chance(signature.function, where)
    refuse_lost_aborts(signature.function, where)
    for access in signature.accesses:
        for key in access.functions:
            refuse_no_function(key.function, where)
            refuse_writes(key, where)
            refuse_chance(key.function, where)
    functions = (signature.function, *signature.key_functions) if signature.compiled else ()
    for one in dict.fromkeys(one for each in functions for one in called_functions(each)):
        _refuse_recursion(one, where)
        unset = first_unset(one.__code__)
        if unset is not None:
            name, place = unset
            raise DeclarationError(
                f"{where}: {place}: {name} may have no value here, it is set on some ways only; "
                f"give {name} a value before"
            )


def _refuse_recursion(function: Any, where: str) -> None:
    """Machine code that calls itself too deep ends the process; Python would raise an error."""
    reached: list[Any] = []
    for called in references(function).values():
        if is_user_function(called):
            reached += called_functions(called)
    if function in reached:
        line = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        raise DeclarationError(
            f"{where}: {line}: {function.__name__} calls itself, and compiled code has no bound "
            "for that; write it as a loop, or declare compiled=False"
        )


def _refuse_event_set(function: Any, where: str) -> None:
    code = Code(function.__code__)
    event = function.__code__.co_varnames[0]
    for number, step in enumerate(code.steps):
        if step.opname not in ("STORE_ATTR", "DELETE_ATTR") or code.stored(event):
            continue
        made = code.origin(number, 0)
        if made is not None and code.steps[made].argval == event:
            raise DeclarationError(
                f"{where}: {code.place(number)}: the event cannot be changed, and {event}."
                f"{step.argval} is a column of it; use a variable, a row or hg.output(...)"
            )


def _compilable(signature: Signature, where: str) -> Signature:
    """The signature as it compiles, tried at the definition unless it has been accepted before.

    Most functions need no characters; one that does not compile without is tried with them.
    """
    declared = repr((signature.event, signature.parameters))
    keys = signature.key_functions
    forms = [signature, replace(signature, is_reaching=True)]
    marks = [cache.fingerprint(one.function, declared, one.is_reaching, *keys) for one in forms]
    for form, mark in zip(forms, marks, strict=True):
        if cache.is_known_good(mark):
            return form
    refuse_forms(signature.function, where)
    for form, mark in zip(forms, marks, strict=True):
        dispatcher = compile_along(form.function, form.functions, None, form.is_reaching)
        try:
            compile_checked(dispatcher, argument_types(form), where)
            for name, access in zip(form.row_names, form.accesses, strict=True):
                if access.is_dynamic:
                    check_key_compiles(form, access, f"{where}: parameter {name!r}")
        except DeclarationError:
            if form.is_reaching:
                raise
            continue
        for table in signature.tables:
            check_compiles(table)
        cache.remember_good(mark)
        return form
    raise InvariantError("a transaction was neither compiled nor refused")


# --- tables and transactions as a user names them -----------------------------------------------

AGAIN = "close the engine and open it with this one"


def by_name(items: Any, what: str, kind: type) -> dict[str, Any]:
    """What `hg.open` is given, by name: one thing or a list; a name that occurs twice is refused.

    >>> list(by_name(Table("seats", "id int", key="id"), "table", Table))
    ['seats']
    """
    made = "hg.Table(...)" if kind is Table else "@hg.transaction(event=...)"
    given = [items] if isinstance(items, kind) else items
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DeclarationError(
            f"{what}s= takes a list of what {made} makes, such as {what}s=[...]; "
            f"this is {_described(given)}"
        )
    found: dict[str, Any] = {}
    for item in given:
        if not isinstance(item, kind):
            raise DeclarationError(_wrong_item(item, what, made))
        name = str(getattr(item, "name", ""))
        if name in found:
            raise DeclarationError(_twice(item, found[name], what))
        found[name] = item
    if kind is Table:
        refuse_twins(found, "tables", f"{what}s=")
    return found


def _wrong_item(item: Any, what: str, made: str) -> str:
    if isinstance(item, Table | Transaction):
        mine = "table" if isinstance(item, Table) else "transaction"
        return f"{what}s= holds the {mine} {item.name!r}; hand it in as {mine}s=[...]"
    return f"{what}s= holds {_described(item)}, which is not a {what}; make one with {made}"


def _twice(item: Any, other: Any, what: str) -> str:
    if item is other or item == other:
        return f"the {what} {item.name!r} is in {what}s= twice; name it once"
    told = f": {difference(item, other)}" if isinstance(item, Table) else ""
    return f"two {what}s are called {item.name!r}{told}; rename one, or leave the older one out"


def find_table(given: Any, known: Mapping[str, Table]) -> Table:
    """A table of the engine, handed in as the object or by its name."""
    if not isinstance(given, str | Table):
        raise InputError(f"hand in a table of the engine or its name, not {_described(given)}")
    name = given if isinstance(given, str) else given.name
    if name not in known:
        raise InputError(f"no table {name!r} in this engine; {not_among(name, known, 'tables')}")
    found = known[name]
    if isinstance(given, Table) and given is not found and given != found:
        raise InputError(
            f"this table {name!r} is another definition than the one that the engine was opened "
            f"with: {difference(given, found)}; {AGAIN}, "
            f"or hand in the name {name!r} to use the engine's own"
        )
    return found


def find_transaction(given: Any, known: Mapping[str, Transaction]) -> Transaction:
    """A transaction of the engine, handed in as the object or by its name."""
    if not isinstance(given, str | Transaction):
        raise InputError(
            f"hand in a transaction of the engine or its name, not {_described(given)}"
            f"{_declared_as(given, known)}"
        )
    name = given if isinstance(given, str) else given.name
    found = known.get(name)
    if found is None:
        among = not_among(name, known, "engine's transactions")
        if isinstance(given, str):
            raise InputError(f"no transaction {name!r} in this engine; {among}")
        raise InputError(f"transaction {name!r} was not opened with this engine; {among}")
    if isinstance(given, Transaction) and given is not found:
        raise InputError(
            f"this transaction {name!r} is another definition than the one that the engine was "
            f"opened with, as when a cell runs again; {AGAIN}, "
            f"or hand in the name {name!r} to run the engine's own"
        )
    return found


def find_route(given: Any, known: Mapping[str, Transaction]) -> Any:
    """What `run` and `sink` take: a transaction, or a dict of them by the values of a column."""
    if isinstance(given, Mapping):
        return {value: find_transaction(one, known) for value, one in given.items()}
    if isinstance(given, str | Transaction):
        return find_transaction(given, known)
    is_stream = type(given).__name__ == "Stream"  # of a dataflow, which stands above us
    told = "; rows of a stream come in by engine.push and engine.sink" if is_stream else ""
    raise InputError(
        "hand in a transaction or its name, or a dict {value: transaction} with route_by; "
        f"not {_described(given)}{_declared_as(given, known)}{told}"
    )


def check_tables_known(
    transactions: Mapping[str, Transaction], tables: Mapping[str, Table]
) -> None:
    """Every table a transaction uses must be one of the engine's, by the same definition."""
    for transaction in transactions.values():
        for table in transaction.signature.tables:
            known = tables.get(table.name)
            if known is None:
                raise DeclarationError(
                    f"transaction {transaction.name!r} uses the table {table.name!r}, "
                    "which is not among the tables of this engine; add it to tables=[...]"
                )
            if known != table:
                raise DeclarationError(
                    f"transaction {transaction.name!r} uses another definition of the table "
                    f"{table.name!r} than the engine is opened with: {difference(table, known)}; "
                    "define the transaction again, after the table"
                )


def difference(given: Table, known: Table) -> str:
    """In what a table differs first from the known one of its name.

    >>> known = Table("seats", "id int", key="id")
    >>> difference(Table("seats", "id int, row int", key="id"), known)
    "columns 'id int, row int' instead of 'id int'"
    """
    others = _parts(known)
    for part, told in _parts(given).items():
        if told != others[part]:
            return f"{part} {told!r} instead of {others[part]!r}"
    return "it was declared otherwise"


def _parts(table: Table) -> dict[str, str]:
    return {
        "columns": table.schema.ddl,
        "key": ", ".join(table.key),
        "check": "" if table.check is None else table.check.text,
        "constraints": "; ".join(one.name for one in table.constraints),
        "history": "" if table.history is None else table.history.extent.text,
    }


def _declared_as(given: Any, known: Mapping[str, Transaction]) -> str:
    """For the plain function behind a transaction, which is an easy thing to have in hand."""
    if callable(given) and getattr(given, "__name__", None) in known:
        return f"; {given.__name__!r} is one"
    return "; declare it with @hg.transaction(event=...)" if callable(given) else ""


def _described(given: Any) -> str:
    """A thing that was handed in, short enough for a message."""
    if isinstance(given, Table | Transaction):
        return f"the {type(given).__name__.lower()} {given.name!r}"
    if isinstance(given, str):
        return f"the text {given!r}" if len(given) <= 60 else "a text"
    if given is None:
        return "None"
    if callable(given) and hasattr(given, "__name__"):
        return f"the function {given.__name__!r}"
    name = type(given).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
