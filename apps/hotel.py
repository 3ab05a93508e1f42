"""Hotels: rooms that are searched, held, paid, cancelled by a booking's number alone, or let go.

    ./run python apps/hotel.py            in memory, without Spark
    ./run python apps/hotel.py FOLDER     on Spark: reads FOLDER/events, keeps FOLDER/hotels

A search is told the price of a stay, which rises with how often the hotel was searched in the five
minutes before (a window), and the fewest rooms that any of its nights has left (a range). A hold
takes a room in all of these nights or in none, perhaps with a coupon, and lapses after some
minutes, when a tick finds it. A booking that is over goes by the clock, and a hotel that renovates
takes rooms out of nights, as far as they are not sold. At the end rooms, money and coupons add up,
and the searches of each five minutes, with a rush that was planted, are compared with SQL over all
events.
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

FIRST = datetime.datetime(2024, 5, 1, 8, tzinfo=datetime.UTC)
DAY = datetime.date(2024, 7, 1)
MINUTES, DAYS, HOTELS, ROOMS = 60, 30, 6, 12
RUSH_HOTEL, RUSH_MINUTES = 2, range(20, 30)
HOLD_US = 5 * 60 * 1_000_000
HOLDS_MAX = 2  # of one guest at a time
CALM = 10  # so many searches in five minutes raise no price
COUPON_WORTH, COUPONS_MAX = 15, 40

hotels = hg.Table("hotels", "id bigint, price bigint, income bigint", key="id")
searches = hg.Table("searches", "hotel bigint, count bigint", key="hotel", history="5 minutes")
nights = hg.Table(
    "nights",
    "hotel bigint, day date, rooms bigint, sold bigint",
    key="hotel, day",
    check="sold >= 0 and sold <= rooms",
)
bookings = hg.Table(
    "bookings",
    "id bigint, hotel bigint, guest string, total bigint, state string DEFAULT 'new', "
    "coupon string NULL, done timestamp NULL",
    key="id",
    index="guest",
    expires="done + 15 minutes",  # those that are not done stay
)
stays = hg.Table(
    "stays",
    "booking bigint, day date, hotel bigint, until timestamp NULL",
    key="booking, day",
    index="until",  # None once it is paid, and so in no range of times
    references={"booking": bookings},
)
coupons = hg.Table(
    "coupons", "code string, used bigint", key="code", check=f"used <= {COUPONS_MAX} or code = ''"
)


def price_of(price: int, searched: int) -> int:
    """A tenth more for each five searches beyond a calm time, and not more than double."""
    return price + price * min(max(searched - CALM, 0) // 5, 10) // 10


@hg.transaction(event="ts timestamp, id bigint, hotel bigint, first date, last date")
def search(
    event: Any,
    hotel: Any = hotels.at("hotel", mode="read"),
    counted: Any = searches.at("hotel", create=True),
    recent: Any = searches.window("hotel", size="5 minutes"),
    stay: Any = nights.between(("hotel", "first"), ("hotel", "last"), mode="read"),
    out: Any = hg.output("searched bigint, price bigint, free bigint"),
) -> None:
    counted.count += 1
    out.searched = len(recent)  # before this one
    out.price = price_of(hotel.price, len(recent)) * len(stay)
    out.free = min((night.rooms - night.sold for night in stay), default=0)


@hg.transaction(
    event="ts timestamp, id bigint, hotel bigint, guest string, first date, last date, "
    "ids array<bigint>, days array<date>, coupon string NULL"
)
def hold(
    event: Any,
    hotel: Any = hotels.at("hotel", mode="read"),
    recent: Any = searches.window("hotel", size="5 minutes"),
    booking: Any = bookings.at("id", create=True),
    theirs: Any = bookings.where("guest", mode="read"),
    stay: Any = nights.between(("hotel", "first"), ("hotel", "last")),
    mine: Any = stays.each("ids", "days", create=True),
    coupon: Any = coupons.at(lambda event: event.coupon or "", create=True),
    out: Any = hg.output("amount bigint"),
) -> Any:
    if booking.state != "new":
        return hg.abort("there is such a booking")
    if len(stay) != len(mine):
        return hg.abort("not on sale")
    if sum(1 for one in theirs if one.state == "held") >= HOLDS_MAX:
        return hg.abort("too many holds")
    for night in stay:
        night.sold += 1
        booking.total += price_of(hotel.price, len(recent))
    for one in mine:
        one.hotel = event.hotel
        one.until = event.ts + HOLD_US
    if event.coupon is not None:
        booking.total -= COUPON_WORTH
        coupon.used += 1
    booking.hotel = event.hotel
    booking.guest = event.guest
    booking.coupon = event.coupon
    booking.state = "held"
    out.amount = booking.total


@hg.transaction(event="ts timestamp, id bigint")
def pay(
    event: Any,
    booking: Any = bookings.at("id"),
    mine: Any = stays.where(booking="id"),
    hotel: Any = hotels.at(lambda booking: booking.hotel),
    out: Any = hg.output("amount bigint"),
) -> Any:
    if booking.state != "held":
        return hg.abort("not to be paid: " + booking.state)
    for one in mine:
        one.until = None
    booking.state = "paid"
    hotel.income += booking.total
    out.amount = booking.total


@hg.transaction(event="ts timestamp, id bigint")
def cancel(
    event: Any,
    booking: Any = bookings.at("id"),
    mine: Any = stays.where(booking="id"),
    stay: Any = nights.each(lambda mine: (mine.hotel, mine.day)),
    hotel: Any = hotels.at(lambda booking: booking.hotel),
    coupon: Any = coupons.at(lambda booking: booking.coupon or ""),
    out: Any = hg.output("amount bigint"),
) -> Any:
    if booking.state == "paid":
        hotel.income -= booking.total
        out.amount = -booking.total
    elif booking.state != "held":
        return hg.abort("not to be cancelled: " + booking.state)
    for one, night in zip(mine, stay, strict=True):
        night.sold -= 1
        hg.delete(one)
    if booking.coupon is not None:
        coupon.used -= 1
    booking.state = "cancelled"
    booking.done = event.ts


@hg.transaction(event="ts timestamp, id bigint, hotel bigint, first date, last date")
def renovate(
    event: Any,
    stay: Any = nights.between(("hotel", "first"), ("hotel", "last")),
    out: Any = hg.output("nights bigint"),
) -> None:
    for night in stay:
        night.rooms -= 1
        out.nights += 1


@hg.transaction(every="1 minute")
def lapse(
    event: Any,
    due: Any = stays.between("start", "end", index="until"),
    stay: Any = nights.each(lambda due: (due.hotel, due.day)),
    theirs: Any = bookings.each(lambda due: due.booking),
    used: Any = coupons.each(lambda theirs: theirs.coupon or ""),
    out: Any = hg.output("nights bigint"),
) -> None:
    for n in range(len(due)):
        stay[n].sold -= 1
        out.nights += 1
        if theirs[n].state == "held" and theirs[n].coupon is not None:
            used[n].used -= 1  # once for a booking, though each of its nights is here
        theirs[n].state = "lapsed"
        theirs[n].done = event.end
        hg.delete(due[n])


TABLES = [hotels, searches, nights, bookings, stays, coupons]
ROUTES = {"search": search, "hold": hold, "pay": pay, "cancel": cancel, "renovate": renovate}
ORDER: dict[str, Any] = {"order_by": ["ts", "id"], "route_by": "kind", "ticks": [lapse]}
COLUMNS = (
    "kind string, ts timestamp, id bigint, hotel bigint, guest string, first date, last date, "
    "ids array<bigint>, days array<date>, coupon string"
)
WATERMARK = "2 seconds"
FIRST_ROWS: dict[str, list[dict[str, Any]]] = {
    "hotels": [{"id": n, "price": 100 + 20 * n, "income": 0} for n in range(HOTELS)],
    "coupons": [{"code": "", "used": 0}],
    "nights": [
        {"hotel": n, "day": DAY + datetime.timedelta(day), "rooms": ROOMS, "sold": 0}
        for n in range(HOTELS)
        for day in range(DAYS)
    ],
}


def open_hotels(path: str | None) -> hg.Engine:
    engine = hg.open(path, tables=TABLES, transactions=[*ROUTES.values(), lapse])
    for name, rows in FIRST_ROWS.items():
        engine.load(name, rows)
    return engine


def make_events(count: int) -> list[dict[str, Any]]:
    """Searches, some followed by a hold; holds are paid in time, too late or never."""
    dice, found = random.Random(7), []
    for number in range(count):
        minute = MINUTES * number / count
        ts = FIRST + datetime.timedelta(minutes=minute)
        is_rush = int(minute) in RUSH_MINUTES and dice.random() < 0.6
        hotel = RUSH_HOTEL if is_rush else dice.randrange(HOTELS)
        days = [dice.randrange(DAYS + 1) + n for n in range(dice.randrange(1, 5))]
        days = [DAY + datetime.timedelta(days[0] + n) for n in range(len(days))]
        asked = {"hotel": hotel, "first": days[0], "last": days[-1]}
        kind = "renovate" if dice.random() < 0.02 else "search"
        found.append(_event(kind, ts, 2 * number, **asked))
        if kind == "search" and dice.random() < 0.3:
            found += _booking(dice, ts, 2 * number + 1, asked, days)
    return sorted(found, key=lambda event: (event["ts"], event["id"]))


def _booking(
    dice: random.Random, ts: datetime.datetime, number: int, asked: dict[str, Any], days: list[Any]
) -> list[dict[str, Any]]:
    """A hold, and what comes of it."""
    guest, coupon = f"guest {dice.randrange(200)}", dice.choice([None, None, "may", "june"])
    lines = {"ids": [number] * len(days), "days": days}
    found = [_event("hold", ts, number, guest=guest, coupon=coupon, **asked, **lines)]
    for kind, share, minutes in (("pay", 0.7, 7), ("cancel", 0.5, 25)):
        if dice.random() < share:
            later = ts + datetime.timedelta(minutes=minutes) * dice.random()
            found.append(_event(kind, later, number))
    return found


def _event(kind: str, ts: datetime.datetime, number: int, **given: Any) -> dict[str, Any]:
    names = ("hotel", "guest", "first", "last", "ids", "days", "coupon")
    return {"kind": kind, "ts": ts, "id": number, **dict.fromkeys(names), **given}


# --- what must add up -------------------------------------------------------------------------

WRONG = """
    select 'nights', count(*) from nights left join
        (select hotel, day, count(*) as n from stays group by all) using (hotel, day)
        where sold <> coalesce(n, 0)
    union all select 'incomes', count(*) from hotels left join
        (select hotel as id, sum(total) as paid from bookings where state = 'paid' group by all)
        using (id) where income <> coalesce(paid, 0)
    union all select 'coupons', count(*) from coupons left join
        (select coupon as code, count(*) as n from bookings where done is null group by all)
        using (code) where used <> coalesce(n, 0)
    union all select 'holds', count(*) from stays join bookings on booking = bookings.id
        where (until is null) <> (state = 'paid')
"""
FOUND = "select id, searched from results where transaction = 'search' order by id"
# Those at the time of this one less five minutes are too old; no two searches have one time.
EXPECTED = """
    select id, count(*) over (partition by hotel order by ts
        range between interval 299999999 microseconds preceding and current row) - 1
    from events where kind = 'search' order by id
"""


def expected(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """How often the hotel of each search was searched before, by SQL over all events at once."""
    columns = [{name: one[name] for name in ("kind", "ts", "id", "hotel")} for one in events]
    with duckdb.connect() as connection:
        connection.register("events", pa.Table.from_pylist(columns))
        rows: list[tuple[Any, ...]] = connection.execute(EXPECTED).fetchall()
    return rows


def most_by_minute(events: list[dict[str, Any]], rows: list[tuple[Any, ...]]) -> list[float]:
    """The most searches of five minutes that one of the hotel in the rush was told, by minute."""
    found, searched = [0.0] * MINUTES, dict(rows)
    for event in events:
        if event["kind"] == "search" and event["hotel"] == RUSH_HOTEL:
            minute = (event["ts"] - FIRST) // datetime.timedelta(minutes=1)
            found[minute] = max(found[minute], searched[event["id"]])
    return found


def compare(engine: hg.Engine, events: list[dict[str, Any]], picture: Path | None) -> bool:
    """Print what became of the events, and draw the rush; whether all is as it must be."""
    told = "select transaction, outcome, count(*) from results group by all order by all"
    for transaction, outcome, count in engine.sql(told).rows():
        print(f"{transaction or '':10} {outcome:10} {count:6,}")
    print(f"bookings that expired: {engine.metrics().expired['bookings']:,}")
    wrong = [name for name, count in engine.sql(WRONG).rows() if count]
    print(f"{', '.join(wrong)} do NOT add up" if wrong else "rooms, money and coupons add up")
    found, wanted = engine.sql(FOUND).rows(), expected(events)
    is_equal = found == wanted
    print("equal to SQL over all events" if is_equal else "NOT equal to SQL over all events")
    if picture is not None:
        lines = {"expected": wanted, "detected": found}
        series = {name: most_by_minute(events, rows) for name, rows in lines.items()}
        title = f"Searches of five minutes in hotel {RUSH_HOTEL}, a rush from minute 20 on"
        case_study.draw(picture, title, "minutes", series)
        print(f"drawn in {picture}")
    return is_equal and not wrong


# --- the two ways to run it -------------------------------------------------------------------


def in_memory(count: int = 4_000) -> bool:
    events = make_events(count)
    with open_hotels(None) as engine:
        engine.run(ROUTES, events, batch_size=1000, **ORDER)
        return compare(engine, events, None)


def on_spark(spark: Any, folder: Path, count: int = 4_000) -> bool:
    events = make_events(count)
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", events)
    with open_hotels(str(folder / "hotels")) as engine:
        sink = engine.sink(ROUTES, watermark=WATERMARK, **ORDER)
        case_study.feed(spark, folder, COLUMNS, [], sink)
        return compare(engine, events, folder / "hotel.svg")


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
