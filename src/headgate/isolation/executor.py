"""The executor: what the engine hands its batches to, with the level of isolation they ask for.

A protocol runs a batch below the serial order, or because it was named; all others go to the
scheduler, whose threads keep the event order. What a protocol cannot run, the scheduler runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.execution.program import Program
from headgate.execution.run import Run, Work
from headgate.io import Clock
from headgate.isolation.levels import (
    LEVELS,
    Isolated,
    choose_protocol,
    run_isolated,
    scratch_rows,
)
from headgate.parallel.decision import Decision
from headgate.parallel.figures import Figures
from headgate.parallel.scheduler import Scheduler
from headgate.parallel.scheme import SERIAL, Scheme, make_scheme


@dataclass(frozen=True)
class Execution:
    """What running a batch gave, by position: outcome and reason codes, and the changed slots."""

    outcome: np.ndarray
    reason: np.ndarray  # 0, a text's code, or -1 - i for the i-th fixed reason
    fixed_reasons: tuple[str, ...]
    changed: Mapping[str, np.ndarray]
    written: Mapping[str, tuple[str, ...]]  # by table: the only columns that rows may differ in
    isolated: Isolated | None = None  # when a protocol ran it: the order of its commits


class Executor:
    """Runs the batches of one program."""

    def __init__(self, program: Program, clock: Clock | None = None) -> None:
        self.program = program
        self.scheduler = Scheduler(program, clock)
        self.retries = 0  # how often a transaction ran again because another was faster

    @property
    def decisions(self) -> deque[Decision]:
        """What was chosen for the last batches, and why."""
        return self.scheduler.decisions

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
        """Run resolved events in this order; `route` has the number of each one's transaction."""
        program = self.program
        protocol = self._protocol(scheme, isolation, len(order))
        if protocol is not None:
            for table in program.kernel.tables if program.kernel is not None else ():
                program.tables[table.name].reserve(scratch_rows(works, protocol.threads))
        run = Run(program, works, order, route, epoch)
        isolated = None
        if protocol is not None:
            isolated = self._isolated(run, protocol, LEVELS[isolation], is_recorded)
        if isolated is None:
            self.scheduler.run(run, SERIAL if scheme.is_protocol else scheme)
        changed = run.changed()
        run.release(changed)
        return Execution(
            run.outcome, run.reason, program.fixed_reasons, changed, program.written, isolated
        )

    def _isolated(
        self, run: Run, protocol: Scheme, level: int, is_recorded: bool
    ) -> Isolated | None:
        """Run it by a protocol; None when it was put back and must run in event order."""
        clock, kernels = self.scheduler.clock, self.scheduler.readiness.protocol_kernels
        began = clock.monotonic()
        isolated = run_isolated(kernels, run, protocol, level, is_recorded)
        if isolated is not None:
            self.retries += isolated.retries
            self.scheduler.note_pace(clock.monotonic() - began, len(run.order))
        return isolated

    def _protocol(self, scheme: Scheme, isolation: str, count: int) -> Scheme | None:
        """The protocol that runs a batch, or None when it runs in event order."""
        scheduler, program = self.scheduler, self.program
        protocol, chosen = scheme, None
        if scheme.is_chosen:
            if scheduler.probing.is_due:
                return None
            cost_ns, threads = scheduler.cost_ns, scheme.threads
            chosen = choose_protocol(isolation, cost_ns, count, threads, scheduler.costs)
            if chosen is None or program.constraints:
                return None
            protocol = make_scheme(chosen.scheme, threads)
        if not protocol.is_protocol or not count:
            return None
        why = self._unfit()
        if why is not None:
            self.decisions.append(Decision("serial", f"{protocol} cannot see to it: {why}"))
            return None
        protocol = replace(protocol, threads=min(protocol.threads, count))
        refused = scheduler.readiness.decision(protocol)
        noted = refused if refused is not None else chosen
        if noted is not None:
            self.decisions.append(noted)
        return protocol if refused is None else None

    def _unfit(self) -> str | None:
        """Why no protocol can run these transactions; None if one can."""
        program = self.program
        if program.constraints:
            return program.constraints[0].name
        is_plain = program.compiled_count < len(program.signatures)
        return "a plain Python function" if is_plain else None

    def explain(self, works: Sequence[Work], order: np.ndarray, route: np.ndarray) -> Figures:
        """The figures of the graph of a resolved batch, which does not run."""
        return self.scheduler.explain(works, order, route)
