"""Following: pieces of the log behind a place, each result once, however the pieces are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.errors import InputError
from headgate.query.store_tables import name_of, origin_of
from headgate.web import following
from headgate.web.admission import Tokens
from headgate.web.application import Application
from headgate.web.following import ResultPlace, read_piece, read_place
from headgate.web.limits import Limits, Refused
from headgate.web.target import ServedStore

accounts = hg.Table("accounts", "id bigint, count bigint", key="id")


@hg.transaction(event="id bigint", compiled=False)
def add(event: Any, account: Any = accounts.at("id", create=True)) -> Any:
    account.count += 1


@hg.transaction(event="id bigint", compiled=False)
def drop(event: Any, account: Any = accounts.at("id")) -> Any:
    hg.delete(account)


def opened(path: Path, **options: Any) -> hg.Engine:
    return hg.open(path, tables=[accounts], transactions=[add, drop], **options)


@pytest.fixture
def reader(tmp_path: Path) -> StoreReader:
    """Epochs of 7, 1 and 12 results of one transaction, and one of another in between."""
    with opened(tmp_path / "bank") as engine:
        engine.run(add, [{"id": number} for number in range(7)])
        engine.call(drop, id=3)
        engine.call(add, id=1)
        engine.run(add, [{"id": number} for number in range(12)])
    return StoreReader.open(tmp_path / "bank")


def places(events: bytes) -> list[tuple[int, int]]:
    """The ids of events, which must be those in their data."""
    found = []
    for event in events.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        row = orjson.loads(fields["data"])
        assert fields["id"] == f"{row['epoch']}/{row['position']}"
        found.append((row["epoch"], row["position"]))
    return found


def all_places(
    reader: StoreReader, transaction: str | None, place: ResultPlace
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    last = reader.last_epoch()
    while place < ResultPlace(last):
        origin = None if transaction is None else (transaction, 0)
        piece = read_piece(reader, origin, place, last)
        assert place < piece.place
        found += places(piece.events)
        place = piece.place
    return found


EVERY = [*((1, at) for at in range(7)), (2, 0), (3, 0), *((4, at) for at in range(12))]


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("epochs", [1, 3, 100])
def test_pieces_of_any_size_give_each_result_once(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch, rows: int, epochs: int
) -> None:
    monkeypatch.setattr(following, "PIECE_ROWS", rows)
    monkeypatch.setattr(following, "PIECE_EPOCHS", epochs)
    assert all_places(reader, None, ResultPlace(0)) == EVERY
    for place in EVERY:
        behind = [other for other in EVERY if other > place]
        assert all_places(reader, None, ResultPlace(*place)) == behind
    assert all_places(reader, "drop", ResultPlace(0)) == [(2, 0)]
    assert all_places(reader, "add", ResultPlace(1, 5)) == [
        other for other in EVERY if other > (1, 5) and other != (2, 0)
    ]


def test_a_place_is_read_from_a_text(reader: StoreReader) -> None:
    assert read_place(None, reader) == read_place("latest", reader) == ResultPlace(4)
    assert read_place("earliest", reader) == ResultPlace(0)
    assert read_place("2", reader) == ResultPlace(2)
    assert read_place("1/6", reader) == ResultPlace(1, 6)
    assert str(read_place("1/6", reader)) == "1/6" and str(ResultPlace(2)) == "2"
    for wrong in ("", "x", "-1", "1/", "/1", "1/2/3", "9" * 30):
        with pytest.raises(InputError):
            read_place(wrong, reader)


def test_what_was_removed_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "bank", retain=hg.Retention(snapshots=1)) as engine:
        for number in range(6):
            engine.call(add, id=number)
            if number % 2:
                engine._journal.store.snapshot()
        engine.call(add, id=1)
        reader = StoreReader.open(tmp_path / "bank")
        assert reader.first_epoch() > 1
        with pytest.raises(Refused) as refused:
            read_place("1", reader)
        assert refused.value.status == 410
        assert all_places(reader, None, read_place("earliest", reader))


def named(name: str) -> hg.Transaction:
    def count(event: Any, account: Any = accounts.at("id", create=True)) -> Any:
        account.count += 1

    count.__name__ = name
    return hg.transaction(event="id bigint", compiled=False)(count)


RENAMED = hg.Migration("names").rename_transaction("buy", "purchase")


def served(path: Path, ask: Callable[[Application, httpx.AsyncClient], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        application = Application(ServedStore(path), Tokens(None), Limits(), "0")
        transport = httpx.ASGITransport(application.door(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = await asyncio.wait_for(ask(application, client), 30)
        application.close()
        return found

    return asyncio.run(work())


async def followed(client: httpx.AsyncClient, path: str, ending: Application) -> list[Any]:
    """What is told up to now: the server ends, and with it the answer."""
    asking = asyncio.create_task(client.get(path))
    await asyncio.sleep(0.5)
    ending.end()
    rows = [line[6:] for line in (await asking).text.splitlines() if line.startswith("data: ")]
    return [(row["epoch"], row["transaction"]) for row in map(orjson.loads, rows)]


def test_a_transaction_is_followed_on_under_its_new_name(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with hg.open(path, tables=[accounts], transactions=[named("buy")]) as engine:
        engine.call("buy", id=1)

    async def ask(application: Application, client: httpx.AsyncClient) -> list[Any]:
        asking = asyncio.create_task(
            followed(client, "/transactions/buy/results?after=0", application)
        )
        await asyncio.sleep(0.2)  # it follows, and has what there is
        made = [named("purchase"), named("buy")]
        with hg.open(path, tables=[accounts], transactions=made, migrations=[RENAMED]) as engine:
            engine.call("purchase", id=1)
            engine.call("buy", id=1)  # another one, which only has the name
        return await asking

    assert served(path, ask) == [(1, "buy"), (3, "purchase")]


@pytest.mark.parametrize(
    ("name", "after", "expected"),
    [
        ("buy", "0", [(1, "buy"), (3, "purchase")]),
        ("buy", "1/0", [(3, "purchase")]),  # as a client asks again whose connection ended
        ("buy", "2", [(3, "purchase")]),
        ("purchase", "0", [(1, "buy"), (3, "purchase")]),
        ("sell", "0", None),
    ],
)
def test_who_asks_by_the_name_of_before_gets_the_same_results(
    tmp_path: Path, name: str, after: str, expected: Any
) -> None:
    path = tmp_path / "bank"
    with hg.open(path, tables=[accounts], transactions=[named("buy")]) as engine:
        engine.call("buy", id=1)
    made = [named("purchase")]
    with hg.open(path, tables=[accounts], transactions=made, migrations=[RENAMED]) as engine:
        engine.call("purchase", id=1)
    asked = f"/transactions/{name}/results?after={after}"
    if expected is None:
        assert served(path, lambda _, client: client.get(asked)).status_code == 404
    else:
        found = served(path, lambda ending, client: followed(client, asked, ending))
        assert found == expected


def test_a_name_that_several_streams_had_means_the_one_of_that_epoch() -> None:
    streams = {
        "a": {"names": [["buy", 0, 4], ["a", 5, None]]},
        "b": {"names": [["buy", 5, 8], ["b", 9, None]]},
    }
    assert origin_of(streams, "buy", 3) == ("buy", 0)
    assert origin_of(streams, "buy", 7) == origin_of(streams, "buy", 20) == ("buy", 5)
    assert [name_of(streams, ("buy", 0)), name_of(streams, ("buy", 5))] == ["a", "b"]
    assert name_of({**streams, "buy": {}}, ("buy", 9)) == "buy"
    assert origin_of(streams, "sell", 3) is None
