"""Runs: one execution of a batch: its arrays, which kernels and the interpreter share.

Kernels take addresses. Every array they are given is held here for as long as they may use it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.compiling.signature import Signature
from headgate.execution.interpreter import error_reason, has_lost_its_error
from headgate.execution.shared_batch import SharedBatch
from headgate.execution.spans import Reach, Spans, kept_indexes
from headgate.kernels.frame import ABORTED_COUNT, Frame, column_addresses
from headgate.kernels.generating_look_ups import (
    ACCESS_WORDS,
    FIRST_ACCESS,
    SLOTS_USED,
    UNDO_SLACK,
    NoRoom,
    is_found_late,
)
from headgate.kernels.serial import BLOCK_EVENTS
from headgate.state.columns import StoredColumn
from headgate.state.integrity import kept_arrays
from headgate.state.layout import Layout
from headgate.state.spaces import EventRows, Slots
from headgate.state.table import Access, Table
from headgate.state.version_rows import Trail, VersionRows, trail_of

if TYPE_CHECKING:
    from headgate.execution.expiring import Expiring
    from headgate.execution.program import Program

COMMITTED, ABORTED, REJECTED, LATE = 0, 1, 2, 3
OUTCOMES = ("committed", "aborted", "rejected", "late")


@dataclass
class Work:
    """One transaction's part of a batch: its event columns, its slots and its output records."""

    signature: Signature
    columns: Mapping[str, StoredColumn]
    skip: np.ndarray  # by event row: 1 where the event is not for this transaction
    spans: list[Spans] = field(default_factory=list)  # by access: whose slots are whose
    slots: list[Slots] = field(default_factory=list)  # by access
    out: np.ndarray | None = None  # words of the output x positions
    out_layout: Layout | None = None
    after: list[np.ndarray | None] = field(default_factory=list)  # by access, see Run._make_after
    changes: list[tuple[str, int]] = field(default_factory=list)  # of interpreted events
    touched: list[tuple[str, int]] = field(default_factory=list)  # by the last interpreted event
    reaches: dict[int, Reach] = field(default_factory=dict)  # by access that is a moving range

    def key_columns(self, access: Access) -> list[StoredColumn]:
        return [self.columns[name] for name in access.columns]

    def slots_of(self, row: int) -> list[Slots]:
        """The slots of one event, an array for each access."""
        found = [
            self.reaches[place].find(row) if place in self.reaches else slots[spans.of(row)]
            for place, (spans, slots) in enumerate(zip(self.spans, self.slots, strict=True))
        ]
        self.make_room()
        return found

    def make_room(self) -> None:
        """As much room for what follows a range, and for rows as they were left, as for slots."""
        for place in range(len(self.spans) if self.reaches else 0):
            reach = self.reaches.get(self.signature.root_of(place))
            if reach is not None:
                if place not in self.reaches and len(self.slots[place]) < len(reach.slots):
                    self.slots[place] = np.full(len(reach.slots), -1)
                self.after[place] = reach.roomy(self.after[place])

    def note_change(self, table: str, slot: int) -> None:
        self.changes.append((table, int(slot)))


class Run:
    """One execution of a batch: the arrays the kernel shares with the interpreter."""

    def __init__(
        self,
        program: Program,
        works: Sequence[Work],
        order: EventRows,
        route: np.ndarray,
        epoch: int,
        is_part: bool = False,
        whole: Run | None = None,
        expiring: Expiring | None = None,
    ) -> None:
        self.program, self.works = program, works
        self.is_part = is_part  # of a batch whose other part runs at the same time
        self.whole = whole  # the batch of which this is a part, or a section
        self.expiring = expiring  # what goes in it, where rows may
        self.order = np.ascontiguousarray(order, np.int64)
        self.route = np.ascontiguousarray(route, np.int64)
        self.epoch = epoch
        self.outcome = np.empty(len(order), np.int8)
        self.reason = np.empty(len(order), np.int64)
        self.aborted = np.empty(len(order) + 1, np.int64)  # positions, as the loop finds them
        names = program.kernel.tables if program.kernel is not None else ()
        self.table_names = [table.name for table in names]
        self.counts = np.zeros(2 * len(names) + 1, np.int64)
        kept_arrays(program.constraints, program.tables)  # made while no row is half changed
        running = np.bincount(self.route[self.order]) if program.moving else np.empty(0, np.int64)
        looking = [works[number].signature for number in np.flatnonzero(running).tolist()]
        self.indexes = kept_indexes(program.moving, program.tables, looking)
        self._is_told = False  # the indexes were, of all that changed
        self.trails = [self._trail(table) for table in program.trailed]
        if expiring is not None:
            expiring.begin(self)
        for work in works:
            self._make_output(work)
            self._make_after(work)
        self.progress = np.zeros(1, np.int64) if is_part else program.progress
        self.arrays = self._arrays() if program.kernel is not None else {}

    @cached_property
    def frame(self) -> Frame:
        """What the kernels of the program take."""
        return Frame.fill(self.program.compiled_kernel.layout, self.arrays)

    @property
    def _loop_frame(self) -> Frame:
        """The same for the serial loop."""
        shares_slots = (self.is_part or self.program.is_dynamic) and self.whole is not None
        return self._own_frame if shares_slots else self.frame

    @cached_property
    def _own_frame(self) -> Frame:
        """The same for the serial loop over a part, with slots of its own: the loop keeps those of
        one block of events at a time, and those of the batch are in use by the other part."""
        works = self.works[: self.program.compiled_count]
        accesses = [access for work in works for access in work.signature.accesses]
        own = {
            f"slots_{place}": np.empty(BLOCK_EVENTS, np.int64)
            for place, access in enumerate(accesses)
            if access.is_single and is_found_late(access)
        }
        return self.frame.but(own)

    def _trail(self, table: Table) -> Trail:
        """The trail of a table, with room for the versions that the batch makes, as far as the
        number of them is known: a step that finds too little says so."""
        found = trail_of(self.program.tables, table).ready()
        if table in self.program.kept and self.whole is None and not self.is_part:
            accesses = [
                (access, spans)
                for work in self.works
                for access, spans in zip(work.signature.accesses, work.spans, strict=True)
            ]
            totals = (spans.total for access, spans in accesses if access.table == table)
            found.begin(min(sum(totals), len(self.order) * len(accesses)))
        return found

    def _make_output(self, work: Work) -> None:
        work.out_layout = work.signature.out_layout
        if work.out_layout is not None:
            make = np.empty if work.signature.compiled else np.zeros  # the kernel clears as it goes
            work.out = make((work.out_layout.words, len(self.order)), np.int64)

    def _make_after(self, work: Work) -> None:
        """Room for the rows of every event as it leaves them, laid out as the slots are."""
        if self.whole is not None:
            return  # there is room for all events of the batch
        accesses = zip(work.signature.accesses, work.slots, strict=True)
        tables = self.program.tables
        work.after = [
            None if access.read_only or not self.program.updates
            else np.zeros((len(slots), tables[access.table.name].layout.words), np.int64)
            for access, slots in accesses
        ]  # fmt: skip

    def _arrays(self) -> dict[str, Any]:
        """The arrays of the kernel, by the names it was generated with."""
        arrays: dict[str, Any] = {
            "order": self.order, "route": self.route, "reason": self.reason,
            "progress": self.progress, "counts": self.counts, "undo": self._undo(),
            "aborted": self.aborted, "aborted_count": 0,
            "epoch": self.epoch, "count": len(self.order), "table_count": len(self.table_names),
            "texts": self.program.texts,
        }  # fmt: skip
        place = 0
        for number, work in enumerate(self.works[: self.program.compiled_count]):
            arrays[f"columns_{number}"] = column_addresses(work.signature.places, work.columns)
            if work.out is not None:
                arrays[f"out_{number}"] = work.out
            for spans, slots, after in zip(work.spans, work.slots, work.after, strict=True):
                arrays[f"slots_{place}"] = slots
                if after is not None:
                    arrays[f"after_{place}"] = after
                if spans.offsets is not None:
                    arrays[f"offsets_{place}"] = spans.offsets
                place += 1
        for number, name in enumerate(self.table_names):
            rows = self.program.tables[name]
            arrays[f"words_{number}"] = rows.words
            arrays[f"entries_{number}"] = rows.entries
            arrays[f"mask_{number}"] = len(rows.entries) - 1
            arrays[f"defaults_{number}"] = rows.defaults
            room = self.touched(name)
            arrays[f"changed_{number}"] = (
                np.empty(room + 1, np.int64) if self.is_part
                else self.program.scratch_changed(name, room + 1)
            )  # fmt: skip
            arrays[f"images_{number}"] = 0
            if self.program.is_dynamic:
                arrays[f"spare_{number}"] = rows.spare
                arrays[f"used_{number}"] = rows.spare_used
                arrays[f"stamps_{number}"] = self.program.scratch_stamps(name, len(rows.words))
        if self.program.kernel is not None and self.program.kernel.constraints:
            arrays.update(kept_arrays(self.program.kernel.constraints, self.program.tables))
        if self.indexes:
            arrays.update(self._range_arrays(arrays["undo"]))
        for number, trail in enumerate(self.trails):
            arrays[f"trail_{number}"] = trail.words
        if self.expiring is not None:
            arrays["wakes_0"], arrays["moments_0"] = self.expiring.wakes, self.expiring.moments
        return arrays

    def _range_arrays(self, undo: np.ndarray) -> dict[str, Any]:
        """What ranges need that are looked up event by event, and the indexes they look into."""
        arrays: dict[str, Any] = {}
        for number, kept in enumerate(self.indexes):
            arrays[f"tree_{number}"] = kept.index.bind()
            arrays[f"waiting_{number}"] = kept.waiting
        rooms, place = [len(undo)], 0
        for work in self.works[: self.program.compiled_count]:
            for number in range(len(work.spans)):
                reach = work.reaches.get(number)
                rooms += [0] * ACCESS_WORDS if reach is None else reach.rooms()
                if reach is not None:
                    work.slots[number] = reach.slots
                arrays[f"slots_{place}"] = work.slots[number]
                if work.after[number] is not None:
                    arrays[f"after_{place}"] = work.after[number]
                place += 1
        arrays["rooms_0"] = np.array(rooms, np.int64)
        return arrays

    def _make_room(self, position: int) -> None:
        """More room for the event at a position, whose step found too little."""
        row = int(self.order[position])
        work = self.works[int(self.route[row])]
        rows = words = 0
        for trail in self.trails:
            trail.make_room(sum(spans.of(row).stop - spans.of(row).start for spans in work.spans))
        if not self.indexes:
            return
        for access, spans in zip(work.signature.accesses, work.spans, strict=True):
            found = spans.of(row)
            rows += found.stop - found.start
            width = self.program.tables[access.table.name].layout.words
            words += (found.stop - found.start) * width
        for reach in work.reaches.values():
            reach.make_room(reach.spans.of(row).stop)
        if words + UNDO_SLACK > len(self.arrays["undo"]):
            self.arrays["undo"] = self.program.scratch_undo(words + UNDO_SLACK)
        for kept in self.indexes:
            kept.make_room(rows)
        self._refill()

    def _refill(self) -> None:
        """A frame of the arrays as they are now, which goes on where the one before was."""
        rooms, at = self.arrays["rooms_0"], FIRST_ACCESS
        for work in self.works[: self.program.compiled_count]:
            for number in range(len(work.spans)):
                reach = work.reaches.get(number)
                if reach is not None:
                    reach.used = max(reach.used, int(rooms[at + SLOTS_USED]))
                at += ACCESS_WORDS
        for work in self.works:
            work.make_room()
        self.arrays.update(self._range_arrays(self.arrays["undo"]))
        frame = Frame.fill(self.program.compiled_kernel.layout, self.arrays, self.frame)
        frame.words[ABORTED_COUNT] = self.frame.words[ABORTED_COUNT]
        self.frame = frame
        if self.expiring is not None:
            self.expiring.refresh()

    def operations_max(self) -> int:
        """At most this many operations are in the batch."""
        return sum(self._touches.values()) + 1

    def dynamic_count(self) -> int:
        """How many rows of the batch have keys that depend on other rows."""
        each = [sum(one.is_dynamic for one in work.signature.accesses) for work in self.works]
        return int(np.array(each)[self.route[self.order]].sum())

    def touched(self, table: str) -> int:
        """At most this many rows of the table can change in the batch."""
        if any(one.table == table for one in self.program.moving):
            return self.program.tables[table].count  # each is noted once
        return min(self._touches[table], self.program.tables[table].count)

    @cached_property
    def _touches(self) -> Counter[str]:
        """By table: how many rows the events name, were each one for every transaction."""
        found: Counter[str] = Counter()
        for work in self.works:
            is_whole = len(self.order) == len(work.skip)
            for access, spans in zip(work.signature.accesses, work.spans, strict=True):
                found[access.table.name] += spans.total if is_whole else spans.count(self.order)
        return found

    @cached_property
    def beside_slots(self) -> list[Slots]:
        """Two arrays of the size of each access's slots, for whoever plans sections of a batch."""
        slots = [
            found for work in self.works[: self.program.compiled_count] for found in work.slots
        ]
        return [make(len(found), np.int64) for found in slots for make in (np.empty, np.zeros)]

    def _undo(self) -> np.ndarray:
        """Room for the rows one event may change."""
        words = 0
        for work in self.works:
            need = 0
            for access, spans in zip(work.signature.accesses, work.spans, strict=True):
                need += spans.most * self.program.tables[access.table.name].layout.words
            words = max(words, need + work.signature.key_room)
        return np.empty(words + 1, np.int64) if self.is_part else self.program.scratch_undo(words)

    def shared(self) -> SharedBatch:
        """The batch as threads share it."""
        spans = [one for work in self.works for one in work.spans if one.offsets is not None]
        return SharedBatch(
            self.program.compiled_kernel.layout,
            self.frame.words,
            len(self.order),
            [self.program.tables[name] for name in self.table_names],
            [self.arrays[f"changed_{n}"][: self.touched(name)]
             for n, name in enumerate(self.table_names)],
            self.counts,
            len(self.arrays["undo"]),
            max(sum(one.offsets is None for one in work.spans) for work in self.works),
            [one.lengths for one in spans],
            self.order,
        )  # fmt: skip

    def all(self) -> None:
        """Run the batch in its order, one event after another."""
        self.reason.fill(0)  # by the serial loop, only what did not commit gets one
        if self.expiring is not None:
            self.expiring.all()
        else:
            self._all()
        self._is_told = self.whole is None

    def _all(self) -> None:
        begin = 0
        for stop in self._interpreted_positions:
            self._compiled(begin, stop)
            self._interpreted(stop)
            begin = stop + 1
        self._compiled(begin, len(self.order))

    def some(self, begin: int, end: int) -> int:
        """Run positions from `begin` on, to `end` or to where a row expires; returns the next."""
        place = bisect.bisect_left(self._interpreted_positions, begin)
        stop = [*self._interpreted_positions[place : place + 1], end][0]
        if stop > begin:
            return self._compiled(begin, min(stop, end))
        self._interpreted(begin)
        return begin + 1

    @cached_property
    def _interpreted_positions(self) -> list[int]:
        if self.program.compiled_count == len(self.program.signatures):
            return []
        routed = self.route[self.order] >= self.program.compiled_count
        return [int(place) for place in np.flatnonzero(routed)]

    def _compiled(self, begin: int, end: int) -> int:
        """Run positions begin..end; an event that raises is undone, and the rest goes on.

        Returns the position after the last one: less than `end` where a row expires before.
        """
        kernel = self.program.kernel
        while begin < end and kernel is not None:
            self.progress[0] = -1
            try:
                loop = kernel.run if self.expiring is None else kernel.run_until
                reached = loop(begin, end, self.epoch, self._loop_frame.address)
                reached = end if loop is kernel.run else int(reached)
                self._note_outcomes(begin, reached)
                return reached
            except NoRoom:
                position = int(self.progress[0])
                self._note_outcomes(begin, position)
                self._make_room(position)
                begin = position
            except Exception as error:
                position = int(self.progress[0])
                if position < 0:  # it did not come to run: the kernel itself did not compile
                    raise
                place = (position - begin) % BLOCK_EVENTS
                kernel.restore(position, place, self._loop_frame.address)
                self._note_outcomes(begin, position)
                if has_lost_its_error(error):
                    kernel.resolve(position, position + 1, self.frame.address)
                    self._interpreted(position)
                else:
                    self._abort(position, error_reason(error))
                begin = position + 1
        return begin

    def _note_outcomes(self, begin: int, end: int) -> None:
        np.not_equal(self.reason[begin:end], 0, out=self.outcome[begin:end].view(np.bool_))

    def _interpreted(self, position: int) -> None:
        row = int(self.order[position])
        number = int(self.route[row])
        interpreter = self.program.interpreters[number]
        for kept in self.indexes:
            kept.settle()
        if self.indexes and self.arrays:
            self._refill()  # it has the slots behind those that the kernel has used
        reason = interpreter.run(self.works[number], row, position, self.epoch)
        if self.indexes:
            self._bring(self.works[number], is_committed=reason is None)
        if self.expiring is not None and reason is None:
            self.expiring.note_touched(self.works[number].touched)
        if reason is None:
            self.outcome[position], self.reason[position] = COMMITTED, 0
        else:
            self._abort(position, reason)

    def _bring(self, work: Work, *, is_committed: bool) -> None:
        """Keep the indexes in step with what the interpreter changed."""
        for kept in self.indexes if is_committed else ():
            table = kept.index.index.table
            slots = [slot for name, slot in work.touched if name == table]
            if slots and kept.is_asked:
                kept.index.bring_all(np.array(slots, np.int64))
        if self.arrays:
            self._refill()

    def _abort(self, position: int, reason: str) -> None:
        self.outcome[position] = ABORTED
        with self.program.lock:
            self.reason[position] = self.program.pool.intern(pa.array([reason]))[0]

    def changed(self) -> dict[str, Slots]:
        found: dict[str, Slots] = {}
        for number, name in enumerate(self.table_names):
            count = int(self.counts[2 * number])
            found[name] = self.arrays[f"changed_{number}"][:count].copy()
        extra: dict[str, list[int]] = {}
        for work in self.works:
            for name, slot in work.changes:
                extra.setdefault(name, []).append(slot)
        for trail in self.trails:
            if trail.rows.table in self.program.kept:
                found[trail.versions.table.name] = trail.changed()
        nothing = np.empty(0, np.int64)
        for more in (extra, self.removed):
            for name, slots in more.items():
                found[name] = np.concatenate([found.get(name, nothing), np.array(slots, np.int64)])
        for kept in self.indexes if self._is_told else ():
            kept.tell(found.get(kept.index.index.table))
        return {name: slots for name, slots in found.items() if len(slots)}

    @property
    def removed(self) -> Mapping[str, Slots]:
        """By table: rows that expired, those that no event had changed before."""
        return {} if self.expiring is None else self.expiring.removed

    def release(self, changed: Mapping[str, Slots]) -> None:
        """Free the slots of rows that the batch deleted or never came to create."""
        nothing = np.empty(0, np.int64)
        for name, rows in self.program.tables.items():
            if rows.taken or len(rows.spare) or self._has_deleted(name):
                rows.release(changed.get(name, nothing))

    def _has_deleted(self, name: str) -> bool:
        is_gone = self.expiring is not None and self.expiring.has_removed(name)
        if is_gone or any(work.changes for work in self.works):
            return True
        if isinstance(self.program.tables[name], VersionRows):
            return any(trail.versions.table.name == name for trail in self.trails)
        if name not in self.table_names:
            return False
        return bool(self.counts[2 * self.table_names.index(name) + 1])
