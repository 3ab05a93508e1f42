"""Stores for the tests of the data source, written with the Store alone."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.durability import Commit, Store
from headgate.durability.log import SEGMENT_BYTES
from headgate.state.schema import Schema

THINGS = (
    "id bigint, flag boolean, small int, ratio float, weight double, name string, "
    "seen timestamp, day date, price decimal(10,2)"
)
RESULTS = "epoch bigint, position bigint, transaction string, outcome string, reason string"
MANIFEST = {
    "format": 1,
    "tables": {
        "things": {"columns": THINGS, "key": ["id"], "check": None},
        "empty": {"columns": "id bigint", "key": ["id"], "check": None},
    },
    "streams": {
        "transfer": {"results": f"{RESULTS}, ts timestamp, balance double"},
        "deposit": {"results": f"{RESULTS}, ts timestamp, note string"},
    },
}
NOON = datetime.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC)
NAN = float("nan")


def thing(number: int, **other: Any) -> dict[str, Any]:
    """A row of the table things."""
    row = {
        "id": number,
        "flag": number % 2 == 0,
        "small": number % 7,
        "ratio": number / 4,
        "weight": number / 3,
        "name": f"thing {number}",
        "seen": NOON + datetime.timedelta(hours=number),
        "day": datetime.date(2024, 1, 1) + datetime.timedelta(days=number),
        "price": decimal.Decimal(number) / 4,
    }
    return {**row, **other}


def changes(rows: Mapping[int, dict[str, Any] | None]) -> pa.RecordBatch:
    """Changed rows by slot; None removes the row of the slot."""
    schema = Schema.parse(THINGS).arrow
    values = [row if row is not None else thing(0) for row in rows.values()]
    alive = pa.array([row is not None for row in rows.values()], pa.bool_())
    columns = [pa.array([row[field.name] for row in values], field.type) for field in schema]
    slots = pa.array(list(rows), pa.int64())
    names = ["__slot", "__alive", *schema.names]
    return pa.RecordBatch.from_arrays([slots, alive, *columns], names=names)


def results(rows: Sequence[tuple[str, str, float | None, str | None]]) -> pa.RecordBatch:
    """Results of (transaction, outcome, balance, note), in the form in which the log holds them."""
    text = pa.dictionary(pa.int8(), pa.string())
    moments = [NOON + datetime.timedelta(seconds=place) for place in range(len(rows))]
    return pa.RecordBatch.from_pydict(
        {
            "position": pa.array(range(len(rows)), pa.int64()),
            "transaction": pa.array([row[0] for row in rows]).cast(text),
            "outcome": pa.array([row[1] for row in rows]).cast(text),
            "reason": pa.array([None if row[1] == "committed" else "no" for row in rows], text),
            "ts": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "balance": pa.array([row[2] for row in rows], pa.float64()),
            "note": pa.array([row[3] for row in rows], pa.string()),
        }
    )


class Writer:
    """A store open for writing that counts its epochs itself."""

    def __init__(self, path: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.store = Store.open(path, segment_bytes=segment_bytes)
        self.epoch = self.store.recover().epoch
        if not self.store.manifest:
            self.store.write_manifest(MANIFEST)

    def commit(
        self,
        rows: Mapping[int, dict[str, Any] | None] | None = None,
        outcomes: Sequence[tuple[str, str, float | None, str | None]] = (),
    ) -> None:
        self.epoch += 1
        batch = results(outcomes) if outcomes else None
        changed = {"things": changes(rows)} if rows else {}
        self.store.commit(Commit(self.epoch, 0, changes=changed, results=batch))

    def close(self) -> None:
        self.store.close()
