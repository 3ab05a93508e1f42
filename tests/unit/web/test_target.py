"""A server of a store whose folder is moved away says so, and serves it again when it is back."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import headgate as hg
from headgate.web.admission import Tokens
from headgate.web.application import Application
from headgate.web.following import Following, ResultPlace
from headgate.web.limits import Limits
from headgate.web.target import ServedStore

counts = hg.Table("counts", "id bigint, n bigint DEFAULT 0", key="id")


@hg.transaction(event="id bigint, by bigint", compiled=False)
def add(event: Any, row: Any = counts.at("id", create=True)) -> Any:
    row.n += event.by


PROGRAM: dict[str, Any] = {"tables": [counts], "transactions": [add]}
QUERY = {"query": "select n from counts"}
ASKED: dict[str, Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]] = {
    "sql": lambda client: client.post("/sql", json=QUERY),
    "past": lambda client: client.post("/sql", json={**QUERY, "epoch": 1}),
    "row": lambda client: client.get("/tables/counts/row?id=1"),
    "tables": lambda client: client.get("/tables"),
    "health": lambda client: client.get("/health"),
    "metrics": lambda client: client.get("/metrics"),
    "document": lambda client: client.get("/openapi.json"),
    "follow": lambda client: client.get("/results?after=latest"),
    "follow one": lambda client: client.get("/transactions/add/results"),
    "call": lambda client: client.post("/transactions/add", json={"id": 1, "by": 1}),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with hg.open(tmp_path / "kept" / "bank", **PROGRAM) as engine:
        engine.call(add, id=1, by=2)
    return tmp_path / "kept" / "bank"


def asked(store: Path, ask: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        application = Application(ServedStore(store), Tokens(None), Limits(), "0")
        transport = httpx.ASGITransport(application.door(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = await ask(client)
        application.close()
        return found

    return asyncio.run(work())


@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize("how", ["moved", "emptied", "a file"])
def test_a_store_that_was_moved_away_is_not_there_for_now(
    store: Path, question: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        away(store, how)
        missing = await ASKED[question](client)
        back(store)
        again = await client.post("/sql", json=QUERY)
        return missing, again

    caplog.set_level(logging.INFO, "headgate")
    missing, again = asked(store, ask)
    told = missing.json()["error"]
    assert (missing.status_code, told["code"]) == (503, "no_store"), told
    assert "no store" in told["message"] and "try again" in told["message"]
    assert str(store) not in missing.text and "kept" not in missing.text
    assert again.status_code == 200 and again.json()["rows"] == [[2]]
    assert not [one for one in caplog.records if one.exc_info], "a missing store is no bug of ours"
    assert f"no store at {store}" in caplog.text, "who runs the server is told where it is not"
    assert "there again" in caplog.text


@pytest.mark.parametrize("step", ["renamed", "dropped"])
def test_the_past_has_the_tables_of_then(store: Path, step: str) -> None:
    """A table that was renamed or dropped is there, with its rows, at the epochs before."""
    migration = hg.Migration("later")
    if step == "renamed":
        migration = migration.rename_table("counts", "totals")
    else:
        migration = migration.drop_table("counts")

    async def ask(client: httpx.AsyncClient) -> list[Any]:
        past = {**QUERY, "epoch": 1}
        before = await client.post("/sql", json=past)
        hg.migrate(store, [migration])
        after = await client.post("/sql", json=past)
        return [before.json()["rows"], after.json()["rows"]]

    assert asked(store, ask) == [[[2]], [[2]]]


def test_who_follows_a_store_that_goes_away_is_let_go(store: Path) -> None:
    served = ServedStore(store)

    async def follow() -> list[bytes]:
        with ThreadPoolExecutor(1) as threads:
            found = []
            async for event in Following(threads).events(served, None, ResultPlace(0)):
                found.append(event)
                if b"id: 1/0" in event:
                    away(store, "moved")
            return found

    found = asyncio.run(asyncio.wait_for(follow(), 30))
    assert [b"error" in event for event in found] == [False, False]
    back(store)
    assert served.epoch() == 1


def away(store: Path, how: str) -> None:
    elsewhere = store.parent / "elsewhere"
    store.rename(elsewhere)
    if how == "emptied":
        store.mkdir()
    elif how == "a file":
        store.write_text("")


def back(store: Path) -> None:
    if store.is_dir():
        shutil.rmtree(store)
    elif store.exists():
        store.unlink()
    (store.parent / "elsewhere").rename(store)
