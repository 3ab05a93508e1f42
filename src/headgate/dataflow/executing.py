"""Executing: one unit runs one batch: its nodes in dataflow order, and nothing of it if one aborts.

A procedure aborts by `hg.abort`, by an exception, or by a write that its tables refuse.
Transactions run event by event, and one that aborts is an outcome of its event alone. What must be
changed in the program (a write that was not declared) is no abort: it is raised to whoever handed
the rows in, and the batch waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.compiling.actions import verdict, watched
from headgate.dataflow.arriving import fitted
from headgate.dataflow.handles import NodeMeters
from headgate.dataflow.joined_windows import JoinedCall, KeptContent, joined_calls
from headgate.dataflow.kept_windows import KeptWindow
from headgate.dataflow.nodes import Node, Unit
from headgate.dataflow.order_of_units import ReadTable
from headgate.dataflow.procedures import INSERTED, Procedure
from headgate.dataflow.recording import WORDS, Recorded, Recorder, Word, one_or_each
from headgate.dataflow.signals import Interrupts
from headgate.dataflow.streams import Stream
from headgate.dataflow.tx import Tx, batches_of
from headgate.dataflow.under_way import UnderWay, Windowed
from headgate.dataflow.windows import Slid, slides
from headgate.dataflow.writes import WriteRefused, Writes
from headgate.engine.batch import Batches
from headgate.engine.elsewhere import RowsForFlows
from headgate.engine.journal import Guard
from headgate.engine.parts import EpochParts
from headgate.engine.straight_path import Until
from headgate.engine.straight_results import Made
from headgate.engine.terms import Terms, understood
from headgate.errors import (
    DeclarationError,
    InputError,
    StoreError,
    not_among,
    shown,
)
from headgate.execution.interpreter import error_reason
from headgate.execution.run import COMMITTED, OUTCOMES
from headgate.query.kept_questions import KeptQuestions
from headgate.state.objects import FAULT_WORDS
from headgate.state.spaces import Slots, Words
from headgate.state.table import Table
from headgate.transactions import Transaction

MEASURED_EVENTS = 64  # at least, for what each of them took
# What a procedure is called with: batches, a window, or windows beside one another.
Called: TypeAlias = list[pa.Table] | Slid | JoinedCall


class Aborted(Exception):
    """A node does not commit its batch."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclass
class UnitRan:
    """What a unit did with a batch, if it commits."""

    taken: dict[str, int] = field(default_factory=dict)  # by node: how many rows it ran over
    given: dict[str, pa.Table] = field(default_factory=dict)  # by stream
    windows: dict[str, Windowed] = field(default_factory=dict)  # by the name it is kept under
    results: dict[str, Recorded] = field(default_factory=dict)  # by transaction
    calls: dict[str, int] = field(default_factory=dict)  # by procedure: how often it was called


class Attempted(NamedTuple):
    """Events of a transaction that ran as a part of an epoch which commits later."""

    recorded: Recorded
    kept: pa.Array | None  # which of them committed; None: all
    changed: Mapping[str, Slots]
    # These rows as they were, where they are kept.
    before: Mapping[str, Words] | None = None
    is_exact: bool = False  # nothing else changed, of what others did before in the epoch, too


class Executing:
    """Runs the units of an engine's dataflows; under its lock."""

    def __init__(
        self, batches: Batches, rows: RowsForFlows, meters: NodeMeters, guard: Guard
    ) -> None:
        self._batches, self._guard, self._rows = batches, guard, rows
        self._each: dict[str, float | None] = {}  # by transaction: what an event took here
        self._parts = EpochParts(rows.executor, guard)
        self.meters: NodeMeters = meters
        self.now = batches.clock.monotonic
        self._questions: dict[str, KeptQuestions] = {}  # by procedure
        self._kept: dict[str, KeptWindow] = {}  # by node
        self._joined: dict[str, dict[str, KeptContent]] = {}  # by node, and by window
        self.interrupts: Interrupts = Interrupts()
        self._terms: dict[str, Terms] = {}
        self._plain: dict[str, Terms] = {}

    @property
    def is_stopped(self) -> bool:
        """Whether the engine goes on no more."""
        return self._guard.reason is not None

    def close(self) -> None:
        """Let go of what procedures asked by."""
        for one in self._questions.values():
            one.close()

    def run(self, unit: Unit, batch: int, progress: UnderWay, writes: Writes, ran: UnitRan) -> None:
        """Run a unit's nodes over a batch; Aborted when one of them does not commit."""
        for node in unit.nodes:
            taken = [self._taken(stream, batch, progress, ran) for stream in node.streams]
            if isinstance(node.step, Procedure) and node.step.partition is not None:
                taken = [node.step.partition.rows(one) for one in taken]
            if not any(one.num_rows for one in taken):
                ran.given |= {one.name: one.empty for one in node.gives}
                continue
            ran.taken[node.name] = sum(one.num_rows for one in taken)
            began = self.now()
            try:
                if isinstance(node.step, Procedure):
                    self._run_procedure(node, node.step, taken, progress, writes, ran)
                else:
                    self._run_transaction(unit, node, batch, taken[0], writes, ran)
            finally:
                self.meters.note_run(node.name, self.now() - began)
            writes.end_node()

    def _taken(self, stream: Stream, batch: int, progress: UnderWay, ran: UnitRan) -> pa.Table:
        given = ran.given.get(stream.name)
        found = progress.batch(stream.name, batch) if given is None else given
        if found is None:
            raise StoreError(f"batch {batch} of stream {stream.name!r} was aborted")
        return found

    # --- procedures ---------------------------------------------------------------------------

    def _run_procedure(
        self,
        node: Node,
        procedure: Procedure,
        taken: list[pa.Table],
        progress: UnderWay,
        writes: Writes,
        ran: UnitRan,
    ) -> None:
        writes.has_triggers = bool(node.triggers)
        parts: dict[str, list[pa.Table]] = {one.name: [] for one in node.gives}
        calls: Iterable[Called] = [taken]
        if node.window is not None:
            state = ran.windows[node.name] = progress.window(node.name)
            calls = slides(node.window, state, taken[0], self.kept(node))
        elif node.joined:
            states = {key: progress.window(key) for key in node.joined}
            ran.windows |= states
            calls = joined_calls(node, states, taken, self.kept_joined(node))
        ran.calls[node.name] = 0
        for batches in calls:
            for name, rows in self.called(node, procedure, batches, writes).items():
                parts[name].append(rows)
            ran.calls[node.name] += 1
        self._judged(node, writes)
        for stream in node.gives:
            mine = parts[stream.name] or [stream.empty]
            ran.given[stream.name] = mine[0] if len(mine) == 1 else pa.concat_tables(mine)

    def kept(self, node: Node) -> KeptWindow | None:
        """The aggregates that are kept of a node's window."""
        window = node.window
        if window is None or window.aggregates is None:
            return None
        if node.name not in self._kept:
            self._kept[node.name] = KeptWindow(window, window.aggregates)
        return self._kept[node.name]

    def kept_joined(self, node: Node) -> Mapping[str, KeptContent]:
        """The aggregates that are kept of the windows of a node that takes several things."""
        found = self._joined.get(node.name)
        if found is None:
            found = self._joined[node.name] = {
                key: KeptContent(window.aggregates)
                for key, window in node.joined.items() if window.aggregates is not None
            }  # fmt: skip
        return found

    def called(
        self, node: Node, procedure: Procedure, batches: Called, writes: Writes
    ) -> dict[str, pa.Table]:
        """Call the function once; what it gives, by stream."""
        named, given = _arguments(node, procedure, batches)
        questions = self._questions.setdefault(node.name, KeptQuestions())
        fire = partial(self._fire, node, writes) if node.triggers else None
        tx = Tx(procedure, named, writes, _reads(procedure, writes), questions, fire)
        try:
            with self._guard.inside(), watched() as made:
                answer = procedure.function(*given, tx)
            writes.turn.check()
            tx.check_program()
            reason = tx.failure or verdict(answer, made)
            if reason is not None:
                raise Aborted(node, reason)
            return _given(procedure, answer)
        except (Aborted, DeclarationError, StoreError):
            raise
        except WriteRefused as error:
            raise Aborted(node, str(error)) from error
        except Exception as error:
            self._check_interrupt(error)
            tx.check_program()
            raise Aborted(node, tx.failure or error_reason(error)) from error
        finally:
            tx.close()

    def _check_interrupt(self, error: Exception) -> None:
        """What was interrupted by force, and took that for an error, did not abort."""
        if self.interrupts.is_forced:
            raise KeyboardInterrupt from error

    def _fire(self, node: Node, writes: Writes, table: Table, rows: pa.Table) -> None:
        """Rows were added to a table: run the triggers on it, as a part of the statement."""
        for trigger in [one for one in node.triggers if one.table.name == table.name]:
            questions = self._questions.setdefault(f"{node.name} {trigger.name}", KeptQuestions())
            fire = partial(self._fire, node, writes)
            tx = Tx(trigger, {INSERTED: rows}, writes, writes.turn.read, questions, fire)
            try:
                with self._guard.inside(), watched() as made:
                    answer = trigger.function(rows, tx)
                tx.check_program()
                reason = tx.failure or verdict(answer, made)
            except (DeclarationError, StoreError, WriteRefused):
                raise
            except Exception as error:
                self._check_interrupt(error)
                tx.check_program()
                reason = tx.failure or error_reason(error)
            finally:
                tx.close()
            if reason is not None:
                raise WriteRefused(reason)

    def _judged(self, node: Node, writes: Writes) -> None:
        try:
            writes.judge_all(node.written)
        except WriteRefused as error:
            raise Aborted(node, str(error)) from error

    # --- transactions -------------------------------------------------------------------------

    def _run_transaction(
        self, unit: Unit, node: Node, batch: int, events: pa.Table, writes: Writes, ran: UnitRan
    ) -> None:
        is_last = node is unit.nodes[-1]
        part = None
        if unit.nodes == (node,) and not writes.has_kept and self.leaves(node, events):
            part = self.attempt_there(node, np.full(events.num_rows, batch), events)
        if part is None:
            for table in node.tables:
                writes.of(table.name)
            part = self.attempt_plain(node, batch, events, writes.epoch, keeps=not is_last)
        if part is None:
            shadow = None if is_last else writes.shadow(node.written)
            part = self.attempt(node, batch, events, writes.epoch)
            self.note(part, node, writes, shadow)
        else:
            writes.note_exactly(part.changed, part.before)
        ran.results[node.name] = part.recorded
        for stream in node.gives:
            ran.given[stream.name] = flowing(stream, part)

    def note(
        self, part: Attempted, node: Node, writes: Writes, shadow: Mapping[str, Words] | None
    ) -> None:
        """What a transaction changed; without a shadow nothing will ever undo it."""
        if shadow is None and part.is_exact:
            writes.note_exactly(part.changed, None)
        else:
            writes.note(part.changed, node.written, shadow)

    def leaves(self, node: Node, events: pa.Table) -> bool:
        """Whether events of a transaction that is a unit are to run where their rows are."""
        if not self._rows.is_by_key or not isinstance(node.step, Transaction):
            return False
        return self._rows.leaves(node.step, events.num_rows, self._each.get(node.name))

    def attempt_there(self, node: Node, numbers: np.ndarray, events: pa.Table) -> Attempted:
        """Run events of some batches where their rows are, as all that their epoch does."""
        terms = self._plain_terms(node)
        with self._guard.all_or_stopped():
            results, rows = self._rows.run_there(terms, events, numbers)
        back = np.argsort(numbers[rows], kind="stable")  # those that did not run are behind all
        results, rows = results.take(pa.array(back)), rows[back]
        part, kept = _recorded(one_or_each(numbers[rows]), results)
        ordered = {one.name: part.columns[one.name] for one in terms.order_by}
        carried = {name: events.column(name).take(rows) for name in self.terms(node).carry}
        columns = {**ordered, **carried, **part.columns}
        return Attempted(replace(part, columns=columns), kept, {}, is_exact=True)

    def attempt_plain(
        self, node: Node, batch: int | np.ndarray, events: pa.Table, epoch: int, *, keeps: bool,
        until: Until | None = None,
    ) -> Attempted | None:  # fmt: skip
        """Run events by the straight path where they are plain, of one batch or in the order of
        several; else None, and nothing ran. With `keeps` the rows are kept as they were; by `until`
        only the first of them run, as many as there are results."""
        began = self.now() if self._rows.is_by_key else 0.0
        plain = self._parts.run_plain(
            self._plain_terms(node), events, epoch, keeps=keeps, until=until
        )
        if plain is None:
            return None
        self._note_ran(node, plain.made.num_rows, began)
        events, made, changed, before = plain
        if made.num_rows < events.num_rows:
            events = events.slice(0, made.num_rows)
        if isinstance(batch, np.ndarray):
            batch = one_or_each(batch[: made.num_rows])
        recorded = self._recorded(node, batch, events, made)
        return Attempted(*recorded, changed, before, is_exact=True)

    def attempt(self, node: Node, batch: int, events: pa.Table, epoch: int) -> Attempted:
        """Run the events of a batch, whatever they are."""
        terms = self._batches.carrying(self.terms(node), events.schema)
        began = self.now() if self._rows.is_by_key else 0.0
        results, changed, is_exact = self._parts.run(terms, events, epoch)
        self._note_ran(node, events.num_rows, began)
        return Attempted(*_recorded(batch, results), changed, is_exact=is_exact)

    def _note_ran(self, node: Node, events: int, began: float) -> None:
        """What an event of a transaction takes here: down at once, up slowly; the first run loads
        code, and of a few events it would be their batch."""
        if not self._rows.is_by_key or events < MEASURED_EVENTS:
            return
        if node.name not in self._each:
            self._each[node.name] = None
            return
        now, before = (self.now() - began) / events, self._each[node.name]
        is_less = before is None or now < before
        self._each[node.name] = now if is_less else 0.75 * (before or 0.0) + 0.25 * now

    def _recorded(
        self, node: Node, batch: int | np.ndarray, events: pa.Table, made: Made
    ) -> tuple[Recorded, pa.Array | None]:
        """The results of plain events, and which of them committed; None: all."""
        terms, names = self.terms(node), made.without_epoch.names
        ordered, first = len(terms.order_by), len(WORDS) + 1
        columns = dict(zip(names[first : first + ordered], made.columns[first:], strict=False))
        columns |= {name: events.column(name).chunk(0) for name in terms.carry}
        outputs = slice(first + ordered, None)
        columns |= dict(zip(names[outputs], made.columns[outputs], strict=True))
        words: tuple[Word, Word, Word] = (node.name, OUTCOMES[COMMITTED], None)
        kept = None
        if len(made.failed.aborted):
            words = (node.name, *made.columns[2:4])
            committed = np.ones(made.num_rows, np.bool_)
            committed[made.failed.aborted] = False
            kept = pa.array(committed)
        return Recorded(made.num_rows, words, batch, columns), kept

    def _plain_terms(self, node: Node) -> Terms:
        """As `terms`, with nothing carried: of plain events that is taken from them."""
        found = self._plain.get(node.name)
        if found is None:
            found = self._plain[node.name] = self._understood(node, [])
        return found

    def terms(self, node: Node) -> Terms:
        """How a transaction runs the events of its stream: in its order, all that flows on kept."""
        found = self._terms.get(node.name)
        if found is None:
            output = node.step.output if isinstance(node.step, Transaction) else None
            own = {one.name for one in output or ()} | {*node.streams[0].order_by}
            flows_on = dict.fromkeys(one for given in node.gives for one in given.schema.names)
            carry = [name for name in flows_on if name not in own]
            found = self._terms[node.name] = self._understood(node, carry)
        return found

    def _understood(self, node: Node, carry: list[str]) -> Terms:
        transaction = node.step
        if not isinstance(transaction, Transaction):
            raise DeclarationError(f"node {node.name!r} is a procedure")
        known, order = {transaction.name: transaction}, list(node.streams[0].order_by)
        return understood(transaction, known, order_by=order, carry=carry)


def _arguments(
    node: Node, procedure: Procedure, batches: Called
) -> tuple[Mapping[str, pa.Table], list[pa.Table]]:
    """The tables of a batch, or of windows, as SQL names them, and those that a function takes."""
    if isinstance(batches, list):
        return batches_of([stream.name for stream in node.streams], batches), batches
    if batches.refused is not None:
        raise Aborted(node, batches.refused)
    named = batches.named(node.streams[0]) if isinstance(batches, Slid) else batches.named()
    return named, batches.arguments(has_rows=procedure.has_rows)


def _reads(procedure: Procedure, writes: Writes) -> ReadTable:
    """What a procedure reads tables by; a partition has its own rows of those that it writes."""
    read, part = writes.turn.read, procedure.partition
    return read if part is None else lambda name: part.view(name, read(name))


def _recorded(batch: int | np.ndarray, results: pa.RecordBatch) -> tuple[Recorded, pa.Array | None]:
    """The results of a batch, and which of its events committed; None: all."""
    words = [results.column(name) for name in WORDS]
    others = [name for name in results.schema.names if name not in (*WORDS, "position")]
    columns = {name: results.column(name) for name in others}
    kept = pc.equal(words[1], OUTCOMES[COMMITTED])
    part = Recorded(results.num_rows, (words[0], words[1], words[2]), batch, columns)
    return part, None if kept.true_count == len(kept) else kept


def flowing(stream: Stream, part: Attempted) -> pa.Table:
    """What flows on of the results of a transaction: the events that committed."""
    arrays = [part.recorded.columns[name] for name in stream.schema.names]
    if part.kept is not None:
        arrays = [array.filter(part.kept) for array in arrays]
    declared = stream.empty.schema
    if [one.type for one in arrays] == declared.types:
        return pa.Table.from_arrays(arrays, schema=declared)
    return pa.table(arrays, names=declared.names).cast(declared)


def _given(procedure: Procedure, answer: Any) -> dict[str, pa.Table]:
    """What a procedure returned, in the columns and types of its outputs."""
    where = f"procedure {procedure.name!r}"
    if not procedure.gives:
        if answer is not None:
            raise InputError(f"{where} returns {type(answer).__name__}, and declares no output=")
        return {}
    if len(procedure.gives) == 1:
        found: Mapping[str, Any] = {procedure.gives[0].name: answer}
    else:
        found = _by_stream(procedure, answer, where)
    return {one.name: _fitting(one, found.get(one.name), where) for one in procedure.gives}


def _by_stream(procedure: Procedure, answer: Any, where: str) -> dict[str, Any]:
    names = [stream.name for stream in procedure.gives]
    if answer is None:
        return {}
    if not isinstance(answer, Mapping):
        raise InputError(
            f"{where} has several outputs: return a dict of them, {{{names[0]!r}: rows, ...}}"
        )
    found = {key.name if isinstance(key, Stream) else key: rows for key, rows in answer.items()}
    for name in found:
        if name not in names:
            raise InputError(f"{where} returns {shown(name)}; {not_among(name, names, 'outputs')}")
    return found


def _fitting(stream: Stream, rows: Any, where: str) -> pa.Table:
    if rows is None:
        return stream.empty
    told = f"{where}: output {stream.name!r}"
    if not isinstance(rows, pa.Table) and isinstance(rows, Mapping):
        rows = [rows]
    table, faults = fitted(rows, stream, told, all_of=True)
    if faults is not None:
        place = int(faults.nonzero()[0][0])
        number, kind = divmod(int(faults[place]), 256)
        column = stream.schema.names[number - 1]
        raise InputError(f"{told}: {column!r} in row {place} is {FAULT_WORDS.get(kind, 'null')}")
    return table


def record(unit: Unit, batch: int, ran: UnitRan, recorder: Recorder) -> None:
    """Note what a unit that commits did."""
    for node in unit.nodes:
        if node.name in ran.calls:
            recorder.execution(node.name, batch)
        if node.name in ran.results:
            recorder.add(ran.results[node.name])
        for stream in node.gives:
            recorder.rows(stream, batch, ran.given[stream.name])
