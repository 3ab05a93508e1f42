"""The server is killed in the middle of calls: none is applied twice, none is told and lost."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from pathlib import Path

import headgate as hg
from headgate.durability import StoreReader
from headgate.errors import ServerError
from headgate.web.client import Client
from tests.web.bank import ACCOUNTS, TOTAL, open_bank
from tests.web.conftest import PROGRAM, serving

TOKEN = "a-token-for-the-tests"
CALLERS = 8


class Follower:
    """Follows the results from the first on, by connections that break again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.seen: list[tuple[int, int]] = []
        self.is_given_up = False
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while not self.is_given_up:
            place = "earliest" if not self.seen else "{}/{}".format(*self.seen[-1])
            with contextlib.suppress(ServerError), hg.connect(self._url, TOKEN) as client:
                for result in client.follow(after=place):
                    self.seen.append((result.epoch, result.position))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class Caller:
    """Sends calls with keys of its own, each again and again until it is answered."""

    def __init__(self, url: str, number: int, done: threading.Event) -> None:
        self._url = url
        self._number = number
        self._done = done
        self.answers: list[hg.Result] = []
        self.totals: set[int] = set()
        self.differences = 0
        self.is_given_up = False
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        chance = random.Random(self._number)
        with hg.connect(self._url, TOKEN) as client:
            count = 0
            while not self._done.is_set():
                count += 1
                src, dst = chance.sample(range(ACCOUNTS), 2)
                columns = {"src": src, "dst": dst, "amount": chance.randrange(80)}
                self._until_answered(client, f"{self._number}:{count}", columns)
                self._add_up(client)

    def _until_answered(self, client: Client, key: str, columns: dict[str, int]) -> None:
        found = None
        while found is None and not self.is_given_up:
            with contextlib.suppress(ServerError):
                found = client.call_once(key, "transfer", **columns)
        if found is None:
            return
        self.answers.append(found)
        # Sent again after the answer it is still the same call, also by a server that is new.
        with contextlib.suppress(ServerError):
            self.differences += dict(client.call_once(key, "transfer", **columns)) != dict(found)

    def _add_up(self, client: Client) -> None:
        with contextlib.suppress(ServerError):
            self.totals.add(client.sql("select sum(balance)::bigint from accounts").rows()[0][0])


def test_calls_survive_kills_exactly_once(tmp_path: Path, long_run: bool) -> None:
    store, port = tmp_path / "bank", free_port()
    (tmp_path / "tokens").write_text(TOKEN)
    options = ("--port", str(port), "--token-file", str(tmp_path / "tokens"))
    done = threading.Event()
    callers = [Caller(f"http://127.0.0.1:{port}", number, done) for number in range(CALLERS)]
    follower = Follower(f"http://127.0.0.1:{port}")
    for one in (*callers, follower):
        one.thread.start()
    chance = random.Random(7)
    try:
        for _ in range(30 if long_run else 3):
            with serving(PROGRAM, *options, store=store) as running:
                wait_for(callers, answered(callers) + chance.randrange(10, 60))
                running.kill()
        with serving(PROGRAM, *options, store=store):
            done.set()
            for caller in callers:
                caller.thread.join(60)
            while len(follower.seen) < answered(callers):
                time.sleep(0.01)
    finally:
        done.set()
        for one in (*callers, follower):
            one.is_given_up = True
    told = check(store, callers)
    assert follower.seen == sorted(told)


def answered(callers: list[Caller]) -> int:
    return sum(len(caller.answers) for caller in callers)


def wait_for(callers: list[Caller], count: int) -> None:
    """Wait until so many calls were answered, and then for a moment in the middle of others."""
    while answered(callers) < count:
        time.sleep(0.001)


def check(store: Path, callers: list[Caller]) -> dict[tuple[int, int], str]:
    """What was told is what is there, no more and no less."""
    told = {(one.epoch, one.position): one.outcome for caller in callers for one in caller.answers}
    assert len(told) == answered(callers) > 30
    assert sum(caller.differences for caller in callers) == 0
    assert set(told.values()) == {"committed", "aborted"}
    assert {total for caller in callers for total in caller.totals} == {TOTAL}
    with open_bank(str(store)) as engine:
        last = engine.epoch
        assert engine.sql("select sum(balance)::bigint from accounts").rows() == [(TOTAL,)]
    reader = StoreReader.open(store)
    recorded = {
        (epoch, row["position"]): row["outcome"]
        for epoch, batch in reader.results(1, last)
        for row in batch.to_pylist()
    }
    assert recorded == told
    return told
