"""Recording: what an epoch of a dataflow leaves in the results: executions, and rows of streams.

Rows of a stream stand under its name in the column `transaction`, as results of a transaction do,
so that whoever follows results can follow streams. An execution of a procedure is one row under its
name: committed, or aborted and why. All have the batch that they are of.

What an epoch recorded is kept part by part, and made one batch only for who asks: the log does, and
a query; who handed rows in gets the parts of all epochs as one table, of which nothing is copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headgate.compiling.cache import code_fingerprint
from headgate.dataflow.arriving import Arrival
from headgate.dataflow.declared import LOGGED, Declared
from headgate.dataflow.nodes import Node
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.streams import BATCH, Stream
from headgate.dataflow.under_way import held_schema, numbered, parts_of
from headgate.durability import Commit
from headgate.engine.rerun import Border, fingerprint_of
from headgate.engine.results import FIRST_COLUMNS
from headgate.errors import DeclarationError, StoreError
from headgate.execution.run import ABORTED, COMMITTED, OUTCOMES
from headgate.state.schema import Schema
from headgate.state.types import Column, ColumnType
from headgate.transactions import Transaction

WORDS = ("transaction", "outcome", "reason")
NUMBERED = Column(BATCH, ColumnType("bigint"))
Word: TypeAlias = str | pa.Array | None  # the same for all rows, or of each

_SAME_ROWS = 1024
_SAME_MAX = 256  # names and lengths whose columns are kept
_PIECE_ROWS = 100  # a piece of a column costs as much as about so many words that are copied


@dataclass(frozen=True)
class Recorded:
    """Rows of one stream or node in the results: its words, its batch, its own columns."""

    count: int
    words: tuple[Word, Word, Word]  # transaction, outcome, reason
    batch: int | np.ndarray | None  # the same for all rows, or of each
    columns: Mapping[str, pa.Array | pa.ChunkedArray]


def said(name: str) -> tuple[Word, Word, Word]:
    """The words of rows that committed."""
    return name, OUTCOMES[COMMITTED], None


class Recorder:
    """Gathers what one epoch records, part by part."""

    def __init__(self, same: SameColumns) -> None:
        self.parts: list[Recorded] = []
        self._same = same

    def execution(self, name: str, batch: int, reason: str | None = None) -> None:
        """A procedure ran a batch, or was to; with a reason it aborted."""
        outcome = OUTCOMES[COMMITTED if reason is None else ABORTED]
        self.parts.append(Recorded(1, (name, outcome, reason), batch, {}))

    def rows(self, stream: str, batch: int | np.ndarray, rows: pa.Table) -> None:
        """A batch came on a stream, or several with the batch of each row."""
        if rows.num_rows:
            columns = dict(zip(rows.column_names, rows.columns, strict=True))
            self.parts.append(Recorded(rows.num_rows, said(stream), batch, columns))

    def rejected(
        self, stream: str, outcomes: Sequence[str], reasons: Sequence[str], rows: pa.Table
    ) -> None:
        """Rows came in that no batch has: malformed ones, or late."""
        if rows.num_rows:
            words = (stream, pa.array(outcomes, pa.string()), pa.array(reasons, pa.string()))
            columns = dict(zip(rows.column_names, rows.columns, strict=True))
            self.parts.append(Recorded(rows.num_rows, words, None, columns))

    def add(self, part: Recorded) -> None:
        """A transaction gave these results."""
        self.parts.append(part)

    def recorded(self) -> RecordedEpoch | None:
        """All of it; None when there is nothing."""
        return RecordedEpoch(self.parts, self._same) if self.parts else None


class RecordedEpoch:
    """What one epoch recorded."""

    def __init__(self, parts: Sequence[Recorded], same: SameColumns) -> None:
        self.parts, self._same = parts, same
        self.num_rows: int = sum(part.count for part in parts)

    def batch(self) -> pa.RecordBatch:
        """As the log takes it, and a query: one row after another, with their positions."""
        columns = _columns([(0, self)], self._same)
        del columns["epoch"]
        arrays = [_joined(found) for found in columns.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def united(epochs: Iterable[tuple[int, RecordedEpoch]], same: SameColumns) -> pa.Table:
    """What epochs recorded as one table, with the columns of all."""
    columns = _columns(list(epochs), same)
    arrays = [pa.chunked_array(found) for found in columns.values()]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _columns(
    epochs: Sequence[tuple[int, RecordedEpoch]], same: SameColumns
) -> dict[str, list[pa.Array]]:
    """By column: its pieces."""
    parts = [part for _, one in epochs for part in one.parts]
    kinds: dict[str, pa.DataType] = {}
    for part in parts:
        for name, column in part.columns.items():
            if name not in kinds:
                kinds[name] = column.type
    found = {
        "epoch": [_filled([(one.num_rows, epoch) for epoch, one in epochs])],
        "position": [same.counted(one.num_rows) for _, one in epochs],
    }
    for place, name in enumerate(WORDS):
        found[name] = list(_said_pieces(parts, place, same))
    numbers: list[tuple[int, int | np.ndarray | None]]
    numbers = [(part.count, part.batch) for part in parts]
    known = [(count, number) for count, number in numbers if number is not None]
    found[BATCH] = [_filled(known)]
    if len(known) < len(numbers):
        found[BATCH] = [
            same.nulls(pa.int64(), count) if number is None else _filled([(count, number)])
            for count, number in numbers
        ]
    for name, kind in kinds.items():
        found[name] = list(_pieces(parts, name, kind, same))
    return found


# An epoch may have many small parts, and each piece of a column costs as much as many rows of it:
# so what neighbours have not, and what they say in one word each, is one piece.


def _said_pieces(parts: Sequence[Recorded], place: int, same: SameColumns) -> Iterator[pa.Array]:
    """A column of words."""
    words = [(part.words[place], part.count) for part in parts]
    for is_array, group in groupby(words, lambda one: isinstance(one[0], pa.Array)):
        if is_array:
            yield from (word for word, _ in group)
        else:
            yield from same.words([*group])


def _pieces(
    parts: Sequence[Recorded], name: str, kind: pa.DataType, same: SameColumns
) -> Iterator[pa.Array]:
    """A column of its own of some parts, null in the others."""
    missing = 0
    for part in parts:
        found = part.columns.get(name)
        if found is None:
            missing += part.count
            continue
        if missing:
            yield same.nulls(kind, missing)
        missing = 0
        yield from ([found] if isinstance(found, pa.Array) else found.chunks)
    if missing:
        yield same.nulls(kind, missing)


def _filled(numbers: Sequence[tuple[int, int | np.ndarray]]) -> pa.Array:
    """So many times each of these numbers, or so many numbers as they are."""
    values = np.empty(sum(count for count, _ in numbers), np.int64)
    first = 0
    for count, number in numbers:
        values[first : first + count] = number
        first += count
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


class SameColumns:
    """Columns that many epochs share: words that are the same for all rows, positions, nulls."""

    def __init__(self) -> None:
        self._words: dict[str, pa.Array] = {}
        self._nulls: dict[pa.DataType, pa.Array] = {}
        self._counted = pa.array(np.arange(_SAME_ROWS))

    def words(self, said: Sequence[tuple[Any, int]]) -> Iterator[pa.Array]:
        """Words, each so many times: in one piece, unless there are many of each."""
        known = {word: place for place, word in enumerate(dict.fromkeys(one for one, _ in said))}
        counts = [count for _, count in said]
        if len(known) == 1:
            yield self.word(said[0][0], sum(counts))
        elif sum(counts) > _PIECE_ROWS * len(said):
            yield from (self.word(word, count) for word, count in said)
        else:
            places = np.repeat([known[one] for one, _ in said], counts)
            yield pa.array([*known], pa.string()).take(pa.array(places))

    def word(self, word: str | None, count: int) -> pa.Array:
        """The same word so many times."""
        if word is None:
            return self.nulls(pa.string(), count)
        found = self._words.get(word)
        if found is None or len(found) < count:
            found = pa.repeat(word, max(count, 1))
            if len(self._words) < _SAME_MAX or word in self._words:
                self._words[word] = found
        return found.slice(0, count)

    def nulls(self, kind: pa.DataType, count: int) -> pa.Array:
        found = self._nulls.get(kind)
        if found is None or len(found) < count:
            found = self._nulls[kind] = pa.nulls(max(count, _SAME_ROWS), kind)
        return found.slice(0, count)

    def counted(self, count: int) -> pa.Array:
        if len(self._counted) < count:
            self._counted = pa.array(np.arange(2 * count))
        return self._counted.slice(0, count)


def _joined(pieces: Sequence[pa.Array]) -> pa.Array:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def recorded_schema(recorded: Stream | Node) -> Schema:
    """The columns that readers find under the name of a stream or a node."""
    first = Schema.parse(FIRST_COLUMNS).columns
    if isinstance(recorded, Stream):
        own = [Column(one.name, one.type) for one in recorded.schema]
        return Schema((*first, NUMBERED, *own))
    if isinstance(recorded.step, Procedure):
        return Schema((*first, NUMBERED))
    return Schema((NUMBERED,))  # beside those of its transaction


# --- the border -----------------------------------------------------------------------------------
# What weak recovery logs of a dataflow, and by which code it may be run again.


def border_of(arrival: Arrival | None, batch: int, fingerprint: str | None) -> Border:
    """What came in, and which batch ran: enough to run it again."""
    words: dict[str, Any] = {"batch": batch}
    rows = pa.table({BATCH: pa.array([], pa.int64())})
    if arrival is not None:
        found = numbered(arrival.stream, arrival.parts)
        rows = held_schema(arrival.stream).empty_table() if found is None else found
        words |= {"stream": arrival.stream.name, "closed": arrival.closed}
        words |= {} if arrival.flushed_us is None else {"flushed_us": arrival.flushed_us}
    arrays = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in rows.columns
    ]
    logged = pa.RecordBatch.from_arrays(arrays, names=rows.column_names)
    metadata = {LOGGED: json.dumps(words).encode()}
    return Border(logged.replace_schema_metadata(metadata), fingerprint)


def arrival_of(commit: Commit, given: pa.RecordBatch, stream: Callable[[str], Stream]) -> Any:
    """The arrival of a logged epoch; None when it only ran what was there."""
    words = json.loads(given.schema.metadata[LOGGED])
    if "stream" not in words:
        return None
    rows, source = pa.Table.from_batches([given]), stream(words["stream"])
    parts = list(parts_of(rows.replace_schema_metadata(None)))
    return Arrival(
        source, parts, words["closed"], source.empty,
        origin=commit.origin, flushed_us=words.get("flushed_us"),
    )  # fmt: skip


def check_code(commit: Commit, fingerprint: str | None, *, accept: bool) -> None:
    """Refuse to run an epoch again by code that has changed."""
    if commit.fingerprint != fingerprint and not accept:
        raise StoreError(
            f"epoch {commit.epoch} was logged as input of a dataflow that has changed since: "
            "open with the old code, whose engine.snapshot() leaves nothing to run again, or "
            "with changed_code='accept'"
        )


def fingerprint(declared: Declared) -> str:
    """A digest of the graph and of the code of its nodes."""
    graph = declared.graph
    functions = [
        (node.name, node.step.function.__code__, *map(repr, node.tables))
        for node in graph.nodes
        if isinstance(node.step, Procedure)
    ]
    functions += [
        (one.name, one.function.__code__, *map(repr, (one.table, *one.tables)))
        for flow in declared.flows.values()
        for one in flow.triggers
    ]
    transactions = [node.step for node in graph.nodes if isinstance(node.step, Transaction)]
    said = [repr(one) for one in graph.streams.values()]
    shown_all = [flow.show() for flow in declared.flows.values()]
    mark = code_fingerprint(tuple(functions), fingerprint_of(transactions), said, shown_all)
    if mark is None:
        raise DeclarationError(
            "weak recovery needs procedures whose code can be fingerprinted; open with "
            "recovery='strong'"
        )
    return mark
