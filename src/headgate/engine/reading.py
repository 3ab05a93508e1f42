"""Reading: what queries see of an engine: whole epochs that are durable, and nothing else.

A reader never holds the stream up: it reads the replica (query/replica.py) or, of the past, files.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from headgate.durability import StoreReader
from headgate.engine.calls.answers import made
from headgate.engine.declaring.declarations import DeclaredStreams
from headgate.engine.declaring.declarations import read_table as declared_table
from headgate.engine.elsewhere import Elsewhere
from headgate.engine.journal import EngineLock, Guard, Journal
from headgate.engine.memory import Memory
from headgate.errors import InputError, not_among, shown
from headgate.query.answer import Answer
from headgate.query.connections import KeptConnections
from headgate.query.point import Row, index_for, indexed_rows, make_getter
from headgate.query.sql import (
    By,
    Parameters,
    check_query,
    named_in,
    run_sql,
    select_rows,
)
from headgate.query.store_tables import (
    RESULTS,
    read_results,
    read_table,
    too_large,
    too_large_at,
    unite_results,
)
from headgate.state.schema import Schema
from headgate.state.stored_names import require_table
from headgate.state.table import Table

Getter = Callable[[Any], Row | None]
P = ParamSpec("P")
T = TypeVar("T")


def ahead_of_readers(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """While the method of an engine runs, readers in a loop let it have Python's interpreter.

    Without that a batch waits for a switch of threads each time it comes out of compiled code.
    """

    @functools.wraps(method)
    def run(engine: Any, /, *given: P.args, **named: P.kwargs) -> T:
        replica = engine._memory.replica
        replica.is_busy = True
        try:
            return method(engine, *given, **named)
        finally:
            replica.is_busy = False

    return run


class Reading:
    """The reading side of one engine; not to be called by who holds the engine's lock."""

    def __init__(
        self,
        memory: Memory,
        journal: Journal,
        guard: Guard,
        lock: EngineLock,
        declared: DeclaredStreams,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._streams = declared
        self._elsewhere = elsewhere  # then the replica has no rows, and knows the epoch only
        self._memory, self._replica = memory, memory.replica
        self._recent_results = memory.results
        self._journal = journal
        self._guard = guard
        self._connections = KeptConnections()
        self.lock: EngineLock = lock
        self.wait: Callable[[int], None] = guard.wait
        guard.publish, guard.hide = self._replica.publish, self._hide
        guard.leave = self._replica.leave

    def _hide(self) -> None:
        self._replica.hide()
        self._connections.close()

    def sql(self, query: str, parameters: Parameters, epoch: int | None, by: By = None) -> Answer:
        """Run a query over the tables it names, all of one epoch."""
        check_query(query, parameters)
        elsewhere, why = self._elsewhere, self._why_elsewhere(query, epoch, by)
        if elsewhere is not None and why is not None:
            at = self._replica.published if epoch is None else epoch
            with self._held(at) as reader:
                found = elsewhere.ask(reader, query, parameters, at)
            return Answer(found, at, "spark", why)
        tables, seen = self._gathered(query, epoch)
        return run_sql(query, tables, parameters, connections=self._connections, epoch=seen)

    def _why_elsewhere(self, query: str, epoch: int | None, by: By) -> str | None:
        """Why a query is one for Spark; None when DuckDB is to answer it, in this process."""
        _check_epoch(epoch)
        if by not in (None, "duckdb", "spark"):
            raise InputError(f"by is 'duckdb', 'spark' or None for either, not {shown(by)}")
        if self._elsewhere is None:
            if by == "spark":
                raise InputError(
                    "by='spark' is for an engine with shards; this one has its rows in memory, "
                    "where DuckDB asks them: leave it out"
                )
            return None
        if by is not None:
            return f"by={by!r}" if by == "spark" else None
        return self._too_large(query, epoch)

    def _too_large(self, query: str, epoch: int | None) -> str | None:
        """Why the tables that a query names are not read into this process."""
        if epoch is not None and epoch != self._replica.published:
            with self._held(epoch) as reader:
                named = named_in(query, reader.declared(epoch).get("tables", {}))
                return too_large_at(reader, named, epoch)
        copies = self._replica.copies
        columns = {name: len(list(copies[name].table.schema)) for name in named_in(query, copies)}
        return too_large(columns, self._memory.counts())

    def gather(self, query: str, epoch: int | None) -> tuple[dict[str, pa.Table], int]:
        """The tables that a query can read, and their epoch; those that it does not name are empty.

        What it gives can be queried anywhere, also in another process.
        """
        why = self._why_elsewhere(query, epoch, None)
        if why is not None:
            raise InputError(
                f"the query cannot run here: {why}; ask the engine by engine.sql, which has Spark "
                "answer it"
            )
        return self._gathered(query, epoch)

    def _gathered(self, query: str, epoch: int | None) -> tuple[dict[str, pa.Table], int]:
        _check_epoch(epoch)
        if epoch is not None and epoch != self._replica.published:
            return self._with_results(query, self._past(query, epoch), epoch, {}), epoch
        tables, seen = self._tables(named_in(query, self._replica.copies), epoch)
        for name, copy in self._replica.copies.items():  # for lists of tables and hints of errors
            tables.setdefault(name, copy.table.schema.arrow.empty_table())
        return self._with_results(query, tables, seen, dict(self._streams.columns)), seen

    def _with_results(
        self, query: str, tables: dict[str, pa.Table], epoch: int, streams: Mapping[str, Any]
    ) -> dict[str, pa.Table]:
        """The tables, and the results up to the epoch if the query names them.

        With the columns of these streams, too: of some nothing may be recorded yet.
        """
        if any(name.lower() == RESULTS for name in tables) or not named_in(query, [RESULTS]):
            return tables
        if self._journal.store is None:
            recent = tuple(self._recent_results)
            kept = [(number, made(batch)) for number, batch in recent if number <= epoch]
            return {**tables, RESULTS: unite_results(streams, kept)}
        with self._held(epoch) as reader:
            return {**tables, RESULTS: read_results(reader, epoch, streams)}

    def scan(
        self,
        table: str,
        where: str | Mapping[str, Any] | None,
        columns: str | Sequence[str] | None,
        epoch: int | None,
    ) -> Answer:
        """The rows of one table that meet a condition."""
        query, parameters = select_rows(self._declared(table, epoch), where, columns)
        if epoch is None and isinstance(where, Mapping):
            found, seen = self._indexed(table, where)
            if found is not None:
                tables, kept = {table: found}, self._connections
                return run_sql(query, tables, parameters, connections=kept, epoch=seen)
        return self.sql(query, parameters, epoch)

    def _indexed(self, table: str, where: Mapping[str, Any]) -> tuple[pa.Table | None, int]:
        """The rows of the newest epoch that an index finds, where there is one for it."""
        copy = self._replica.copies[table]
        if self._elsewhere is not None:
            return None, 0
        if index_for(copy.table, where) is None:
            return None, 0
        self._guard.check()
        with self._replica.lock:
            self._replica.refresh((table,), self)
            return indexed_rows(copy, where), self._replica.epoch

    def _tables(self, names: Iterable[str], epoch: int | None) -> tuple[dict[str, pa.Table], int]:
        """These tables at the newest epoch, and which it is; or at the one that just was it."""
        self._guard.check()
        if self._elsewhere is not None:
            at = self._replica.published if epoch is None else epoch
            with self._held(at) as reader:
                return {name: read_table(reader, name, at) for name in names}, at
        with self._replica.lock:
            self._replica.refresh(names, self)
            if epoch is None or epoch == self._replica.epoch:
                return self._replica.tables(names), self._replica.epoch
        with self._held(epoch) as reader:
            return {name: read_table(reader, name, epoch) for name in names}, epoch

    @contextlib.contextmanager
    def _held(self, epoch: int) -> Iterator[StoreReader]:
        """The store's files, held while an epoch of them is read."""
        self._guard.check()
        store = self._journal.store
        if store is None:
            raise InputError(
                f"no epoch {epoch} here: an engine in memory keeps only its newest, "
                f"{self._replica.published}; open it with a path to read the past"
            )
        reader = StoreReader.open(store.path, store.disk)
        with reader.hold():
            first, last = reader.first_epoch(), reader.last_epoch()
            if not first <= epoch <= last:
                raise InputError(f"no epoch {epoch}: this store has the epochs {first} to {last}")
            yield reader

    def _past(self, query: str, epoch: int) -> dict[str, pa.Table]:
        """The tables of a past epoch, by the names and with the columns that they had then."""
        with self._held(epoch) as reader:
            declared = reader.declared(epoch).get("tables", {})
            named = named_in(query, declared)
            return {
                name: read_table(reader, name, epoch)
                if name in named
                else Schema.parse(described["columns"]).arrow.empty_table()
                for name, described in declared.items()
            }

    def getter(self, table: str) -> Getter:
        """A function from a key to its row in the newest epoch, or None."""
        copy, elsewhere = self._replica.copies[self._declared(table).name], self._elsewhere
        if elsewhere is not None:
            return lambda key: self._row(elsewhere, table, key)
        return make_getter(copy, self._replica, self._refresh)

    def _row(self, elsewhere: Elsewhere, table: str, key: Any) -> Row | None:
        with self.lock:
            self._guard.check()
            return elsewhere.row(table, key)

    def _refresh(self, name: str) -> None:
        """Bring one table to the newest epoch; the caller has the replica's lock."""
        self._guard.check()
        self._replica.refresh((name,), self)

    def _declared(self, name: str, epoch: int | None = None) -> Table:
        if epoch is not None and epoch != self._replica.published and self._journal.store:
            with self._held(epoch) as reader:
                tables = reader.declared(epoch).get("tables", {})
            return declared_table(name, require_table(tables, name, f"epoch {epoch}"))
        found = self._replica.copies.get(name)
        if found is None:
            among = not_among(name, self._replica.copies, "tables")
            raise InputError(f"no table {name!r} in this engine; {among}")
        return found.table


def _check_epoch(epoch: Any) -> None:
    if epoch is not None and (isinstance(epoch, bool) or not hasattr(epoch, "__index__")):
        raise InputError(
            f"epoch is the number of a commit, or None for the newest; not {shown(epoch)}"
        )
