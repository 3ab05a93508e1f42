"""Buffers: what waits between two nodes, and how a node with several inputs takes from them.

A buffer inside one worker is a plain queue. One between two workers is a list of links with a
dummy at its head (Michael and Scott's queue as StreamAPAS cuts it down): the producer only ever
moves the tail, the consumer only the head, so that neither needs a lock. Invariant: with one
producer and one consumer nothing is lost, doubled or overtaken. How much may wait is bounded by
who puts (workers).

What waits is known by number, rows and time; the rows themselves are the dataflow's (under_way).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Waiting(NamedTuple):
    """A batch that is whole on a stream."""

    number: int
    rows: int
    since: float  # when it became whole, in seconds of a clock that only goes on


class Buffer(Protocol):
    """Batches of one stream on their way to one node."""

    def put(self, batch: Waiting) -> None: ...

    def first(self) -> Waiting | None: ...

    def take(self) -> Waiting | None: ...


class LocalBuffer:
    """A buffer whose two ends one worker has."""

    def __init__(self) -> None:
        self._batches: deque[Waiting] = deque()

    def put(self, batch: Waiting) -> None:
        """The stream has another batch."""
        self._batches.append(batch)

    def first(self) -> Waiting | None:
        """The batch that comes next; None when there is none."""
        return self._batches[0] if self._batches else None

    def take(self) -> Waiting | None:
        """The same, which is then here no more."""
        return self._batches.popleft() if self._batches else None


class _Link:
    __slots__ = ("batch", "next")

    def __init__(self, batch: Waiting | None) -> None:
        self.batch = batch
        self.next: _Link | None = None


class PipeBuffer:
    """A buffer from one worker to another one: a producer, a consumer and no lock.

    The dummy at the head keeps the two apart: while there is a batch, or none, they never write the
    same link. A link is reached by `next` only after its batch stands in it.
    """

    def __init__(self) -> None:
        self._head = self._tail = _Link(None)

    def put(self, batch: Waiting) -> None:
        """Only the producer calls this."""
        link = _Link(batch)
        self._tail.next = link
        self._tail = link

    def first(self) -> Waiting | None:
        """Only the consumer calls this."""
        link = self._head.next
        return None if link is None else link.batch

    def take(self) -> Waiting | None:
        """Only the consumer calls this; the link that is taken is the next dummy."""
        link = self._head.next
        if link is None:
            return None
        self._head = link
        batch, link.batch = link.batch, None
        return batch


class OrderedMerge:
    """The inputs of one node, taken in the order of their batches (StreamAPAS, algorithm 1).

    A register for each input has the number that it came to: of what is first there, or was last.
    While no input is empty, the lowest number comes next. When one is, only what is as low as the
    lowest register may come: nothing lower can follow on any input, so that batches of one number
    are all taken, though the input that gave its own first is empty again by then.
    """

    def __init__(self, inputs: Sequence[Buffer]) -> None:
        self.inputs: tuple[Buffer, ...] = tuple(inputs)
        self._registers = [0] * len(self.inputs)
        self._taken: dict[int, list[Waiting]] = {}  # by number: what came of it so far

    def next_input(self) -> int | None:
        """Which input is to be taken from; None when the order does not allow any."""
        firsts = [one.first() for one in self.inputs]
        there = [(one.number, place) for place, one in enumerate(firsts) if one is not None]
        for number, place in there:
            self._registers[place] = number
        if not there:
            return None
        lowest, place = min(there)
        is_whole = len(there) == len(firsts)
        return place if is_whole or lowest <= min(self._registers) else None

    def take_all(self) -> None:
        """Take what the order allows."""
        while True:
            place = self.next_input()
            if place is None:
                return
            batch = self.inputs[place].take()
            if batch is not None:
                self._taken.setdefault(batch.number, []).append(batch)

    def whole(self, after: int) -> Waiting | None:
        """The batch behind this number, if it has come on all inputs."""
        self.take_all()
        for number in [one for one in self._taken if one <= after]:
            del self._taken[number]
        found = self._taken.get(after + 1)
        if found is None or len(found) < len(self.inputs):
            return None
        rows, since = sum(one.rows for one in found), max(one.since for one in found)
        return Waiting(after + 1, rows, since)
