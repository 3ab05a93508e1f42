"""Results of the straight path: one row per event, in the buffers that the kernel wrote.

Columns that are the same for every batch are made once; what did not commit is known by its
position, so that nothing looks at all events again. Invariant: the results are those that
`results.build_results` makes of the same batch, and take as few bytes in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.durability.describing import BatchShape
from headgate.durability.log_record import PIECE_ROWS_MAX
from headgate.durability.plain_batches import (
    Counted,
    Nulls,
    PlainBatch,
    PlainColumn,
    Sparse,
    is_sparse,
    nulls_of,
    viewed,
)
from headgate.engine.metrics import Tally
from headgate.engine.results import (
    OUTCOME_WORDS,
    encode_reasons,
    own_bits,
    pick,
    reason_words,
    results_arrow,
)
from headgate.engine.terms import Terms
from headgate.execution.program import Program
from headgate.execution.run import ABORTED, COMMITTED
from headgate.execution.straight_run import Given
from headgate.state.columns import to_arrow
from headgate.state.layout import STORED, WORD_BYTES, Layout
from headgate.state.types import PLAIN_KINDS, Column

_FIRST_ROWS = 1024
_INT8, _INT32, _INT64 = pa.int8(), pa.int32(), pa.int64()
_WORDS = {kind: pa.dictionary(kind, pa.string()) for kind in (_INT8, _INT32)}
_KEPT_REASONS = 256


def is_wide(column: Column) -> bool:
    """Whether the words that a kernel writes for an output are Arrow's values, and all of them."""
    kind = column.type.kind
    is_word = kind in PLAIN_KINDS and np.dtype(STORED[kind]).itemsize == WORD_BYTES
    return is_word and not column.nullable


class Made(NamedTuple):
    """The results of one batch."""

    num_rows: int
    columns: list[pa.Array]  # without the epoch
    tally: Tally
    failed: _Failed
    without_epoch: pa.Schema
    schema: pa.Schema

    def batch(self) -> pa.RecordBatch:
        """As a log or a query takes them: without the epoch."""
        return pa.RecordBatch.from_arrays(self.columns, schema=self.without_epoch)

    def table(self, epoch: int) -> pa.Table:
        """As the user sees them."""
        found = np.empty(self.num_rows, np.int64)
        found.fill(epoch)
        epochs = pa.Array.from_buffers(_INT64, len(found), [None, pa.py_buffer(found)])
        return pa.Table.from_arrays([epochs, *self.columns], schema=self.schema)


class StraightResults:
    """Makes the results of the plain batches of one stream."""

    def __init__(self, terms: Terms, program: Program) -> None:
        self._terms, self._program = terms, program
        self._signatures = program.signatures
        self._schema = results_arrow(terms)
        self._without_epoch = self._schema.remove(0)
        self._same = _SameColumns(program.names)
        self._shapes: dict[tuple[int, ...], BatchShape] = {}  # by the reasons that occur
        self._reasons: dict[tuple[int, ...], tuple[pa.Array, list[int], list[str]]] = {}

    def made(
        self,
        given: Given,
        order: Sequence[pa.Array],
        outs: Sequence[np.ndarray],
        aborted: np.ndarray,
        reasons: np.ndarray,
        first: int = 0,
    ) -> Made:
        """The results of a batch, by the columns of its order and of its outputs, and by who did
        not commit and why; of a section of one, from the position `first` on."""
        count, route, failed, tally = given.count, given.route, _NONE_FAILED, Tally()
        position, transaction, outcome, reason = self._same.of(first, count)
        if route is not None:
            transaction = _words(route.astype(np.int8), _INT8, self._program.names)
        valid = None
        if len(aborted):
            failed = self._failed(count, aborted, reasons, tally)
            outcome = _words(failed.outcomes, _INT8, OUTCOME_WORDS)
            reason = _words(failed.indices, _INT32, failed.words, pa.py_buffer(failed.valid))
            valid = ~failed.valid  # who did not commit has a reason
        tally.add(COMMITTED, count - len(aborted))
        columns = [position, transaction, outcome, reason, *order]
        for column in self._terms.outputs.values():
            columns.append(self._output(column, outs, given, valid))
        return Made(count, columns, tally, failed, self._without_epoch, self._schema)

    def section(
        self,
        given: Given,
        order: Sequence[pa.Array],
        outs: Sequence[np.ndarray],
        aborted: np.ndarray,
        reasons: np.ndarray,
        section: range,
    ) -> PlainBatch | pa.RecordBatch:
        """The results of a section of a batch, for the log."""
        first, last = section.start, section.stop
        route = None if given.route is None else given.route[first:last]
        made = self.made(
            Given(len(section), [], [], route),
            [column.slice(first, len(section)) for column in order],
            [out[:, first:last] for out in outs],
            aborted - first,
            reasons[first:last],
            first,
        )
        return self.logged(made, route, first)

    def logged(
        self, made: Made, route: np.ndarray | None, first: int = 0
    ) -> PlainBatch | pa.RecordBatch:
        """The same as the log takes it, with what is known of the columns: it need not look."""
        columns, failed, count = made.columns, made.failed, made.num_rows
        if count > PIECE_ROWS_MAX:
            return made.batch()
        shape = self._shapes.get(failed.key)
        if shape is None:
            dictionaries = [self._program.names, OUTCOME_WORDS, failed.words]
            shape = BatchShape.of(self._without_epoch, dictionaries)
            if shape is None:
                return made.batch()
            if failed.is_fixed and len(self._shapes) < _KEPT_REASONS:
                self._shapes[failed.key] = shape
        rest = list(zip(columns[4:], shape.columns[4:], strict=True))
        found = [viewed(array, column) for array, column in rest]
        transaction = np.zeros(1, np.int8) if route is None else route.astype(np.int8)
        outcome, reason, no_reason = failed.logged(count)
        nulls = [None, None, None, no_reason, *(nulls_of(array) for array, _ in rest)]
        position = Counted(first) if count > 1 else np.full(1, first, np.int64)
        values = [position, transaction, outcome, reason, *found]
        return PlainBatch(shape, count, values, nulls)

    def _failed(
        self, count: int, aborted: np.ndarray, reasons: np.ndarray, tally: Tally
    ) -> _Failed:
        """Outcomes and reasons where some did not commit."""
        outcomes = np.zeros(count, np.int8)
        outcomes[aborted] = ABORTED
        indices, valid = np.zeros(count, np.int32), np.zeros(-(-count // 8), np.uint8)
        codes, counts = encode_reasons(aborted, reasons, indices, valid)
        words, places, texts = self._texts(codes)
        if len(words) < len(codes):
            indices[aborted] = np.array(places, np.int32)[indices[aborted]]
        for text, many in zip(texts, counts, strict=True):
            tally.add(ABORTED, many, text)
        key = tuple(codes)
        # A copy: the next batch lists its own in the same place, while the log is written.
        kept = aborted.copy()
        return _Failed(kept, outcomes, indices, valid, words, key, key in self._reasons)

    def _texts(self, codes: Sequence[int]) -> tuple[pa.Array, list[int], list[str]]:
        """The distinct texts behind codes, for each code which of them it is, and its text.

        The same few reasons come again and again; where they are fixed, so is this.
        """
        key = tuple(codes)
        found = self._reasons.get(key)
        if found is None:
            words, places = reason_words(self._program, codes)
            texts = [self._program.reason_text(code) for code in codes]
            found = pa.array(words, pa.string()), places, texts
            if all(map(self._program.is_fixed, codes)) and len(self._reasons) < _KEPT_REASONS:
                self._reasons[key] = found
        return found

    def _output(
        self, column: Column, outs: Sequence[np.ndarray], given: Given, valid: np.ndarray | None
    ) -> pa.Array:
        """One out column, null where an event did not commit, or its transaction has none."""
        count, found, has = given.count, None, np.zeros(len(outs), np.bool_)
        for number, (signature, out) in enumerate(zip(self._signatures, outs, strict=True)):
            if signature.out_layout is None or column.name not in (signature.output or ()):
                continue
            has[number] = True
            if given.route is None and not is_wide(column):
                return self._narrow(column, signature.out_layout, out, valid)
            mine = out[signature.out_layout.field(column.name).offset // WORD_BYTES]
            if found is None:
                found = mine
            elif given.route is not None:
                pick(given.route, number, mine, found)
        if found is None:
            return pa.nulls(count, column.type.arrow)
        if given.route is not None and not has.all():
            bits = np.zeros(-(-count // 8), np.uint8)
            own_bits(given.route, has, bits)
            valid = bits if valid is None else bits & valid
        mask = None if valid is None else pa.py_buffer(valid)
        return pa.Array.from_buffers(column.type.arrow, count, [mask, pa.py_buffer(found)])

    def _narrow(
        self, column: Column, layout: Layout, out: np.ndarray, valid: np.ndarray | None
    ) -> pa.Array:
        """An out column whose values are not words, or not Arrow's."""
        field = layout.field(column.name)
        word, place = divmod(field.offset, WORD_BYTES)
        size = np.dtype(field.format).itemsize
        found, count = out[word].view(field.format), out.shape[1]
        mine = np.ascontiguousarray(found[place // size :: WORD_BYTES // size])
        nulls = np.zeros(count, np.bool_)
        if valid is not None:
            nulls = np.unpackbits(valid, count=count, bitorder="little") == 0
        if field.nullable:
            nulls |= field.nulls_in(out[field.null_word])
        return to_arrow(mine, column.type, self._program.pool, nulls)


def _words(indices: np.ndarray, kind: pa.DataType, words: pa.Array, valid: Any = None) -> pa.Array:
    buffers = [valid, pa.py_buffer(indices)]
    return pa.DictionaryArray.from_buffers(_WORDS[kind], len(indices), buffers, words)


class _Failed(NamedTuple):
    """Outcomes and reasons of a batch in which some events did not commit."""

    aborted: np.ndarray  # positions
    outcomes: np.ndarray
    indices: np.ndarray  # of the reasons
    valid: np.ndarray  # a bit for each position: whether it has one
    words: pa.Array  # the distinct reasons
    key: tuple[int, ...]  # their codes
    is_fixed: bool  # whether such codes always mean these words

    def logged(self, count: int) -> tuple[PlainColumn, PlainColumn, Nulls | None]:
        """Outcomes, reasons and where there is none, in as few bytes as the log would find."""
        many, places = len(self.aborted), self.aborted
        if not many:
            return np.zeros(1, np.int8), np.zeros(1, np.int32), Nulls(0, self.valid)
        outcome: PlainColumn = self.outcomes
        reason: PlainColumn = self.indices
        if is_sparse(many, count, 1):
            outcome = Sparse(np.zeros(1, np.int8), places, self.outcomes[places])
        nulls = Nulls(many, self.valid)
        if is_sparse(many, count, 4):
            return outcome, Sparse(None, places, self.indices[places]), None
        return outcome, reason, nulls


_NOTHING = np.zeros(0, np.int64)
_NONE_FAILED = _Failed(
    _NOTHING, _NOTHING, _NOTHING, np.zeros(0, np.uint8), pa.array([], pa.string()), (), True
)


class _SameColumns:
    """The columns that are the same for every batch in which all events commit, cut to length."""

    def __init__(self, names: pa.Array) -> None:
        self._names = names
        self._room = 0
        self._columns: tuple[pa.Array, ...] = ()
        self._last = (0, 0)  # batches are mostly as long as the one before
        self._cut: list[pa.Array] = []

    def of(self, first: int, count: int) -> list[pa.Array]:
        """Position, transaction, outcome and reason of so many events."""
        if (first, count) != self._last:
            if first + count > self._room:
                self._make(max(_FIRST_ROWS, 2 * (first + count)))
            self._last = first, count
            self._cut = [column.slice(first, count) for column in self._columns]
        return self._cut

    def _make(self, room: int) -> None:
        counted, zeros = np.arange(room), np.zeros(room, np.int8)
        none = pa.py_buffer(np.zeros(-(-room // 8), np.uint8))
        position = pa.Array.from_buffers(pa.int64(), room, [None, pa.py_buffer(counted)])
        no_reason = _words(np.zeros(room, np.int32), _INT32, pa.array([], pa.string()), none)
        self._columns = (
            position,
            _words(zeros, _INT8, self._names),
            _words(zeros, _INT8, OUTCOME_WORDS),
            no_reason,
        )
        self._room = room
