"""Parts: events that run as a part of an epoch, which commits later, with others.

A kernel lists a row that it changes once in an epoch, by the number in its header. So a part runs
under a number of its own, and gives the rows that of the epoch when it has run. Invariant: a part
lists all rows that it changed, those with them that others changed before it in the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from headgate.engine.journal import Guard
from headgate.engine.ordering import arranger_of, in_commit_order
from headgate.engine.results import build_results
from headgate.engine.straight_path import StraightPath, Until, straight_of
from headgate.engine.straight_results import Made
from headgate.engine.terms import Terms
from headgate.execution.straight_run import restamp
from headgate.isolation.levels import Executor
from headgate.state.spaces import Slots, Words
from headgate.transactions import Transaction

PART_OF_EPOCH = 1 << 48  # beyond all epochs: with it the number of one stands for a part of it
Executors: TypeAlias = Callable[[Sequence[Transaction], bool], Executor]


class EpochPart(NamedTuple):
    """What running events as a part of an epoch gave."""

    results: pa.RecordBatch
    changed: Mapping[str, Slots]
    is_exact: bool  # whether these are all slots that it changed


class PlainEpochPart(NamedTuple):
    """The same by the straight path."""

    events: pa.Table  # as they ran: in order, in one piece
    made: Made
    changed: dict[str, Slots]
    before: dict[str, Words] | None  # the rows as they were, where they are kept


class EpochParts:
    """Runs parts of epochs, under the engine's lock."""

    def __init__(self, executors: Executors, guard: Guard) -> None:
        self._executors, self._guard = executors, guard

    def run(self, terms: Terms, events: pa.Table, epoch: int) -> EpochPart:
        """Run events, whatever they are."""
        executor = self._executors(terms.route.transactions, terms.updates)
        program = executor.program
        arranged = arranger_of(terms, program).arrange(events, None)
        # Versions of rows are of the epoch itself.
        is_exact = not program.trailed and not program.sets_expiry
        given = epoch | PART_OF_EPOCH if is_exact else epoch
        with self._guard.all_or_stopped():
            program.resolve(arranged.works)
            execution = executor.execute(
                arranged.works, arranged.order, arranged.route, given, terms.scheme, terms.isolation
            )
            arranged = in_commit_order(arranged, execution, terms)
            batch, _ = build_results(terms, arranged, execution, program)
            for name, slots in execution.changed.items() if is_exact else ():
                restamp(program.tables[name], slots, epoch)
        return EpochPart(batch, execution.changed, is_exact)

    def run_plain(
        self, terms: Terms, events: pa.Table, epoch: int, *, keeps: bool = False,
        until: Until | None = None,
    ) -> PlainEpochPart | None:  # fmt: skip
        """The same by the straight path, where the events are plain; else None, and nothing ran.

        With `keeps` the rows that they change are kept as they were; by `until` not all run.
        """
        path = straight_of(terms, self._executors(terms.route.transactions, terms.updates))
        plain = None if path is None else path.take(events)
        if (
            path is None
            or plain is None
            or not _is_alone(path, plain.scheme.is_serial, keeps, until)
        ):
            return None
        with self._guard.all_or_stopped():
            ran = path.run(plain, epoch | PART_OF_EPOCH, keeps=keeps, until=until)
            before = path.end_part(epoch, keeps=keeps)
            return PlainEpochPart(plain.events, ran.made(), ran.changed, before)


def _is_alone(path: StraightPath, is_serial: bool, keeps: bool, until: Until | None) -> bool:
    """Whether one thread has all rows at hand, where they are to be kept, or an end to be found."""
    return (is_serial and not path.program.is_dynamic) or not (keeps or until is not None)
