"""What a server keeps to itself: its name, its folders, and the time it takes to end."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headgate as hg
from headgate.web.admission import AllowedOrigins
from headgate.web.limits import Refused, refusal_of
from tests.web.bank import open_bank
from tests.web.conftest import PROGRAM, Running, serving

ORIGIN = "https://dashboard.example.org"
BODY = {"src": 1, "dst": 2, "amount": 0}


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that takes everyone, as on a laptop."""
    options = ("--no-token", "--allow-host", "bank.example.org", "--allow-origin", ORIGIN)
    with serving(PROGRAM, *options, store=tmp_path_factory.mktemp("house") / "bank") as running:
        yield running


def asked(server: Running, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}/transactions/transfer", json=BODY, headers=headers)


# ---------------------------------------------------------------- hosts and origins


def test_a_page_of_another_site_is_refused(open_server: Running) -> None:
    for origin in ("https://evil.example.com", "null", "http://localhost:1", "file://"):
        answer = asked(open_server, origin=origin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "bad_origin")
        assert "access-control-allow-origin" not in answer.headers
    # A form needs no leave from the server to be sent.
    answer = httpx.post(
        f"{open_server.url}/sql",
        content=b'{"query": "select 1"}',
        headers={"origin": "https://evil.example.com", "content-type": "text/plain"},
    )
    assert answer.status_code == 403


def test_a_name_that_points_here_is_not_enough(open_server: Running) -> None:
    for host in ("evil.example.com", "evil.example.com:8000", "localhost.evil.com", "[x]", ""):
        answer = asked(open_server, host=host)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "bad_host"), host
    good = ("localhost", f"127.0.0.1:{open_server.port}", "[::1]:80", "BANK.example.org:443")
    for host in good:
        assert asked(open_server, host=host).status_code == 200, host


def test_its_own_pages_and_those_that_are_allowed_may_ask(open_server: Running) -> None:
    assert asked(open_server, origin=open_server.url).status_code == 200
    answer = asked(open_server, origin=ORIGIN)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    before = httpx.options(
        f"{open_server.url}/sql",
        headers={"origin": ORIGIN, "access-control-request-method": "POST"},
    )
    assert before.status_code == 204
    assert "authorization" in before.headers["access-control-allow-headers"]
    refused = httpx.options(
        f"{open_server.url}/sql",
        headers={"origin": "https://evil.example.com", "access-control-request-method": "POST"},
    )
    assert refused.status_code == 403


def test_a_header_that_says_who_asks_comes_once(server: Running) -> None:
    good = f"Bearer {server.token}"
    for name, values in (
        ("authorization", (good, good)),
        ("authorization", ("Bearer wrong-token-0123456", good)),
        ("host", ("localhost", "evil.example.com")),
        ("origin", ("http://localhost", "https://evil.example.com")),
    ):
        headers = {"host": ("localhost",), "authorization": (good,), name: values}
        lines = "".join(f"{one}: {text}\r\n" for one, all_ in headers.items() for text in all_)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(f"GET /tables HTTP/1.1\r\n{lines}\r\n".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 "), name
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"GET /tables HTTP/1.1\r\nauthorization: {good}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_every_name_can_be_allowed() -> None:
    AllowedOrigins.of("127.0.0.1", ["*"], []).check("anything.example.com", None)
    with pytest.raises(Refused, match="allow-host"):
        AllowedOrigins.of("127.0.0.1", ["other"], []).check("anything.example.com", None)
    with pytest.raises(hg.InputError, match="no origin"):
        AllowedOrigins.of("127.0.0.1", [], ["example.org"])


# ---------------------------------------------------------------- folders


def test_no_answer_shows_a_folder_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "the-bank"
    open_bank(str(path)).close()
    with serving(str(path)) as running, running.http() as http:
        past = http.post("/sql", json={"query": "select * from accounts", "epoch": 10**6})
        assert past.status_code == 400 and str(tmp_path) not in past.text
        assert "the-bank" in past.json()["error"]["message"]
        for segment in path.rglob("*"):
            if segment.is_file():
                segment.write_bytes(b"\0" * 100)
        for answer in (
            http.post("/sql", json={"query": "select * from accounts"}),
            http.get("/health"),
            http.get("/tables"),
            http.get("/results?after=earliest"),
            http.get("/tables/accounts/row?id=1"),
        ):
            assert answer.status_code >= 400, answer.url
            assert str(tmp_path) not in answer.text and "/" not in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("no epoch 3 in /srv/data/bank: it has", "no epoch 3 in bank: it has"),
        ("the file '/srv/data/bank/log/000.seg' is cut", "the file '000.seg' is cut"),
        ("cannot divide a/b/c by 1/2", "cannot divide a/b/c by 1/2"),
        ("send application/json", "send application/json"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
    ],
)
def test_of_a_path_only_the_last_name_is_told(message: str, told: str) -> None:
    assert refusal_of(hg.InputError(message)).message == told


# ---------------------------------------------------------------- counts


def test_a_call_that_is_sent_again_is_not_counted_again(tmp_path: Path) -> None:
    with serving(PROGRAM, store=tmp_path / "bank") as running, running.client() as client:
        for _ in range(3):
            client.call_once("one", "transfer", **BODY)
        client.call_once("two", "transfer", **BODY)
        client.call_once("two", "transfer", **BODY)
        barrier = threading.Barrier(8)

        def same() -> None:
            with running.client() as own:
                own.tables()
                barrier.wait(60)
                own.call_once("three", "transfer", **BODY)

        threads = [threading.Thread(target=same) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with running.http() as http:
            text = http.get("/metrics").text
    assert 'headgate_calls_total{transaction="transfer",outcome="committed"} 3\n' in text
    assert 'headgate_replayed_calls_total{transaction="transfer"} 10\n' in text


# ---------------------------------------------------------------- the end


def test_a_signal_ends_it_within_5_seconds_whatever_runs(tmp_path: Path) -> None:
    """Endless queries of both kinds, followers, slow readers, half requests: all at once."""
    store = tmp_path / "bank"
    with serving(PROGRAM, store=store) as running:
        with running.client() as client:
            last = client.call("transfer", src=1, dst=2, amount=1)
        connections = [_send(running, *one) for one in _busy_requests() for _ in range(3)]
        threading.Thread(target=_call_for_ever, args=(running,), daemon=True).start()
        time.sleep(2)
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
        assert time.monotonic() - began < 5
        for connection in connections:
            connection.close()
    with open_bank(str(store)) as engine:  # nothing was left locked or half done
        assert engine.epoch >= last.epoch
        assert engine.sql("select sum(balance)::bigint from accounts").rows() == [(10_000,)]


def _busy_requests() -> list[tuple[str, Any]]:
    return [
        ("POST /sql", {"query": "select count(*) from range(1000000000) a, range(1000000) b"}),
        ("POST /sql", {"query": "select len(lpad('x', 2000000000, 'y'))"}),
        ("POST /sql", {"query": "select range, repeat('x', 100) from range(90000)"}),
        ("GET /results?after=earliest", None),
        ("POST /transactions/transfer", "half"),
    ]


def _send(server: Running, line: str, body: Any) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    text = "" if body is None else json.dumps(body)
    length = len(text) + (100 if body == "half" else 0)
    head = f"{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n"
    connection.sendall(f"{head}content-length: {length}\r\n\r\n{text}".encode())
    return connection


def _call_for_ever(server: Running) -> None:
    with contextlib.suppress(httpx.HTTPError), server.http() as http:
        while True:
            http.post("/transactions/transfer", json=BODY)
