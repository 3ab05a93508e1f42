"""The contest: the same transfers through Headgate, PostgreSQL, Redis and SQLite, all durable.

All contestants take up the events in their order, some in each round, and all run in turn. Only
few of the transfers abort, and these whatever the order, so that clients side by side must end with
the balances of the serial oracle, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

import headgate as hg
from bench import peers, transfers
from bench.peers import CLIENTS, MissingPeer, Moves
from bench.transfers import (
    BATCH_EVENTS,
    FIRST_BALANCE,
    Figure,
    WrongBalances,
    accounts,
    first_rows,
    make_events,
    moves_of,
    open_bank,
    transfer,
)
from headgate.testing import SerialOracle


@dataclass
class Contestant:
    """One way to run transfers; it takes them up in their order, some in each round."""

    name: str
    kind: str  # "each": every transfer is acknowledged by itself; "batch": many at once
    events: int  # in a round
    run: Callable[[Any], None]
    balances: Callable[[], dict[int, int]]
    prepare: Callable[[pa.Table], Any] = moves_of  # its own form of the events, not timed
    is_durable: bool = True
    taken: int = 0


@contextmanager
def contestants(folder: Path, quick: bool) -> Iterator[tuple[list[Contestant], list[str]]]:
    """All that can be started here, and what is missing of the others."""
    few, many, notes = (200, BATCH_EVENTS, []) if quick else (1000, BATCH_EVENTS, list[str]())
    with ExitStack() as stack:
        found = [*_headgates(stack, folder, few, many), *_sqlites(stack, folder, few, many)]
        for start in (_postgres, _redis):
            try:
                found += start(stack, folder, few, many)
            except MissingPeer as error:
                notes.append(str(error))
        yield found, notes


def _headgates(stack: ExitStack, folder: Path, few: int, many: int) -> list[Contestant]:
    def by_batch(engine: hg.Engine) -> Callable[[pa.Table], None]:
        # Serial: what the model chooses for such cheap transactions, were the machine quiet.
        return lambda events: engine.run(transfer, events, scheme="serial") and None

    def balances(engine: hg.Engine) -> Callable[[], dict[int, int]]:
        return lambda: dict(engine.sql("select id, balance from accounts").rows())

    batch = stack.enter_context(open_bank(folder / "headgate-batch"))
    piped = stack.enter_context(open_bank(folder / "headgate-piped"))
    single = stack.enter_context(open_bank(folder / "headgate-single", durability="group"))

    def call(moves: Moves) -> None:
        def work(_: int, mine: Moves) -> None:
            for src, dst, amount in mine:
                single.call(transfer, src=src, dst=dst, amount=amount)

        peers.share(moves, work)

    flying = stack.enter_context(open_bank(folder / "headgate-flying", durability="group"))

    def submit(moves: Moves) -> None:
        promises = [
            flying.submit(transfer, src=src, dst=dst, amount=amount) for src, dst, amount in moves
        ]
        for promise in promises:
            promise.result()

    def run_piped(events: pa.Table) -> None:
        piped.run(transfer, events, batch_size=BATCH_EVENTS, scheme="serial")

    same: Callable[[pa.Table], Any] = lambda events: events  # noqa: E731
    return [
        Contestant("Headgate, one run a batch", "batch", many, by_batch(batch), balances(batch),
                   same),
        Contestant("Headgate, one run of four batches", "batch", 4 * many, run_piped,
                   balances(piped), same),
        Contestant(f"Headgate, engine.submit, {few} calls in flight", "batch", few, submit,
                   balances(flying)),
        Contestant(f"Headgate, engine.call, {CLIENTS} threads", "each", few, call,
                   balances(single)),
    ]  # fmt: skip


def _sqlites(stack: ExitStack, folder: Path, few: int, many: int) -> list[Contestant]:
    found = []
    for kind, count in (("each", few), ("batch", many)):
        peer = peers.Sqlite(folder / f"sqlite-{kind}.db")
        stack.callback(peer.close)
        peer.load(transfers.ACCOUNTS, FIRST_BALANCE)
        name = "SQLite, a transaction each" if kind == "each" else "SQLite, one a batch"
        run = peer.each if kind == "each" else peer.batch
        found.append(Contestant(name, kind, count, run, peer.balances))
    return found


def _postgres(stack: ExitStack, folder: Path, few: int, many: int) -> list[Contestant]:
    found = []
    for name, kind, method in (
        (f"PostgreSQL, SERIALIZABLE with retry, {CLIENTS} clients", "each", "serializable"),
        (f"PostgreSQL, row locks, {CLIENTS} clients", "each", "locked"),
        ("PostgreSQL, one procedure call a batch", "batch", "procedure"),
    ):
        peer = stack.enter_context(peers.postgres(folder / f"postgres-{method}"))
        peer.load(transfers.ACCOUNTS, FIRST_BALANCE)
        count = few if kind == "each" else many
        found.append(Contestant(name, kind, count, getattr(peer, method), peer.balances))
    return found


def _redis(stack: ExitStack, folder: Path, few: int, many: int) -> list[Contestant]:
    found = []
    for sync, words in (("always", ""), ("everysec", ", synced once a second")):
        durable = sync == "always"
        each = stack.enter_context(peers.redis_server(folder / f"redis-each-{sync}", sync))
        each.load(transfers.ACCOUNTS, FIRST_BALANCE)
        name = f"Redis, Lua script each, {CLIENTS} clients{words}"
        found.append(Contestant(name, "each", few, each.scripted, each.balances,
                                is_durable=durable))  # fmt: skip
        piped = stack.enter_context(peers.redis_server(folder / f"redis-piped-{sync}", sync))
        piped.load(transfers.ACCOUNTS, FIRST_BALANCE)

        def prepare(events: pa.Table, peer: peers.Redis = piped) -> Any:
            return peer.pack(moves_of(events)), events.num_rows

        def run(packed: Any, peer: peers.Redis = piped) -> None:
            peer.pipelined(*packed)

        found.append(Contestant(f"Redis, Lua scripts in one pipeline a batch{words}", "batch",
                                many, run, piped.balances, prepare, durable))  # fmt: skip
    return found


def race(found: Sequence[Contestant], rounds: int) -> dict[str, float]:
    """Transfers a second of each: the median over the rounds, in which all run in turn."""
    longest = max(contestant.events for contestant in found) * (rounds + 1)
    events = make_events(longest, seed=21)
    rates: dict[str, list[float]] = {contestant.name: [] for contestant in found}
    for number in range(rounds + 1):
        for contestant in found:
            mine = events.slice(contestant.taken, contestant.events).combine_chunks()
            given = contestant.prepare(mine)
            began = time.perf_counter()
            contestant.run(given)
            spent = time.perf_counter() - began
            contestant.taken += contestant.events
            if number > 0:  # the first round is for warming up
                rates[contestant.name].append(contestant.events / spent)
    check_balances(found, events)
    return {name: median(values) for name, values in rates.items()}


def check_balances(found: Sequence[Contestant], events: pa.Table) -> None:
    """Every contestant's balances are those of the serial oracle after the events it took."""
    oracle, ran = SerialOracle([accounts], [transfer]), 0
    oracle.load("accounts", first_rows().to_pylist())
    for contestant in sorted(found, key=lambda one: one.taken):
        more = events.slice(ran, contestant.taken - ran).to_pylist()
        if more:
            oracle.run(transfer, more)
        ran = contestant.taken
        wanted = {row["id"]: row["balance"] for row in oracle.table("accounts")}
        if contestant.balances() != wanted:
            raise WrongBalances(f"{contestant.name} has other balances than the serial oracle")


def compare_peers(folder: Path, quick: bool) -> tuple[list[Figure], list[str]]:
    """The same transfers through Headgate and through what people use today."""
    with contestants(folder, quick) as (found, notes):
        rates = race(found, 3 if quick else 7)
    ours = rates["Headgate, one run a batch"]
    figures = [
        Figure(f"peers, {one.kind}", one.name, rates[one.name], "transfers/s",
               rates[one.name] / ours, "Headgate, one run a batch")
        for one in sorted(found, key=lambda one: -rates[one.name])
    ]  # fmt: skip
    for kind, bar, words in (("each", 50, "that commits each transfer"), ("batch", 5, "batched")):
        others = [one for one in found if one.kind == kind and one.is_durable
                  and not one.name.startswith("Headgate")]  # fmt: skip
        best = max(others, key=lambda one: rates[one.name])
        figures.append(
            Figure("peers", f"Headgate / the best durable peer {words}", ours, "transfers/s",
                   ours / rates[best.name], best.name, bar)
        )  # fmt: skip
    return figures, notes
