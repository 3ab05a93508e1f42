"""Short batches of format 3 are read; bytes that are none are an error, never a crash."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from headgate.durability import Commit, StoreReader
from headgate.durability import format as layout
from headgate.durability.describing import unpack
from headgate.durability.log_record import PayloadPart
from tests.unit.durability.conftest import Place
from tests.unit.durability.packed import packed

TEXTS = pa.dictionary(pa.int8(), pa.string())
COLUMNS: dict[str, Any] = {
    "b": pa.array([True, None, False]),
    "i": pa.array([1, None, -(2**63)], pa.int64()),
    "h": pa.array([1, 2, -3], pa.int16()),
    "u": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "f": pa.array([0.5, None, float("inf")]),
    "s": pa.array(["é", None, ""]),
    "x": pa.array([b"\xff", b"", None]),
    "ts": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    "ns": pa.array([1, None, 3], pa.timestamp("ns")),
    "d": pa.array([1, None, 3], pa.date32()),
    "n": pa.array(["1.25", None, "-7.00"]).cast(pa.decimal128(18, 2)),
    "k": pa.array(["a", None, "b"]).cast(TEXTS),
    "none": pa.DictionaryArray.from_arrays(
        pa.array([None, None, None], pa.int32()), pa.array([], pa.string())
    ),
}
BATCH = pa.record_batch(COLUMNS).replace_schema_metadata({"kind": "é", "empty": ""})


@pytest.mark.parametrize(("first", "rows"), [(0, 3), (1, 2), (2, 1), (0, 1), (1, 0)])
def test_every_type_comes_back_with_its_nulls(first: int, rows: int) -> None:
    batch = BATCH.slice(first, rows)
    found = unpack(packed(batch))
    found.validate(full=True)
    assert found.equals(batch) and found.schema.equals(BATCH.schema, check_metadata=True)
    assert found.column("k").dictionary.equals(BATCH.column("k").dictionary)


def test_fields_that_cannot_be_null_stay_so() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    batch = pa.record_batch([pa.array([5])], schema=schema)
    assert unpack(packed(batch)).schema.equals(schema)


def test_bytes_changed_at_random_are_an_error_or_a_sound_batch() -> None:
    content = packed(BATCH)
    for seed in range(3000):
        chance = random.Random(seed)
        forged = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 8))):
            forged[chance.randrange(len(forged))] = chance.randrange(256)
        forged = forged[: chance.choice((len(forged), chance.randrange(len(forged))))]
        try:
            found = PayloadPart(2, "t", pa.py_buffer(bytes(forged)), layout.FORM_SHORT).batch()
        except (pa.ArrowException, ValueError, LookupError, OSError, ArithmeticError):
            continue
        except Exception as error:
            assert type(error).__name__ == "error", error  # of the module struct
            continue
        found.validate()


def test_a_short_epoch_takes_few_bytes(place: Place) -> None:
    changes = pa.record_batch({
        "__slot": pa.array([3]), "__alive": pa.array([True]), "customer": pa.array([17]),
        "address": pa.array(["12 High Street"]), "last_seen": pa.array([1], pa.timestamp("us")),
    })  # fmt: skip
    outcomes = pa.array(["committed", "aborted", "rejected", "late"])
    results = pa.record_batch({
        "position": pa.array([0]), "transaction": pa.array(["move"]).cast(TEXTS),
        "outcome": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), outcomes),
        "reason": COLUMNS["none"].slice(0, 1),
    })  # fmt: skip
    store = place.store()
    for epoch in range(1, 11):
        source = ("8f14e45f-ceea-467f-a34e-0d8f1c7d3a55", epoch)
        store.commit(Commit(epoch, 0, source, {"customers": changes}, results))
    store.close()
    reader = StoreReader.open(place.path, place.disk)
    for info in reader.commits():
        assert info.bytes - changes.nbytes - results.nbytes <= 400
    assert all(batch.equals(results) for _, batch in reader.results(1, 10))
