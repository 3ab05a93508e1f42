"""The engine: tables and the transactions over them, as a user has them in hand.

Its methods are short: what came in goes the way of a batch (batch.py), by what was said of its
stream (stream.py, terms.py); calls gather in a queue (calls/); what is read is a whole, durable
epoch (reading.py). How an engine is put together, and which one has which store, is in opening.py.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import pyarrow as pa

from headgate.durability import Retention
from headgate.engine import opening
from headgate.engine.calls.calling import Call, Calls, event_columns
from headgate.engine.calls.keyed import checked_key
from headgate.engine.declaring.applying import checked, migrated
from headgate.engine.declaring.migrations import Migration
from headgate.engine.journal import CLOSED, Journal
from headgate.engine.metrics import Metrics
from headgate.engine.origins import Applied
from headgate.engine.reading import Getter
from headgate.engine.rerun import check_recovery
from headgate.engine.results import Result
from headgate.engine.stream import EngineStream
from headgate.engine.terms import Options, Routes, understood, with_options, words_key
from headgate.errors import InputError
from headgate.io import Clock, Disk, RealClock
from headgate.isolation.levels import Recording
from headgate.parallel.decision import Decision
from headgate.parallel.figures import Figures
from headgate.query.answer import Answer
from headgate.query.sql import By, Parameters
from headgate.state.display import html_table, names
from headgate.state.flowing import DeclaredStream
from headgate.state.row_history import with_histories
from headgate.state.table import Table
from headgate.transactions import Transaction, by_name, find_table, find_transaction

if TYPE_CHECKING:
    from headgate.dataflow.handles import FlowStream
    from headgate.dataflow.nodes import Dataflow
    from headgate.dataflow.streams import Stream
    from headgate.spark.sink import Sink

LOG = logging.getLogger("headgate.engine")


def open_engine(
    path: str | Path | None,
    tables: Table | Iterable[Table] = (),
    transactions: Transaction | Iterable[Transaction] = (),
    *,
    durability: str = "sync",
    retain: Retention | None = None,
    recovery: str = "strong",
    changed_code: str = "refuse",
    migrations: Iterable[Migration] = (),
    dataflows: Dataflow | Iterable[Dataflow] = (),
    takeover: bool = False,
    spark: Any = None,
    shards: int | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Engine:
    """Open a store (made when it is not there), or an engine in memory for `path=None`.

    `durability` is "sync" (an answer means synced), "group" (the same, but commits of several
    threads share a sync) or "none" (survives a killed process, not a power cut). `retain` says
    which past epochs to keep; None keeps all. `recovery` is "strong" (the log holds changed rows)
    or "weak" (it holds the input, which is run again; refused when the code has changed since,
    unless `changed_code="accept"`). `migrations` lead from what the store declares to what this
    program does; those that the store has not seen are applied first, each as one epoch.
    `dataflows` are graphs of nodes that streams join; what they have under way goes on. With
    `takeover` an engine of this process that has the store open is stopped and gives it free, so
    that a cell of a notebook can run twice; a program that would be refused is, before that. With
    `spark` and `shards` rows are in so many shards and batches run in tasks of that session, with
    the same results; what is not there for shards yet is refused.

    >>> accounts = Table("accounts", "id bigint, balance double", key="id")
    >>> with open_engine(None, tables=[accounts]) as engine:
    ...     engine.load(accounts, [{"id": 1, "balance": 10.0}])
    1
    """
    opening.check_place(path, retain)
    check_recovery(recovery, changed_code)
    clock = clock or RealClock()
    named = with_histories(by_name(tables, "table", Table).values())
    functions = by_name(transactions, "transaction", Transaction)
    is_weak, accepts = recovery == "weak", changed_code == "accept"
    said = (path, recovery, disk)
    elsewhere = opening.elsewhere_of(spark, shards, said)
    flows = None
    if dataflows != ():
        from headgate.dataflow.declared import declare  # a door upward: dataflow/ stands above us

        flows = declare(dataflows, named, functions)
        functions = dict(flows.transactions)
    asked = checked(migrations)
    program = opening.Newcomer(named, functions, asked, is_weak, accepts, disk, flows, elsewhere)
    open_journal = functools.partial(Journal.open, path, disk, clock, durability, retain)
    journal = opening.open_owned(open_journal, path, disk, program.judge if takeover else None)
    journal = migrated(journal, open_journal, program.migrations, list(named.values()), clock)
    try:
        return Engine(journal, program, clock)
    except BaseException:
        journal.close()
        raise


class Engine:
    """Tables and the transactions over them; made by `hg.open`.

    >>> import headgate as hg
    >>> accounts = hg.Table("accounts", "id bigint, balance bigint", key="id")
    >>> @hg.transaction(event="id bigint, amount bigint", compiled=False)
    ... def deposit(event, account=accounts.at("id", create=True)):
    ...     account.balance += event.amount
    >>> with hg.open(None, tables=[accounts], transactions=[deposit]) as engine:
    ...     engine.run(deposit, [{"id": 1, "amount": 5}, {"id": 2, "amount": 7}]).num_rows
    ...     engine.call(deposit, id=1, amount=1).committed
    ...     engine.get("accounts", 1)
    ...     engine.sql("select id from accounts order by balance").rows()
    2
    True
    {'id': 1, 'balance': 6}
    [(1,), (2,)]
    """

    def __init__(
        self,
        journal: Journal,
        program: Any,  # opening.Newcomer, whose insides no user's type checker need know
        clock: Clock,
    ) -> None:
        self._is_closed = True  # until it is whole
        parts = opening.Parts(journal, program, clock)
        self._clock, self._journal, self._memory = clock, journal, parts.memory
        self._guard, self._lock = parts.guard, parts.lock
        self._is_weak, self._declared = parts.is_weak, parts.declared
        self._batches, self._executors = parts.batches, parts.batches.executors
        self._loading, self._reading = parts.loading, parts.reading
        self._flows = parts.flows
        self.tables: dict[str, Table] = parts.tables
        self.transactions: dict[str, Transaction] = parts.transactions
        self.calls: Calls = parts.calls
        self._said: dict[tuple[Any, ...], EngineStream] = {}  # the streams by what was said
        self._getters: dict[Any, Getter] = {}  # by name and by identity of our tables
        parts.batches.engine = self
        parts.begin(program)
        if self._flows is not None:
            self._flows.resume()
        self._is_closed = False
        opening.note(self)
        LOG.info("opened %r", self)

    @property
    def epoch(self) -> int:
        """The number of the last durable commit: what queries see."""
        return self._memory.replica.published

    @property
    def path(self) -> str | None:
        """The folder of the store, None for an engine in memory."""
        return None if self._journal.store is None else self._journal.store.path

    @property
    def stopped(self) -> str | None:
        """Why the engine is stopped; None while it goes on."""
        return self._guard.reason

    def counts(self) -> dict[str, int]:
        """How many rows each table has at this moment."""
        return self._memory.counts()

    # --- loading ------------------------------------------------------------------------------

    def load(self, table: Table | str, rows: Any, *, mode: str = "once") -> int:
        """Fill a table once and return how many rows it took; bad rows are always refused.

        A table that was loaded before stays as it is: 0. One that has rows without a load, made by
        events, is an error, unless `mode` says what to do: "skip" leaves it as it is, too, and
        "missing" adds those rows whose keys are not there, of any table and each time.
        """
        name = self._table_name(table)
        with self._lock, self._guard.running():
            return self._loading.load(name, rows, mode)

    # --- streams ------------------------------------------------------------------------------

    @overload
    def stream(self, transaction: Stream) -> FlowStream: ...

    @overload
    def stream(self, transaction: Routes, **options: Unpack[Options]) -> EngineStream: ...

    @with_options
    def stream(
        self, transaction: Routes | Stream, **options: Unpack[Options]
    ) -> EngineStream | FlowStream:
        """Events of one kind: what they run, and what else is said of them.

        Of a stream that a dataflow declares there is nothing else to say: its handle.

        `transaction` is one of the engine's or its name, or several by the values of the column
        `route_by`: {value: transaction}. The same words give the same stream.

        `order_by` names the event columns of the serial order. With a `watermark`, such as "10
        seconds", events wait so long for older ones; those that come later still are `late`:
        "reject" or "append". `idle="30 seconds"` runs what waits once no events came for so long.
        `updates=True` adds the rows as each transaction left them to the results,
        `carry="event_id, shop"` these columns of the events, whatever became of them. `isolation`
        says what events may see of each other, `scheme` and `threads` how a batch is shared, and
        `name` tells streams apart that run the same.
        """
        if isinstance(transaction, DeclaredStream):
            return self._flow_stream(transaction, options)
        return self._stream(transaction, options)

    def push(self, stream: Stream | str, rows: Any) -> pa.Table:
        """Hand rows to a source of a dataflow, and return when all that they started is durable.

        What comes back is what the executions recorded: one row for each, under its node's name,
        and the rows of all streams that they gave. Rows of a batch that is not whole yet wait.
        """
        found: pa.Table = self._running_flows().push(stream, rows)
        return found

    def _flow_stream(self, stream: Any, options: Options) -> FlowStream:
        if options:
            raise InputError(
                f"a stream of a dataflow has no options such as {next(iter(options))!r} here: say "
                "it in hg.Stream(...)"
            )
        found: FlowStream = self._running_flows().handle(stream, self)
        return found

    def _running_flows(self) -> Any:
        if self._flows is None:
            raise InputError(
                "this engine has no dataflow; hand it in: hg.open(..., dataflows=[flow])"
            )
        return self._flows

    def _stream(self, transaction: Routes, options: Options) -> EngineStream:
        """The stream of what was said: the same words mean the same one, found in one look."""
        said = (transaction, *options.items())
        try:
            return self._said[said]
        except (KeyError, TypeError):  # a list or a dict is no key
            pass  # and what is wrong with the options is told without this beside it
        return self._stream_said(said, options)

    def _stream_said(self, said: tuple[Any, ...], options: Options) -> EngineStream:
        """The stream of what was said, which may hold a list or a dict, or be new."""
        words = words_key(said)
        with contextlib.suppress(KeyError, TypeError):
            return self._said[words]
        terms = understood(said[0], self.transactions, **options)
        if self._is_weak:  # what is run again must find the same order: the results say so
            terms = replace(terms, isolation="PL4")
        stream = EngineStream(terms, self._batches)
        with self._lock, self._guard.running():
            self._declared.note(terms)
            if terms.name is not None:  # what was held before a restart
                self._batches.idle.note(terms, terms.name, self._memory.inlets)
        with contextlib.suppress(TypeError):
            self._said[words] = stream
        return stream

    @with_options
    def run(
        self,
        transaction: Routes,
        events: Any,
        *,
        batch_size: int | None = None,
        record: list[Recording] | None = None,
        **options: Unpack[Options],
    ) -> pa.Table:
        """Run every event and return one result for each, in the serial order.

        The short form of `engine.stream(transaction, ...).run(events)`; see there for the options,
        for `batch_size` and for `record`.
        """
        stream = self._stream(transaction, options)
        return stream.run(events, batch_size=batch_size, record=record)

    @with_options
    def sink(self, transaction: Routes | Stream, **options: Unpack[Options]) -> Sink:
        """The function to hand to `writeStream.foreachBatch`: each micro-batch exactly once.

        The short form of `engine.stream(transaction, ...).sink()`.
        """
        if isinstance(transaction, DeclaredStream):
            return self._flow_stream(transaction, options).sink()
        return self._stream(transaction, options).sink()

    @with_options
    def flush(self, transaction: Routes | Stream, **options: Unpack[Options]) -> pa.Table:
        """Run the events that `run` with the same options holds back, as if time had passed.

        The short form of `engine.stream(transaction, ...).flush()`.
        """
        if isinstance(transaction, DeclaredStream):
            return self._flow_stream(transaction, options).flush()
        return self._stream(transaction, options).flush()

    @with_options
    def explain(self, transaction: Routes, events: Any, **options: Unpack[Options]) -> Figures:
        """The figures of the graph these events would make now; nothing runs.

        The short form of `engine.stream(transaction, ...).explain(events)`.
        """
        return self._stream(transaction, options).explain(events)

    # --- calls --------------------------------------------------------------------------------

    def call(self, transaction: Transaction | str, /, **columns: Any) -> Result:
        """Run one transaction over one event given by keywords, between batches.

        Calls of several threads that wait at the same time share an epoch and its sync.
        """
        return self.calls.call(self._call(transaction, columns))

    def submit(self, transaction: Transaction | str, /, **columns: Any) -> Future[Result]:
        """As `call`, but return at once with the promise of the result.

        Calls run in the order in which they were handed in.
        """
        return self.calls.submit(self._call(transaction, columns))

    def call_once(self, key: str, transaction: Transaction | str, /, **columns: Any) -> Result:
        """As `call`, but only once for each key: sent again, it gets the recorded result.

        The key is logged with the call, so this holds across restarts, too, for as many as
        `calls.keyed.CALLS_MAX`. The same key with other columns is a ConflictError.
        """
        return self.calls.call(self._call(transaction, columns, checked_key(key)))

    def call_all(self, calls: Sequence[Call]) -> list[Result | Exception]:
        """Run many calls together; each gets its result, or the error that is its own.

        Those of one transaction are one batch, and all of them share a sync.
        """
        return self.calls.call_all(calls)

    def _call(
        self, transaction: Transaction | str, columns: Mapping[str, Any], key: str | None = None
    ) -> Call:
        if "isolation" in columns:
            columns = event_columns(find_transaction(transaction, self.transactions), columns)
        return Call(transaction, columns, key)

    # --- reading ------------------------------------------------------------------------------

    def gather(self, query: str, epoch: int | None = None) -> tuple[dict[str, pa.Table], int]:
        """The tables that a query can read and their epoch, to run it elsewhere."""
        return self._reading.gather(query, epoch)

    def sql(
        self, query: str, parameters: Parameters = None, epoch: int | None = None, by: By = None
    ) -> Answer:
        """Run a read-only SQL query over one committed epoch: the newest, or `epoch`.

        DuckDB answers it in this process, or Spark SQL where the rows are, of large tables in
        shards; `by` says "duckdb" or "spark", as `by` of the answer does.
        """
        return self._reading.sql(query, parameters, epoch, by)

    def get(self, table: Table | str, key: Any) -> dict[str, Any] | None:
        """The row with this key (a tuple when the key has several columns), or None."""
        getter = self._getters.get(table if isinstance(table, str) else id(table))
        return (self.getter(table) if getter is None else getter)(key)

    def getter(self, table: Table | str) -> Getter:
        """`get` of one table as a function of the key: a little faster, for many reads."""
        name = self._table_name(table)
        if name not in self._getters:
            self._getters[name] = self._reading.getter(name)
            self._getters[id(self.tables[name])] = self._getters[name]
        return self._getters[name]

    def scan(
        self,
        table: Table | str,
        where: str | Mapping[str, Any] | None = None,
        columns: str | Sequence[str] | None = None,
        *,
        epoch: int | None = None,
    ) -> Answer:
        """The rows of a table: all, those where a SQL condition holds, or columns have values."""
        is_past = epoch is not None and isinstance(table, str)  # it may have had another name
        name = str(table) if is_past else self._table_name(table)
        return self._reading.scan(name, where, columns, epoch)

    def decisions(self) -> list[Decision]:
        """What the model chose for the last batches, and why; the last one is of the last batch."""
        with self._lock:
            return [one for executor in self._executors.values() for one in executor.decisions]

    def metrics(self) -> Metrics:
        """What was counted since the engine was opened; `hg.prometheus(engine)` is it as text."""
        executors, now_us, flows = self._executors.values(), self._clock.time_us(), self._flows
        found = self._batches.streams.metrics(self._journal, executors, self.epoch, now_us)
        return found if flows is None else found.of_flows(flows.counted(), flows.open_rows())

    def applied(self, query: str, batch: int) -> tuple[Applied, ...]:
        """What became of a micro-batch that a query handed to sinks of this engine lately."""
        return self._batches.applied(query, batch)

    def snapshot(self) -> None:
        """Write all tables as a snapshot now: the store then opens without what was logged before.

        One is written by itself whenever the log has grown long.
        """
        with self._lock, self._guard.running():
            self._journal.snapshot(self._memory.epoch, self._memory.images)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and release the store; closing twice is fine."""
        self.give_up(CLOSED)

    def give_up(self, reason: str) -> None:
        """As `close`, but the engine says this when it is used again."""
        if self._guard.is_of_parent:
            return
        self.calls.close()
        self._batches.idle.close()
        if self._flows is not None:
            self._flows.rest(reason)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._flows is not None:
                self._flows.close()
            try:
                self._journal.close()
            finally:
                self._guard.stop(reason, is_wanted=True)
                LOG.info("closed %r", self)

    def owns(self, path: str, disk: Disk | None) -> bool:
        """Whether this engine has the store at the path open for writing."""
        store = self._journal.store
        is_there = store is not None and store.path == path and not self._guard.is_of_parent
        return is_there and not self._is_closed and opening.same_disk(self._journal.disk, disk)

    def __del__(self) -> None:
        """Dropped without `close`: the store is given free, and whoever looks for leaks is told."""
        if getattr(self, "_is_closed", True) or self._guard.is_of_parent:
            return
        if self.path is not None:
            what = f"the engine of {self.path} was dropped without close()"
            warnings.warn(what, ResourceWarning, stacklevel=1, source=self)
        with contextlib.suppress(Exception):
            self.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<engine {self._told()}: {names([*self.tables, *self.transactions])}>"

    def _repr_html_(self) -> str:
        counts = self.counts()
        rows: list[Any] = [
            (name, "table", table.schema.ddl, ", ".join(table.key), counts[name])
            for name, table in self.tables.items()
        ]
        for name, one in self.transactions.items():
            tables = ", ".join(table.name for table in one.signature.tables)
            rows.append((name, "transaction", one.event.ddl, tables, ""))
        heads = ["name", "is a", "columns", "key, or tables", "rows"]
        return html_table(f"engine {self._told()}", heads, rows)

    def _told(self) -> str:
        """Where it is and how far, in a few words."""
        where = "in memory" if self.path is None else str(self.path)
        stopped = "" if self.stopped is None else f", stopped: {self.stopped}"
        return f"{where} at epoch {self.epoch:,}{stopped}"

    def _table_name(self, table: Table | str) -> str:
        return find_table(table, self.tables).name
