"""Prefetch: ask the processor for memory before it is needed, so that waits overlap.

Only a hint: any address may be given, and nothing depends on it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.extending import intrinsic

_BYTE, _I32 = llvm.IntType(8).as_pointer(), llvm.IntType(32)
_READ, _KEEP, _DATA = _I32(0), _I32(3), _I32(1)


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line of an address."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        form = llvm.FunctionType(llvm.VoidType(), [_BYTE, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], _BYTE), _READ, _KEEP, _DATA])
        return context.get_dummy_value()

    return types.void(types.int64), generate
