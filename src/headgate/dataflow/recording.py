"""Recording: what an epoch of a dataflow leaves in the results: executions, and rows of streams.

Rows of a stream stand under its name in the column `transaction`, as results of a transaction do,
so that whoever follows results can follow streams. An execution of a procedure is one row under its
name: committed, or aborted and why. All have the batch that they are of.

What an epoch recorded is kept part by part, and made one batch only for a query that asks; who
handed rows in gets the parts of all epochs as one table, of which nothing is copied. The log takes
a long part as it is, and what all its rows have in common once: words, batch, and that they have
none of the columns of other parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headgate.dataflow.arriving import Arrival
from headgate.dataflow.declared import LOGGED
from headgate.dataflow.nodes import Node
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.runs import BatchRun, held_schema, numbered
from headgate.dataflow.streams import BATCH, Stream
from headgate.durability import Commit
from headgate.durability.commit import Batch
from headgate.durability.describing import BatchShape
from headgate.durability.log_record import PIECE_ROWS_MAX
from headgate.durability.plain_batches import Counted, Nulls, PlainBatch, nulls_of, viewed
from headgate.durability.viewing import IMPLIED_MAX
from headgate.engine.rerun import Border
from headgate.engine.results import FIRST_COLUMNS
from headgate.execution.run import ABORTED, COMMITTED, OUTCOMES
from headgate.state.schema import Schema
from headgate.state.types import Column, ColumnType

WORDS = ("transaction", "outcome", "reason")
NUMBERED = Column(BATCH, ColumnType("bigint"))
Word: TypeAlias = str | pa.Array | None  # the same for all rows, or of each, perhaps as indices

_SAME_ROWS = 1024
_SAME_MAX = 256  # names and lengths whose columns are kept
_PIECE_ROWS = 100  # a piece of a column costs as much as about so many words that are copied
_FEW_ROWS = 64  # so many words are made one by one as fast as they are found by their indices
_FEW_PIECES = 12  # cost as much as to make one piece of them
_LONG_ROWS = 1024  # a part of so many is written to the log by itself
_CODED = (pa.int16(), pa.int8(), pa.int32())  # the words in the log: indices of so many bytes
_SHAPES_MAX = 256


@dataclass(frozen=True)
class Recorded:
    """Rows of one stream or node in the results: its words, its batch, its own columns."""

    count: int
    words: tuple[Word, Word, Word]  # transaction, outcome, reason
    batch: int | np.ndarray | None  # the same for all rows, or of each
    columns: Mapping[str, pa.Array | pa.ChunkedArray]

    def cut(self, first: int, count: int) -> Recorded:
        """Some rows of it."""
        said = [word.slice(first, count) if isinstance(word, pa.Array) else word
                for word in self.words]  # fmt: skip
        batch = self.batch
        return Recorded(
            min(count, self.count - first),
            (said[0], said[1], said[2]),
            batch[first : first + count] if isinstance(batch, np.ndarray) else batch,
            {name: column.slice(first, count) for name, column in self.columns.items()},
        )


def said(name: str) -> tuple[Word, Word, Word]:
    """The words of rows that committed."""
    return name, OUTCOMES[COMMITTED], None


def one_or_each(numbers: np.ndarray) -> int | np.ndarray:
    """The batch of rows, where all are of one; their batches ascend."""
    return int(numbers[0]) if numbers[0] == numbers[-1] else numbers


def recorded_rows(stream: Stream, batch: int | np.ndarray, rows: pa.Table) -> Recorded:
    """Rows of a stream."""
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    batch = one_or_each(batch) if isinstance(batch, np.ndarray) else batch
    return Recorded(rows.num_rows, said(stream.name), batch, columns)


class Recorder:
    """Gathers what one epoch records, part by part."""

    def __init__(self, same: SameColumns) -> None:
        self.parts: list[Recorded] = []
        self._same = same

    def execution(self, name: str, batch: int, reason: str | None = None) -> None:
        """A procedure ran a batch, or was to; with a reason it aborted."""
        outcome = OUTCOMES[COMMITTED if reason is None else ABORTED]
        self.parts.append(Recorded(1, (name, outcome, reason), batch, {}))

    def rows(self, stream: Stream, batch: int | np.ndarray, rows: pa.Table) -> None:
        """A batch came on a stream, or several with the batch of each row."""
        if rows.num_rows and stream.recorded:
            self.parts.append(recorded_rows(stream, batch, rows))

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

    def logged(self) -> Batch | tuple[Batch, ...]:
        """As the log takes it: long parts each for itself, and short ones together."""
        kinds = _kinds(self.parts)
        if PIECE_ROWS_MAX * (len(kinds) + len(WORDS) + 2) > IMPLIED_MAX:
            return self.batch()
        pieces, first = list[Batch](), 0
        for group in _logged_together(self.parts):
            piece = _coded(group, first, kinds, self._same)
            if piece is None:
                return self.batch()
            pieces.append(piece)
            first += piece.num_rows
        return tuple(pieces)

    def batch(self) -> pa.RecordBatch:
        """As a query takes it: one row after another, with their positions."""
        columns = _columns([(0, self)], self._same)
        del columns["epoch"]
        arrays = [_joined(found) for found in columns.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def united(epochs: Iterable[tuple[int, RecordedEpoch]], same: SameColumns) -> pa.Table:
    """What epochs recorded as one table, with the columns of all."""
    columns = _columns(list(epochs), same)
    arrays = [one[0] if len(one) == 1 else pa.chunked_array(one) for one in columns.values()]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _kinds(parts: Iterable[Recorded]) -> dict[str, pa.DataType]:
    """By column that parts have of their own: its type."""
    kinds: dict[str, pa.DataType] = {}
    for part in parts:
        for name, column in part.columns.items():
            if name not in kinds:
                kinds[name] = column.type
    return kinds


def _columns(
    epochs: Sequence[tuple[int, RecordedEpoch]], same: SameColumns
) -> dict[str, list[pa.Array]]:
    """By column: its pieces."""
    parts = [part for _, one in epochs for part in one.parts]
    kinds = _kinds(parts)
    found = {
        "epoch": [_filled([(one.num_rows, epoch) for epoch, one in epochs])],
        "position": [same.counted(one.num_rows) for _, one in epochs],
    }
    for place, name in enumerate(WORDS):
        found[name] = list(_said_pieces(parts, place, same))
    found[BATCH] = _numbers(parts, same)
    for name, kind in kinds.items():
        found[name] = list(_pieces(parts, name, kind, same))
    return found


def _numbers(parts: Sequence[Recorded], same: SameColumns) -> list[pa.Array]:
    """The batch of each row, in pieces."""
    known = [(part.count, part.batch) for part in parts if part.batch is not None]
    if len(known) == len(parts):
        return [_filled(known)]
    return [
        same.nulls(pa.int64(), part.count)
        if part.batch is None
        else _filled([(part.count, part.batch)])
        for part in parts
    ]


# An epoch may have many small parts, and each piece of a column costs as much as many rows of it:
# so what neighbours have not, and what they say in one word each, is one piece.


def _said_pieces(parts: Sequence[Recorded], place: int, same: SameColumns) -> Iterator[pa.Array]:
    """A column of words."""
    words = [(part.words[place], part.count) for part in parts]
    for is_array, group in groupby(words, lambda one: isinstance(one[0], pa.Array)):
        if is_array:
            yield from (_decoded(word) for word, _ in group)
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
        self._shapes: dict[Any, BatchShape | None] = {}

    def shape(
        self, kinds: Mapping[str, pa.DataType], words: tuple[tuple[str, ...], ...]
    ) -> BatchShape | None:
        """What the log says of results with these columns and these words in them."""
        key = (tuple(kinds.items()), words)
        if key not in self._shapes:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            coded = [pa.dictionary(kind, pa.string()) for kind in _CODED]
            fields = [("position", pa.int64()), *zip(WORDS, coded, strict=True)]
            schema = pa.schema([*fields, (BATCH, pa.int64()), *kinds.items()])
            dictionaries = [pa.array(one, pa.string()) for one in words]
            self._shapes[key] = BatchShape.of(schema, dictionaries)
        return self._shapes[key]

    def words(self, said: Sequence[tuple[Any, int]]) -> Iterator[pa.Array]:
        """Words, each so many times: in one piece, unless there are many of each."""
        known = {word: place for place, word in enumerate(dict.fromkeys(one for one, _ in said))}
        counts = [count for _, count in said]
        if len(known) == 1:
            yield self.word(said[0][0], sum(counts))
        elif sum(counts) <= _FEW_ROWS:
            yield pa.array([word for word, count in said for _ in range(count)], pa.string())
        elif len(said) <= _FEW_PIECES or sum(counts) > _PIECE_ROWS * len(said):
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


def _decoded(words: pa.Array) -> pa.Array:
    return words.dictionary_decode() if pa.types.is_dictionary(words.type) else words


# --- as the log takes it --------------------------------------------------------------------------


def _logged_together(parts: Sequence[Recorded]) -> Iterator[list[Recorded]]:
    """Long parts each for itself, cut where they are too long; and those between them."""
    short, rows = list[Recorded](), 0
    for part in parts:
        if short and (part.count >= _LONG_ROWS or rows + part.count > PIECE_ROWS_MAX):
            yield short
            short, rows = [], 0
        if part.count < _LONG_ROWS:
            short.append(part)
            rows += part.count
            continue
        for first in range(0, part.count, PIECE_ROWS_MAX):
            yield [part if part.count <= PIECE_ROWS_MAX else part.cut(first, PIECE_ROWS_MAX)]
    if short:
        yield short


def _coded(
    parts: Sequence[Recorded], first: int, kinds: Mapping[str, pa.DataType], same: SameColumns
) -> PlainBatch | None:
    """Parts as a plain batch, from a position on; None where a type has no code in the log."""
    rows = sum(part.count for part in parts)
    none = Nulls(0, np.zeros((rows + 7) // 8, np.uint8))
    coded = [_indices([(part.words[place], part.count) for part in parts], kind, none)
             for place, kind in enumerate(_CODED)]  # fmt: skip
    shape = same.shape(kinds, tuple(words for _, _, words in coded))
    if shape is None:
        return None
    columns: list[Any] = [Counted(first) if rows > 1 else np.full(1, first, np.int64)]
    nulls: list[Nulls | np.ndarray | None] = [None]
    for indices, missing, _ in coded:
        columns.append(indices)
        nulls.append(missing)
    number = parts[0].batch
    if len(parts) == 1 and isinstance(number, int):
        columns.append(np.full(1, number, np.int64))
        nulls.append(None)
    else:
        numbers = _joined(_numbers(parts, same))
        columns.append(viewed(numbers, shape.columns[len(columns)]))
        nulls.append(nulls_of(numbers))
    for name, kind in kinds.items():
        if any(name in part.columns for part in parts):
            array = _joined([*_pieces(parts, name, kind, same)])
            columns.append(viewed(array, shape.columns[len(columns)]))
            nulls.append(nulls_of(array))
        else:
            columns.append(np.zeros(1, np.int64))
            nulls.append(none)
    return PlainBatch(shape, rows, columns, nulls)


def _indices(
    said: Sequence[tuple[Word, int]], kind: pa.DataType, none: Nulls
) -> tuple[np.ndarray, Nulls | None, tuple[str, ...]]:
    """Words as indices, which rows have one (`none`: no row has), and the words that they mean."""
    known: dict[str | None, int] = {}
    parts, size = list[Any](), kind.to_pandas_dtype()
    for word, _ in said:
        if isinstance(word, pa.Array):
            found = word if pa.types.is_dictionary(word.type) else word.dictionary_encode()
            places = [known.setdefault(one, len(known)) for one in found.dictionary.to_pylist()]
            # One index more, behind them all, for rows that have no word.
            places.append(known.setdefault(None, len(known)))
            parts.append(np.array(places, size)[_filled_indices(found, len(places) - 1)])
        else:
            parts.append(known.setdefault(word, len(known)))
    words = tuple("" if one is None else one for one in known)
    nothing = known.get(None)
    if len(known) == 1:
        return np.zeros(1, size), *((None, words) if nothing is None else (none, ()))
    values = np.empty(sum(count for _, count in said), size)
    first = 0
    for found, (_, count) in zip(parts, said, strict=True):
        values[first : first + count] = found
        first += count
    return values, None if nothing is None else Nulls.of(values == nothing), words


def _filled_indices(words: pa.Array, nothing: int) -> np.ndarray:
    """The indices of words, and another one where there is none."""
    indices = words.indices
    valid, values = indices.buffers()
    last = indices.offset + len(indices)
    found = np.frombuffer(values, indices.type.to_pandas_dtype(), last)[indices.offset :]
    if valid is None:
        return found
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=last, bitorder="little")
    return np.where(bits[indices.offset :], found, nothing)


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
        found = numbered(arrival.stream, arrival.runs)
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
    run = BatchRun.of_log(rows.replace_schema_metadata(None))
    return Arrival(
        source, run.rows, run.numbers, words["closed"], source.empty,
        origin=commit.origin, flushed_us=words.get("flushed_us"),
    )  # fmt: skip
