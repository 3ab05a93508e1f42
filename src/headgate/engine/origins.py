"""Origins: which sink sent which micro-batch, and the results it gets when it sends one again.

Each batch of an origin is applied at most once; the log, or here the last results, remember it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from headgate.engine.calls.answers import made
from headgate.engine.journal import Journal
from headgate.engine.memory import Memory
from headgate.engine.metrics import StreamMetrics, Tally
from headgate.engine.results import results_arrow, with_epoch
from headgate.engine.terms import Origin, Terms
from headgate.errors import InputError
from headgate.execution.run import OUTCOMES
from headgate.parallel.figures import Figures

LOG = logging.getLogger("headgate.streams")
APPLIED_KEPT = 16  # micro-batches of each query
Caller = tuple[str, object]  # the run of a query, and the sink that it called


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


class Origins:
    """The origins of one engine's batches; used under the engine's lock."""

    def __init__(self, memory: Memory, journal: Journal) -> None:
        self._memory = memory
        self._journal = journal
        self._recent: dict[str, pa.Table] = {}  # in memory only: the last results of each query
        # By query: its last run, batch and sink.
        self._callers: dict[str, tuple[str, int, object]] = {}
        self._applied: dict[str, deque[Applied]] = {}  # by query: its last batches
        self._seen: set[str] = set()  # the queries that sent a batch since the engine was opened

    def has_applied(self, origin: Origin, caller: Caller | None) -> bool:
        """Whether this micro-batch, or a later one of its query, was committed before."""
        self._refuse_twin(origin, caller)
        self._warn_of_gap(origin)
        return self._memory.has_applied(origin)

    def _warn_of_gap(self, origin: Origin) -> None:
        """Say so when the first batch of a query does not follow the last that the store has.

        Spark counts what lies between as done. It may have been empty, which leaves no trace; but a
        store that was restored to an earlier epoch does not have it.
        """
        query, batch = origin
        if query in self._seen:
            return
        self._seen.add(query)
        last, epoch = self._memory.origins.get(query, (batch, 0))
        if batch > last + 1:
            LOG.warning(
                "query %s comes with batch %d, and the last of it that this store has is batch %d "
                "(epoch %d): unless those between had no events, this store is an older copy than "
                "the checkpoint, and their events are missing. To have Spark send them again, stop "
                "the query and remove the files with numbers above %d, those that end in .compact "
                "or .crc too, from the folders offsets, commits and sources/* of its checkpoint.",
                query, batch, last, epoch, last,
            )  # fmt: skip

    def _refuse_twin(self, origin: Origin, caller: Caller | None) -> None:
        """Two sinks in one foreachBatch come with one batch number: only names tell them apart.

        In one run of a query a batch number comes once to each sink, so a second sink with it is
        another; in a new run it is the same batch sent again.
        """
        if caller is None:
            return
        run, sink = caller
        before = self._callers.get(origin[0])
        if before is not None and before[:2] == (run, origin[1]) and before[2] is not sink:
            raise InputError(
                f"two sinks of this engine got batch {origin[1]} of one query; "
                "give each of them a name: engine.sink(..., name='deposits')"
            )
        self._callers[origin[0]] = (run, origin[1], sink)

    def note(
        self,
        origin: Origin | None,
        batch: Any,
        tally: Tally,
        epoch: int,
        stream: str,
        inlet: str,
    ) -> None:
        """Keep what became of an applied batch, and its results where no log does.

        They may be such that the batch is made of when somebody asks for it.
        """
        if origin is not None:
            state = self._memory.inlets.get(inlet)
            held = 0 if state is None or state.held is None else state.held.num_rows
            counts = dict(zip(OUTCOMES, tally.outcomes, strict=True))
            told = Applied(stream, origin[1], epoch, counts, held)
            self._applied.setdefault(origin[0], deque(maxlen=APPLIED_KEPT)).append(told)
        if self._journal.store is None and batch.num_rows:
            self._memory.keep_results(batch)
        if origin is not None and self._journal.store is None:
            self._recent[origin[0]] = with_epoch(made(batch), epoch)

    def applied(self, query: str, batch: int) -> tuple[Applied, ...]:
        """What became of a micro-batch of a query; of the last few, since the engine was opened."""
        named = [
            tuple(kept)
            for origin, kept in self._applied.copy().items()
            if origin == query or origin.startswith(f"{query}/")
        ]
        return tuple(one for kept in named for one in kept if one.batch == batch)

    def recorded(self, terms: Terms, origin: Origin, wait: Callable[[int], None]) -> pa.Table:
        """The results that were recorded when this very micro-batch was first applied."""
        empty = results_arrow(terms).empty_table()
        batch_id, epoch = self._memory.origins[origin[0]]
        if self._journal.store is None:
            recent = self._recent.get(origin[0])
            return recent if recent is not None and batch_id == origin[1] else empty
        wait(epoch)
        if batch_id != origin[1]:
            return empty  # older than the last: Spark does not ask for its results
        batch = self._journal.results(epoch)
        return empty if batch is None else with_epoch(batch, epoch)


class Way(Protocol):
    """The way of an engine's batches (batch.py), as far as streams and sinks need it."""

    def apply(
        self,
        terms: Terms,
        events: pa.Table,
        origin: Origin | None = None,
        caller: Caller | None = None,
    ) -> pa.Table: ...

    def apply_pipelined(self, terms: Terms, events: pa.Table, batch_size: int) -> pa.Table: ...

    def flush(self, terms: Terms, inlet: str) -> pa.Table: ...

    def check(self, terms: Terms, given: pa.Schema) -> None: ...

    def explain(self, terms: Terms, events: pa.Table) -> Figures: ...

    def metrics_of(self, stream: str) -> StreamMetrics: ...

    def applied(self, query: str, batch: int) -> tuple[Applied, ...]: ...

    def held(self, inlet: str) -> int: ...

    def who_holds(self) -> str: ...


class Feed:
    """The batches of one sink on their way into its stream: each is run once, by its origin."""

    def __init__(self, terms: Terms, way: Way) -> None:
        self._terms = terms
        self._way = way
        self._last: Origin | None = None  # the micro-batch that came last
        self._fed: dict[str, None] = {}  # the inlets that it put batches in

    def apply(self, events: pa.Table, origin: Origin | None, run: str | None = None) -> pa.Table:
        """One micro-batch, known by its query, its number and the stream's name if it has one.

        The transactions are not part of that name: a program that was changed between a crash and
        its restart must still recognise the batch that it had committed.
        """
        if origin is not None and self._terms.name is not None:
            origin = (f"{origin[0]}/{self._terms.name}", origin[1])
        caller = None if run is None else (run, self)
        self._last = origin
        self._fed[self._terms.inlet_name(origin)] = None
        return self._way.apply(self._terms, events, origin, caller)

    def progress(self) -> Applied | None:
        """What became of the micro-batch that came last; None of one that had no events.

        What is held back is so now: a flush may have run it since the batch came.
        """
        found = () if self._last is None else self._way.applied(*self._last)
        if not found:
            return None
        return replace(found[-1], held=self._way.held(self._terms.inlet_name(self._last)))

    def flush(self, query: str | None = None) -> pa.Table:
        """Run what is held back of this sink's events, of all its queries or of one."""
        inlets = list(self._fed)
        if self._terms.name is not None or query is not None:
            inlets = [self._terms.inlet_name(None if query is None else (query, 0))]
        if not inlets:
            raise InputError(
                "this sink has taken no micro-batch since its engine was opened, so it is not "
                "known which query is its own: use sink.flush(query), or name=; "
                f"{self._way.who_holds()}"
            )
        results = [self._way.flush(self._terms, inlet) for inlet in inlets]
        if len(results) == 1:
            return results[0]
        return pa.concat_tables(results, promote_options="permissive")
