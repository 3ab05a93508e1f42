"""Programs: a fixed set of transactions over the rows of an engine, ready to run batches.

Invariant: after `execute`, rows hold exactly the effects of the committed events in serial order,
and `changed` names every slot that differs from before the batch (or was written back and forth).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import DeclarationError, InputError
from headgate.execution.compiler import describe_error
from headgate.execution.interpreter import Interpreter, error_reason
from headgate.execution.kernel import Kernel, build_kernel, literal_texts
from headgate.execution.scheme import SERIAL, Scheme, explain, run_parallel
from headgate.execution.signature import Signature, column_places
from headgate.execution.source import is_found_late
from headgate.io import RealClock
from headgate.planning.figures import Figures
from headgate.scheduling.decision import Decision
from headgate.state.columns import StoredColumn
from headgate.state.layout import Layout, record_layout
from headgate.state.rows import Rows
from headgate.state.strings import StringPool
from headgate.state.table import Access

PROBE_BATCHES = 16  # so often a batch runs serially, lest an old cost decides for ever
COST_SAMPLE_MIN = 64  # a batch of fewer transactions says little about the cost of one
DECISIONS_KEPT = 100
COMMITTED, ABORTED, REJECTED, LATE = 0, 1, 2, 3
OUTCOMES = ("committed", "aborted", "rejected", "late")


@dataclass
class Work:
    """One transaction's part of a batch: its event columns, its slots and its output records."""

    signature: Signature
    columns: Mapping[str, StoredColumn]
    skip: np.ndarray  # by event row: 1 where the event is not for this transaction
    slots: list[np.ndarray] = field(default_factory=list)  # by access
    out: np.ndarray | None = None
    out_layout: Layout | None = None
    changes: list[tuple[str, int]] = field(default_factory=list)  # of interpreted events

    def key_columns(self, access: Access) -> list[StoredColumn]:
        return [self.columns[name] for name in access.columns]

    def slots_of(self, row: int) -> list[np.ndarray]:
        """The slots of one event, an array for each access."""
        found = []
        for access, slots in zip(self.signature.accesses, self.slots, strict=True):
            if access.form == "at":
                found.append(slots[row : row + 1])
            else:
                offsets = self.key_columns(access)[0].offsets
                first, last = (0, 0) if offsets is None else (offsets[row], offsets[row + 1])
                found.append(slots[first:last])
        return found

    def note_change(self, table: str, slot: int) -> None:
        self.changes.append((table, int(slot)))


@dataclass(frozen=True)
class Execution:
    """What running a batch gave, by position: outcome and reason codes, and the changed slots."""

    outcome: np.ndarray
    reason: np.ndarray  # 0, a text's code, or -1 - i for the i-th fixed reason
    fixed_reasons: tuple[str, ...]
    changed: Mapping[str, np.ndarray]


class Program:
    """The transactions of one `run`, `call` or sink, compiled ones first."""

    def __init__(
        self, signatures: Sequence[Signature], tables: Mapping[str, Rows], pool: StringPool
    ) -> None:
        self.signatures = tuple(sorted(signatures, key=lambda signature: not signature.compiled))
        self.compiled_count = sum(signature.compiled for signature in signatures)
        self.tables = dict(tables)
        self.pool = pool
        self.names = pa.array([signature.name for signature in self.signatures], pa.string())
        self._reasons: dict[int, str] = {}
        self._literals: set[str] = set()
        for signature in self.signatures:
            self._literals |= literal_texts(signature)
        pool.add_literals(sorted(self._literals))
        self.kernel = self._build()
        self.interpreters = [
            Interpreter(signature, self.tables, pool) for signature in self.signatures
        ]
        self._progress = np.zeros(1, np.int64)
        self._undo = np.empty(1024, np.int64)
        self._changed: dict[str, np.ndarray] = {}
        self._clock = RealClock()
        self.cost_ns: float | None = None  # of one transaction, measured on the last batches
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._batches = 0
        self._counted = np.arange(1024)
        self._numbers = np.full(1024, -1, np.int32)
        self._slots: dict[tuple[str, int], np.ndarray] = {}

    def _build(self) -> Kernel | None:
        compiled = self.signatures[: self.compiled_count]
        if not compiled:
            return None
        try:
            kernel = build_kernel(compiled)
            none, nothing = np.empty(0, np.int64), np.empty(0, np.int8)
            # Compile now, or load from the cache: not in the middle of the first batch.
            kernel.run(0, 0, 0, none, none, nothing, none, none, *[0] * len(kernel.arguments))
            return kernel
        except Exception as error:
            names = ", ".join(signature.name for signature in compiled)
            raise DeclarationError(f"transactions {names}: {describe_error(error)}") from error

    def number(self, name: str) -> int:
        return [signature.name for signature in self.signatures].index(name)

    # --- resolve: keys to slots ---------------------------------------------------------------

    def resolve(self, works: Sequence[Work]) -> None:
        """Find the slots of every access; those that create come first, so that others see them."""
        for work in works:
            work.slots = [np.empty(0, np.int64)] * len(work.signature.accesses)
        for creating in (True, False):
            for work in works:
                for place, access in enumerate(work.signature.accesses):
                    if access.create != creating:
                        continue
                    if work.signature.compiled and is_found_late(access):
                        work.slots[place] = self._scratch_slots(work, place)
                    else:
                        work.slots[place] = self._find(work, access)

    def _scratch_slots(self, work: Work, place: int) -> np.ndarray:
        """Room for the slots that the kernel will find, used again by the next batch."""
        key, need = (work.signature.name, place), len(work.skip)
        found = self._slots.get(key)
        if found is None or len(found) < need:
            found = self._slots[key] = np.empty(2 * need, np.int64)
        return found[:need]

    def _find(self, work: Work, access: Access) -> np.ndarray:
        rows = self.tables[access.table.name]
        columns = work.key_columns(access)
        keys = rows.key_words([column.values for column in columns])
        skip = work.skip
        if access.form == "each":
            skip = np.repeat(skip, columns[0].lengths)
        return rows.find_or_take(keys, skip) if access.create else rows.find(keys, skip)

    # --- execute ------------------------------------------------------------------------------

    def execute(
        self,
        works: Sequence[Work],
        order: np.ndarray,
        route: np.ndarray,
        epoch: int,
        scheme: Scheme = SERIAL,
    ) -> Execution:
        """Run the events in this order; `route` holds the number of each event's transaction."""
        run = Run(self, works, order, route, epoch)
        self._batches += 1
        if scheme.name == "auto" and self._batches % PROBE_BATCHES == 0:
            scheme = SERIAL  # what a transaction costs is learnt from serial batches only
        if scheme.name == SERIAL.name or not run_parallel(run, scheme):
            began = self._clock.monotonic()
            run.all()
            self._learn(self._clock.monotonic() - began, len(order))
        changed = run.changed()
        run.release(changed)
        return Execution(run.outcome, run.reason, self.fixed_reasons, changed)

    def explain(self, works: Sequence[Work], order: np.ndarray, route: np.ndarray) -> Figures:
        """The figures of the graph of a resolved batch, which does not run."""
        if self.compiled_count < len(self.signatures):
            raise InputError("explain needs compiled transactions")
        run = Run(self, works, order, route, 0)
        figures = explain(run)
        run.release({})
        return figures

    def _learn(self, seconds: float, transactions: int) -> None:
        """Remember what a transaction costs one after another, the last batches counting most."""
        if transactions < COST_SAMPLE_MIN:
            return
        cost_ns = seconds / transactions * 1e9
        before = self.cost_ns if self.cost_ns is not None else cost_ns
        self.cost_ns = 0.7 * before + 0.3 * cost_ns

    def counted(self, count: int) -> np.ndarray:
        """0, 1, ... count - 1, not to be changed."""
        if len(self._counted) < count:
            self._counted = np.arange(2 * count)
        return self._counted[:count]

    def reason_text(self, code: int) -> str:
        """The text of a reason code; texts of literals are remembered."""
        found = self._reasons.get(code)
        if found is None:
            found = self.fixed_reasons[-1 - code] if code < 0 else self.pool.text(code)
            if code < 0 or found in self._literals:
                self._reasons[code] = found
        return found

    @property
    def fixed_reasons(self) -> tuple[str, ...]:
        return self.kernel.reasons if self.kernel is not None else ()

    def scratch_undo(self, words: int) -> np.ndarray:
        if len(self._undo) < words:
            self._undo = np.empty(2 * words, np.int64)
        return self._undo

    def scratch_numbers(self, rows: int) -> np.ndarray:
        """-1 for each row of all tables; whoever changes it changes it back."""
        if len(self._numbers) < rows:
            self._numbers = np.full(2 * rows, -1, np.int32)
        return self._numbers

    def scratch_changed(self, table: str, slots: int) -> np.ndarray:
        found = self._changed.get(table)
        if found is None or len(found) < slots:
            found = self._changed[table] = np.empty(2 * slots + 16, np.int64)
        return found


class Run:
    """One execution of a batch: the arrays the kernel shares with the interpreter."""

    def __init__(
        self,
        program: Program,
        works: Sequence[Work],
        order: np.ndarray,
        route: np.ndarray,
        epoch: int,
    ) -> None:
        self.program, self.works = program, works
        self.order, self.route, self.epoch = order, route, epoch
        self.outcome = np.empty(len(order), np.int8)
        self.reason = np.empty(len(order), np.int64)
        names = program.kernel.tables if program.kernel is not None else ()
        self.table_names = [table.name for table in names]
        self.counts = np.zeros(2 * len(names) + 1, np.int64)
        for work in works:
            self._make_output(work)
        self.arrays = self._arrays() if program.kernel is not None else {}
        self.arguments = self.addresses(self.arrays)

    def addresses(self, arrays: Mapping[str, Any]) -> list[int]:
        """The arguments of the kernel, in its order."""
        kernel = self.program.kernel
        if kernel is None:
            return []
        found = (arrays[name] for name in kernel.arguments)
        return [array if isinstance(array, int) else address(array) for array in found]

    def _make_output(self, work: Work) -> None:
        output = work.signature.output
        if output is not None:
            work.out_layout = record_layout(output)
            make = np.empty if work.signature.compiled else np.zeros  # the kernel clears as it goes
            work.out = make((len(self.order), work.out_layout.words), np.int64)

    def _arrays(self) -> dict[str, Any]:
        """The arrays of the kernel, by the names it was generated with."""
        arrays: dict[str, Any] = {"counts": self.counts, "undo": self._undo()}
        place = 0
        for number, work in enumerate(self.works[: self.program.compiled_count]):
            arrays[f"columns_{number}"] = _addresses(work)
            if work.out is not None:
                arrays[f"out_{number}"] = work.out
            for access, slots in zip(work.signature.accesses, work.slots, strict=True):
                arrays[f"slots_{place}"] = slots
                if access.form == "each":
                    offsets = work.key_columns(access)[0].offsets
                    arrays[f"offsets_{place}"] = np.zeros(1, int) if offsets is None else offsets
                place += 1
        for number, name in enumerate(self.table_names):
            rows = self.program.tables[name]
            arrays[f"words_{number}"] = rows.words
            arrays[f"entries_{number}"] = rows.entries
            arrays[f"mask_{number}"] = len(rows.entries) - 1
            arrays[f"defaults_{number}"] = rows.defaults
            arrays[f"changed_{number}"] = self.program.scratch_changed(name, self.touched(name))
            arrays[f"images_{number}"] = 0
        return arrays

    def operations_max(self) -> int:
        """At most this many operations are in the batch."""
        return sum(len(slots) for work in self.works for slots in work.slots) + 1

    def touched(self, table: str) -> int:
        """At most this many rows of the table can change in the batch."""
        touches = sum(
            len(slots)
            for work in self.works
            for access, slots in zip(work.signature.accesses, work.slots, strict=True)
            if access.table.name == table
        )
        return min(touches, self.program.tables[table].count)

    def _undo(self) -> np.ndarray:
        """Room for the rows one event may change."""
        words = 0
        for work in self.works:
            need = 0
            for access in work.signature.accesses:
                rows = 1
                if access.form == "each":
                    rows = int(work.key_columns(access)[0].lengths.max(initial=0))
                need += rows * self.program.tables[access.table.name].layout.words
            words = max(words, need)
        return self.program.scratch_undo(words)

    def all(self) -> None:
        begin = 0
        for stop in self._interpreted_positions():
            self._compiled(begin, stop)
            self._interpreted(stop)
            begin = stop + 1
        self._compiled(begin, len(self.order))

    def _interpreted_positions(self) -> list[int]:
        if self.program.compiled_count == len(self.program.signatures):
            return []
        routed = self.route[self.order] >= self.program.compiled_count
        return [int(place) for place in np.flatnonzero(routed)]

    def _compiled(self, begin: int, end: int) -> None:
        """Run positions begin..end; an event that raises is undone, and the rest goes on."""
        kernel, progress = self.program.kernel, self.program._progress
        while begin < end and kernel is not None:
            progress[0] = -1
            try:
                kernel.run(
                    begin, end, self.epoch, self.order, self.route, self.outcome, self.reason,
                    progress, *self.arguments,
                )  # fmt: skip
                return
            except Exception as error:
                position = int(progress[0])
                if position < 0:  # it did not come to run: the kernel itself did not compile
                    raise
                kernel.restore(position, self.order, self.route, *self.arguments)
                self._abort(position, error_reason(error))
                begin = position + 1

    def _interpreted(self, position: int) -> None:
        row = int(self.order[position])
        number = int(self.route[row])
        interpreter = self.program.interpreters[number]
        reason = interpreter.run(self.works[number], row, position, self.epoch)
        if reason is None:
            self.outcome[position], self.reason[position] = COMMITTED, 0
        else:
            self._abort(position, reason)

    def _abort(self, position: int, reason: str) -> None:
        self.outcome[position] = ABORTED
        self.reason[position] = self.program.pool.intern(pa.array([reason]))[0]

    def changed(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for number, name in enumerate(self.table_names):
            count = int(self.counts[2 * number])
            found[name] = self.program.scratch_changed(name, 0)[:count].copy()
        extra: dict[str, list[int]] = {}
        for work in self.works:
            for name, slot in work.changes:
                extra.setdefault(name, []).append(slot)
        for name, slots in extra.items():
            before = found.get(name, np.empty(0, np.int64))
            found[name] = np.concatenate([before, np.array(slots, np.int64)])
        return {name: slots for name, slots in found.items() if len(slots)}

    def release(self, changed: Mapping[str, np.ndarray]) -> None:
        """Free the slots of rows that the batch deleted or never came to create."""
        nothing = np.empty(0, np.int64)
        for name, rows in self.program.tables.items():
            if rows.taken or self._has_deleted(name):
                rows.release(changed.get(name, nothing))

    def _has_deleted(self, name: str) -> bool:
        if any(work.changes for work in self.works):
            return True
        if name not in self.table_names:
            return False
        return bool(self.counts[2 * self.table_names.index(name) + 1])


def address(array: np.ndarray) -> int:
    """Where the array's first byte stands; the array must outlive the use of it."""
    return int(array.__array_interface__["data"][0])


def _addresses(work: Work) -> np.ndarray:
    """The addresses of the event's columns, at the places the kernel was compiled for."""
    places = column_places(work.signature.event)
    found = np.zeros(2 * len(places) + 1, np.int64)
    for name, place in places.items():
        column: Any = work.columns[name]
        found[place] = address(column.values)
        if column.offsets is not None:
            found[place + 1] = address(column.offsets)
    return found
