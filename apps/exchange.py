"""Stock exchange: turnover rates by a hash window join of quotes and trades, MorphStream's SEA.

    ./run python apps/exchange.py              in memory, without Spark
    ./run python apps/exchange.py FOLDER       on Spark: reads FOLDER/events, keeps FOLDER/market

A quote is kept and meets the trades of its stock and period that are there; a trade meets the
quotes. Each pair is so met once, by whichever of the two comes later. At the end the turnover rates
are compared with those of a plain DuckDB join over all events, and both are drawn over time.
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

PERIOD = datetime.timedelta(seconds=10)
STOCKS = 20
PERIODS = 60
FIRST = datetime.datetime(2024, 1, 2, 9, 30, tzinfo=datetime.UTC)

KEPT = "id bigint, stock int, period bigint, shares bigint"
quotes = hg.Table("quotes", KEPT, key="id", index=[("stock", "period")])
trades = hg.Table("trades", KEPT, key="id", index=[("stock", "period")])
turnover = hg.Table(
    "turnover",
    "stock int, period bigint, quoted bigint, traded bigint, pairs bigint, paired bigint",
    key="stock, period",
    check="quoted >= 0 and traded >= 0 and pairs >= 0",
)

EVENT = "ts timestamp, id bigint, stock int, period bigint, shares bigint"


@hg.transaction(event=EVENT)
def quote(
    event: Any,
    row: Any = quotes.at("id", create=True),
    met: Any = trades.where("stock", "period", mode="read"),
    rate: Any = turnover.at("stock", "period", create=True),
) -> None:
    row.stock = event.stock
    row.period = event.period
    row.shares = event.shares
    rate.quoted += event.shares
    for trade in met:
        rate.pairs += 1
        rate.paired += trade.shares


@hg.transaction(event=EVENT)
def trade(
    event: Any,
    row: Any = trades.at("id", create=True),
    met: Any = quotes.where("stock", "period", mode="read"),
    rate: Any = turnover.at("stock", "period", create=True),
) -> None:
    row.stock = event.stock
    row.period = event.period
    row.shares = event.shares
    rate.traded += event.shares
    rate.pairs += len(met)
    rate.paired += event.shares * len(met)


ROUTES = {"quote": quote, "trade": trade}
ORDER = {"route_by": "kind", "order_by": ["ts", "id"]}
COLUMNS = "kind string, ts timestamp, id bigint, stock int, shares bigint"
# The period is a plain transformation, before the transactions.
PERIOD_OF = f"unix_micros(ts) div {PERIOD // datetime.timedelta(microseconds=1)} as period"
WATERMARK = "2 seconds"


def open_market(path: str | None) -> hg.Engine:
    return hg.open(path, tables=[quotes, trades, turnover], transactions=[quote, trade])


def make_events(count: int) -> list[dict[str, Any]]:
    """Quotes and fewer trades; what is traded swells and ebbs through the day."""
    dice = random.Random(7)
    span = PERIODS * PERIOD
    events = []
    for number in range(count):
        ts = FIRST + span * number / count
        busy = 1 + 3 * (number * 4 // count % 2)  # every other quarter of the day is a busy one
        is_trade = dice.random() < 0.1 * busy
        events.append({
            "kind": "trade" if is_trade else "quote",
            "ts": ts,
            "id": number,
            "stock": min(dice.randrange(STOCKS), dice.randrange(STOCKS)),
            "shares": dice.randrange(1, 100),
        })  # fmt: skip
    return events


def with_period(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the transformation on Spark makes it."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return [{**event, "period": (event["ts"] - epoch) // PERIOD} for event in events]


# --- the comparison ---------------------------------------------------------------------------

FOUND = "select stock, period, quoted, traded, pairs, paired from turnover order by stock, period"
JOINED = """
    with quoted as (select stock, period, count(*) as n, sum(shares) as shares
                    from events where kind = 'quote' group by all),
         traded as (select stock, period, count(*) as n, sum(shares) as shares
                    from events where kind = 'trade' group by all),
         pairs as (select q.stock, q.period, count(*) as pairs, sum(t.shares) as paired
                   from events q join events t using (stock, period)
                   where q.kind = 'quote' and t.kind = 'trade' group by all)
    select stock, period, coalesce(quoted.shares, 0), coalesce(traded.shares, 0),
           coalesce(pairs, 0), coalesce(paired, 0)
    from quoted full join traded using (stock, period) left join pairs using (stock, period)
    order by stock, period
"""


def expected(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The same by a join over all events at once."""
    with duckdb.connect() as connection:
        connection.register("events", pa.Table.from_pylist(with_period(events)))
        rows: list[tuple[Any, ...]] = connection.execute(JOINED).fetchall()
    return rows


def rates(rows: list[tuple[Any, ...]]) -> list[float]:
    """By period: the share of what was quoted that was traded, of all stocks together."""
    first = min(row[1] for row in rows)
    quoted, traded = [0] * PERIODS, [0] * PERIODS
    for _, period, offered, sold, *_ in rows:
        quoted[period - first] += offered
        traded[period - first] += sold
    return [sold / max(offered, 1) for offered, sold in zip(quoted, traded, strict=True)]


def compare(engine: hg.Engine, events: list[dict[str, Any]], picture: Path | None) -> bool:
    """Print, and draw, what was expected and what was found; whether they are the same."""
    found, wanted = engine.sql(FOUND).rows(), expected(events)
    pairs = sum(row[4] for row in found)
    print(f"{len(events):,} events, {len(found):,} rates of a stock and period, {pairs:,} pairs")
    print("equal to the join" if found == wanted else "NOT equal to the join")
    if picture is not None:
        series = {"expected": rates(wanted), "detected": rates(found)}
        draw_title = "Turnover rate, all stocks: a join over all events, and the stream"
        case_study.draw(picture, draw_title, f"periods of {PERIOD.seconds} s", series)
        print(f"drawn in {picture}")
    return found == wanted


# --- the two ways to run it -------------------------------------------------------------------


def in_memory(count: int = 20_000) -> bool:
    events = make_events(count)
    with open_market(None) as engine:
        engine.run(ROUTES, with_period(events), batch_size=1000, **ORDER)
        return compare(engine, events, None)


def on_spark(spark: Any, folder: Path, count: int = 20_000) -> bool:
    events = make_events(count)
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", events)
    with open_market(str(folder / "market")) as engine:
        sink = engine.sink(ROUTES, watermark=WATERMARK, **ORDER)
        case_study.feed(spark, folder, COLUMNS, [PERIOD_OF], sink)
        return compare(engine, events, folder / "turnover.svg")


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
