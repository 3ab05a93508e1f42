"""Migrating: a migration tried on the rows of a store, and committed to it as one epoch.

Invariant: the declarations are written first and mean nothing until the epoch's record is in the
log (see durability/manifest.py). So at any moment, and after a crash at any moment, a store is
wholly before a migration or wholly after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT, Commit, Inlet, Recovered, Store, StoreReader
from headgate.durability.receiver import Nowhere
from headgate.engine.declaring.declarations import (
    FORMAT,
    check_format,
    check_parents,
    describe_table,
    fit_tables,
    named_migrations,
)
from headgate.engine.declaring.drafts import Draft, Drafts
from headgate.engine.declaring.migrations import Migration, Rows, code_of, meaning_of
from headgate.engine.journal import Journal
from headgate.errors import DeclarationError, InputError, StoreError, shown
from headgate.io import Clock, Disk, RealClock
from headgate.kernels.kernel import build_check, check_compiles, first_failure
from headgate.kernels.pointers import address
from headgate.query.stored import recorded_names
from headgate.state.constraint import Unique
from headgate.state.integrity import twins, violations
from headgate.state.rows import Rows as TableRows
from headgate.state.schema import Schema
from headgate.state.storage import Storage
from headgate.state.strings import StringPool
from headgate.state.table import Table

OFFENDERS_SHOWN = 5
MEND = (
    "mend the rows first: open the store without the migration, run a transaction over them "
    "(engine.run, engine.call), and migrate then"
)


@dataclass(frozen=True)
class Trial:
    """What a migration does, or would do, to a store: `print` it.

    `tested` says how many rows of each table were held to checks and constraints, `offenders` which
    of them fail; with any of these it is not applied. `bytes` are what it writes to the log.
    `blocked_by` names the migration of the same list that is refused, if this one is not.
    """

    migration: Migration
    epoch: int
    tested: Mapping[str, int]
    offenders: tuple[str, ...]
    bytes: int
    is_applied: bool = False
    blocked_by: str | None = None

    @property
    def name(self) -> str:
        return self.migration.name

    def __str__(self) -> str:
        lines = [f"{self.name!r} {self._fate}"]
        lines += [f"  {code_of(step)}" for step in self.migration.steps]
        for table, count in self.tested.items():
            lines.append(f"  tested {count:,} rows of {table}")
        if not self.offenders:
            lines.append(f"  writes {self.bytes:,} bytes of rows")
        lines += [f"  refused: {offender}" for offender in self.offenders]
        return "\n".join(lines)

    @property
    def _fate(self) -> str:
        if self.is_applied:
            return f"was applied as epoch {self.epoch}"
        if self.offenders:
            return "would be refused"
        if self.blocked_by is not None:
            return (
                f"would not be applied: {self.blocked_by!r} would be refused, and a list is "
                "applied whole or not at all"
            )
        return f"would be applied as epoch {self.epoch}"


def migrate(
    path: str | os.PathLike[str],
    migrations: Iterable[Migration],
    *,
    tables: Iterable[Table] | None = None,
    dry_run: bool = False,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> list[Trial]:
    """Apply the migrations that a store has not seen yet, in order, each as one epoch.

    With `dry_run` nothing is touched and no lock is taken: what would happen is returned. `tables`
    are what a program declares; when they are given they must be what comes out.
    """
    given = checked(migrations)
    if dry_run:
        return _try_all(StoreReader.open(path, disk), given, tables)
    reader = StoreReader.open(path, disk)  # there must be a store
    with_clock = clock or RealClock()
    store = Store.open(reader.path, disk, with_clock)
    try:
        return migrate_store(store, given, tables, with_clock)
    finally:
        store.close()


def checked(migrations: Any) -> list[Migration]:
    """The migrations as a list; refused when two have one name."""
    given = [migrations] if isinstance(migrations, Migration) else list(migrations)
    names = []
    for one in given:
        if not isinstance(one, Migration):
            raise DeclarationError(
                f"migrations= takes a list of hg.Migration(...), not {shown(one)}"
            )
        if one.name in names:
            raise DeclarationError(f"two migrations are called {one.name!r}: name each for itself")
        names.append(one.name)
    return given


def pending_of(manifest: Mapping[str, Any], migrations: Sequence[Migration]) -> list[Migration]:
    """The migrations that a store has not seen; they must come after those it has."""
    applied = {one["name"]: one for one in manifest.get("migrations", ())}
    pending: list[Migration] = []
    for one in migrations:
        if one.name not in applied:
            pending.append(one)
            continue
        _refuse_edited(one, applied[one.name])
        if pending:
            raise DeclarationError(
                f"the migration {pending[0].name!r} stands before {one.name!r}, which was applied "
                f"as epoch {applied[one.name]['epoch']}: new ones go to the end"
            )
    return pending


def _refuse_edited(given: Migration, applied: Mapping[str, Any]) -> None:
    """A migration that was applied stays what it was; older stores did not note its steps."""
    epoch, steps = applied["epoch"], given.record(0)["steps"]
    before = applied.get("steps", steps)
    difference = _first_difference(before, steps)
    if difference is not None:
        when = f"was applied as epoch {epoch}" if epoch else "was there when the store was made"
        raise DeclarationError(
            f"the migration {given.name!r} {when}, with other steps: {difference}; leave it as it "
            "was, and say what is to change in a new one, with a name of its own"
        )


def _first_difference(before: Sequence[str], now: Sequence[str]) -> str | None:
    """The first step that means something else; how its SQL is spaced makes none."""
    for place, (old, new) in enumerate(zip(before, now, strict=False), 1):
        if old != new and meaning_of(old) != meaning_of(new):
            return f"step {place} was {old}, and is {new} now"
    count = min(len(before), len(now))
    if len(before) > count:
        return f"step {count + 1}, {before[count]}, is not there any more"
    if len(now) > count:
        return f"step {count + 1}, {now[count]}, was not there"
    return None


def migrate_store(
    store: Store, migrations: Sequence[Migration], tables: Iterable[Table] | None, clock: Clock
) -> list[Trial]:
    """Recover a store that is open and not yet recovered, and apply what is pending."""
    check_format(store.manifest)
    pending = pending_of(store.manifest, migrations)
    if not pending:
        return []
    check_result(store.manifest, pending, tables)
    recovered = store.recover(Nowhere())
    _refuse_inputs([one.epoch for one in recovered.pending if one.input is not None])
    reader = StoreReader.open(store.path, store.disk)
    # All are tried before the first is applied: a list that cannot be applied leaves no part.
    for tried in _try_all(reader, pending, tables) if len(pending) > 1 else ():
        if tried.offenders:
            raise DeclarationError(refusal(tried))
    applied: list[Trial] = []
    for migration in pending:
        attempt = Attempt(reader, [migration], recovered.epoch + len(applied))
        trial = attempt.trial()
        if trial.offenders:
            raise DeclarationError(refusal(trial))
        store.write_manifest(attempt.manifest(store.manifest))
        store.commit(attempt.commit(recovered, clock.time_us()))
        applied.append(replace(trial, is_applied=True))
    return applied


def migrated(
    journal: Journal,
    reopen: Callable[[], Journal],
    migrations: Sequence[Migration],
    tables: Sequence[Table],
    clock: Clock,
) -> Journal:
    """The journal of a store to which nothing is pending: this one, or it opened again."""
    try:
        store = journal.store if journal.manifest.get("tables") else None
        if store is None or not migrate_store(store, migrations, tables, clock):
            return journal
    except BaseException:
        journal.close()
        raise
    journal.close()  # its store was recovered as it was before
    return reopen()


def refusal(trial: Trial) -> str:
    """Why a migration cannot be applied, and that nothing was touched."""
    rows = "; ".join(trial.offenders)
    return f"migration {trial.name!r}: {rows}; nothing was changed: {MEND}"


def declared_after(
    reader: StoreReader, migrations: Sequence[Migration], tables: Sequence[Table]
) -> Mapping[str, Any]:
    """What a store would declare when the migrations were applied, which are tried on its rows."""
    with reader.hold():
        manifest, epoch = reader.declared(), reader.last_epoch()
        pending = pending_of(manifest, migrations) if manifest.get("tables") else []
        if pending:
            check_result(manifest, pending, tables)
            _refuse_inputs([one.epoch for one in reader.inputs()])
        for place in range(len(pending)):
            attempt = Attempt(reader, pending[: place + 1], epoch)
            trial = attempt.trial()
            if trial.offenders:
                raise DeclarationError(refusal(trial))
            manifest = attempt.manifest(manifest)
        return manifest


def _refuse_inputs(inputs: Sequence[int]) -> None:
    if inputs:
        raise StoreError(
            f"epochs {inputs[0]} to {inputs[-1]} were logged as input (recovery='weak'), and only "
            "the program that ran them can run them again: open the store with that program, call "
            "engine.snapshot() and close it; then migrate"
        )


def check_result(
    manifest: Mapping[str, Any], pending: Sequence[Migration], tables: Iterable[Table] | None
) -> None:
    """Refuse migrations that cannot be, or that do not lead to what the program declares."""
    drafts, after = Drafts.read(manifest), dict(manifest)
    for migration in pending:
        drafts = drafts.next()
        migration.declare(drafts)
        after = _declared_after(after, drafts, migration)
    for draft in drafts.tables.values():
        check_compiles(draft.table())
    if tables is None:
        check_parents({name: draft.table() for name, draft in drafts.tables.items()})
        return
    try:
        fit_tables(tables, after)
    except DeclarationError as error:
        names = named_migrations([one.name for one in pending])
        lead = "does not lead" if len(pending) == 1 else "do not lead"
        raise DeclarationError(
            f"{names} {lead} to what the program declares, and nothing was changed: {error}"
        ) from None


def _declared_after(
    before: Mapping[str, Any], drafts: Drafts, migration: Migration
) -> dict[str, Any]:
    """The declarations as they would be after a migration, which has no epoch yet."""
    done = {**migration.record(0), "epoch": None}
    return {
        "tables": {name: _description(one) for name, one in drafts.tables.items()},
        "migrations": [*before.get("migrations", ()), done],
        "past": [*before.get("past", ()), before],
    }


def _description(draft: Draft) -> dict[str, Any]:
    return {**describe_table(draft.table()), **draft.storage.describe(draft.name)}


def _try_all(
    reader: StoreReader, migrations: Sequence[Migration], tables: Iterable[Table] | None
) -> list[Trial]:
    with reader.hold():
        epoch, version = reader.last_epoch(), reader.declared()
        check_format(version)
        pending = pending_of(version, migrations)
        check_result(version, pending, tables)
        if pending:
            _refuse_inputs([one.epoch for one in reader.inputs()])
        chains = [pending[: count + 1] for count in range(len(pending))]
        trials = [
            replace(Attempt(reader, chain, epoch).trial(), epoch=epoch + len(chain))
            for chain in chains
        ]
    refused = next((one.name for one in trials if one.offenders), None)
    return [one if one.offenders else replace(one, blocked_by=refused) for one in trials]


class Attempt:
    """The last of a chain of migrations, tried on the rows of one epoch."""

    def __init__(self, reader: StoreReader, chain: Sequence[Migration], epoch: int) -> None:
        self._reader = reader
        self._chain = chain
        self._epoch = epoch
        self._migration = chain[-1]
        self._version = reader.declared(epoch)
        self._drafts = Drafts.read(self._version)
        for migration in chain:
            self._drafts = self._drafts.next()
            migration.declare(self._drafts)
        self._tables = {name: draft.table() for name, draft in self._drafts.tables.items()}
        check_parents(self._tables)
        self._rows: Rows | None = None

    def trial(self) -> Trial:
        """Hold the rows to what is new, and count what is written."""
        offenders = [*self._unfilled(), *self._offenders()]
        written = sum(batch.nbytes for batch in self._changes().values())
        tested = {
            name: len(self.rows[name])
            for name, draft in self._drafts.tables.items()
            if draft.is_tested
        }
        return Trial(self._migration, self._epoch + 1, tested, tuple(offenders), written)

    @property
    def rows(self) -> Rows:
        """The rows of all tables that are tested or written, as they are after the migration."""
        if self._rows is None:
            wanted = {self._drafts.tables[name].origin for name in self._needed()}
            rows = {name: self._image(name) for name in wanted}
            for migration in self._chain:
                migration.convert(rows)
            self._rows = rows
        return self._rows

    def _needed(self) -> set[str]:
        found = set()
        for name, draft in self._drafts.tables.items():
            if draft.is_tested or draft.is_rewritten:
                found |= {name}
            if draft.is_tested:
                found |= {parent for _, parent in draft.references}
        return found

    def _image(self, name: str) -> pa.Table:
        """A table's rows at the epoch with their slots, as it was declared then."""
        described = self._version["tables"][name]
        storage, columns = Storage.read(name, described), Schema.parse(described["columns"])
        found = self._reader.table(storage.name, self._epoch, with_slots=True)
        return storage.from_files(found, columns).add_column(0, SLOT, found.column(SLOT))

    # --- what is tested -----------------------------------------------------------------------

    def _unfilled(self) -> list[str]:
        """Columns that are computed and came out as null."""
        found = []
        for name, draft in self._drafts.tables.items():
            if not draft.is_rewritten:
                continue
            rows = self.rows[name]
            for column in draft.columns:
                empty = rows.filter(rows.column(column.name).is_null())
                if empty.num_rows:
                    keys = empty.select(list(draft.key)).slice(0, OFFENDERS_SHOWN).to_pylist()
                    why = f"the new column {column.name!r} has no value"
                    found.append(_said(name, why, [_key_text(key) for key in keys], len(empty)))
        return found

    def _offenders(self) -> list[str]:
        """The rows that break a check or a constraint of a table that is tested."""
        pool = StringPool()
        nulls = [name for name, one in self.rows.items() if _has_null(one)]
        placed = {
            name: _placed(self._tables[name], rows, pool)
            for name, rows in self.rows.items()
            if name not in nulls
        }
        found = []
        for name, draft in self._drafts.tables.items():
            if not draft.is_tested or name in nulls:
                continue
            table, rows = self._tables[name], placed[name]
            if table.check is not None:
                slots = _failing(rows)
                found += _breach(rows, f"check failed: {table.check.text}", slots)
            for constraint in table.constraints:
                if {constraint.table, getattr(constraint, "parent", name)} & set(nulls):
                    continue
                if isinstance(constraint, Unique):
                    found += _shared(rows, constraint)
                    continue
                slots = violations(placed, constraint)
                found += _breach(rows, constraint.reason, slots)
        return found

    # --- what is written ----------------------------------------------------------------------

    def _changes(self) -> dict[str, pa.RecordBatch]:
        """Rows that are written anew, and the end of those of dropped tables."""
        found = {}
        for name, draft in self._drafts.tables.items():
            if draft.is_rewritten and len(self.rows[name]):
                rows = self.rows[name].select([SLOT, *(one.name for one in draft.columns)])
                alive = pa.repeat(pa.scalar(True), len(rows))
                batch = _one_batch(rows.add_column(1, ALIVE, alive), name)
                found[draft.storage.name] = draft.storage.to_files(batch)
        for draft in self._drafts.dropped:
            key = [draft.storage.column(draft.key[0])]
            slots = self._reader.table(draft.storage.name, self._epoch, None, key, with_slots=True)
            if len(slots):
                alive = pa.repeat(pa.scalar(False), len(slots))
                gone = slots.select([SLOT]).append_column(ALIVE, alive)
                found[draft.storage.name] = _one_batch(gone, draft.name)
        return found

    def commit(self, recovered: Recovered, time_us: int) -> Commit:
        """The epoch of the migration."""
        inlets = _moved(recovered.inlets, self._drafts.transactions)
        return Commit(self._epoch + 1, time_us, changes=self._changes(), inlets=inlets)

    def manifest(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """The declarations from the migration's epoch on, and all before them."""
        now = {name: one for name, one in before.items() if name != "past"}
        epoch = self._epoch + 1
        done = self._migration.record(epoch)
        kept = {"loaded": before["loaded"]} if "loaded" in before else {}
        return {
            **kept,
            "format": FORMAT,
            "tables": {name: _description(one) for name, one in self._drafts.tables.items()},
            "streams": _streams(self._drafts, epoch),
            "since": epoch,
            "migrations": [*before.get("migrations", ()), done],
            "past": [*before.get("past", ()), now],
        }


def _one_batch(rows: pa.Table, name: str) -> pa.RecordBatch:
    """The rows as an epoch takes them; texts of more than 2 GB in a column do not go into one."""
    batches = rows.combine_chunks().to_batches()
    if len(batches) != 1:
        raise InputError(
            f"table {name!r} has more text in a column than one epoch can write anew (2 GB): add "
            "the column with a DEFAULT, and let transactions fill it"
        )
    return batches[0]


def _has_null(rows: pa.Table) -> bool:
    return any(column.null_count for column in rows.columns)


def _placed(table: Table, found: pa.Table, pool: StringPool) -> TableRows:
    """Rows in the slots they have, as a transaction would see them."""
    rows = TableRows(table, pool)
    slots = found.column(SLOT).to_numpy()
    rows.restore(slots, found.select(list(table.schema.names)), 0)
    return rows


def _failing(rows: TableRows) -> np.ndarray:
    """The slots of live rows that fail their table's check."""
    check = rows.table.check
    rows.pool.add_literals(sorted(check.texts) if check is not None else [])
    failing, words = build_check(rows.table), address(rows.words)
    alive = np.flatnonzero((rows.words[: rows.count, 0] & 1) == 1)
    found = []
    for first, last in _runs(alive):
        while first < last:
            slot = first_failure(failing, words, range(first, last))
            if slot is None:
                break
            found.append(slot)
            first = slot + 1
    return np.array(found, np.int64)


def _runs(slots: np.ndarray) -> list[tuple[int, int]]:
    """Ascending slots as ranges without gaps, each up to and not including its end."""
    if not len(slots):
        return []
    breaks = np.flatnonzero(np.diff(slots) != 1)
    firsts = slots[np.concatenate([[0], breaks + 1])]
    lasts = slots[np.concatenate([breaks, [len(slots) - 1]])] + 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _breach(rows: TableRows, why: str, slots: np.ndarray) -> list[str]:
    if not len(slots):
        return []
    keys = [rows.key_text(int(slot)) for slot in slots[:OFFENDERS_SHOWN]]
    return [_said(rows.table.name, why, keys, len(slots))]


def _shared(rows: TableRows, constraint: Unique) -> list[str]:
    """The values that several rows share, each with the rows that have it."""
    groups, values, count = twins(rows, constraint, OFFENDERS_SHOWN)
    if not groups:
        return []
    told = []
    for slots in groups:
        keys = [rows.key_text(int(slot)) for slot in slots[:OFFENDERS_SHOWN]]
        more = f" and {len(slots) - len(keys):,} more" if len(slots) > len(keys) else ""
        told.append(f"{rows.text(int(slots[0]), constraint.columns)} in {' | '.join(keys)}{more}")
    more = f"; and {values - len(told):,} more values" if values > len(told) else ""
    what = f"{count:,} rows share {'a value' if values == 1 else f'{values:,} values'}"
    return [f"table {rows.table.name!r}: {constraint.reason}: {what}: {'; '.join(told)}{more}"]


def _said(table: str, why: str, keys: Sequence[str], count: int) -> str:
    more = f" and {count - len(keys):,} more" if count > len(keys) else ""
    rows = "1 row" if count == 1 else f"{count:,} rows"
    return f"table {table!r}: {why}: {rows}: {' | '.join(keys)}{more}"


def _key_text(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in key.items())


def _moved(inlets: Mapping[str, Inlet], renamed: Mapping[str, str]) -> dict[str, Inlet]:
    """Inlets that are called after transactions go along with their new names."""
    found: dict[str, Inlet] = {}
    for name, inlet in inlets.items():
        if not name.startswith("run "):
            continue
        parts = name.removeprefix("run ").split(", ")
        new = "run " + ", ".join(renamed.get(part, part) for part in parts)
        if new != name:
            found.setdefault(name, Inlet(None, None, 0))
            found[new] = inlet
    return found


def _streams(drafts: Drafts, epoch: int) -> dict[str, Any]:
    """The streams; one that got another name remembers under which its results are recorded."""
    before = {new: old for old, new in drafts.transactions.items()}
    streams = {before.get(name, name): one for name, one in drafts.streams.items()}
    found = dict(drafts.streams)
    for name, old in before.items():
        names = [
            [one, first, epoch - 1 if last is None else last]
            for one, first, last in recorded_names(streams, old)
        ]
        found[name] = {**found[name], "names": [*names, [name, epoch, None]]}
    return found
