"""Atomics: how threads of one batch see each other's progress, on words by address.

The loads and stores themselves are in `state.words`.
"""

from __future__ import annotations

from headgate.state.compiled import linked
from headgate.state.words import add, give_way, load, store, swap_if

SPINS_BEFORE_YIELD = 200  # then the core is given to a thread that may have work
FAR = 2**60  # no stratum is as far

IDLE, QUEUED, TAKEN, DONE = 0, 1, 2, 3  # of a task

# The words of `sync`, each on a cache line of its own.
(
    HEAD, TAIL, DONE_COUNT, STOP, PARKED, GENERATION, FAIL_COUNT, ARRIVED, ROUND, NEXT,
    LEVEL_REACHED, UNDONE, GAVE_UP, STACK_SIZE, QUEUE_SIZE, TASK_COUNT, UNIT_COUNT, ABORTS,
) = (8 * line for line in range(18))  # fmt: skip
SYNC_WORDS = 8 * 18


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
