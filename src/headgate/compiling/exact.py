"""Exact: the decimals of plain functions, with the 128 bits that compiled ones have.

Invariant: a sum, difference or product of columns, constants and ints is exact or an OverflowError,
at the same number as compiled. What has no compiled form, such as a quotient, is a `Decimal` again.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

_MIN, _MAX = -(2**127), 2**127 - 1


class Exact(decimal.Decimal):
    """A decimal whose sums and products leave 128 bits, counted in its last place, nowhere.

    The context in which it computes must have 76 digits, as the interpreter's has.

    >>> Exact("0.25") * 3
    Decimal('0.75')
    >>> with decimal.localcontext(prec=76):
    ...     Exact(2**126) + Exact(2**126)
    Traceback (most recent call last):
    OverflowError: overflow
    """

    __slots__ = ()


def constant(text: str) -> Exact:
    """A constant as compiled code has it: with no fewer places than a whole number."""
    found = Exact(text)
    exponent = found.as_tuple().exponent
    return Exact(int(found)) if isinstance(exponent, int) and exponent > 0 else found


def _within(found: decimal.Decimal) -> Exact:
    sign, digits, exponent = found.as_tuple()
    if isinstance(exponent, int):
        size = int("".join(map(str, digits)))
        if not _MIN <= (-size if sign else size) <= _MAX:
            raise OverflowError("overflow")
    return Exact(found)


def _checked(operation: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Exact, *others: Any) -> Any:
        found = operation(self, *others)
        is_ours = all(isinstance(other, (int, Exact)) for other in others)
        return _within(found) if is_ours and isinstance(found, decimal.Decimal) else found

    return compute


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "neg", "pos", "abs"):
    setattr(Exact, f"__{_name}__", _checked(getattr(decimal.Decimal, f"__{_name}__")))
