"""Plain batches come back as they were; bytes that are none are an error, never a crash."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.durability import format as layout
from headgate.durability import plain_batches, viewing
from headgate.durability.describing import BatchShape, Shapes
from headgate.durability.log_record import PayloadPart
from headgate.durability.plain_batches import Counted, PlainBatch, Sparse, Texts
from headgate.durability.viewing import IMPLIED_MAX, decoded
from tests.unit.durability.test_packing import BATCH

WORDS = pa.dictionary(pa.int8(), pa.string())
TYPES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.binary(),
    pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns"),
    pa.decimal128(18, 2), pa.decimal128(38, 4), WORDS, pa.dictionary(pa.int32(), pa.string()),
]  # fmt: skip
# How the values of a column are spread over its rows.
SPREADS = ("each", "same", "most", "few", "null", "nulls", "counted")


def shape_of(batch: pa.RecordBatch) -> BatchShape:
    found = Shapes().find("t", batch)
    assert found is not None
    return found


def encoded(batch: pa.RecordBatch) -> bytes:
    content = b"".join(PlainBatch.of(batch, shape_of(batch)).encode())
    assert len(content) % 8 == 0
    return content


def check(batch: pa.RecordBatch) -> None:
    found = decoded(pa.py_buffer(encoded(batch)))
    found.validate(full=True)
    assert found.schema.equals(batch.schema, check_metadata=True)
    assert found.equals(batch) or is_same_with_nan(found, batch)
    for one, other in zip(found.columns, batch.columns, strict=True):
        if isinstance(other, pa.DictionaryArray):
            assert one.dictionary.equals(other.dictionary)


def is_same_with_nan(found: pa.RecordBatch, batch: pa.RecordBatch) -> bool:
    return all(
        one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist())
        for one, other in zip(found.columns, batch.columns, strict=True)
    )


def values_of(kind: pa.DataType, seed: int, rows: int) -> Any:
    chance = np.random.default_rng(seed)
    if pa.types.is_dictionary(kind):
        words = ["committed", "é", "", "late"]
        places = pa.array(chance.integers(0, len(words), rows), kind.index_type)
        return pa.DictionaryArray.from_arrays(places, pa.array(words))
    if pa.types.is_decimal(kind):
        digits = 17 if kind.precision == 18 else 37
        found = [Decimal(int(chance.integers(-(10**9), 10**9)) * 10 ** (digits - 10))
                 .scaleb(-kind.scale) for _ in range(rows)]  # fmt: skip
        return pa.array(found, kind)
    if kind in (pa.string(), pa.binary()):
        texts = ["é" * int(size) for size in chance.integers(0, 4, rows)]
        return pa.array(texts).cast(kind)
    if kind == pa.bool_():
        return pa.array(chance.integers(0, 2, rows).astype(bool))
    raw = chance.bytes(rows * kind.bit_width // 8)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(raw)])


def spread(array: Any, way: str, seed: int) -> Any:
    """The same values, or some of them, so that the column is written in this way."""
    rows = len(array)
    if not rows:
        return array
    chance = np.random.default_rng(seed)
    if way == "counted":
        kind = array.type
        if kind != pa.int64() and not pa.types.is_timestamp(kind):
            return array
        return pa.array(np.arange(rows), pa.int64()).cast(kind)
    if way in ("same", "most"):
        places = np.zeros(rows, np.int64)
        if way == "most":
            places[chance.integers(0, rows, 1 + rows // 50)] = rows - 1
        return array.take(pa.array(places))
    missing = {"null": 1.0, "few": 0.98, "nulls": 0.5}.get(way)
    if missing is None:
        return array
    keep = chance.random(rows) >= missing
    return array.take(pa.array(np.arange(rows), mask=~keep))


@settings(max_examples=300, deadline=None)
@given(
    columns=st.lists(
        st.tuples(st.sampled_from(TYPES), st.sampled_from(SPREADS), st.integers(0, 99)), max_size=6
    ),
    rows=st.sampled_from([0, 1, 2, 7, 8, 9, 64, 100, 1000]),
    first=st.integers(0, 9),
    cut=st.integers(0, 9),
)
def test_every_batch_comes_back(
    columns: list[tuple[pa.DataType, str, int]], rows: int, first: int, cut: int
) -> None:
    arrays = [spread(values_of(kind, seed, rows), way, seed) for kind, way, seed in columns]
    names = [f"c{number}" for number in range(len(arrays))]
    batch = pa.RecordBatch.from_arrays([*arrays, pa.array(range(rows), pa.int16())],
                                       names=[*names, "last"])  # fmt: skip
    check(batch)
    check(batch.slice(min(first, rows), max(0, rows - first - cut)))


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("way", SPREADS)
def test_a_long_column_of_every_type_comes_back(kind: pa.DataType, way: str) -> None:
    rows = 3000 if pa.types.is_decimal(kind) else 100_000
    check(pa.record_batch({"c": spread(values_of(kind, 5, rows), way, 5)}))


@pytest.mark.parametrize(
    ("values", "most"),
    [
        (pa.array(np.arange(10_000)), 0),
        (pa.array(np.full(10_000, -1.5)), 8),
        (pa.array([True] * 10_000), 8),
        (pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int8)), ["a"]), 8),
        (pa.nulls(10_000, pa.float64()), 0),
        (pa.array([None] * 9_990 + list(range(10)), pa.int32()), 10 * 8 + 24),
        (pa.array([1, 2]), 16),
    ],
)
def test_what_is_implied_takes_no_bytes(values: Any, most: int) -> None:
    batch = pa.record_batch({"c": values})
    empty = len(encoded(batch.slice(0, 0)))
    assert len(encoded(batch)) - empty <= most


@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0, -0.0], [0.0] * 9 + [-0.0]])
def test_a_negative_zero_is_not_zero(values: list[float]) -> None:
    found = decoded(pa.py_buffer(encoded(pa.record_batch({"c": values}))))
    assert [str(one) for one in found.column(0).to_pylist()] == [str(one) for one in values]


def test_fields_that_cannot_be_null_and_metadata_stay() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)], {"kind": "é"})
    check(pa.record_batch([pa.array([5])], schema=schema))


def test_columns_can_be_handed_over_without_arrow() -> None:
    kinds = [("__slot", pa.int64()), ("flag", pa.bool_()), ("n", pa.decimal128(12, 2)),
             ("s", pa.string()), ("x", pa.float64()), ("t", pa.timestamp("us", "UTC"))]  # fmt: skip
    shape = BatchShape.of(pa.schema(kinds))
    assert shape is not None
    columns = [
        np.array([7, 3], np.uint32), np.array([1, 0], np.uint8), np.array([-125, 100]),
        Texts(np.array([0, 1, 3], np.int32), b"abc"), np.array([0.5]), np.array([1, 2]),
    ]  # fmt: skip
    nulls = [None, None, None, None, None, np.array([True, False])]
    expected = pa.record_batch({
        "__slot": [7, 3], "flag": [True, False],
        "n": pa.array([Decimal("-1.25"), Decimal("1.00")], pa.decimal128(12, 2)),
        "s": ["a", "bc"], "x": [0.5, 0.5], "t": pa.array([None, 2], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    found = PlainBatch(shape, 2, columns, nulls)
    assert decoded(pa.py_buffer(b"".join(found.encode()))).equals(expected)
    assert found.arrow().equals(expected)


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("most", [IMPLIED_MAX, 5])
def test_what_is_known_of_a_column_need_not_be_found_out(
    most: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine knows of its results; also where there are too many to imply them."""
    monkeypatch.setattr(plain_batches, "IMPLIED_MAX", most)
    words = pa.array(["committed", "aborted"])
    kinds = [("position", pa.int64()), ("outcome", WORDS), ("reason", WORDS), ("x", pa.float64())]
    shape = BatchShape.of(pa.schema(kinds), [words, words])
    assert shape is not None
    places = np.array([1, 4])
    columns = [
        Counted(first), Sparse(np.zeros(1, np.int8), places, np.ones(2, np.int8)),
        Sparse(None, places, np.array([0, 1], np.int8)), np.array([0.5]),
    ]  # fmt: skip
    expected = pa.record_batch({
        "position": range(first, first + 6),
        "outcome": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 0, 1, 0], pa.int8()), words),
        "reason": pa.DictionaryArray.from_arrays(
            pa.array([None, 0, None, None, 1, None], pa.int8()), words),
        "x": [0.5] * 6,
    })  # fmt: skip
    assert PlainBatch(shape, 6, columns).arrow().equals(expected)


@pytest.mark.parametrize("first", [0, 5, 2**61])
def test_numbers_that_count_up_take_a_few_bytes_wherever_they_begin(first: int) -> None:
    batch = pa.record_batch({"n": np.arange(1000) + first, "m": np.arange(1000) + 2 * first})
    shape = BatchShape.of(batch.schema)
    assert shape is not None
    found = b"".join(PlainBatch.of(batch, shape).encode())
    assert len(found) < 100
    assert decoded(pa.py_buffer(found)).equals(batch)


@pytest.mark.parametrize("other", [4, 6, 999])
def test_numbers_that_nearly_count_up_are_kept(other: int) -> None:
    values = np.arange(1000) + 5
    values[500] = other
    batch = pa.record_batch({"n": values})
    shape = BatchShape.of(batch.schema)
    assert shape is not None and PlainBatch.of(batch, shape).arrow().equals(batch)


@pytest.mark.parametrize(
    "column", [pa.array([[1]]), pa.array([None], pa.null()), pa.array(["x"], pa.large_string()),
               pa.array([1]).dictionary_encode()],
)  # fmt: skip
def test_what_has_no_shape_has_none(column: Any) -> None:
    assert Shapes().find("t", pa.record_batch({"c": column})) is None


def test_shapes_see_another_schema_or_dictionary_under_the_same_name() -> None:
    shapes = Shapes()
    words = [pa.array([word]).cast(WORDS) for word in ("a", "b")]
    for column in (*words, pa.array([1]), pa.array(["x"]), *words):
        batch = pa.record_batch({"c": column})
        shape = shapes.find("t", batch)
        assert shape is not None
        content = b"".join(PlainBatch.of(batch, shape).encode())
        assert decoded(pa.py_buffer(content)).equals(batch)


def test_values_beyond_what_may_be_implied_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_batches, "IMPLIED_MAX", 2500)
    batch = pa.record_batch({name: np.arange(1000) for name in "abcd"})
    content = encoded(batch)
    assert len(content) > 2 * 8000 and decoded(pa.py_buffer(content)).equals(batch)
    monkeypatch.setattr(viewing, "IMPLIED_MAX", 1999)
    with pytest.raises(ValueError, match="1000 rows of 2 columns that are not there"):
        decoded(pa.py_buffer(content))


def test_a_forged_count_of_rows_is_refused_before_memory_is_asked_for() -> None:
    content = bytearray(encoded(pa.record_batch({"c": pa.nulls(9, pa.float64())})))
    content[:4] = (2**32 - 1).to_bytes(4, "little")
    assert IMPLIED_MAX < 2**32 - 1
    with pytest.raises(ValueError, match="that are not there"):
        decoded(pa.py_buffer(bytes(content)))


def long_one() -> pa.RecordBatch:
    arrays = [spread(values_of(kind, 3, 64), way, 3) for kind in TYPES for way in SPREADS]
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{n}" for n in range(len(arrays))])


@pytest.mark.parametrize("batch", [BATCH, long_one()], ids=["short", "long"])
def test_bytes_changed_at_random_are_an_error_or_a_sound_batch(batch: pa.RecordBatch) -> None:
    content = encoded(batch)
    begin = len(content) - len(b"".join(PlainBatch.of(batch, shape_of(batch)).encode()[1:]))
    for seed in range(3000):
        chance = random.Random(seed)
        forged = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 8))):
            # Half of them where it is said how the columns are written.
            place = chance.choice((len(forged), begin + 64))
            forged[chance.randrange(min(place, len(forged)))] = chance.randrange(256)
        forged = forged[: chance.choice((len(forged), chance.randrange(len(forged))))]
        try:
            found = PayloadPart(2, "t", pa.py_buffer(bytes(forged)), layout.FORM_PLAIN).batch()
        except (pa.ArrowException, ValueError, LookupError, OSError, ArithmeticError):
            continue
        except Exception as error:
            assert type(error).__name__ == "error", error  # of the module struct
            continue
        found.validate()
