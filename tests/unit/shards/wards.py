"""Wards in shards: rows that expire and keep versions, which events name, or time passes for.

Beds expire and have a history, of which events see windows; hours are made as time strikes. An
engine with shards lives beside one in one process and beside the oracle, and must not differ.
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from headgate.testing.disk import SimulatedDisk
from tests.property.harness import decoded, same_bytes, sorted_table
from tests.property.workers import PATH, Workers, open_sharded

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EVENT = "kind string, ts timestamp, id bigint, other bigint, x double, back timestamp"

beds = hg.Table(
    "beds",
    "id bigint, x double, n bigint, seen timestamp NULL",
    key="id",
    history="8 seconds",
    by="ts",
    expires="seen + 4 seconds",
    check="x < 90",
)
wards = hg.Table("wards", "id bigint, until date NULL, n bigint", key="id", expires="until")
notes = hg.Table("notes", "id bigint, n bigint, most double NULL", key="id", history="3 rows")
hours = hg.Table(
    "hours", "id timestamp, n bigint, until timestamp", key="id", expires="until + 20 seconds"
)
signs = hg.Table(
    "signs", "id bigint, n bigint, until timestamp", key="id", expires="until + 3 seconds",
    history="2 rows", replicate=True,
)  # fmt: skip
TABLES = [beds, wards, notes, hours, signs]


@hg.transaction(event=EVENT, compiled=False)
def stay(
    event,
    bed=beds.at("id", create=True),
    ward=wards.at("other", create=True),
    seen=beds.window("id", size="8 seconds"),
    near=beds.window("other", size="3 seconds"),
    out=hg.output("count bigint, total double, n bigint"),
):
    out.count = len(seen) * 1000 + len(near)
    out.total = seen.x.sum() - near.x.sum()
    out.n = ward.n
    bed.x = event.x
    bed.n += 1
    bed.seen = event.ts if event.x < 40 else event.back
    ward.n += bed.n
    if event.x == 7.0:
        ward.until = 20_454 if bed.n % 2 else None
    if event.x == 0.5:
        return hg.abort("half")


@hg.transaction(event=EVENT)
def settle(event, bed=beds.at("id", create=True), ward=wards.at("id", create=True)):
    bed.seen = event.ts
    bed.x += event.x
    ward.n += 1
    if event.x == 0.5:
        hg.delete(bed)


@hg.transaction(event=EVENT, compiled=False)
def glance(
    event,
    bed=beds.at("id", mode="read"),
    other=beds.at("other", mode="read"),
    note=notes.at("other", create=True),
    few=notes.window("other", size="2 rows"),
    all_few=notes.window("id", size="3 rows"),
    out=hg.output("n bigint, few bigint, all_few bigint"),
):
    out.n = bed.n * 100 + other.n
    out.few = few.n.sum() + len(few) * 1000
    out.all_few = all_few.n.sum() + len(all_few) * 1000
    note.n += bed.n
    note.most = all_few.most.max()
    if event.x == 33.0:
        hg.delete(note)


@hg.transaction(event=EVENT, compiled=False)
def sign(
    event,
    mine=signs.at("id", create=True),
    seen=signs.window("id", size="2 rows"),
    bed=beds.at("other"),
    out=hg.output("n bigint"),
):
    """Rows that expire on all shards: such batches run where all rows are."""
    mine.n += 1
    mine.until = event.ts
    bed.n += mine.n
    out.n = seen.n.sum()


@hg.transaction(every="4 seconds", compiled=False)
def strike(event, hour=hours.at("end", create=True), out=hg.output("n bigint")):
    hour.n += 1
    hour.until = event.start
    out.n = event.end - event.start


ROUTES = {"stay": stay, "settle": settle, "glance": glance}
FORMS = [*ROUTES.values(), sign, strike]
TIMED: dict[str, Any] = {"route_by": "kind", "order_by": "ts"}
OPTIONS: tuple[dict[str, Any], ...] = (
    TIMED,
    {**TIMED, "watermark": "3 seconds"},
    {**TIMED, "watermark": "2 seconds", "late": "append"},
    {**TIMED, "order_by": "ts, id", "ticks": [strike]},
    {**TIMED, "watermark": "3 seconds", "ticks": [strike]},
    {"route_by": "kind"},  # no time passes
)


KINDS = ("stay", "stay", "stay", "settle", "settle", "glance", "none")


def events(
    seed: int, count: int, *, begin: int = 0, keys: int = 6, kinds: tuple[str, ...] = KINDS
) -> list[dict[str, Any]]:
    """Random events, one in ten of them late, over so many keys."""
    draw, found, second = random.Random(seed), [], begin
    for _ in range(count):
        second += draw.choice((0, 0, 0, 0, 1, 1, 2))
        late = draw.randrange(9) if draw.random() < 0.1 else 0
        found.append({
            "kind": draw.choice(kinds),
            "ts": START + dt.timedelta(seconds=max(second - late, 0)),
            "id": draw.randrange(keys), "other": draw.randrange(keys),
            "x": draw.choice((0.1, 0.5, 7.0, 33.0, 41.0, 1e16, -1e16)),
            "back": START + dt.timedelta(seconds=draw.randrange(second + 20)),
        })  # fmt: skip
    return found


FIRST = [
    {"id": n, "x": 1.0, "n": 1, "seen": START + dt.timedelta(seconds=n % 9) if n % 4 else None}
    for n in range(30)
]


def loaded(engine: Any) -> Any:
    """An engine, or the oracle, with some beds, of which most expire soon."""
    engine.load(beds, FIRST)
    return engine


def opened(disk: SimulatedDisk | None, shards: int, workers: Workers | None = None) -> hg.Engine:
    """The store, with so many shards, or with 0 in one process."""
    if shards:
        return open_sharded(TABLES, FORMS, shards, workers or Workers(), disk)
    path = None if disk is None else PATH
    return hg.open(path, tables=TABLES, transactions=FORMS, disk=disk)


def rows_of(engine: hg.Engine) -> dict[str, Any]:
    return {table.name: sorted_table(engine, table) for table in engine.tables.values()}


class Lives:
    """An engine with shards, one in one process and the oracle, which are given the same events."""

    def __init__(
        self,
        shards: int,
        workers: Workers | None = None,
        options: dict[str, Any] | None = None,
        routes: dict[str, Any] | None = None,
    ) -> None:
        self.disk, self.shards = SimulatedDisk(), shards
        self.engine = loaded(opened(self.disk, shards, workers))
        self.one = loaded(opened(None, 0))
        self.oracle = loaded(SerialOracle(TABLES, FORMS))
        self.options = {**(TIMED if options is None else options), "name": "s"}
        self.routes = ROUTES if routes is None else routes
        self._before: dict[str, int] = {}
        self.now = 0  # the second at which the next events begin

    def run(
        self, seed: int, count: int, *, after: int = 0, keys: int = 6, kinds: Any = KINDS
    ) -> str | None:
        """Run some events, the first of them so many seconds after those before; returns the first
        difference."""
        self.now += after
        given = events(seed, count, begin=self.now, keys=keys, kinds=kinds)
        self.now = max((one["ts"] - START).seconds for one in given)
        expected = self.oracle.run(self.routes, given, **self.options)
        found = self.engine.run(self.routes, given, **self.options)
        same = self.one.run(self.routes, given, **self.options)
        if not same_bytes(*(decoded(one).drop_columns(["epoch"]) for one in (found, same))):
            return results_difference(found, expected) or "the results have other bytes"
        return self.counted()

    def flush(self) -> str | None:
        """Run what waits for the watermark."""
        if "watermark" not in self.options:
            return None
        for each in (self.oracle, self.engine, self.one):
            each.flush(self.routes, **self.options)
        return self.difference()

    def difference(self) -> str | None:
        """Where rows or versions differ."""
        for table in self.engine.tables.values():
            pair = sorted_table(self.engine, table), sorted_table(self.one, table)
            if not same_bytes(*pair):
                return f"table {table.name}: {difference(self.engine, self.oracle)}"
        return self.counted() or difference(self.engine, self.oracle)

    def counted(self) -> str | None:
        """Where there are more rows or fewer, or more have gone."""
        if self.engine.counts() != self.one.counts():
            return f"counts: {self.engine.counts()}, one process has {self.one.counts()}"
        expired = self.one.metrics().expired.items()
        since = {name: count - self._before.get(name, 0) for name, count in expired}
        if self.engine.metrics().expired != since:
            return f"expired: {self.engine.metrics().expired}, in one process {since}"
        return None

    def reopen(
        self,
        shards: int | None = None,
        workers: Workers | None = None,
        *,
        is_killed: bool = False,
    ) -> None:
        """Close the store, or kill its process, and open it anew, perhaps with other shards."""
        if is_killed:
            self.disk = self.disk.after_kill()
        else:
            self.engine.close()
        if shards is not None and shards != self.shards:
            hg.reshard(PATH, shards, disk=self.disk)
            self.oracle.epoch += 1  # it is an epoch of its own, which changes no row
            self.shards = shards
        self.engine = opened(self.disk, self.shards, workers)
        self._before = dict(self.one.metrics().expired)  # an engine counts from its opening on

    def close(self) -> None:
        self.engine.close()
        self.one.close()
