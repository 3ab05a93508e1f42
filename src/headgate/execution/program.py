"""Programs: a fixed set of transactions over the rows of an engine, ready to run batches.

Invariant: after `execute`, rows hold exactly the effects of the committed events in serial order,
and `changed` names every slot that differs from before the batch (or was written back and forth).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headgate.compiling.cache import cache_folder
from headgate.compiling.compiler import describe_error
from headgate.compiling.signature import Signature
from headgate.errors import DeclarationError, InputError, InvariantError
from headgate.execution.interpreter import Interpreter
from headgate.execution.run import Run, Work
from headgate.io import Clock, RealClock
from headgate.isolation.levels import (
    LEVELS,
    PROTOCOLS,
    Isolated,
    choose_protocol,
    run_isolated,
    scratch_rows,
)
from headgate.kernels.kernel import (
    IsolationKernels,
    Kernel,
    UnitKernels,
    build_isolation_kernels,
    build_kernel,
    build_unit_kernels,
    compile_first,
    literal_texts,
)
from headgate.kernels.source import is_found_late, written
from headgate.parallel.costs import load_thresholds
from headgate.parallel.decision import Decision, Thresholds
from headgate.parallel.figures import Figures
from headgate.parallel.probing import Probing
from headgate.parallel.readiness import UNIT_PLAN, Readiness
from headgate.parallel.scheme import SERIAL, Scheme, explain, run_parallel
from headgate.parallel.scratch import Scratch
from headgate.state.integrity import constraints_on
from headgate.state.rows import Rows
from headgate.state.strings import StringPool
from headgate.state.table import Access

COST_SAMPLE_MIN = 64  # a batch of fewer transactions says little about the cost of one
DECISIONS_KEPT = 100


@dataclass(frozen=True)
class Execution:
    """What running a batch gave, by position: outcome and reason codes, and the changed slots."""

    outcome: np.ndarray
    reason: np.ndarray  # 0, a text's code, or -1 - i for the i-th fixed reason
    fixed_reasons: tuple[str, ...]
    changed: Mapping[str, np.ndarray]
    isolated: Isolated | None = None  # when a protocol ran it: the order of its commits


class Program:
    """The transactions of one `run`, `call` or sink, compiled ones first."""

    def __init__(
        self,
        signatures: Sequence[Signature],
        tables: Mapping[str, Rows],
        pool: StringPool,
        updates: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.updates = updates
        self.signatures = tuple(sorted(signatures, key=lambda signature: not signature.compiled))
        self.compiled_count = sum(signature.compiled for signature in signatures)
        self.tables = dict(tables)
        self.pool = pool
        self.names = pa.array([signature.name for signature in self.signatures], pa.string())
        self.declared = tuple(rows.table for rows in tables.values())
        changing = [table for signature in self.signatures for table in written(signature)]
        self.constraints = constraints_on(changing, self.declared)
        self._reasons: dict[int, str] = {}
        self._literals: set[str] = set()
        for signature in self.signatures:
            self._literals |= literal_texts(signature)
        pool.add_literals(sorted(self._literals))
        self.kernel = self._build()
        self.readiness = Readiness(self)
        self.interpreters = [
            Interpreter(signature, self.tables, pool) for signature in self.signatures
        ]
        self.progress = np.zeros(1, np.int64)
        self._undo = np.empty(1024, np.int64)
        self._changed: dict[str, np.ndarray] = {}
        self._clock = clock or RealClock()
        self.cost_ns: float | None = None  # of one transaction, measured on the last batches
        self.abort_ratio = 0.0  # of the last batches
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.probing = Probing()
        self.retries = 0  # how often a transaction ran again because another was faster
        self.is_timed = False  # whether threads count what they spend their time on
        self.breakdown: dict[str, float] | None = None  # what those of the last batch counted
        self.lock = threading.Lock()  # for what two parts of a batch share
        self._counted = np.arange(1024)
        self._numbers = np.full(1024, -1, np.int32)
        self.scratch = Scratch()  # of batches run by units
        self._slots: dict[tuple[str, int], np.ndarray] = {}

    def _build(self) -> Kernel | None:
        compiled = self.signatures[: self.compiled_count]
        if not compiled:
            return None
        try:
            bound = self.declared if self.constraints else ()
            kernel = build_kernel(compiled, bound, self.updates)
            # Compile now, or load from the cache: not in the middle of the first batch.
            compile_first(kernel.run)
            return kernel
        except Exception as error:
            names = ", ".join(signature.name for signature in compiled)
            raise DeclarationError(f"transactions {names}: {describe_error(error)}") from error

    @property
    def compiled_kernel(self) -> Kernel:
        """The kernel of a program that has compiled transactions."""
        if self.kernel is None:
            raise InvariantError("a kernel was asked for, and no transaction is compiled")
        return self.kernel

    @cached_property
    def costs(self) -> Thresholds:
        """What planning and threads cost on this machine, as far as was measured."""
        return load_thresholds(cache_folder())

    @cached_property
    def unit_kernels(self) -> UnitKernels:
        """The kernels that run a batch by operations, made when first asked for."""
        return build_unit_kernels(self.signatures[: self.compiled_count])

    @cached_property
    def isolation_kernels(self) -> IsolationKernels:
        """The kernels of the protocols, made when first asked for."""
        return build_isolation_kernels(self.signatures[: self.compiled_count], self.updates)

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
        access = work.signature.accesses[place]
        need = len(work.skip) if access.form == "at" else len(work.key_columns(access)[0].values)
        key = (work.signature.name, place)
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
        isolation: str = "PL4",
        is_recorded: bool = False,
    ) -> Execution:
        """Run the events in this order; `route` holds the number of each event's transaction."""
        protocol = self._protocol(scheme, isolation, len(order))
        if protocol is not None:
            for table in self.kernel.tables if self.kernel is not None else ():
                self.tables[table.name].reserve(scratch_rows(works, protocol.threads))
        run = Run(self, works, order, route, epoch)
        isolated = None
        if protocol is not None:
            began = self._clock.monotonic()
            isolated = run_isolated(run, protocol, LEVELS[isolation], is_recorded)
            if isolated is not None:
                self.retries += isolated.retries
                self._note_pace(self._clock.monotonic() - began, len(order))
        if isolated is None:
            self._run_in_order(run, SERIAL if scheme.name in PROTOCOLS else scheme)
        changed = run.changed()
        run.release(changed)
        return Execution(run.outcome, run.reason, self.fixed_reasons, changed, isolated)

    def _protocol(self, scheme: Scheme, isolation: str, count: int) -> Scheme | None:
        """The protocol that runs a batch, or None when it runs in event order."""
        name, chosen = scheme.name, None
        if name == "auto":
            if self.probing.is_due:
                return None
            chosen = choose_protocol(isolation, self.cost_ns, count, scheme.threads, self.costs)
            if chosen is None or self.constraints:
                return None
            name = chosen.scheme
        if name not in PROTOCOLS or not count:
            return None
        accesses = (access for signature in self.signatures for access in signature.accesses)
        others = [access.form for access in accesses if access.form not in ("at", "each")]
        if self.constraints or others or self.compiled_count < len(self.signatures):
            why = self.constraints[0].name if self.constraints else "a plain Python function"
            why = f"rows by {others[0]!r}" if others else why
            self.decisions.append(Decision("serial", f"{name} cannot see to it: {why}"))
            return None
        protocol = Scheme(name, min(scheme.threads, count))
        refused = self.readiness.decision(protocol)
        noted = refused if refused is not None else chosen
        if noted is not None:
            self.decisions.append(noted)
        return protocol if refused is None else None

    def _run_in_order(self, run: Run, scheme: Scheme) -> None:
        """Run the batch with the effect of event order, on one thread or several."""
        if scheme.name == "auto" and self.probing.is_due:
            self.decisions.append(Decision("serial", "what a transaction costs is measured again"))
            scheme = SERIAL
        if scheme.name != SERIAL.name and self.constraints:
            # Rows that no parameter names decide whether it holds: no graph shows that.
            self.decisions.append(Decision("serial", f"a constraint: {self.constraints[0].name}"))
            scheme = SERIAL
        if self.updates and (scheme.name == "auto" or scheme.by_units):
            self.decisions.append(Decision("serial", "updates=True asks for the rows in between"))
            scheme = SERIAL
        self.breakdown = None
        began = self._clock.monotonic()
        if scheme.name != SERIAL.name and run_parallel(run, scheme):
            self._note_pace(self._clock.monotonic() - began, len(run.order))
        else:
            began = self._clock.busy()
            run.all()
            self._learn(self._clock.busy() - began, len(run.order))
        if len(run.order) >= COST_SAMPLE_MIN:
            aborted = np.count_nonzero(run.outcome) / len(run.order)
            self.abort_ratio = 0.7 * self.abort_ratio + 0.3 * aborted

    def explain(self, works: Sequence[Work], order: np.ndarray, route: np.ndarray) -> Figures:
        """The figures of the graph of a resolved batch, which does not run."""
        if self.compiled_count < len(self.signatures):
            raise InputError("explain needs compiled transactions")
        refused = self.readiness.serial("the graph of operations", *UNIT_PLAN)
        if refused is not None:
            raise InputError(f"explain: {refused.why}")
        run = Run(self, works, order, route, 0)
        figures = explain(run)
        run.release({})
        return figures

    def _learn(self, seconds: float, transactions: int) -> None:
        """Remember what a transaction costs one after another, the last batches counting most."""
        if transactions < COST_SAMPLE_MIN:
            return
        self.probing.learnt()
        cost_ns = seconds / transactions * 1e9
        before = self.cost_ns if self.cost_ns is not None else cost_ns
        self.cost_ns = 0.7 * before + 0.3 * cost_ns

    def _note_pace(self, seconds: float, transactions: int) -> None:
        """Remember how fast a parallel batch went: a change may mean that costs have changed."""
        if transactions >= COST_SAMPLE_MIN:
            self.probing.ran(seconds / transactions * 1e9)

    def note_breakdown(self, found: Mapping[str, float]) -> None:
        """Add what the threads of one group of the batch counted."""
        with self.lock:
            before = self.breakdown or {}
            self.breakdown = {part: before.get(part, 0.0) + s for part, s in found.items()}

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
