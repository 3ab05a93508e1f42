"""Shares: the part of a batch that one task runs, wherever that is, and what it hands back.

A share of a shard brings the shard's rows to the epoch before, hands out the rows that events of
other shards need, runs its own events in their order, and writes what they changed as a part. A
visiting share has no shard: it is given rows of several, runs the events that need them together,
and writes what they changed, for each shard its own. The code is the engine's: the same arranger,
programs, kernels and results. Invariant: a share changes nothing but files of its own name; run
again, or twice at once, it gives the same.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.compiling.cache import fingerprint, signature_form
from headgate.durability.lineage import Lineage
from headgate.durability.named_parts import PartHistory
from headgate.durability.part_file import PartName, write_part, write_part_as_made
from headgate.engine.ordering import arranger_of
from headgate.engine.results import build_results
from headgate.engine.routing import Route
from headgate.engine.terms import Terms
from headgate.errors import HeadgateError, InputError, StoreError
from headgate.execution.expiring import Expiring
from headgate.execution.program import Program
from headgate.io import Disk, RealDisk
from headgate.parallel.scheme import SERIAL
from headgate.shards.changes import ShardChanges, alive_of, dealt_rows
from headgate.shards.placement import Placement
from headgate.shards.warm import (
    ROWS,
    Brought,
    Held,
    HeldShards,
    ShardRows,
    Source,
    Tentative,
    bring,
    size_of,
)
from headgate.shards.warm_files import WarmFiles
from headgate.state.due_rows import due_rows
from headgate.state.fitting import one_array
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots
from headgate.state.table import Table
from headgate.transactions import Transaction

EVENTS = "events"
ROUTE = "\0route"  # a column of events: the transaction of each, where ticks are among them
MOMENT = "\0moment"  # a column of events: how late it is when each of them runs
WANTED = "wanted"
RESULTS = "results"
WHOLE = -1  # as the shard of a share: all of them, for a batch in the driver
# An image is written when what there is to read behind the last one has grown beyond this, and
# beyond the rows themselves: then a copy that is rebuilt reads each row about twice. A file takes
# as long to open as so many bytes to read: so small parts, as calls make them, do not pile up.
IMAGE_BYTES_MIN = 1 << 22
PART_BYTES = 1 << 16
WHOLE_IMAGE_SHARE = 4  # by how much later an image is due while batches run in the driver


class ShardCode(NamedTuple):
    """What a program declares, as it goes to other processes."""

    tables: Mapping[str, Table]
    transactions: Mapping[str, Transaction]
    shards: int

    @property
    def placement(self) -> Placement:
        return Placement(self.tables, self.shards)

    @property
    def mark(self) -> str:
        """A digest of the code and of all that runs it; the same in every process, or refused."""
        signatures = [one.signature for one in self.transactions.values()]
        declared = tuple(signature_form(one) for one in signatures)
        mark = fingerprint(declared, tuple(one.function for one in signatures), self.shards)
        return mark or f"{platform.python_version()} {sys.version}"


class StreamWords(NamedTuple):
    """What was said of the stream of a batch, as far as those who run it must know."""

    transactions: tuple[str, ...]
    values: tuple[tuple[Any, str], ...]
    column: str | None
    updates: bool
    ticks: int = 0  # so many of the transactions, the last ones, run as time passes

    @classmethod
    def of(cls, terms: Terms) -> StreamWords:
        route = terms.route
        names = tuple(one.name for one in route.transactions)
        values = tuple((value, one.name) for value, one in route.values)
        return cls(names, values, route.column, terms.updates, len(route.ticks))

    def terms(self, known: Mapping[str, Transaction]) -> Terms:
        """Terms under which events run in the order in which they come."""
        values = tuple((value, known[name]) for value, name in self.values)
        transactions = tuple(known[name] for name in self.transactions)
        ticks = transactions[len(transactions) - self.ticks :]
        route = Route(transactions, values, self.column, ticks)
        return Terms(route, (), None, "reject", None, SERIAL, updates=self.updates)


class Timing(NamedTuple):
    """How late it is for rows that expire, in a batch whose events name tables of such."""

    floors: Mapping[str, int]  # by table, before the batch
    horizon: int | None  # behind it


@dataclass(frozen=True)
class BatchShare:
    """What one task is to do for an epoch."""

    path: str
    lineage: Lineage
    epoch: int
    run: str  # of the process that commits
    number: int  # among the shares of the epoch
    mark: str  # of the code
    shard: int | None  # or WHOLE; None: a visiting share
    histories: Mapping[int, PartHistory] = field(default_factory=dict)
    words: StreamWords | None = None
    given: PartName | None = None  # its events, and the keys of rows that others want
    rows: tuple[PartName, ...] = ()  # of a visiting share: where its rows are
    timing: Timing | None = None


@dataclass(frozen=True)
class ShareReport:
    """What a task did."""

    number: int
    part: PartName | None = None  # what its events changed, if anything
    results: PartName | None = None  # what became of its events
    table: pa.Table | None = None  # the same, of a share in the driver
    grown: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    wanted: Mapping[int, PartName] = field(default_factory=dict)  # by visiting share: its rows
    images: Mapping[int, PartName] = field(default_factory=dict)  # by part of rows
    expired: Mapping[str, int] = field(default_factory=dict)  # by table
    overdue: Mapping[str, int] = field(default_factory=dict)
    next_due: Mapping[str, int] = field(default_factory=dict)  # by table that has a time: when
    how: str = ""
    events: int = 0
    seconds: float = 0.0  # that its events took
    bringing: float = 0.0  # and before them, to have the rows of the epoch before
    place: str = ""
    error: HeadgateError | None = None


class ShareWorker:
    """A process that runs shares: its code, its disk and the shards that it holds."""

    def __init__(
        self, code: ShardCode, disk: Disk | None = None, files: WarmFiles | None = None
    ) -> None:
        self.code, self._files = code, files
        self.disk: Disk = disk if disk is not None else RealDisk()
        self.held = HeldShards()
        self.placement = code.placement
        self._terms: dict[str, Terms] = {}

    @cached_property
    def mark(self) -> str:
        return self.code.mark

    @cached_property
    def _visitor(self) -> ShardRows:
        return ShardRows(self.code.tables, self.code.transactions.values())

    def run(
        self, share: BatchShare, attempt: str, given: Mapping[str, pa.Table] | None = None
    ) -> ShareReport:
        """Do what a share says; what is wrong with it comes back in the report.

        Who is in the same process may hand over what is given itself.
        """
        try:
            self._check(share)
            if share.shard is None:
                return self._visit(share, attempt)
            return self._stay(share, share.shard, attempt, given)
        except HeadgateError as error:
            return ShareReport(share.number, error=error.with_traceback(None), place=here())

    def _check(self, share: BatchShare) -> None:
        """Refuse to run anything with other code, or where the store is not."""
        if self.mark != share.mark:
            raise StoreError(
                f"the executor at {here()} has another Python, another Headgate or other versions "
                "of the program's code than the driver: install the same on all of them "
                f"(Python {platform.python_version()} there), and open the store again"
            )
        folder = os.path.join(share.path, "parts")
        if not self.disk.exists(folder):
            raise InputError(
                f"the executor at {here()} does not see the store's folder {share.path}: put the "
                "store into a folder that the driver and all executors share under one path"
            )

    def rows_of(self, share: BatchShare) -> ShardRows:
        """The rows of a share's shard at the epoch before it, to be looked at."""
        return self._brought(share, share.shard or 0)[0]

    def _brought(self, share: BatchShare, shard: int) -> tuple[ShardRows, Brought]:
        """The rows of a shard, out of the hands of all others."""
        key = _key(share, shard)
        rows = self.held.take(key)
        if rows is None:
            rows = ShardRows(self.code.tables, self.code.transactions.values())
        elif self._files is not None:
            self._files.release(rows)
        source = Source(self.disk, share.path, share.lineage)
        restore = None if self._files is None else partial(self._files.restore, key)
        return rows, bring(rows, source, share.histories, restore)

    def _stay(
        self, share: BatchShare, shard: int, attempt: str, given: Mapping[str, pa.Table] | None
    ) -> ShareReport:
        began = time.perf_counter()
        rows, brought = self._brought(share, shard)
        bringing = time.perf_counter() - began
        source = Source(self.disk, share.path, share.lineage)
        task = Task(self, share, rows, attempt, source)
        images = task.images(shard)
        if given is None:
            given = source.read(share.given).tables if share.given is not None else {}
        wanted = task.hand_out(given)
        report = task.run_events(given.get(EVENTS))
        let_go = self.held.keep(_key(share, shard), rows)
        if self._files is not None:  # one that is older than the image is of no use
            is_now = bool(images) or brought.how == "rebuilt"
            self._files.keep(_key(share, shard), rows, share.path, now=is_now)
            self._files.finish(let_go)
            self._files.bound(self.held.held())
        return replace(report, wanted=wanted, images=images, how=brought.how, bringing=bringing)

    def whole(self, share: BatchShare) -> ShardRows:
        """The rows of all shards at the epoch before, for who runs a batch over them here."""
        rows, _ = self._brought(share, WHOLE)
        self.keep_whole(share, rows)
        return rows

    def take_whole(self, share: BatchShare) -> None:
        """They are about to change: until they are kept again nobody finds them."""
        self.held.take(_key(share, WHOLE))

    def keep_whole(self, share: BatchShare, rows: ShardRows) -> None:
        self.held.keep(_key(share, WHOLE), rows)

    def _visit(self, share: BatchShare, attempt: str) -> ShareReport:
        rows, source = self._visitor, Source(self.disk, share.path, share.lineage)
        rows.clear()
        for name in share.rows:
            for table, given in source.read(name).tables.items():
                rows.put(table, given, 0)
        task = Task(self, share, rows, attempt, source)
        given = source.read(share.given).tables if share.given is not None else {}
        report = task.run_events(given.get(EVENTS))
        rows.clear()
        rows.settle()
        return replace(report, how="visiting")

    def rest(self) -> None:
        """All shares of a task have run: what is to be written for later workers may be."""
        if self._files is not None:
            self._files.begin()

    def terms(self, words: StreamWords) -> Terms:
        """The terms of these words, made once."""
        key = repr(words)  # 1 and True are two values
        if key not in self._terms:
            self._terms[key] = words.terms(self.code.transactions)
        return self._terms[key]


# How the files of shares begin that have rows of many shards, by the shard of the share.
_OF_MANY = {None: "visit", WHOLE: "whole"}


def _is_of_many(name: PartName) -> bool:
    return os.path.basename(name.file).startswith(tuple(_OF_MANY.values()))


def _key(share: BatchShare, shard: int) -> Held:
    return (share.lineage.store, share.lineage.id, share.mark, shard)


class Task:
    """One share at work: where its rows are, and under which names it writes."""

    def __init__(
        self, worker: ShareWorker, share: BatchShare, rows: ShardRows, attempt: str, source: Source
    ) -> None:
        self._worker, self._share, self._rows = worker, share, rows
        self._source = source
        self._parts: dict[str, dict[int, Slots]] = {}  # of a share of all: live rows by table
        self._aside: dict[str, list[Slots]] = {}  # rows that others let go, by table
        whose = _OF_MANY.get(share.shard, f"{share.shard or 0:05d}")
        self._begin = f"{whose}-{share.run}-{share.epoch}-{share.number}-{attempt}"

    def _write(
        self, kind: str, tables: Mapping[str, pa.Table], *, is_kept: bool = True
    ) -> PartName:
        source, name = self._source, f"{self._begin}.{kind}"
        return write_part(
            source.disk, source.path, source.lineage, self._share.epoch, name, tables,
            {"shard": self._share.shard}, is_kept=is_kept,
        )  # fmt: skip

    def images(self, shard: int) -> dict[int, PartName]:
        """All rows as they are before the epoch, of the parts of rows where that is due.

        Of what all shards have, the first one sees to it. Of all shards in one place it is due at
        about the same time, and only executors that come later read it: there it is due later, and
        one an epoch is enough, so that no epoch waits for many.
        """
        if self._share.words is None:  # no epoch comes of it that could name them
            return {}
        parts = [part for part in self._share.histories if part == shard or shard <= 0]
        due = [part for part in parts if self._is_due(part)]
        if self._share.shard == WHOLE:
            due = sorted(due, key=self._behind, reverse=True)[:1]
        return {part: self._image(part) for part in due}

    def whole_images(self) -> dict[int, PartName]:
        """The same of a share of all shards."""
        return self.images(WHOLE)

    def _is_due(self, part: int) -> bool:
        behind, rows = self._behind(part), size_of(self._rows)
        if self._share.shard == WHOLE:
            rows = WHOLE_IMAGE_SHARE * rows // self._worker.placement.count
        return behind >= IMAGE_BYTES_MIN and behind >= rows

    def _behind(self, part: int) -> int:
        """About how much there is to read behind the last image of a part of rows."""
        return bytes_behind(self._share.histories[part], self._worker.placement.count)

    def _image(self, part: int) -> PartName:
        placement = self._worker.placement
        tables = {
            f"{ROWS}/{part}/{name}": pa.Table.from_batches([rows.arrow(self._of(part, rows))])
            for name, rows in self._rows.tables.items()
            if (name in placement.replicated) == (part == placement.everywhere) and len(rows)
        }
        return self._write(f"image-{part}.part", tables)

    def _of(self, part: int, rows: TableRows) -> Slots:
        """The live rows of a part of rows; a share of all shards has those of others, too."""
        if self._share.shard != WHOLE or part == self._worker.placement.everywhere:
            return alive_of(rows)
        name = rows.table.name
        if name not in self._parts:
            self._parts[name] = dealt_rows(rows, self._worker.placement, alive_of(rows))
        return self._parts[name].get(part, np.zeros(0, np.int64))

    def hand_out(self, given: Mapping[str, pa.Table]) -> dict[int, PartName]:
        """The rows that visiting shares want of this shard, by the number of the share."""
        found: dict[int, dict[str, pa.Table]] = {}
        for name, keys in given.items():
            kind, _, rest = name.partition("/")
            if kind == WANTED:
                number, _, table = rest.partition("/")
                slots = self._rows.there(table, keys)
                self._aside.setdefault(table, []).append(slots)
                self._give(found.setdefault(int(number), {}), table, slots)
        return {
            number: self._write(f"rows-{number}", tables, is_kept=False)
            for number, tables in found.items()
        }

    def _give(self, given: dict[str, pa.Table], table: str, slots: Slots) -> None:
        """Hand out rows, and their versions to events that look at them or add to them."""
        rows = self._rows.tables[table]
        given[table] = pa.Table.from_batches([rows.arrow(slots)])
        words = self._share.words
        if words is None or rows.table.history is None:
            return
        made = self._rows.made(self._worker.terms(words).route.transactions, updates=words.updates)
        if rows.table in made.program.trailed:
            name, versions = self._rows.versions(table, slots)
            given[name] = pa.Table.from_batches([self._rows.tables[name].arrow(versions)])

    def run_events(self, events: pa.Table | None) -> ShareReport:
        """Run the events in the order in which they are, and write what they changed."""
        share, words = self._share, self._share.words
        if events is None or words is None:
            return ShareReport(share.number, place=here())
        terms = self._worker.terms(words)
        executor = self._rows.executor(terms.route.transactions, updates=words.updates)
        program = executor.program
        began = time.perf_counter()
        route = one_array(events.column(ROUTE)).to_numpy() if words.ticks else None
        arranged = arranger_of(terms, program).arrange(events, None, route=route)
        expiring = self._expiring(program, events)
        program.resolve(arranged.works)
        execution = executor.execute(
            arranged.works, arranged.order, arranged.route, share.epoch, SERIAL, expiring=expiring
        )
        results, _ = build_results(terms, arranged, execution, program)
        seconds = time.perf_counter() - began
        table, told = pa.Table.from_batches([results]), None
        if share.shard != WHOLE:
            told = self._write("results", {RESULTS: table}, is_kept=False)
        part, grown = self.keep(execution.changed)
        due = {} if share.timing is None else self._next_due(program)
        self._rows.settle()
        return ShareReport(
            share.number, part, told, table if told is None else None, grown,
            expired=execution.expired, overdue=execution.overdue, next_due=due,
            events=events.num_rows, seconds=seconds, place=here(),
        )  # fmt: skip

    def keep(
        self, changed: Mapping[str, Slots]
    ) -> tuple[PartName | None, dict[int, dict[str, int]]]:
        """Write what a batch changed as a part; by part of rows, how much each has grown."""
        changes = ShardChanges(self._rows, self._worker.placement, changed)
        if changes.is_empty:
            return None, {}
        source = self._source
        part = write_part_as_made(
            source.disk, source.path, source.lineage, self._share.epoch, f"{self._begin}.part",
            changes.names(), changes.tables(), {"shard": self._share.shard},
        )  # fmt: skip
        self._rows.tentative = Tentative(part.file, frozenset(changes.grown))
        self._rows.behind += part.bytes
        return part, changes.grown

    def _expiring(self, program: Program, events: pa.Table) -> Expiring | None:
        """What may expire while these events run, each as late as it was among all of its batch."""
        timing = self._share.timing
        if timing is None:
            return None
        is_timed = MOMENT in events.column_names
        moments = one_array(events.column(MOMENT)).to_numpy() if is_timed else None
        aside = {name: np.concatenate(slots) for name, slots in self._aside.items()}
        given = program, timing.floors, moments, events.num_rows, timing.horizon
        found = Expiring(*given, aside)
        return None if found.is_quiet else found

    def _next_due(self, program: Program) -> dict[str, int]:
        """By table whose rows expire: when the next one does."""
        rows = self._rows.tables
        return {
            table.name: due_rows(rows[table.name], table.expires).first()
            for table in program.expiring
            if table.expires is not None
        }


def bytes_behind(history: PartHistory, shards: int) -> int:
    """About how much there is to read behind the image of a part of rows."""
    names = [name for link in history.links for name in link.parts]
    return sum(PART_BYTES + one.bytes // (shards if _is_of_many(one) else 1) for one in names)


def here() -> str:
    """This process, as a message names it."""
    return f"{socket.gethostname()}, process {os.getpid()}"
