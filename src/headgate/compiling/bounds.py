"""Bounds: every word a kernel reads or writes by its address checked against the arrays there are.

Kernels work on addresses, where Numba's own bounds checking cannot help. With HEADGATE_BOUNDS=1 in
the environment each access looks up the array it falls into; one that falls into none is counted
and not carried out. Far too slow for use, and meant for a test run.
"""

from __future__ import annotations

import os
from typing import Any

import numba
import numpy as np
from llvmlite import ir as llvm
from numba.core import types
from numba.extending import intrinsic

IS_ON = os.environ.get("HEADGATE_BOUNDS") == "1"
ARRAYS_MAX = 1 << 14
I64 = llvm.IntType(64)

# Word 0: how many ranges; word 1: how many accesses fell into none; then first and last addresses.
_table = np.zeros(2 + 2 * ARRAYS_MAX, np.int64)
_address = int(_table.__array_interface__["data"][0])
_kept: list[np.ndarray] = []  # a noted array stays, lest another takes its place


def note(array: np.ndarray) -> None:
    """Kernels may use this array from now on."""
    if not IS_ON or not array.nbytes:
        return
    first = int(array.__array_interface__["data"][0])
    number = int(_table[0]) % ARRAYS_MAX
    _table[2 + 2 * number : 4 + 2 * number] = first, first + array.nbytes
    _table[0] = min(int(_table[0]) + 1, ARRAYS_MAX)
    _kept.append(array)


def violations() -> int:
    """How many accesses fell into no array so far."""
    return int(_table[1])


@intrinsic
def _load(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], I64.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def _store(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _is_inside(address: int) -> bool:
    for number in range(_load(_address)):
        place = _address + 16 + 16 * number
        if _load(place) <= address and address + 8 <= _load(place + 8):
            return True
    _store(_address + 8, _load(_address + 8) + 1)
    return False


# Called through a pointer: built into every access, it would make kernels too large to compile.
is_inside: Any = numba.cfunc("boolean(int64)")(_is_inside).ctypes if IS_ON else None
