"""The straight run: the serial loop over events that stand in their order, in columns as they came.

What a `Run` makes for each batch is kept here for the next one: the frame, the slots, the reasons,
the list of changed rows. Invariant: rows, outputs, reasons and changed slots are those that a `Run`
gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.execution.interpreter import error_reason, has_lost_its_error
from headgate.execution.program import Program
from headgate.execution.shared_batch import SharedBatch
from headgate.kernels.building import compile_first
from headgate.kernels.frame import ABORTED, ABORTED_COUNT, COUNT, EPOCH, REASON, ROUTE
from headgate.kernels.generating_look_ups import is_found_late
from headgate.kernels.pointers import address
from headgate.kernels.serial import BLOCK_EVENTS
from headgate.state.layout import HEADER_EPOCH_SHIFT
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots, Words
from headgate.state.table import Access

_FLAGS = (1 << HEADER_EPOCH_SHIFT) - 1  # what a header has beside its epoch
Interpret = Callable[[int], str | None]  # a position -> why its event did not commit
Share = Callable[[SharedBatch], bool]  # run by several threads; False when it was put back


@dataclass
class Given:
    """A batch as the kernel takes it: addresses, and the arrays that must live until it has run."""

    count: int
    columns: list[list[int]]  # by transaction: the addresses of its event columns
    out: list[int]  # by transaction: the address of its outputs
    route: np.ndarray | None = None  # by event row: the number of its transaction, if there are two
    spans: dict[int, np.ndarray] = field(default_factory=dict)  # by access of many rows: offsets
    # By access that creates: its keys, and 1 where an event is not its transaction's.
    keys: dict[int, tuple[Words, np.ndarray]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)


def is_straight(program: Program) -> bool:
    """Whether batches of a program can be run so."""
    accesses = [access for signature in program.signatures for access in signature.accesses]
    return (
        program.compiled_count == len(program.signatures) > 0
        and not program.constraints
        and not program.updates
        and not program.trailed
        and not program.sets_expiry
        and all(one.is_single or (is_found_late(one) and len(one.columns) == 1) for one in accesses)
    )


class StraightRun:
    """Runs the batches of one program, one at a time."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kernel = program.compiled_kernel
        self._places: Mapping[str, int] = self._kernel.layout.places
        self._tables = [program.tables[table.name] for table in self._kernel.tables]
        self._accesses: list[Access] = [
            access for signature in program.signatures for access in signature.accesses
        ]
        self._frame = np.zeros(self._kernel.layout.size, np.int64)
        self._address = address(self._frame)
        self._frame[self._places["texts"]] = program.texts
        self._kept: dict[str, np.ndarray] = {}  # arrays that the frame points to, by their names
        self._counts = self._keep("counts", np.zeros(2 * len(self._tables) + 1, np.int64))
        self._progress = self._keep("progress", np.zeros(1, np.int64))
        self._columns = [
            self._keep(f"columns_{number}", np.zeros(2 * len(signature.places) + 1, np.int64))
            for number, signature in enumerate(program.signatures)
        ]
        for place, access in enumerate(self._accesses):
            if access.is_single and is_found_late(access):
                self._keep(f"slots_{place}", np.zeros(BLOCK_EVENTS, np.int64))
        for number, rows in enumerate(self._tables):
            self._keep(f"defaults_{number}", rows.defaults)
        made = [one.table.name for one in self._accesses if one.is_dynamic and one.create]
        self._made = Counter(made)  # by table: how many rows an event may make by computed keys
        self._known: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(self._tables)
        self._slots: dict[int, np.ndarray] = {}  # by access, where several threads look them up
        self.reason = np.empty(0, np.int64)  # zeros, but for events that did not commit
        self._aborted = np.empty(0, np.int64)
        self.keeps: bool = False  # rows as they were before the batch that runs

    # --- a batch ------------------------------------------------------------------------------

    def begin(self, given: Given, epoch: int, *, keeps: bool = False) -> None:
        """Make ready for a batch, which `run` then runs, whole or section by section; with `keeps`
        rows that it changes are kept as they were."""
        frame, count = self._frame, given.count
        self.place_rows(given)
        self._reserve(given)
        if keeps or self.keeps:
            self._keep_images(keeps=keeps)
        for columns, found in zip(self._columns, given.columns, strict=True):
            columns[: len(found)] = found
        for number, out in enumerate(given.out):
            frame[self._places[f"out_{number}"]] = out
        frame[ROUTE] = 0 if given.route is None else address(given.route)
        frame[COUNT], frame[EPOCH], frame[ABORTED_COUNT] = count, epoch, 0
        self._counts.fill(0)

    def run(
        self, begin: int, end: int, interpret: Interpret, place: int | None = None
    ) -> np.ndarray:
        """Run the positions begin..end; returns those that did not commit, until the next batch.

        Their reasons are in `reason`, to be put back to zero. Where `look_ahead` has found their
        slots, `place` says where these stand.
        """
        frame, kernel = self._frame, self._kernel
        first, epoch = int(frame[ABORTED_COUNT]), int(frame[EPOCH])
        while begin < end:
            self._progress[0] = -1
            try:
                if place is None:
                    kernel.run(begin, end, epoch, self._address)
                else:
                    kernel.run_found(begin, end, place, epoch, self._address)
                break
            except Exception as error:
                after = self._go_on(begin, error, interpret, place)
                place = None if place is None else place + after - begin
                begin = after
        return self._aborted[first : frame[ABORTED_COUNT]]

    def make_room(self, slots: int) -> None:
        """Room for so many slots of each access that `look_ahead` finds."""
        for place, access in enumerate(self._accesses):
            if access.is_single and is_found_late(access):
                self._room(f"slots_{place}", slots)

    def compile_ahead(self) -> None:
        """Have the kernels of look-ups ahead: they are needed for long batches only."""
        compile_first(self._kernel.look_ahead)
        compile_first(self._kernel.run_found)

    def look_ahead(self, begin: int, end: int, place: int) -> None:
        """Find the slots of positions begin..end, as they are from `begin` of the batch to its
        end: another thread may do it while others run."""
        self._kernel.look_ahead(begin, end, place, self._address)

    @property
    def aborted(self) -> np.ndarray:
        """All positions that did not commit so far, until the next batch."""
        return self._aborted[: self._frame[ABORTED_COUNT]]

    def shared(self, given: Given, share: Share) -> np.ndarray | None:
        """Have several threads run the batch; as `run`, but None when it was put back."""
        if share(self._shared(given)):
            found: np.ndarray = np.flatnonzero(self.reason[: given.count])
            return found
        self.reason[: given.count] = 0
        return None

    def _shared(self, given: Given) -> SharedBatch:
        """The batch as threads share it: where the loop has slots for a block of events, they have
        them for all."""
        slots = {}
        for place, access in enumerate(self._accesses):
            if access.is_single and is_found_late(access):
                slots[f"slots_{place}"] = self._shared_slots(place, given.count)
        singles = [sum(one.is_single for one in mine.accesses) for mine in self._program.signatures]
        return SharedBatch(
            self._kernel.layout,
            self._frame,
            given.count,
            self._tables,
            [self._kept[f"changed_{number}"] for number in range(len(self._tables))],
            self._counts,
            len(self._kept["undo"]),
            max(singles),
            [np.diff(offsets) for offsets in given.spans.values()],
            words=slots,
        )

    def _shared_slots(self, place: int, count: int) -> np.ndarray:
        found = self._slots.get(place)
        if found is None or len(found) < count:
            found = self._slots[place] = np.empty(2 * count, np.int64)
        return found

    def _go_on(self, begin: int, error: Exception, interpret: Interpret, place: int | None) -> int:
        """Undo the event that raised and note why; returns the position after it."""
        position = int(self._progress[0])
        if position < 0:  # it did not come to run: the kernel itself did not compile
            raise error
        known = position - begin
        at = known % BLOCK_EVENTS if place is None else place + known
        self._kernel.restore(position, at, self._address)
        reason = interpret(position) if has_lost_its_error(error) else error_reason(error)
        if reason is not None:
            count = int(self._frame[ABORTED_COUNT])
            self.reason[position] = self._program.pool.intern(pa.array([reason]))[0]
            self._aborted[count], self._frame[ABORTED_COUNT] = position, count + 1
        return position + 1

    def operations(self, given: Given) -> int:
        """At most this many operations are in a batch."""
        many = sum(int(offsets[-1]) for offsets in given.spans.values())
        return many + given.count * (len(self._accesses) - len(given.spans)) + 1

    def changed(self) -> dict[str, Slots]:
        """The slots of the rows that the batch changed, by table; rows that are no more go."""
        found = {}
        for number, rows in enumerate(self._tables):
            count = int(self._counts[2 * number])
            slots = self._kept[f"changed_{number}"][:count]
            if count:
                found[rows.table.name] = slots.copy()
            if rows.taken or len(rows.spare) or self._counts[2 * number + 1]:
                rows.release(slots)
        return found

    def _keep_images(self, *, keeps: bool) -> None:
        """Have the kernel copy each row before its first change, or not."""
        self.keeps = keeps
        for number, rows in enumerate(self._tables):
            name = f"images_{number}"
            room = len(self._kept[f"changed_{number}"]) * rows.layout.words if keeps else 0
            if keeps and len(self._kept.get(name, ())) < room:
                self._kept[name] = np.empty(room, np.int64)
            self._frame[self._places[name]] = address(self._kept[name]) if keeps else 0

    def images(self) -> dict[str, Words]:
        """By table: the rows that the batch changed, as they were before; as `changed` lists
        them."""
        found = {}
        for number, rows in enumerate(self._tables):
            count, width = int(self._counts[2 * number]), rows.layout.words
            if count:
                words = self._kept[f"images_{number}"][: count * width]
                found[rows.table.name] = words.reshape(count, width).copy()
        return found

    def restamp(self, epoch: int) -> None:
        """Have the rows that the batch changed be of another epoch than it ran in."""
        for number, rows in enumerate(self._tables):
            slots = self._kept[f"changed_{number}"][: int(self._counts[2 * number])]
            if len(slots):
                restamp(rows, slots, epoch)

    def note_change(self, table: str, slot: int, before: Words | None) -> None:
        """A row that the interpreter changed, and what it was."""
        for number, rows in enumerate(self._tables):
            if rows.table.name == table:
                count, width = int(self._counts[2 * number]), rows.layout.words
                if self.keeps and before is not None:
                    self._kept[f"images_{number}"][count * width : (count + 1) * width] = before
                self._kept[f"changed_{number}"][count] = slot
                self._counts[2 * number] += 1
                self._counts[2 * number + 1] = 1  # it may be gone: to look is no harm

    # --- what is kept -------------------------------------------------------------------------

    def _keep(self, name: str, array: np.ndarray) -> np.ndarray:
        """Have the frame point to an array, which lives until another takes its place."""
        self._kept[name] = array
        self._frame[self._places[name]] = address(array)
        return array

    def _room(self, name: str, need: int) -> None:
        found = self._kept.get(name)
        if found is None or len(found) < need:
            self._keep(name, np.empty(need + need // 2 + 16, np.int64))

    def place_rows(self, given: Given) -> None:
        """Give rows that may be made their slots, and see where the tables are now: they move."""
        for place, (keys, skip) in given.keys.items():
            rows = self._program.tables[self._accesses[place].table.name]
            self._keep(f"slots_{place}", rows.find_or_take(keys, skip))
        for number, rows in enumerate(self._tables):
            if rows.table.name in self._program.made:
                rows.set_aside(given.count * self._made[rows.table.name])
                self._keep(f"spare_{number}", rows.spare)
                self._keep(f"used_{number}", rows.spare_used)
            known = self._known[number]
            if known is None or known[0] is not rows.words or known[1] is not rows.entries:
                self._known[number] = rows.words, rows.entries
                self._keep(f"words_{number}", rows.words)
                self._keep(f"entries_{number}", rows.entries)
                self._frame[self._places[f"mask_{number}"]] = len(rows.entries) - 1

    def _reserve(self, given: Given) -> None:
        """Room for what the events may touch."""
        count, frame = given.count, self._frame
        if count <= len(self.reason) and not given.spans:
            return
        if len(self.reason) < count:
            count *= 2  # what comes next may be a little longer
            self.reason = np.zeros(count, np.int64)
            self._aborted = np.empty(count, np.int64)
            frame[REASON], frame[ABORTED] = address(self.reason), address(self._aborted)
        touched, undo = dict.fromkeys((rows.table.name for rows in self._tables), 1), 1
        undo += max(signature.key_room for signature in self._program.signatures)
        for place, access in enumerate(self._accesses):
            total = most = count
            if place in given.spans:
                offsets = given.spans[place]
                total, most = int(offsets[-1]), _longest(offsets)
                self._frame[self._places[f"offsets_{place}"]] = address(offsets)
                if is_found_late(access):
                    self._room(f"slots_{place}", total)
            touched[access.table.name] += total
            width = self._program.tables[access.table.name].layout.words
            undo += width * (1 if access.is_single else most)
        self._room("undo", undo)
        for number, rows in enumerate(self._tables):
            self._room(f"changed_{number}", touched[rows.table.name] + 1)


def restamp(rows: TableRows, slots: Slots, epoch: int) -> None:
    """Have rows be of another epoch than what changed them ran in."""
    headers = rows.words[:, 0]  # by one index alone, which is twice as fast
    headers[slots] = (headers[slots] & _FLAGS) | (epoch << HEADER_EPOCH_SHIFT)


def _longest(offsets: np.ndarray) -> int:
    return int(np.diff(offsets).max(initial=0))
