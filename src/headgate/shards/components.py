"""Components: which events of a batch hang together, and on which shard each of them can run.

Two events hang together when one writes a row that the other names, directly or by way of others.
Events of different components have no row between them that any of them writes, so that the order
among them does not matter: each component runs by itself, in its own order, wherever its rows are.
Rows are told apart by their keys, exactly, not by hashes. Invariant: no component is split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headgate.execution.run import Work
from headgate.execution.spans import spans_of
from headgate.shards.placement import EVERYWHERE, Placement
from headgate.state.compiled import numba
from headgate.state.rows import TableRows
from headgate.state.spaces import EventRows
from headgate.state.strings import StringPool
from headgate.state.table import Table

CROSS = -1  # as the home of a component: it has rows on several shards
_NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Touched:
    """The rows that the events of a batch name: by operation, the event and the row.

    Rows are numbered table after table from `bases` on; `keys` tells them by their keys.
    """

    keys: Mapping[str, TableRows]
    bases: Mapping[str, int]
    events: np.ndarray  # operation -> event row
    rows: np.ndarray  # operation -> row number
    writes: np.ndarray  # operation -> whether it may write, or let the row go
    shards: np.ndarray  # row number -> shard, EVERYWHERE for one of a replicated table


@dataclass(frozen=True)
class Components:
    """The components of a batch: which one each event is of, and where each can run."""

    numbers: np.ndarray  # event row -> component
    homes: np.ndarray  # component -> shard, or CROSS
    sizes: np.ndarray  # component -> how many events
    touched: Touched


def touched_rows(
    works: Sequence[Work],
    order: EventRows,
    tables: Mapping[str, Table],
    placement: Placement,
    pool: StringPool,
) -> Touched:
    """The rows that the events that run name, each row numbered once."""
    runs = np.zeros(len(works[0].skip) if works else 0, np.bool_)
    runs[order] = True
    keys = {name: TableRows(table, pool) for name, table in tables.items()}
    _make_room(keys, works, len(runs))
    found: dict[str, list[tuple[np.ndarray, np.ndarray, bool]]] = {name: [] for name in tables}
    for work in works:
        mine = (work.skip == 0) & runs
        for access in work.signature.accesses:
            name, spans = access.table.name, spans_of(access, work.columns, len(mine))
            words = keys[name].key_words([one.values for one in work.key_columns(access)])
            named = spans.spread(mine)
            slots = keys[name].find_or_take(words, (~named).view(np.uint8))
            events = spans.spread(np.arange(len(mine)))
            # Who only reads a row that expires may be the one before whom it goes.
            is_written = not access.read_only or access.table.expires is not None
            found[name].append((events[named], slots[named], is_written))
    return _numbered(keys, found, placement, pool)


def homes_alone(
    works: Sequence[Work],
    order: EventRows,
    tables: Mapping[str, Table],
    placement: Placement,
    pool: StringPool,
) -> np.ndarray | None:
    """By event row: its shard, when no event has rows on two; None when one may have.

    Then nothing hangs together over shards, and which events do within one need not be known. Rows
    that all shards have must not be written, and an event that has no others may run on any.
    """
    events = len(works[0].skip) if works else 0
    homes = np.full(events, _NOWHERE)
    runs = np.zeros(events, np.bool_)
    runs[order] = True
    for work in works:
        mine = (work.skip == 0) & runs
        for access in work.signature.accesses:
            name, spans = access.table.name, spans_of(access, work.columns, events)
            if name in placement.replicated:
                if not access.read_only:
                    return None
                continue
            rows = TableRows(access.table, pool, is_indexed=False)
            words = rows.key_words([one.values for one in work.key_columns(access)])
            shards = placement.shards(name, words, pool)
            if not _agree(homes, shards, spans.spread(np.arange(events)), spans.spread(mine)):
                return None
    homes[homes == _NOWHERE] = np.arange(events)[homes == _NOWHERE] % placement.count
    return homes


@numba.njit(cache=True, nogil=True)
def _agree(homes: np.ndarray, shards: np.ndarray, events: np.ndarray, mine: np.ndarray) -> bool:
    """Note the shard of each event, unless another one is noted already."""
    for place in range(len(shards)):
        if mine[place]:
            event = events[place]
            if homes[event] == _NOWHERE:
                homes[event] = shards[place]
            elif homes[event] != shards[place]:
                return False
    return True


def _make_room(keys: Mapping[str, TableRows], works: Sequence[Work], events: int) -> None:
    """For all rows at once: an index that grows with slots taken is made anew, one by one."""
    room = dict.fromkeys(keys, 0)
    for work in works:
        for access in work.signature.accesses:
            room[access.table.name] += spans_of(access, work.columns, events).total
    for name, most in room.items():
        keys[name].reserve(2 * most)  # each access asks for its own once more


def _numbered(
    keys: Mapping[str, TableRows],
    found: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray, bool]]],
    placement: Placement,
    pool: StringPool,
) -> Touched:
    bases, base = {}, 0
    events, rows, writes, shards = [], [], [], []
    for name, known in keys.items():
        bases[name] = base
        for event, slot, is_written in found[name]:
            events.append(event)
            rows.append(slot + base)
            writes.append(np.full(len(event), is_written))
        words = known.words[: known.count, 1 : 1 + len(known.table.key)].T
        shards.append(placement.shards(name, np.ascontiguousarray(words), pool))
        base += known.count
    return Touched(
        keys, bases, _joined(events), _joined(rows),
        np.concatenate([*writes, np.zeros(0, np.bool_)]), _joined(shards),
    )  # fmt: skip


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([*arrays, np.zeros(0, np.int64)])


def find_components(touched: Touched, events: int, placement: Placement) -> Components:
    """Which events hang together; `events` is the number of event rows."""
    rows = len(touched.shards)
    written = np.zeros(rows, np.bool_)
    written[touched.rows[touched.writes]] = True
    numbers = _united(touched.events, touched.rows, written, events, rows)
    count = int(numbers.max(initial=-1)) + 1
    low, high = _extent(touched.events, touched.rows, touched.shards, numbers, count)
    # Those that have rows of replicated tables only can run on any shard.
    anywhere = np.arange(count) % placement.count
    homes = np.where(low == _NOWHERE, anywhere, np.where(low == high, low, CROSS))
    return Components(numbers, homes, np.bincount(numbers, minlength=count), touched)


@numba.njit(cache=True, nogil=True)
def _root(parents: np.ndarray, node: int) -> int:
    while parents[node] != node:
        parents[node] = parents[parents[node]]  # halve the way for whoever comes next
        node = parents[node]
    return node


@numba.njit(cache=True, nogil=True)
def _united(
    operations: np.ndarray, rows: np.ndarray, written: np.ndarray, events: int, row_count: int
) -> np.ndarray:
    """By event row: its component, numbered in the order of their first events."""
    parents = np.arange(events + row_count)
    for place in range(len(operations)):
        if not written[rows[place]]:
            continue  # what nobody writes joins nobody
        one = _root(parents, operations[place])
        other = _root(parents, events + rows[place])
        if one < other:
            parents[other] = one
        elif other < one:
            parents[one] = other
    numbers = np.empty(events, np.int64)
    count = 0
    for event in range(events):
        root = _root(parents, event)
        if root == event:  # the lowest node of a component is its root, and events come first
            numbers[event] = count
            count += 1
        else:
            numbers[event] = numbers[root]
    return numbers


@numba.njit(cache=True, nogil=True)
def _extent(
    events: np.ndarray, rows: np.ndarray, shards: np.ndarray, numbers: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """By component: the lowest and the highest shard that it has a row on."""
    low = np.full(count, _NOWHERE)
    high = np.full(count, -1, np.int64)
    for place in range(len(events)):
        shard = shards[rows[place]]
        if shard != EVERYWHERE:
            number = numbers[events[place]]
            low[number] = min(low[number], shard)
            high[number] = max(high[number], shard)
    return low, high
