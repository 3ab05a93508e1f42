"""Placement: which shard a row belongs to, from its key alone, the same in every process.

A table is placed by the hash of its key, or of the columns of the key that `shard_by` names; a
replicated one is on every shard, and its rows belong to a part of their own, `everywhere`.
Invariant: the hash is one of values. Texts go in by their characters, never by their codes, which
each process gives anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from headgate.engine.declaring.declarations import describe_table
from headgate.errors import DeclarationError, InputError, shown
from headgate.query.point import key_words
from headgate.state.columns import to_arrow, to_stored
from headgate.state.compiled import numba, prefetch
from headgate.state.index import AHEAD
from headgate.state.row_history import ENDING
from headgate.state.rows import TableRows, stored_column
from headgate.state.spaces import Slots, Words
from headgate.state.strings import StringPool
from headgate.state.table import Access, Table
from headgate.transactions import Transaction

EVERYWHERE = -1  # as the shard of a row: it is on all of them


class Placement:
    """Where the rows of some tables are, among so many shards."""

    def __init__(self, tables: Mapping[str, Table], count: int) -> None:
        self.count = count
        self.everywhere = count  # the part of rows that all shards have
        # By table: the one that says where its rows are. Versions are where their row is, whose
        # key their own begins with.
        placing = {name: table for name, table in tables.items()}
        for table in tables.values():
            if table.history is not None:
                placing[table.name + ENDING] = table
        self.replicated = frozenset(name for name, table in placing.items() if table.replicate)
        self._words = {name: _placing_words(table) for name, table in placing.items()}
        self._tables = dict(tables)

    def part(self, shard: int) -> int:
        """The part of rows of this shard, as files are named."""
        return self.everywhere if shard == EVERYWHERE else shard

    def shards(self, table: str, keys: Words, pool: StringPool) -> np.ndarray:
        """The shard of each key: words of the key's columns x rows, as rows have them."""
        if table in self.replicated:
            return np.full(keys.shape[1], EVERYWHERE, np.int64)
        columns = self._tables[table].key_columns
        words = [
            _text_words(keys[place], pool) if columns[place].type.kind == "string" else keys[place]
            for place in self._words[table]
        ]
        found: np.ndarray = _hashed(np.stack(words), self.count)
        return found

    def dealt(self, rows: TableRows, slots: Slots) -> dict[int, Slots]:
        """The slots of rows of a table that is not replicated, by their shard, as they came."""
        table = rows.table
        if any(table.key_columns[place].type.kind == "string" for place in self._words[table.name]):
            keys = np.ascontiguousarray(rows.words[slots, 1 : 1 + len(table.key)].T)
            shards = self.shards(table.name, keys, rows.pool)
        else:
            places = np.array(self._words[table.name], np.int64) + 1
            shards = _hashed_rows(rows.words, slots, places, self.count)
        mine, ends = _dealt(slots, shards, self.count)
        parts = np.split(mine, ends[:-1])
        return {shard: part for shard, part in enumerate(parts) if len(part)}


def _placing_words(table: Table) -> tuple[int, ...]:
    names = table.shard_by or table.key
    return tuple(table.key.index(name) for name in names)


def _text_words(codes: np.ndarray, pool: StringPool) -> np.ndarray:
    """A word for each text that depends on its characters only."""
    known, places = np.unique(codes, return_inverse=True)
    texts: Sequence[Any] = pool.texts(known).to_pylist()
    hashes = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]
    found: np.ndarray = np.array(hashes, np.uint64).view(np.int64)[places]
    return found


@numba.njit(cache=True, nogil=True)
def _mixed(mixed: np.uint64, word: np.int64) -> np.uint64:
    """A hash that takes in one word more; the constants are those of splitmix64."""
    mixed += np.uint64(word)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


_SEED = np.uint64(0x9E3779B97F4A7C15)


@numba.njit(cache=True, nogil=True)
def _hashed(words: np.ndarray, count: int) -> np.ndarray:
    """The shard of each column of words."""
    found = np.empty(words.shape[1], np.int64)
    for row in range(words.shape[1]):
        mixed = _SEED
        for part in range(words.shape[0]):
            mixed = _mixed(mixed, words[part, row])
        # The upper half, so that the lower bits, which an index of keys may use, stay even.
        found[row] = np.int64((mixed >> np.uint64(32)) % np.uint64(count))
    return found


@numba.njit(cache=True, nogil=True)
def _hashed_rows(words: Words, slots: Slots, places: np.ndarray, count: int) -> np.ndarray:
    """The same of rows in their slots, by the words of them that place them."""
    found = np.empty(len(slots), np.int64)
    base, last = np.int64(words.ctypes.data), len(slots) - 1
    for row in range(len(slots)):
        prefetch(base + 8 * words.shape[1] * slots[min(row + AHEAD, last)])
        mixed = _SEED
        for place in places:
            mixed = _mixed(mixed, words[slots[row], place])
        found[row] = np.int64((mixed >> np.uint64(32)) % np.uint64(count))
    return found


@numba.njit(cache=True, nogil=True)
def _dealt(slots: Slots, shards: np.ndarray, count: int) -> tuple[Slots, np.ndarray]:
    """The slots shard after shard, each in the order in which they came, and where each ends."""
    ends = np.zeros(count, np.int64)
    for shard in shards:
        ends[shard] += 1
    nexts = np.cumsum(ends) - ends
    found = np.empty(len(slots), np.int64)
    for row in range(len(slots)):
        shard = shards[row]
        found[nexts[shard]] = slots[row]
        nexts[shard] += 1
    return found, nexts


def shards_of(placement: Placement, table: Table, rows: pa.Table) -> np.ndarray:
    """The shard of each of these rows, which have at least the columns of the key."""
    pool = StringPool()
    keys = TableRows(table, pool).key_words(
        [
            to_stored(rows.column(one.name), one.type, pool, f"table {table.name!r}").values
            for one in table.key_columns
        ]
    )
    return placement.shards(table.name, keys, pool)


def key_table(table: Table, key: Any) -> pa.Table:
    """A key as a user gives it, as a table of one row; refused is what no engine takes for one."""
    rows = TableRows(table, StringPool(), is_indexed=False)
    arrays = [
        to_arrow(stored_column(np.array([word]), one.type), one.type, rows.pool)
        for word, one in zip(key_words(rows, key), table.key_columns, strict=True)
    ]
    return pa.table(arrays, names=list(table.key))


# --- fitness --------------------------------------------------------------------------------------
# What a program may declare for its rows to be in shards, and what is refused, and why.
#
# Invariant: what would give other results over shards than in one process is refused before
# anything runs. The list is one of what is known to be the same: anything new is refused until it
# is added.


SHARDS_MAX = 1024
# The parts of a declaration that mean the same wherever a table's rows are.
_KNOWN = frozenset(
    (
        "columns", "key", "check", "index", "unique", "references", "shard_by", "replicate",
        "history", "by", "expires",
    )
)  # fmt: skip


def check_count(shards: Any) -> int:
    """The number of shards; InputError unless it is one."""
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= SHARDS_MAX:
        raise InputError(f"shards is a number from 1 to {SHARDS_MAX}, not {shown(shards)}")
    return shards


def refuse_unfit(
    tables: Mapping[str, Table], advice: str = "open the store without shards="
) -> None:
    """Refuse tables that cannot be in shards yet."""
    for table in tables.values():
        others = [name for name in describe_table(table) if name not in _KNOWN]
        if others:
            raise DeclarationError(
                f"table {table.name!r}: {others[0]} is not there for an engine with shards yet; "
                f"{advice}"
            )


def beyond_shards(transaction: Transaction, tables: Mapping[str, Table]) -> str | None:
    """Why the events of a transaction need all rows in one place; None when they do not."""
    bound = {one.parent for table in tables.values() for one in table.references}
    for access in transaction.signature.accesses:
        table = access.table
        what = _beyond_event(access)
        if what is not None:
            return f"{transaction.name!r} names rows of {table.name!r} by {what}, which"
        if table.constraints or table.name in bound:
            return f"{transaction.name!r} has rows of {table.name!r}, whose constraints"
        if table.expires is not None and table.replicate:
            return f"{transaction.name!r} has rows of {table.name!r}, whose expiry on all shards"
    return None


def _beyond_event(access: Access) -> str | None:
    """What an access names its rows by, unless that is columns of the event alone."""
    if access.is_dynamic:
        return "a key that is computed"
    return "a range" if access.span is not None else None
