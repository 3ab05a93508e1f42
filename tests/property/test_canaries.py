"""Canaries: bugs seeded into the engine one at a time; the comparison with the oracle sees each.

If one of these fails, the property tests would not have noticed such a bug either.
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import headgate as hg
from headgate.engine import ordering
from headgate.engine.journal import Journal
from headgate.engine.ordering import Arranger
from headgate.execution import interpreter, program
from headgate.execution.interpreter import Interpreter, RecordView
from headgate.execution.run import Run
from headgate.execution.window_views import WindowView
from headgate.kernels import building
from headgate.kernels.generating import Generator
from headgate.state import trail
from headgate.state.layout import row_layout
from headgate.state.ordered import OrderedIndex
from headgate.state.rows import TableRows
from headgate.state.strings import StringPool
from headgate.state.version_rows import Trail
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property.family import FAMILY
from tests.property.test_durable import Life, lowered

Seed = Callable[[pytest.MonkeyPatch], None]
SEARCH = settings(
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


# --- looking for a difference ---------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, name: str) -> tuple[Any, Any]:
    """Rows for the tables of a member, and batches of events for it."""
    member = FAMILY[name]
    rows = draw(making.filled_tables(*member.tables))
    return rows, draw(making.batches(making.events(member)))


def differs(canary: Canary, case: tuple[Any, Any]) -> bool:
    """Whether the engine's results or tables differ from the oracle's."""
    member, (rows, batches) = FAMILY[canary.member], case
    form, oracle = member.form(canary.compiled), SerialOracle(member.tables)
    life = Life(member.tables, [form]) if canary.durable else None
    engine = life.engine if life else hg.open(None, tables=member.tables, transactions=[form])
    for table in member.tables:
        for target in (engine, oracle):
            target.load(table, rows[table.name])
    for events in batches:
        found = engine.run(form, events, **canary.options)
        if results_difference(found, oracle.run(form, events, **canary.options)) is not None:
            return True
        if life is not None:
            life.stop("close")
            engine = life.engine
    return difference(engine, oracle) is not None


def is_caught(canary: Canary, most: int = 200) -> bool:
    """Whether a case shows the bug, as a difference or as an InvariantError of the engine."""

    def shows(case: tuple[Any, Any]) -> bool:
        try:
            return differs(canary, case)
        except hg.InvariantError:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "build_kernel", building.build_kernel)  # not those without the bug
        lowered(patch, 1 << 30, 0)
        canary.seed(patch)
        try:
            find(cases(canary.member), shows, settings=settings(SEARCH, max_examples=most))
        except NoSuchExample:
            return False
        return True


# --- the bugs -------------------------------------------------------------------------------------


def in_source(old: str, new: str) -> Seed:
    """A bug in the generated source of every kernel."""

    def seed(patch: pytest.MonkeyPatch) -> None:
        original = Generator.source

        def source(self: Generator) -> str:
            found = original(self)
            assert found.count(old) >= 1, f"the kernel's source has no {old!r} to break"
            return found.replace(old, new)

        patch.setattr(Generator, "source", source)

    return seed


def in_undo(is_kept: Callable[[str], bool]) -> Seed:
    """A bug in what a step puts back when its transaction does not commit."""

    def seed(patch: pytest.MonkeyPatch) -> None:
        original = Generator.back

        def back(self: Generator, number: int) -> list[str]:
            return [line for line in original(self, number) if is_kept(line)] or ["pass"]

        patch.setattr(Generator, "back", back)

    return seed


def after_attempt(change: Callable[[Interpreter, dict[Any, Any]], None]) -> Seed:
    """A bug in what the interpreter restores when a transaction does not commit."""

    def seed(patch: pytest.MonkeyPatch) -> None:
        original = Interpreter._attempt

        def attempt(self: Any, work: Any, row: Any, position: Any, slots: Any, copies: Any) -> Any:
            reason = original(self, work, row, position, slots, copies)
            if reason is not None and copies:
                change(self, copies)
            return reason

        patch.setattr(Interpreter, "_attempt", attempt)

    return seed


def keep_alive(self: Interpreter, copies: dict[Any, Any]) -> None:
    for (name, slot), copy in copies.items():
        copy[0] = self.tables[name].words[slot][0]


def ties_last_first(patch: pytest.MonkeyPatch) -> None:
    sort_rows = ordering.sort_rows
    patch.setattr(ordering, "is_sorted_throughout", lambda keys: False)
    patch.setattr(ordering, "sort_rows", lambda keys, rows: sort_rows(keys, rows[::-1].copy()))


def no_event_is_late(patch: pytest.MonkeyPatch) -> None:
    by_watermark = Arranger._by_watermark
    patch.setattr(
        Arranger,
        "_by_watermark",
        lambda self, keys, rows, before: by_watermark(self, keys, rows, None),
    )


def halves_to_even(patch: pytest.MonkeyPatch) -> None:
    def scaled(value: Any, kind: Any) -> int:
        exact = decimal.Decimal(value).scaleb(kind.scale, interpreter.EXACT)
        whole = int(exact.to_integral_value(decimal.ROUND_HALF_EVEN))
        if abs(whole) >= 10**kind.precision:
            raise OverflowError("overflow")
        return whole

    patch.setattr(interpreter, "_scaled", scaled)


def any_slot_is_a_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Interpreter, "_is_there", lambda self, access, slot: slot >= 0)


def no_delete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordView, "__headgate_delete__", lambda self: None)


def no_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Interpreter, "_failed_check", lambda self, slots, copies: None)


def free_slots_twice(patch: pytest.MonkeyPatch) -> None:
    """A deleted row's slot stands in the free list twice, so that two rows come to share it."""
    release = TableRows.release

    def twice(self: TableRows, changed: Any) -> None:
        before = self.free_count
        release(self, changed)
        fresh = self.free[before : self.free_count].copy()
        if before + 2 * len(fresh) <= len(self.free):
            self.free[self.free_count : self.free_count + len(fresh)] = fresh
            self.free_count += len(fresh)

    patch.setattr(TableRows, "release", twice)


def forget_used_texts(patch: pytest.MonkeyPatch) -> None:
    compact = StringPool.compact
    patch.setattr(StringPool, "compact", lambda self, used: compact(self, list(used)[:0]))


def held_events_are_lost(patch: pytest.MonkeyPatch) -> None:
    recover = Journal.recover

    def without_inlets(self: Journal, *given: Any) -> Any:
        found = recover(self, *given)
        return None if found is None else dataclasses.replace(found, inlets={})

    patch.setattr(Journal, "recover", without_inlets)


def one_changed_row_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    def shortened(self: Journal, commit: Any, *, later: bool) -> None:
        changes = {name: rows.slice(1) for name, rows in commit.changes.items()}
        append(self, dataclasses.replace(commit, changes=changes), later=later)

    patch.setattr(Journal, "append", shortened)


def entries_stay_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrderedIndex, "note", lambda self, slots: None)
    patch.setattr(Run, "_bring", lambda self, work, *, is_committed: None)


def ranges_are_looked_up_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(program, "moving_indexes", lambda signatures: ())


def versions_go_too_early(patch: pytest.MonkeyPatch) -> None:
    """The table keeps none that is older than the newest, though windows ask for all of it."""
    make = Trail.__init__

    def shortened(self: Trail, *given: Any) -> None:
        make(self, *given)
        self.words[trail.LIMIT] = 0

    patch.setattr(Trail, "__init__", shortened)


def aborted_events_leave_versions(patch: pytest.MonkeyPatch) -> None:
    run = Interpreter.run

    def keep(self: Any, work: Any, row: int, position: int, epoch: int) -> Any:
        reason = run(self, work, row, position, epoch)
        for name, slot in work.touched if reason is not None else ():
            if self.tables[name].words[slot, 0] & 1:
                self._keep_version(work, name, slot, row, epoch, position)
        return reason

    patch.setattr(Interpreter, "run", keep)


def a_window_sees_what_comes_later(patch: pytest.MonkeyPatch) -> None:
    """As if it were that of an event some seconds on."""
    make = WindowView.__init__

    def later(self: Any, kept: Any, window: Any, slot: int, time: int, shown: Any) -> None:
        make(self, kept, window, slot, time + 2_000_000, shown)

    patch.setattr(WindowView, "__init__", later)


def nulls_are_not_put_back(patch: pytest.MonkeyPatch) -> None:
    saved = Generator.saved

    def without(self: Generator, number: int, access: Any) -> tuple[int, ...]:
        layout = row_layout(access.table.schema, access.table.key)
        bits = layout.null_bits(access.table.schema.names)
        return tuple(word for word in saved(self, number, access) if word not in bits)

    patch.setattr(Generator, "saved", without)


def nulls_become_zeros(patch: pytest.MonkeyPatch) -> None:
    assign = RecordView.__setattr__

    def assigned(self: RecordView, name: str, value: Any) -> None:
        assign(self, name, value)
        if value is None:
            field = self._field(name)
            self._record[field.null_word] &= ~field.null_mask

    patch.setattr(RecordView, "__setattr__", assigned)


# --- which member shows which bug -----------------------------------------------------------------


@dataclass(frozen=True)
class Canary:
    """A seeded bug, and the member of the family and the options of `run` that show it."""

    seed: Seed
    member: str = "put"
    compiled: bool = False
    durable: bool = False
    options: Any = field(default_factory=dict)


LATE = {"order_by": "ts", "watermark": "2 seconds"}
CANARIES = {
    "undo forgets a row": Canary(after_attempt(lambda _, c: c.popitem()), "move"),
    "undo forgets a row, compiled": Canary(
        in_undo(lambda line: ", 0, old_" in line), compiled=True
    ),
    "a create survives an abort": Canary(after_attempt(keep_alive)),
    "a create survives an abort, compiled": Canary(
        in_undo(lambda line: ", 0, old_" not in line), compiled=True
    ),
    "a row that is yet to be made is there": Canary(any_slot_is_a_row, "hand_on"),
    "a row that is yet to be made is there, compiled": Canary(
        in_source(") & 1 == 0:", ") & 1 == 2:"), "hand_on", compiled=True
    ),
    "a check is not evaluated": Canary(no_check),
    "a check is not evaluated, compiled": Canary(
        in_source("if not check_", "if False and not check_"), compiled=True
    ),
    "ties are broken the other way": Canary(ties_last_first, options={"order_by": "ts"}),
    "late events run as if timely": Canary(no_event_is_late, options=LATE),
    "decimals round halves to even": Canary(halves_to_even, "charge"),
    "a deleted row stays": Canary(no_delete, "switch"),
    "free slots are used twice": Canary(free_slots_twice, "take_seat"),
    "texts in use are forgotten": Canary(forget_used_texts, "take_seat"),
    "an index keeps a stale entry": Canary(entries_stay_behind, "offer"),
    "an index keeps a stale entry, compiled": Canary(
        in_source("note_moved(waiting_0", "word(0); (waiting_0"), "clear_out", compiled=True
    ),
    "a phantom is let in": Canary(ranges_are_looked_up_too_early, "offer"),
    "a phantom is let in, compiled": Canary(ranges_are_looked_up_too_early, "offer", compiled=True),
    "a version is dropped too early": Canary(versions_go_too_early, "read_gauge"),
    "a version is dropped too early, compiled": Canary(
        versions_go_too_early, "read_gauge", compiled=True
    ),
    "an aborted event leaves a version": Canary(aborted_events_leave_versions, "read_gauge"),
    "a window sees a later version": Canary(a_window_sees_what_comes_later, "read_gauge"),
    "a window sees a later version, compiled": Canary(
        in_source(" - 3000000, time_0(columns_0, e))", ", time_0(columns_0, e) + 2000000)"),
        "read_gauge",
        compiled=True,
    ),
    "a version has no number of its own, compiled": Canary(
        in_source("epoch, i)", "epoch, word(0))"), "read_gauge", compiled=True
    ),
    "a null becomes a zero": Canary(nulls_become_zeros, "stow"),
    "nulls are not put back, compiled": Canary(nulls_are_not_put_back, "weigh", compiled=True),
    "held events are lost": Canary(held_events_are_lost, durable=True, options=LATE),
    "a changed row is not logged": Canary(one_changed_row_is_not_logged, durable=True),
}


@pytest.mark.parametrize("name", CANARIES)
def test_a_seeded_bug_is_caught(name: str) -> None:
    assert is_caught(CANARIES[name])


@pytest.mark.parametrize("member", ["put", "take_seat"])
def test_without_a_seed_nothing_is_caught(member: str) -> None:
    assert not is_caught(Canary(lambda patch: None, member, durable=True), most=30)
