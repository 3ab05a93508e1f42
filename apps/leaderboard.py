"""The voters' leaderboard: three steps over shared tables, nested, and a window; S-Store's example.

    ./run python apps/leaderboard.py              in memory, without Spark
    ./run python apps/leaderboard.py FOLDER       on Spark: reads FOLDER/events, keeps FOLDER/show

People vote by phone, once each, for contestants of a show. A vote is validated, counted, and after
every so many votes the contestant with the fewest leaves; those who voted for one who has left may
vote again. A wrong order of votes gives a wrong winner, and so does a step that sees half of
another: the three are one nest. Beside them a window tells who is trending. They are written twice:
in SQL, and so that what runs for each vote is compiled. At the end both are compared with plain
Python over the votes in their order.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from apps import case_study

CONTESTANTS = 6
ROUND_VOTES = 150  # after so many valid votes the lowest leaves
FIRST = datetime.datetime(2026, 1, 2, 20, tzinfo=datetime.UTC)
COLUMNS = "ts timestamp, phone bigint, contestant int"
BATCH = 10

contestants = hg.Table("contestants", "id int, name string", key="id")
ballots = hg.Table(
    "ballots", "phone bigint, contestant int DEFAULT 0", key="phone", index="contestant"
)
tallies = hg.Table("tallies", "contestant int, votes bigint DEFAULT 0", key="contestant")
rounds = hg.Table("rounds", "id int, counted bigint, loser int NULL", key="id")
TABLES = [contestants, ballots, tallies, rounds]

votes = hg.Stream("votes", COLUMNS, order_by="ts", batch=f"{BATCH} rows")
valid = hg.Stream("valid", COLUMNS)
counted = hg.Stream("counted", "contestant int")
left = hg.Stream("left_the_show", "contestant int, votes bigint")
trending = hg.Stream("trending", "contestant int, votes bigint")


def validate(batch: pa.Table, tx: hg.Tx) -> pa.Table:
    fresh = tx.sql(
        """select ts, phone, contestant from (
             select *, row_number() over (partition by phone order by ts) as nth from batch
             where contestant in (select id from contestants)
           ) where nth = 1 and phone not in (select phone from ballots) order by ts"""
    )
    tx.insert(ballots, fresh.select(["phone", "contestant"]))
    return fresh


@hg.transaction(event=valid, output=counted)
def count(event: Any, tally: Any = tallies.at("contestant", create=True)) -> None:
    tally.votes += 1


@hg.procedure(counted, output=left, writes=[contestants, ballots, tallies, rounds])
def remove(batch: pa.Table, tx: hg.Tx) -> Any:
    now = tx.sql(
        "select coalesce(max(id), 0) as id, coalesce(max_by(counted, id), 0) as counted from rounds"
    ).to_pylist()[0]
    total = now["counted"] + batch.num_rows
    if total < ROUND_VOTES * (now["id"] + 1) or tx.sql("from contestants").num_rows == 1:
        tx.upsert(rounds, {"id": now["id"], "counted": total})
        return None
    lowest = tx.sql(
        "select id as contestant, coalesce(votes, 0)::bigint as votes from contestants "
        "left join tallies on id = contestant order by votes, id limit 1"
    )
    loser = lowest.to_pylist()[0]["contestant"]
    tx.upsert(rounds, {"id": now["id"] + 1, "counted": total, "loser": loser})
    tx.delete(contestants, {"id": loser})
    tx.delete(tallies, {"contestant": loser})
    tx.delete(ballots, f"select phone from ballots where contestant = {loser}")
    return lowest


TREND = {"aggregate": "count(*) as votes", "by": "contestant"}


@hg.procedure(valid.window("100 rows", slide="10 rows", **TREND), output=trending)
def trend(aggregates: pa.Table, tx: hg.Tx) -> pa.Table:
    return tx.sql("from aggregates order by votes desc, contestant limit 3")


def show_of(taken: hg.Stream) -> hg.Dataflow:
    """The steps over the votes of a stream."""
    said: Any = {"output": valid, "reads": contestants, "writes": ballots}
    nodes = [hg.procedure(taken, **said)(validate), count, remove, trend]
    return hg.Dataflow("show", nodes, nest=[nodes[:3]])


show = show_of(votes)


# --- the same, compiled ---------------------------------------------------------------------------
# What runs for each vote are transactions. A procedure is called once in a round, over the window
# of its votes, and once for each slide of the trend.

accepted = hg.Stream("accepted", COLUMNS)


def accept(
    event: Any,
    contestant: Any = contestants.at("contestant", mode="read"),
    ballot: Any = ballots.at("phone", create=True),
) -> Any:
    if ballot.contestant != 0:
        return hg.abort("has voted")
    ballot.contestant = contestant.id
    return None


@hg.transaction(event=accepted, output=counted)
def tally_up(event: Any, tally: Any = tallies.at("contestant", create=True)) -> None:
    tally.votes += 1


@hg.procedure(
    counted.window(f"{ROUND_VOTES} rows"),
    output=left,
    reads=[contestants, tallies],
    writes=rounds,
)
def end_round(batch: pa.Table, tx: hg.Tx) -> Any:
    there, counts = np.sort(tx.rows(contestants).column("id").to_numpy()), tx.rows(tallies)
    if len(there) == 1:
        return None
    tallied = np.zeros(len(there), np.int64)
    places = np.searchsorted(there, counts.column("contestant").to_numpy())
    tallied[places] = counts.column("votes").to_numpy()
    lowest = int(np.argmin(tallied))
    loser = int(there[lowest])
    number = tx.rows(rounds).num_rows + 1
    tx.insert(rounds, {"id": number, "counted": ROUND_VOTES * number, "loser": loser})
    return [{"contestant": loser, "votes": int(tallied[lowest])}]


@hg.transaction(event=left)
def forget(
    event: Any,
    contestant: Any = contestants.at("contestant"),
    tally: Any = tallies.at("contestant", create=True),
    theirs: Any = ballots.where("contestant"),
) -> None:
    for ballot in theirs:
        hg.delete(ballot)
    hg.delete(tally)
    hg.delete(contestant)


@hg.procedure(accepted.window("100 rows", slide="10 rows"), output=trending)
def trend_of(batch: pa.Table, tx: hg.Tx) -> pa.Table:
    number = np.bincount(batch.column("contestant").to_numpy())
    first = np.argsort(-number, kind="stable")[:3]
    first = first[number[first] > 0]
    return pa.table({"contestant": first.astype(np.int32), "votes": number[first]})


def fast_show_of(taken: hg.Stream) -> hg.Dataflow:
    """The compiled steps over the votes of a stream."""
    first = hg.transaction(event=taken, output=accepted)(accept)
    nodes = [first, tally_up, end_round, forget, trend_of]
    return hg.Dataflow("show", nodes, nest=[nodes[:4]])


fast_show = fast_show_of(votes)


def make_votes(number: int, seed: int = 7) -> list[dict[str, Any]]:
    """Votes of fewer phones than votes, some for contestants that there are not."""
    dice = random.Random(seed)
    return [
        {
            "ts": FIRST + datetime.timedelta(milliseconds=20 * n),
            "phone": dice.randrange(number // 2),
            "contestant": min(dice.randrange(1, CONTESTANTS + 3), dice.randrange(1, 9)),
        }
        for n in range(number)
    ]


def expected(
    given: list[dict[str, Any]], number: int = CONTESTANTS, batch: int = BATCH
) -> dict[str, Any]:
    """The same in plain Python: batch after batch, each step over all of it."""
    there, voted = set(range(1, number + 1)), dict[int, int]()
    tally, total, losers = Counter[int](), 0, list[int]()
    for first in range(0, len(given), batch):
        fresh = 0
        for vote in given[first : first + batch]:
            if vote["contestant"] in there and vote["phone"] not in voted:
                voted[vote["phone"]] = vote["contestant"]
                tally[vote["contestant"]] += 1
                fresh += 1
        total += fresh
        if fresh and total >= ROUND_VOTES * (len(losers) + 1) and len(there) > 1:
            loser = min(there, key=lambda one: (tally[one], one))
            losers.append(loser)
            there.discard(loser)
            del tally[loser]
            voted = {phone: one for phone, one in voted.items() if one != loser}
    return {"losers": losers, "tallies": {one: n for one, n in sorted(tally.items()) if n},
            "ballots": len(voted)}  # fmt: skip


def found(engine: hg.Engine) -> dict[str, Any]:
    """What the tables say."""
    losers = engine.sql("select loser from rounds where loser is not null order by id").rows()
    return {
        "losers": [loser for (loser,) in losers],
        "tallies": dict(engine.sql("from tallies order by contestant").rows()),
        "ballots": engine.counts()["ballots"],
    }


def compare(engine: hg.Engine, given: list[dict[str, Any]]) -> bool:
    """Print what became of the show; whether it is what it should be."""
    wanted, got = expected(given), found(engine)
    for place, loser in enumerate(got["losers"], 1):
        print(f"after round {place} contestant {loser} leaves")
    print(f"{len(given):,} votes, {got['ballots']:,} ballots that stand: {got['tallies']}")
    print("as plain Python has it" if got == wanted else f"NOT as plain Python has it: {wanted}")
    return got == wanted


def open_show(path: str | None, flow: hg.Dataflow = show, number: int = CONTESTANTS) -> hg.Engine:
    engine = hg.open(path, tables=TABLES, dataflows=flow)
    names = [{"id": n, "name": f"contestant {n}"} for n in range(1, number + 1)]
    engine.load(contestants, names, mode="skip")
    return engine


def in_memory(number: int = 3000) -> bool:
    given = make_votes(number)
    right = True
    for flow in (show, fast_show):
        with open_show(None, flow) as engine:
            engine.push(votes, given)
            right = compare(engine, given) and right
    return right


def on_spark(spark: Any, folder: Path, number: int = 3000) -> bool:
    given = make_votes(number)
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", given, late=0.0)
    with open_show(str(folder / "show")) as engine:
        case_study.feed(spark, folder, COLUMNS, [], engine.sink(votes))
        return compare(engine, given)


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
