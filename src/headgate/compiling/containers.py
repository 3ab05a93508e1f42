"""Containers: the rows of an `each` and the items of an array column, as a function sees them.

Both are walked, counted and asked for an element in the same way. Invariant: an element that is
handed out is within bounds; a place that is not raises IndexError, as in Python.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.core import cgutils, types
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer, signature
from numba.extending import intrinsic

from headgate.compiling.numba_types import (
    I64,
    STORED_LLVM,
    ItemsType,
    RowsType,
    WalkType,
    element_type,
    load_value,
    word_at,
)
from headgate.state.compiled import overload
from headgate.state.layout import STORED


def _element(context: Any, builder: Any, kind: Any, value: Any, place: Any) -> Any:
    """Row or item number `place`, which is within bounds."""
    proxy = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    if isinstance(kind, RowsType):
        slot = word_at(builder, proxy.slots, place)
        return builder.add(proxy.base, builder.mul(slot, I64(kind.row_bytes)))
    size = context.get_abi_sizeof(STORED_LLVM[STORED[kind.kind]])
    address = builder.add(proxy.first, builder.mul(place, I64(size)))
    return load_value(builder, address, kind.kind, STORED[kind.kind])


@overload(len)
def _length(container: Any) -> Any:
    if isinstance(container, (RowsType, ItemsType)):
        return lambda container: _count(container)
    return None


@overload(bool)
def _truth(container: Any) -> Any:
    if isinstance(container, (RowsType, ItemsType)):
        return lambda container: _count(container) != 0
    return None


@overload(operator.not_)
def _emptiness(container: Any) -> Any:
    if isinstance(container, (RowsType, ItemsType)):
        return lambda container: _count(container) == 0
    return None


@intrinsic
def _count(typing_context: Any, container: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return cgutils.create_struct_proxy(container)(context, builder, value=args[0]).count

    return types.int64(container), generate


@intrinsic
def _pick(typing_context: Any, container: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _element(context, builder, container, args[0], args[1])

    return element_type(container)(container, types.int64), generate


@overload(operator.getitem)
def _getitem(container: Any, place: Any) -> Any:
    if not isinstance(container, (RowsType, ItemsType)) or not isinstance(place, types.Integer):
        return None

    def pick(container: Any, place: Any) -> Any:
        count = _count(container)
        position = place + count if place < 0 else place
        if position < 0 or position >= count:
            raise IndexError("index out of range")
        return _pick(container, position)

    return pick


def same_length(left: Any, right: Any) -> None:
    """What zip(strict=True) asks of two sequences, with Python's words when it is not so."""
    if len(right) < len(left):
        raise ValueError("zip() argument 2 is shorter than argument 1")
    if len(right) > len(left):
        raise ValueError("zip() argument 2 is longer than argument 1")


def same_lengths(first: Any, second: Any, third: Any) -> None:
    """The same of three: Python names the one that ends first, or else the first that goes on."""
    least = min(len(first), len(second), len(third))
    if len(first) > least and len(second) == least:
        raise ValueError("zip() argument 2 is shorter than argument 1")
    if len(first) > least:
        raise ValueError("zip() argument 3 is shorter than arguments 1-2")
    if len(second) > least:
        raise ValueError("zip() argument 2 is longer than argument 1")
    if len(third) > least:
        raise ValueError("zip() argument 3 is longer than arguments 1-2")


overload(same_length)(lambda left, right: same_length)
overload(same_lengths)(lambda first, second, third: same_lengths)


@infer
class _Walk(AbstractTemplate):
    key = "getiter"

    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], (RowsType, ItemsType)):
            return signature(WalkType(args[0], element_type(args[0])), args[0])
        return None


@lower_builtin("getiter", RowsType)
@lower_builtin("getiter", ItemsType)
def _start_walk(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    walk = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    walk.container = args[0]
    walk.place = cgutils.alloca_once_value(builder, I64(0))
    return walk._getvalue()


@lower_builtin("iternext", WalkType)
def _step_walk(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    @iternext_impl(RefType.UNTRACKED)
    def step(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> None:
        kind = sig.args[0]
        walk = cgutils.create_struct_proxy(kind)(context, builder, value=args[0])
        container = cgutils.create_struct_proxy(kind.container)(
            context, builder, value=walk.container
        )
        place = builder.load(walk.place)
        more = builder.icmp_signed("<", place, container.count)
        result.set_valid(more)
        with builder.if_then(more):
            result.yield_(_element(context, builder, kind.container, walk.container, place))
            builder.store(builder.add(place, I64(1)), walk.place)

    return step(context, builder, sig, args)
