"""Filters that Spark hands to the reader, applied to Arrow batches with Spark's own meaning.

A filter is taken over only when Arrow can give exactly Spark's answer; any other goes back to
Spark. Masks are three-valued: null means unknown, and an unknown row is dropped, also under NOT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark_filters

_COMPARISONS: dict[type, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    spark_filters.EqualTo: pc.equal,
    spark_filters.GreaterThan: pc.greater,
    spark_filters.GreaterThanOrEqual: pc.greater_equal,
    spark_filters.LessThan: pc.less,
    spark_filters.LessThanOrEqual: pc.less_equal,
}
_TEXT_SEARCHES: dict[type, Callable[[pa.Array, str], pa.Array]] = {
    spark_filters.StringStartsWith: pc.starts_with,
    spark_filters.StringEndsWith: pc.ends_with,
    spark_filters.StringContains: pc.match_substring,
}
# Spark orders NaN above every number and equal to itself.
_TRUE_FOR_NAN_COLUMN = (spark_filters.GreaterThan, spark_filters.GreaterThanOrEqual)


def is_supported(condition: spark_filters.Filter, schema: pa.Schema) -> bool:
    """Whether `select_rows` gives exactly Spark's answer for this filter."""
    if isinstance(condition, spark_filters.Not):
        return is_supported(condition.child, schema)
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.names:
        return False
    return _is_answerable(condition, schema.field(attribute[0]).type)


def select_rows(
    batch: pa.RecordBatch, conditions: Sequence[spark_filters.Filter]
) -> pa.RecordBatch:
    """The rows for which every condition is true."""
    if not conditions:
        return batch
    return batch.filter(reduce(pc.and_kleene, (_mask(each, batch) for each in conditions)))


def _is_answerable(condition: spark_filters.Filter, kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return False
    if isinstance(condition, (spark_filters.IsNull, spark_filters.IsNotNull)):
        return True
    if type(condition) in _TEXT_SEARCHES:
        return pa.types.is_string(kind) and isinstance(getattr(condition, "value", None), str)
    if isinstance(condition, spark_filters.In):
        # Spark tells 0.0 from -0.0 in some forms of IN and not in others; it may decide itself.
        values = [value for value in condition.value if value is not None]
        return not pa.types.is_floating(kind) and all(_fits(value, kind) for value in values)
    if isinstance(condition, spark_filters.EqualNullSafe):
        return condition.value is None or _fits(condition.value, kind)
    return type(condition) in _COMPARISONS and _fits(getattr(condition, "value", None), kind)


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None or isinstance(value, bool) != pa.types.is_boolean(kind):
        return False
    if isinstance(value, datetime):
        # A time without a zone is not an instant, and only Spark knows the session's zone.
        return pa.types.is_timestamp(kind) and value.tzinfo is not None
    if isinstance(value, date) != pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return False
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
        return False
    return True


def _mask(condition: spark_filters.Filter, batch: pa.RecordBatch) -> pa.Array:
    if isinstance(condition, spark_filters.Not):
        return pc.invert(_mask(condition.child, batch))
    column = batch.column(getattr(condition, "attribute", ("",))[0])
    if isinstance(condition, spark_filters.IsNull):
        return pc.is_null(column)
    if isinstance(condition, spark_filters.IsNotNull):
        return pc.is_valid(column)
    if isinstance(condition, spark_filters.In):
        return _mask_in(column, condition.value)
    if isinstance(condition, spark_filters.EqualNullSafe):
        if condition.value is None:
            return pc.is_null(column)
        same = _compare(spark_filters.EqualTo, column, condition.value)
        return pc.fill_null(same, False)
    value = getattr(condition, "value", None)
    if type(condition) in _TEXT_SEARCHES:
        return _TEXT_SEARCHES[type(condition)](column, str(value))
    return _compare(type(condition), column, value)


def _compare(comparison: type, column: pa.Array, value: Any) -> pa.Array:
    if isinstance(value, float) and math.isnan(value):
        return _compare_to_nan(comparison, column)
    mask = _COMPARISONS[comparison](column, pa.scalar(value, column.type))
    if pa.types.is_floating(column.type) and comparison in _TRUE_FOR_NAN_COLUMN:
        mask = pc.or_(mask, pc.is_nan(column))
    return mask


def _compare_to_nan(comparison: type, column: pa.Array) -> pa.Array:
    is_nan = pc.is_nan(column)
    if comparison is spark_filters.LessThan:
        return pc.invert(is_nan)
    if comparison is spark_filters.LessThanOrEqual:
        return pc.or_(is_nan, pc.invert(is_nan))
    if comparison is spark_filters.GreaterThan:
        return pc.and_(is_nan, pc.invert(is_nan))
    return is_nan


def _mask_in(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    known = pa.array([value for value in values if value is not None], column.type)
    found = pc.is_in(column, value_set=known)
    unknown = pa.scalar(None, pa.bool_())
    if len(known) < len(values):
        # With a null in the list a value that is not found may still be equal to it.
        found = pc.if_else(found, found, unknown)
    return pc.if_else(pc.is_null(column), unknown, found)
