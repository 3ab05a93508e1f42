"""Arriving: columns of every Arrow, pandas and Python type, and what each value should become.

A `Given` says what a value is by itself: its family, and its exact value as a fraction, a float
that is none, a text or bytes. `judged` is the whole rule; it shares nothing with the engine.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

Number = Fraction | float

# For each declared type the families of values that it takes.
TAKES = {
    "boolean": {"boolean"},
    "int": {"integer", "float", "decimal"},
    "bigint": {"integer", "float", "decimal"},
    "float": {"integer", "float"},
    "double": {"integer", "float"},
    "decimal(9,2)": {"integer", "decimal"},
    "decimal(18,0)": {"integer", "decimal"},
    "string": {"text"},
    "timestamp": {"moment"},
    "date": {"day"},
}
_BITS = {"int": 32, "bigint": 64}
# The first and the last time that Python can show.
_ENDS = {
    "timestamp": (datetime.datetime.min, datetime.datetime.max, datetime.timedelta(microseconds=1)),
    "date": (datetime.date.min, datetime.date.max, datetime.timedelta(days=1)),
}
_DIGITS = {"decimal(9,2)": (9, 2), "decimal(18,0)": (18, 0)}


@dataclass(frozen=True)
class Given:
    """A value by itself; `made` is it in the form in which a column is made of it."""

    family: str
    value: Any  # None; a bool; a Fraction or a float that is none; a str; bytes
    made: Any


# --- the rule -------------------------------------------------------------------------------------


def judged(given: Given, declared: str) -> tuple[str, Any]:
    """ "" and what is stored, or the word of the rejection and None."""
    value = given.value
    if value is None:
        return "null", None
    if declared in ("boolean", "string"):
        return ("not UTF-8", None) if isinstance(value, bytes) else ("", value)
    if declared in ("float", "double"):
        return _as_float(value, declared)
    if isinstance(value, float) and not math.isfinite(value):
        return ("null", None) if math.isnan(value) else ("out of range", None)
    value = Fraction(value)  # but for the zeros it is one
    if declared in _DIGITS:
        return _as_decimal(value, *_DIGITS[declared])
    least, greatest = _bounds(declared)
    # A part of a microsecond or a day belongs to the one it is in, a part of a number to none.
    whole = int(value) if declared in _BITS else math.floor(value)
    if not least <= whole <= greatest:
        return "out of range", None
    return ("", int(value)) if value == int(value) else ("not exact", None)


def _bounds(declared: str) -> tuple[int, int]:
    if declared in _BITS:
        return -(2 ** (_BITS[declared] - 1)), 2 ** (_BITS[declared] - 1) - 1
    first, last, step = _ENDS[declared]
    start = type(first)(1970, 1, 1)
    return (first - start) // step, (last - start) // step


def _as_float(value: Number, declared: str) -> tuple[str, Any]:
    try:
        found = float(value)
    except OverflowError:
        return "out of range", None
    if declared == "float":
        try:
            kept = struct.unpack("<f", struct.pack("<f", found))[0]
        except OverflowError:
            return "out of range", None
    else:
        kept = found
    is_exact = not math.isfinite(found) or Fraction(found) == value
    return ("", kept) if is_exact else ("not exact", None)


def _as_decimal(value: Fraction, precision: int, scale: int) -> tuple[str, Any]:
    if abs(value) >= 10 ** (precision - scale):
        return "out of range", None
    scaled = value * 10**scale
    if scaled.denominator != 1:
        return "not exact", None
    with decimal.localcontext(prec=60):
        return "", decimal.Decimal(scaled.numerator).scaleb(-scale)


# --- values ---------------------------------------------------------------------------------------

NOTHING = Given("", None, None)
_WORDS = ("", "a", "é", "0", "x" * 40, "nul\0", "🜚")
_EDGES = (0, 1, -1, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**53, 2**53 + 1)
_WIDE = (*_EDGES, 2**63 - 1, -(2**63), 10**7 - 1, 10**7, 10**18 - 1, 10**18)
_FLOATS = (0.0, -0.0, 1.0, 1.5, -2.5, 0.1, 2.0**31, -(2.0**31) - 0.5, 2.0**31 - 0.5, 2.0**53)
_MORE_FLOATS = (2.0**63, -(2.0**63), 1e300, math.nan, math.inf, -math.inf, 5e-324, 16777217.0)


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [edge for edge in (*_WIDE, low, high) if low <= edge <= high]
    return st.sampled_from(edges) | st.integers(low, high)


def _number(family: str, value: Any, made: Any = None) -> Given:
    is_special = isinstance(value, float) and not math.isfinite(value)
    is_zero = isinstance(value, float) and value == 0
    exact = value if is_special or is_zero else Fraction(value)
    return Given(family, exact, value if made is None else made)


def floats(width: int) -> st.SearchStrategy[Given]:
    kind = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    with np.errstate(over="ignore"):
        edges = [float(kind(one)) for one in (*_FLOATS, *_MORE_FLOATS)]
    values = st.sampled_from(edges) | st.floats(width=width)
    return values.map(lambda one: _number("float", one))


def decimals(digits: int, scale: int) -> st.SearchStrategy[Given]:
    """Decimals of an Arrow type, by the integers that they are made of."""
    limit = 10**digits - 1
    edges = [0, 1, -1, limit, -limit, *(10**power for power in range(digits))]
    edges += [5 * 10 ** (scale + power) for power in range(digits - scale)] if scale >= 0 else []

    def given(number: int) -> Given:
        with decimal.localcontext(prec=100):
            return _number("decimal", decimal.Decimal(number).scaleb(-scale))

    return (st.sampled_from(edges) | st.integers(-limit, limit)).map(given)


def _texts() -> st.SearchStrategy[Given]:
    words = st.sampled_from(_WORDS) | st.text(max_size=5)
    return words.map(lambda word: Given("text", word, word.encode()))


def _bad_texts() -> st.SearchStrategy[Given]:
    return st.sampled_from((b"\xff", b"a\xed\xa0\x80", b"\xc3")).map(
        lambda word: Given("text", word, word)
    )


# --- Arrow ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A type in which a column may come: its values, and how Arrow makes an array of them."""

    name: str
    family: str
    kind: pa.DataType
    values: st.SearchStrategy[Given]

    def array(self, values: list[Given]) -> pa.Array:
        made = [given.made for given in values]
        if self.family == "text":
            binary = pa.array(made, pa.large_binary())
            large = pa.Array.from_buffers(pa.large_string(), len(made), binary.buffers())
            offsets = np.frombuffer(large.buffers()[1], np.int64).astype(np.int32)
            buffers = [large.buffers()[0], pa.py_buffer(offsets), large.buffers()[2]]
            small = pa.Array.from_buffers(pa.string(), len(made), buffers)
            return {pa.string(): small, pa.large_string(): large}.get(self.kind) or pc.cast(
                small, self.kind
            )
        if self.family in ("moment", "day"):
            width = pa.int32() if pa.types.is_date32(self.kind) else pa.int64()
            return pa.array(made, width).view(self.kind)
        if pa.types.is_floating(self.kind):
            made = [None if one is None else self.kind.to_pandas_dtype()(one) for one in made]
        return pa.array(made, self.kind)


def _moment(unit: str) -> st.SearchStrategy[Given]:
    per_us = {"s": Fraction(10**6), "ms": Fraction(10**3), "us": Fraction(1)}
    step = per_us.get(unit, Fraction(1, 1000))
    limit = int((2**63 - 1) // step) if step >= 1 else 2**63 - 1
    edges = [0, 1, -1, 999, 1000, -1000, -1500, limit, -limit, min(limit + 1, 2**63 - 1), -(2**63)]
    # Arrow's own nulls aside, every number of an int64 is a time.
    numbers = st.sampled_from(edges) | st.integers(-(2**63), 2**63 - 1)
    return numbers.map(lambda number: Given("moment", number * step, number))


def _day(unit: str) -> st.SearchStrategy[Given]:
    step, bits = (Fraction(1), 31) if unit == "day" else (Fraction(1, 86_400_000), 63)
    edges = [0, 1, -1, 86_400_000, -86_400_000, 2**31 - 1, -(2**31)]
    numbers = st.sampled_from(edges) | st.integers(-(2**bits), 2**bits - 1)
    return numbers.map(lambda number: Given("day", number * step, number))


def _sources() -> dict[str, Source]:
    found = [Source("null", "", pa.null(), st.just(NOTHING))]
    flags = st.booleans().map(lambda one: Given("boolean", one, one))
    found.append(Source("bool", "boolean", pa.bool_(), flags))
    for bits in (8, 16, 32, 64):
        for kind, low, high in (
            (f"int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
            (f"uint{bits}", 0, 2**bits - 1),
        ):
            values = integers(low, high).map(lambda one: _number("integer", one))
            found.append(Source(kind, "integer", getattr(pa, kind)(), values))
    for bits in (16, 32, 64):
        found.append(Source(f"float{bits}", "float", getattr(pa, f"float{bits}")(), floats(bits)))
    for make, digits, scale in (
        (pa.decimal32, 7, 2), (pa.decimal64, 15, 3), (pa.decimal128, 10, 3),
        (pa.decimal128, 38, 6), (pa.decimal128, 9, 2), (pa.decimal128, 5, -2),
        (pa.decimal256, 76, 10), (pa.decimal256, 20, 0), (pa.decimal128, 38, 38),
    ):  # fmt: skip
        kind = make(digits, scale)
        found.append(Source(str(kind), "decimal", kind, decimals(digits, scale)))
    texts = _texts() | _bad_texts()
    for kind in (pa.string(), pa.large_string()):
        found.append(Source(str(kind), "text", kind, texts))
    found.append(Source("string_view", "text", pa.string_view(), _texts()))
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "Europe/Rome", "+05:30"):
            kind = pa.timestamp(unit, zone)
            found.append(Source(str(kind), "moment", kind, _moment(unit)))
    found.append(Source("date32", "day", pa.date32(), _day("day")))
    found.append(Source("date64", "day", pa.date64(), _day("ms")))
    others = [pa.time32("s"), pa.time64("us"), pa.duration("us"), pa.binary(), pa.binary(3)]
    others += [
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.int8()),
    ]
    found += [Source(str(kind), "other", kind, st.just(NOTHING)) for kind in others]
    return {source.name: source for source in found}


SOURCES = _sources()
ENCODINGS = ("plain", "sliced", "chunked", "words", "null words", "runs", "chunks of words")


def encoded(array: pa.Array, encoding: str, cut: int) -> pa.Array | pa.ChunkedArray:
    """The same values in another encoding; as they are where Arrow has no such one."""
    if encoding == "sliced":
        return pa.concat_arrays([array, array, array])[len(array) : 2 * len(array)]
    if encoding == "chunked":
        empty = array[:0]
        return pa.chunked_array([empty, array[:cut], empty, array[cut:]], array.type)
    if pa.types.is_string_view(array.type) and "words" in encoding:
        # Encoded by Arrow, views lose their nulls.
        words = pc.dictionary_encode(array.cast(pa.string()), null_encoding="encode")
        views = words.dictionary.cast(array.type)
        return pa.DictionaryArray.from_arrays(words.indices, views)
    try:
        if encoding == "words":
            return pc.dictionary_encode(array)
        if encoding == "null words":
            return pc.dictionary_encode(array, null_encoding="encode")
        if encoding == "runs":
            return pc.run_end_encode(array)
        if encoding == "chunks of words":
            parts = [array[:cut], array[cut:]]
            words = [pc.dictionary_encode(part, null_encoding="encode") for part in parts]
            return pa.chunked_array(words)
    except pa.ArrowException:
        pass
    return array


# --- Python ---------------------------------------------------------------------------------------

_UTC = datetime.UTC
_START = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_ROME = datetime.timezone(datetime.timedelta(hours=1))


def _python_moment(made: Any, microseconds: Number) -> Given:
    return Given("moment", Fraction(microseconds), made)


def _since(moment: datetime.datetime) -> int:
    return (moment - _START) // datetime.timedelta(microseconds=1)


def _objects() -> dict[str, st.SearchStrategy[Given]]:
    """Python values by family; `wrong` ones are of no family."""
    whole = st.integers(-(2**70), 2**70) | st.sampled_from(
        (*_WIDE, 2**63, 2**64, -(2**64), 10**400)
    )
    numbers = whole.map(lambda one: _number("integer", one))
    small = st.integers(-128, 127)
    numpy_numbers = small.flatmap(
        lambda one: st.sampled_from([kind(one) for kind in (np.int8, np.int64, np.int32)])
    ).map(lambda one: _number("integer", int(one), one))
    unsigned = st.sampled_from((np.uint64(2**64 - 1), np.uint8(255), np.uint64(5)))
    doubles = floats(64)
    singles = floats(32).map(lambda one: Given("float", one.value, np.float32(one.made)))
    exact = decimals(30, 4) | st.sampled_from(("1E+5", "1E-5", "1E+400", "0E+400", "0E-400")).map(
        lambda text: _number("decimal", decimal.Decimal(text))
    )
    odd = st.sampled_from(("NaN", "sNaN", "Infinity", "-Infinity")).map(
        lambda text: Given(
            "decimal", math.nan if "NaN" in text else math.inf, decimal.Decimal(text)
        )
    )
    texts = (st.sampled_from(_WORDS) | st.text(max_size=5)).map(lambda one: Given("text", one, one))
    lone = st.sampled_from(("\ud800", "a\udfff")).map(lambda one: Given("text", b"", one))
    aware = st.datetimes(timezones=st.sampled_from((_UTC, _ROME)))
    moments = aware.map(lambda one: _python_moment(one, _since(one)))
    naive = st.datetimes().map(lambda one: _python_moment(one, _since(one.replace(tzinfo=_UTC))))
    nanos = st.integers(-(2**62), 2**62)
    stamps = nanos.map(lambda one: _python_moment(pd.Timestamp(one), Fraction(one, 1000)))
    zoned = nanos.map(
        lambda one: _python_moment(pd.Timestamp(one, tz="Europe/Rome"), Fraction(one, 1000))
    )
    units = st.sampled_from((("s", 10**6), ("ms", 1000), ("us", 1), ("h", 3600 * 10**6)))
    numpy_moments = st.tuples(units, st.integers(-(2**62), 2**62) | small).map(
        lambda one: _python_moment(np.datetime64(one[1], one[0][0]), one[0][1] * one[1])
    )
    days = st.dates().map(
        lambda one: Given("day", Fraction((one - _START.date()).days), one)
    ) | small.map(lambda one: Given("day", Fraction(one), np.datetime64(one, "D")))
    flags = st.sampled_from((True, False, np.True_, np.False_)).map(
        lambda one: Given("boolean", bool(one), one)
    )
    return {
        "boolean": flags,
        "integer": numbers | numpy_numbers
        | unsigned.map(lambda one: _number("integer", int(one), one)),
        "float": doubles | singles,
        "decimal": exact | odd,
        "text": texts | lone,
        "moment": moments | naive | stamps | zoned | numpy_moments,
        "day": days,
    }  # fmt: skip


OBJECTS = _objects()
MISSING = st.sampled_from((None, pd.NaT, pd.NA, np.datetime64("NaT"))).map(
    lambda one: Given("", None, one)
)
WRONG = st.sampled_from(
    (b"a", object(), {"a": 1}, {1}, 1j, datetime.time(1), datetime.timedelta(1), [1], range(3))
).map(lambda one: Given("other", None, one))


def takes_object(declared: str, given: Given) -> bool:
    """Whether a Python value can be one of the column at all."""
    if given.family == "":
        return True
    if given.family == "integer" and declared in ("timestamp", "date"):
        return True  # microseconds, or days, as a transaction sees them
    is_nan = isinstance(given.value, float) and math.isnan(given.value)
    return given.family in TAKES[declared] or (is_nan and given.family in ("float", "decimal"))


def object_judged(given: Given, declared: str) -> tuple[str, Any]:
    """As `judged`, where a decimal NaN is no number of any kind, and a day is a date alone."""
    is_nan = isinstance(given.value, float) and math.isnan(given.value)
    if is_nan and not (declared in ("float", "double") and given.family == "float"):
        return "null", None
    return judged(given, declared)
