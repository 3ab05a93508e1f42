"""The application over an engine in memory: engines that stop, limits that are reached, bugs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

import headgate as hg
from headgate.web.admission import Tokens
from headgate.web.application import Application, ClosingResponse
from headgate.web.limits import Limits
from headgate.web.target import ServedEngine

counts = hg.Table("counts", "id bigint, n bigint DEFAULT 0", key="id")


@hg.transaction(event="id bigint, by bigint", compiled=False)
def add(
    event: Any, row: Any = counts.at("id", create=True), out: Any = hg.output("n bigint")
) -> Any:
    row.n += event.by
    out.n = row.n


Ask = Callable[[httpx.AsyncClient], Awaitable[Any]]


def asked(engine: hg.Engine, ask: Ask, **limits: Any) -> Any:
    """Ask an application that serves this engine to everyone."""

    async def work() -> Any:
        application = Application(ServedEngine(engine), Tokens(None), Limits(**limits), "0")
        transport = httpx.ASGITransport(application.door(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = await ask(client)
        application.close()
        return found

    return asyncio.run(work())


@pytest.fixture
def engine() -> Any:
    with hg.open(None, tables=[counts], transactions=[add]) as opened:
        yield opened


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_an_engine_in_memory_has_everything_but_a_log(engine: hg.Engine) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await client.post("/transactions/add", json={"id": 1, "by": 2}),
            await client.get("/tables/counts/row?id=1"),
            await client.post("/sql", json={"query": "select n from counts"}),
            await client.get("/results"),
            await client.post("/sql", json={"query": "select n from counts", "epoch": 0}),
        ]

    called, row, found, followed, past = asked(engine, ask)
    assert (called.json()["outcome"], called.json()["n"]) == ("committed", 2)
    assert row.json() == {"row": {"id": 1, "n": 2}}
    assert found.json()["rows"] == [[2]] and found.json()["epoch"] == 1
    assert code(followed) == (409, "no_log")
    assert code(past) == (400, "bad_input")


def test_a_stopped_engine_is_not_healthy(engine: hg.Engine) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        healthy = await client.get("/health")
        engine.close()
        body = {"id": 1, "by": 2}
        return [
            healthy,
            await client.get("/health"),
            await client.post("/transactions/add", json=body),
            await client.post("/transactions/add", json=body, headers={"idempotency-key": "k"}),
            await client.post("/sql", json={"query": "select n from counts"}),
        ]

    healthy, *others = asked(engine, ask)
    assert healthy.json() == {"status": "ok", "epoch": 0}
    assert [code(answer) for answer in others] == [(503, "stopped")] * 4


def test_a_bug_is_told_to_the_log_and_not_to_the_client(
    engine: hg.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("the secret of the house")

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/sql", json={"query": "select 1"})

    monkeypatch.setattr(ServedEngine, "gather", broken)
    with caplog.at_level(logging.ERROR, "headgate.web"):
        answer = asked(engine, ask)
    assert code(answer) == (500, "internal")
    assert "secret" not in answer.text
    assert "the secret of the house" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text


def test_a_server_with_no_room_says_so_and_its_log_is_quiet(
    engine: hg.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await client.post("/transactions/add", json={"id": 1, "by": 2}),
            await client.post("/sql", json={"query": "select 1"}),
        ]

    caplog.set_level(logging.INFO, "headgate.web")
    for answer in asked(engine, ask, calls_waiting_max=0, queries_waiting_max=0):
        assert code(answer) == (503, "busy")
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-request-id"] in caplog.text
    told = [one for one in caplog.records if "busy" in one.getMessage()]
    assert [(one.levelno, one.exc_info) for one in told] == [(logging.INFO, None)] * 2


def test_one_key_at_the_same_time_is_one_call(engine: hg.Engine) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        headers = {"idempotency-key": "once"}
        body = {"id": 1, "by": 2}
        sent = [client.post("/transactions/add", json=body, headers=headers) for _ in range(20)]
        return list(await asyncio.gather(*sent))

    answers = asked(engine, ask)
    assert {answer.text for answer in answers} == {answers[0].text}
    assert engine.get("counts", 1) == {"id": 1, "n": 2}


@pytest.mark.parametrize("name", ["body_bytes_max", "query_seconds_max", "rows_max"])
def test_a_limit_is_above_nothing(name: str) -> None:
    with pytest.raises(hg.InputError, match=name):
        Limits(**{name: 0})


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_limit_is_a_number_above_0(value: float) -> None:
    with pytest.raises(hg.InputError, match=r"query_seconds_max is .*; it must be a number"):
        Limits(query_seconds_max=value)


def test_what_a_client_that_left_was_counted_for_ends_with_its_answer() -> None:
    """Not when the collector comes by: the generator is held here all the time."""
    counted = []

    async def pieces() -> Any:
        counted.append("begun")
        try:
            while True:
                yield b"more"
        finally:
            counted.append("ended")

    async def work() -> None:
        is_sent = asyncio.Event()

        async def receive() -> Any:
            await is_sent.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                is_sent.set()
                await asyncio.sleep(60)  # the client reads nothing

        response = ClosingResponse(pieces())
        await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
        assert counted == ["begun", "ended"], response.body_iterator

    asyncio.run(work())
