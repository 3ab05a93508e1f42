"""Ticks: what the threads of a batch spend their time on, in cycles of the processor.

Counted only when asked for; a thread has its own words, so counting disturbs no other.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba.core import types
from numba.extending import intrinsic

from headgate.io import RealClock
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.state.compiled import linked, numba

USEFUL, WAITED, LOCKED, UNDOING, PLANNED = range(5)
PARTS = ("useful", "sync", "lock", "abort")
IS_ON = 7  # the word that says whether to count
WORDS = 16  # of one thread: two cache lines
MEASURED_SECONDS = 0.02


@intrinsic
def cycles(typing_context: Any) -> Any:
    """The processor's cycle counter."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = llvm.FunctionType(llvm.IntType(64), [])
        name = "llvm.readcyclecounter"
        function = builder.module.globals.get(name) or llvm.Function(builder.module, kind, name)
        return builder.call(function, [])

    return types.int64(), generate


@linked
def tick(times: int) -> int:
    """Now, or 0 when nothing is counted."""
    return cycles() if get(times, IS_ON) else 0


@linked
def spend(times: int, on: int, since: int) -> int:
    """Add the cycles since a tick to what they were spent on."""
    if get(times, IS_ON):
        put(times, on, get(times, on) + cycles() - since)
    return 0


@numba.njit(nogil=True, cache=True)
def _cycles_now() -> Any:
    return cycles()


@functools.cache
def cycles_per_second() -> float:
    """How fast the counter runs, measured once."""
    clock = RealClock()
    _cycles_now()
    began, first = clock.monotonic(), _cycles_now()
    while clock.monotonic() - began < MEASURED_SECONDS:
        pass
    return float((_cycles_now() - first) / (clock.monotonic() - began))


def breakdown(times: np.ndarray, construct: float, seconds: float) -> dict[str, float]:
    """Seconds of thread time by what they went into, from the counts of all threads.

    `construct` is what planning took before they ran, `seconds` how long the threads ran; what is
    left of that is exploring: finding the next thing to run, and telling others.
    """
    counted = times[:, : PLANNED + 1].sum(axis=0) / cycles_per_second()
    found = dict(zip(PARTS, counted.tolist(), strict=False))
    planned = float(counted[PLANNED])
    explore = max(0.0, seconds * len(times) - sum(found.values()) - planned)
    return {**found, "construct": construct + planned, "explore": explore}
