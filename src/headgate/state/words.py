"""Words: int64 words, halves of them and bytes by their address, as compiled code has them.

The ways to see a word that another thread writes are here, too: such loads acquire and such stores
release, so whoever sees the word also sees all that was written before it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as llvm
from numba.core import types
from numba.extending import intrinsic

_BYTE, _I32, _I64 = llvm.IntType(8), llvm.IntType(32), llvm.IntType(64)

# A symbol, not a pointer, so that kernels that use it can be cached on disk.
give_way = types.ExternalFunction("sched_yield", types.intc())


def _pointer(builder: Any, address: Any, place: Any) -> Any:
    return builder.inttoptr(builder.add(address, builder.mul(place, _I64(8))), _I64.as_pointer())


@intrinsic
def word_at(typing_context: Any, address: Any, place: Any) -> Any:
    """The word number `place` from an address on, which no other thread writes meanwhile."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], args[1]))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def set_word(typing_context: Any, address: Any, place: Any, value: Any) -> Any:
    """Set the word number `place` from an address on, which no other thread reads meanwhile."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def load(typing_context: Any, address: Any, place: Any) -> Any:
    """The same of a word that another thread may write."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], args[1]), "acquire", 8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def store(typing_context: Any, address: Any, place: Any, value: Any) -> Any:
    """Set the word number `place` from an address on."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _pointer(builder, args[0], args[1]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def add(typing_context: Any, address: Any, place: Any, value: Any) -> Any:
    """Add to a word and return what it was before."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], args[1])
        return builder.atomic_rmw("add", pointer, args[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def swap_if(typing_context: Any, address: Any, place: Any, expected: Any, value: Any) -> Any:
    """Set a word if it is as expected; returns whether it was."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], args[1])
        pair = builder.cmpxchg(pointer, args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64, types.int64), generate


# --- eight words at once --------------------------------------------------------------------------


@intrinsic
def any_between(typing_context: Any, address: Any, least: Any, most: Any) -> Any:
    """Whether any of eight words from an address on is between two others, inclusive."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = llvm.VectorType(_I64, 8)
        found = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=8)
        bounds = [llvm.Constant(kind, llvm.Undefined)] * 2
        for place in range(8):
            at = llvm.Constant(_I32, place)
            bounds = [
                builder.insert_element(bound, word, at)
                for bound, word in zip(bounds, args[1:], strict=True)
            ]
        low = builder.icmp_signed(">=", found, bounds[0])
        high = builder.icmp_signed("<=", found, bounds[1])
        hits = builder.bitcast(builder.and_(low, high), _BYTE)
        return builder.icmp_unsigned("!=", hits, _BYTE(0))

    return types.boolean(types.int64, types.int64, types.int64), generate


# --- halves ---------------------------------------------------------------------------------------


def _half(builder: Any, address: Any, place: Any) -> Any:
    at = builder.add(address, builder.mul(place, _I64(4)))
    return builder.inttoptr(at, _I32.as_pointer())


@intrinsic
def half_at(typing_context: Any, address: Any, place: Any) -> Any:
    """The half of a word number `place` from an address on, which has a sign."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sext(builder.load(_half(builder, args[0], args[1])), _I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def set_half(typing_context: Any, address: Any, place: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = builder.trunc(args[2], _I32)
        builder.store(half, _half(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


# --- bytes ----------------------------------------------------------------------------------------


@intrinsic
def byte_at(typing_context: Any, address: Any) -> Any:
    """The byte at an address, 0 to 255."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(args[0], _BYTE.as_pointer())), _I64)

    return types.int64(types.int64), generate


@intrinsic
def set_byte(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte = builder.trunc(args[1], _BYTE)
        builder.store(byte, builder.inttoptr(args[0], _BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def bytes_at(typing_context: Any, address: Any) -> Any:
    """The eight bytes from any address on, the first of them lowest."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()), align=1)

    return types.uint64(types.int64), generate
