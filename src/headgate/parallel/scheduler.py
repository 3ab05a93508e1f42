"""The scheduler: by which scheme the threads of an engine run the batches of one program.

It knows what the last batches cost, asks the model, sees to it that kernels are there before a
batch runs, and notes every decision. Whatever it chooses, the effect is that of event order: a
batch that a scheme could not finish was put back as it was, and runs one after another.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from headgate.compiling.refusals import reason_of
from headgate.errors import InputError
from headgate.execution.program import Program
from headgate.execution.run import Run, Work
from headgate.execution.shared_batch import SharedBatch
from headgate.io import Clock, RealClock
from headgate.kernels import ticks
from headgate.kernels.building import (
    UnitKernels,
    build_protocol_kernels,
    build_transaction_kernels,
    build_unit_kernels,
    compile_first,
)
from headgate.parallel.decision import (
    Attempts,
    Decision,
    Load,
    Probing,
    Thresholds,
    before_a_graph,
    load_thresholds,
)
from headgate.parallel.figures import Figures, measure
from headgate.parallel.looks import find_looks
from headgate.parallel.precedence import Scratch
from headgate.parallel.scheme import PLAN, SERIAL, UNIT_PLAN, Scheme, make_scheme, needed
from headgate.parallel.sections import (
    ALONE_NS,
    STRETCH_MIN,
    Foresight,
    cut,
    nest,
    run_in_turn,
    run_stretches,
)
from headgate.parallel.units import UnitBatch, UnitCrew
from headgate.parallel.whole_transactions import Sharing, TransactionBatch
from headgate.state.compiled import cache_folder
from headgate.state.spaces import EventRows

COST_SAMPLE_MIN = 64  # a batch of fewer transactions says little about the cost of one
DECISIONS_KEPT = 100
_PROBED = Decision("serial", "what a transaction costs is measured again")


def _could_not(scheme: Scheme) -> Decision:
    why = f"{scheme} could not finish the batch: a function raised, or too much was undone"
    return Decision("serial", why)


class Scheduler:
    """Runs the batches of a program with the effect of event order, on one thread or several."""

    def __init__(self, program: Program, clock: Clock | None = None) -> None:
        self.program = program
        self.clock = clock or RealClock()
        self.readiness = Readiness(program)
        self.probing = Probing()
        self.attempts = Attempts()
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.cost_ns: float | None = None  # of one transaction, measured on the last batches
        self.abort_ratio = 0.0  # of the last batches
        self.is_timed = False  # whether threads count what they spend their time on
        self.breakdown: dict[str, float] | None = None  # what those of the last batch counted
        self.sharing = Sharing()
        self._scratch = Scratch()  # of batches run by units
        self._known: tuple[int, int, int | None] | None = None  # what was decided on last
        self._early: Decision | None = None  # and how
        self._lock = threading.Lock()  # for what two parts of a batch share

    @cached_property
    def costs(self) -> Thresholds:
        """What planning and threads cost on this machine, as far as was measured."""
        return load_thresholds(cache_folder())

    def load_of(self, run: Run, threads: int) -> Load:
        """What is known of a batch before any graph."""
        return self._load(len(run.order), run.operations_max(), min(threads, len(run.order)))

    def _load(self, count: int, operations: int, threads: int) -> Load:
        cost_ns, pace_ns = self.cost_ns, self.attempts.pace_ns
        return Load(count, operations, cost_ns, self.abort_ratio, threads, pace_ns)

    # --- a batch ------------------------------------------------------------------------------

    def run(self, run: Run, scheme: Scheme) -> None:
        """Run a batch by this scheme where it can be, and serially where it cannot."""
        scheme = self._allowed(scheme)
        self.breakdown = None
        began = self.clock.monotonic()
        if not scheme.is_serial and self._run_parallel(run, scheme):
            self.note_pace(self.clock.monotonic() - began, len(run.order))
        else:
            self._run_serially(run)
        self.note_aborts(len(run.order), int(np.count_nonzero(run.outcome)))

    def _run_serially(self, run: Run) -> None:
        """Run the batch on this thread, and learn from it, unless it is too short for that."""
        if len(run.order) < COST_SAMPLE_MIN:
            run.all()
            return
        began = self.clock.busy()
        run.all()
        self._learn(self.clock.busy() - began, len(run.order))

    def plain_scheme(self, scheme: Scheme, count: int, operations: int) -> Scheme | None:
        """How a plain batch runs, as far as that is known without a look at it: one after another,
        or by threads that plan it themselves. None: by a graph, which is built elsewhere."""
        # Keys that depend on rows are looked up before threads begin, which is done elsewhere.
        is_dynamic = self.program.is_dynamic
        if self.is_timed or (is_dynamic and scheme.kind.plans_itself):
            return None
        if scheme.is_serial or scheme.kind.plans_itself:
            return self._ready_or_serial(scheme)
        if not scheme.is_chosen:
            return None
        if self.probing.is_due:
            self.decisions.append(_PROBED)
            return SERIAL
        threads, cost_ns = min(scheme.threads, count), self.cost_ns
        # Nothing is decided by a tenth of the cost, which changes a little with every batch.
        known = (count, threads, None if cost_ns is None else round(8 * math.log2(cost_ns + 1)))
        if known != self._known or self._early is None:  # what is decided is mostly the same
            self._early = before_a_graph(self._load(count, operations, threads), self.costs)
            self._known = known
        if self._early is None or (is_dynamic and self._early.scheme != SERIAL.name):
            return None
        self.decisions.append(self._early)
        return self._ready_or_serial(make_scheme(self._early.scheme, threads))

    def _ready_or_serial(self, scheme: Scheme) -> Scheme:
        """The scheme itself, or serial where its kernel does not compile."""
        refused = None if scheme.is_serial else self.readiness.decision(scheme)
        if refused is not None:
            self.decisions.append(refused)
        return scheme if refused is None else SERIAL

    def note_serial(self, seconds: float, count: int, aborted: int) -> None:
        """Learn from a batch that ran on one thread elsewhere."""
        self.breakdown = None
        if count >= COST_SAMPLE_MIN:
            self._learn(seconds, count)
        self.note_aborts(count, aborted)

    def note_aborts(self, count: int, aborted: int) -> None:
        if count >= COST_SAMPLE_MIN:
            self.abort_ratio = 0.7 * self.abort_ratio + 0.3 * aborted / count

    def _allowed(self, scheme: Scheme) -> Scheme:
        """The scheme itself, or serial when there is no need to look at the batch to say so."""
        constraints, updates, why = self.program.constraints, self.program.updates, None
        if scheme.is_chosen and self.probing.is_due:
            why = _PROBED.why
        elif constraints and not scheme.is_serial:
            # Rows that no parameter names decide whether it holds: no graph shows that.
            why = f"a constraint: {constraints[0].name}"
        elif self._is_moved_apart and not scheme.is_serial:
            # Which rows an event names is known when those before it have run.
            why = f"ranges over rows that the transactions move: {self.program.moving[0].name}"
        elif self.program.kept and not scheme.is_serial:
            # Versions are numbered, and take their slots, in the order in which they are made.
            why = f"versions of rows are kept: {self.program.kept[0].name}"
        elif updates and (scheme.is_chosen or scheme.by_units):
            why = "updates=True asks for the rows in between"
        if why is not None:
            self.decisions.append(Decision("serial", why))
        return scheme if why is None else SERIAL

    @property
    def _is_moved_apart(self) -> bool:
        """Whether ranges over rows that move are found one after another, whoever looks."""
        return bool(self.program.moving) and (self.program.updates or self.program.is_dynamic)

    def _run_parallel(self, run: Run, scheme: Scheme) -> bool:
        """Run the batch by this scheme; False when it was put back and must be run serially."""
        if self.program.compiled_count < len(self.program.signatures) or not len(run.order):
            return False
        if scheme.is_chosen:
            early = before_a_graph(self.load_of(run, scheme.threads), self.costs)
            if early is not None and early.scheme != SERIAL.name:
                self.decisions.append(early)
                chosen = self._ready_or_serial(make_scheme(early.scheme, scheme.threads))
                return not chosen.is_serial and self._run_ready(run, chosen)
            early = early or self.readiness.whole_given_up
            early = early or self.readiness.serial("the graph of transactions", *PLAN)
        else:
            early = self.readiness.decision(scheme)
        if early is not None:
            self.decisions.append(early)
            return False
        return self._run_ready(run, scheme)

    def _run_ready(self, run: Run, scheme: Scheme) -> bool:
        """The same for a scheme whose kernels are there."""
        return (self._run_stretches if self.program.moving else self._run_whole)(run, scheme)

    def _run_stretches(self, run: Run, scheme: Scheme) -> bool:
        """The same where events look into an index that others move: threads share the others."""
        ran, why = run_stretches(
            run, self._shared_min(), lambda section: self._run_whole(section, scheme)
        )
        self.decisions.extend([Decision(str(scheme) if ran else "serial", why)] if why else [])
        return ran

    def _run_whole(self, run: Run, scheme: Scheme) -> bool:
        """The same where no event looks at what others move."""
        if self.program.is_dynamic and not scheme.kind.is_virtual:
            return self._run_foreseen(run, scheme)
        if scheme.kind.plans_itself:
            return self._run_shared(run, scheme)
        sections = cut(run, by_rows=scheme.scope == "rows")
        if len(sections) == 1:
            return self._run_section(run, scheme)
        run_in_turn(run, sections, lambda section: self._run_section(section, scheme))
        return True

    def _run_foreseen(self, run: Run, scheme: Scheme) -> bool:
        """The same where keys depend on rows: by sections in which they are certain."""
        run_section = self._run_shared if scheme.kind.plans_itself else self._run_section
        most = len(run.order) if scheme.kind.plans_itself else max(map(len, cut(run)))
        foresight = Foresight(run, most, self._stretch_min())
        sections = iter(foresight)
        first = next(sections)
        if len(first) == len(run.order):
            return foresight.is_certain and run_section(run, scheme)
        run_in_turn(
            run,
            chain([first], sections),
            lambda section: foresight.is_certain and run_section(section, scheme),
        )
        why = f"keys that depend on rows: {foresight.sections} sections in which they are certain"
        if foresight.alone:
            why += f", {foresight.alone} transactions one after another"
        self.decisions.append(Decision(str(scheme), why))
        return True

    def _stretch_min(self) -> int:
        """Fewer events than this are not worth their threads, as far as is known."""
        return max(2, int(self.costs.start_ns / self.cost_ns)) if self.cost_ns else STRETCH_MIN

    def _shared_min(self) -> int:
        """The same of a stretch between events that look, which is a run of its own."""
        return max(self._stretch_min(), int(ALONE_NS / self.cost_ns) if self.cost_ns else 1024)

    def _run_shared(self, run: Run, scheme: Scheme) -> bool:
        """Let all threads plan and run the batch at once; False when it was put back."""
        done = self.share(run.shared(), scheme)
        if done:
            run.outcome[:] = run.reason != 0
        return done

    def share(self, batch: SharedBatch, scheme: Scheme) -> bool:
        """Let all threads plan and run a batch at once; False when it was put back."""
        began, threads = self.clock.monotonic(), min(scheme.threads, batch.count)
        if not self.sharing.has_room(batch, threads):
            self.attempts.failed()
            why = f"{scheme} would need too much room: its events name too many rows"
            self.decisions.append(Decision("serial", why))
            return False
        kernel = self.readiness.transaction_kernels[scheme.kind.kernel]
        done = self.sharing.run(kernel, batch, threads, self.is_timed)
        self.breakdown = None
        self._note_breakdown(self.sharing.times, began, began)
        if done:
            self.attempts.ran((self.clock.monotonic() - began) / batch.count * 1e9)
        else:
            self.attempts.failed()
            self.decisions.append(_could_not(scheme))
        return done

    def _run_section(self, run: Run, scheme: Scheme) -> bool:
        """The same for a batch, or a section of one, that is planned as a whole."""
        if scheme.is_chosen:
            return self._run_decided(run, scheme)
        batch = TransactionBatch(self, run, scheme)
        done = self._run_units(batch, scheme) if scheme.by_units else self._run_transactions(batch)
        if not done:
            self.decisions.append(_could_not(scheme))
        return done

    def _run_decided(self, run: Run, scheme: Scheme) -> bool:
        """Ask the model and do as it says, for the whole batch or for groups that share no row."""
        given_up = self.readiness.whole_given_up  # maybe by the section before
        if given_up is not None:
            self.decisions.append(given_up)
            return False
        batch = TransactionBatch(self, run, scheme)
        decision = batch.decide(scheme.threads)
        if run.whole is not None:
            decision = replace(decision, why=f"a section of the batch: {decision.why}")
        if decision.scheme != SERIAL.name or batch.is_planned:
            serial_ns = self.load_of(run, scheme.threads).serial_ns
            nested = nest(run, batch, decision, serial_ns) if not run.is_part else None
            if nested is not None:
                self.decisions.extend(nested.decisions)
                nested.work(self._run_as_decided)
                return True
        self.decisions.append(decision)
        return self._run_as_decided(batch, decision)

    def _run_as_decided(self, batch: TransactionBatch, decision: Decision) -> bool:
        """Run a planned batch by the scheme decided on; False when it must be serial."""
        if decision.scheme == SERIAL.name:
            return False
        chosen = make_scheme(decision.scheme, batch.scheme.threads)
        refused = self.readiness.given_up(chosen)
        if refused is not None:
            self.decisions.append(refused)
            return False
        if chosen.by_units:
            return self._run_units(batch, chosen)
        batch.scheme = replace(batch.scheme, name=chosen.name)
        return self._run_transactions(batch)

    def _run_transactions(self, batch: TransactionBatch) -> bool:
        """Run whole transactions in the tables; False when they were put back as they were."""
        began = self.clock.monotonic()
        crew = batch.crew()
        planned = self.clock.monotonic()
        crew.work(self.readiness.kernels_of(batch.scheme)[batch.scheme.kind.kernel])
        self._note_breakdown(crew.times, began, planned)
        if crew.raised[0]:
            crew.put_back()
            return False
        crew.collect(batch.scheme.kind.is_isolated)
        return True

    def _run_units(self, batch: TransactionBatch, scheme: Scheme) -> bool:
        """Run the batch by operations over versions; False when it must be run serially."""
        began = self.clock.monotonic()
        units = batch.units
        if units is None:
            batch.resolve()
            units = self.unit_batch(batch.run, scheme.kind.is_whole)
        crew = UnitCrew(units, scheme, self.is_timed)
        planned = self.clock.monotonic()
        if not crew.work():
            return False
        crew.install()
        self._note_breakdown(crew.times, began, planned)
        return True

    def unit_batch(self, run: Run, whole: bool = False) -> UnitBatch:
        """The operations of a resolved batch, of use until the next one; of a part, for longer."""
        scratch = None if run.is_part else self._scratch  # the other part may want it just now
        return UnitBatch(self.readiness.unit_kernels, run, whole, scratch)

    def explain(self, works: Sequence[Work], order: EventRows, route: np.ndarray) -> Figures:
        """The figures of the graph of a resolved batch's operations; nothing runs."""
        if self.program.compiled_count < len(self.program.signatures):
            raise InputError("explain needs compiled transactions")
        refused = self.readiness.serial("the graph of operations", *UNIT_PLAN)
        if refused is not None:
            raise InputError(f"explain: {refused.why}")
        run = Run(self.program, works, order, route, 0)
        TransactionBatch(self, run, SERIAL).resolve()
        sections = Foresight(run, len(order)).predict() if self.program.is_dynamic else 0
        batch = UnitBatch(self.readiness.unit_kernels, run, whole=False)
        figures = measure(
            batch.graph, batch.tasks("operation"), batch.tasks("chain"), batch.labels()
        )
        looks = find_looks(run)
        run.release({})
        dynamic = run.dynamic_count()
        return replace(figures, dynamic=dynamic, certain_sections=sections, looks=looks)

    # --- what was learnt ----------------------------------------------------------------------

    def _learn(self, seconds: float, transactions: int) -> None:
        """Remember what a transaction costs one after another, the last batches counting most."""
        self.probing.learnt()
        self.attempts.passed()
        cost_ns = seconds / transactions * 1e9
        before = self.cost_ns if self.cost_ns is not None else cost_ns
        self.cost_ns = 0.7 * before + 0.3 * cost_ns

    def note_pace(self, seconds: float, transactions: int) -> None:
        """Remember how fast a parallel batch went: a change may mean that costs have changed."""
        if transactions >= COST_SAMPLE_MIN:
            self.probing.ran(seconds / transactions * 1e9)

    def _note_breakdown(self, times: np.ndarray, began: float, planned: float) -> None:
        """Add what the threads of one group of the batch counted."""
        if not self.is_timed:
            return
        found = ticks.breakdown(times, planned - began, self.clock.monotonic() - planned)
        with self._lock:
            before: Mapping[str, float] = self.breakdown or {}
            self.breakdown = {part: before.get(part, 0.0) + s for part, s in found.items()}


# --- whether the kernels of a scheme compile, found out once --------------------------------------
# What does not compile costs nobody a batch: it is tried before anything runs, the batch runs
# serially, which gives the bytes that every scheme promises, and the decision says why.


class Readiness:
    """The kernels of one program beyond the serial one, each tried at most once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._refusals: dict[str, str | None] = {}  # by kernel: why it does not compile
        # What the model chose and could not have: serial, and why. It is not asked again, for
        # the graph that it decides by would be built for nothing.
        self.whole_given_up: Decision | None = None
        self.units_given_up: Decision | None = None

    @cached_property
    def unit_kernels(self) -> UnitKernels:
        """The kernels that run a batch by operations, made when first asked for."""
        return build_unit_kernels(self.program.compiled_kernel.generator)

    @cached_property
    def transaction_kernels(self) -> Mapping[str, Any]:
        """The kernels by which threads share whole transactions, made when first asked for."""
        return build_transaction_kernels(self.program.compiled_kernel.generator)

    @cached_property
    def virtual_kernels(self) -> Mapping[str, Any]:
        """The same, where a key that depends on rows touches the whole of its table."""
        generator = self.program.compiled_kernel.generator
        return build_transaction_kernels(generator, is_virtual=True)

    def kernels_of(self, scheme: Scheme) -> Mapping[str, Any]:
        """The kernels of whole transactions for a scheme."""
        return self.virtual_kernels if scheme.kind.is_virtual else self.transaction_kernels

    @cached_property
    def protocol_kernels(self) -> Mapping[str, Any]:
        """The kernels of the protocols, made when first asked for."""
        return build_protocol_kernels(self.program.compiled_kernel.generator)

    def refusal(self, *names: str) -> str | None:
        """Compile these kernels where that was not tried before; why the first one cannot be."""
        for name in names:
            if name not in self._refusals:
                self._refusals[name] = self._try(name)
            if (why := self._refusals[name]) is not None:
                return why
        return None

    def decision(self, scheme: Scheme) -> Decision | None:
        """Serial, and why, for a scheme that cannot run here; None for one that can."""
        return self.serial(f"{scheme}", *needed(scheme))

    def given_up(self, scheme: Scheme) -> Decision | None:
        """As `decision`, of a scheme that the model chose; what it cannot have is remembered."""
        refused = self.decision(scheme)
        if refused is not None and scheme.by_units:
            self.units_given_up = refused
        elif refused is not None:
            self.whole_given_up = refused
        return refused

    def serial(self, what: str, *names: str) -> Decision | None:
        why = self.refusal(*names)
        if why is None:
            return None
        return Decision("serial", f"{what} cannot be compiled for these transactions: {why}")

    def _try(self, name: str) -> str | None:
        try:
            compile_first(self._kernel(name))
        except Exception as error:  # Numba's own kinds, LLVM's, and what a cache may raise
            return f"{type(error).__name__}: {reason_of(error)}"
        return None

    def _kernel(self, name: str) -> Any:
        family, _, own = name.rpartition(".")
        if family == "units":
            return self.unit_kernels.kernels[own]
        if family == "virtual":
            return self.virtual_kernels[own]
        if family == "protocol":
            return self.protocol_kernels[own]
        if family == "serial":
            return getattr(self.program.compiled_kernel, own)
        return self.transaction_kernels[own]
