"""The straight path: a plain batch from Arrow to Arrow, with nothing that it does not need.

Plain is what most batches are: events of compiled transactions in columns of the declared types,
without a null where a value is needed, in their order already, with nothing held back and no reason
to share the work. Such a batch is taken where it lies in memory, and its results leave in the
buffers that the kernel wrote; columns that are the same for every batch are made once. All else
takes the general way (batch.py). Invariant: both give the same rows, results and record in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from headgate.durability.log_record import PIECE_ROWS_MAX
from headgate.durability.plain_batches import PlainBatch
from headgate.engine.calls.keyed import KEY
from headgate.engine.journal import OpenRecord
from headgate.engine.ordering import arranger_of
from headgate.engine.results import lacks
from headgate.engine.sorting import is_sorted_throughout
from headgate.engine.straight_results import Made, StraightResults, is_wide
from headgate.engine.terms import Terms
from headgate.errors import check_invariant
from headgate.execution.run import Work
from headgate.execution.straight_run import Given, Interpret, StraightRun, is_straight
from headgate.isolation.levels import Executor
from headgate.kernels.pointers import BITS, address
from headgate.parallel.scheduler import COST_SAMPLE_MIN
from headgate.parallel.scheme import Scheme
from headgate.parallel.sections import LookAhead
from headgate.state.columns import is_in_time, to_stored
from headgate.state.fitting import one_array, unmarked
from headgate.state.layout import STORED
from headgate.state.spaces import EventRows, Slots, Words
from headgate.state.types import BOUNDS, PLAIN_KINDS, Column

# By columns of these types one can sort as they stand.
_SORTED = frozenset(("int", "bigint", "timestamp", "date"))
_TIMES = frozenset(("timestamp", "date"))
# Of so many events the results go to the log while the next ones run: as many as a piece of a
# record has, and enough that another thread is worth its while.
SECTION_EVENTS = PIECE_ROWS_MAX
# How many events have run, and how many of them have committed -> up to which one to run next.
Until: TypeAlias = Callable[[int, int], int]


class Plain(NamedTuple):
    """The events of a plain batch, where they stand."""

    events: pa.Table
    given: Given
    order: list[pa.Array]  # the order columns
    latest: int | None  # the last time, where the order is one of time
    scheme: Scheme  # one after another, or by threads that plan it themselves


class Need(NamedTuple):
    """One column that transactions need, and what must be asked of it."""

    column: Column
    size: np.dtype | None  # of a value; None where Arrow's are not those that kernels read
    is_time: bool  # to be tested; of the order column its ends are enough
    is_viewed: bool  # its values are looked at here, too
    owners: np.ndarray  # by transaction: whether it has the column


class Stored(NamedTuple):
    """One column of the events, as kernels read it."""

    address: int
    values: np.ndarray | None  # where more than the address is needed
    offsets: np.ndarray | None = None  # of an array column
    bits: int | None = None  # of a nullable one: where its validity stands, counted in bits
    valid: np.ndarray | None = None  # which is here, where it is not that of the events


class StraightBatch(NamedTuple):
    """What running a plain batch gave; its results are asked for once, before the next batch."""

    changed: dict[str, Slots]
    written: Mapping[str, tuple[str, ...]]  # by table: the only columns that rows may differ in
    made: Callable[[], Made]
    logged: Callable[[Made], pa.RecordBatch | PlainBatch]  # the results as the log takes them


def straight_of(terms: Terms, executor: Executor) -> StraightPath | None:
    """The straight path of batches of these terms, made once; None where there is none."""
    paths = terms.straight
    if executor not in paths:
        is_plain = is_straight(executor.program) and _is_plain(terms)
        paths[executor] = StraightPath(terms, executor) if is_plain else None
    found: StraightPath | None = paths[executor]
    return found


def _is_plain(terms: Terms) -> bool:
    is_routed = terms.route.column is not None
    return (
        terms.watermark_us is None
        and terms.isolation == "PL4"
        and terms.record is None
        and not terms.carry
        and not terms.route.ticks
        and (terms.scheme.is_serial or terms.scheme.is_chosen or terms.scheme.kind.plans_itself)
        and len(terms.order_by) <= 1
        and all(column.type.kind in _SORTED for column in terms.order_by)
        and (not is_routed or all(is_wide(column) for column in _outputs(terms)))
    )


def _outputs(terms: Terms) -> list[Column]:
    return [one for found in terms.route.transactions for one in found.output or ()]


class StraightPath:
    """Runs the plain batches of one stream."""

    def __init__(self, terms: Terms, executor: Executor) -> None:
        self._terms, self._executor = terms, executor
        self.program = self._program = executor.program
        self._signatures = self._program.signatures
        self._routing = arranger_of(terms, self._program).routing
        self._run = StraightRun(self._program)
        self._ahead = LookAhead(self._run)
        self._order = terms.order_by[0] if terms.order_by else None
        self._order_key = None if self._order is None else _key(self._order)
        # By transaction: which of the needed columns are its own, in their order.
        self._own = [[_key(column) for column in one.event] for one in self._signatures]
        self._needs = self._all_needs()
        self._schema: pa.Schema | None = None  # of events that may be plain
        self._places: dict[str, int] = {}  # of the columns in that schema
        self._first_place = 0  # of one that is needed
        self._results = StraightResults(terms, self._program)

    def _all_needs(self) -> dict[tuple[str, str], Need]:
        creating = [access for one in self._signatures for access in one.accesses if access.create]
        viewed = {name for access in creating for name in access.columns}
        found = {}
        for column in (column for one in self._signatures for column in one.event):
            key, kind = _key(column), column.type.kind
            size, is_time = np.dtype(STORED[kind]) if kind in PLAIN_KINDS else None, kind in _TIMES
            is_order = key == self._order_key
            is_viewed, is_time = (
                is_time or is_order or column.name in viewed,
                is_time and not is_order,
            )
            owners = np.array([key in own for own in self._own])
            found[key] = Need(column, size, is_time, is_viewed, owners)
        return found

    # --- arrive -------------------------------------------------------------------------------

    def take(self, events: pa.Table) -> Plain | None:
        """The events if they are plain, and there is no need to look at them closer."""
        schema, count = events.schema, events.num_rows
        if not count or not (schema is self._schema or self._knows(schema)):
            return None
        if events.column(self._first_place).num_chunks > 1:
            events = events.combine_chunks()
        route = None
        if self._routing is not None:
            route = self._route(events)
            if route is None:
                return None
        stored: dict[tuple[str, str], Stored] = {}
        for key, need in self._needs.items():
            found = self._stored(events, key, need, route)
            if found is None:
                return None
            stored[key] = found
        latest = None
        if self._order is not None and self._order_key is not None:
            values, kind = stored[self._order_key].values, self._order.type.kind
            if values is None or not is_sorted_throughout(values):
                return None
            last = int(values[-1])
            if kind in _TIMES and not (values[0] >= BOUNDS[kind][0] and last <= BOUNDS[kind][1]):
                return None
            latest = last if kind == "timestamp" else None
        given = self._given(count, route, stored)
        scheduler, operations = self._executor.scheduler, self._run.operations(given)
        scheme = scheduler.plain_scheme(self._terms.scheme, count, operations)
        if scheme is None:
            return None
        return Plain(events, given, self._order_columns(stored), latest, scheme)

    def _order_columns(self, stored: Mapping[tuple[str, str], Stored]) -> list[pa.Array]:
        """The order column for the results: a copy, for the events are the caller's and may
        change."""
        if self._order is None or self._order_key is None:
            return []
        values = _values(stored[self._order_key]).copy()
        buffers = [None, pa.py_buffer(values)]
        return [pa.Array.from_buffers(self._order.type.arrow, len(values), buffers)]

    def _knows(self, schema: pa.Schema) -> bool:
        """Whether events of this schema may be plain; where their columns are is remembered."""
        if self._schema is not None and schema.equals(self._schema):
            return True
        names, wanted = schema.names, self._terms.columns
        if KEY in names or any(names.count(name) != 1 for name in wanted):
            return False
        places = {name: names.index(name) for name in wanted}
        for column, size, *_ in self._needs.values():
            is_as_declared = schema.field(places[column.name]).type == column.type.arrow
            if size is not None and not is_as_declared:
                return False
        self._schema, self._places = schema, places
        self._first_place = next(iter(places.values()), 0)
        return True

    def _chunk(self, events: pa.Table, name: str) -> pa.Array | None:
        """A column in one piece."""
        column = events.column(self._places[name])
        return column.chunk(0) if column.num_chunks == 1 else None

    def _route(self, events: pa.Table) -> np.ndarray | None:
        """The transaction of each event, if all have one."""
        array = self._chunk(events, str(self._terms.route.column))
        if array is None or array.null_count or self._routing is None:
            return None
        values, faults = unmarked(one_array(array))
        if faults is not None:
            return None
        route = self._routing.numbers(values)
        return None if route.min(initial=0) < 0 else np.ascontiguousarray(route, np.int64)

    def _stored(
        self, events: pa.Table, key: tuple[str, str], need: Need, route: np.ndarray | None
    ) -> Stored | None:
        """A column that has a value for every event that needs one; None if it has not."""
        column, size, is_time, is_viewed, owners = need
        array = self._chunk(events, column.name)
        if array is None:
            return None
        if size is None:
            where = f"events: {column.name!r}"
            found = to_stored(array, column.type, self._program.pool, where, column.nullable)
            if found.faults is not None:
                return None
            valid = None if found.nulls is None else found.valid
            bits = None if not column.nullable else 0 if valid is None else BITS * address(valid)
            return Stored(address(found.values), found.values, found.offsets, bits, valid)
        data, offset, values = array.buffers(), array.offset, None
        bits = None
        if column.nullable:
            bits = BITS * data[0].address + offset if array.null_count else 0
        elif array.null_count:
            flags = np.frombuffer(data[0], np.uint8)
            if route is None or key == self._order_key or lacks(flags, offset, route, owners):
                return None
        offset *= size.itemsize
        if is_viewed:
            values = np.frombuffer(data[1], size, len(array), offset)
            if is_time and not is_in_time(values, column.type.kind):
                return None
        return Stored(data[1].address + offset, values, bits=bits)

    def _given(
        self, count: int, route: np.ndarray | None, stored: Mapping[tuple[str, str], Stored]
    ) -> Given:
        """The batch as the kernel takes it, all but the room for its outputs."""
        found, place = Given(count, [], [], route), 0
        found.kept.append(stored)
        for number, (signature, own) in enumerate(zip(self._signatures, self._own, strict=True)):
            addresses = []
            for key in own:
                found_column = stored[key]
                addresses.append(found_column.address)
                if found_column.offsets is not None:
                    addresses.append(address(found_column.offsets))
                if found_column.bits is not None:
                    addresses.append(found_column.bits)
            found.columns.append(addresses)
            for access in signature.accesses:
                if not access.is_single:
                    key = _key(signature.event[access.columns[0]])
                    found.spans[place] = np.asarray(stored[key].offsets)
                elif access.create and not access.is_dynamic:
                    rows = self._program.tables[access.table.name]
                    named = [_key(signature.event[name]) for name in access.columns]
                    keys = rows.key_words([_values(stored[key]) for key in named])
                    others = np.zeros(count, np.uint8) if route is None else route != number
                    found.keys[place] = keys, others.view(np.uint8)
                place += 1
        return found

    def rows(self, count: int) -> EventRows:
        """The event row of each position: events run as they came."""
        return self._program.counted(count)

    # --- execute ------------------------------------------------------------------------------

    def is_long(self, plain: Plain) -> bool:
        """Whether a batch is worked in sections, so that its results are logged meanwhile."""
        return plain.given.count > SECTION_EVENTS and plain.scheme.is_serial

    @property
    def threads(self) -> int:
        """How many may work on a batch."""
        return self._terms.scheme.threads

    def end_part(self, epoch: int, *, keeps: bool) -> dict[str, Words] | None:
        """What has run was a part of an epoch: its rows are to be of that; they as they were, where
        they are kept."""
        before = self._run.images() if keeps else None
        self._run.restamp(epoch)
        return before

    def run(
        self, plain: Plain, epoch: int, begun: OpenRecord | None = None, *, keeps: bool = False,
        until: Until | None = None,
    ) -> StraightBatch:  # fmt: skip
        """Run a plain batch; where a record of the log is begun, the results go into it."""
        given = plain.given
        outs = []  # by transaction: words of its output x positions
        for signature in self._signatures:
            words = 0 if signature.out_layout is None else signature.out_layout.words
            outs.append(np.empty((words, given.count), np.int64))
        given.out = [address(out) for out in outs]

        def interpret(position: int) -> str | None:
            return self._interpreted(plain, outs, position, epoch)

        self._run.begin(given, epoch, keeps=keeps)
        aborted = None if plain.scheme.is_serial else self._run_shared(plain)
        if until is not None:
            count = self._run_until(until, given.count, interpret)
            aborted, plain, outs = self._run.aborted, _cut(plain, count), [
                out[:, :count] for out in outs
            ]  # fmt: skip
        elif aborted is None:
            aborted = self._run_in_order(plain, outs, interpret, begun)
        return StraightBatch(
            self._run.changed(),
            self._program.written,
            lambda: self._made(plain, outs, aborted),
            lambda made: self._results.logged(made, given.route),
        )

    def _run_shared(self, plain: Plain) -> np.ndarray | None:
        """Let several threads plan and run a batch; None when it was put back."""
        scheduler, count = self._executor.scheduler, plain.given.count
        began = scheduler.clock.monotonic()
        aborted = self._run.shared(plain.given, partial(scheduler.share, scheme=plain.scheme))
        if aborted is not None:
            scheduler.note_pace(scheduler.clock.monotonic() - began, count)
            scheduler.note_aborts(count, len(aborted))
        return aborted

    def _run_until(self, until: Until, count: int, interpret: Interpret) -> int:
        """Run events as far as is said, piece by piece; returns how many ran."""
        done = 0
        while done < count:
            end = until(done, done - len(self._run.aborted))
            if end <= done:
                break
            self._run.run(done, end, interpret)
            done = end
        return done

    def _run_in_order(
        self,
        plain: Plain,
        outs: Sequence[np.ndarray],
        interpret: Interpret,
        begun: OpenRecord | None,
    ) -> np.ndarray:
        """Run a batch event after event; returns the positions that did not commit."""
        count, scheduler = plain.given.count, self._executor.scheduler
        is_sample = count >= COST_SAMPLE_MIN  # of fewer nothing is learnt, and to ask is no trifle
        busy, used = scheduler.clock.busy if is_sample else _nothing, 0.0
        began = busy()
        step = SECTION_EVENTS if begun is not None or self.threads > 1 else count
        if count <= step and begun is None:
            self._run.run(0, count, interpret)
        else:
            used = self._run_sections(plain, outs, step, interpret, begun)
        aborted = self._run.aborted
        scheduler.note_serial(busy() - began - used, count, len(aborted))
        return aborted

    def _run_sections(
        self,
        plain: Plain,
        outs: Sequence[np.ndarray],
        step: int,
        interpret: Interpret,
        begun: OpenRecord | None,
    ) -> float:
        """Run a batch section by section; returns what making results for the log has cost."""
        busy, used = self._executor.scheduler.clock.busy, 0.0
        with closing(self._sections(plain.given.count, step)) as sections:
            for section, place in sections:
                failed = self._run.run(section.start, section.stop, interpret, place)
                if begun is not None:
                    paused = busy()
                    begun.add_results(self._section(plain, outs, failed, section))
                    used += busy() - paused
        return used

    def _sections(self, count: int, step: int) -> Generator[tuple[range, int | None]]:
        """The sections of a batch in their order, and where the slots of each were found ahead."""
        cuts = [range(first, min(first + step, count)) for first in range(0, count, step)]
        if len(cuts) > 1 and self.threads > 1 and self._ahead.is_ready():
            return self._ahead.over(cuts)
        return ((section, None) for section in cuts)

    def _section(
        self, plain: Plain, outs: Sequence[np.ndarray], failed: np.ndarray, section: range
    ) -> pa.RecordBatch | PlainBatch:
        reasons = self._run.reason
        return self._results.section(plain.given, plain.order, outs, failed, reasons, section)

    def _made(self, plain: Plain, outs: Sequence[np.ndarray], aborted: np.ndarray) -> Made:
        made = self._results.made(plain.given, plain.order, outs, aborted, self._run.reason)
        self._run.reason[aborted] = 0
        return made

    def _interpreted(
        self, plain: Plain, outs: Sequence[np.ndarray], position: int, epoch: int
    ) -> str | None:
        """One event by the interpreter: compiled code has lost what it raised."""
        program, route = self._program, plain.given.route
        number = 0 if route is None else int(route[position])
        signature, event = self._signatures[number], plain.events.slice(position, 1)
        columns = {
            one.name: to_stored(
                event.column(one.name), one.type, program.pool, one.name, one.nullable
            )
            for one in signature.event
        }
        work = Work(signature, columns, np.zeros(1, np.uint8))
        program.find_all(work)
        work.out_layout = signature.out_layout
        work.out = None if work.out_layout is None else outs[number]
        before = {
            (access.table.name, slot): program.tables[access.table.name].words[slot].copy()
            for access, slots in zip(signature.accesses, work.slots, strict=True)
            for slot in (slots.tolist() if self._run.keeps else ())
        }
        reason = program.interpreters[number].run(work, 0, position, epoch)
        for table, slot in work.changes:
            self._run.note_change(table, slot, before.get((table, slot)))
        return reason


def _nothing() -> float:
    return 0.0


def _cut(plain: Plain, count: int) -> Plain:
    """The first events of a plain batch that ran, for its results."""
    route = plain.given.route
    given = Given(count, [], [], None if route is None else route[:count])
    order = [column.slice(0, count) for column in plain.order]
    return plain._replace(events=plain.events.slice(0, count), given=given, order=order)


def _key(column: Column) -> tuple[str, str]:
    return column.name, column.kept_as


def _values(column: Stored) -> np.ndarray:
    check_invariant(column.values is not None, "a key column was not looked at")
    return np.asarray(column.values)
