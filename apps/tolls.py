"""Toll Processing: a vehicle that enters a road segment is told its toll, by how full the road is.

./run python apps/tolls.py
"""

from __future__ import annotations

import datetime
import random
from typing import Any

import headgate as hg

speeds = hg.Table("speeds", "segment bigint, average double, reports bigint", key="segment")
counts = hg.Table("counts", "segment bigint, vehicles bigint", key="segment")

FREE_SPEED = 40.0  # miles an hour: where the traffic flows, there is no toll
FREE_VEHICLES = 50


# A plain function that a transaction calls is compiled along with it.
def toll_of(average: float, vehicles: int) -> int:
    if average >= FREE_SPEED or vehicles <= FREE_VEHICLES:
        return 0
    return 2 * (vehicles - FREE_VEHICLES) ** 2


@hg.transaction(event="ts timestamp, vehicle bigint, segment bigint, speed double")
def report(
    event: Any,
    road: Any = speeds.at("segment"),
    count: Any = counts.at("segment"),
    out: Any = hg.output("vehicle bigint, toll bigint"),
) -> Any:
    if event.speed < 0:
        return hg.abort("negative speed")
    road.reports += 1
    road.average += (event.speed - road.average) / road.reports
    count.vehicles += 1
    out.vehicle = event.vehicle
    out.toll = toll_of(road.average, count.vehicles)


FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
SEGMENTS = 100


def make_events(count: int) -> list[dict[str, Any]]:
    """Vehicles that enter segments: slow ones in the low numbers, and some broken sensors."""
    dice = random.Random(7)
    events = []
    for number in range(count):
        segment = dice.randrange(SEGMENTS)
        speed = -1.0 if dice.random() < 0.01 else dice.uniform(10, 30) + segment
        when = FIRST + datetime.timedelta(milliseconds=number)
        events.append({"ts": when, "vehicle": number, "segment": segment, "speed": speed})
    return events


def main() -> None:
    with hg.open(None, tables=[speeds, counts], transactions=[report]) as engine:
        engine.load(speeds, [{"segment": n, "average": 0.0, "reports": 0} for n in range(SEGMENTS)])
        engine.load(counts, [{"segment": n, "vehicles": 0} for n in range(SEGMENTS)])
        results = engine.run(report, make_events(10_000), order_by="ts")
        by = ["outcome", "reason"]
        found = results.group_by(by).aggregate([([], "count_all"), ("toll", "sum")])
        print(found.to_pandas().to_string(index=False))
        joined = "speeds join counts using (segment)"
        slow = f"select segment, average, vehicles from {joined} order by average limit 3"
        print(engine.sql(slow).rows())


if __name__ == "__main__":
    main()
