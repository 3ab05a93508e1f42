"""Actions: what a transaction may do besides reading and writing columns.

First their plain-Python forms, then the compiled ones: the same effect and the same words.
"""

from __future__ import annotations

import decimal as python_decimal
import operator
import threading
from dataclasses import dataclass
from typing import Any, cast

from numba.core import types
from numba.extending import intrinsic

from headgate.compiling.decimals import decimal_constant
from headgate.compiling.numba_types import (
    I64,
    AbortType,
    EventType,
    OutputType,
    RecordType,
    RowsType,
    TextType,
    abort_type,
)
from headgate.compiling.refusals import ALWAYS, Refusal
from headgate.compiling.uncompiled import constant, made_text
from headgate.errors import InputError
from headgate.state.compiled import overload
from headgate.state.layout import HEADER_ALIVE
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
    if type(reason) is str:  # an f-string made it, or no transaction runs
        made_text(reason)
    # Half of a surrogate pair is no text that can be stored.
    made = Abort(reason.encode("utf-8", "backslashreplace").decode())
    if (seen := getattr(_WATCH, "made", None)) is not None:
        seen.append(made)
    return cast(None, made)


_WATCH = threading.local()  # .made: the aborts of the transaction that this thread runs as Python


class watched:
    """The aborts that are made meanwhile: one that is not returned must not commit."""

    # A class, as a generator takes as long as a short function that is called so.

    __slots__ = ("_before",)

    def __enter__(self) -> list[Abort]:
        self._before = getattr(_WATCH, "made", None)
        made: list[Abort] = []
        _WATCH.made = made
        return made

    def __exit__(self, *error: object) -> None:
        _WATCH.made = self._before


def verdict(answer: Any, made: list[Abort]) -> str | None:
    """Why a transaction that answered this, and made these aborts, does not commit; or None."""
    if isinstance(answer, Abort):
        return answer.reason
    if made:
        return f"error: LostAbort: abort({made[0].reason!r}) was not returned; return hg.abort(...)"
    return None


DELETES = "hg.delete takes a row, as table.at(...) or one of table.each(...) gives it"


def delete(row: Row) -> None:
    """Remove a row; it counts as missing for every transaction after this one.

    >>> import headgate as hg
    >>> seats = hg.Table("seats", "id bigint", key="id")
    >>> @hg.transaction(event="seat bigint", compiled=False)
    ... def close(event, seat=seats.at("seat")):
    ...     hg.delete(seat)
    >>> with hg.open(None, tables=[seats], transactions=[close]) as engine:
    ...     engine.load(seats, [{"id": 1}])
    ...     [engine.call(close, seat=1).reason for _ in range(2)]
    1
    [None, 'missing key: seats']
    """
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


# --- compiled forms -------------------------------------------------------------------------------


@intrinsic
def _abort_with(typing_context: Any, text: Any) -> Any:
    return abort_type(text), lambda context, builder, sig, args: args[0]


@overload(abort)
def _abort(reason: Any) -> Any:
    if isinstance(reason, TextType):
        return lambda reason: _abort_with(reason)
    raise Refusal(f"the reason of abort must be a text, not {reason}{ALWAYS}")


def _may_be_abort(value: Any) -> bool:
    return isinstance(value, types.Optional) and isinstance(value.type, AbortType)


@overload(bool)
def _abort_truth(value: Any) -> Any:
    if isinstance(value, AbortType):
        return lambda value: True
    return (lambda value: value is not None) if _may_be_abort(value) else None


@overload(operator.not_)
def _abort_not(value: Any) -> Any:
    if isinstance(value, AbortType):
        return lambda value: False
    return (lambda value: value is None) if _may_be_abort(value) else None


@intrinsic
def _bury(typing_context: Any, row: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        builder.store(builder.and_(builder.load(pointer), I64(~HEADER_ALIVE)), pointer)
        return context.get_dummy_value()

    return types.void(row), generate


def _called(kind: Any) -> str:
    """What a value is to who wrote the function."""
    if isinstance(kind, EventType | OutputType | RecordType):
        return str(kind.label)
    if isinstance(kind, RowsType):
        return "all rows of an each(...) at once: for row in rows: hg.delete(row)"
    if isinstance(kind, types.Module):
        return "a module"
    return f"a value ({kind})"


@overload(delete)
def _delete(row: Any) -> Any:
    if not isinstance(row, RecordType):
        raise Refusal(f"{DELETES}, not {_called(row)}{ALWAYS}")
    if row.read_only:
        raise Refusal(f"{row.label} was declared mode='read', so it cannot be deleted{ALWAYS}")
    return lambda row: _bury(row)


@overload(decimal, prefer_literal=True)
def _decimal(text: Any) -> Any:
    if isinstance(text, types.StringLiteral):
        return lambda text: decimal_constant(text)
    if isinstance(text, types.UnicodeType):
        return None  # Numba tries again without literals after a refusal
    raise Refusal(f"decimal() needs a literal like '0.05', not {text}")
