"""Opening: which engine has which store, who may take it over, and how an engine is put together.

Invariants: at most one engine of a process has a store open. None is kept alive by being known here
or by a thread of its own; one that is dropped releases its store, and at the end of the process all
that are left are closed. Whatever would refuse a program at its start is said before the engine
that it takes over from is stopped, in the same words; so a cell of a notebook that is wrong costs
nothing but its message.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from headgate.durability import Commit, Retention, StoreReader
from headgate.engine.batch import Batches
from headgate.engine.calls.calling import Calls
from headgate.engine.calls.keyed import Once
from headgate.engine.declaring.applying import declared_after
from headgate.engine.declaring.declarations import (
    DeclaredStreams,
    first_names,
    fit_program,
    merged_manifest,
    new_constraints,
    refuse_broken,
    storages_of,
)
from headgate.engine.declaring.declarations import read_table as declared_table
from headgate.engine.declaring.migrations import Migration
from headgate.engine.elsewhere import Elsewhere
from headgate.engine.events import complete_rows
from headgate.engine.journal import EngineLock, Guard, Journal
from headgate.engine.loading import Loading
from headgate.engine.memory import Memory
from headgate.engine.metrics import NodeMetrics
from headgate.engine.reading import Reading
from headgate.engine.rerun import fingerprint_of, is_code_changed, read_terms
from headgate.errors import DeclarationError, HeadgateError, InputError, LockedError, shown
from headgate.io import Clock, Disk, RealDisk, local_folder
from headgate.query.answer import Answer
from headgate.query.store_tables import read_table, shard_count
from headgate.state.rows import TableRows
from headgate.state.stored_names import Storages
from headgate.state.strings import StringPool
from headgate.state.table import Table
from headgate.transactions import Transaction

TAKEN_OVER = "its store was taken over by another engine of this process (takeover=True)"


class Owner(Protocol):
    """An engine as far as its store goes."""

    def owns(self, path: str, disk: Disk | None) -> bool: ...

    def close(self) -> None: ...

    def give_up(self, reason: str) -> None: ...

    @property
    def stopped(self) -> str | None: ...


T = TypeVar("T")
_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def note(owner: Owner) -> None:
    """From now on this engine is known; dropping or closing it makes it forgotten."""
    _owners.add(owner)


def open_owned(
    open_store: Callable[[], T],
    path: str | Path | None,
    disk: Disk | None,
    judge: Callable[[Any], None] | None = None,
) -> T:
    """Open a store, out of the hands of an engine of this process that is gone or may be stopped.

    An engine that no one holds any more may still have the lock, until Python collects it. So may
    one that was stopped, which can only be opened again. One that is in use is stopped only where
    `judge` is given and lets the newcomer have its store.
    """
    try:
        return open_store()
    except LockedError:
        if path is None or not _release(local_folder(path), disk, judge):
            raise
    try:
        return open_store()
    except LockedError as error:  # an engine of this process is in use
        advice = "" if judge is not None else ", or open with takeover=True"
        raise LockedError(f"{error}{advice}") from None


def _release(path: str, disk: Disk | None, judge: Callable[[Any], None] | None) -> bool:
    """Whether an engine of this process may have given the store free."""
    found = [owner for owner in list(_owners) if owner.owns(path, disk)]
    if judge is not None:
        for owner in found:
            judge(owner)
        for owner in found:
            owner.give_up(TAKEN_OVER)
    for owner in found:
        if owner.stopped is not None:
            with contextlib.suppress(HeadgateError):  # why it stopped may be why it cannot close
                owner.close()
    is_ours = bool(found)
    found.clear()
    owner = None
    if is_ours and judge is None:
        gc.collect()
    return is_ours


def check_place(path: Any, retain: Any) -> None:
    """Refuse what cannot be the place of a store, before anything is made there."""
    if path is not None and (not isinstance(path, str | os.PathLike) or not str(path)):
        raise InputError(
            "hg.open takes first the path of the store's folder, or None to keep everything in "
            f"memory; not {'an empty text' if path == '' else type(path).__name__}"
        )
    if retain is not None and not isinstance(retain, Retention):
        raise InputError(f"retain is hg.Retention(...), such as epochs=1000; not {shown(retain)}")


def same_disk(one: Disk, other: Disk | None) -> bool:
    """Whether two disks have the same files under the same names."""
    if other is None or isinstance(other, RealDisk):
        return isinstance(one, RealDisk)
    return one is other


@atexit.register
def _close_all() -> None:
    """At the end of the process: what is open is closed, and what cannot be is left to recovery."""
    for owner in list(_owners):
        with contextlib.suppress(Exception):
            owner.close()


class Running(Protocol):
    """The engine that has the store, as far as it is asked."""

    @property
    def path(self) -> str | None: ...

    @property
    def stopped(self) -> str | None: ...

    def scan(self, table: str) -> Answer: ...


class RunningFlows(Protocol):
    """The dataflows of an engine (dataflow/running.py), as far as opening it needs them."""

    def rerun(self, commit: Commit, *, accept: bool) -> None: ...

    def check_stored(self, stored: Mapping[str, Any]) -> None: ...

    def begin(self, stored: Mapping[str, Any]) -> None: ...

    def resume(self) -> Any: ...

    def rest(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def is_logged(self, commit: Commit) -> bool: ...

    def counted(self) -> dict[str, NodeMetrics]: ...

    def open_rows(self) -> dict[str, int]: ...


class DeclaredFlows(Protocol):
    """The dataflows that a program declares."""

    def describe(self) -> dict[str, Any]: ...

    def running(self, parts: Any) -> RunningFlows: ...  # of the engine's parts

    def is_logged(self, commit: Commit) -> bool: ...


@dataclass(frozen=True)
class Newcomer:
    """The program that is to have the store."""

    tables: Mapping[str, Table]
    transactions: Mapping[str, Transaction]
    migrations: Sequence[Migration]
    is_weak: bool
    accepts_changed_code: bool
    disk: Disk | None
    dataflows: DeclaredFlows | None = None
    elsewhere: Elsewhere | None = None  # where the rows are, if not in this process

    def __post_init__(self) -> None:
        if self.elsewhere is not None:  # what cannot be there is refused before a migration is made
            self.elsewhere.check(self.tables, self.transactions)

    def judge(self, running: Running) -> None:
        """Refuse what the start of this program would; an engine that has stopped has no say."""
        if running.stopped is not None or running.path is None:
            return
        reader = StoreReader.open(running.path, self.disk)
        before = reader.declared()
        manifest = declared_after(reader, self.migrations, [*self.tables.values()])
        tables, _ = fit_program(manifest, self.tables, self.transactions, self.migrations)
        if self.is_weak:
            for transaction in self.transactions.values():
                fingerprint_of((transaction,))
        for commit in reader.inputs():
            if self.dataflows is not None and self.dataflows.is_logged(commit):
                continue
            terms = read_terms(commit, self.transactions)
            is_code_changed(commit, terms, accept=self.accepts_changed_code)
        if manifest == before:  # else the rows were held to what is new by the trials
            self._judge_rows(running, tables, manifest.get("tables", {}))

    def _judge_rows(
        self, running: Running, tables: Mapping[str, Table], stored: Mapping[str, Any]
    ) -> None:
        """Hold the rows that there are to the constraints that are new to the store."""
        pool, needed = StringPool(), _constrained(tables, stored)
        refuse_broken({name: _rows(running, tables[name], stored, pool) for name in needed}, stored)


def _rows(running: Running, table: Table, stored: Mapping[str, Any], pool: StringPool) -> TableRows:
    """The rows of a table as the new program has them: new columns take their defaults."""
    rows = TableRows(table, pool)
    if table.name in stored:
        found = complete_rows(running.scan(table.name).arrow(), table, table.name)
        rows.restore(np.arange(found.num_rows), found, 0)
    return rows


def elsewhere_of(spark: Any, shards: Any, said: tuple[Any, ...]) -> Elsewhere | None:
    """Where a program wants its rows, by what it said to `hg.open`; None: in this process."""
    if spark is None and shards is None:
        return None
    from headgate.spark.cluster import sharded  # a door upward: spark/ stands above us

    found: Elsewhere = sharded(spark, shards, *said)
    return found


def check_shards(
    manifest: Mapping[str, Any], tables: Mapping[str, Table], elsewhere: Elsewhere | None
) -> None:
    """Refuse a store whose rows are in other shards than where the program looks for them."""
    found = shard_count(manifest)
    asked = None if elsewhere is None else elsewhere.declared()["shards"]
    if not manifest.get("tables"):
        return
    if found != asked:
        has = "has its rows in one process" if found is None else f"has {found} shards"
        right = "without shards=" if found is None else f"with spark=spark, shards={found}"
        raise InputError(
            f"the store {has}, and cannot be opened with another number: open it {right}, or "
            f"change it: headgate reshard STORE --shards {asked or 0}"
        )
    for name, described in manifest["tables"].items() if found is not None else ():
        stored, declared = declared_table(name, described), tables.get(name)
        if declared is not None and placing(declared) != placing(stored):
            raise DeclarationError(
                f"table {name!r}: the program declares {placing(declared)}, the store has "
                f"{placing(stored)}: declare that, or change the store: headgate reshard STORE "
                f"--shards {found} {placing_option(declared)}"
            )


def refuse_broken_shards(
    reader: StoreReader, tables: Mapping[str, Table], stored: Mapping[str, Any]
) -> None:
    """Hold the rows of a store in shards to the constraints that are new to it."""
    pool, epoch, found = StringPool(), reader.last_epoch(), dict[str, TableRows]()
    for name in _constrained(tables, stored):
        rows = found[name] = TableRows(tables[name], pool)
        if name in stored:
            given = complete_rows(read_table(reader, name, epoch), tables[name], name)
            rows.restore(np.arange(given.num_rows), given, 0)
    refuse_broken(found, stored)


def _constrained(tables: Mapping[str, Table], stored: Mapping[str, Any]) -> set[str]:
    """The tables that the constraints which are new to a store are about."""
    return {
        name
        for table in tables.values()
        for constraint in new_constraints(table, stored)
        for name in (table.name, getattr(constraint, "parent", table.name))
    }


def placing(table: Table) -> str:
    """How the rows of a table are placed among shards, as a program declares it."""
    if table.replicate:
        return "replicate=True"
    return f"shard_by={', '.join(table.shard_by or table.key)!r}"


def placing_option(table: Table) -> str:
    """The same as an option of `headgate reshard`."""
    if table.replicate:
        return f"--replicate {table.name}"
    return f"--shard-by {table.name}={','.join(table.shard_by or table.key)}"


class Parts:
    """What an engine is made of: who runs batches, loads, takes calls, reads; one memory."""

    def __init__(self, journal: Journal, program: Newcomer, clock: Clock) -> None:
        self.journal = journal
        self.is_weak = program.is_weak and journal.store is not None
        self.guard = guard = Guard(journal)
        self.lock = lock = EngineLock(guard)
        self.transactions = dict(program.transactions)
        self._migrations = program.migrations
        self.elsewhere, manifest = program.elsewhere, journal.manifest
        check_shards(manifest, program.tables, self.elsewhere)
        self.tables, results = fit_program(
            manifest, program.tables, self.transactions, program.migrations
        )
        self.declared = DeclaredStreams(results, self._declare)
        self.memory = memory = Memory(
            self.tables,
            Storages(storages_of(manifest, self.tables)),
            is_elsewhere=self.elsewhere is not None,
        )
        self.batches = Batches(
            memory, journal, guard, lock, clock, self.declared, logs_input=self.is_weak,
            elsewhere=self.elsewhere,
        )  # fmt: skip
        self.loading = Loading(memory, journal, guard, clock, self._declare, self.elsewhere)
        run, wait = self.batches.run_calls, self.batches.await_durable
        once, called = Once(memory.calls), first_names(results)
        self.calls = Calls(run, wait, guard, lock, once, self.transactions, called, clock.monotonic)
        self.reading = Reading(memory, journal, guard, lock, self.declared, self.elsewhere)
        self._flows = program.dataflows
        self.flows: RunningFlows | None = None if self._flows is None else self._flows.running(self)

    def begin(self, program: Newcomer) -> None:
        """Recover the state of the store, hold it to the program, and note what is new."""
        for transaction in self.transactions.values():
            # Literals take their codes before any text from the store can take them.
            self.batches.executors.of((transaction,), updates=False)
            if self.is_weak:
                fingerprint_of((transaction,))  # refuse now what could not be logged later
        manifest = self.journal.manifest
        self._recover(program.accepts_changed_code)
        if self.flows is not None:
            self.flows.check_stored(manifest.get("dataflows", {}))
            self.flows.begin(manifest.get("dataflows", {}))
        self.guard.publish(self.memory.epoch)  # what was recovered is durable
        stored, store = manifest.get("tables", {}), self.journal.store
        if self.elsewhere is None:
            refuse_broken(self.memory.rows, stored)
        elif store is not None:
            refuse_broken_shards(StoreReader.open(store.path, store.disk), self.tables, stored)
        self.memory.note_loaded(manifest.get("loaded"))
        self._declare()
        if self.elsewhere is not None:
            self.elsewhere.begin(
                self.memory, self.journal, self.guard, self.tables, self.transactions
            )
        self.batches.streams.begin()

    def _recover(self, accepts_changed_code: bool) -> None:
        recovered = self.journal.recover(self.memory.restoring)
        if recovered is None:
            return
        self.memory.restore(recovered)
        for commit in recovered.pending:
            if commit.input is None:
                self.memory.apply(commit)
            elif self.flows is not None and self.flows.is_logged(commit):
                self.flows.rerun(commit, accept=accepts_changed_code)
            else:
                self.batches.rerun(commit, commit.input, self.transactions, accepts_changed_code)

    def _declare(self) -> None:
        """Write the manifest when it does not yet say all that this program declares."""
        before = self.journal.manifest
        # A new store is beyond all the migrations that its program knows, from the start.
        seen = () if before.get("tables") else self._migrations
        flows = {} if self._flows is None else self._flows.describe()
        merged = merged_manifest(before, self.tables, self.declared.columns, seen, flows)
        said = {} if self.elsewhere is None else self.elsewhere.declared()
        self.journal.declare({**merged, "loaded": dict(self.memory.loaded), **said})
