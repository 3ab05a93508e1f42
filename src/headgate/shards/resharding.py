"""Resharding: the rows of a store go into another number of shards, or back into one process.

It is an epoch of its own, like a migration: first all rows are written anew, as files that nothing
names yet, then the declarations, which mean nothing before their epoch, and then the one record
that has or names the rows. Invariant: that record's sync is the moment of the change; before it the
store is what it was, after it the new one, and of every epoch before it nothing is touched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT, Commit, Store, StoreReader
from headgate.durability.commit import Nowhere
from headgate.durability.copying import backup
from headgate.durability.lineage import Lineage
from headgate.durability.named_parts import NewPart
from headgate.durability.part_file import make_epoch_folder, part_epochs, remove_others, write_part
from headgate.engine.declaring.declarations import (
    FORMAT,
    check_format,
    describe_table,
    refuse_inputs,
)
from headgate.engine.declaring.declarations import read_table as declared_table
from headgate.engine.declaring.steps import Contents
from headgate.engine.opening import placing
from headgate.errors import InputError, StoreError, not_among
from headgate.io import Clock, Disk, RealClock, local_folder, reason_of
from headgate.query.store_tables import (
    SHARDS,
    in_parts,
    owner_of,
    part_rows,
    parts_of,
    read_table,
    shard_count,
)
from headgate.shards.placement import Placement, check_count, refuse_unfit, shards_of
from headgate.shards.warm import ROWS
from headgate.state.schema import Schema
from headgate.state.stored_names import Storage
from headgate.state.table import Table

# Of a store in one process so many slots of a table are read at once; of one with shards, a shard.
SLOTS_AT_ONCE = 1 << 20
# Rows wait in memory for others of their shard, so that its image is of few files.
WAITING_BYTES_MAX = 1 << 28
BATCH_ROWS_MAX = 1 << 16


@dataclass(frozen=True)
class PlacedTable:
    """Where the rows of one table are after a change of shards."""

    name: str
    rows: int
    placed: str  # what a program declares of it, "" where its rows are in one process
    fewest: int  # rows of any shard
    most: int


@dataclass(frozen=True)
class Resharded:
    """What a change of shards does, or did, to a store: `print` it.

    `before` and `shards` are numbers of shards, 0 for one process; `epoch` is that of the change,
    and `bytes` are about what its rows take in files. With no tables there was nothing to do.
    """

    path: str
    before: int
    shards: int
    epoch: int
    tables: tuple[PlacedTable, ...] = ()
    bytes: int = 0
    is_applied: bool = False

    def __str__(self) -> str:
        if not self.tables:
            return f"{self.path}: nothing to do, it is in {_words(self.shards)} already"
        did = "went" if self.is_applied else "would go"
        change = f"{did} from {_words(self.before)} into {_words(self.shards)}"
        lines = [f"{self.path} {change} as epoch {self.epoch}"]
        lines += [f"  {_placed(one, self.shards)}" for one in self.tables]
        writes = "wrote" if self.is_applied else "would write"
        lines.append(f"  {writes} about {self.bytes:,} bytes of rows, beside those there are")
        lines.append(
            f"  epochs before {self.epoch} stay as they are: rows, results, batches of queries"
        )
        options = f"spark=spark, shards={self.shards}" if self.shards else "no shards="
        lines.append(f"  open it with {options}" if self.is_applied else "  nothing was touched")
        return "\n".join(lines)


def _words(shards: int) -> str:
    return f"{shards} shard{'s' * (shards > 1)}" if shards else "one process"


def _placed(table: PlacedTable, shards: int) -> str:
    rows = f"{table.name}: {table.rows:,} row{'s' * (table.rows != 1)}"
    if not shards:
        return rows
    if table.rows and table.fewest == table.rows and shards > 1:
        return f"{rows}, {table.placed}: on every shard"
    return f"{rows}, {table.placed}: {table.fewest:,} to {table.most:,} in a shard"


def reshard(
    path: str | os.PathLike[str],
    shards: int | None,
    *,
    to: str | os.PathLike[str] | None = None,
    shard_by: Mapping[str, str | Iterable[str]] | None = None,
    replicate: Iterable[str] = (),
    dry_run: bool = False,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Resharded:
    """Put the rows of a store into so many shards, or with 0 back into one process, as one epoch.

    All epochs before it stay readable under their numbers, with their results. With `to` a copy of
    the store is changed, and the store itself stays as it is. `shard_by` and `replicate` say by
    table what its rows are placed by from now on. With `dry_run` nothing is touched and no lock is
    taken: what would happen is returned.

    >>> import tempfile
    >>> import headgate as hg
    >>> store = tempfile.mkdtemp() + "/bank"
    >>> accounts = hg.Table("accounts", "id bigint, balance double", key="id")
    >>> with hg.open(store, tables=[accounts]) as bank:
    ...     bank.load(accounts, [{"id": number, "balance": 1.0} for number in range(10)])
    10
    >>> print(hg.reshard(store, 4).epoch)
    2
    >>> hg.reshard(store, 0).before
    4
    """
    asked = _Asked.of(shards, shard_by, replicate)
    reader = StoreReader.open(path, disk)  # there must be a store
    change = _Change(reader.path, reader.declared(), asked)
    if dry_run:
        return change.tried(reader)
    with_clock = clock or RealClock()
    if to is not None:
        change.refuse_nothing()
        with _locked(reader.path, disk, with_clock) as source:
            _recovered(source)
            backup(reader.path, to, disk, with_clock)
        reader = StoreReader.open(to, disk)
    with _locked(reader.path, disk, with_clock) as store:
        return _Change(store.path, store.manifest, asked).applied(store, with_clock)


@contextlib.contextmanager
def _locked(path: str, disk: Disk | None, clock: Clock) -> Iterator[Store]:
    store = Store.open(local_folder(path), disk, clock)
    try:
        yield store
    finally:
        store.close()


def _recovered(store: Store) -> int:
    """The last epoch of a store, all of whose rows are in its files."""
    recovered = store.recover(Nowhere())
    refuse_inputs([one.epoch for one in recovered.pending if one.input is not None], "reshard")
    return recovered.epoch


@dataclass(frozen=True)
class _Asked:
    """What a user wants of a store."""

    shards: int
    placed: Mapping[str, tuple[str, ...] | None]  # by table: columns, or None for every shard

    @classmethod
    def of(
        cls, shards: int | None, shard_by: Mapping[str, Any] | None, replicate: Iterable[str]
    ) -> _Asked:
        is_one_process = shards is None or (type(shards) is int and shards == 0)
        count = 0 if is_one_process else check_count(shards)
        everywhere = [replicate] if isinstance(replicate, str) else list(replicate)
        placed: dict[str, tuple[str, ...] | None] = {
            name: tuple(one.strip() for one in columns.split(","))
            if isinstance(columns, str)
            else tuple(columns)
            for name, columns in (shard_by or {}).items()
        }
        for name in everywhere:
            if name in placed:
                raise InputError(f"table {name!r}: shard_by and replicate do not go together")
            placed[name] = None
        return cls(count, placed)


class _Change:
    """One store on its way from the shards it has to those it shall have."""

    def __init__(self, path: str, manifest: Mapping[str, Any], asked: _Asked) -> None:
        check_format(manifest)
        self._path, self._manifest, self._count = path, manifest, asked.shards
        self._described: Mapping[str, Any] = manifest.get("tables", {})
        if not self._described:
            raise InputError(f"{path} has no tables yet: open it with spark=spark, shards=...")
        for name in asked.placed:
            if name not in self._described:
                among = not_among(name, self._described, "tables")
                raise InputError(f"no table {name!r} in {path}; {among}")
            if (owner := owner_of(name, self._described)) != name:
                what = f"table {name!r} has the versions of {owner!r}, which are where its rows are"
                raise InputError(f"{what}: place {owner!r}")
        self._storages = {name: Storage.read(name, one) for name, one in self._described.items()}
        self._tables = {
            name: _placed_anew(declared_table(name, described), asked.placed)
            for name, described in self._described.items()
        }
        if asked.shards:
            self._refuse_unfit()

    def _refuse_unfit(self) -> None:
        refuse_unfit(self._tables, "keep the store in one process")

    @property
    def before(self) -> int:
        return shard_count(self._manifest) or 0

    def _is_nothing(self) -> bool:
        if self.before != self._count:
            return False
        tables = self._tables.items() if self._count else ()
        described = self._described
        return all(placing(one) == placing(declared_table(name, described[name]))
                   for name, one in tables)  # fmt: skip

    def refuse_nothing(self) -> None:
        """Refuse to make a copy that would not differ."""
        if self._is_nothing():
            has = _words(self._count)
            raise InputError(f"{self._path} is in {has} already: for a copy use headgate backup")

    def tried(self, reader: StoreReader) -> Resharded:
        """What would happen."""
        with reader.hold():
            epoch = reader.last_epoch()
            if self._is_nothing():
                return self._said(epoch)
            refuse_inputs([one.epoch for one in reader.inputs()], "reshard")
            counting = _Counting(self._placement)
            for name, rows in self._rows(reader, epoch):
                counting.add(self._tables[name], rows)
        return self._said(epoch + 1, counting)

    def applied(self, store: Store, clock: Clock) -> Resharded:
        """Do it, in a store that is open and not yet recovered."""
        epoch = _recovered(store)
        if self._is_nothing():
            return self._said(epoch)
        counting = _Counting(self._placement)
        try:
            changes = self._written(store, epoch, counting)
        except OSError as error:
            raise StoreError(
                f"cannot reshard {store.path}: {reason_of(error)}; nothing was changed"
            ) from error
        store.write_manifest(self._declared(epoch, counting))
        store.commit(Commit(epoch + 1, clock.time_us(), changes=changes))
        del changes
        store.snapshot()  # so that whoever opens the store does not read it as it was
        return self._said(epoch + 1, counting, is_applied=True)

    @property
    def _placement(self) -> Placement | None:
        return Placement(self._tables, self._count) if self._count else None

    def _written(self, store: Store, epoch: int, counting: _Counting) -> dict[str, Any]:
        """All rows written anew, and what the record of the next epoch is to say of them."""
        reader = StoreReader.open(store.path, store.disk)
        _sweep(store, epoch)
        placement, at = counting.placement, (store.disk, store.path, store.lineage, epoch + 1)
        target: _IntoParts | _IntoLog = (
            _IntoLog(self._storages) if placement is None else _IntoParts(*at, placement)
        )
        for name, rows in self._rows(reader, epoch):
            target.add(self._tables[name], rows, counting.add(self._tables[name], rows))
        changes = {**self._gone(reader, epoch), **target.finished()}
        changes.update(reader.parts(epoch).renewed(epoch + 1, target.images()))
        return changes

    def _rows(self, reader: StoreReader, epoch: int) -> Iterator[tuple[str, pa.Table]]:
        """All rows of an epoch, piece by piece, as their tables are declared."""
        if not self.before:
            for name, storage in self._storages.items():
                for first in range(0, reader.slots(storage.name, epoch), SLOTS_AT_ONCE):
                    piece = (first, first + SLOTS_AT_ONCE)
                    yield name, read_table(reader, name, epoch, slot_range=piece)
            return
        yield from _pieces(reader, epoch, self._manifest)

    def _gone(self, reader: StoreReader, epoch: int) -> dict[str, Any]:
        """The end of the rows that the log itself has."""
        found = {}
        for name, storage in self._storages.items() if not self.before else ():
            key = [storage.column(self._described[name]["key"][0])]
            there = reader.table(storage.name, epoch, None, key, with_slots=True)
            if there.num_rows:
                slots = there.column(SLOT).combine_chunks()
                alive = pa.repeat(pa.scalar(False), len(slots))
                found[storage.name] = pa.RecordBatch.from_arrays([slots, alive], [SLOT, ALIVE])
        return found

    def _declared(self, epoch: int, counting: _Counting) -> dict[str, Any]:
        """The declarations from the next epoch on, and all before them."""
        before = {name: one for name, one in self._manifest.items() if name != "past"}
        tables = {
            name: {**describe_table(table), **self._storages[name].describe(name)}
            for name, table in self._tables.items()
        }
        # Stores of before that was noted have loaded what they have rows of.
        loaded = {self._storages[name].name: 0 for name in counting.rows if counting.rows[name]}
        found = {
            "loaded": loaded, **before, "format": FORMAT, "tables": tables, "since": epoch + 1,
            "past": [*self._manifest.get("past", ()), before], SHARDS: self._count,
        }  # fmt: skip
        return found if self._count else {k: one for k, one in found.items() if k != SHARDS}

    def _said(
        self, epoch: int, counting: _Counting | None = None, *, is_applied: bool = False
    ) -> Resharded:
        if counting is None:
            return Resharded(self._path, self.before, self._count, epoch)
        owners = (owner_of(name, self._described) for name in self._tables)
        tables = tuple(map(counting.table, self._tables.values(), owners))
        given = (self._path, self.before, self._count, epoch, tables, counting.bytes)
        return Resharded(*given, is_applied=is_applied)


def _placed_anew(table: Table, asked: Mapping[str, tuple[str, ...] | None]) -> Table:
    """The table with the place that was asked for; what is none is refused as in a program."""
    if table.name not in asked:
        return table
    columns, described = asked[table.name], describe_table(table)
    given = {"shard_by": columns or (), "replicate": columns is None}
    return declared_table(table.name, {**described, **given})


def _sweep(store: Store, epoch: int) -> None:
    """Remove the parts of later epochs: of a change that was interrupted, or of late tasks."""
    for other in part_epochs(store.disk, store.path):
        if other > epoch:
            remove_others(store.disk, store.path, other, frozenset())


def _pieces(
    reader: StoreReader, epoch: int, manifest: Mapping[str, Any]
) -> Iterator[tuple[str, pa.Table]]:
    """All rows of a store in shards at an epoch, shard by shard, as the manifest declares them."""
    described: Mapping[str, Any] = manifest["tables"]
    known, keys = reader.parts(epoch), {name: one["key"] for name, one in described.items()}
    for part in range((shard_count(manifest) or 0) + 1):
        for name, rows in part_rows(reader, known.history(part), part, keys).items():
            if part in parts_of(manifest, name):
                storage = in_parts(Storage.read(name, described[name]))
                yield name, storage.from_files(rows, Schema.parse(described[name]["columns"]))


def rewritten(
    store: Store, epoch: int, tables: Mapping[str, Table], convert: Callable[[Contents], None]
) -> dict[str, Any]:
    """All rows of a store in shards as a migration converts them, written anew as the images of
    its next epoch; what that epoch's record is to say of them."""
    refuse_unfit(tables, "put the store back into one process first")
    _sweep(store, epoch)
    reader = StoreReader.open(store.path, store.disk)
    placement = Placement(tables, shard_count(store.manifest) or 0)
    target = _IntoParts(store.disk, store.path, store.lineage, epoch + 1, placement)
    for name, rows in _pieces(reader, epoch, store.manifest):
        contents = {name: rows.add_column(0, SLOT, pa.array(np.arange(rows.num_rows)))}
        convert(contents)  # it is row by row: what is in other pieces does not matter
        for new_name, found in contents.items():
            given = Storage(new_name).from_files(found, tables[new_name].schema)
            target.add(tables[new_name], given, shards_of(placement, tables[new_name], given))
    return {**target.finished(), **reader.parts(epoch).renewed(epoch + 1, target.images())}


class _Counting:
    """How many rows go where, and how many bytes they have."""

    def __init__(self, placement: Placement | None) -> None:
        self.placement = placement
        self.rows: dict[str, int] = {}
        self._by_shard: dict[str, np.ndarray] = {}
        self.bytes = 0

    def add(self, table: Table, rows: pa.Table) -> np.ndarray:
        """Count some rows; returns the shard of each, or nothing where there are none."""
        self.rows[table.name] = self.rows.get(table.name, 0) + rows.num_rows
        self.bytes += rows.nbytes
        if self.placement is None:
            return np.zeros(0, np.int64)
        shards = shards_of(self.placement, table, rows)
        if table.name not in self.placement.replicated:
            more = np.bincount(shards, minlength=self.placement.count)
            self._by_shard[table.name] = self._by_shard.get(table.name, 0) + more
        return shards

    def table(self, table: Table, owner: str) -> PlacedTable:
        rows = self.rows.get(table.name, 0)
        if self.placement is None:
            return PlacedTable(table.name, rows, "", rows, rows)
        nothing = np.array([rows if table.name in self.placement.replicated else 0])
        counts = self._by_shard.get(table.name, nothing)
        placed = placing(table) if owner == table.name else f"beside {owner}"
        return PlacedTable(table.name, rows, placed, int(counts.min()), int(counts.max()))


class _IntoParts:
    """Rows as images of the shards that they belong to; nothing counts before a record does."""

    def __init__(
        self, disk: Disk, path: str, lineage: Lineage, epoch: int, placement: Placement
    ) -> None:
        self._store, self._epoch, self._placement = (disk, path, lineage), epoch, placement
        self._waiting: dict[int, dict[str, list[pa.Table]]] = {}
        self._bytes = self._files = 0
        self._images: dict[int, list[NewPart]] = {}
        self._run = f"{disk.token():016x}"
        make_epoch_folder(disk, path, epoch)

    def add(self, table: Table, rows: pa.Table, shards: np.ndarray) -> None:
        order = np.argsort(shards, kind="stable")
        found, starts = np.unique(shards[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)][: len(found)]  # of a table that had rows, none
        for shard, first, last in zip(found.tolist(), starts.tolist(), ends, strict=True):
            mine = rows.take(pa.array(order[first:last]))
            part = self._waiting.setdefault(self._placement.part(shard), {})
            part.setdefault(table.name, []).append(mine)
        self._bytes += rows.nbytes
        if self._bytes > WAITING_BYTES_MAX:
            self._write()

    def _write(self) -> None:
        disk, path, lineage = self._store
        for part, waiting in sorted(self._waiting.items()):
            tables = {name: pa.concat_tables(rows) for name, rows in waiting.items()}
            name = write_part(
                disk, path, lineage, self._epoch,
                f"{part:05d}-{self._run}-{self._epoch}-{self._files}-reshard.part",
                {f"{ROWS}/{part}/{table}": rows for table, rows in tables.items()},
                {"shard": part},
            )  # fmt: skip
            grown = {part: {table: rows.num_rows for table, rows in tables.items()}}
            self._images.setdefault(part, []).append(NewPart(name, grown))
            self._files += 1
        self._waiting, self._bytes = {}, 0

    def finished(self) -> dict[str, Any]:
        self._write()
        return {}

    def images(self) -> Mapping[int, list[NewPart]]:
        return self._images


class _IntoLog:
    """Rows as the changes of one epoch, in slots from the first on: those before are all free."""

    def __init__(self, storages: Mapping[str, Storage]) -> None:
        self._storages = storages
        self._next: dict[str, int] = {}
        self._batches: dict[str, list[pa.RecordBatch]] = {}

    def add(self, table: Table, rows: pa.Table, shards: np.ndarray) -> None:
        storage = self._storages[table.name]
        for piece in rows.to_batches(max_chunksize=BATCH_ROWS_MAX):
            first = self._next.get(table.name, 0)
            last = self._next[table.name] = first + piece.num_rows
            slots, alive = pa.array(np.arange(first, last)), np.ones(last - first, np.bool_)
            given = storage.to_files(piece)
            batch = pa.RecordBatch.from_arrays(
                [slots, pa.array(alive), *given.columns], [SLOT, ALIVE, *given.schema.names]
            )
            self._batches.setdefault(storage.name, []).append(batch)

    def finished(self) -> dict[str, Any]:
        return {name: tuple(batches) for name, batches in self._batches.items()}

    def images(self) -> Mapping[int, list[NewPart]]:
        return {}
