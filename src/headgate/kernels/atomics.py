"""Atomics: how threads of one batch see each other's progress, on int64 words by address.

Loads acquire and stores release, so whoever sees a word also sees all that was written before it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as llvm
from numba.core import types
from numba.extending import intrinsic

from headgate.state.compiled import linked

I64 = llvm.IntType(64)
SPINS_BEFORE_YIELD = 200  # then the core is given to a thread that may have work
FAR = 2**60  # no stratum is as far

IDLE, QUEUED, TAKEN, DONE = 0, 1, 2, 3  # of a task

# The words of `sync`, each on a cache line of its own.
(
    HEAD, TAIL, DONE_COUNT, STOP, PARKED, GENERATION, FAIL_COUNT, ARRIVED, ROUND, NEXT,
    LEVEL_REACHED, UNDONE, GAVE_UP, STACK_SIZE, QUEUE_SIZE, TASK_COUNT, UNIT_COUNT, ABORTS,
) = (8 * line for line in range(18))  # fmt: skip
SYNC_WORDS = 8 * 18

# A symbol, not a pointer, so that kernels that use it can be cached on disk.
give_way = types.ExternalFunction("sched_yield", types.intc())


def _pointer(builder: Any, address: Any, place: Any) -> Any:
    return builder.inttoptr(builder.add(address, builder.mul(place, I64(8))), I64.as_pointer())


@intrinsic
def load(typing_context: Any, address: Any, place: Any) -> Any:
    """The word number `place` from an address on."""

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


@linked
def wait_for(address: int, place: int, value: int) -> int:
    """Return when the word has this value."""
    spins = 0
    while load(address, place) != value:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            give_way()
    return 0


@linked
def meet(sync: int, threads: int) -> bool:
    """Whether this thread comes last to a meeting, and must end it; the others return then."""
    before = load(sync, ROUND)
    if add(sync, ARRIVED, 1) == threads - 1:
        return True
    spins = 0
    while load(sync, ROUND) == before:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            give_way()
    return False


@linked
def end_meeting(sync: int) -> int:
    """Let those go on who came before."""
    store(sync, ARRIVED, 0)
    add(sync, ROUND, 1)
    return 0


# --- locks ----------------------------------------------------------------------------------------


@linked
def acquire(locks: int, place: int, write: int) -> int:
    """Lock a word: 0 free, -1 taken for writing, n taken by n readers."""
    spins = 0
    while True:
        held = load(locks, place)
        if write:
            if held == 0 and swap_if(locks, place, 0, -1):
                return 0
        elif held >= 0 and swap_if(locks, place, held, held + 1):
            return 0
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            give_way()


@linked
def release(locks: int, place: int, write: int) -> int:
    if write:
        store(locks, place, 0)
    else:
        add(locks, place, -1)
    return 0
