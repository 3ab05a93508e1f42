"""Optionals: values that may be None, as a nullable column or a branch gives them.

Compiled, such a value is Numba's optional: the value and whether there is one. Numba takes the
value out of it wherever one is needed; here that is always said, by `present`, so that None raises
the TypeError that it raises in Python, with the same words everywhere (`NONE_WORDS`). Invariant: no
operation looks at the bytes of a value that is not there.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from headgate.compiling.refusals import ALWAYS, Refusal
from headgate.compiling.uncompiled import NONE_WORDS
from headgate.state.compiled import overload

I64 = ir.IntType(64)


def is_none_type(kind: Any) -> bool:
    """Whether it is None and nothing else, also as a default that nobody overrode."""
    return isinstance(kind, types.NoneType) or (
        isinstance(kind, types.Omitted) and kind.value is None
    )


def is_optional(*kinds: Any) -> bool:
    """Whether one of them may be None, or is it."""
    return any(isinstance(kind, types.Optional) or is_none_type(kind) for kind in kinds)


def inner_of(kind: Any) -> Any:
    """The type of the value, where there is one."""
    return kind.type if isinstance(kind, types.Optional) else kind


def holds_none(kind: Any) -> bool:
    """Whether it is a tuple, one of whose parts may be None."""
    return isinstance(kind, types.BaseTuple) and any(
        is_optional(part) or holds_none(part) for part in kind
    )


@intrinsic
def present(typing_context: Any, value: Any) -> Any:
    """The value itself; TypeError where there is none."""
    if is_none_type(value):
        raise Refusal(f"None stands where a value is needed, which raises a TypeError{ALWAYS}")
    if not isinstance(value, types.Optional):
        return value(value), lambda context, builder, sig, args: args[0]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return taken(context, builder, value, args[0])

    return value.type(value), generate


def taken(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The value out of an optional of this type; code that raises where there is none."""
    found = context.make_helper(builder, kind, value=value)
    lacking = builder.not_(cgutils.as_bool_bit(builder, found.valid))
    with builder.if_then(lacking, likely=False):
        context.call_conv.return_user_exc(builder, TypeError, (NONE_WORDS,))
    return found.data


@intrinsic
def not_none(typing_context: Any, value: Any) -> Any:
    """The value of a variable behind a test that it is not None: for its type, where it has one."""
    if not isinstance(value, types.Optional):
        return value(value), lambda context, builder, sig, args: args[0]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return taken(context, builder, value, args[0])

    return value.type(value), generate


@intrinsic
def is_none(typing_context: Any, value: Any) -> Any:
    """Whether there is no value."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not isinstance(value, types.Optional):
            return cgutils.true_bit if is_none_type(value) else cgutils.false_bit
        found = context.make_helper(builder, value, value=args[0])
        return builder.not_(cgutils.as_bool_bit(builder, found.valid))

    return types.boolean(value), generate


def made_optional(context: Any, builder: Any, kind: Any, value: Any, is_null: Any) -> Any:
    """The optional of a value of this type and of whether it is none."""
    found = context.make_helper(builder, types.Optional(kind))
    found.data = value
    found.valid = builder.not_(is_null)
    return found._getvalue()


def null_bit_of(builder: Any, word: Any, mask: int) -> Any:
    """Whether a bit of a word is set."""
    return builder.icmp_unsigned("!=", builder.and_(word, I64(mask)), I64(0))


def is_null_at(builder: Any, bits: Any, row: Any, load: Any) -> Any:
    """Whether a row of an Arrow column is null, by the address of its validity in bits (0: there
    is none, and every row has a value)."""
    before = builder.block
    with builder.if_then(builder.icmp_unsigned("!=", bits, I64(0))):
        place = builder.add(bits, row)
        pointer = builder.inttoptr(builder.lshr(place, I64(3)), ir.IntType(8).as_pointer())
        byte = builder.zext(load(builder, pointer), I64)
        bit = builder.and_(builder.lshr(byte, builder.and_(place, I64(7))), I64(1))
        is_null, inside = builder.icmp_unsigned("==", bit, I64(0)), builder.block
    found = builder.phi(ir.IntType(1))
    found.add_incoming(cgutils.false_bit, before)
    found.add_incoming(is_null, inside)
    return found


# --- truth ----------------------------------------------------------------------------------------


def truth(value: Any) -> Any:
    """`bool(value)` of what may be None, which is false."""
    return bool(value)


@overload(truth)
def _truth(value: Any) -> Any:
    if is_none_type(value):
        return lambda value: False
    if is_optional(value):
        return lambda value: not is_none(value) and bool(present(value))
    return lambda value: bool(value)


truth.__name__ = "bool"  # messages name it


def opposite(value: Any) -> Any:
    """`not value`, true of None."""
    return not value


@overload(opposite)
def _not(value: Any) -> Any:
    if is_optional(value):
        return lambda value: is_none(value) or not bool(present(value))
    return lambda value: not value


opposite.__name__ = "not"
