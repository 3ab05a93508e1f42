"""Clients that send too much, too slowly or nothing, or read nothing: no one else notices."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.web.bank import open_bank, transfer
from tests.web.conftest import PROGRAM, Running, serving

HEAD_SECONDS, BODY_SECONDS, STALL_SECONDS = 2.0, 3.0, 3.0
LIMITS = {
    "head_seconds_max": HEAD_SECONDS,
    "body_seconds_max": BODY_SECONDS,
    "stall_seconds_max": STALL_SECONDS,
    "connections_max": 300,
    "connections_each_max": 250,
    "body_bytes_max": 100_000,
}
RESULTS = 20_000
ESTABLISHED = "01"  # in the kernel's list
HOST = "host: localhost\r\n"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store = tmp_path_factory.mktemp("strict") / "bank"
    with open_bank(str(store)) as engine:  # results for more than the buffers of two kernels
        engine.run(transfer, [{"src": 1, "dst": 2, "amount": 0}] * RESULTS)
    with serving(PROGRAM, store=store, limits=LIMITS) as running:
        yield running


def connect(server: Running, sent: str = "") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.sendall(sent.encode())
    return found


def answer_of(connection: socket.socket) -> bytes:
    """All that comes until the connection ends, however it ends."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            found += data
    return found


def seconds_to_end(connection: socket.socket) -> float:
    began = time.monotonic()
    answer_of(connection)
    return time.monotonic() - began


def check_good(server: Running, seconds_max: float = 3.0) -> None:
    """A good client, on a connection of its own, is answered soon."""
    began = time.monotonic()
    with server.client() as client:
        assert client.call("transfer", src=1, dst=2, amount=0).committed
        assert client.get("accounts", 1) is not None
    assert time.monotonic() - began < seconds_max


def memory_of(server: Running) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


# ---------------------------------------------------------------- too much


@pytest.mark.parametrize("is_one_line", [True, False])
def test_an_endless_head_is_refused(strict: Running, is_one_line: bool) -> None:
    before = memory_of(strict)
    with connect(strict, f"GET /health HTTP/1.1\r\n{HOST}x: ") as connection:
        piece = b"y" * 60_000 if is_one_line else b"y: z\r\n" * 10_000
        sent = 0
        with pytest.raises(ConnectionError):
            for _ in range(2000):
                sent += connection.send(piece)
        assert sent < 20 << 20
    check_good(strict)
    assert memory_of(strict) < before + (50 << 20)


def test_a_head_that_is_too_long_is_told_so(strict: Running) -> None:
    for lines in (f"x: {'y' * 17_000}\r\n", "".join(f"x{n}: y\r\n" for n in range(120))):
        with connect(strict, f"GET /health HTTP/1.1\r\n{HOST}{lines}\r\n") as connection:
            assert answer_of(connection).startswith(b"HTTP/1.1 431 ")
    with connect(strict, f"GET /{'y' * 17_000} HTTP/1.1\r\n{HOST}\r\n") as connection:
        assert answer_of(connection).startswith(b"HTTP/1.1 431 ")
    check_good(strict)


def test_a_huge_content_length_is_refused_at_once(strict: Running) -> None:
    head = f"POST /sql HTTP/1.1\r\n{HOST}authorization: Bearer {strict.token}\r\n"
    with connect(strict, f"{head}content-length: {10**15}\r\n\r\n") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
        with pytest.raises(ConnectionError):
            for _ in range(2000):
                connection.send(b"x" * 60_000)
    check_good(strict)


@pytest.mark.parametrize("has_token", [True, False])
def test_an_endless_body_in_chunks_is_refused(strict: Running, has_token: bool) -> None:
    token = f"authorization: Bearer {strict.token}\r\n" if has_token else ""
    head = f"POST /sql HTTP/1.1\r\n{HOST}{token}transfer-encoding: chunked\r\n\r\n"
    before = memory_of(strict)
    with connect(strict, head) as connection, pytest.raises(ConnectionError):
        for _ in range(2000):
            connection.send(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")
    with connect(strict, head + "1;") as connection, pytest.raises(ConnectionError):
        for _ in range(2000):
            connection.send(b"y" * 0xFFFF)
    with connect(strict, head + "0\r\n") as connection, pytest.raises(ConnectionError):
        for _ in range(2000):
            connection.send(b"y: z\r\n" * 10_000)
    check_good(strict)
    assert memory_of(strict) < before + (50 << 20)


def test_what_is_not_http_is_refused(strict: Running) -> None:
    for sent in ("\x16\x03\x01\x02\x00\x01", "GET\r\n\r\n", "\x00" * 100, "HELO x\r\n\r\n"):
        with connect(strict, sent) as connection:
            assert answer_of(connection).startswith(b"HTTP/1.1 400 ")
    check_good(strict)


# ---------------------------------------------------------------- too slowly


def test_half_a_head_ends_after_a_few_seconds(strict: Running) -> None:
    for sent in ("", "GET /health HT", f"GET /health HTTP/1.1\r\n{HOST}"):
        with connect(strict, sent) as connection:
            assert seconds_to_end(connection) < HEAD_SECONDS + 3


def test_a_head_byte_by_byte_ends_too(strict: Running) -> None:
    began = time.monotonic()
    with (
        connect(strict, f"GET /health HTTP/1.1\r\n{HOST}x: ") as connection,
        pytest.raises(ConnectionError),
    ):
        while time.monotonic() - began < 30:
            connection.send(b"y")
            time.sleep(0.1)
    assert time.monotonic() - began < HEAD_SECONDS + 4


def test_a_slow_body_ends_too(strict: Running) -> None:
    for path, token in (("/transactions/transfer", strict.token), ("/sql", "none")):
        head = f"POST {path} HTTP/1.1\r\n{HOST}authorization: Bearer {token}\r\n"
        began = time.monotonic()
        with (
            connect(strict, f"{head}content-length: 1000\r\n\r\n") as connection,
            pytest.raises(ConnectionError),
        ):
            while time.monotonic() - began < 30:
                connection.send(b" ")
                time.sleep(0.1)
        assert time.monotonic() - began < BODY_SECONDS + 4
    check_good(strict)


def test_a_request_in_pieces_that_is_in_time_is_answered(strict: Running) -> None:
    body = json.dumps({"src": 1, "dst": 2, "amount": 0})
    head = f"POST /transactions/transfer HTTP/1.1\r\n{HOST}authorization: Bearer {strict.token}\r\n"
    text = f"{head}content-length: {len(body)}\r\n\r\n{body}"
    with connect(strict) as connection:
        for first in range(0, len(text), 40):
            connection.sendall(text[first : first + 40].encode())
            time.sleep(0.05)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


# ---------------------------------------------------------------- too many


def test_half_sent_requests_beyond_all_limits_hold_up_no_one(strict: Running) -> None:
    """Heads, bodies and silence, more than there may be connections, again and again."""
    begun = [
        "",
        "GET /health HTTP/1.1\r\nhost: loc",
        f"POST /sql HTTP/1.1\r\n{HOST}content-length: 100\r\n\r\n{{",
        f"GET /health HTTP/1.1\r\n{HOST}\r\nGET /hea",
    ]
    is_done = threading.Event()

    def flood(number: int) -> int:
        held: list[socket.socket] = []
        count = 0
        while not is_done.is_set():
            with contextlib.suppress(OSError):
                held.append(connect(strict, begun[count % len(begun)]))
            count += 1
            if len(held) > 200:
                held.pop(0).close()
        for one in held:
            one.close()
        return count

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1)
        with strict.http() as http:
            for _ in range(40):
                body = {"src": 1, "dst": 2, "amount": 0}
                answer = http.post("/transactions/transfer", json=body)
                assert answer.status_code == 200
            for _ in range(10):
                check_good(strict, 10.0)
    finally:
        is_done.set()
        for thread in threads:
            thread.join()


def test_5000_half_sent_requests_and_a_good_client(tmp_path: Path) -> None:
    """With the limits that everyone has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip("this process may not have 5,000 connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    held: list[socket.socket] = []
    with serving(PROGRAM, store=tmp_path / "bank") as running, running.client() as kept:
        assert kept.call("transfer", src=1, dst=2, amount=0).committed
        try:
            for number in range(5000):
                sent = "GET /health HTTP/1.1\r\nhost: l" if number % 2 else "POST /sql HTTP/1.1\r\n"
                held.append(connect(running, sent))
                if number % 250 == 0:
                    assert kept.call("transfer", src=1, dst=2, amount=0).committed
            for _ in range(5):
                check_good(running, 10.0)
        finally:
            for one in held:
                one.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_pipelined_requests_are_answered_in_order(strict: Running) -> None:
    head = f"{HOST}authorization: Bearer {strict.token}\r\n\r\n"
    one = f"GET /tables/accounts/row?id=%d HTTP/1.1\r\n{head}"
    with connect(strict, "".join(one % number for number in range(20))) as connection:
        found = b""
        while found.count(b'"id":') < 20:
            data = connection.recv(65536)
            assert data
            found += data
    places = [found.index(b'"id":%d,' % number) for number in range(20)]
    assert places == sorted(places)


def test_endless_pipelined_requests_that_no_one_reads_end(strict: Running) -> None:
    one = f"GET /metrics HTTP/1.1\r\n{HOST}authorization: Bearer {strict.token}\r\n\r\n".encode()
    before = memory_of(strict)
    with connect(strict) as connection:
        connection.settimeout(STALL_SECONDS + 10)
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(one * 50)
    check_good(strict)
    assert memory_of(strict) < before + (50 << 20)


# ---------------------------------------------------------------- who reads nothing


@pytest.mark.parametrize("what", ["sql", "follow"])
def test_who_reads_nothing_is_ended(strict: Running, what: str) -> None:
    token = f"{HOST}authorization: Bearer {strict.token}\r\n"
    query = json.dumps({"query": "select range, repeat('x', 100) from range(90000)"})
    sent = {
        "sql": f"POST /sql HTTP/1.1\r\n{token}content-length: {len(query)}\r\n\r\n{query}",
        "follow": f"GET /results?after=earliest HTTP/1.1\r\n{token}\r\n",
    }[what]
    before = sockets_of(strict)
    slow = [connect(strict, sent) for _ in range(5)]
    time.sleep(1)
    assert sockets_of(strict) >= before + 5
    deadline = time.monotonic() + STALL_SECONDS + 15
    while sockets_of(strict) > before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for one in slow:
        one.close()
    check_good(strict)


def sockets_of(server: Running) -> int:
    """The connections that the server holds."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{server.port:04X}"
    return sum(line[1].endswith(port) and line[3] == ESTABLISHED for line in lines)


def test_a_connection_that_is_kept_is_good_for_the_next_request(strict: Running) -> None:
    with strict.http(limits=httpx.Limits(max_connections=1)) as http:
        for _ in range(3):
            assert http.get("/health").status_code == 200
            time.sleep(HEAD_SECONDS + 1)


# ---------------------------------------------------------------- who leaves


def test_who_follows_asks_more_and_leaves_frees_the_place(strict: Running) -> None:
    """The server does not read from a connection on which another request waits."""
    head = f"{HOST}authorization: Bearer {strict.token}\r\n\r\n"
    asked = f"GET /results HTTP/1.1\r\n{head}GET /health HTTP/1.1\r\n{head}"
    others = followers_of(strict)
    left = [connect(strict, asked) for _ in range(10)]
    for one in left:
        assert one.recv(12) == b"HTTP/1.1 200"
    assert followers_of(strict) >= 10
    for one in left:
        one.close()
    deadline = time.monotonic() + 60
    while followers_of(strict) > others:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def followers_of(server: Running) -> int:
    with server.http() as http:
        lines = http.get("/metrics").text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("headgate_followers "))
