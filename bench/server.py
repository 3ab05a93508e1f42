"""The server benchmark: calls of a transaction over HTTP beside a bare echo, as a ratio of one run.

Both run in a process of their own, behind the same uvicorn with the same settings. The echo parses
the body and replies with it; the call does all that a call does: token, types, transaction, log
record, sync. A third process keeps many connections busy with one request each, in turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import headgate as hg

ACCOUNTS = 1000
CONNECTIONS = 200
TARGET = 0.5
STORE = "HEADGATE_BENCH_STORE"
IN_MEMORY = "in memory"

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")


@hg.transaction(event="src bigint, dst bigint, amount bigint")
def transfer(event, src=accounts.at("src"), dst=accounts.at("dst"), out=hg.output("left bigint")):
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.left = src.balance


def make_engine() -> hg.Engine:
    """What `headgate serve bench.server:make_engine` serves."""
    store = os.environ[STORE]
    engine = hg.open(
        None if store == IN_MEMORY else store,
        tables=[accounts],
        transactions=[transfer],
        durability="group",
    )
    engine.load(accounts, [{"id": number, "balance": 1_000_000} for number in range(ACCOUNTS)])
    return engine


@dataclass(frozen=True)
class Figures:
    """Requests per second, and their ratios to the echo of the same turn; medians of the turns."""

    echo_per_second: float
    call_per_second: float
    keyed_per_second: float
    ratio: float
    keyed_ratio: float
    memory_per_second: float  # without a log: what the server itself costs, whatever the disk
    memory_ratio: float


# --- the two servers ---------------------------------------------------------------------------


def echo() -> None:
    """A bare endpoint on the stack of `headgate serve`."""
    import orjson
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route, Router

    from headgate.web.server import Settings, listen, run

    async def reply(request: Request) -> Response:
        body = orjson.loads(await request.body())
        return Response(orjson.dumps(body), media_type="application/json")

    listening = listen(Settings(port=0))
    print(f"serving on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    print("token: none", flush=True)
    run(Router([Route("/echo", reply, methods=["POST"])]), listening)


@contextmanager
def started(command: list[str], **environment: str) -> Iterator[tuple[int, str]]:
    """A server process with its port and token."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )
    try:
        lines = [process.stdout.readline().split() for _ in range(2)] if process.stdout else []
        if len(lines) < 2 or not all(lines):
            raise RuntimeError(f"{' '.join(command)} did not start")
        yield int(lines[0][-1].rpartition(":")[2]), lines[1][-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


# --- the load ----------------------------------------------------------------------------------


class Busy(asyncio.Protocol):
    """A connection that always has one request under way."""

    def __init__(self, head: str, number: int) -> None:
        self._head = head
        self._number = number
        self._rest = b""
        self.answers = 0
        self.failures = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self) -> None:
        self._number += CONNECTIONS
        src, dst = self._number * 7919 % ACCOUNTS, self._number * 104_729 % ACCOUNTS
        body = f'{{"src":{src},"dst":{dst},"amount":1}}'
        head = self._head.replace("NUMBER", str(self._number))
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            return
        place = head.lower().index(b"content-length: ") + 16
        length = int(head[place:].split(b"\r\n", 1)[0])
        if len(body) >= length:
            self._rest = body[length:]
            self.answers += 1
            self.failures += not head.startswith(b"HTTP/1.1 200")
            self.ask()


async def load(port: int, path: str, headers: dict[str, str], seconds: float) -> float:
    """Requests per second, after a short run to get warm."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines) + "\r\n"
    loop = asyncio.get_running_loop()
    busy = []
    first = time.time_ns() % 1_000_000_000_000
    for number in range(CONNECTIONS):
        _, one = await loop.create_connection(
            lambda number=number: Busy(head, first + number), "127.0.0.1", port
        )
        busy.append(one)
    for one in busy:
        one.ask()
    await asyncio.sleep(seconds / 4)
    before, began = sum(one.answers for one in busy), time.perf_counter()
    await asyncio.sleep(seconds)
    count, took = sum(one.answers for one in busy) - before, time.perf_counter() - began
    for one in busy:
        one.transport.abort()
    failures = sum(one.failures for one in busy)
    if failures:
        raise RuntimeError(f"{failures} requests to {path} failed")
    return count / took


class Load:
    """A process that makes load when it is told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.server", "load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, port: int, path: str, headers: dict[str, str], seconds: float) -> float:
        """Requests per second of one turn."""
        given, found = self._process.stdin, self._process.stdout
        if given is None or found is None:
            raise RuntimeError("the load has no pipes")
        given.write(json.dumps([port, path, headers, seconds]) + "\n")
        given.flush()
        return float(found.readline())

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(20)


def make_load() -> None:
    """What the load's process does."""
    import uvloop

    for line in sys.stdin:
        print(uvloop.run(load(*json.loads(line))), flush=True)


# --- the comparison ----------------------------------------------------------------------------


def measure(quick: bool = False) -> Figures:
    """Echo and calls in short turns, so that whatever else runs here meets them alike."""
    rounds, seconds = (3, 0.6) if quick else (12, 1.0)
    load_ = Load()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "bank"))
        serve = ["-m", "headgate.cli", "serve", "bench.server:make_engine", "--port", "0"]
        with (
            started(["-m", "bench.server", "echo"]) as (echo_port, _),
            started(serve, **{STORE: IN_MEMORY}) as (memory_port, memory_token),
            started(serve, **{STORE: store}) as (call_port, token),
        ):
            open_ = {"authorization": f"Bearer {memory_token}"}
            sent = {"authorization": f"Bearer {token}"}
            keyed = {**sent, "idempotency-key": "call-NUMBER"}
            turns = [
                (
                    load_(echo_port, "/echo", {}, seconds),
                    load_(memory_port, "/transactions/transfer", open_, seconds),
                    load_(call_port, "/transactions/transfer", sent, seconds),
                    load_(call_port, "/transactions/transfer", keyed, seconds),
                )
                for _ in range(rounds + 1)
            ][1:]  # the first is to get warm
    load_.close()
    return Figures(
        median(echo for echo, _, _, _ in turns),
        median(call for _, _, call, _ in turns),
        median(call for _, _, _, call in turns),
        median(call / echo for echo, _, call, _ in turns),
        median(call / echo for echo, _, _, call in turns),
        median(call for _, call, _, _ in turns),
        median(call / echo for echo, call, _, _ in turns),
    )


def main(quick: bool = False) -> None:
    """Print the figures and whether the bar is met."""
    found = measure(quick)
    print(f"{'echo':20}{found.echo_per_second:8,.0f} requests/s")
    for name, rate, ratio in (
        ("call, no log", found.memory_per_second, found.memory_ratio),
        ("call, synced", found.call_per_second, found.ratio),
        ("call, synced, key", found.keyed_per_second, found.keyed_ratio),
    ):
        print(f"{name:20}{rate:8,.0f} requests/s  {ratio:.2f} of echo")
    print(f"bar: a synced call at {TARGET} of echo: {'met' if found.ratio >= TARGET else 'MISSED'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["echo"]:
        echo()
    elif sys.argv[1:2] == ["load"]:
        make_load()
    else:
        main("--quick" in sys.argv)
