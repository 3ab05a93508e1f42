"""The race: every batch, or stretch of them, through all schemes in turn, each on its own engine.

So a noisy machine is noisy for all. What a scheme gives is compared with the serial scheme after
every batch, and all rows at the end: a figure exists only for what was found equal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import pyarrow as pa

import headgate as hg
from bench.stopwatch import COUNTED, Stopwatch, counted, let_count
from bench.workloads import Phase, Workload
from headgate.parallel.scheme import make_scheme

MODEL, SERIAL = "auto", "serial"
INCORRECT = frozenset({"nolock"})  # on purpose: a bound for speed
FINALISTS = 3
WARM_ROUNDS = 2  # the first loads the kernels, by the second the model knows the cost

Row = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much is measured: a point ends at its most rounds, or at its time after the least."""

    rounds_min: int
    rounds_max: int
    seconds: float
    counted_rounds: int  # after the others, with threads that count what they spend their time on
    phase_batches: int
    costed_events: int  # in a batch of costed operations, in the sweeps and phases
    uniform_events: int  # the same for uniform keys
    application_events: int  # the same for the applications
    plan_repeats: int
    is_quick: bool
    final_rounds: int = 0  # more of them for the model and the best: a few per cent are judged


FULL = Effort(5, 40, 8.0, 3, 16, 2_048, 10_240, 4_096, 15, is_quick=False, final_rounds=20)
QUICK = Effort(3, 10, 0.5, 1, 4, 512, 2_048, 512, 3, is_quick=True)


@dataclass(frozen=True)
class Point:
    """One race of some schemes: phases that one set of engines runs one after another."""

    section: str
    phases: tuple[Phase, ...]
    threads: tuple[int, ...]
    schemes: tuple[str, ...]
    parameter: str = ""
    value: float = 0.0
    effort: Effort = FULL
    stretch: int = 1  # batches that an engine runs in a row before it is the next one's turn
    has_final: bool = False  # the model is judged by the best fixed scheme

    @property
    def workload(self) -> Workload:
        return self.phases[0].workload

    @property
    def cost_us(self) -> float:
        return self.workload.parameters.cost_us

    @property
    def title(self) -> str:
        setting = f" {self.parameter} {self.value:g}" if self.parameter else ""
        return f"{self.section}: {self.workload.name}{setting}, {self.cost_us:g} µs"


class Mismatch(Exception):
    """A scheme gave other results than the serial one: a bug, and no figure is worth having."""


@dataclass(frozen=True)
class Contestant:
    scheme: str
    threads: int

    def __str__(self) -> str:
        return f"{self.scheme} on {self.threads} thread{'s' * (self.threads > 1)}"


REFERENCE = Contestant(SERIAL, 1)


def contestants(names: Sequence[str], threads: Sequence[int]) -> list[Contestant]:
    """The serial scheme first, then every other one with each number of threads."""
    others = [Contestant(name, count) for name in names if name != SERIAL for count in threads]
    return [REFERENCE, *others]


def finalists(rows: Sequence[Row], entered: Sequence[Contestant]) -> list[Contestant]:
    """Serial, the model, and the fixed schemes that were fastest so far."""
    timed = [row for row in rows if not row["is_warm"] and not row["is_counted"]]

    def usual_s(one: Contestant) -> float:
        mine = (one.scheme, one.threads)
        return median(row["seconds"] for row in timed if (row["scheme"], row["threads"]) == mine)

    always = [one for one in entered if one == REFERENCE or one.scheme == MODEL]
    fixed = [one for one in entered if one not in always and one.scheme not in INCORRECT]
    return [*always, *sorted(fixed, key=usual_s)[:FINALISTS]]


class Race:
    """The engines of one point; every batch goes through all of them in turn."""

    def __init__(self, point: Point, watch: Stopwatch) -> None:
        self.point, self.watch = point, watch
        self.entered = contestants(point.schemes, point.threads)
        self._opened = ExitStack()
        self._graph = ""
        self.engines: dict[Contestant, hg.Engine] = {}
        # The graph needs kernels that are not compiled for a race of whole transactions alone.
        self.is_explained = any(make_scheme(name, 1).by_units for name in point.schemes)

    def __enter__(self) -> Race:
        for one in self.entered:
            self.engines[one] = self._opened.enter_context(self.point.workload.open())
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def run(self) -> list[Row]:
        """One row a batch and contestant, the warm and the counted ones too."""
        if len(self.point.phases) == 1:
            rows = self._steady(self.point.phases[0])
        else:
            rows = [row for phase in self.point.phases for row in self._phase(phase)]
        self._check_rows()
        return rows

    def _steady(self, phase: Phase) -> list[Row]:
        """Rounds until there are enough, or the time is up; then those that are counted."""
        effort, began, rows, batch = self.point.effort, time.perf_counter(), [], 0
        # Cheap batches are short, and a few per cent are to be told apart: they get more time.
        seconds = effort.seconds * (1 if self.point.cost_us or self.point.parameter else 3)
        while batch < WARM_ROUNDS + effort.rounds_max:
            is_over = time.perf_counter() - began > seconds
            if is_over and batch >= WARM_ROUNDS + effort.rounds_min:
                break
            is_warm = batch < WARM_ROUNDS
            row = WARM_ROUNDS if is_warm else self.point.stretch
            stretch = range(batch, min(batch + row, WARM_ROUNDS + effort.rounds_max))
            rows += self._round(phase, stretch, is_warm)
            batch = stretch.stop
        for engine in self.engines.values():
            let_count(engine)
        for counting in range(batch, batch + effort.counted_rounds):
            rows += self._round(phase, range(counting, counting + 1), False, is_counted=True)
        return rows + self._final(phase, rows) if self.point.has_final else rows

    def _final(self, phase: Phase, before: list[Row]) -> list[Row]:
        """More rounds for the model and those it is compared with."""
        self._check_rows()
        self.entered = finalists(before, self.entered)
        for engine in self.engines.values():
            let_count(engine, False)
        first = 1 + max(row["batch"] for row in before)
        rows = []
        for batch in range(first, first + self.point.effort.final_rounds):
            rows += self._round(phase, range(batch, batch + 1), False)
        return rows

    def _phase(self, phase: Phase) -> list[Row]:
        """All batches of one phase; only the first phase begins with engines that know nothing."""
        is_first = phase is self.point.phases[0]
        rows = []
        for batch in range(phase.workload.batch_count):
            is_warm = is_first and batch < WARM_ROUNDS
            rows += self._round(phase, range(batch, batch + 1), is_warm)
        return rows

    def _round(
        self, phase: Phase, batches: range, is_warm: bool, is_counted: bool = False
    ) -> list[Row]:
        """The batches through every engine; who begins changes from round to round."""
        events = [phase.workload.batch(batch) for batch in batches]
        if batches.start == 0 and self.is_explained:
            self._graph = self._explain(phase.workload, events[0])
        shift = batches.start % len(self.entered)
        done = {
            one: [self._turn(one, phase.workload, batch, is_counted) for batch in events]
            for one in (*self.entered[shift:], *self.entered[:shift])
        }
        expected = [plain(results) for results, _ in done[REFERENCE]]
        rows = []
        for place, batch in enumerate(batches):
            for one in self.entered:
                results, timing = done[one][place]
                found = self._difference(one, results, expected[place], phase, batch)
                rows.append(
                    {
                        **self._setting(one, phase), "batch": batch, "is_warm": is_warm,
                        "is_counted": is_counted, "events": events[place].num_rows, **timing,
                        "is_equal": found is None, "graph": self._graph,
                    }
                )  # fmt: skip
        return rows

    def _turn(
        self, one: Contestant, workload: Workload, events: pa.Table, is_counted: bool
    ) -> tuple[pa.Table, Row]:
        engine = self.engines[one]
        before = engine.decisions()
        results, seconds, parts = self.watch.measure(
            lambda: engine.run(
                workload.target, events, scheme=one.scheme, threads=one.threads, **workload.options
            )
        )
        known = {id(decision) for decision in before}
        made = [decision for decision in engine.decisions() if id(decision) not in known]
        if not made and one.scheme == MODEL:
            made = engine.decisions()[-1:]  # as for the batch before
        timing = {"seconds": seconds, **{f"{part}_s": spent for part, spent in parts.items()}}
        timing |= counted(engine) if is_counted else {f"{part}_s": None for part in COUNTED}
        timing["decision"] = " + ".join(dict.fromkeys(decision.scheme for decision in made))
        timing["why"] = "; ".join(dict.fromkeys(decision.why for decision in made))
        return results, timing

    def _setting(self, one: Contestant, phase: Phase) -> Row:
        point = self.point
        value = float(one.threads) if point.section == "threads" else point.value
        return {
            "section": point.section, "application": phase.workload.name, "cost_us": point.cost_us,
            "parameter": point.parameter, "value": value, "phase": phase.name,
            "scheme": one.scheme, "threads": one.threads,
        }  # fmt: skip

    def _explain(self, workload: Workload, events: pa.Table) -> str:
        """The figures of a batch's graph; only one, for it costs more than to run the batch."""
        found = self.engines[REFERENCE].explain(workload.target, events, **workload.options)
        known = {field.name: getattr(found, field.name) for field in fields(found)}
        known |= {"edges": found.edges}
        return json.dumps({name: value for name, value in known.items() if _is_figure(value)})

    def _difference(
        self, one: Contestant, results: pa.Table, expected: pa.Table, phase: Phase, batch: int
    ) -> str | None:
        found = difference(plain(results), expected)
        if found is not None and one.scheme not in INCORRECT:
            where = f"{self.point.title} {phase.name}".strip()
            raise Mismatch(f"{where}: batch {batch} by {one}: {found}")
        return found

    def _check_rows(self) -> None:
        """After the last batch all tables are the same, too."""
        for table in self.point.workload.tables:
            query = f'select * from "{table.name}"'
            expected = self.engines[REFERENCE].sql(query).arrow()
            for one in self.entered:
                if one.scheme in INCORRECT:
                    continue
                rows = self.engines[one].sql(query).arrow()
                if rows.equals(expected):
                    continue
                by_key = [(name, "ascending") for name in table.key]  # their places do not matter
                found = difference(rows.sort_by(by_key), expected.sort_by(by_key))
                if found is not None:
                    raise Mismatch(f"{self.point.title}: table {table.name} by {one}: {found}")


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float)


def plain(results: pa.Table) -> pa.Table:
    """The same with texts in place of dictionaries, which may be numbered differently."""
    columns = {}
    for field, column in zip(results.schema, results.columns, strict=True):
        is_coded = pa.types.is_dictionary(field.type)
        columns[field.name] = column.cast(field.type.value_type) if is_coded else column
    return pa.table(columns)


def difference(found: pa.Table, expected: pa.Table) -> str | None:
    """The first difference in words, or None."""
    if found.equals(expected):
        return None
    if found.schema != expected.schema or len(found) != len(expected):
        return f"{len(found)} rows of {found.schema.names}, serial has {len(expected)}"
    for name in expected.schema.names:
        pairs = zip(found[name].to_pylist(), expected[name].to_pylist(), strict=True)
        for place, (mine, serial) in enumerate(pairs):
            if mine != serial:
                return f"{name} of row {place} is {mine!r}, serial has {serial!r}"
    return "they differ"
