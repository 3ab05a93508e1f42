"""A real server: what it answers, whom it refuses, and who cannot harm it."""

from __future__ import annotations

import datetime
import itertools
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import InputError
from headgate.web.bodies import ARROW
from tests.web.bank import ACCOUNTS, TOTAL, open_bank, transfer
from tests.web.conftest import PROGRAM, Running, serving

THING = {
    "code": "tea",
    "day": datetime.date(2024, 2, 29),
    "flag": True,
    "small": -7,
    "price": Decimal("1234567890.12"),
    "weight": 0.5,
    "size": float("inf"),
    "seen": datetime.datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC),
}
TOTAL_QUERY = "select sum(balance)::bigint, count(*) from accounts"


# ---------------------------------------------------------------- what it answers


def test_a_client_sees_tables_queries_and_transactions(server: Running) -> None:
    with server.client() as client:
        assert set(client.tables()) == {"accounts", "things"}
        assert set(client.transactions()) == {"transfer", "note"}
        answer = client.sql("select sum(balance)::bigint as total from accounts where id >= ?", [0])
        assert answer.rows() == [(TOTAL,)]
        assert answer.epoch is not None and answer.epoch >= 1
        result = client.call("transfer", src=1, dst=2, amount=5)
        assert result.committed and result.left == 95
        assert client.call("transfer", src=1, dst=2, amount=10**6).reason == "insufficient funds"
        assert client.call("transfer", src=2, dst=1, amount=5).committed
        before = client.sql("select balance from accounts where id = 1", epoch=result.epoch)
        assert before.rows() == [(95,)]


def test_every_type_goes_there_and_comes_back_unchanged(server: Running) -> None:
    with server.client() as client:
        result = client.call("note", **THING, counts=[1, 2**62])
        assert result.price == THING["price"] and result.seen == THING["seen"]
        assert result.day == THING["day"] and result.size == float("inf")
        row = client.get("things", ("tea", datetime.date(2024, 2, 29)))
        assert row == {**THING, "count": 2}
        assert client.get("things", ("tea", datetime.date(2024, 3, 1))) is None
        found = client.sql("select * from things").dicts()
        assert [{**one, "seen": one["seen"].astimezone(datetime.UTC)} for one in found] == [row]


def test_json_and_arrow_answers_hold_the_same(server: Running) -> None:
    query = {"query": "select 9007199254740993::bigint as n, 0.1::decimal(3,1) as d, 'é' as t"}
    with server.http() as http:
        plain = http.post("/sql", json=query)
        assert plain.json()["rows"] == [[9007199254740993, "0.1", "é"]]
        stream = http.post("/sql", json=query, headers={"accept": ARROW})
        table = pa.ipc.open_stream(stream.content).read_all()
        assert table.to_pylist() == [{"n": 9007199254740993, "d": Decimal("0.1"), "t": "é"}]
        assert stream.headers["headgate-epoch"] == str(plain.json()["epoch"])
        refused = http.post("/sql", json=query, headers={"accept": "text/html"})
        assert refused.status_code == 406


def test_a_malformed_event_is_an_outcome_and_a_wrong_type_a_refusal(server: Running) -> None:
    with server.http() as http:
        body = {"src": None, "dst": 2, "amount": 1}
        answer = http.post("/transactions/transfer", json=body)
        assert answer.json()["outcome"] == "rejected"
        for src, reason in ((1.5, "not exact: src"), (2**63, "out of range: src")):
            answer = http.post("/transactions/transfer", json={**body, "src": src})
            assert (answer.json()["outcome"], answer.json()["reason"]) == ("rejected", reason)
        for wrong in ({"src": "1"}, {"src": True}, {"src": [1]}):
            refused = http.post("/transactions/transfer", json={**body, **wrong})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_input")
            assert "'src'" in refused.json()["error"]["message"]
        assert http.post("/transactions/transfer", json={**body, "x": 1}).status_code == 400
        assert http.post("/transactions/transfer", json={"src": 1}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/transactions/nothing/results", 404, "no_transaction"),
        ("POST", "/transactions/nothing", 404, "no_transaction"),
        ("GET", "/tables/nothing/row?id=1", 404, "no_table"),
        ("GET", "/tables/accounts/row?id=-1", 404, "no_row"),
        ("GET", "/tables/accounts/row", 400, "bad_input"),
        ("GET", "/tables/accounts/row?id=x", 400, "bad_input"),
        ("GET", "/tables/accounts/row?id=1&id=2", 400, "bad_input"),
        ("DELETE", "/tables", 405, "method_not_allowed"),
        ("GET", "/results?after=yesterday", 400, "bad_input"),
    ],
)
def test_what_is_not_there_is_refused_with_a_code(
    server: Running, method: str, path: str, status: int, code: str
) -> None:
    with server.http() as http:
        answer = http.request(method, path, json={} if method == "POST" else None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers["x-request-id"] == answer.json()["error"]["request"]


# ---------------------------------------------------------------- whom it refuses


def test_without_a_good_token_only_the_health_is_told(server: Running) -> None:
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
    for header in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {server.token}"},
    ):
        for path in ("/tables", "/metrics", "/openapi.json", "/results"):
            answer = httpx.get(f"{server.url}{path}", headers=header)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"].startswith("Bearer")
        answer = httpx.post(f"{server.url}/sql", json={"query": "select 1"}, headers=header)
        assert answer.status_code == 401
    with hg.connect(server.url, "wrong") as client, pytest.raises(InputError, match="401"):
        client.tables()


def test_tokens_of_a_file_expire(tmp_path: Path) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    lines = [
        "good-token-for-ever-1   # for the dashboard",
        "old-token-0123456789    2020-01-01T00:00:00Z",
        f"new-token-0123456789 {later.isoformat()}",
    ]
    (tmp_path / "tokens").write_text("\n".join(lines))
    options = ("--token-file", str(tmp_path / "tokens"))
    with serving(PROGRAM, *options, store=tmp_path / "bank") as running:

        def ask(token: str) -> httpx.Response:
            return httpx.get(f"{running.url}/tables", headers={"authorization": f"Bearer {token}"})

        assert ask("good-token-for-ever-1").status_code == 200
        assert ask("new-token-0123456789").status_code == 200
        assert ask("old-token-0123456789").json()["error"]["code"] == "token_expired"
        assert ask("for").json()["error"]["code"] == "bad_token"


def test_limits_of_body_rows_and_time_hold(tmp_path: Path) -> None:
    options = ("--max-body", "2000", "--query-seconds", "0.5", "--max-rows", "10")
    with serving(PROGRAM, *options, store=tmp_path / "bank") as running, running.http() as http:
        long = http.post("/sql", json={"query": "select '" + "x" * 3000 + "'"})
        assert (long.status_code, long.json()["error"]["code"]) == (413, "body_too_long")
        chunked = http.post("/sql", content=itertools.repeat(b"x" * 100, 100))
        assert chunked.status_code == 413
        many = http.post("/sql", json={"query": "select * from accounts"})
        assert (many.status_code, many.json()["error"]["code"]) == (422, "too_much")
        endless = {"query": "select count(*) from range(1000000000) a, range(1000000) b"}
        slow = http.post("/sql", json=endless)
        assert (slow.status_code, slow.json()["error"]["code"]) == (422, "too_much")
        large = http.post("/sql", json={"query": "select list(a.range || 'x') from range(1e9) a"})
        assert large.status_code in (400, 422)
        # On a busy machine half a second may be too short even for this.
        short = (http.post("/sql", json={"query": "select 1"}).json() for _ in range(100))
        assert next(one for one in short if "rows" in one)["rows"] == [[1]]


def test_no_answer_shows_a_trace(server: Running) -> None:
    with server.http() as http:
        answers = [
            http.post("/sql", json={"query": "select * from read_csv('/etc/passwd')"}),
            http.post("/sql", json={"query": "select * from nothing"}),
            http.post("/sql", json={"query": "select ?", "parameters": {"a": 1}}),
            http.post("/sql", content=b"\xff\xfe", headers={"content-type": "application/json"}),
            http.post("/transactions/transfer", content=b"{", headers={"content-type": "text/xml"}),
            http.get("/tables/accounts/row?id=%00"),
        ]
    for answer in answers:
        assert 400 <= answer.status_code < 500
        assert set(answer.json()["error"]) == {"code", "message", "request"}
        assert "Traceback" not in answer.text and ".py" not in answer.text


# ---------------------------------------------------------------- who cannot harm it


def test_200_clients_at_once_see_the_total_unbroken(server: Running) -> None:
    """Half of them move money, some of it refused; the other half adds it up."""
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    start = threading.Barrier(200)

    def work(number: int) -> list[tuple[int, str]]:
        start.wait(60)
        found = []
        for step in range(4):
            if number % 2:
                body = {"src": number % ACCOUNTS, "dst": step, "amount": (number + step) % 150}
                answer = http.post("/transactions/transfer", json=body)
                found.append((answer.status_code, answer.json()["outcome"]))
            else:
                answer = http.post("/sql", json={"query": TOTAL_QUERY})
                assert answer.json()["rows"] == [[TOTAL, ACCOUNTS]]
        return found

    with server.http(limits=limits) as http, ThreadPoolExecutor(200) as pool:
        found = [one for work_done in pool.map(work, range(200)) for one in work_done]
    assert len(found) == 400
    assert {status for status, _ in found} == {200}
    assert {outcome for _, outcome in found} == {"committed", "aborted"}


def request(server: Running, text: str, body: str = "") -> socket.socket:
    """A connection that has sent a request and reads nothing."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = f"{text} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


LONG = '{"query": "select range, repeat(\'x\', 100) from range(90000)"}'


def test_clients_that_do_not_read_hold_up_no_one(server: Running) -> None:
    slow = [request(server, "POST /sql", LONG) for _ in range(12)]
    slow += [request(server, "GET /results?after=earliest") for _ in range(12)]
    try:
        with server.client() as client:
            for _ in range(10):
                assert client.call("transfer", src=1, dst=2, amount=0).committed
                assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]
            for _ in client.follow("transfer", after="earliest"):
                break
        assert memory_of(server) < 1 << 30
    finally:
        for connection in slow:
            connection.close()


def memory_of(server: Running) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_clients_that_die_in_the_middle_leave_nothing_behind(server: Running) -> None:
    endless = '{"query": "select count(*) from range(1000000000) a, range(1000000) b"}'
    dying = [request(server, "POST /sql", LONG) for _ in range(8)]
    dying += [request(server, "GET /results?after=earliest") for _ in range(8)]
    dying += [request(server, "POST /sql", endless) for _ in range(4)]
    dying += [request(server, "POST /sql", '{"query": ')]
    dying += [request(server, "POST /transactions/transfer", '{"src": 1, "dst": 2, "amount": 0}')]
    for connection in dying[:8]:
        connection.recv(1000)
    for connection in dying:
        linger_and_close(connection)
    # The endless queries had every thread for queries: only when they were stopped is there room.
    with server.client() as client:
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]
        assert client.call("transfer", src=1, dst=2, amount=0).committed
    with server.http() as http:
        while "headgate_followers 0" not in http.get("/metrics").text:
            time.sleep(0.1)


def linger_and_close(connection: socket.socket) -> None:
    """End a connection by a reset, as a process that is killed does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


# ---------------------------------------------------------------- results, stores, the end


def test_results_are_followed_once_each_from_any_place(server: Running) -> None:
    with server.client() as client:
        first = client.call("transfer", src=3, dst=4, amount=1)
        keys = [client.call("transfer", src=3, dst=4, amount=number) for number in range(5)]
        expected = [(one.epoch, one.position, one.outcome) for one in keys]
        place = f"{first.epoch}/{first.position}"
        for after in (place, first.epoch):
            found = list(itertools.islice(client.follow("transfer", after=after), 5))
            assert [(one.epoch, one.position, one.outcome) for one in found] == expected
        middle = f"{keys[2].epoch}/{keys[2].position}"
        found = list(itertools.islice(client.follow(after=middle), 2))
        assert [(one.epoch, one.position, one.outcome) for one in found] == expected[3:]


def test_a_follower_waits_for_what_is_to_come(server: Running) -> None:
    seen: list[hg.Result] = []

    def follow() -> None:
        with server.client() as client:
            for result in client.follow("note", after=before):
                seen.append(result)
                if len(seen) == 3:
                    return

    with server.client() as client:
        before = client.sql("select 1").epoch
        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(3):
            assert client.call("transfer", src=5, dst=6, amount=0).committed
            client.call("note", **{**THING, "small": number}, counts=[])
        thread.join(60)
    assert [result.transaction for result in seen] == ["note"] * 3
    assert seen[0].price == THING["price"]


def test_a_store_of_another_process_is_read_and_takes_no_calls(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with (
        open_bank(str(path)) as engine,
        serving(str(path)) as running,
        running.client() as client,
        running.http() as http,
    ):
        assert client.sql(TOTAL_QUERY).rows() == [(TOTAL, ACCOUNTS)]
        result = engine.call(transfer, src=1, dst=2, amount=7)
        assert client.get("accounts", 1) == {"id": 1, "balance": 93}
        assert client.sql("select count(*) from results").rows() == [(1,)]
        assert client.sql("select balance from accounts where id = 1", epoch=1).rows() == [(100,)]
        found = next(client.follow("transfer", after=1))
        assert (found.epoch, found.left) == (result.epoch, 93)
        refused = http.post("/transactions/transfer", json={"src": 1, "dst": 2, "amount": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "read_only")


def test_a_signal_ends_it_and_the_store_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with serving(PROGRAM, store=path) as running:
        with running.client() as client:
            assert client.call("transfer", src=1, dst=2, amount=7).committed
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(30)
    with open_bank(str(path)) as engine:
        assert engine.get("accounts", 1) == {"id": 1, "balance": 93}


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    with serving(PROGRAM, store=tmp_path / "bank") as running, running.http() as http:
        for amount in (1, 1, 10**6):
            http.post("/transactions/transfer", json={"src": 1, "dst": 2, "amount": amount})
        http.get("/nothing")
        text = http.get("/metrics").text
        asked = "select outcome, count(*) as n from results group by outcome order by outcome"
        found = http.post("/sql", json={"query": asked}).json()
    assert found["rows"] == [["aborted", 1], ["committed", 2]]
    assert 'headgate_calls_total{transaction="transfer",outcome="committed"} 2\n' in text
    assert 'headgate_calls_total{transaction="transfer",outcome="aborted"} 1\n' in text
    assert 'headgate_requests_total{route="call",status="200"} 3\n' in text
    assert 'headgate_requests_total{route="none",status="404"} 1\n' in text
    assert 'headgate_request_seconds_count{route="call"} 3\n' in text
    assert 'headgate_events_total{stream="transfer",outcome="aborted"} 1\n' in text
    assert 'headgate_step_seconds_count{stream="transfer",step="log"}' in text
    assert f'headgate_rows{{table="accounts"}} {ACCOUNTS}\n' in text


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "there is no store"),
        ("nowhere.py:engine", "there is no program"),
        ("no.such.module:engine", "cannot import"),
        ("json:dumps_nothing", "names nothing"),
    ],
)
def test_a_target_that_is_not_there_is_named(target: str, message: str) -> None:
    from headgate.web.target import open_target

    with pytest.raises(InputError, match=message):
        open_target(target)
