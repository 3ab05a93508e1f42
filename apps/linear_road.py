"""Linear Road: tolls by traffic and accidents, accounts and their past, on one dataflow.

    ./run python apps/linear_road.py              in memory, without Spark
    ./run python apps/linear_road.py FOLDER       on Spark: reads FOLDER/events, keeps FOLDER/road

Vehicles report where they are every thirty seconds. One that enters a segment is told the toll: by
the average speed there in the five minutes before, how many vehicles were there in the minute
before, and none where an accident is at most four segments ahead, of which it is told instead. It
is charged when it enters the next segment. An accident is two vehicles that stand at one place for
four reports. Vehicles ask for their balance, and for what they spent on a day of the past weeks.

A procedure keeps the traffic with SQL, a batch of ten seconds at once; a transaction then charges
and answers, event by event; both are one nest. At the end every answer is compared with plain
Python over all inputs.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headgate as hg
from apps import case_study

SEGMENTS, FEET = 12, 5280
EXIT_LANE = 4
FREE_SPEED, FREE_VEHICLES = 40.0, 50
FIRST = datetime.datetime(2024, 1, 1, 8, tzinfo=datetime.UTC)
REPORT, BALANCE, EXPENSES = 0, 2, 3  # the kinds of inputs, numbered as in the benchmark
CRASHED = (0, 4)  # vehicles of one road
CRASH = range(120, 600)  # the seconds in which they stand at one place
DAYS = 10

COLUMNS = (
    "ts timestamp, id bigint, kind int, vehicle bigint, speed int, xway int, lane int, "
    "direction int, segment int, feet int, day int"
)
inputs = hg.Stream("inputs", COLUMNS, order_by=["ts", "id"], batch="10 seconds")
priced = hg.Stream("priced", f"{COLUMNS}, toll bigint, accident int")
answers = hg.Stream("answers", "id bigint, told bigint, warned int, balance bigint, spent bigint")

last_seen = hg.Table(
    "last_seen",
    "vehicle bigint, place string, times int, segment string, minute bigint",
    key="vehicle",
)
traffic = hg.Table(
    "traffic",
    "road string, segment int, minute bigint, speeds bigint, reports bigint, vehicles bigint",
    key="road, segment, minute",
)
accidents = hg.Table(
    "accidents",
    "place string, since bigint, road string, segment int, until bigint NULL",
    key="place, since",
)
accounts = hg.Table(
    "accounts",
    "vehicle bigint, balance bigint DEFAULT 0, pending bigint DEFAULT 0, segment int DEFAULT -1",
    key="vehicle",
)
history = hg.Table(
    "history", "vehicle bigint, xway int, day int, spent bigint", key="vehicle, xway, day"
)
TABLES = [last_seen, traffic, accidents, accounts, history]

# What SQL needs of a report, by names of their own: its road, minute and place.
REPORTS = f"""
    select *, epoch_us(ts) // 60000000 as minute, xway || '/' || direction as road,
      xway || '/' || direction || '/' || segment as at_segment,
      xway || '/' || direction || '/' || lane || '/' || feet as place
    from batch where kind = {REPORT}"""
# A vehicle reports once in ten seconds at the most, so the one before is in the table.
SEEN = f"""
    select r.vehicle, r.place, r.minute, r.at_segment as segment,
      (case when r.place = l.place then l.times + 1 else 1 end)::int as times
    from ({REPORTS}) r left join last_seen l using (vehicle)"""
TRAFFIC = f"""
    select road, segment, minute, coalesce(t.speeds, 0) + n.speeds as speeds,
      coalesce(t.reports, 0) + n.reports as reports,
      coalesce(t.vehicles, 0) + n.vehicles as vehicles
    from (
      select road, r.segment, r.minute, sum(speed)::bigint as speeds, count(*) as reports,
        count(*) filter (where l.vehicle is null or l.segment <> at_segment
                         or l.minute <> r.minute) as vehicles
      from ({REPORTS}) r left join last_seen l using (vehicle) group by all
    ) n left join traffic t using (road, segment, minute)"""
STANDING = "select place from last_seen where times >= 4 group by place having count(*) >= 2"
BEGUN = f"""
    select distinct place, minute as since, road, segment, null::bigint as until
    from ({REPORTS}) where place in ({STANDING})
      and place not in (select place from accidents where until is null)"""
ENDED = f"""
    select place, since, (select max(minute) from ({REPORTS})) as until
    from accidents where until is null and place not in ({STANDING})"""
# Vehicles of direction 0 drive to higher segments. An accident counts from the minute after it.
PRICED = f"""
    with found as (
      select r.id, avg(t.speeds / t.reports) as average,
        max(t.vehicles) filter (where t.minute = r.minute - 1) as vehicles
      from ({REPORTS}) r left join traffic t on t.road = r.road and t.segment = r.segment
        and t.minute between r.minute - 5 and r.minute - 1 group by r.id),
    ahead as (
      select r.id, min_by(a.segment, abs(a.segment - r.segment)) as segment
      from ({REPORTS}) r join accidents a on a.road = r.road and a.since < r.minute
        and (a.until is null or a.until >= r.minute)
        and (a.segment - r.segment) * (1 - 2 * r.direction) between 0 and 4 group by r.id)
    select batch.*, coalesce(ahead.segment, -1)::int as accident,
      (case when ahead.segment is null and average < {FREE_SPEED} and vehicles > {FREE_VEHICLES}
       then 2 * (vehicles - {FREE_VEHICLES}) ** 2 else 0 end)::bigint as toll
    from batch left join found using (id) left join ahead using (id) order by ts, id"""


@hg.procedure(inputs, output=priced, writes=[last_seen, traffic, accidents])
def watch(batch: pa.Table, tx: hg.Tx) -> pa.Table:
    tx.upsert(traffic, TRAFFIC)
    tx.upsert(last_seen, SEEN)
    tx.update(accidents, ENDED)
    tx.insert(accidents, BEGUN)
    return tx.sql(PRICED)


@hg.transaction(event=priced, output=answers)
def travel(
    event: Any,
    account: Any = accounts.at("vehicle", create=True),
    past: Any = history.where(vehicle="vehicle", xway="xway", day="day", mode="read"),
    out: Any = hg.output("told bigint, warned int, balance bigint, spent bigint"),
) -> None:
    out.told = -1
    out.warned = -1
    out.balance = account.balance
    out.spent = sum(one.spent for one in past)
    if event.kind == REPORT and event.segment != account.segment:
        account.balance += account.pending
        account.pending = 0
        account.segment = event.segment
        if event.lane != EXIT_LANE:
            account.pending = event.toll
            out.told = event.toll
            out.warned = event.accident


road = hg.Dataflow("road", [watch, travel], nest=[[watch, travel]])


# --- the inputs ---------------------------------------------------------------------------------


def make_inputs(vehicles: int, minutes: int = 15) -> list[dict[str, Any]]:
    """Vehicles that drive along, slower where it is full; two that stand; and questions."""
    dice = random.Random(9)
    found = []
    for vehicle in range(vehicles):
        xway, direction = vehicle % 2, vehicle // 2 % 2
        begin, feet = dice.randrange(30) + 30 * dice.choice([0, 0, 0, 8]), dice.randrange(2 * FEET)
        begin = begin % 30 if vehicle in CRASHED else begin
        for second in range(begin, minutes * 60, 30):
            stands = vehicle in CRASHED and second in CRASH
            speed = 0 if stands else dice.randrange(10, 60)
            feet = 3 * FEET + 700 if stands else feet + speed * 44
            if feet >= SEGMENTS * FEET:
                break
            segment = feet // FEET
            segment = segment if direction == 0 else SEGMENTS - 1 - segment
            lane = 1 if stands else dice.choice([0, 1, 2, 3, 3, EXIT_LANE])
            found.append((second, REPORT, vehicle, speed, xway, lane, direction, segment, feet))
            if dice.random() < 0.1:
                kind, day = dice.choice([BALANCE, EXPENSES]), dice.randrange(1, DAYS)
                found.append((second + dice.randrange(9), kind, vehicle, day, xway, 0, 0, 0, 0))
    rows = []
    for number, one in enumerate(sorted(found)):
        second, kind, vehicle, speed, xway, lane, direction, segment, feet = one
        rows.append({
            "ts": FIRST + datetime.timedelta(seconds=second), "id": number, "kind": kind,
            "vehicle": vehicle, "speed": speed, "xway": xway, "lane": lane, "direction": direction,
            "segment": segment, "feet": feet, "day": speed if kind == EXPENSES else 0,
        })  # fmt: skip
    return rows


def make_history(vehicles: int) -> list[dict[str, Any]]:
    dice = random.Random(3)
    return [
        {"vehicle": vehicle, "xway": vehicle % 2, "day": day, "spent": dice.randrange(900)}
        for vehicle in range(vehicles)
        for day in range(1, DAYS)
    ]


# --- the comparison -----------------------------------------------------------------------------


class Driver:
    """What plain Python knows of one vehicle."""

    segment, pending, balance = -1, 0, 0


def expected(given: list[dict[str, Any]], past: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """By input: the toll told, the accident warned of, the balance and the expenses."""
    spent = {(row["vehicle"], row["xway"], row["day"]): row["spent"] for row in past}
    drivers = defaultdict[int, Driver](Driver)
    stats, crashes, found = segment_minutes(given), accident_minutes(given), {}
    for row in given:
        driver, told, warned = drivers[row["vehicle"]], -1, -1
        balance = driver.balance
        if row["kind"] == REPORT and row["segment"] != driver.segment:
            driver.balance += driver.pending
            driver.segment, driver.pending = row["segment"], 0
            if row["lane"] != EXIT_LANE:
                told, warned = quote(row, stats, crashes)
                driver.pending = told
        key = (row["vehicle"], row["xway"], row["day"])
        found[row["id"]] = (told, warned, balance, spent.get(key, 0))
    return found


def minute_of(row: dict[str, Any]) -> int:
    return int(row["ts"].timestamp()) // 60


def segment_minutes(given: list[dict[str, Any]]) -> dict[Any, tuple[float, int]]:
    """By road, segment and minute: the average speed, and how many vehicles."""
    speeds, vehicles = defaultdict[Any, list[int]](list), defaultdict[Any, set[int]](set)
    for row in given:
        if row["kind"] == REPORT:
            key = (row["xway"], row["direction"], row["segment"], minute_of(row))
            speeds[key].append(row["speed"])
            vehicles[key].add(row["vehicle"])
    return {key: (sum(all_) / len(all_), len(vehicles[key])) for key, all_ in speeds.items()}


def accident_minutes(given: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Accidents as (xway, direction, segment, first minute, last minute), batch by batch."""
    places, times = dict[int, Any](), Counter[int]()
    standing: dict[Any, int] = {}
    found = []
    batches = defaultdict[int, list[dict[str, Any]]](list)
    for row in given:
        if row["kind"] == REPORT:
            batches[int(row["ts"].timestamp()) // 10].append(row)
    for rows in batches.values():
        for row in rows:
            place = (row["xway"], row["direction"], row["segment"], row["lane"], row["feet"])
            vehicle = row["vehicle"]
            times[vehicle] = times[vehicle] + 1 if places.get(vehicle) == place else 1
            places[vehicle] = place
        stand = Counter(place for vehicle, place in places.items() if times[vehicle] >= 4)
        now = {place for place, count in stand.items() if count >= 2}
        for place in [one for one in standing if one not in now]:
            found.append((*place[:3], standing.pop(place), minute_of(rows[-1])))
        for place in now - standing.keys():
            standing[place] = minute_of(rows[0])
    return found + [(*place[:3], since, 1 << 40) for place, since in standing.items()]


def quote(row: dict[str, Any], stats: Any, crashes: list[tuple[Any, ...]]) -> tuple[int, int]:
    """The toll and the accident ahead that a vehicle is told of."""
    minute, road_of = minute_of(row), (row["xway"], row["direction"])
    forward = 1 if row["direction"] == 0 else -1
    ahead = [
        segment
        for xway, direction, segment, since, until in crashes
        if (xway, direction) == road_of and since < minute <= until
        and 0 <= (segment - row["segment"]) * forward <= 4
    ]  # fmt: skip
    if ahead:
        return 0, min(ahead, key=lambda segment: abs(segment - row["segment"]))
    key = (*road_of, row["segment"])
    before = [stats[(*key, minute - n)] for n in range(1, 6) if (*key, minute - n) in stats]
    vehicles = stats.get((*key, minute - 1), (0.0, 0))[1]
    is_slow = bool(before) and sum(speed for speed, _ in before) / len(before) < FREE_SPEED
    return (2 * (vehicles - FREE_VEHICLES) ** 2 if is_slow and vehicles > FREE_VEHICLES else 0), -1


ANSWERS = "select id, told, warned, balance, spent from results where transaction = 'answers'"


def compare(answered: list[tuple[Any, ...]], given: list[dict[str, Any]], vehicles: int) -> bool:
    """Print what the road took and told; whether plain Python says the same of every input."""
    wanted = expected(given, make_history(vehicles))
    got = {row[0]: row[1:] for row in answered}
    tolls = sum(1 for told, *_ in got.values() if told > 0)
    warned = sum(1 for _, segment, *_ in got.values() if segment >= 0)
    print(f"{len(given):,} inputs: {tolls:,} tolls, {warned:,} warnings of accidents")
    wrong = [number for number in wanted if got.get(number) != wanted[number]]
    for number in wrong[:3]:
        print(f"input {number}: {got.get(number)}, and plain Python has {wanted[number]}")
    print("NOT as plain Python has it" if wrong else "as plain Python has it")
    return not wrong and len(got) == len(wanted)


# --- the two ways to run it ---------------------------------------------------------------------


def open_road(path: str | None, vehicles: int) -> hg.Engine:
    engine = hg.open(path, tables=TABLES, dataflows=road)
    engine.load(history, make_history(vehicles), mode="skip")
    return engine


def in_memory(vehicles: int = 1200, minutes: int = 15) -> bool:
    given = make_inputs(vehicles, minutes)
    with open_road(None, vehicles) as engine:
        recorded = pa.concat_tables(
            [engine.push(inputs, given), engine.flush(inputs)], promote_options="default"
        )
    names = ["id", "told", "warned", "balance", "spent"]
    rows = recorded.filter(pc.equal(recorded["transaction"], answers.name)).select(names)
    return compare(list(zip(*rows.to_pydict().values(), strict=True)), given, vehicles)


def on_spark(spark: Any, folder: Path, vehicles: int = 1200) -> bool:
    given = make_inputs(vehicles)
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", given, late=0.0)
    with open_road(str(folder / "road"), vehicles) as engine:
        case_study.feed(spark, folder, COLUMNS, [], engine.sink(inputs))
        return compare(engine.sql(ANSWERS).rows(), given, vehicles)


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
