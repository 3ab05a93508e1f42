"""The leaderboard beside PostgreSQL: the same three steps, one vote for each batch, durable.

A vote is validated, counted (every so many counted votes tell who is trending), and after each
round the contestant with the fewest leaves. Here votes come in by hundreds, or one by one, and go
through the compiled steps of apps/leaderboard.py in their order. At PostgreSQL each step is a
function and a transaction of its own, and the client starts the next one when it has the answer:
one client in order, or several at once in none, whose commits PostgreSQL syncs together. All keep
their rows on the same disk and answer when it has them. Where the order is kept all must come to
the losers, tallies and ballots of plain Python.

What a client waits for at PostgreSQL is measured twice: with each step a function of the server, as
a stored procedure, and with each step a transaction of prepared statements.
"""

from __future__ import annotations

import datetime
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pyarrow as pa

import headgate as hg
from apps import leaderboard
from bench import peers

CONTESTANTS = 120
CHUNK = 500  # votes that come in at once
CLIENTS = 8

Vote = dict[str, Any]
Result = dict[str, Any]


def make_votes(number: int, seed: int = 5) -> list[Vote]:
    """Votes mostly of those who have not voted, for contestants who are still there."""
    dice, there = random.Random(seed), list(range(1, CONTESTANTS + 1))
    votes: list[Vote] = []
    for place in range(number):
        if place and place % leaderboard.ROUND_VOTES == 0 and len(there) > 20:
            there.pop()  # about as many leave
        likely = min(dice.randrange(len(there)), dice.randrange(len(there)))
        chosen = dice.randrange(2 * CONTESTANTS) if dice.random() < 0.03 else there[likely]
        votes.append(
            {"ts": leaderboard.FIRST + datetime.timedelta(milliseconds=place),
             "phone": dice.randrange(20 * number), "contestant": chosen}
        )  # fmt: skip
    return votes


def is_right(votes: Sequence[Vote], found: Result) -> bool:
    """Whether a leaderboard has what plain Python has after these votes in their order."""
    return leaderboard.expected([*votes], CONTESTANTS, batch=1) == found


# --- Headgate -------------------------------------------------------------------------------------


class Board:
    """The compiled leaderboard in a store; each vote is a batch."""

    def __init__(self, path: Path, chunk: int) -> None:
        self._source = hg.Stream("votes", leaderboard.COLUMNS, order_by="ts", batch="1 row")
        flow = leaderboard.fast_show_of(self._source)
        self._engine = leaderboard.open_show(str(path), flow, CONTESTANTS)
        self._chunk = chunk

    def run(self, votes: Sequence[Vote]) -> None:
        """Hand votes in, so many at once; each push returns when its votes are durable."""
        for first in range(0, len(votes), self._chunk):
            rows = votes[first : first + self._chunk]
            table = pa.Table.from_pylist(rows, self._source.schema.arrow)
            self._engine.push(self._source, table)

    def found(self) -> Result:
        return leaderboard.found(self._engine)

    def close(self) -> None:
        self._engine.close()


# --- PostgreSQL -----------------------------------------------------------------------------------

# Counting is by a sequence, whose numbers nobody waits for: a row for it would be locked until each
# vote is on the disk.
SCHEMA = """
create table contestants (id int primary key, name text);
create table ballots (phone bigint primary key, contestant int not null);
create index on ballots (contestant);
create table tallies (contestant int primary key, votes bigint not null) with (fillfactor = 50);
create table rounds (id int primary key, loser int);
create sequence counted;
create table recent (n bigint primary key, contestant int not null);
create table trends (n bigint, contestant int, votes bigint);
insert into contestants select n, 'contestant ' || n from generate_series(1, {contestants}) as n;
create function validate(at timestamptz, caller bigint, chosen int)
returns boolean language plpgsql as $$
begin
    if not exists (select from contestants where id = chosen) then return false; end if;
    insert into ballots values (caller, chosen) on conflict do nothing;
    return found;
end $$;
create function count_vote(chosen int) returns bigint language plpgsql as $$
declare
    place bigint := nextval('counted');
begin
    insert into tallies values (chosen, 1)
        on conflict (contestant) do update set votes = tallies.votes + 1;
    insert into recent values (place, chosen);
    if place >= 100 and place % 10 = 0 then
        delete from recent where n <= place - 100;
        insert into trends select place, contestant, count(*) from recent
            group by contestant order by count(*) desc, contestant limit 3;
    end if;
    return place;
end $$;
create function end_round() returns int language plpgsql as $$
declare
    lowest int;
begin
    if (select count(*) from contestants) = 1 then return null; end if;
    select id into lowest from contestants left join tallies on id = contestant
        order by coalesce(votes, 0), id limit 1;
    insert into rounds select coalesce(max(id), 0) + 1, lowest from rounds;
    delete from contestants where id = lowest;
    delete from tallies where contestant = lowest;
    delete from ballots where contestant = lowest;
    return lowest;
end $$;
"""


class PostgresBoard:
    """The three steps as functions of a server, driven by clients, each step a transaction."""

    def __init__(self, server: peers.Postgres, clients: int) -> None:
        self._server = server
        self._connections = [server.connect() for _ in range(clients)]

    def run(self, votes: Sequence[Vote]) -> None:
        """Several clients share the votes; each waits for every step of its own."""
        if len(self._connections) == 1:
            self._drive(0, votes)
        else:
            peers.share(votes, self._drive, len(self._connections))

    def _drive(self, number: int, votes: Sequence[Any]) -> None:
        ask = self._connections[number].execute
        for vote in votes:
            said = (vote["ts"], vote["phone"], vote["contestant"])
            if not ask("select validate(%s, %s, %s)", said).fetchone()[0]:
                continue
            place = ask("select count_vote(%s)", said[2:]).fetchone()[0]
            if place % leaderboard.ROUND_VOTES == 0:
                ask("select end_round()")

    def found(self) -> Result:
        ask = self._connections[0].execute
        losers = ask("select loser from rounds order by id").fetchall()
        tallies = ask("select contestant, votes from tallies order by contestant").fetchall()
        return {"losers": [loser for (loser,) in losers], "tallies": dict(tallies),
                "ballots": ask("select count(*) from ballots").fetchone()[0]}  # fmt: skip

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class StatementBoard(PostgresBoard):
    """The three steps as transactions of prepared statements."""

    def _drive(self, number: int, votes: Sequence[Any]) -> None:
        connection = self._connections[number]
        for vote in votes:
            caller, chosen = vote["phone"], vote["contestant"]
            with connection.transaction():
                is_valid = self._validate(connection.execute, caller, chosen)
            if is_valid:
                with connection.transaction():
                    place = self._count(connection.execute, chosen)
                if place % leaderboard.ROUND_VOTES == 0:
                    with connection.transaction():
                        self._end_round(connection.execute)

    def _validate(self, ask: Any, caller: int, chosen: int) -> bool:
        if not ask("select 1 from contestants where id = %s", (chosen,)).fetchall():
            return False
        keep = "insert into ballots values (%s, %s) on conflict do nothing"
        return bool(ask(keep, (caller, chosen)).rowcount)

    def _count(self, ask: Any, chosen: int) -> int:
        ask("insert into tallies values (%s, 1) on conflict (contestant) "
            "do update set votes = tallies.votes + 1", (chosen,))  # fmt: skip
        keep = "insert into recent values (nextval('counted'), %s) returning n"
        place = int(ask(keep, (chosen,)).fetchone()[0])
        if place >= 100 and place % 10 == 0:
            ask("delete from recent where n <= %s", (place - 100,))
            ask(
                "insert into trends select %s::bigint, contestant, count(*) from recent "
                "group by contestant order by count(*) desc, contestant limit 3",
                (place,),
            )
        return place

    def _end_round(self, ask: Any) -> None:
        lowest = ask(
            "select id from contestants left join tallies on id = contestant "
            "order by coalesce(votes, 0), id limit 2"
        ).fetchall()
        if len(lowest) == 1:
            return
        ask("insert into rounds select coalesce(max(id), 0) + 1, %s from rounds", lowest[0])
        ask("delete from contestants where id = %s", lowest[0])
        ask("delete from tallies where contestant = %s", lowest[0])
        ask("delete from ballots where contestant = %s", lowest[0])


@contextmanager
def postgres_board(
    folder: Path, clients: int, kind: type[PostgresBoard] = PostgresBoard
) -> Iterator[PostgresBoard]:
    """A server of its own with the leaderboard in it."""
    with peers.postgres(folder) as server:
        with server.connect() as connection:
            connection.execute(SCHEMA.format(contestants=CONTESTANTS), prepare=False)
        board = kind(server, clients)
        try:
            yield board
        finally:
            board.close()


# --- in turn --------------------------------------------------------------------------------------

CHUNKED, ALONE = f"pushes of {CHUNK} votes", "pushes of one vote"
IN_ORDER, IN_NONE = "PostgreSQL, one client in order", f"PostgreSQL, {CLIENTS} clients in no order"
STATEMENTS = "the same, steps of statements"


def measure(rounds: int, few: int = 150, many: int = 1500) -> dict[str, float]:
    """Votes a second of each way, the median of rounds in turn; the first does not count."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    sizes = {CHUNKED: many, ALONE: few, IN_ORDER: few, STATEMENTS: few, IN_NONE: 2 * few}
    peers_of = ((IN_ORDER, 1, PostgresBoard), (STATEMENTS, 1, StatementBoard),
                (IN_NONE, CLIENTS, PostgresBoard))  # fmt: skip
    votes = make_votes(many * (rounds + 1))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        boards: dict[str, Any] = {CHUNKED: Board(folder / "chunked", CHUNK),
                                  ALONE: Board(folder / "alone", 1)}  # fmt: skip
        for name in (CHUNKED, ALONE):
            opened.callback(boards[name].close)
        try:
            for number, (name, clients, kind) in enumerate(peers_of):
                one = postgres_board(folder / f"postgres-{number}", clients, kind)
                boards[name] = opened.enter_context(one)
        except peers.MissingPeer as missing:
            print(missing)
        found: dict[str, list[float]] = {name: [] for name in boards}
        for number in range(rounds + 1):
            for name, board in boards.items():
                mine = votes[number * sizes[name] : (number + 1) * sizes[name]]
                taken = timed(board.run, mine)
                found[name] += [len(mine) / taken] if number else []
        for name in [one for one in boards if one != IN_NONE]:
            if not is_right(votes[: (rounds + 1) * sizes[name]], boards[name].found()):
                raise WrongBoard(f"{name}: not the losers, tallies and ballots of plain Python")
    return {name: median(rates) for name, rates in found.items()}


class WrongBoard(Exception):
    """A contestant of the benchmark made another show of the votes."""


def timed(run: Callable[[Sequence[Vote]], None], votes: Sequence[Vote]) -> float:
    began = perf_counter()
    run(votes)
    return perf_counter() - began


def main(quick: bool = False) -> None:
    """Print votes a second, and which bars are met."""
    found = measure(3 if quick else 7)
    for name, rate in found.items():
        print(f"leaderboard, {name:40} {rate:8,.0f} votes/s")
    for name, bar in ((IN_ORDER, 20), (STATEMENTS, 20), (IN_NONE, 5)):
        if name in found:
            ratio = found[CHUNKED] / found[name]
            told = "met" if ratio >= bar else "MISSED"
            print(f"{CHUNKED} beside {name:36} {ratio:6.1f} x  (bar {bar}: {told})")


if __name__ == "__main__":
    main()
