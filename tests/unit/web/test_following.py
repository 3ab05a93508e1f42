"""Following: pieces of the log behind a place, each result once, however the pieces are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.errors import InputError
from headgate.web import following
from headgate.web.following import Place, read_piece, read_place
from headgate.web.refusals import Refusal

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


def all_places(reader: StoreReader, transaction: str | None, place: Place) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    last = reader.last_epoch()
    while place < Place(last):
        piece = read_piece(reader, transaction, place, last)
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
    assert all_places(reader, None, Place(0)) == EVERY
    for place in EVERY:
        behind = [other for other in EVERY if other > place]
        assert all_places(reader, None, Place(*place)) == behind
    assert all_places(reader, "drop", Place(0)) == [(2, 0)]
    assert all_places(reader, "add", Place(1, 5)) == [
        other for other in EVERY if other > (1, 5) and other != (2, 0)
    ]


def test_a_place_is_read_from_a_text(reader: StoreReader) -> None:
    assert read_place(None, reader) == read_place("latest", reader) == Place(4)
    assert read_place("earliest", reader) == Place(0)
    assert read_place("2", reader) == Place(2)
    assert read_place("1/6", reader) == Place(1, 6)
    assert str(read_place("1/6", reader)) == "1/6" and str(Place(2)) == "2"
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
        with pytest.raises(Refusal) as refused:
            read_place("1", reader)
        assert refused.value.status == 410
        assert all_places(reader, None, read_place("earliest", reader))
