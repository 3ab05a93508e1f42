"""Few calls of one transaction: the arrays that they run in, kept from one time to the next.

What a batch makes anew (its columns, its slots, its records of output, the frame of addresses) is
made here once, for as many calls as may run together. It goes the way of a batch all the same: the
program's own look-ups, kernels and interpreter, and the scheduler. Who has a constraint is a batch.

Invariant: used under the engine's lock, by one run at a time, whose answers keep nothing of it. A
frame is used only while every table has the very arrays that it points to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.engine.calls.answers import Answers, AnswerShape
from headgate.engine.calls.values import TOGETHER_MAX
from headgate.engine.terms import Terms
from headgate.errors import InvariantError
from headgate.execution.program import Program
from headgate.execution.run import COMMITTED, Run, Work
from headgate.execution.spans import Spans
from headgate.isolation.levels import Execution, Executor
from headgate.kernels.frame import ABORTED_COUNT, EPOCH
from headgate.kernels.generating_look_ups import is_found_late
from headgate.state.columns import StoredColumn, to_arrow
from headgate.state.layout import STORED, WORD_BYTES
from headgate.state.types import Column
from headgate.transactions import Transaction


class KeptRun(Run):
    """A run that is run again and again, each time over as many events as there are."""

    def __init__(self, program: Program, work: Work) -> None:
        order = np.arange(TOGETHER_MAX)
        super().__init__(program, [work], order, np.zeros_like(order), 0, is_part=True)
        self._outcomes, self._reasons, self._order = self.outcome, self.reason, self.order
        rows = [program.tables[name] for name in self.table_names]
        self._tables = [(one, one.words, one.entries) for one in rows]

    def touched(self, table: str) -> int:
        """As many as all events name: tables grow while it is kept."""
        return self._touches[table]

    def is_current(self) -> bool:
        """Whether all tables are where they were when it was made."""
        for rows, words, entries in self._tables:
            if rows.words is not words or rows.entries is not entries:
                return False
        return True

    def begin(self, count: int, epoch: int) -> None:
        """Run next over so many events."""
        self.epoch = epoch
        self.order = self._order[:count]
        self.outcome, self.reason = self._outcomes[:count], self._reasons[:count]
        self.counts[:] = 0
        vars(self).pop("_interpreted_positions", None)  # they were those of as many events before
        if self.program.kernel is not None:
            # The count stays what it was: so far apart are the words of the output.
            self.frame.words[EPOCH], self.frame.words[ABORTED_COUNT] = epoch, 0
        for work in self.works:
            work.changes.clear()
            if work.out is not None and not work.signature.compiled:
                work.out[:, :count] = 0


class FewCalls:
    """Runs few calls of one transaction of one engine."""

    def __init__(self, transaction: Transaction, executor: Executor, terms: Terms) -> None:
        self._signature = transaction.signature
        self._scheduler, self._scheme = executor.scheduler, terms.scheme
        self._program = program = executor.program
        ranges = any(access.span is not None for access in self._signature.accesses)
        # These have more to look up and to keep, slots to set aside, or rows that may go.
        more = program.constraints or program.made or program.trailed or program.expiring
        self._needs_more = bool(ranges or more)
        self._is_busy = False
        kinds = [(column.name, column.type.kind) for column in transaction.event]
        self._arrays = {name: np.zeros(TOGETHER_MAX, STORED[kind]) for name, kind in kinds}
        # A view of its bytes takes a value many times faster than an array does.
        self._views = [self._arrays[name].data for name, _ in kinds]
        self._texts = [place for place, (_, kind) in enumerate(kinds) if kind == "string"]
        self._nulls = {
            place: np.zeros(TOGETHER_MAX, np.bool_)
            for place, column in enumerate(transaction.event)
            if column.nullable
        }
        self._skip = np.zeros(TOGETHER_MAX, np.uint8)
        outputs = list(terms.outputs.values())
        self._shape = AnswerShape(transaction.name, outputs, program.pool)
        self._make_run()

    def __enter__(self) -> None:
        self._is_busy = True

    def __exit__(self, *exception: object) -> None:
        self._is_busy = False

    @property
    def is_able(self) -> bool:
        """Whether it can run some now: the handler of a signal may call while others run."""
        return not self._is_busy and not self._needs_more

    def _make_run(self) -> None:
        accesses = self._signature.accesses
        columns = {
            name: StoredColumn(array, nulls=self._nulls.get(place))
            for place, (name, array) in enumerate(self._arrays.items())
        }
        work = Work(self._signature, columns, self._skip)
        work.spans = [Spans(TOGETHER_MAX, TOGETHER_MAX, None) for _ in accesses]
        work.slots = [np.full(TOGETHER_MAX, -1, np.int64) for _ in accesses]
        self._work, self._run = work, KeptRun(self._program, work)
        self._outs = [_output(work, column.name) for column in self._shape.outputs]

    def put(self, rows: Sequence[Sequence[Any]]) -> None:
        """Take these events: nothing is changed so far."""
        columns: list[Any] = list(zip(*rows, strict=True))
        for place, nulls in self._nulls.items():
            nulls[: len(rows)] = [word is None for word in columns[place]]
            self._pack(place, nulls[: len(rows)])
            if place not in self._texts:
                columns[place] = [0 if word is None else word for word in columns[place]]
        for place in self._texts:
            texts = pa.array(columns[place], pa.string())
            columns[place] = self._program.pool.intern(texts).tolist()
        for view, words in zip(self._views, columns, strict=True):
            for row, word in enumerate(words):
                view[row] = word

    def _pack(self, place: int, nulls: np.ndarray) -> None:
        """Let the kernel see them: it has the address of the bits."""
        column = self._work.columns[self._signature.event.names[place]]
        column.valid[: -(-len(nulls) // 8)] = np.packbits(~nulls, bitorder="little")

    def run(self, count: int, epoch: int) -> tuple[Execution, Answers]:
        """Run the events that were put, and give what became of them."""
        self._resolve(count)
        if not self._run.is_current():
            slots = self._work.slots
            self._make_run()
            for place, nulls in self._nulls.items():
                self._pack(place, nulls[:count])
            for mine, found in zip(self._work.slots, slots, strict=True):
                mine[:] = found
        run, program = self._run, self._program
        run.begin(count, epoch)
        self._scheduler.run(run, self._scheme)
        changed = run.changed()
        run.release(changed)
        execution = Execution(
            run.outcome, run.reason, program.fixed_reasons, changed, program.written
        )
        return execution, self._answers(run, epoch)

    def _resolve(self, count: int) -> None:
        """Find the rows that the kernel does not find itself; those that are made first."""
        work, tables = self._work, self._program.tables
        for creating in (True, False):
            for place, access in enumerate(self._signature.accesses):
                if access.create != creating:
                    continue
                if is_found_late(access) and (self._signature.compiled or access.is_dynamic):
                    continue
                rows = tables[access.table.name]
                keys = rows.key_words([self._arrays[name][:count] for name in access.columns])
                find = rows.find_or_take if creating else rows.find
                work.slots[place][:count] = find(keys, self._skip[:count])

    def _answers(self, run: KeptRun, epoch: int) -> Answers:
        outcomes: list[int] = run.outcome.tolist()
        reasons: list[str | None] = [None] * len(outcomes)
        if any(outcomes):
            text = self._program.reason_text
            pairs = zip(outcomes, run.reason.tolist(), strict=True)
            reasons = [text(code) if outcome else None for outcome, code in pairs]
        stored: list[Any] = [values[: len(outcomes)].copy() for values in self._outs]
        for place, column in enumerate(self._shape.outputs):
            if not self._shape.is_stored(column):
                stored[place] = self._out_array(column, stored[place], run.outcome)
        return Answers(self._shape, epoch, outcomes, reasons, stored)

    def _out_array(self, column: Column, values: np.ndarray, outcome: np.ndarray) -> pa.Array:
        """Texts, which the pool may forget, and what may be null."""
        nulls = outcome != COMMITTED
        if column.nullable and self._work.out is not None and self._work.out_layout is not None:
            field = self._work.out_layout.field(column.name)
            nulls = nulls | field.nulls_in(self._work.out[field.null_word, : len(nulls)])
        return to_arrow(values, column.type, self._program.pool, nulls)


def _output(work: Work, name: str) -> np.ndarray:
    """The values of an output by position, where the kernel writes them."""
    if work.out is None or work.out_layout is None:
        raise InvariantError(f"{work.signature.name} has no output {name}")
    field = work.out_layout.field(name)
    word, place = divmod(field.offset, WORD_BYTES)
    size = np.dtype(field.format).itemsize
    values: np.ndarray = work.out[word].view(field.format)[place // size :: WORD_BYTES // size]
    return values
