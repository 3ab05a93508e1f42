"""Real servers, each a process of its own, for the tests that ask them over real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import headgate as hg
from headgate.web.client import Client

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = f"{Path(__file__).with_name('bank.py')}:make_engine"


@dataclass
class Running:
    """A server process, its address and its token."""

    process: subprocess.Popen[str]
    url: str
    token: str | None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def client(self) -> Client:
        return hg.connect(self.url, self.token)

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60, **options)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


@contextmanager
def serving(
    target: str,
    *options: str,
    store: Path | None = None,
    limits: Mapping[str, float] | None = None,
) -> Iterator[Running]:
    """Start `headgate serve` and wait for its first lines; `limits` may be any of the server's."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    if store is not None:
        environment["BANK_STORE"] = str(store)
    if limits is not None:
        environment["BANK_LIMITS"] = json.dumps(limits)
    program = "headgate.cli" if limits is None else "tests.web.strict"
    given = options if "--port" in options else ("--port", "0", *options)
    process = subprocess.Popen(
        [sys.executable, "-m", program, "serve", target, *given],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("serving on http://"), address
        is_told = not {"--token-file", "--no-token"}.intersection(options)
        token = process.stdout.readline().strip().removeprefix("token: ") if is_told else None
        yield Running(process, address.removeprefix("serving on "), token)
    finally:
        _end(process)
        process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a server to end; one that does not is an error, yet it must not stay."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    finally:
        process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A bank in a store, served with a token."""
    with serving(PROGRAM, store=tmp_path_factory.mktemp("served") / "bank") as running:
        yield running
