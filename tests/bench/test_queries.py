"""A small run of the queries benchmark: it works and refuses wrong balances; no test of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench import contest, peers, queries, transfers
from bench.queries_report import render
from bench.transfers import Figure, WrongBalances

FEW = 64


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "ACCOUNTS", 200)
    for module in (contest, queries):
        monkeypatch.setattr(module, "BATCH_EVENTS", FEW)
    monkeypatch.setattr(queries, "STREAM_RATE", 4000)
    monkeypatch.setattr(queries, "SUM_ROWS", 200)
    monkeypatch.setattr(queries, "KEY_COUNTS", (20, 40, 100, 200))


def test_readers_and_the_stream_are_measured_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = queries.read_points
    monkeypatch.setattr(queries, "read_points", lambda engine, _, seed: honest(engine, 0.05, seed))
    monkeypatch.setattr(queries.time, "sleep", lambda _: None)
    found = queries.compare_points(tmp_path, quick=True)
    assert [one.bar for one in found] == [10, 10, 0.9]
    assert all(one.value >= 0 for one in found)


def test_sums_and_aborts_are_compared(tmp_path: Path) -> None:
    sums = queries.compare_sums(tmp_path, quick=True)
    assert [one.ratio > 0 for one in sums] == [True, True]
    aborts = queries.compare_aborts(tmp_path, quick=True)
    assert [one.what.split(" ")[0] for one in aborts[:-1]] == ["0%", "10%", "20%", "30%", "40%",
                                                              "50%"]  # fmt: skip


def test_levels_are_compared_by_protocol_and_number_of_keys(tmp_path: Path) -> None:
    found = queries.compare_isolation(tmp_path, quick=True)
    assert {one.what.rpartition(", ")[2] for one in found} == {"20 keys", "200 keys"}
    assert len(found) == 2 * (3 * 2 + 1)
    assert "<polyline" in render(found, [])


def test_a_stream_that_fails_is_not_measured() -> None:
    engine = transfers.open_bank(None)
    engine.close()
    with pytest.raises(Exception, match="closed"), queries.Stream(engine, None):
        pass


def test_transfers_and_aborts_are_what_they_say() -> None:
    events = transfers.make_events(4000, 1, abort_share=0.25)
    refused = np.sum(events["amount"].to_numpy() == transfers.TOO_MUCH) / 4000
    assert 0.2 < refused < 0.3
    assert transfers.moves_of(events.slice(0, 1))[0] == tuple(
        events.slice(0, 1).to_pylist()[0].values()
    )


@pytest.fixture
def moves() -> list[tuple[int, int, int]]:
    return transfers.moves_of(transfers.make_events(300, 5, abort_share=0.1))


def balances_after(moves: Any) -> dict[int, int]:
    found = dict.fromkeys(range(transfers.ACCOUNTS), transfers.FIRST_BALANCE)
    for source, target, amount in moves:
        if found[source] >= amount:
            found[source] -= amount
            found[target] += amount
    return found


def test_sqlite_does_the_transfers(tmp_path: Path, moves: Any) -> None:
    peer = peers.Sqlite(tmp_path / "bank.db")
    peer.load(transfers.ACCOUNTS, transfers.FIRST_BALANCE)
    peer.each(moves[:100])
    peer.batch(moves[100:])
    assert peer.balances() == balances_after(moves)
    peer.close()


def test_redis_does_the_transfers_and_is_stopped(tmp_path: Path, moves: Any) -> None:
    try:
        with peers.redis_server(tmp_path / "redis", "always") as peer:
            peer.load(transfers.ACCOUNTS, transfers.FIRST_BALANCE)
            peer.scripted(moves[:100])
            peer.pipelined(peer.pack(moves[100:]), len(moves) - 100)
            assert peer.balances() == balances_after(moves)
    except peers.MissingPeer as error:
        pytest.skip(str(error))
    assert "bye bye" in (tmp_path / "redis" / "log").read_text()


def test_postgres_does_the_transfers_and_is_stopped(tmp_path: Path, moves: Any) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.name.startswith(("pytest-", "popen-", "test_")):
            parent.chmod(0o711)  # its own user must reach its folder
    try:
        with peers.postgres(tmp_path / "postgres") as peer:
            peer.load(transfers.ACCOUNTS, transfers.FIRST_BALANCE)
            peer.serializable(moves[:80])
            peer.locked(moves[80:160])
            peer.procedure(moves[160:])
            assert peer.balances() == balances_after(moves)
    except peers.MissingPeer as error:
        pytest.skip(str(error))
    assert "database system is shut down" in (tmp_path / "postgres" / "log").read_text()


def test_a_missing_peer_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "POSTGRES", tmp_path / "nowhere")
    monkeypatch.setattr(peers.shutil, "which", lambda name: None)
    for start, package in (
        (peers.postgres(tmp_path / "p"), "postgresql-15"),
        (peers.redis_server(tmp_path / "r", "always"), "redis-server"),
    ):
        with pytest.raises(peers.MissingPeer, match=package), start:
            pass
    with contest.contestants(tmp_path, quick=True) as (found, notes):
        assert {one.name.split(",")[0] for one in found} == {"Headgate", "SQLite"}
        assert [note.rpartition(" ")[2] for note in notes] == ["postgresql-15", "redis-server"]


def test_the_race_ends_with_the_oracles_balances_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "POSTGRES", tmp_path / "nowhere")
    monkeypatch.setattr(peers.shutil, "which", lambda name: None)
    figures, notes = contest.compare_peers(tmp_path, quick=True)
    assert [one.to for one in figures[-2:]] == ["SQLite, a transaction each", "SQLite, one a batch"]
    assert len(notes) == 2
    (tmp_path / "again").mkdir()
    with contest.contestants(tmp_path / "again", quick=True) as (found, _):
        honest = found[0].run
        found[0].run = lambda events: honest(events.slice(1))
        with pytest.raises(WrongBalances, match=found[0].name):
            contest.race(found, 1)


def test_the_report_has_every_figure_and_says_which_bars_are_met(tmp_path: Path) -> None:
    figures = [
        Figure("points", "engine.get", 400.0, "ns", 8.0, "dict", 10, True),
        Figure("aborts", "10% of transfers abort", 5e6, "events/s", 0.8, "none aborts"),
        Figure("isolation", "PL2 lock, 100 keys", 5e6, "events/s", 0.3, "serial"),
        Figure("isolation", "PL2 lock, 1,000 keys", 6e6, "events/s", 0.4, "serial"),
        Figure("peers, each", "SQLite <each>", 300.0, "transfers/s", 0.001, "Headgate"),
        Figure("peers", "Headgate / the best", 1e6, "transfers/s", 40.0, "SQLite", 50),
    ]
    page = render(figures, ["Redis is not installed"])
    assert "1 of 2 bars are met" in page
    assert "at least 50: not met" in page
    assert "SQLite &lt;each&gt;" in page
    assert "<each>" not in page
    assert "Redis is not installed" in page
    queries.write_report(figures, [], tmp_path / "out")
    stored = pq.read_table(tmp_path / "out" / "queries.parquet").to_pylist()
    assert [row["is_met"] for row in stored] == [True, True, True, True, True, False]
    assert (tmp_path / "out" / "queries.html").read_text().startswith("<!doctype html>")
