"""Congestion: tolls by the real statistics of five minutes, which Linear Road asks for.

    ./run python apps/congestion.py            in memory, without Spark
    ./run python apps/congestion.py FOLDER     on Spark: reads FOLDER/events, keeps FOLDER/road

A vehicle that enters a segment is told its toll: by the average speed there in the five minutes
before this one, and by how many different vehicles were there in the minute before. Each segment
and minute is a row, so the five minutes are a range of rows. At the end every toll, and the speeds
of a jam that was planted, are compared with SQL over all reports.
"""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import headgate as hg
from apps import case_study

MINUTES = 30
SEGMENTS = 12
JAM_SEGMENT = 4
JAM_MINUTES = range(10, 20)  # when it is slow and full there
FIRST = datetime.datetime(2024, 1, 1, 8, tzinfo=datetime.UTC)
FREE_SPEED = 40.0  # miles an hour: where the traffic flows, there is no toll
FREE_VEHICLES = 50

minutes = hg.Table(
    "minutes",
    "segment bigint, minute bigint, speeds double, reports bigint, vehicles bigint",
    key="segment, minute",
)
# Where a vehicle was last, so that it counts once in a minute of a segment.
vehicles = hg.Table(
    "vehicles", "id bigint, segment bigint DEFAULT -1, minute bigint DEFAULT -1", key="id"
)


@hg.transaction(
    event="ts timestamp, id bigint, vehicle bigint, segment bigint, speed double, minute bigint, "
    "first bigint, last bigint"
)
def report(
    event: Any,
    now: Any = minutes.at("segment", "minute", create=True),
    seen: Any = vehicles.at("vehicle", create=True),
    past: Any = minutes.between(("segment", "first"), ("segment", "last"), mode="read"),
    out: Any = hg.output("average double, count bigint, toll bigint"),
) -> Any:
    if event.speed < 0:
        return hg.abort("negative speed")
    now.speeds += event.speed
    now.reports += 1
    is_new = seen.segment != event.segment or seen.minute != event.minute
    if is_new:
        now.vehicles += 1
        seen.segment = event.segment
        seen.minute = event.minute
    total = 0.0
    count = 0
    for one in past:  # a minute without reports has no row, and no say
        total += one.speeds / one.reports
        if one.minute == event.last:
            count = one.vehicles
    out.count = count
    if len(past) > 0:
        out.average = total / len(past)
        if is_new and out.average < FREE_SPEED and count > FREE_VEHICLES:
            out.toll = 2 * (count - FREE_VEHICLES) ** 2


ORDER = {"order_by": ["ts", "id"]}
COLUMNS = "ts timestamp, id bigint, vehicle bigint, segment bigint, speed double"
MINUTE = "unix_micros(ts) div 60000000"
MADE = [f"{MINUTE} as minute", f"{MINUTE} - 5 as first", f"{MINUTE} - 1 as last"]
WATERMARK = "2 seconds"


def open_road(path: str | None) -> hg.Engine:
    return hg.open(path, tables=[minutes, vehicles], transactions=[report])


def make_events(count: int) -> list[dict[str, Any]]:
    """Reports of vehicles; in the jam there are more of them, and they are slow."""
    dice = random.Random(7)
    events = []
    for number in range(count):
        ts = FIRST + datetime.timedelta(minutes=MINUTES) * number / count
        is_jam = (ts - FIRST) // datetime.timedelta(minutes=1) in JAM_MINUTES
        segment = dice.randrange(SEGMENTS + 2 * is_jam) % SEGMENTS
        segment = JAM_SEGMENT if is_jam and dice.random() < 0.1 else segment
        speed = float(dice.randrange(45, 70))
        if is_jam and segment == JAM_SEGMENT:
            speed = float(dice.randrange(5, 30))
        if dice.random() < 0.01:
            speed = -1.0  # a broken sensor
        events.append({
            "ts": ts, "id": number, "vehicle": dice.randrange(2000), "segment": segment,
            "speed": speed,
        })  # fmt: skip
    return events


def with_minutes(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the transformations on Spark make them."""
    found = []
    for event in events:
        minute = int(event["ts"].timestamp()) // 60
        found.append({**event, "minute": minute, "first": minute - 5, "last": minute - 1})
    return found


# --- the comparison ---------------------------------------------------------------------------

# A vehicle is new in a minute of a segment when its report before was of another.
EXPECTED = f"""
    with good as (
        select *, coalesce(lag(segment) over (partition by vehicle order by ts, id) <> segment
                  or lag(minute) over (partition by vehicle order by ts, id) <> minute, true) as new
        from reports where speed >= 0),
    stats as (
        select segment, minute, avg(speed) as average, count(*) filter (where new) as count
        from good group by all)
    select good.id, avg(stats.average) as average,
        coalesce(max(stats.count) filter (where stats.minute = good.last), 0) as count,
        case when any_value(good.new) and avg(stats.average) < {FREE_SPEED}
                  and coalesce(max(stats.count) filter (where stats.minute = good.last), 0)
                      > {FREE_VEHICLES}
             then 2 * (max(stats.count) filter (where stats.minute = good.last)
                       - {FREE_VEHICLES}) ** 2 else 0 end as toll
    from good left join stats
        on stats.segment = good.segment and stats.minute between good.first and good.last
    group by good.id order by good.id
"""


def expected(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The same by SQL over all reports at once."""
    with duckdb.connect() as connection:
        connection.register("reports", pa.Table.from_pylist(with_minutes(events)))
        rows: list[tuple[Any, ...]] = connection.execute(EXPECTED).fetchall()
    return rows


FOUND = "select id, average, count, toll from results where outcome = 'committed' order by id"
SPEEDS = "select minute, speeds / reports from minutes where segment = ? order by minute"


def is_same(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Averages are sums of floats, which SQL adds up in an order of its own."""
    return found[0::2] == wanted[0::2] and abs((found[1] or 0.0) - (wanted[1] or 0.0)) < 1e-9


def compare(engine: hg.Engine, events: list[dict[str, Any]], picture: Path | None) -> bool:
    """Print, and draw, what was expected and what was found; whether they are the same."""
    found, wanted = engine.sql(FOUND).rows(), expected(events)
    is_equal = len(found) == len(wanted) and all(map(is_same, found, wanted))
    is_equal = is_equal and [row[3] for row in found] == [row[3] for row in wanted]
    tolls = [row[3] for row in found if row[3]]
    print(f"{len(events):,} reports, {len(tolls):,} tolls, {sum(tolls):,} cents in all")
    print("equal to SQL over all reports" if is_equal else "NOT equal to SQL over all reports")
    if picture is not None:
        speeds = [speed for _, speed in engine.sql(SPEEDS, [JAM_SEGMENT]).rows()]
        planted = [17.0 if n in JAM_MINUTES else 57.0 for n in range(len(speeds))]
        series = {"planted": planted, "detected": speeds}
        case_study.draw(picture, f"Speed in segment {JAM_SEGMENT}", "minutes", series)
        print(f"drawn in {picture}")
    return is_equal


# --- the two ways to run it -------------------------------------------------------------------


def in_memory(count: int = 30_000) -> bool:
    events = make_events(count)
    with open_road(None) as engine:
        engine.run(report, with_minutes(events), batch_size=1000, **ORDER)
        return compare(engine, events, None)


def on_spark(spark: Any, folder: Path, count: int = 30_000) -> bool:
    events = make_events(count)
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", events)
    with open_road(str(folder / "road")) as engine:
        sink = engine.sink(report, watermark=WATERMARK, **ORDER)
        case_study.feed(spark, folder, COLUMNS, MADE, sink)
        return compare(engine, events, folder / "congestion.svg")


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
