"""SQL: read-only queries by DuckDB over the Arrow tables of one epoch, and nothing else.

DuckDB gets no access to files, the network or Python variables; only SELECT and its kin run. A
limit says how much a query may answer, and is a hand on it while it runs, to stop it; it holds for
the thread that set it, and for every query that runs in it meanwhile.
"""

from __future__ import annotations

import decimal
import difflib
import functools
import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa

from headgate.errors import DeclarationError, InputError, LimitError, not_among, shown
from headgate.query.answer import Answer
from headgate.query.connections import KeptConnections, shared
from headgate.query.interrupts import interrupts_as_they_are
from headgate.state.schema import split_list
from headgate.state.table import Table
from headgate.state.types import Column, ColumnType

Parameters = Sequence[Any] | Mapping[str, Any] | None
By = Literal["duckdb", "spark"] | None  # who answers a query; None: whoever suits it

_READ_ONLY = ("SELECT", "EXPLAIN")
_BATCH_ROWS = 1 << 16
_current: ContextVar[Limit | None] = ContextVar("limit", default=None)
_EXPLAIN = re.compile(r"\s*explain\b(?:\s*\([^)]*\)|\s+analyze\b)?", re.IGNORECASE)


def run_sql(
    query: str,
    tables: Mapping[str, pa.Table],
    parameters: Parameters = None,
    *,
    connections: KeptConnections | None = None,
    epoch: int | None = None,
) -> Answer:
    """Run one read-only query over these tables, which are of the given epoch."""
    check_query(query, parameters)
    limit = current_limit() or Limit()
    try:
        with (
            interrupts_as_they_are(),
            (connections or KeptConnections()).one(settings_of(limit)) as connection,
            limit.watching(connection),
        ):
            check_read_only(connection, query)
            for name, table in tables.items():
                connection.register(name, table)
            found = _found(connection, query, parameters, limit)
            for name in tables:
                connection.unregister(name)
            return Answer(found, epoch)
    except FAILURES as error:
        limit.check()
        raise failed(error, tables, limit) from None


# Arrow passes DuckDB's errors on as its own.
FAILURES = (duckdb.Error, pa.ArrowInvalid, OSError, MemoryError)


def is_wrong_query(error: BaseException) -> bool:
    """Whether it says that a query, or what it is asked with, is wrong whatever the rows are."""
    if isinstance(error, duckdb.InvalidInputException):  # so is what the query's error() says
        return any(one in str(error) for one in ("Values were not provided", "count mismatch"))
    kinds = duckdb.ParserException, duckdb.CatalogException, duckdb.BinderException
    return isinstance(error, (*kinds, duckdb.PermissionException))


def failed(error: BaseException, tables: Mapping[str, pa.Table], limit: Limit) -> InputError:
    """The error of a query, in our words."""
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        bound = "there is" if limit.memory is None else f"the {limit.memory} that it may have"
        return LimitError(f"the query needs more memory than {bound}: ask for less")
    return InputError(f"the query cannot run: {_hint(str(error), tables)}")


def check_query(query: Any, parameters: Any) -> None:
    """Refuse what is no query, and parameters that are no list and no dict, or no texts."""
    check_asked(query, parameters)
    values = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
    _check_texts([query, *values])


def check_asked(query: Any, parameters: Any) -> None:
    """Refuse what is no query, and parameters that are no list and no dict."""
    if not isinstance(query, str) or not query.strip():
        told = "empty" if isinstance(query, str) else type(query).__name__
        raise InputError(f"a query is a text such as 'select * from accounts'; this is {told}")
    is_list = isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes)
    if parameters is not None and not is_list and not isinstance(parameters, Mapping):
        raise InputError(
            f"parameters is a list for each ?, or a dict for each $name; not {parameters!r}"
        )


def _check_texts(values: Iterable[Any]) -> None:
    """Refuse texts that no store and no query can hold."""
    for value in values:
        try:
            _ = value.encode() if isinstance(value, str) else None
        except UnicodeEncodeError:
            raise InputError(f"the text {value!a} has half of a character in it") from None


def named_in(query: str, tables: Iterable[str]) -> list[str]:
    """The tables whose names stand in the text of a query; it can read no other of them."""
    text = query.lower()
    # Only query() and query_table() take names that are put together while the query is read.
    return [name for name in tables if name.lower() in text or "query" in text]


def select_rows(
    table: Table, where: str | Mapping[str, Any] | None, columns: str | Sequence[str] | None
) -> tuple[str, list[Any]]:
    """The query for the rows of a table that meet a condition, and its parameters."""
    if where is not None and not isinstance(where, str | Mapping):
        kind = type(where).__name__
        raise InputError(f"where is a SQL condition or a dict {{column: value}}, not a {kind}")
    equal = where if isinstance(where, Mapping) else {}
    chosen = _chosen(columns, table)
    for name in [*chosen, *equal]:
        if name not in table.schema:
            among = not_among(name, table.schema.names, "columns")
            raise InputError(f"table {table.name!r}: no column {name!r}; {among}")
    _check_texts(equal.values())
    query = f"select {', '.join(map(_quoted, chosen))} from {_quoted(table.name)}"
    if isinstance(where, str):
        return f"{query} where (\n{where}\n)", []
    asked = [_is(table, table.schema[name], value) for name, value in equal.items()]
    if asked:
        query += " where " + " and ".join(condition for condition, _ in asked)
    return query, [value for _, values in asked for value in values]


def _is(table: Table, column: Column, value: Any) -> tuple[str, list[Any]]:
    """That a column has a value, as a condition and its parameters; None means null, as in
    functions.

    DuckDB would make texts numbers, row by row, and compare whole numbers as floats.
    """
    name, kind = _quoted(column.name), column.type.kind
    if value is None:
        return f"{name} is null", []
    value = value.item() if isinstance(value, np.generic) else value
    fitting = _OF_KIND.get(kind)
    if fitting is None:
        return f"{name} = ?", [value]
    if not isinstance(value, fitting) or (isinstance(value, bool) and kind != "boolean"):
        raise InputError(
            f"table {table.name!r}: the column {column.name!r} is of type {column.type}; "
            f"{shown(value)} is of type {type(value).__name__}"
        )
    held = _held(value, column.type)
    if held is None:
        return "false", []
    # A float column has what was given in half as many digits: so has what it is compared with.
    return f"{name} = cast(? as float)" if kind == "float" else f"{name} = ?", [held]


_BEYOND = decimal.Decimal(10) ** 19  # what no column of whole numbers or decimals has
_ROOMY = decimal.Context(prec=2000)  # digits of any float, and of what a user may write
_NUMBERS = (int, float, decimal.Decimal)
_OF_KIND: dict[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "decimal": _NUMBERS,
    **dict.fromkeys(("int", "bigint", "float", "double"), _NUMBERS),
}  # fmt: skip


def _held(value: Any, kind: ColumnType) -> Any:
    """A value as a column of its type has it, None where none can have just that value."""
    if kind.kind in ("string", "boolean"):
        return value
    if kind.kind in ("float", "double"):
        try:
            near = float(value)
        except (OverflowError, ValueError):  # of a Decimal that is a signalling NaN
            return None
        return near if kind.kind == "float" or isinstance(value, float) or near == value else None
    # As it is written: nobody who asks for 0.1 means the float that is next to it.
    exact = decimal.Decimal(repr(value)) if isinstance(value, float) else decimal.Decimal(value)
    if not exact.is_finite() or abs(exact) >= _BEYOND:
        return None
    shifted = exact.scaleb(kind.scale if kind.kind == "decimal" else 0, _ROOMY)
    if shifted != shifted.to_integral_value(context=_ROOMY):
        return None
    whole = int(shifted)
    return whole if kind.kind != "decimal" else decimal.Decimal(whole).scaleb(-kind.scale)


def _chosen(columns: Any, table: Table) -> list[Any]:
    if columns is None:
        return list(table.schema.names)
    names = split_list(columns) if isinstance(columns, str) else columns
    if not isinstance(names, list | tuple) or not names:
        raise InputError(f"columns is a column or a list of them, not {columns!r}")
    return [name.strip() if isinstance(name, str) else name for name in names]


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _found(connection: Any, query: str, parameters: Any, limit: Limit) -> pa.Table:
    found = connection.sql(query, params=parameters)
    if limit.rows_max is None:
        return found.to_arrow_table()
    return limit.read(found.to_arrow_reader(_BATCH_ROWS))


def settings_of(limit: Limit) -> dict[str, Any]:
    bound: dict[str, Any] = {} if limit.memory is None else {"memory_limit": limit.memory}
    if limit.threads is not None:
        bound["threads"] = limit.threads
    return {
        **bound,
        "enable_external_access": "false",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": "",  # nothing of a query goes to a file, however large it is
        "lock_configuration": "true",
    }


def check_read_only(connection: Any, query: str) -> None:
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise InputError(f"write one query, not {len(statements)}")
    kind = _kind(statements[0])
    if not kind.startswith(_READ_ONLY):
        raise InputError(f"only SELECT reads a store; {kind} is refused")
    explained = _EXPLAIN.match(query)
    if kind.startswith("EXPLAIN"):
        # EXPLAIN ANALYZE runs what it explains.
        if explained is None:
            raise InputError("write EXPLAIN, or EXPLAIN ANALYZE, in front of one SELECT")
        check_read_only(connection, query[explained.end() :])


def _kind(statement: Any) -> str:
    """What a statement is, in one word; DuckDB's Python does not know all that DuckDB does."""
    try:
        return str(statement.type).rpartition(".")[2].upper()
    except ValueError:
        return "this statement"


def _hint(message: str, tables: Mapping[str, pa.Table]) -> str:
    if "does not exist" not in message:  # of a table; words of another error mean none
        return message
    words = message.replace('"', " ").replace("'", " ").split()
    for word in words:
        close = difflib.get_close_matches(word, list(tables), 1)
        if close and close[0] != word and "Did you mean" not in message:
            return f"{message}\nDid you mean the table {close[0]!r}?"
    return f"{message}\nThe tables are: {', '.join(tables) or 'none'}"


# --- limits ---------------------------------------------------------------------------------------


class Limit:
    """The bounds of one query; `stop` may be called from any thread, also before it runs.

    DuckDB holds to them as far as it can: not within one call of a function over one value. Queries
    of strangers run in a process of their own for that reason (web/worker.py).
    """

    def __init__(
        self,
        rows_max: int | None = None,
        memory: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.rows_max = rows_max
        self.memory = memory
        self.threads = threads
        self._lock = threading.Lock()
        self._connection: Any = None
        self._reason: str | None = None

    def stop(self, reason: str) -> None:
        """End the query; whoever runs it gets a LimitError with this reason."""
        with self._lock:
            self._reason = self._reason or reason
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def watching(self, connection: Any) -> Iterator[None]:
        """While a query runs on this connection, `stop` interrupts it."""
        with self._lock:
            self.check()
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def check(self) -> None:
        """LimitError when the query was told to stop."""
        if self._reason is not None:
            raise LimitError(self._reason)

    def read(self, reader: pa.RecordBatchReader) -> pa.Table:
        """All that a query found, as long as that is not too much."""
        batches, count = [], 0
        for batch in reader:
            self.check()
            count += batch.num_rows
            if self.rows_max is not None and count > self.rows_max:
                raise LimitError(
                    f"the query finds more than {self.rows_max:,} rows: ask for less; add LIMIT"
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=reader.schema)


def current_limit() -> Limit | None:
    """The limit of the query that this thread is about to run."""
    return _current.get()


@contextmanager
def limited(limit: Limit) -> Iterator[None]:
    """Queries that this thread runs inside are held to the limit."""
    token = _current.set(limit)
    try:
        yield
    finally:
        _current.reset(token)


# --- what changes by itself -----------------------------------------------------------------------
# DuckDB says of each function whether it gives another answer when it is asked again over the same
# rows, and of what a text calls; a few it calls stable that read the clock are named here.

_CLOCKS = {
    "ago", "current_localtime", "current_localtimestamp", "pg_conf_load_time",
    "pg_postmaster_start_time",
}  # fmt: skip
_WORDS = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
_STABLE = {"error"}  # it only ever ends the query


def unstable_in(query: str, columns: Collection[str]) -> str | None:
    """The first thing in a query that changes by itself, such as now(); None when nothing does.

    `columns` are names that mean a column, also where without one they would be the clock. Of what
    is no query nothing is said: it will not run.

    >>> unstable_in("select id + random() from t", ["id"])
    'random()'
    >>> unstable_in("select abs(id) from t", ["id"]) is None
    True
    """
    try:
        with shared.one() as connection:
            row = connection.execute("select json_serialize_sql(?)", [query]).fetchone()
        tree = json.loads(row[0]) if row else {}
    except duckdb.Error:
        return None
    except RecursionError:
        raise DeclarationError("the SQL is nested too deep: compute it in several steps") from None
    known = {name.lower() for name in columns}
    for node in _nodes(tree):
        found = _unstable(node, known)
        if found is not None:
            return found
    return None


def _unstable(node: dict[str, Any], columns: Collection[str]) -> str | None:
    if node.get("class") == "FUNCTION":
        name = str(node.get("function_name", "")).lower()
        reads_clock = name == "age" and len(node.get("arguments", ())) == 1
        return f"{name}()" if reads_clock or name in _unstable_names() else None
    if node.get("class") == "COLUMN_REF":
        names = [str(one).lower() for one in node.get("column_names", ())]
        is_word = len(names) == 1 and names[0] in _WORDS and names[0] not in columns
        return names[0] if is_word else None
    return "a sample" if node.get("sample") is not None else None


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in the tree, in the order of the text, however deep it is."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            one = list(one.values())
        if isinstance(one, list):
            waiting += reversed(one)


@functools.cache
def _unstable_names() -> frozenset[str]:
    with shared.one() as connection:
        rows = connection.execute(
            "select distinct lower(function_name) from duckdb_functions() "
            "where stability <> 'CONSISTENT'"
        ).fetchall()
    return frozenset({name for (name,) in rows} | _CLOCKS) - _STABLE
