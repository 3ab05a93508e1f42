"""Durations: times like "10 seconds", in microseconds, and when rows that expire are no more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headgate.errors import DeclarationError, HeadgateError, InputError, shown
from headgate.state.schema import Schema

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
DAY_US = _UNITS_US["day"]
TICK = "start timestamp, end timestamp"


def parse_duration(text: str, where: str, error: type[HeadgateError] = InputError) -> int:
    """A duration like "10 seconds" or "1 hour 30 minutes" in microseconds.

    >>> parse_duration("1 minute 10 seconds", "watermark")
    70000000
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", str(text))
    rest = re.sub(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)|\s|interval", "", str(text))
    total = 0
    for amount, unit in parts:
        size = _UNITS_US.get(unit.lower().rstrip("s"))
        if size is None:
            rest = unit
            break
        total += round(float(amount) * size)
    if not parts or rest:
        units = ", ".join(f"{unit}s" for unit in _UNITS_US)
        raise error(
            f"{where}: {text!r} is not a duration; write it as '10 seconds' (units: {units})"
        )
    return total


@dataclass(frozen=True)
class Period:
    """How often something runs by event time, and over how much of it."""

    every_us: int
    size_us: int


def parse_period(every: str, size: str | None, where: str) -> Period:
    """`every="1 minute"`, and `size="5 minutes"` where windows overlap."""
    every_us = parse_duration(every, f"{where}: every", DeclarationError)
    size_us = every_us if size is None else parse_duration(size, f"{where}: size", DeclarationError)
    if every_us < 1 or size_us < 1:
        raise DeclarationError(f"{where}: every and size are times above zero")
    return Period(every_us, size_us)


def tick_event(given: object) -> str:
    """The columns of an event that the engine makes; refused where others were given."""
    if given is not None:
        raise DeclarationError(f"a transaction with every= has the event {TICK!r}: leave event out")
    return TICK


# --- expiry ---------------------------------------------------------------------------------------
# When the rows of a table are no more, as a declaration: `expires="ts + 30 days"`.
#
# A value that holds no rows. A row whose column is null never expires; a time beyond all that can
# be written is never reached, so nothing here overflows.


# With every time that a column can hold it stays within 64 bits.
DELAY_US_MAX = 10_000 * 366 * DAY_US
NEVER = 1 << 63  # later than all moments
_FORM = re.compile(r"\s*(?:`([^`]+)`|(\w+))\s*(?:\+(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Expiry:
    """A row is no more from so long after the time in its column on."""

    column: str
    delay_us: int
    unit_us: int  # of the column: a microsecond, or a day
    text: str

    def moment(self, value: int) -> int:
        """When a row with this stored value expires."""
        return value * self.unit_us + self.delay_us

    def bound(self, time_us: int) -> int:
        """The greatest stored value with which a row has expired at a time."""
        return (time_us - self.delay_us) // self.unit_us

    def renamed(self, old: str, new: str) -> str:
        """As it is written when a column has another name."""
        name = new if self.column == old else self.column
        after = self.text.partition("+")
        return f"`{name}`" + (f" + {after[2].strip()}" if after[1] else "")


def parse_expires(given: Any, schema: Schema, where: str) -> Expiry | None:
    """`expires="ts + 30 days"`, or a column alone; None where rows stay."""
    if given is None:
        return None
    label = f"{where}: expires"
    form = _FORM.fullmatch(given) if isinstance(given, str) else None
    if form is None:
        raise DeclarationError(
            f"{label}: {shown(given)} is not a column and a duration; write it as 'ts + 30 days'"
        )
    column = schema.require(form[1] or form[2], label)
    if column.type.kind not in ("timestamp", "date"):
        raise DeclarationError(
            f"{label}: column {column.name!r} is a {column.type}; rows expire by a timestamp or "
            "a date"
        )
    delay_us = 0 if form[3] is None else parse_duration(form[3].strip(), label, DeclarationError)
    if delay_us > DELAY_US_MAX:
        raise DeclarationError(f"{label}: {form[3].strip()!r} is longer than 10,000 years")
    unit_us = DAY_US if column.type.kind == "date" else 1
    return Expiry(column.name, delay_us, unit_us, given.strip())
