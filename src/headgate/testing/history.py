"""Histories: who read and wrote which version, and which anomalies that shows.

A history is judged as Adya, Liskov and O'Neil define it. Its committed transactions are the nodes
of a graph whose edges say who comes before whom in any serial order: ww (it installed the version
that the other replaced), wr (it installed the version that the other read), rw (it read the version
that the other replaced). An anomaly is a cycle, or a read of what was never installed.

>>> skew = History.parse("r1(x0) r1(y0) r2(x0) r2(y0) w1(x) w2(y) c1 c2")
>>> [anomaly.kind for anomaly in skew.anomalies()]
['G2', 'order']
>>> skew.violations("PL2")
[]
>>> str(skew.violations("PL3")[0])
'G2: 1 -rw-> 2 -rw-> 1'
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.isolation.levels import Recording

KINDS = {
    "G0": "a cycle of writes: the writes of two transactions are in no one order",
    "G1a": "a read of what an aborted transaction wrote",
    "G1b": "a read of what its writer had not finished writing",
    "G1c": "a cycle of reads and writes: each depends on the other",
    "G-single": "a cycle with one overwritten read, such as a lost update or a read skew",
    "G2": "a cycle with overwritten reads, such as a write skew",
    "order": "an event that depends on one that comes after it",
}
# What each level does not admit.
PROSCRIBED = {
    "PL1": ("G0",),
    "PL2": ("G0", "G1a", "G1b", "G1c"),
    "PL3": ("G0", "G1a", "G1b", "G1c", "G-single", "G2"),
    "PL4": ("G0", "G1a", "G1b", "G1c", "G-single", "G2", "order"),
}
Name = Hashable
Item = Hashable
Edges = dict[tuple[Name, Name], str]


@dataclass(frozen=True)
class Read:
    """A version as it was read: who wrote it (None: it was there before), whether it was final."""

    item: Item
    writer: Name | None
    is_final: bool = True


@dataclass(frozen=True)
class Observed:
    """What one transaction did: the versions it read, the items it wrote."""

    name: Name
    committed: bool
    reads: tuple[Read, ...] = ()
    writes: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Anomaly:
    """What a history shows: its kind, who took part, and how they depend on each other."""

    kind: str
    names: tuple[Name, ...]
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


class History:
    """Transactions in event order, and for each item its versions' writers in order."""

    def __init__(
        self, transactions: Iterable[Observed], versions: Mapping[Item, Sequence[Name]]
    ) -> None:
        self.transactions: dict[Name, Observed] = {one.name: one for one in transactions}
        self.places: dict[Name, int] = {name: place for place, name in enumerate(self.transactions)}
        done = {name for name, one in self.transactions.items() if one.committed}
        self.versions: dict[Item, list[Name]] = {
            item: [name for name in writers if name in done] for item, writers in versions.items()
        }
        self._labels = self._edges()

    @classmethod
    def parse(cls, text: str) -> History:
        """A history as it is written on paper.

        `w1(x)` writes x, `r2(x1)` reads what 1 wrote, `r2(x0)` what was there before, `r2(x1.1)`
        the first of several writes; `c1` and `a1` end it; `[x: 2 1]` gives the order of versions,
        which is else the order of the commits. Event order is the order of the numbers.
        """
        return _parsed(text)

    @classmethod
    def observed(cls, recording: Recording) -> History:
        """What the events of one batch were seen to do: `engine.run(..., record=[...])`.

        An event's name is its place in event order; an item is a table and the slot of a row.
        """
        return _observed(recording)

    # --- edges ----------------------------------------------------------------------------------

    def _edges(self) -> Edges:
        """Who comes before whom, with the kinds of it: ww, wr, rw."""
        found: dict[tuple[Name, Name], set[str]] = {}

        def link(one: Name | None, other: Name | None, kind: str) -> None:
            if one is not None and other is not None and one != other:
                found.setdefault((one, other), set()).add(kind)

        following: dict[tuple[Item, Name | None], Name] = {}
        for item, writers in self.versions.items():
            before: Name | None = None
            for writer in writers:
                link(before, writer, "ww")
                following[item, before] = writer
                before = writer
        for reader in self.transactions.values():
            for read in reader.reads if reader.committed else ():
                if read.writer is None or self._is_committed(read.writer):
                    link(read.writer, reader.name, "wr")
                    link(reader.name, following.get((read.item, read.writer)), "rw")
        return {pair: "/".join(sorted(kinds)) for pair, kinds in found.items()}

    def _is_committed(self, name: Name) -> bool:
        return name in self.transactions and self.transactions[name].committed

    def edges(self, *kinds: str) -> set[tuple[Name, Name]]:
        """The pairs that depend on each other in one of these ways."""
        return {pair for pair, found in self._labels.items() if set(found.split("/")) & set(kinds)}

    # --- anomalies ------------------------------------------------------------------------------

    def anomalies(self) -> list[Anomaly]:
        """Everything this history shows, the worst first, each kind at most once."""
        found = [self._cycle("G0", ("ww",), "ww"), *self._bad_reads()]
        found.append(self._cycle("G1c", ("ww", "wr"), "wr"))
        found.append(self._single())
        found.append(self._cycle("G2", ("ww", "wr", "rw"), "rw"))
        found.append(self._disorder())
        return [anomaly for anomaly in found if anomaly is not None]

    def violations(self, level: str) -> list[Anomaly]:
        """What it shows and the level does not admit."""
        return [one for one in self.anomalies() if one.kind in PROSCRIBED[level]]

    def _bad_reads(self) -> list[Anomaly | None]:
        aborted, unfinished = None, None
        for reader in self.transactions.values():
            for read in reader.reads if reader.committed else ():
                if read.writer is None or read.writer == reader.name:
                    continue
                words = f"{reader.name} read {read.item} of {read.writer}"
                names = (reader.name, read.writer)
                if not self._is_committed(read.writer):
                    aborted = aborted or Anomaly("G1a", names, f"{words}, which aborted")
                elif not read.is_final:
                    unfinished = unfinished or Anomaly("G1b", names, f"{words} before its end")
        return [aborted, unfinished]

    def _cycle(self, kind: str, kinds: Sequence[str], needed: str) -> Anomaly | None:
        """A cycle of edges of these kinds that has one of the needed kind."""
        edges = self.edges(*kinds)
        after = _adjacency(edges)
        group = _groups(after)
        for one, other in sorted(self.edges(needed), key=repr):
            if group.get(one) == group.get(other) and group.get(one) is not None:
                return self._anomaly(kind, [one, *_path(after, other, one)])
        return None

    def _single(self) -> Anomaly | None:
        """An anti-dependency that dependencies lead back from."""
        after = _adjacency(self.edges("ww", "wr"))
        for one, other in sorted(self.edges("rw"), key=repr):
            path = _path(after, other, one)
            if path:
                return self._anomaly("G-single", [one, *path])
        return None

    def _disorder(self) -> Anomaly | None:
        for one, other in sorted(self._labels, key=repr):
            if self.places[one] > self.places[other]:
                return self._anomaly("order", [one, other])
        return None

    def _anomaly(self, kind: str, names: Sequence[Name]) -> Anomaly:
        words = str(names[0])
        for pair in pairwise(names):
            words += f" -{self._labels[pair]}-> {pair[1]}"
        return Anomaly(kind, tuple(dict.fromkeys(names)), words)


# --- graphs -------------------------------------------------------------------------------------


def _adjacency(edges: Iterable[tuple[Name, Name]]) -> dict[Name, list[Name]]:
    after: dict[Name, list[Name]] = {}
    for one, other in sorted(edges, key=repr):
        after.setdefault(one, []).append(other)
        after.setdefault(other, [])
    return after


def _path(after: Mapping[Name, Sequence[Name]], start: Name, goal: Name) -> list[Name]:
    """The shortest way from start to goal, both included; empty when there is none."""
    came: dict[Name, Name | None] = {start: None}
    waiting = [start]
    for name in waiting:
        if name == goal:
            break
        for other in after.get(name, ()):
            if other not in came:
                came[other] = name
                waiting.append(other)
    if goal not in came:
        return []
    path: list[Any] = [goal]
    while came[path[-1]] is not None:
        path.append(came[path[-1]])
    return path[::-1]


def _groups(after: Mapping[Name, Sequence[Name]]) -> dict[Name, int]:
    """The strongly connected components, by two walks (Kosaraju): who can reach whom and back."""
    done: list[Name] = []
    seen: set[Name] = set()
    for root in after:
        _walk(after, root, seen, done)
    before: dict[Name, list[Name]] = {name: [] for name in after}
    for name, others in after.items():
        for other in others:
            before[other].append(name)
    group: dict[Name, int] = {}
    grouped: set[Name] = set()
    for number, root in enumerate(reversed(done)):
        members: list[Name] = []
        _walk(before, root, grouped, members)
        group.update(dict.fromkeys(members, number))
    return group


def _walk(
    after: Mapping[Name, Sequence[Name]], root: Name, seen: set[Name], done: list[Name]
) -> None:
    """Depth first from the root over what was not seen; appends each when all after it are done."""
    if root in seen:
        return
    seen.add(root)
    stack = [(root, iter(after[root]))]
    while stack:
        name, others = stack[-1]
        other = next((one for one in others if one not in seen), None)
        if other is None:
            done.append(name)
            stack.pop()
        else:
            seen.add(other)
            stack.append((other, iter(after[other])))


# --- as recorded --------------------------------------------------------------------------------


def _observed(recording: Recording) -> History:
    names = sorted(recording.bases, key=lambda name: recording.bases[name])
    firsts = [recording.bases[name] for name in names]
    event_of = {number: event for event, number in enumerate(recording.numbers.tolist())}
    observed: list[Observed] = []
    versions: dict[Item, list[Name]] = {}
    for event, is_committed in enumerate(recording.committed.tolist()):
        reads, writes = [], []
        for row, version, is_written in _seen(recording, event):
            place = bisect.bisect_right(firsts, row) - 1
            item = (names[place], row - firsts[place])
            writer = event_of[version - 1] if version > 0 else -1 - version
            reads.append(Read(item, writer if version else None, version >= 0))
            if is_written:
                writes.append(item)
                if is_committed:
                    versions.setdefault(item, []).append(event)
        observed.append(Observed(event, is_committed, tuple(reads), tuple(writes)))
    numbers = recording.numbers.tolist()
    for writers in versions.values():
        writers.sort(key=numbers.__getitem__)
    return History(observed, versions)


def _seen(recording: Recording, event: int) -> list[list[int]]:
    first, last = recording.starts[event], recording.starts[event + 1]
    return [one for one in recording.seen[first:last].tolist() if one[0] >= 0]


# --- on paper -----------------------------------------------------------------------------------

_STEP = re.compile(
    r"([rw])(\d+)\(([a-z]+)(?:(\d+)(?:\.(\d+))?)?\)"
    r"|([ca])(\d+)|\[([a-z]+):([\d ]+)\]"
)


def _parsed(text: str) -> History:
    writes: dict[int, list[str]] = {}
    reads: dict[int, list[tuple[str, int, int]]] = {}
    ends: dict[int, bool] = {}
    orders: dict[Item, list[Name]] = {}
    for step in _STEP.finditer(text):
        kind, name, item, writer, number, end, ended, ordered, names = step.groups()
        if kind == "w":
            writes.setdefault(int(name), []).append(item)
        elif kind == "r":
            reads.setdefault(int(name), []).append((item, int(writer), int(number or 0)))
        elif end:
            ends[int(ended)] = end == "c"
        else:
            orders[ordered] = [int(one) for one in names.split()]
    observed = []
    for name in sorted({*writes, *reads}):
        found = []
        for item, writer, number in reads.get(name, ()):
            is_final = number in (0, writes.get(writer, []).count(item))
            found.append(Read(item, writer or None, is_final))
        mine = tuple(dict.fromkeys(writes.get(name, ())))
        observed.append(Observed(name, ends.get(name, False), tuple(found), mine))
    for name in ends:
        for item in dict.fromkeys(writes.get(name, ())):
            if f"[{item}:" not in text:
                orders.setdefault(item, []).append(name)
    return History(observed, orders)
