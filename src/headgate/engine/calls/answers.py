"""Answers: what few calls gave, as each caller gets it and as the log takes it.

Both are made of the same outcomes, reasons and stored values. Invariant: the results are those that
`as_results` would read from the batch, and the batch is the one that `build_results` would make of
the same run; the batch is made only when someone asks for it, the log or a reader.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability.describing import BatchShape
from headgate.durability.plain_batches import (
    Counted,
    Encoded,
    Nulls,
    PlainBatch,
    PlainColumn,
    encoded,
)
from headgate.engine.metrics import Tally
from headgate.engine.results import OUTCOME_WORDS, Result, as_results, with_epoch
from headgate.execution.run import ABORTED, COMMITTED, OUTCOMES
from headgate.state.columns import to_arrow
from headgate.state.strings import StringPool
from headgate.state.types import Column, ColumnType

_WIDE = decimal.Context(prec=64)
_ZERO = np.zeros(1, np.int64)
_NO_REASON = Nulls(0, np.zeros(0, np.uint8))  # of none of the calls
_ORDINAL_EPOCH = datetime.date(1970, 1, 1).toordinal()
# As Arrow gives it: what it takes for UTC differs from one version to the next.
_EPOCH: datetime.datetime = pa.scalar(0, pa.timestamp("us", tz="UTC")).as_py()


@dataclass
class AnswerShape:
    """What the answers of one transaction have in common."""

    name: str
    outputs: Sequence[Column]
    pool: StringPool
    # By how many calls there are: the columns before the outputs, when all of them committed.
    _heads: dict[int, list[pa.Array]] = field(default_factory=dict)
    # The same as they are written, by whether there are several.
    _written: dict[bool, list[Encoded]] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        """The columns of a batch."""
        return ["position", "transaction", "outcome", "reason", *(one.name for one in self.outputs)]

    @cached_property
    def result_names(self) -> tuple[str, ...]:
        """The columns of a result."""
        return "epoch", *self.names

    @cached_property
    def values(self) -> list[Callable[[Any], Any] | None]:
        """By output: how a stored value is shown; None where it is shown as it is stored."""
        return [_shown(column.type) if self.is_stored(column) else None for column in self.outputs]

    @staticmethod
    def is_stored(column: Column) -> bool:
        """Whether answers keep the values of an output as they are stored, and not as Arrow."""
        return column.type.kind != "string" and not column.nullable

    @cached_property
    def transactions(self) -> pa.Array:
        return pa.array([self.name], pa.string())

    @cached_property
    def schema(self) -> pa.Schema:
        kinds = [one.type for one in self._committed(1)]
        kinds += [column.type.arrow for column in self.outputs]
        return pa.schema(list(zip(self.names, kinds, strict=True)))

    @cached_property
    def logged(self) -> BatchShape | None:
        """The columns as the log has them where all calls committed; None where it cannot."""
        if not all(map(self.is_stored, self.outputs)):
            return None
        dictionaries = [self.transactions, OUTCOME_WORDS, pa.array([], pa.string())]
        return BatchShape.of(self.schema, dictionaries)

    def head(self, outcomes: Sequence[int], reasons: Sequence[str | None]) -> list[pa.Array]:
        """The columns before the outputs."""
        committed = self._committed(len(outcomes))
        if not any(outcomes):
            return committed
        places: dict[str, int] = {}
        indices = [0 if one is None else places.setdefault(one, len(places)) for one in reasons]
        valid = np.packbits([one is not None for one in reasons], bitorder="little")
        texts = pa.array(list(places), pa.string())
        return [
            *committed[:2],
            _dictionary(np.array(outcomes, np.int8), OUTCOME_WORDS),
            _dictionary(np.array(indices, np.int32), texts, valid),
        ]

    def written(self, shape: BatchShape, count: int) -> list[Encoded]:
        """The columns before the outputs as the log has them, when all calls committed."""
        found = self._written.get(count > 1)
        if found is None:
            position: PlainColumn = Counted() if count > 1 else _ZERO
            byte, code = _ZERO.view(np.int8)[:1], _ZERO.view(np.int32)[:1]
            nulls = (None, None, None, _NO_REASON)
            given = zip(shape.columns[:4], (position, byte, byte, code), nulls, strict=True)
            found = self._written[count > 1] = [encoded(*one, count) for one in given]
        return found

    def _committed(self, count: int) -> list[pa.Array]:
        found = self._heads.get(count)
        if found is None:
            nothing = np.zeros(count, np.int8)
            found = self._heads[count] = [
                pa.array(np.arange(count)),
                _dictionary(nothing, self.transactions),
                _dictionary(nothing, OUTCOME_WORDS),
                _dictionary(
                    np.zeros(count, np.int32),
                    pa.array([], pa.string()),
                    np.zeros(-(-count // 8), np.uint8),
                ),
            ]
        return found


def _dictionary(
    indices: np.ndarray, values: pa.Array, valid: np.ndarray | None = None
) -> pa.DictionaryArray:
    kind = pa.int8() if indices.dtype == np.int8 else pa.int32()
    bits = None if valid is None else pa.py_buffer(valid)
    codes = pa.Array.from_buffers(kind, len(indices), [bits, pa.py_buffer(indices)])
    return pa.DictionaryArray.from_arrays(codes, values, safe=False)


@dataclass(slots=True, eq=False)
class Answers:
    """What calls of one transaction gave that ran as one epoch, by position: as they came."""

    shape: AnswerShape
    epoch: int
    outcomes: list[int]
    reasons: list[str | None]
    stored: list[Any]  # by output: an array of stored values, or of Arrow's texts

    @property
    def num_rows(self) -> int:
        """How many there are, as a batch says it."""
        return len(self.outcomes)

    def results(self) -> list[Result]:
        """Each of them by itself."""
        columns = [self._shown(place) for place in range(len(self.stored))]
        if None in columns:  # a value that Python has not, such as a time after its last year
            return as_results(with_epoch(self.batch(), self.epoch))
        names = self.shape.result_names
        words = [OUTCOMES[outcome] for outcome in self.outcomes]
        heads = (repeat(self.epoch), count(), repeat(self.shape.name), words, self.reasons)
        return [Result(zip(names, row, strict=True)) for row in zip(*heads, *columns, strict=False)]

    def _shown(self, place: int) -> list[Any] | None:
        """The values of an output as Python has them; None where it does not have one of them."""
        stored, show = self.stored[place], self.shape.values[place]
        values: list[Any] = stored.to_pylist() if isinstance(stored, pa.Array) else stored.tolist()
        if show is not None:
            try:
                return [
                    show(value) if outcome == COMMITTED else None
                    for value, outcome in zip(values, self.outcomes, strict=True)
                ]
            except (OverflowError, ValueError):
                return None
        if any(self.outcomes):
            pairs = zip(values, self.outcomes, strict=True)
            return [value if outcome == COMMITTED else None for value, outcome in pairs]
        return values

    def batch(self) -> pa.RecordBatch:
        """The results as the log takes them."""
        nulls = None
        if any(self.outcomes):
            nulls = np.array([outcome != COMMITTED for outcome in self.outcomes])
        arrays = self.shape.head(self.outcomes, self.reasons)
        outs = [
            stored if isinstance(stored, pa.Array)
            else to_arrow(stored, column.type, self.shape.pool, nulls)
            for column, stored in zip(self.shape.outputs, self.stored, strict=True)
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays([*arrays, *outs], schema=self.shape.schema)

    def logged(self) -> pa.RecordBatch | PlainBatch:
        """The same, with no Arrow array on the way where all of them committed."""
        shape, count = self.shape.logged, self.num_rows
        if shape is None or any(self.outcomes):
            return self.batch()
        return PlainBatch(shape, count, [*self.shape.written(shape, count), *self.stored])

    def tally(self) -> Tally:
        """Them counted."""
        tally = Tally()
        if any(self.outcomes):
            for outcome, reason in zip(self.outcomes, self.reasons, strict=True):
                if reason is not None:
                    tally.add(outcome, 1, reason)
        tally.add(COMMITTED, self.num_rows - tally.outcomes[ABORTED])
        return tally


def columns_of(result: Result) -> dict[str, Any]:
    """The columns of a result, not to be changed: as a mapping it gives them one by one."""
    return result._columns


def made(batch: Any) -> pa.RecordBatch:
    """The batch, which nobody may have asked for so far."""
    return batch if isinstance(batch, pa.RecordBatch) else batch.batch()


def _shown(kind: ColumnType) -> Callable[[Any], Any] | None:
    if kind.kind == "decimal":
        return lambda value: decimal.Decimal(value).scaleb(-kind.scale, _WIDE)
    return _SHOWN.get(kind.kind)


def _moment(stored: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=stored)


def _day(stored: int) -> datetime.date:
    return datetime.date.fromordinal(stored + _ORDINAL_EPOCH)


_SHOWN: dict[str, Callable[[Any], Any]] = {"boolean": bool, "timestamp": _moment, "date": _day}
