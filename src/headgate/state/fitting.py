"""Fitting: Arrow arrays of whatever type in the type of a declared column.

Invariant: a value that fits has exactly the value it came with (a `float` column alone rounds); one
that does not is null, with its fault. A type of which no value can fit is an InputError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InputError
from headgate.state.objects import (
    EXACT_FAULT,
    NULL_FAULT,
    RANGE_FAULT,
    TEXT_FAULT,
    fitted,
)
from headgate.state.types import BIGINT_MAX, BOUNDS, FLOAT_END, INT_MAX, ColumnType

_VALUE, _FAULT = "value", "__fault"
_FEW = 64  # values that are looked at one by one in Python
_DAY_MS = 86_400_000
_DOUBLE_EXACT_MAX = 2**53  # every integer up to here is a double
_ODD_TYPES = (
    pa.types.is_run_end_encoded,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_string_view,
)
_UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True)
class Fit:
    """An array in the type of its column, null where there is a fault (0: there is none)."""

    array: pa.Array
    faults: np.ndarray | None = None


Values = tuple[np.ndarray, np.ndarray]  # as they are stored, and their faults


def marked(array: pa.Array, faults: np.ndarray) -> pa.Array:
    """An array that takes along why some of its values are null, also through the log."""
    children = [array, pa.array(faults.astype(np.int8))]
    return pa.StructArray.from_arrays(children, names=[_VALUE, _FAULT])


def unmarked_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, of an array that may be marked."""
    is_marked = pa.types.is_struct(kind) and [one.name for one in kind] == [_VALUE, _FAULT]
    return kind.field(0).type if is_marked else kind


_PLAIN_IDS = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us")),
        *(pa.decimal128(1), pa.string(), pa.large_string()),
    )
)


def unmarked(array: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """The array and the faults that it took along, if it is one that did."""
    if unmarked_type(array.type) == array.type:
        return array, None
    value, faults = array.flatten()
    return value, faults.fill_null(NULL_FAULT).to_numpy(zero_copy_only=False).astype(np.uint8)


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as one contiguous Arrow array, in an encoding that everything can read."""
    if not isinstance(column, pa.ChunkedArray):
        return _decoded(column)
    if column.num_chunks == 1:
        return _decoded(column.chunk(0))
    if not column.num_chunks:
        return _decoded(pa.array([], column.type))
    chunks = [_decoded(chunk) for chunk in column.chunks]
    if len({str(chunk.type) for chunk in chunks}) > 1:  # some dictionaries had to be decoded
        chunks = [_without_dictionary(chunk) for chunk in chunks]
    try:
        return pa.concat_arrays(chunks)
    except pa.ArrowInvalid:  # the words of all dictionaries, or all texts, are too many
        chunks = [_without_dictionary(chunk) for chunk in chunks]
        if pa.types.is_string(chunks[0].type):
            chunks = [chunk.cast(pa.large_string()) for chunk in chunks]
        return pa.concat_arrays(chunks)


def _without_dictionary(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _decoded(array: pa.Array) -> pa.Array:
    """Without the encodings that few functions of Arrow know, and without nulls among words."""
    kind = array.type
    if kind.id in _PLAIN_IDS:
        return array
    if pa.types.is_run_end_encoded(kind):
        return _decoded(pc.run_end_decode(array))
    if pa.types.is_dictionary(kind):
        words = _decoded(array.dictionary)
        if words.null_count or not _is_text(words.type):
            return _decoded(words.take(array.indices))
        if words is not array.dictionary:
            return pa.DictionaryArray.from_arrays(array.indices, words)
        return array
    if pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _lists_of_views(array)
    if isinstance(kind, pa.BaseExtensionType) and _is_text(kind.storage_type):
        return _decoded(array.storage)
    return array


def _lists_of_views(array: pa.Array) -> pa.Array:
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    firsts = np.where(valid, array.offsets.to_numpy(zero_copy_only=False), 0).astype(np.int64)
    sizes = np.where(valid, array.sizes.to_numpy(zero_copy_only=False), 0).astype(np.int64)
    ends = np.cumsum(sizes)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - ends + sizes, sizes)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int64))
    values = array.values.take(pa.array(places))
    return pa.LargeListArray.from_arrays(offsets, values, mask=pa.array(~valid))


def fit(column: pa.ChunkedArray | pa.Array, kind: ColumnType, where: str) -> Fit:
    """The column in the Arrow type of the kind; texts may stay in another type of text."""
    array, before = unmarked(one_array(column))
    found = _fit(array, kind, where)
    if before is None:
        return found
    faults = before if found.faults is None else np.where(before, before, found.faults)
    return Fit(found.array, faults)


def conform(column: pa.ChunkedArray | pa.Array, kind: ColumnType, where: str) -> pa.Array:
    """The column in exactly the Arrow type of the kind, null where a value does not fit."""
    array = fit(column, kind, where).array
    return array if array.type == kind.arrow else array.cast(kind.arrow)


def joined(before: pa.Array, after: pa.ChunkedArray, kind: ColumnType, where: str) -> pa.Array:
    """An array of the kind with a column of any type behind it, whose faults it takes along."""
    found = fit(after, kind, where)
    array = found.array if found.array.type == kind.arrow else found.array.cast(kind.arrow)
    both = pa.concat_arrays([before, array])
    if found.faults is None or found.faults.max(initial=0) <= NULL_FAULT:
        return both
    return marked(both, np.concatenate([np.zeros(len(before), np.uint8), found.faults]))


def decoded(table: pa.Table) -> pa.Table:
    """The table with every column in an encoding that rows can be taken from."""
    for place, field in enumerate(table.schema):
        kind = field.type
        if kind.id not in _PLAIN_IDS and any(is_odd(kind) for is_odd in _ODD_TYPES):
            table = table.set_column(place, field.name, one_array(table.column(place)))
    return table


def _fit(array: pa.Array, kind: ColumnType, where: str) -> Fit:
    source = array.type
    if pa.types.is_null(source):
        nothing = np.full(len(array), NULL_FAULT, np.uint8)
        return Fit(pa.nulls(len(array), kind.arrow), nothing)
    if kind.element is not None:
        return _fit_lists(array, kind, kind.element, where)
    if kind.kind == "string" and _is_text(source):
        return _fit_texts(array)
    if source == kind.arrow:
        return _fit_bounded(array, kind)
    if pa.types.is_dictionary(source):
        array, source = array.dictionary_decode(), source.value_type
    convert = _converter(source, kind)
    if convert is None:
        raise _refusal(source, kind, where)
    return convert(array, kind)


def _refusal(source: pa.DataType, kind: ColumnType, where: str) -> InputError:
    hint = f"cast it to {kind} before it reaches Headgate"
    return InputError(f"{where}: the column is {source}, the declaration says {kind}; {hint}")


def _converter(
    source: pa.DataType, kind: ColumnType
) -> Callable[[pa.Array, ColumnType], Fit] | None:
    types = pa.types
    if kind.kind in ("int", "bigint"):
        if types.is_integer(source):
            return _fit_integers
        if types.is_floating(source):
            return _fit_whole_floats
        return _fit_decimals if types.is_decimal(source) else None
    if kind.kind in ("float", "double"):
        if types.is_floating(source):
            return _fit_floats
        return _fit_integers_as_floats if types.is_integer(source) else None
    if kind.kind == "decimal" and (types.is_integer(source) or types.is_decimal(source)):
        return _fit_decimals
    if kind.kind == "timestamp" and types.is_timestamp(source):
        return _fit_timestamps
    return _fit_dates if kind.kind == "date" and types.is_date(source) else None


def _is_text(source: pa.DataType) -> bool:
    if pa.types.is_dictionary(source):
        return _is_text(source.value_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(source) for is_kind in kinds)


def nulls_of(array: pa.Array) -> np.ndarray | None:
    """The faults of an array that has no others but nulls."""
    if not array.null_count:
        return None
    found: np.ndarray = array.is_null().to_numpy(zero_copy_only=False).view(np.uint8)
    return found * np.uint8(NULL_FAULT)


def _numbers(array: pa.Array, kind: pa.DataType) -> Values:
    """The values of an array as NumPy has them, 0 for null, and room for faults."""
    faults = nulls_of(array)
    if faults is None:
        faults = np.zeros(len(array), np.uint8)
    else:
        array = array.fill_null(pa.scalar(0, array.type))
    return array.cast(kind, safe=False).to_numpy(zero_copy_only=False), faults


def _mark(faults: np.ndarray, where: np.ndarray, fault: int) -> None:
    """What was wrong before stays the reason."""
    faults[where & (faults == 0)] = fault


def _made(values: np.ndarray, faults: np.ndarray, kind: ColumnType) -> Fit:
    """Stored values as an array of the kind."""
    if not faults.any():
        return Fit(pa.array(values).view(kind.arrow))
    plain = pa.array(np.where(faults, values.dtype.type(0), values), mask=faults != 0)
    return Fit(plain.view(kind.arrow), faults)


def _fit_bounded(array: pa.Array, kind: ColumnType) -> Fit:
    """An array of the very type, of which only times may have values that the column has not."""
    if kind.kind not in ("timestamp", "date"):
        return Fit(array, nulls_of(array))
    plain = array.view(pa.int64() if kind.kind == "timestamp" else pa.int32())
    least, greatest = BOUNDS[kind.kind]
    if _is_within(plain, least, greatest):
        return Fit(array, nulls_of(array))
    values, faults = _numbers(plain, plain.type)
    _mark(faults, (values < least) | (values > greatest), RANGE_FAULT)
    return _made(values, faults, kind)


def _is_within(plain: pa.Array, least: int, greatest: int) -> bool:
    """Whether all values are; NumPy is several times as fast, and has no nulls."""
    if not len(plain):
        return True
    if plain.null_count == 0:
        values = plain.to_numpy()
        return bool(values.min() >= least and values.max() <= greatest)
    found = pc.min_max(plain).as_py()
    return found["min"] is None or (found["min"] >= least and found["max"] <= greatest)


def _fit_integers(array: pa.Array, kind: ColumnType) -> Fit:
    source = pa.uint64() if pa.types.is_uint64(array.type) else pa.int64()
    values, faults = _numbers(array, source)
    bound = INT_MAX if kind.kind == "int" else BIGINT_MAX
    outside = values > bound
    if kind.kind == "int" and source == pa.int64():
        outside |= values < -bound - 1
    _mark(faults, outside, RANGE_FAULT)
    return _made(values.astype(np.int32 if kind.kind == "int" else np.int64), faults, kind)


def _fit_whole_floats(array: pa.Array, kind: ColumnType) -> Fit:
    """Floats for integers, as pandas has integers of which some are missing: NaN is null."""
    values, faults = _numbers(array, pa.float64())
    bound = INT_MAX if kind.kind == "int" else BIGINT_MAX
    _mark(faults, np.isnan(values), NULL_FAULT)
    # As a double the largest bigint is one more than it is.
    whole = np.trunc(values)
    _mark(faults, ~((whole >= -bound - 1) & (whole < bound + 1)), RANGE_FAULT)
    _mark(faults, whole != values, EXACT_FAULT)
    whole = np.where(faults, 0.0, whole)
    return _made(whole.astype(np.int32 if kind.kind == "int" else np.int64), faults, kind)


def _fit_floats(array: pa.Array, kind: ColumnType) -> Fit:
    """Floats of another width; one of 32 bits rounds, and has nothing for what is too large."""
    fitted, nulls = array.cast(kind.arrow, safe=False), nulls_of(array)
    if kind.kind != "float":
        return Fit(fitted, nulls)
    values, faults = _numbers(array, pa.float64())
    _mark(faults, np.isfinite(values) & (np.abs(values) >= FLOAT_END), RANGE_FAULT)
    if not (faults > NULL_FAULT).any():
        return Fit(fitted, nulls)
    with np.errstate(over="ignore"):
        return _made(values.astype(np.float32), faults, kind)


def _fit_integers_as_floats(array: pa.Array, kind: ColumnType) -> Fit:
    source = pa.uint64() if pa.types.is_uint64(array.type) else pa.int64()
    values, faults = _numbers(array, source)
    floats = values.astype(np.float64)
    for row in np.flatnonzero(np.abs(floats) >= _DOUBLE_EXACT_MAX):
        if int(floats[row]) != int(values[row]) and not faults[row]:
            faults[row] = EXACT_FAULT
    return _made(floats.astype(np.float32 if kind.kind == "float" else np.float64), faults, kind)


def _fit_timestamps(array: pa.Array, kind: ColumnType) -> Fit:
    """Microseconds, in UTC as every time with a zone is; a time without one is taken for UTC."""
    values, faults = _numbers(array, pa.int64())
    if array.type.unit == "ns":
        _mark(faults, values % 1000 != 0, EXACT_FAULT)
        return _made(values // 1000, faults, kind)  # all of them within the years that there are
    times = _UNITS_US[array.type.unit]
    if times > 1:
        highest = BIGINT_MAX // times
        _mark(faults, (values > highest) | (values < -highest), RANGE_FAULT)
        values = np.where(faults, 0, values) * times
    least, greatest = BOUNDS["timestamp"]
    _mark(faults, (values < least) | (values > greatest), RANGE_FAULT)
    return _made(values, faults, kind)


def _fit_dates(array: pa.Array, kind: ColumnType) -> Fit:
    values, faults = _numbers(array, pa.int64())
    days = values // _DAY_MS
    least, greatest = BOUNDS["date"]
    _mark(faults, (days < least) | (days > greatest), RANGE_FAULT)
    _mark(faults, values % _DAY_MS != 0, EXACT_FAULT)
    return _made(days.astype(np.int32), faults, kind)


def _fit_decimals(array: pa.Array, kind: ColumnType) -> Fit:
    """Decimals, or integers for decimals: all at once, and one by one around what does not fit."""
    try:
        if kind.kind == "decimal" and pa.types.is_integer(array.type):
            return Fit(array.cast(pa.decimal128(38, kind.scale)).cast(kind.arrow), nulls_of(array))
        return Fit(array.cast(kind.arrow), nulls_of(array))
    except pa.ArrowInvalid:
        if len(array) > _FEW:
            half = len(array) // 2
            return _joined([_fit_decimals(part, kind) for part in (array[:half], array[half:])])
    found = [fitted(value, kind) for value in array.to_pylist()]
    faults = np.array([fault for _, fault in found], np.uint8)
    return Fit(pa.array([value for value, _ in found], kind.arrow), faults)


def _joined(parts: list[Fit]) -> Fit:
    faults = [
        np.zeros(len(part.array), np.uint8) if part.faults is None else part.faults
        for part in parts
    ]
    return Fit(pa.concat_arrays([part.array for part in parts]), np.concatenate(faults))


def _fit_texts(array: pa.Array) -> Fit:
    """Texts as they are, if they are UTF-8: others could be stored, but never be read again."""
    is_dictionary = pa.types.is_dictionary(array.type)
    try:
        (array.dictionary if is_dictionary else array).validate(full=True)
        return Fit(array, nulls_of(array))
    except pa.ArrowInvalid:
        array = _without_dictionary(array)
    values = array.cast(pa.large_binary()).to_pylist()
    faults = np.array([_text_fault(value) for value in values], np.uint8)
    sound = [None if fault else value for value, fault in zip(values, faults, strict=True)]
    return Fit(pa.array(sound, pa.large_binary()).cast(array.type), faults)


def _text_fault(value: bytes | None) -> int:
    if value is None:
        return NULL_FAULT
    try:
        value.decode()
    except UnicodeDecodeError:
        return TEXT_FAULT
    return 0


# --- arrays ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lists:
    """An array of lists: where each begins and ends in the elements, and which are null."""

    offsets: np.ndarray
    values: pa.Array
    nulls: np.ndarray | None


def lists_of(array: pa.Array, element: ColumnType, where: str) -> Lists:
    """The lists of an array; a null one is empty."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.large_list(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _refusal(kind, ColumnType("array", element=element), where)
    nulls = nulls_of(array)
    if not len(array):
        return Lists(np.zeros(1, np.int64), array.values[:0], nulls)
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    # Arrow lets a null one have elements all the same. To look is far cheaper than to fill them,
    # and in a stream of several transactions most events have no list for some of them.
    if nulls is not None and np.diff(offsets)[nulls != 0].any():
        filled = pc.fill_null(array, pa.scalar([], array.type))
        return replace(lists_of(filled, element, where), nulls=nulls)
    first, last = int(offsets[0]), int(offsets[-1])
    return Lists(offsets - first, array.values.slice(first, last - first), nulls)


def faults_of_lists(lists: Lists, elements: np.ndarray | None) -> np.ndarray | None:
    """The fault of each list: that it is null, or the least that one of its elements has."""
    if elements is None or not elements.any():
        return lists.nulls
    count = len(lists.offsets) - 1
    faults = np.zeros(count, np.uint8) if lists.nulls is None else lists.nulls
    wrong = np.flatnonzero(elements)
    rows = np.searchsorted(lists.offsets, wrong, side="right") - 1
    least = np.full(count, 255, np.uint8)
    np.minimum.at(least, rows, elements[wrong])
    return np.where((faults == 0) & (least < 255), least, faults)


def _fit_lists(array: pa.Array, kind: ColumnType, element: ColumnType, where: str) -> Fit:
    lists = lists_of(array, element, where)
    inner = fit(lists.values, element, where)
    values = inner.array
    if values.type != element.arrow:
        values = values.cast(element.arrow)
    faults = faults_of_lists(lists, inner.faults)
    mask = None if faults is None else pa.array(faults != 0)
    offsets = pa.array(lists.offsets.astype(np.int32))
    return Fit(pa.ListArray.from_arrays(offsets, values, kind.arrow, mask=mask), faults)
