"""Making: random rows and events for the family: few keys, many ties, some nulls, some extremes.

Values are drawn small and close together, so that events meet on the same rows, checks fail about
as often as they hold, and balances run out.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import math
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

import headgate as hg
from headgate.testing import SerialOracle
from tests.property.family import Member

START = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
TEXTS = ("", "a", "b", "it's", "ä", "a text of more than eight bytes", "mallory", "\x00")
EXTREMES = (2**63 - 1, -(2**63), 2**62, 2**31 - 1, -(2**31), 2**31, 3_037_000_500)
TROUBLE = ("none",) * 14 + ("null", "element")
SMALL = st.integers(0, 4)
TIMES = st.integers(0, 8).map(lambda second: START + datetime.timedelta(seconds=second))
DAYS = st.integers(0, 45).map(lambda day: START.date() + datetime.timedelta(days=day))
WEIGHTS = st.sampled_from((0.0, -0.0, 0.1, 0.5, -2.5, 1e6, 1e30, 3.4e38, math.inf, math.nan))
AMOUNTS = st.integers(-20, 60).map(lambda units: units / 4)
# Where a column drawn by its type alone would hide what the member is there to show.
SPECIAL: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("audit", "why"): st.sampled_from(("no", "no", "no", "no", "", "a")),
    ("audit", "kind"): st.sampled_from(("a", "b", "it's", "a", "b", "c")),
    ("audit", "x"): AMOUNTS,
    ("buy", "item"): st.sampled_from(("a", "b", "ä", "")),
    ("prices", "item"): st.sampled_from(("a", "b", "ä", "")),
    ("compute", "op"): st.integers(0, 8),
    ("compute", "a"): st.one_of(st.integers(-9, 9), st.sampled_from(EXTREMES)),
    ("compute", "b"): st.one_of(st.integers(-2, 65), st.sampled_from(EXTREMES)),
    ("compute", "x"): st.one_of(
        WEIGHTS, AMOUNTS, st.sampled_from((2.5, -0.5, 2.0**63, -(2.0**63)))
    ),
    ("divide", "a"): st.one_of(st.integers(-100, 100), st.just(13)),
    ("divide", "b"): st.integers(-2, 3),
    ("buy", "count"): st.integers(-1, 3),
    ("share_out", "shares"): st.integers(-3, 12),
    ("charge", "paid"): st.integers(-500, 500).map(lambda cents: decimal.Decimal(cents) / 100),
}


def examples(count: int) -> settings:
    """That many examples of a property, more or fewer as the profile searches deeper or less."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100))


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    """Decimals of a column, small ones more often than the largest."""
    most = 10**precision - 1
    units = st.one_of(
        st.integers(0, 900), st.integers(-200, 9_000), st.sampled_from((most, -most, most // 2))
    )
    units = units.filter(lambda number: abs(number) <= most)
    return units.map(lambda number: decimal.Decimal(number).scaleb(-scale))


def column_values(name: str, column: Any) -> st.SearchStrategy[Any]:
    """Values of a column, and None where it may be null."""
    found = values(name, column.name, column.type)
    return st.one_of(st.none(), found, found) if column.nullable else found


def _numbers(name: str, column: str) -> st.SearchStrategy[Any]:
    if name == "count_up" and column in ("by", "times", "big"):
        return st.one_of(st.integers(-3, 3), st.sampled_from(EXTREMES))
    if column in ("id", "src", "dst", "other", "hall", "a", "b", "ids", "rows_a", "rows_b"):
        return SMALL
    if column in ("small", "few"):
        return st.sampled_from((0, 1, -1, 2**31 - 1, -(2**31)))
    if column == "points":
        return st.integers(-40, 80)
    return st.one_of(st.integers(-5, 30), st.integers(-100, 100), st.just(13))


def values(name: str, column: str, kind: Any) -> st.SearchStrategy[Any]:
    """Values of one column of a member's events or of a table."""
    if kind.element is not None:
        return st.lists(values(name, column, kind.element), max_size=5)
    if (name, column) in SPECIAL:
        return SPECIAL[name, column]
    if kind.kind in ("int", "bigint"):
        return _numbers(name, column)
    if kind.kind == "decimal":
        return decimals(kind.precision, kind.scale)
    if kind.kind == "float":
        # What arrives in a column of 32 bits are floats of 32 bits.
        return st.one_of(WEIGHTS, AMOUNTS).map(lambda x: pa.scalar(x, pa.float32()).as_py())
    if kind.kind == "double":
        return AMOUNTS if name in ("transfer", "accounts") else st.one_of(WEIGHTS, AMOUNTS)
    return {
        "boolean": st.booleans(),
        "string": st.sampled_from(TEXTS),
        "timestamp": TIMES,
        "date": DAYS,
    }[kind.kind]


# --- tables ---------------------------------------------------------------------------------------


@st.composite
def rows(draw: st.DrawFn, table: hg.Table) -> list[dict[str, Any]]:
    """Rows with different keys that pass the table's check; often none at all."""
    least = draw(st.sampled_from((4, 0, 6)))
    drawn = draw(st.lists(_row(table), min_size=least, max_size=8))
    distinct = {tuple(row[name] for name in table.key): row for row in drawn}
    return [row for row in distinct.values() if _is_loadable(table, row)]


@functools.cache
def _row(table: hg.Table) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({c.name: column_values(table.name, c) for c in table.schema})


def _is_loadable(table: hg.Table, row: dict[str, Any]) -> bool:
    try:
        return SerialOracle([table]).load(table, [row]) == 1
    except ValueError:
        return False


@st.composite
def filled_tables(draw: st.DrawFn, *tables: hg.Table) -> dict[str, list[dict[str, Any]]]:
    return {table.name: draw(rows(table)) for table in tables}


# --- events ---------------------------------------------------------------------------------------


@functools.cache
def sound_events(member: Member) -> st.SearchStrategy[dict[str, Any]]:
    """Events with nothing missing; arrays that belong together have one length."""
    schema = member.compiled.event
    arrays = [c.name for c in schema if c.type.element is not None]

    def aligned(event: dict[str, Any]) -> dict[str, Any]:
        shortest = min((len(event[name]) for name in arrays), default=0)
        return {**event, **{name: event[name][:shortest] for name in arrays}}

    columns = {c.name: column_values(member.name, c) for c in schema}
    return st.fixed_dictionaries(columns).map(aligned)


@st.composite
def events(draw: st.DrawFn, member: Member) -> dict[str, Any]:
    """One event, now and then with a null, a null in an array, or arrays of different lengths."""
    event = dict(draw(sound_events(member)))
    trouble = draw(st.sampled_from(TROUBLE))
    if trouble == "none":
        return event
    name = draw(st.sampled_from(sorted(event)))
    if trouble == "null" or not isinstance(event[name], list):
        event[name] = None
    else:
        event[name] = [*event[name], draw(st.sampled_from((None, 1)))]
    return event


@st.composite
def batch(draw: st.DrawFn, one: st.SearchStrategy[Any], most: int = 12) -> list[dict[str, Any]]:
    """Events, some of them twice."""
    found = draw(st.lists(one, max_size=most))
    again = draw(st.lists(st.integers(0, max(0, len(found) - 1)), max_size=3)) if found else []
    return found + [found[place] for place in again]


def batches(one: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(batch(one), min_size=1, max_size=most)


def order_of(member: Member) -> st.SearchStrategy[Any]:
    """No order, the member's order columns, or only the first of them, as a string or a list."""
    if not member.order_by:
        return st.none()
    return st.sampled_from((None, member.order_by[0], list(member.order_by)))
