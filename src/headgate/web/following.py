"""Following: results as server-sent events, each once and in order, to clients of any speed.

Nothing is queued for a client: each reads the log at its own pace, a bounded piece at a time, so a
slow one costs neither memory nor the time of others. The place of an event, epoch and position, is
its id: a client that comes back with the last one it saw goes on behind it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import StoreReader
from headgate.errors import HeadgateError, InputError
from headgate.query.store_tables import ALL_STREAMS, Origin, name_of, of_stream
from headgate.web.bodies import encode, plain
from headgate.web.limits import Refused, refusal_of
from headgate.web.target import Served

POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 15.0
PIECE_ROWS = 4096
PIECE_EPOCHS = 512
_END = 1 << 62
_PLACE = re.compile(r"([0-9]{1,18})(?:/([0-9]{1,18}))?")


@dataclass(frozen=True, order=True)
class ResultPlace:
    """The place of a result: its epoch, and its position in the serial order of that."""

    epoch: int
    position: int = _END

    def __str__(self) -> str:
        return str(self.epoch) if self.position == _END else f"{self.epoch}/{self.position}"


def read_place(text: str | None, reader: StoreReader) -> ResultPlace:
    """The place to begin behind; Refused when the results behind it are gone."""
    if text is None or text == "latest":
        return ResultPlace(reader.last_epoch())
    floor = reader.first_epoch()
    if text == "earliest":
        return ResultPlace(floor)
    found = _PLACE.fullmatch(text)
    if found is None:
        raise InputError("a place is latest, earliest, EPOCH or EPOCH/POSITION")
    place = ResultPlace(int(found[1]), _END if found[2] is None else int(found[2]))
    needed = place.epoch if place.position == _END else place.epoch - 1
    if needed < floor:
        raise Refused(
            410, "trimmed", f"results before epoch {floor + 1} were removed; begin at earliest"
        )
    return place


@dataclass(frozen=True)
class Piece:
    """Some results as events, and the place of the last that was looked at."""

    events: bytes
    place: ResultPlace


class Following:
    """All clients that follow the results of one store."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._is_ending = False

    def end(self) -> None:
        """Let no one wait for more: the server ends."""
        self._is_ending = True

    async def events(
        self, served: Served, origin: Origin | None, place: ResultPlace
    ) -> AsyncIterator[bytes]:
        """Events for ever, with a comment now and then, for proxies and to notice who is gone.

        Whom a migration gives another name is followed on under that.
        They end when the store is not there for now: who follows asks again, and is told then.
        """
        loop, reader = asyncio.get_running_loop(), served.reader()
        yield b"retry: 1000\n\n"
        quiet_since = loop.time()
        while not self._is_ending:
            try:
                last = reader.last_epoch()
                if last <= place.epoch and place.position == _END:
                    if loop.time() - quiet_since >= HEARTBEAT_SECONDS:
                        quiet_since = loop.time()
                        yield b": still here\n\n"
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                piece = await loop.run_in_executor(
                    self._threads, read_piece, reader, origin, place, last
                )
            except HeadgateError as error:
                if _is_there(served):
                    yield _failure(error)
                return
            place = piece.place
            if piece.events:
                quiet_since = loop.time()
                yield piece.events


def _is_there(served: Served) -> bool:
    try:
        served.check()
    except Refused:
        return False
    except HeadgateError:  # stopped, but there
        return True
    return True


def _failure(error: HeadgateError) -> bytes:
    told = refusal_of(error)
    body = encode({"error": {"code": told.code, "message": told.message}})
    return b"event: error\ndata: " + body + b"\n\n"


def read_piece(reader: StoreReader, origin: Origin | None, place: ResultPlace, last: int) -> Piece:
    """The next results behind a place, not too many at once."""
    first = place.epoch if place.position != _END else place.epoch + 1
    last = min(last, first + PIECE_EPOCHS - 1)
    events: list[bytes] = []
    streams = reader.declared().get("streams", {})
    stream = ALL_STREAMS if origin is None else name_of(streams, origin)
    for epoch, batch in reader.results(first, last):
        after = place.position if epoch == place.epoch else -1
        found = of_stream(batch, stream, streams, epoch)
        chosen = found.filter(pc.greater(found.column("position"), after))
        room = PIECE_ROWS - len(events)
        events += _encoded(epoch, chosen.slice(0, room))
        if chosen.num_rows >= room:
            end = _END if chosen.num_rows == room else _position(chosen, room - 1)
            return Piece(b"".join(events), ResultPlace(epoch, end))
    return Piece(b"".join(events), ResultPlace(last))


def _position(batch: pa.RecordBatch, row: int) -> int:
    return int(batch.column("position")[row].as_py())


def _encoded(epoch: int, batch: pa.RecordBatch) -> list[bytes]:
    return [
        b"id: %d/%d\nevent: result\ndata: %s\n\n" % (epoch, row["position"], encode(row))
        for row in _rows(epoch, batch)
    ]


def _rows(epoch: int, batch: pa.RecordBatch) -> list[Mapping[str, Any]]:
    return [{"epoch": epoch, **plain(row)} for row in batch.to_pylist()]
