"""Planning: which events of a batch run on which shard, and which travel with their rows.

Components within a shard stay at home. Those over several shards visit: their rows are handed out
by their shards, and their events run together, in the driver, or in tasks of their own where they
are dear enough to pay for another job. Invariant: an event is in one share, with its component, in
the serial order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.execution.program import Program
from headgate.parallel.decision import Decision
from headgate.shards.changes import keys_of
from headgate.shards.components import CROSS, Components, Touched
from headgate.shards.placement import EVERYWHERE
from headgate.shards.share import ShareReport, Timing
from headgate.state.spaces import EventRows

WHOLE_SECONDS = 0.02  # of a batch in the driver beside its events, before it was measured
JOBS_MIN = 2  # to be measured before a batch stays in the driver, where jobs are not measured
DOMINANT = 0.5  # of the events that travel: with a component so large no second task would help


@dataclass(frozen=True)
class Costs:
    """What was measured of the last epochs, in seconds."""

    event: float | None = None  # of one event, in a task
    job: float | None = None  # of one more job of tasks
    tasks: int = 1  # that can run at once
    whole: float | None = None  # of a batch in the driver, beside its events
    deal: float | None = None  # of one event that goes to a task, for the driver
    jobs: int = 0  # that were measured; the first one of a program loads code
    here: float | None = None  # of one event in the driver, which is no more than in a task
    wholes: int = 0  # batches in the driver that were measured; the first one loads code, too

    def noted(
        self,
        event: float | None = None,
        job: float | None = None,
        whole: float | None = None,
        deal: float | None = None,
        here: float | None = None,
    ) -> Costs:
        """The same, moved towards what was just measured.

        One event costs a task no less than the driver: what is measured there says something of
        the other one, too.
        """
        mine, theirs = _moved(self.here, here), _moved(self.event, event)
        if here is not None and theirs is not None and mine is not None:
            theirs = max(theirs, mine)
        elif mine is not None and theirs is not None:
            mine = min(mine, theirs)
        return Costs(
            theirs, _moved(self.job, job), self.tasks, _moved(self.whole, whole),
            _moved(self.deal, deal), self.jobs + (job is not None), mine,
            self.wholes + (whole is not None),
        )  # fmt: skip

    def whole_seconds(self, events: int) -> float | None:
        """How long a batch takes the driver, with all rows in its own memory."""
        each = self.event if self.here is None else self.here
        if each is None:
            return None
        beside = WHOLE_SECONDS if self.whole is None else self.whole
        if self.wholes == 1:  # else a slow first batch there would be the last one
            beside = min(beside, WHOLE_SECONDS)
        return beside + each * events


def _moved(before: float | None, now: float | None) -> float | None:
    if now is None:
        return before
    # Down at once, up slowly: a worker's first batch loads code, and says little of the next.
    return now if before is None or now < before else 0.75 * before + 0.25 * now


@dataclass(frozen=True)
class BatchPlan:
    """Who runs what: positions by shard and by visit, and the rows that each visit needs."""

    homes: Mapping[int, EventRows]  # shard -> event rows, in serial order
    visits: Mapping[int, EventRows]  # visit -> the same
    in_driver: bool  # where the visits run
    wanted: Mapping[int, Mapping[str, pa.Table]]  # shard -> "visit/table" -> keys
    decision: Decision
    is_whole: bool = False  # all of it runs in the driver, over the rows of all shards

    @property
    def shards(self) -> list[int]:
        """The shards that have anything to do."""
        return sorted({*self.homes, *self.wanted})


def plan_whole(events: int, why: str) -> BatchPlan:
    """All events in the driver, over a copy of all rows."""
    decision = Decision("driver", f"{events:,} events run in the driver: {why}")
    return BatchPlan({}, {}, True, {}, decision, is_whole=True)


def plan_faster(events: int, elsewhere: float | None, costs: Costs) -> BatchPlan | None:
    """All events in the driver, if that is expected to take less than executors do."""
    here = costs.whole_seconds(events)
    if here is None or elsewhere is None or here > 0.95 * elsewhere:
        return None
    why = (
        f"they take the driver {here * 1e3:.0f} ms, and executors at least {elsewhere * 1e3:.0f}, "
        f"{(costs.job or 0) * 1e3:.0f} of them for a job"
    )
    return plan_whole(events, why)


def seconds_of(plan: BatchPlan, costs: Costs) -> float | None:
    """How long a plan is expected to take; None before anything of use was measured."""
    if costs.event is None or costs.job is None or costs.jobs < JOBS_MIN:
        return None
    home = [len(rows) for rows in plan.homes.values()]
    away = [len(rows) for rows in plan.visits.values()]
    longest = max([0, *home, sum(home) / costs.tasks])
    visits = sum(away) if plan.in_driver else max([0, *away, sum(away) / costs.tasks])
    jobs = 1 + (bool(away) and not plan.in_driver)
    dealt = (costs.deal or 0.0) * (sum(home) + sum(away))
    return costs.job * jobs + costs.event * (longest + visits) + dealt


def least_seconds(events: int, costs: Costs) -> float | None:
    """How long executors take at least, whatever the plan; None before anything was measured."""
    if costs.event is None or costs.job is None or costs.jobs < JOBS_MIN:
        return None
    return costs.job + events * (costs.event / costs.tasks + (costs.deal or 0.0))


def plan_at_home(homes: np.ndarray, order: EventRows) -> BatchPlan:
    """Place the events of a batch of which none has rows on two shards."""
    shards = homes[order]
    at_home = {int(shard): order[shards == shard] for shard in np.unique(shards)}
    decision = _decision(at_home, np.zeros(0, np.int64), 0, "")
    return BatchPlan(at_home, {}, False, {}, decision)


def plan_batch(components: Components, order: EventRows, costs: Costs) -> BatchPlan:
    """Place the events of a batch, which are given in their serial order."""
    numbers = components.numbers[order]
    homes = components.homes[numbers]
    at_home = {int(shard): order[homes == shard] for shard in np.unique(homes) if shard != CROSS}
    cross = np.unique(numbers[homes == CROSS])
    sizes = np.bincount(numbers, minlength=len(components.homes))[cross]
    count, why = _choose_visits(sizes, costs)
    visit_of = np.full(len(components.homes), -1, np.int64)
    visit_of[cross] = _packed(sizes, count)
    visits = {number: order[visit_of[numbers] == number] for number in range(count)}
    wanted = wanted_rows(components.touched, visit_of[components.numbers], order)
    decision = _decision(at_home, sizes, count, why)
    return BatchPlan(at_home, visits, count == 1, wanted, decision)


def _choose_visits(sizes: np.ndarray, costs: Costs) -> tuple[int, str]:
    """In how many tasks the components that travel run; one is the driver itself."""
    total = int(sizes.sum())
    if not total:
        return 0, ""
    if costs.event is None or costs.job is None:
        return 1, "what a job and an event cost is not measured yet"
    if int(sizes.max()) > DOMINANT * total:
        share = 100 * int(sizes.max()) // total
        return 1, f"one component has {share} % of them, and no second task could help"
    count = min(costs.tasks, len(sizes))
    gain = costs.event * total * (1 - 1 / count)
    told = f"{count} tasks would save {gain * 1e3:.1f} ms, one more job costs {costs.job * 1e3:.0f}"
    return count if gain > costs.job else 1, told


def _packed(sizes: np.ndarray, count: int) -> np.ndarray:
    """By component: in which of so many tasks, so that these are about even; the largest first."""
    found = np.zeros(len(sizes), np.int64)
    if count > 1:
        load = np.zeros(count, np.int64)
        for place in np.argsort(-sizes, kind="stable").tolist():
            task = int(load.argmin())
            found[place] = task
            load[task] += sizes[place]
    return found


def wanted_rows(
    touched: Touched, visit_of_event: np.ndarray, order: EventRows
) -> dict[int, dict[str, pa.Table]]:
    """The keys of the rows that each visit needs, by the shard that has them."""
    runs = np.zeros(len(visit_of_event), np.bool_)
    runs[order] = True
    visits = np.where(runs, visit_of_event, -1)[touched.events]
    mine = visits >= 0
    if not mine.any():
        return {}
    rows = len(touched.shards)
    pairs = np.unique(visits[mine] * rows + touched.rows[mine])
    visit, row = np.divmod(pairs, rows)
    shard = touched.shards[row]
    # Rows that all shards have are handed out by one that is asked anyway.
    asked = shard[shard != EVERYWHERE]
    shard = np.where(shard == EVERYWHERE, asked.min() if len(asked) else 0, shard)
    found: dict[int, dict[str, pa.Table]] = {}
    for name, base in touched.bases.items():
        known = touched.keys[name]
        of_table = (row >= base) & (row < base + known.count)
        for one, number in {*zip(shard[of_table].tolist(), visit[of_table].tolist(), strict=True)}:
            slots = row[of_table & (shard == one) & (visit == number)] - base
            found.setdefault(one, {})[f"{number}/{name}"] = keys_of(known, slots)
    return found


def _decision(
    at_home: Mapping[int, EventRows], sizes: np.ndarray, count: int, why: str
) -> Decision:
    local, travelling = sum(map(len, at_home.values())), int(sizes.sum())
    home = f"{local:,} events run on {len(at_home)} shards"
    if not travelling:
        return Decision("executors", f"{home}, none has rows on two")
    place = "the driver" if count == 1 else f"{count} tasks"
    told = f"{travelling:,} events in {len(sizes):,} components have rows on several: they run in"
    scheme = "driver" if not local and count == 1 else ("mixed" if count == 1 else "executors")
    return Decision(scheme, f"{home if local else 'no event stays'}; {told} {place}: {why}")


# --- due shards -----------------------------------------------------------------------------------
# In which shards a row may expire now, as far as the process that commits knows.
#
# Each share of a batch over rows that expire says when the next of its rows will. A shard where
# none is due needs no task for the time to pass in it. Invariant: the moment that is noted is never
# later than that of the first row that expires; where nothing is noted, one may be due at any time.


class DueShards:
    """When the next row of each shard expires, by table."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._moments: dict[tuple[int, str], int] = {}

    def shards(self, program: Program, timing: Timing | None) -> list[int]:
        """The shards where rows of the program's tables may be due when its batch has ended."""
        if timing is None:
            return []
        return [shard for shard in range(self._count) if self._is_due(shard, program, timing)]

    def _is_due(self, shard: int, program: Program, timing: Timing) -> bool:
        for table in program.expiring:
            moment = self._moments.get((shard, table.name))
            times = [timing.horizon, timing.floors.get(table.name)]
            known = [time for time in times if time is not None]
            if known and (moment is None or moment <= max(known)):
                return True
        return False

    def note(
        self,
        plan: BatchPlan,
        reports: Sequence[tuple[np.ndarray, ShareReport]],
        homes: Sequence[int],
    ) -> None:
        """Learn from the shares of a batch: those of `homes` in their order, then those of visits.

        What a visit leaves comes on top of what its homes had.
        """
        for number, (_, report) in enumerate(reports):
            for name, moment in report.next_due.items():
                if plan.is_whole:
                    self._moments.update({(s, name): moment for s in range(self._count)})
                elif number < len(homes):
                    self._moments[homes[number], name] = moment
                else:
                    self._lower(report.grown, name, moment)

    def _lower(self, shards: Iterable[int], name: str, moment: int) -> None:
        for shard in shards:
            known = self._moments.get((shard, name))
            if known is not None:
                self._moments[shard, name] = min(known, moment)

    def forget(self, name: str) -> None:
        """Rows of a table came otherwise."""
        self._moments = {key: one for key, one in self._moments.items() if key[1] != name}
