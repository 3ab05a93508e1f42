"""Elsewhere: who has an engine's rows, and runs its batches, when that is not this process.

The way of a batch is the same up to its order and from its results on; in between it goes to where
the rows are. Invariant: nothing that ran elsewhere counts before this process's log has named it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from headgate.engine.ordering import Arranged
from headgate.engine.terms import Terms
from headgate.isolation.levels import Execution, Executor
from headgate.parallel.figures import Figures

if TYPE_CHECKING:
    from headgate.durability import StoreReader
    from headgate.engine.journal import Guard, Journal
    from headgate.engine.memory import Memory
    from headgate.parallel.decision import Decision
    from headgate.query.sql import Parameters
    from headgate.state.rows import TableRows
    from headgate.state.spaces import EventRows, Slots
    from headgate.state.table import Table
    from headgate.transactions import Transaction


# Commit rows of a table that were placed: what the log is to name.
CommitPlaced = Callable[[str, Mapping[str, pa.RecordBatch]], None]


class RowsForFlows(Protocol):
    """The rows that dataflows run over: in this process, wherever the engine has its own."""

    @property
    def is_by_key(self) -> bool:
        """Whether rows are known by their keys alone where the engine has its own: then no slot
        may be of one row before an epoch, and of another behind it."""
        ...

    @property
    def tables(self) -> Mapping[str, TableRows]:
        """Those of the engine's epoch, with what the one that is under way did to them so far;
        asked for under the engine's lock."""
        ...

    def executor(self, transactions: Sequence[Transaction], updates: bool = False) -> Executor:
        """Who runs a set of transactions over them, made and compiled once."""
        ...

    def ready(self, tables: Iterable[Table], alone: Transaction | None) -> None:
        """Have the rows that an execution needs here, or say why they cannot be: of these tables;
        a transaction that is `alone` in it may run where its rows are."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether the epoch under way ran where its rows are: nothing else may run in it."""
        ...

    def leaves(self, transaction: Transaction, rows: int, seconds_each: float | None) -> bool:
        """Whether so many events of a transaction are to run where their rows are; each has taken
        so long here, if any has run."""
        ...

    def run_there(
        self, terms: Terms, events: pa.Table, numbers: np.ndarray
    ) -> tuple[pa.RecordBatch, EventRows]:
        """Run the events of several batches, one after another, as all that the epoch does, where
        their rows are; their results, and which event each is of."""
        ...

    def hand_over(self, epoch: int, changed: Mapping[str, Slots]) -> dict[str, pa.RecordBatch]:
        """What the log is to name of an epoch that changed these slots, where their rows are
        elsewhere."""
        ...


class WholeHere(Protocol):
    """A plain batch that runs in this process after all, over a copy of the rows."""

    executor: Executor  # over these rows
    decision: Decision

    def begin(self) -> None:
        """The events run next."""
        ...

    def end(self, changed: Mapping[str, Slots], events: int) -> Mapping[str, pa.RecordBatch]:
        """So many events have run, and these rows are others; what the log is to name of it."""
        ...


class Elsewhere(Protocol):
    """Where the rows of an engine are."""

    def check(self, tables: Mapping[str, Table], transactions: Mapping[str, Transaction]) -> None:
        """Refuse what cannot be there, before anything is read or written."""
        ...

    def begin(
        self,
        memory: Memory,
        journal: Journal,
        guard: Guard,
        tables: dict[str, Table],
        transactions: dict[str, Transaction],
    ) -> None:
        """The engine has recovered; refuse what cannot run there before anything does."""
        ...

    def declared(self) -> dict[str, Any]:
        """What the manifest is to say of it."""
        ...

    def refuse(self, what: str) -> NoReturn:
        """The error for what is not there."""
        ...

    def execute(
        self,
        terms: Terms,
        arranged: Arranged,
        executor: Executor,
        epoch: int,
        times: Mapping[str, int],
    ) -> Execution:
        """Run an arranged batch where its rows are; changes nothing that counts.

        `times` are those of the tables whose rows expire, before the batch.
        """
        ...

    def whole(self, terms: Terms, events: int, epoch: int) -> WholeHere | None:
        """Who runs the batch of an epoch here, if it is plain; None where its events say more of
        where it should run than their number."""
        ...

    def explain(self, terms: Terms, events: pa.Table, executor: Executor) -> Figures:
        """The figures of the graph that events would make now; nothing runs."""
        ...

    def flow_rows(
        self,
        tables: Iterable[Table],
        alone: Sequence[Transaction],
        executors: Callable[..., Executor],
    ) -> RowsForFlows:
        """The rows that dataflows over these tables run over; some of their transactions stand
        `alone`, in no nest, and the executors are the engine's own, perhaps not compiled yet."""
        ...

    def load(self, name: str, given: Any, mode: str, commit: CommitPlaced) -> int:
        """Place the first rows of a table, and have them committed."""
        ...

    def row(self, name: str, key: Any) -> dict[str, Any] | None:
        """The row with a key at the newest epoch."""
        ...

    def ask(self, store: StoreReader, query: str, parameters: Parameters, epoch: int) -> pa.Table:
        """What a query finds in the tables of an epoch, which is held; they do not come here."""
        ...
