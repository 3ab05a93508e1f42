"""Constants and functions that the family's transactions reach through a module."""

from __future__ import annotations

STEP = 3
LABEL = "over the top"


def capped(value: int, cap: int) -> int:
    """The value, or the cap where it is larger."""
    return cap if value > cap else value
