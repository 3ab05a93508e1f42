"""Queries of strangers: what they cost is bounded for certain, and others are answered."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import InputError, LimitError
from tests.web.bank import ACCOUNTS, TOTAL, open_bank, transfer
from tests.web.conftest import PROGRAM, Running, serving

MEMORY_MIB = 300
SECONDS = 4.0
TOTAL_QUERY = "select sum(balance)::bigint, count(*) from accounts"
# DuckDB looks at its limits between the blocks of a table, not within one call of a function.
LARGE = [
    "select len(range(300000000))",
    "select len(repeat('x', 2000000000))",
    "select len(list_transform(range(100000000), lambda x: repeat('x', 1000)))",
    "select repeat('x', 100000000) from range(100)",
    "select len(string_agg(repeat('x', 1000000), ',')) from range(1000)",
]
LONG = [
    "select len(lpad('x', 2000000000, 'y'))",
    "select sum(len(regexp_replace(repeat('x', 60000000 + range), 'x', 'y', 'g'))) from range(9)",
    "select count(*) from range(1000000000) a, range(1000000) b",
]


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = ("--query-memory", str(MEMORY_MIB), "--query-seconds", str(SECONDS))
    store = tmp_path_factory.mktemp("bounded") / "bank"
    with serving(PROGRAM, *options, store=store) as running:
        yield running


def workers_of(server: Running) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True
    )
    return [int(word) for word in found.stdout.split()]


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("query", LARGE)
def test_a_function_that_makes_too_much_is_refused(bounded: Running, query: str) -> None:
    with bounded.client() as client:
        with pytest.raises(LimitError):
            client.sql(query)
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]
    assert peak_bytes(bounded.process.pid) < 600 << 20


@pytest.mark.parametrize("query", LONG)
def test_a_function_that_takes_too_long_is_ended(bounded: Running, query: str) -> None:
    began = time.monotonic()
    with bounded.client() as client:
        with pytest.raises(LimitError, match=r"longer than|memory"):
            client.sql(query)
        assert time.monotonic() - began < SECONDS + 8
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]


def test_endless_functions_block_no_one(bounded: Running) -> None:
    """Eight of them at once, again and again, while others call, read and ask."""
    is_done = threading.Event()

    def harm(number: int) -> int:
        ended = 0
        with bounded.client() as client:
            while not is_done.is_set():
                with pytest.raises((LimitError, hg.errors.ServerError)):
                    client.sql((LONG + LARGE)[number])
                ended += 1
        return ended

    with ThreadPoolExecutor(8) as pool:
        harmed = [pool.submit(harm, number) for number in range(8)]
        slowest = 0.0
        try:
            time.sleep(1)
            with bounded.client() as client:
                for _ in range(30):
                    began = time.monotonic()
                    assert client.call("transfer", src=1, dst=2, amount=0).committed
                    assert client.get("accounts", 1) is not None
                    slowest = max(slowest, time.monotonic() - began)
        finally:
            is_done.set()  # whatever happened: the pool's end waits for them
        assert all(one.result(120) >= 1 for one in harmed)
    assert slowest < 3.0
    assert peak_bytes(bounded.process.pid) < 600 << 20
    with bounded.client() as client:
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]


def test_another_client_has_its_turn_among_endless_queries(tmp_path: Path) -> None:
    """A client with every place taken waits behind those that have none."""
    tokens = ["first-token-0123456789", "second-token-0123456789"]
    (tmp_path / "tokens").write_text("\n".join(tokens))
    options = ("--token-file", str(tmp_path / "tokens"), "--query-seconds", "60")
    with serving(PROGRAM, *options, store=tmp_path / "bank") as running:
        greedy = []
        for _ in range(8):
            running.token = tokens[0]
            one = running.http()
            greedy.append(one)
            threading.Thread(
                target=_ask_for_ever, args=(one, {"query": LONG[2]}), daemon=True
            ).start()
        time.sleep(2)
        running.token = tokens[1]
        with running.client() as client:
            began = time.monotonic()
            assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]
            assert time.monotonic() - began < 20
        # The endless ones still run: the end of the server does not wait for them.
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
        assert time.monotonic() - began < 6
        for one in greedy:
            one.close()


def _ask_for_ever(http: object, body: object) -> None:
    try:
        http.post("/sql", json=body)  # type: ignore[attr-defined]
    except Exception:
        return


def test_a_worker_that_is_killed_is_replaced(bounded: Running) -> None:
    with bounded.client() as client:
        assert client.sql("select 1").rows() == [(1,)]
        for pid in workers_of(bounded):
            os.kill(pid, signal.SIGKILL)
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]


def test_a_worker_that_is_killed_while_it_runs_is_replaced(bounded: Running) -> None:
    def kill() -> None:
        time.sleep(1)
        for pid in workers_of(bounded):
            os.kill(pid, signal.SIGKILL)

    with bounded.client() as client:
        thread = threading.Thread(target=kill)
        thread.start()
        # It is run again, in another worker, and ends for a reason of its own.
        with pytest.raises(LimitError, match="takes longer"):
            client.sql(LONG[2])
        thread.join()
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]


def test_workers_end_with_their_server(tmp_path: Path) -> None:
    with serving(PROGRAM, store=tmp_path / "bank") as running, running.client() as client:
        client.sql("select 1")
        workers = workers_of(running)
        assert workers
        running.kill()
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_queries_see_each_epoch_whole_and_the_past(bounded: Running) -> None:
    with bounded.client() as client:
        before = client.sql("select balance from accounts where id = 1").rows()[0][0]
        result = client.call("transfer", src=1, dst=2, amount=3)
        after = client.sql("select balance from accounts where id = ?", [1])
        assert after.rows() == [(before - 3,)] and after.epoch == result.epoch
        past = client.sql(
            "select balance from accounts where id = $id", {"id": 1}, result.epoch - 1
        )
        assert past.rows() == [(before,)] and past.epoch == result.epoch - 1
        assert client.call("transfer", src=2, dst=1, amount=3).committed
        with pytest.raises(InputError, match="no epoch"):
            client.sql("select 1 from accounts", epoch=10**9)
        joined = client.sql("select count(*) from accounts, things")
        assert joined.rows() == [(0,)]


def test_a_store_of_another_process_is_queried_in_a_worker_too(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    options = ("--query-memory", str(MEMORY_MIB), "--query-seconds", str(SECONDS))
    with (
        open_bank(str(path)) as engine,
        serving(str(path), *options) as running,
        running.client() as client,
    ):
        for amount in range(1, 4):
            result = engine.call(transfer, src=1, dst=2, amount=amount)
            found = client.sql("select balance from accounts where id = 2")
            assert found.epoch == result.epoch
            assert found.rows() == [(100 + sum(range(amount + 1)),)]
        assert client.sql("select count(*) from results").rows() == [(3,)]
        assert client.sql("select balance from accounts where id = 2", epoch=1).rows() == [(100,)]
        for query in LARGE[:2] + LONG[:1]:
            with pytest.raises(LimitError):
                client.sql(query)
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]
        assert peak_bytes(running.process.pid) < 600 << 20


def test_an_answer_that_is_too_long_is_refused(bounded: Running) -> None:
    with bounded.client() as client, pytest.raises(LimitError):
        client.sql("select repeat('x', 1000000) from range(90)")


def test_a_large_answer_arrives_whole(bounded: Running) -> None:
    with bounded.client() as client:
        table = client.sql("select range as n, repeat('x', 100) as t from range(90000)").arrow()
    assert table.num_rows == 90_000
    assert pa.compute.sum(table["n"]).as_py() == sum(range(90_000))
