"""Actions: what a transaction may do besides reading and writing columns.

Here are their plain-Python forms; `values` and `decimals` give the compiled ones.
"""

from __future__ import annotations

import decimal as python_decimal
from dataclasses import dataclass
from typing import Any, cast

from headgate.errors import InputError
from headgate.parameters import Row


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
    return cast(None, Abort(reason))


def delete(row: Row) -> None:
    """Remove a row; it counts as missing for every transaction after this one."""
    row.__headgate_delete__()


def decimal(text: str) -> Any:
    """An exact decimal constant, to use beside decimal columns: `row.balance * hg.decimal("1.05")`.

    >>> decimal("1.05") + decimal("0.95")
    Decimal('2.00')
    """
    try:
        return python_decimal.Decimal(text)
    except python_decimal.InvalidOperation:
        raise InputError(f"decimal({text!r}): not a decimal number") from None
