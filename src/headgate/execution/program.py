"""Programs: a fixed set of transactions over the rows of an engine, ready to run batches.

A program finds the rows of a batch; a `Run` of it then holds what the batch is given and gives.
Invariant: after a run, rows hold exactly the effects of the committed events in serial order, and
its `changed` names every slot that differs from before (or was written back and forth).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from headgate.compiling.refusals import describe_error
from headgate.compiling.signature import Signature
from headgate.errors import DeclarationError, InvariantError
from headgate.execution.interpreter import Interpreter
from headgate.execution.run import Work
from headgate.execution.spans import Reach, ReachSpans, Spans, find_ranges, spans_of
from headgate.kernels.building import Kernel, build_kernel, compile_first, literal_texts
from headgate.kernels.generating_look_ups import is_found_late, moving_indexes
from headgate.kernels.generating_windows import (
    expiring_tables,
    kept_tables,
    sets_expiry,
    trailed_tables,
)
from headgate.state.integrity import constraints_on
from headgate.state.ordered import ordered_index
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots
from headgate.state.strings import StringPool
from headgate.state.table import Access


class Program:
    """The transactions of one `run`, `call` or sink, compiled ones first."""

    def __init__(
        self,
        signatures: Sequence[Signature],
        tables: Mapping[str, TableRows],
        pool: StringPool,
        updates: bool = False,
    ) -> None:
        self.updates = updates
        self.signatures = tuple(sorted(signatures, key=lambda signature: not signature.compiled))
        self.compiled_count = sum(signature.compiled for signature in signatures)
        self.tables = dict(tables)
        self.pool = pool
        self.names = pa.array([signature.name for signature in self.signatures], pa.string())
        self.declared = tuple(rows.table for rows in tables.values())
        changing = [table for signature in self.signatures for table in signature.written]
        self.constraints = constraints_on(changing, self.declared)
        self.moving = moving_indexes(self.signatures)
        self.expiring = expiring_tables(self.signatures)
        ending = [table for table in self.expiring if table.history is not None]
        # Whose versions are looked at, kept, or end with their rows; and the last two of them.
        self.trailed = tuple(dict.fromkeys((*trailed_tables(self.signatures), *ending)))
        self.kept = tuple(dict.fromkeys((*kept_tables(self.signatures), *ending)))
        self._reasons: dict[int, str] = {}
        self._literals: set[str] = set()
        for signature in self.signatures:
            self._literals |= literal_texts(signature)
        pool.add_literals(sorted(self._literals))
        self.kernel = self._build()
        self._is_compiled = False
        self.texts = pool.reach() if _is_reaching(self.signatures) else 0
        self.interpreters = [
            Interpreter(signature, self.tables, pool) for signature in self.signatures
        ]
        self.progress = np.zeros(1, np.int64)
        self._undo = np.empty(1024, np.int64)
        self._changed: dict[str, np.ndarray] = {}
        self.lock = threading.Lock()  # for what two parts of a batch share
        self._counted = np.arange(1024)
        self._numbers = np.full(1024, -1, np.int32)
        self._slots: dict[tuple[str, int], np.ndarray] = {}
        self._stamps: dict[str, np.ndarray] = {}
        self._section = 0

    def _build(self) -> Kernel | None:
        compiled = self.signatures[: self.compiled_count]
        if not compiled:
            return None
        try:
            bound = self.declared if self.constraints else ()
            return build_kernel(compiled, bound, self.updates, self.moving, self.expiring)
        except Exception as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> DeclarationError:
        names = ", ".join(one.name for one in self.signatures[: self.compiled_count])
        return DeclarationError(f"transactions {names}: {describe_error(error)}")

    def compile(self) -> None:
        """Compile the serial loop, or load it from the cache: before a batch, not in the middle.

        Not when the program is made: an engine makes one of each of its transactions when it is
        opened, most of which run by routes, as a part of another one.
        """
        if self._is_compiled:
            return
        self._is_compiled = True
        if self.kernel is None:
            return
        try:
            compile_first(self.kernel.run)
            if self.kernel.run_until is not None:
                compile_first(self.kernel.run_until)
        except Exception as error:
            self._is_compiled = False
            raise self._refusal(error) from error

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether the keys of some rows depend on other rows."""
        return any(signature.is_dynamic for signature in self.signatures)

    @cached_property
    def sets_expiry(self) -> bool:
        """Whether an event may leave a row that expires at another moment than before."""
        pairs = [(one, access) for one in self.signatures for access in one.accesses]
        return any(sets_expiry(one, access) for one, access in pairs)

    @cached_property
    def made(self) -> tuple[str, ...]:
        """The tables that rows are made in whose keys depend on other rows."""
        accesses = (access for one in self.signatures for access in one.accesses)
        found = (one.table.name for one in accesses if one.is_dynamic and one.create)
        return tuple(dict.fromkeys(found))

    @cached_property
    def written(self) -> Mapping[str, tuple[str, ...]]:
        """By table: the columns that its rows may get other values in, where not all may.

        Not where the functions are not compiled, which may set columns by any means, nor where a
        row may go and come again within a batch, with the defaults in all columns.
        """
        found = {}
        for table in self.declared:
            mine = [one for one in self.signatures if table in one.written]
            accesses = [access for one in mine for access in one.accesses if access.table == table]
            may_go = table.expires is not None or any(one.effects.may_delete for one in mine)
            may_return = may_go and any(access.create for access in accesses)
            if mine and all(one.compiled for one in mine) and not may_return:
                names = frozenset().union(*(one.effects.stored for one in mine))
                columns = [name for name in table.schema.names if name not in table.key]
                found[table.name] = tuple(name for name in columns if name in names)
        return found

    @property
    def compiled_kernel(self) -> Kernel:
        """The kernel of a program that has compiled transactions."""
        if self.kernel is None:
            raise InvariantError("a kernel was asked for, and no transaction is compiled")
        return self.kernel

    def number(self, name: str) -> int:
        return [signature.name for signature in self.signatures].index(name)

    # --- resolve: keys to slots ---------------------------------------------------------------

    def resolve(self, works: Sequence[Work], *, is_foreseen: bool = False) -> None:
        """Find the slots of every access; those that create come first, so that others see them.

        Ranges that the batch itself may move are found as events run; where it does not run, they
        are foreseen: as they would be for its first event.
        """
        for work in works:
            work.spans = self._spans(work)
            work.slots = [np.empty(0, np.int64)] * len(work.signature.accesses)
            work.reaches = {}
        for creating in (True, False):
            for work in works:
                for place, access in enumerate(work.signature.accesses):
                    if access.create != creating or access.follows:
                        continue
                    is_late = work.signature.compiled or access.is_dynamic
                    if access.span is not None:
                        self._find_range(work, place, access, is_foreseen=is_foreseen)
                    elif is_found_late(access) and is_late:
                        work.slots[place] = self._scratch_slots(work, place)
                    else:
                        work.slots[place] = self._find(work, place)
        for work in works:
            self._follow(work)
        self._set_aside(works)

    def _follow(self, work: Work) -> None:
        """Accesses that follow the rows of another one have its spans, and as many slots."""
        for place, access in enumerate(work.signature.accesses):
            if access.follows:
                source = work.signature.source_of(place)
                work.spans[place] = work.spans[source]
                work.slots[place] = np.full(len(work.slots[source]), -1)

    def _set_aside(self, works: Sequence[Work]) -> None:
        """Slots for the rows that may be made with keys that are known only as events run."""
        for name in self.made:
            more = sum(
                int(np.count_nonzero(work.skip == 0))
                for work in works
                for access in work.signature.accesses
                if access.is_dynamic and access.create and access.table.name == name
            )
            self.tables[name].set_aside(more)

    def _spans(self, work: Work) -> list[Spans]:
        """The spans of every access; those of ranges are empty so far."""
        events = len(work.skip)
        nothing = Spans(events, 0, np.zeros(events + 1, np.int64))
        return [
            nothing if one.span is not None or one.follows
            else spans_of(one, work.columns, events)
            for one in work.signature.accesses
        ]  # fmt: skip

    def _find_range(self, work: Work, place: int, access: Access, *, is_foreseen: bool) -> None:
        span = access.span
        if span is None:
            return
        index = ordered_index(self.tables[access.table.name], span.index)
        if span.index in self.moving and not is_foreseen:
            events, is_kept = len(work.skip), self.updates and not access.read_only
            reach = Reach(access, span, index, work.columns, events, is_kept=is_kept)
            work.reaches[place] = reach
            work.spans[place], work.slots[place] = reach.spans, reach.slots
        else:
            spans, work.slots[place] = find_ranges(access, span, index, work.columns, work.skip)
            is_moving = span.index in self.moving
            work.spans[place] = ReachSpans(len(work.skip), spans) if is_moving else spans

    def find_all(self, work: Work) -> None:
        """Find the slots of every access now, those too that the kernel would look up itself."""
        work.spans, events = self._spans(work), len(work.skip)
        work.slots = [
            np.full(events, -1) if access.is_dynamic else self._find(work, place)
            for place, access in enumerate(work.signature.accesses)
        ]
        work.after = [None] * len(work.spans)

    def _scratch_slots(self, work: Work, place: int) -> Slots:
        """Room for the slots that the kernel will find, used again by the next batch."""
        need = work.spans[place].total
        key = (work.signature.name, place)
        found = self._slots.get(key)
        if found is None or len(found) < need:
            found = self._slots[key] = np.empty(2 * need, np.int64)
        return found[:need]

    def _find(self, work: Work, place: int) -> Slots:
        access = work.signature.accesses[place]
        rows = self.tables[access.table.name]
        keys = rows.key_words([column.values for column in work.key_columns(access)])
        skip = work.spans[place].spread(work.skip)
        return rows.find_or_take(keys, skip) if access.create else rows.find(keys, skip)

    # --- what runs of it share ------------------------------------------------------------

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

    def is_fixed(self, code: int) -> bool:
        """Whether a reason is the same text as long as the program lives."""
        return code < 0 or self.reason_text(code) in self._literals

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

    def scratch_stamps(self, table: str, slots: int) -> np.ndarray:
        """By slot: the last section in which an event may have written what look-ups read."""
        found = self._stamps.get(table)
        if found is None or len(found) < slots:
            found = self._stamps[table] = np.zeros(slots, np.int64)
        return found

    def next_section(self) -> int:
        """The number of a section of certainty, which no other one has."""
        self._section += 1
        return self._section

    def scratch_changed(self, table: str, slots: int) -> np.ndarray:
        found = self._changed.get(table)
        if found is None or len(found) < slots:
            found = self._changed[table] = np.empty(2 * slots + 16, np.int64)
        return found


def _is_reaching(signatures: Sequence[Signature]) -> bool:
    """Whether one of these transactions, or a check of its tables, looks at characters."""
    tables = [table for signature in signatures for table in signature.tables]
    checks = [table.check for table in tables if table.check is not None]
    return any(one.is_reaching for one in signatures) or any(one.is_reaching for one in checks)
