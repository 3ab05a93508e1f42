"""Sources: which sink sent which micro-batch, and the results it gets when it sends one again.

Each batch of a source is applied at most once; the log, or here the last results, remember it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from headgate.engine.inlet import Plan
from headgate.engine.journal import Journal
from headgate.engine.memory import Memory, Source
from headgate.engine.metrics import Tally
from headgate.engine.results import results_arrow, with_epoch
from headgate.engine.streams import joined, told
from headgate.errors import InputError
from headgate.execution.run import OUTCOMES

APPLIED_KEPT = 16  # micro-batches of each source
Caller = tuple[str, object]  # the run of a query, and the sink that it called
Apply = Callable[[Plan, pa.Table, Source | None, Caller | None], pa.Table]


@dataclass(frozen=True, repr=False)
class Applied:
    """What became of one micro-batch in one stream."""

    stream: str
    batch: int
    epoch: int
    outcomes: Mapping[str, int]
    held: int  # by the stream's inlet, after it

    def __repr__(self) -> str:
        told = ", ".join(f"{count} {name}" for name, count in self.outcomes.items() if count)
        held = f", {self.held} held" if self.held else ""
        return f"{self.stream}: {told or 'no results'}{held}, epoch {self.epoch}"


class Sources:
    """The sources of one engine; used under the engine's lock."""

    def __init__(self, memory: Memory, journal: Journal) -> None:
        self._memory = memory
        self._journal = journal
        self._recent: dict[str, pa.Table] = {}  # in memory only: the last results of each source
        self._callers: dict[
            str, tuple[str, int, object]
        ] = {}  # source -> its last run, batch, sink
        self._applied: dict[str, deque[Applied]] = {}  # source -> its last batches

    def has_applied(self, source: Source, caller: Caller | None) -> bool:
        """Whether this micro-batch, or a later one of its query, was committed before."""
        self._refuse_twin(source, caller)
        return self._memory.has_applied(source)

    def _refuse_twin(self, source: Source, caller: Caller | None) -> None:
        """Two sinks in one foreachBatch come with one batch number: only names tell them apart.

        In one run of a query a batch number comes once to each sink, so a second sink with it is
        another; in a new run it is the same batch sent again.
        """
        if caller is None:
            return
        run, sink = caller
        before = self._callers.get(source[0])
        if before is not None and before[:2] == (run, source[1]) and before[2] is not sink:
            raise InputError(
                f"two sinks of this engine got batch {source[1]} of one query; "
                "give each of them a name: engine.sink(..., name='deposits')"
            )
        self._callers[source[0]] = (run, source[1], sink)

    def note(
        self,
        source: Source | None,
        batch: pa.RecordBatch,
        tally: Tally,
        epoch: int,
        stream: str,
        inlet: str,
    ) -> None:
        """Keep what became of an applied batch, and its results where no log does."""
        if source is not None:
            state = self._memory.inlets.get(inlet)
            held = 0 if state is None or state.held is None else state.held.num_rows
            counts = dict(zip(OUTCOMES, tally.outcomes, strict=True))
            told = Applied(stream, source[1], epoch, counts, held)
            self._applied.setdefault(source[0], deque(maxlen=APPLIED_KEPT)).append(told)
        if self._journal.store is None and batch.num_rows:
            self._memory.keep_results(batch)
        if source is not None and self._journal.store is None:
            self._recent[source[0]] = with_epoch(batch, epoch)

    def applied(self, query: str, batch: int) -> tuple[Applied, ...]:
        """What became of a micro-batch of a query; of the last few, since the engine was opened."""
        named = [
            tuple(kept)
            for source, kept in self._applied.copy().items()
            if source == query or source.startswith(f"{query}/")
        ]
        return tuple(one for kept in named for one in kept if one.batch == batch)

    def recorded(self, plan: Plan, source: Source, wait: Callable[[int], None]) -> pa.Table:
        """The results that were recorded when this very micro-batch was first applied."""
        empty = results_arrow(plan).empty_table()
        batch_id, epoch = self._memory.sources[source[0]]
        if self._journal.store is None:
            recent = self._recent.get(source[0])
            return recent if recent is not None and batch_id == source[1] else empty
        wait(epoch)
        if batch_id != source[1]:
            return empty  # older than the last: Spark does not ask for its results
        batch = self._journal.results(epoch)
        return empty if batch is None else with_epoch(batch, epoch)


class EngineInlet:
    """What a sink needs of an engine: the columns to fetch, a place for a batch, a flush."""

    def __init__(
        self,
        plan: Plan,
        apply: Apply,
        flush: Callable[[Plan, str], pa.Table],
        check: Callable[[Plan, pa.Schema], None],
        held: Callable[[], dict[str, int]],
        applied: Callable[[str, int], tuple[Applied, ...]],
    ) -> None:
        self._plan = plan
        self._apply = apply
        self._flush = flush
        self._check = check
        self._held = held
        self._applied = applied
        self._last: Source | None = None  # the micro-batch that came last
        self._fed: dict[str, None] = {}  # the inlets that it put batches in

    @property
    def columns(self) -> list[str]:
        return self._plan.columns

    def apply(self, events: pa.Table, source: Source | None, run: str | None = None) -> pa.Table:
        """One micro-batch, known by its query, its number and the sink's name if it has one.

        The transactions are not part of that name: a program that was changed between a crash and
        its restart must still recognise the batch that it had committed.
        """
        if source is not None and self._plan.name is not None:
            source = (f"{source[0]}/{self._plan.name}", source[1])
        caller = None if run is None else (run, self)
        self._last = source
        self._fed[self._plan.inlet_name(source)] = None
        return self._apply(self._plan, events, source, caller)

    def __repr__(self) -> str:
        plan = self._plan
        told = ", ".join(transaction.name for transaction in plan.route.transactions)
        told += f" by {plan.route.column}" if plan.route.column is not None else ""
        order = ", ".join(column.name for column in plan.order_by)
        return told + (f" in the order of {order}" if order else "")

    def progress(self) -> Applied | None:
        """What became of the micro-batch that came last; None of one that had no events."""
        found = () if self._last is None else self._applied(*self._last)
        return found[-1] if found else None

    def check(self, given: pa.Schema) -> None:
        """Refuse events of this schema at once, as they would be when they come."""
        self._check(self._plan, given)

    def flush(self, query: str | None = None) -> pa.Table:
        """Run what is held back of this sink's events, of all its queries or of one."""
        inlets = list(self._fed)
        if self._plan.name is not None or query is not None:
            inlets = [self._plan.inlet_name(None if query is None else (query, 0))]
        if not inlets:
            raise InputError(
                "this sink has taken no micro-batch since its engine was opened, so it is not "
                "known which query is its own: use sink.flush(query), or name=; "
                f"{told(self._held())}"
            )
        return joined([self._flush(self._plan, inlet) for inlet in inlets])
