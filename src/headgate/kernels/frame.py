"""Frames: the one argument of a kernel, an address of words that are addresses in their turn.

A kernel knows the place of each word from its layout, so however many tables and parameters its
transactions have, it takes a frame and a few numbers. Numba could not compile more than thirty
arguments within a `try`, and passing them costs more than loading the few that a step needs.

Invariant: the words of a frame do not change while a kernel runs over it, but for the slots of a
frame that a protocol sets for each event; and every array a word points to lives as long as it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headgate.kernels.pointers import BITS, address, own_lines
from headgate.state.columns import StoredColumn

# The layout: words of the batch at places that every kernel knows, then those of each transaction,
# access, table and constraint, in the order of their numbers. What a batch does not need is 0.
OF_BATCH = (
    "order",  # by position: the event row
    "route",  # by event row: the number of its transaction
    "reason",  # by position: 0 for committed, else why not
    "progress",  # the position that the serial loop is at
    "aborted",  # the positions of those that did not commit, in the serial loop
    "aborted_count",  # of them, itself: the one word that the loop changes
    "counts",  # by table: how many rows changed, whether one was deleted
    "undo",  # the rows of one event as they were before it
    "epoch",  # of the batch, itself
    "count",  # of positions, itself
    # --- several threads
    "raised",  # how many events raised
    "times",  # what a thread spends its time on, see ticks.py
    "sync",  # words that threads see each other's progress by, see atomics.py
    # --- the operations of the batch
    "bases",  # by table: the number of its first row
    "starts",  # by position: its first operation
    "rows",  # by operation: the row it touches
    "writes",  # by operation: whether it may write
    # --- tasks: what a thread takes at once, and who waits for whom
    "eager",  # whether an abort is settled at once, itself
    "strata",  # how many, itself
    "strata_starts",  # by stratum: its first entry in by_stratum
    "by_stratum",  # tasks, stratum after stratum
    "task_before_starts", "task_before",  # by task: those it waits for
    "task_after_starts", "task_after",  # by task: those that wait for it
    "claim",  # by task: IDLE, QUEUED, TAKEN or DONE
    "waiting",  # by task: for how many others it waits
    "queue",  # of tasks that are ready
    "task_starts", "members",  # by task: its units
    "stratum",  # by task
    "task_of",  # by unit
    # --- turns and locks of the schemes kept for comparison
    "locks",  # by row: see atomics.acquire
    "counters",  # by partition: whose turn it is
    "parts", "tickets",  # by operation: its partition or row, and its turn there
    "tails", "water_marks",  # by row: the last turn given out, and the one that is on
    "pool", "pool_first", "pool_last", "pool_begin",  # chains; a thread's share and where it begins
    "places",  # by chain: how far it has come
    # --- shares, see shares.py
    "dealt", "dealt_ends",  # by thread and share of the rows: operations, the address behind them
    "dealt_room",  # for so many, itself
    "links", "links_room",  # by event: whom its operations wait for; for so many words, itself
    "block_starts",  # by block: where its links begin
    "done_blocks",  # by block: whether it has run; for protocols, whether its rows are found
    "last_blocks",  # by row: the last block that wrote it, and that read it
    "first_block",  # the number that those of the batch begin with there, itself
    # --- units over versions, see versions.py
    "slots", "tables",  # by operation: the row's slot, its table
    "previous",  # by operation: the one that wrote the row before
    "version_offsets", "versions",  # by operation: where its version stands; the versions
    "version_changed",  # by operation: whether its version is another than the one before
    "locals",  # by operation: its place among the scratch rows of its table
    "unit_of",  # by operation: the unit that writes it
    "state", "codes", "rank",  # by unit: BLK, RDY, EXE, ABT; why it failed; which reason counts
    "failed",  # by position: whether the transaction failed
    "fails",  # the failed ones that are to be settled
    "transaction_of", "part",  # by unit: its position, and which slice of it it is
    "unit_starts",  # by position: its first unit
    "read_starts", "reads",  # by unit: the operations whose rows it looks at
    "before_starts", "before", "after_starts", "after",  # by unit: who waits for whom
    "stack",  # units that are to be undone
    "scratch",  # by table: rows of the thread's own
    "lists",  # by access: its operations, its places among the scratch rows
    "sizes",  # how many operations, units and reads were found
    # --- protocols, see protocols.py
    "level",  # 1 to 4, itself
    "held",  # of each row of all tables: ROW_WORDS
    "stamps",  # by position: its number in the order of commits
    "homes",  # by table: TABLE_WORDS, see HOME_ROWS and on
    "table_count",  # itself
    "mine",  # the operations of the thread's event: OPERATION_WORDS each
    "turn",  # those in row order
    "elements",  # which of them each row of the parameters is
    "private",  # and where the step finds it
    "final",  # as `counts`, of what the thread has committed
    "retries",  # how often an event ran again
    "seen_starts", "seen",  # the recording, or 0; where the rows of a position begin in it
    "own",  # the frame of the thread's steps, whose slots are set for each event
)  # fmt: skip
# What only generated text asks for has no name here.
(
    ORDER, ROUTE, REASON, PROGRESS, ABORTED, ABORTED_COUNT, COUNTS, _, EPOCH, COUNT,
    RAISED, TIMES, SYNC,
    BASES, STARTS, ROWS, WRITES,
    EAGER, STRATA, STRATA_STARTS, BY_STRATUM, TASK_BEFORE_STARTS, TASK_BEFORE, TASK_AFTER_STARTS,
    TASK_AFTER, CLAIM, WAITING, QUEUE, TASK_STARTS, MEMBERS, STRATUM, TASK_OF,
    LOCKS, COUNTERS, PARTS, TICKETS, TAILS, WATER_MARKS, POOL, POOL_FIRST, POOL_LAST,
    POOL_BEGIN, PLACES,
    DEALT, DEALT_ENDS, DEALT_ROOM, LINKS, LINKS_ROOM, BLOCK_STARTS, DONE_BLOCKS, LAST_BLOCKS,
    FIRST_BLOCK,
    SLOTS, TABLES, PREVIOUS, VERSION_OFFSETS, VERSIONS, VERSION_CHANGED, LOCALS, UNIT_OF, STATE,
    CODES, RANK, FAILED, FAILS, TRANSACTION_OF, PART, UNIT_STARTS, READ_STARTS, READS,
    BEFORE_STARTS, BEFORE, AFTER_STARTS, AFTER, STACK, _, LISTS, SIZES,
    LEVEL, HELD, STAMPS, HOMES, TABLE_COUNT, MINE, TURN, ELEMENTS, PRIVATE, FINAL, RETRIES,
    SEEN_STARTS, SEEN, OWN,
) = range(len(OF_BATCH))  # fmt: skip
# The words of a table in `homes`.
HOME_ROWS, HOME_WIDTH, HOME_SCRATCH, HOME_CHANGED, HOME_IMAGES, HOME_COPIES = range(6)
TABLE_WORDS = 8

OF_TRANSACTION = (
    "columns",  # the addresses of the event's columns
    "out",  # the output records
)
OF_ACCESS = (
    "slots",  # the rows that its keys name, -1 for none
    "offsets",  # of `each`: where the keys of an event begin
    "after",  # with `updates`: the rows as each transaction left them
)
OF_TABLE = (
    "words",  # the rows
    "changed",  # the slots of those that changed
    "images",  # those rows as they were before the batch; 0 for not kept
    "defaults",  # a row as it is created
    "entries",  # the key index
    "mask",  # the size of that index less one, itself and not an address
)
OF_CONSTRAINT = (
    "unique",  # the index of a unique constraint
    "unique_mask",  # its size less one, itself
    "children",  # by parent: how many rows refer to it
)
OF_INDEX = (  # of those that the transactions both look into and change
    "tree",  # its entries, see state/tree.py
    "waiting",  # the slots of rows that have changed since somebody looked, see state/entries.py
)
OF_TRAIL = ("trail",)  # of a table whose versions are looked at or kept, see state/trail.py
OF_RANGES = ("rooms",)  # of all of them: how much room there is, see generating_look_ups.py

OF_EXPIRY = (  # where rows may expire within the batch, see timely.py
    "wakes",  # when the next one does, and what is known of that, see sweeping.py
    "moments",  # by position: how late it is
)

REACH = "texts_at(texts)"  # what a function gets that looks at the characters of texts
OF_POOL = ("texts",)  # the way to characters, where a transaction looks at them, see characters.py
OF_DYNAMIC = (  # of each table, where the keys of some rows depend on other rows
    "spare",  # slots that rows may be made in as the batch runs
    "used",  # one word: how many of them have been taken
    "stamps",  # by slot: the last section in which an event may write what look-ups read
)

_NAMES = re.compile(r"[a-z_]+[a-z](?:_\d+)?")
_ARGUMENTS = re.compile(r"def \w+\(([^)]*)\)")  # which hide the words of the same name
_MARK = "    FRAME\n"


@dataclass(frozen=True)
class FrameLayout:
    """Where each word stands, by a name such as `order` or `words_2` (of table 2)."""

    transactions: int
    accesses: int
    tables: int
    constraints: int = 0
    moving: tuple[str, ...] = ()  # kinds of words that a kernel may change as it goes
    has_dynamic: bool = False  # whether rows are found by keys that depend on other rows
    indexes: int = 0
    trails: int = 0
    has_expiry: bool = False  # whether rows may expire within the batch

    @cached_property
    def places(self) -> dict[str, int]:
        groups = (
            (self.transactions, OF_TRANSACTION),
            (self.accesses, OF_ACCESS),
            (self.tables, OF_TABLE),
            (self.constraints, OF_CONSTRAINT),
            (self.tables if self.has_dynamic else 0, OF_DYNAMIC),
            (self.indexes, OF_INDEX),
            (min(self.indexes, 1), OF_RANGES),
            (self.trails, OF_TRAIL),
            (int(self.has_expiry), OF_EXPIRY),
        )
        names = [*OF_BATCH]
        for count, kinds in groups:
            names += [f"{kind}_{number}" for number in range(count) for kind in kinds]
        names += OF_POOL
        return {name: place for place, name in enumerate(names)}

    @property
    def size(self) -> int:
        return len(self.places)

    def bound(self, source: str) -> str:
        """The text of a function, its line FRAME replaced: every word it names becomes a local.

        >>> text = "def f(e, frame):\\n    FRAME\\n    return get(order, e)"
        >>> print(FrameLayout(1, 1, 1).bound(text))
        def f(e, frame):
            order = fixed(frame, 0)
            return get(order, e)
        """
        arguments = _ARGUMENTS.search(source)
        named = set(_NAMES.findall(source)) - set(_NAMES.findall(arguments[1] if arguments else ""))
        found = sorted((place, name) for name, place in self.places.items() if name in named)
        lines = [f"    {name} = {self._read(name)}(frame, {place})\n" for place, name in found]
        return source.replace(_MARK, "".join(lines))

    def _read(self, name: str) -> str:
        return "get" if name.rsplit("_", 1)[0] in self.moving else "fixed"


class Frame:
    """The words of one frame, and the arrays that they point to, which live as long as it does."""

    def __init__(
        self, layout: FrameLayout, words: list[int] | np.ndarray, arrays: dict[str, Any]
    ) -> None:
        self.layout = layout
        self.arrays = arrays
        self.words = own_lines(len(words))  # a thread sets its slots here for each event
        self.words[:] = words
        self.address = address(self.words)

    @staticmethod
    def fill(
        layout: FrameLayout, arrays: Mapping[str, np.ndarray | int], like: Frame | None = None
    ) -> Frame:
        """A frame of these arrays (or words themselves) by name; what is not named is 0.

        `like` is another of the same layout, whose addresses of the very same arrays are taken
        over: to ask an array for its address takes longer than to see that it is the same.
        """
        before, known = (like.arrays, like.words.tolist()) if like is not None else ({}, [])
        words = [0] * layout.size
        places, used = layout.places, {}
        for name, array in arrays.items():
            place = places.get(name)
            if place is None:
                continue  # of tables or accesses that these kernels do not know
            used[name] = array
            if isinstance(array, int):
                words[place] = array
            elif before.get(name) is array:
                words[place] = known[place]
            else:
                words[place] = address(array)
        return Frame(layout, words, used)

    def but(self, arrays: Mapping[str, np.ndarray | int]) -> Frame:
        """The same frame with other arrays in some places.

        Only these are looked at: each thread of a batch has a frame, and most of it is the same.
        """
        found = Frame(self.layout, self.words, self.arrays.copy())
        places, words, used = self.layout.places, found.words, found.arrays
        for name, array in arrays.items():
            place = places.get(name)
            if place is not None:
                used[name] = array
                words[place] = array if isinstance(array, int) else address(array)
        return found


def column_addresses(places: Mapping[str, int], columns: Mapping[str, StoredColumn]) -> np.ndarray:
    """The addresses of an event's columns, at the places the kernel was compiled for."""
    found = [0] * (2 * len(places) + 1)
    for name, place in places.items():
        column: Any = columns[name]
        found[place] = address(column.values)
        if column.offsets is not None:
            found[place + 1] = address(column.offsets)
        elif column.nulls is not None:
            found[place + 1] = BITS * address(column.valid)
    return np.array(found, np.int64)
