"""Refusals: what a transaction may not do, found while its function is being compiled."""

from __future__ import annotations

from numba.core.errors import TypingError

ALWAYS = " [always]"  # ends the words of a refusal that holds for plain Python, too


class Refusal(TypingError):
    """Our own reason to refuse a line; its name tells it from Numba's many in one message."""
