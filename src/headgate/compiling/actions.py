"""Actions: what a transaction may do besides reading and writing columns.

Here are their plain-Python forms; `values` and `decimals` give the compiled ones.
"""

from __future__ import annotations

import contextlib
import decimal as python_decimal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from headgate.compiling.exact import constant
from headgate.errors import InputError
from headgate.state.parameters import Row


@dataclass(frozen=True)
class Abort:
    """What `abort` returns: the transaction's reason to undo everything it did."""

    reason: str


def abort(reason: str) -> None:
    """End the transaction without effect; write `return hg.abort("why")`.

    To a type checker it gives nothing back, so that a transaction can be declared `-> None`.

    >>> abort("insufficient funds")
    Abort(reason='insufficient funds')
    """
    if not isinstance(reason, str):
        raise TypeError(f"the reason of abort must be a text, not a {type(reason).__name__}")
    # Half of a surrogate pair is no text that can be stored.
    made = Abort(reason.encode("utf-8", "backslashreplace").decode())
    if (seen := getattr(_WATCH, "made", None)) is not None:
        seen.append(made)
    return cast(None, made)


_WATCH = threading.local()  # .made: the aborts of the transaction that this thread runs as Python


@contextlib.contextmanager
def watched() -> Iterator[list[Abort]]:
    """The aborts that are made meanwhile: one that is not returned must not commit."""
    before, _WATCH.made = getattr(_WATCH, "made", None), []
    try:
        yield _WATCH.made
    finally:
        _WATCH.made = before


def verdict(answer: Any, made: list[Abort]) -> str | None:
    """Why a transaction that answered this, and made these aborts, does not commit; or None."""
    if isinstance(answer, Abort):
        return answer.reason
    if made:
        return f"error: LostAbort: abort({made[0].reason!r}) was not returned; return hg.abort(...)"
    return None


DELETES = "hg.delete takes a row, as table.at(...) or one of table.each(...) gives it"


def delete(row: Row) -> None:
    """Remove a row; it counts as missing for every transaction after this one."""
    remove = getattr(type(row), "__headgate_delete__", None)
    if remove is None:
        raise TypeError(f"{DELETES}, not a {type(row).__name__}")
    remove(row)


def decimal(text: str) -> Any:
    """An exact decimal constant, to use beside decimal columns: `row.balance * hg.decimal("1.05")`.

    >>> decimal("1.05") + decimal("0.95")
    Decimal('2.00')
    """
    try:
        # Outside of a transaction that runs as Python it is a decimal like any other.
        is_running = getattr(_WATCH, "made", None) is not None
        return constant(text) if is_running else python_decimal.Decimal(text)
    except python_decimal.InvalidOperation:
        raise InputError(f"decimal({text!r}): not a decimal number") from None
