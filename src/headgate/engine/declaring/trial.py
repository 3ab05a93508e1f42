"""Trials: a migration tried on the rows of one epoch: who would break it, and what it would write.

Nothing is changed here. What a trial found is what `applying.py` then commits, or refuses with the
rows that are in the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT, Commit, Inlet, Recovered, Store, StoreReader
from headgate.engine.declaring.declarations import (
    MIGRATED_FORMAT,
    check_parents,
    describe_table,
    format_of,
)
from headgate.engine.declaring.drafts import Draft, Drafts
from headgate.engine.declaring.migrations import Migration
from headgate.engine.declaring.steps import Contents, code_of
from headgate.errors import InputError
from headgate.kernels.building import build_check, first_failure
from headgate.kernels.pointers import address
from headgate.query.store_tables import SHARDS, read_table, recorded_names, shard_count
from headgate.state.integrity import twins, violations
from headgate.state.layout import HEADER_ALIVE
from headgate.state.rows import TableRows
from headgate.state.schema import Schema
from headgate.state.spaces import Slots
from headgate.state.stored_names import Storage
from headgate.state.strings import StringPool
from headgate.state.table import Table, Unique

OFFENDERS_SHOWN = 5


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
        """The migration's name."""
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


def description(draft: Draft) -> dict[str, Any]:
    return {**describe_table(draft.table()), **draft.storage.describe(draft.name)}


class Attempt:
    """The last of a chain of migrations, tried on the rows of one epoch."""

    def __init__(self, reader: StoreReader, chain: Sequence[Migration], epoch: int) -> None:
        self._reader = reader
        self._chain = chain
        self._epoch = epoch
        self._migration = chain[-1]
        self._version = reader.declared(epoch)
        self._is_in_shards = shard_count(self._version) is not None
        self._drafts = Drafts.read(self._version)
        for migration in chain:
            self._drafts = self._drafts.next()
            migration.declare(self._drafts)
        self._tables = {name: draft.table() for name, draft in self._drafts.tables.items()}
        check_parents(self._tables)
        self._rows: Contents | None = None

    def trial(self) -> Trial:
        """Hold the rows to what is new, and count what is written."""
        offenders = [*self._unfilled(), *self._offenders()]
        if self._is_in_shards:  # then all rows are written anew, as images of their shards
            written = sum(name.bytes for name in self._reader.parts(self._epoch).names())
        else:
            written = sum(batch.nbytes for batch in self._changes().values())
        tested = {
            name: len(self.rows[name])
            for name, draft in self._drafts.tables.items()
            if draft.is_tested
        }
        return Trial(self._migration, self._epoch + 1, tested, tuple(offenders), written)

    @property
    def rows(self) -> Contents:
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
        if self._is_in_shards:
            rows = read_table(self._reader, name, self._epoch)
            return rows.add_column(0, SLOT, pa.array(np.arange(rows.num_rows)))
        found = self._reader.table(storage.name, self._epoch, with_slots=True)
        return storage.from_files(found, columns).add_column(0, SLOT, found.column(SLOT))

    # --- what is tested -----------------------------------------------------------------------

    def _unfilled(self) -> list[str]:
        """Columns that are null in some rows and must not be: computed so, or null before."""
        found = []
        for name, draft in self._drafts.tables.items():
            if not draft.is_rewritten and not draft.is_tested:
                continue
            rows = self.rows[name]
            for column in draft.columns:
                if column.nullable:
                    continue
                empty = rows.filter(rows.column(column.name).is_null())
                if empty.num_rows:
                    keys = empty.select(list(draft.key)).slice(0, OFFENDERS_SHOWN).to_pylist()
                    new = "new " if draft.is_rewritten else ""
                    why = f"the {new}column {column.name!r} has no value"
                    found.append(_said(name, why, [_key_text(key) for key in keys], len(empty)))
        return found

    def _offenders(self) -> list[str]:
        """The rows that break a check or a constraint of a table that is tested."""
        pool = StringPool()
        nulls = [
            name for name, one in self.rows.items() if _has_null(one, self._tables[name].schema)
        ]
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
        """Contents that are written anew, and the end of those of dropped tables."""
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

    def commit(self, store: Store, recovered: Recovered, time_us: int) -> Commit:
        """The epoch of the migration; of a store in shards its parts are written for it."""
        inlets = _moved(recovered.inlets, self._drafts.transactions)
        if self._is_in_shards:
            from headgate.shards.resharding import rewritten  # a door upward: it stands above us

            changes = rewritten(store, self._epoch, self._tables, self._migration.convert)
        else:
            changes = self._changes()
        return Commit(self._epoch + 1, time_us, changes=changes, inlets=inlets)

    def manifest(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """The declarations from the migration's epoch on, and all before them."""
        now = {name: one for name, one in before.items() if name != "past"}
        epoch = self._epoch + 1
        done = self._migration.record(epoch)
        kept = {name: before[name] for name in ("loaded", "dataflows", SHARDS) if name in before}
        form = max(before.get("format", 1), MIGRATED_FORMAT, format_of(self._tables.values()))
        return {
            **kept,
            "format": form,
            "tables": {name: description(one) for name, one in self._drafts.tables.items()},
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


def _has_null(rows: pa.Table, schema: Schema) -> bool:
    """Whether a row has null in a column that must have a value."""
    return any(rows.column(one.name).null_count for one in schema if not one.nullable)


def _placed(table: Table, found: pa.Table, pool: StringPool) -> TableRows:
    """Contents in the slots they have, as a transaction would see them."""
    rows = TableRows(table, pool)
    slots = found.column(SLOT).to_numpy()
    rows.restore(slots, found.select(list(table.schema.names)), 0)
    return rows


def _failing(rows: TableRows) -> Slots:
    """The slots of live rows that fail their table's check."""
    check = rows.table.check
    rows.pool.add_literals(sorted(check.texts) if check is not None else [])
    failing, words = build_check(rows.table), address(rows.words)
    texts = rows.pool.reach() if check is not None and check.is_reaching else 0
    alive = np.flatnonzero((rows.words[: rows.count, 0] & HEADER_ALIVE) != 0)
    found = []
    for first, last in _runs(alive):
        while first < last:
            slot = first_failure(failing, texts, words, range(first, last))
            if slot is None:
                break
            found.append(slot)
            first = slot + 1
    return np.array(found, np.int64)


def _runs(slots: Slots) -> list[tuple[int, int]]:
    """Ascending slots as ranges without gaps, each up to and not including its end."""
    if not len(slots):
        return []
    breaks = np.flatnonzero(np.diff(slots) != 1)
    firsts = slots[np.concatenate([[0], breaks + 1])]
    lasts = slots[np.concatenate([breaks, [len(slots) - 1]])] + 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _breach(rows: TableRows, why: str, slots: Slots) -> list[str]:
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
