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

from headgate.kernels.pointers import address

# The layout: words of the batch, then those of each transaction, access, table and constraint,
# in the order of their numbers, then those that one family of kernels has besides.
OF_BATCH = (
    "order",  # by position: the event row
    "route",  # by event row: the number of its transaction
    "reason",  # by position: 0 for committed, else why not
    "progress",  # the position that the serial loop is at
    "counts",  # by table: how many rows changed, whether one was deleted
    "undo",  # the rows of one event as they were before it
    "raised",  # how many events raised, in parallel kernels
    "times",  # what a thread spends its time on, see ticks.py
)
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

_NAMES = re.compile(r"[a-z_]+[a-z](?:_\d+)?")
_MARK = "    FRAME\n"


@dataclass(frozen=True)
class FrameLayout:
    """Where each word stands, by a name such as `order` or `words_2` (of table 2)."""

    transactions: int
    accesses: int
    tables: int
    constraints: int = 0
    more: tuple[str, ...] = ()  # words that one family of kernels has besides
    moving: tuple[str, ...] = ()  # kinds of words that a kernel may change as it goes

    @cached_property
    def places(self) -> dict[str, int]:
        groups = (
            (self.transactions, OF_TRANSACTION),
            (self.accesses, OF_ACCESS),
            (self.tables, OF_TABLE),
            (self.constraints, OF_CONSTRAINT),
        )
        names = [*OF_BATCH]
        for count, kinds in groups:
            names += [f"{kind}_{number}" for number in range(count) for kind in kinds]
        return {name: place for place, name in enumerate([*names, *self.more])}

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
        named = set(_NAMES.findall(source))
        found = sorted((place, name) for name, place in self.places.items() if name in named)
        lines = [f"    {name} = {self._read(name)}(frame, {place})\n" for place, name in found]
        return source.replace(_MARK, "".join(lines))

    def _read(self, name: str) -> str:
        return "get" if name.rsplit("_", 1)[0] in self.moving else "fixed"


class Frame:
    """The words of one frame, and the arrays that they point to, which live as long as it does."""

    def __init__(self, layout: FrameLayout, words: list[int], arrays: dict[str, Any]) -> None:
        self.layout = layout
        self.arrays = arrays
        self.words = np.array(words, np.int64)
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
                continue  # of another family of kernels
            used[name] = array
            if isinstance(array, int):
                words[place] = array
            elif before.get(name) is array:
                words[place] = known[place]
            else:
                words[place] = address(array)
        return Frame(layout, words, used)

    def but(self, arrays: Mapping[str, np.ndarray | int]) -> Frame:
        """The same frame with other arrays in some places."""
        return Frame.fill(self.layout, {**self.arrays, **arrays}, self)
