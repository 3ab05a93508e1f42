"""The serial loop: a batch in its order on one thread, its look-ups, and its steps on a row.

For each event: find its rows, keep a copy of those it may change, run the function, and either mark
what changed or put the copy back. Codes out: 0 for committed, a text's code or a fixed reason for
aborted. An exception leaves the kernel at once; `restore` then undoes that one event.

The rows of an event are found by the index alone, which no event changes: so another thread may
look them up before (`look_ahead`), and the loop goes on from there (`run_found`). But rows whose
keys depend on other rows are found when the turn of their event has come (`compute`).
"""

from __future__ import annotations

from typing import Any

from headgate.kernels.binding import (
    ask,
    compute,
    confirm,
    foresee,
    guess,
    kernel,
    match,
    part,
    seek,
    stamp,
    step,
    touch,
    undo,
)
from headgate.kernels.frame import ABORTED, ABORTED_COUNT, ORDER, PROGRESS, REASON
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.state.compiled import linked
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT

BLOCK_EVENTS = 64  # their rows, slots and index entries fit the first-level cache
AHEAD_EVENTS = 16  # twice as many have a place among those of a block
GUESS_EVENTS, ASK_EVENTS = 8, 4  # before its turn a key that depends on rows is guessed
PLACES_MASK = BLOCK_EVENTS - 1  # a slot has the place of its event, counted round the block


@kernel
def run(begin: int, end: int, epoch: int, frame: int) -> int:
    """Positions begin..end. Some events before its turn the rows of an event are asked for, and as
    many before that the entries of the index, so that the function runs while memory is on the way.

    The reasons are zeros before. An order of 0 is that of the event rows.
    """
    order = fixed(frame, ORDER)
    for i in range(begin, min(begin + 2 * AHEAD_EVENTS, end)):
        seek(event_row(order, i), (i - begin) & PLACES_MASK, frame)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        find(i, (i - begin) & PLACES_MASK, frame)
    for i in range(begin, end):
        ahead = i + 2 * AHEAD_EVENTS
        if ahead < end:
            e = event_row(order, ahead)
            seek(e, (ahead - begin) & PLACES_MASK, frame)
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            find(ahead, (ahead - begin) & PLACES_MASK, frame)
        if i + GUESS_EVENTS < end:
            e, k = event_row(order, i + GUESS_EVENTS), i + GUESS_EVENTS - begin
            guess(e, k & PLACES_MASK, frame)
        if i + ASK_EVENTS < end:
            e, k = event_row(order, i + ASK_EVENTS), i + ASK_EVENTS - begin
            ask(e, k & PLACES_MASK, frame)
        run_one(i, (i - begin) & PLACES_MASK, epoch, frame)
    return 0


@part
def find(i: int, place: int, frame: int) -> int:
    """The rows of the event at one position, by their tags; they are asked for, too."""
    order = fixed(frame, ORDER)
    e = event_row(order, i)
    match(e, place, frame)
    touch(e, place, frame)
    return 0


@part
def run_one(i: int, place: int, epoch: int, frame: int) -> int:
    """Run the event at one position, whose slots stand at `place`."""
    order = fixed(frame, ORDER)
    put(fixed(frame, PROGRESS), 0, i)
    e = event_row(order, i)
    confirm(e, place, frame)
    code = compute(e, place, frame)
    if code == 0:
        code = step(e, place, i, epoch, frame)
    if code != 0:
        total = get(frame, ABORTED_COUNT)
        put(fixed(frame, REASON), i, code)
        put(fixed(frame, ABORTED), total, i)
        put(frame, ABORTED_COUNT, total + 1)
    return 0


@kernel
def look_ahead(begin: int, end: int, place: int, frame: int) -> int:
    """Match the keys of positions begin..end, whose slots stand from `place` on.

    It reads the index alone: rows that another thread changes stay in that one's cache.
    """
    order = fixed(frame, ORDER)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        seek(event_row(order, i), place + i - begin, frame)
    for i in range(begin, end):
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            seek(event_row(order, ahead), place + ahead - begin, frame)
        match(event_row(order, i), place + i - begin, frame)
    return 0


@kernel
def run_found(begin: int, end: int, place: int, epoch: int, frame: int) -> int:
    """As `run`, for positions that were looked up ahead."""
    order = fixed(frame, ORDER)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        touch(event_row(order, i), place + i - begin, frame)
    for i in range(begin, end):
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            touch(event_row(order, ahead), place + ahead - begin, frame)
        if i + GUESS_EVENTS < end:
            guess(event_row(order, i + GUESS_EVENTS), place + i + GUESS_EVENTS - begin, frame)
        if i + ASK_EVENTS < end:
            ask(event_row(order, i + ASK_EVENTS), place + i + ASK_EVENTS - begin, frame)
        run_one(i, place + i - begin, epoch, frame)
    return 0


@kernel
def restore(i: int, place: int, frame: int) -> int:
    """Undo the event at one position, whose function raised and whose slots stand at `place`."""
    order = fixed(frame, ORDER)
    undo(event_row(order, i), place, frame)
    return 0


@kernel
def resolve(begin: int, end: int, frame: int) -> int:
    """Look up the rows of every event in positions begin..end, as a plan needs them before
    anything runs."""
    for block in range(begin, end, BLOCK_EVENTS):
        find_block(block, min(block + BLOCK_EVENTS, end), frame)
    return 0


@part
def find_block(begin: int, end: int, frame: int) -> int:
    """The same of a few events, in passes, so that waits for memory overlap."""
    order = fixed(frame, ORDER)
    for i in range(begin, end):
        e = event_row(order, i)
        seek(e, e, frame)
    for i in range(begin, end):
        find(i, event_row(order, i), frame)
    for i in range(begin, end):
        e = event_row(order, i)
        confirm(e, e, frame)
    return 0


@kernel
def predict(begin: int, end: int, section: int, frame: int) -> int:
    """Find the rows whose keys depend on others, for positions begin..end that were resolved.

    Returns the first position whose rows are not certain: an event between `begin` and it may write
    what decides on them. Sections have numbers that no earlier one had.
    """
    order, progress = fixed(frame, ORDER), fixed(frame, PROGRESS)
    for i in range(begin, end):
        put(progress, 0, i)
        e = event_row(order, i)
        confirm(e, e, frame)
        if foresee(e, section, frame):
            return i
        stamp(e, section, frame)
    return end


# --- steps: what every generated kernel does with a row -------------------------------------------
# Whatever its table: copy, compare, mark. Rows are named by the address of a table's words, a slot,
# and the width of a row in words; the copy to undo a transaction stands at place `u` of its `undo`.


@linked
def event_row(order: int, i: int) -> Any:
    """The event at a position; an order of 0 is that of the event rows."""
    return get(order, i) if order != 0 else i


@linked
def is_alive(words: int, slot: int, width: int) -> Any:
    return get(words, slot * width) & HEADER_ALIVE != 0


@linked
def keep(words: int, slot: int, after: int, place: int, width: int) -> None:
    """Copy the row as the transaction leaves it, for its results."""
    for w in range(width):
        put(after, place * width + w, get(words, slot * width + w))


@linked
def show(words: int, slot: int, defaults: int, key_words: int, width: int) -> None:
    """Let a dead row have the values that it would be made with; it stays dead."""
    if get(words, slot * width) & HEADER_ALIVE == 0:
        for w in range(1 + key_words, width):
            put(words, slot * width + w, get(defaults, w))


@linked
def create(words: int, slot: int, defaults: int, key_words: int, width: int) -> None:
    """Bring a dead row to life, with the defaults of its columns."""
    if get(words, slot * width) & HEADER_ALIVE == 0:
        put(words, slot * width, get(words, slot * width) | 1)
        for w in range(1 + key_words, width):
            put(words, slot * width + w, get(defaults, w))


@linked
def differs(words: int, slot: int, undo: int, u: int, width: int) -> bool:
    """Whether the transaction changed the row."""
    if (get(words, slot * width) ^ get(undo, u)) & HEADER_ALIVE:
        return True
    for w in range(1, width):
        if get(words, slot * width + w) != get(undo, u + w):
            return True
    return False


@linked
def fresh(row: int, epoch: int, counts: int, table: int) -> Any:
    """The place of a row among the changed ones of its table, if this is its first change in this
    epoch, else -1."""
    return get(counts, 2 * table) if get(row, 0) >> HEADER_EPOCH_SHIFT != epoch else -1


@linked
def mark(row: int, slot: int, epoch: int, changed: int, counts: int, table: int) -> None:
    """List a row as changed in this epoch, once.

    It is written behind the others in any case, and counted when it is new: a branch that nobody
    can foresee would cost more.
    """
    header, count = get(row, 0), get(counts, 2 * table)
    put(changed, count, slot)
    put(counts, 2 * table, count + (header >> HEADER_EPOCH_SHIFT != epoch))
    put(row, 0, (epoch << HEADER_EPOCH_SHIFT) | (header & HEADER_ALIVE))


@linked
def no_keys(e: int, k: int, frame: int) -> int:
    """What is to be computed where every key is in the event."""
    return 0


# --- look-ups ---------------------------------------------------------------------------------


@linked
def tagged(entries: int, mask: int, value: int) -> Any:
    """The slot of the first entry with the tag of this hash, -1 when an empty one comes before.

    Two entries at once: which of them it is cannot be foreseen, that it is one of them can.
    """
    place = value & mask
    entry, other = get(entries, place), get(entries, (place + 1) & mask)
    if entry != 0 and (entry ^ value) >> 32 != 0:
        entry = other
    if entry != 0 and (entry ^ value) >> 32 != 0:
        place += 2
        entry = get(entries, place & mask)
        while entry != 0 and (entry ^ value) >> 32 != 0:
            place += 1
            entry = get(entries, place & mask)
    return (entry & 0xFFFFFFFF) - 1


# --- versions of rows -------------------------------------------------------------------------


@linked
def copy(source: int, target: int, width: int) -> int:
    for w in range(width):
        put(target, w, get(source, w))
    return 0


@linked
def differ(one: int, other: int, width: int) -> int:
    """Whether two versions of a row are not the same."""
    if (get(one, 0) ^ get(other, 0)) & HEADER_ALIVE:
        return 1
    for w in range(1, width):
        if get(one, w) != get(other, w):
            return 1
    return 0


STEPS = (is_alive, keep, show, create, differs, fresh, mark, tagged, copy, differ)
