"""Results: one row per event: its place, transaction, outcome, reason, order and out columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.engine.events import carried_array
from headgate.engine.metrics import Tally
from headgate.engine.ordering import Arranged
from headgate.engine.terms import Terms
from headgate.execution.program import Program
from headgate.execution.run import ABORTED, COMMITTED, OUTCOMES, Work
from headgate.execution.spans import Spans
from headgate.isolation.levels import Execution
from headgate.state.columns import to_arrow
from headgate.state.compiled import numba
from headgate.state.display import text
from headgate.state.fitting import conform, one_array
from headgate.state.layout import HEADER_ALIVE, WORD_BYTES, Layout
from headgate.state.rows import stored_column
from headgate.state.schema import Schema
from headgate.state.spaces import EventRows, Words
from headgate.state.table import Access
from headgate.state.types import Column

_GIVING_WAY = frozenset(("items", "values", "get"))  # methods of `Result`
_FEW = 8
_INDEX_TYPES = {"b": pa.int8(), "i": pa.int32()}
FIRST_COLUMNS = "epoch bigint, position bigint, transaction string, outcome string, reason string"
OUTCOME_WORDS = pa.array(OUTCOMES, pa.string())


def results_schema(terms: Terms) -> Schema:
    """The columns of the results under these terms, for the manifest and for readers."""
    first = Schema.parse(FIRST_COLUMNS).columns
    columns = {column.name: column for column in (*first, *terms.order_by)}
    columns.update((name, Column(name, kind)) for name, kind in terms.carried if kind is not None)
    columns.update(terms.outputs)
    columns.update(terms.updated)
    return Schema(tuple(Column(column.name, column.type) for column in columns.values()))


def results_arrow(terms: Terms) -> pa.Schema:
    """The Arrow types of the results: the words that repeat are dictionaries."""
    words = {"transaction": pa.int8(), "outcome": pa.int8(), "reason": pa.int32()}
    fields = [
        pa.field(field.name, pa.dictionary(words[field.name], pa.string()))
        if field.name in words
        else field
        for field in results_schema(terms).arrow
    ]
    place = len(fields) - len(terms.outputs) - len(terms.updated)
    fields[place:place] = [
        pa.field(name, pa.null()) for name, kind in terms.carried if kind is None
    ]
    return pa.schema(fields)


def build_results(
    terms: Terms, arranged: Arranged, execution: Execution, program: Program
) -> tuple[pa.RecordBatch, Tally]:
    """The results of one batch in order of position, counted; the epoch is the frame's and not in
    them."""
    count = len(arranged.order) + len(arranged.aside)
    reasons, tally = _reasons(arranged, execution, program)
    columns: dict[str, pa.Array] = {
        "position": _int64_array(program.counted(count)),
        "transaction": _transactions(arranged, program),
        "outcome": _outcomes(arranged, execution),
        "reason": reasons,
    }
    columns.update(_order_columns(terms, arranged))
    columns.update(_carried_columns(terms, arranged))
    if execution.made is not None:  # elsewhere, by this very function
        columns.update((one, execution.made[one]) for one in (*terms.outputs, *terms.updated))
    else:
        for column in terms.outputs.values():
            columns[column.name] = _output(column, arranged, execution, program)
        for column in terms.updated.values():
            columns[column.name] = _updated(column, arranged, execution, program)
    batch = pa.RecordBatch.from_arrays(
        list(columns.values()), names=list(columns), metadata=_metadata(terms, execution)
    )
    return batch, tally


def _metadata(terms: Terms, execution: Execution) -> dict[str, str] | None:
    """Of a batch that a protocol ran: which, at what level, how often one had to run again."""
    isolated = execution.isolated
    if isolated is None:
        return None
    return {
        "headgate.isolation": terms.isolation,
        "headgate.scheme": isolated.scheme,
        "headgate.retries": str(isolated.retries),
    }


def with_epoch(batch: pa.RecordBatch, epoch: int) -> pa.Table:
    """The results as the user sees them: the epoch first."""
    epochs = _int64_array(np.full(batch.num_rows, epoch, np.int64))
    arrays, names = [epochs, *batch.columns], ["epoch", *batch.schema.names]
    return pa.Table.from_arrays(arrays, names=names, metadata=batch.schema.metadata)


def _int64_array(values: np.ndarray) -> pa.Array:
    """As pa.array, which looks at the values first and costs more than the copy it avoids."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _dictionary(indices: np.ndarray, values: pa.Array, nulls: np.ndarray | None) -> pa.Array:
    valid = None
    if nulls is not None and nulls.any():
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    kind = _INDEX_TYPES[indices.dtype.char]
    codes = pa.Array.from_buffers(kind, len(indices), [valid, pa.py_buffer(indices)])
    return pa.DictionaryArray.from_arrays(codes, values, safe=False)


def _transactions(arranged: Arranged, program: Program) -> pa.Array:
    names = program.names
    if arranged.is_whole and len(names) == 1:
        return _dictionary(np.zeros(len(arranged.order), np.int8), names, None)
    if arranged.is_whole:
        return _dictionary(arranged.route.astype(np.int8), names, None)
    numbers = arranged.route[event_rows(arranged)].astype(np.int8)
    return _dictionary(numbers, names, numbers < 0)


def event_rows(arranged: Arranged) -> EventRows:
    """The event row of each position."""
    if not len(arranged.aside):
        return arranged.order
    return np.concatenate([arranged.order, arranged.aside])


def _outcomes(arranged: Arranged, execution: Execution) -> pa.Array:
    outcome = execution.outcome
    if len(arranged.aside):
        outcome = np.concatenate([outcome, arranged.aside_outcome])
    return _dictionary(outcome, OUTCOME_WORDS, None)


def _reasons(arranged: Arranged, execution: Execution, program: Program) -> tuple[pa.Array, Tally]:
    """The reasons as a dictionary of the few texts that occur, null where there is none; and how
    often each outcome and reason does."""
    ran, total = len(arranged.order), len(arranged.order) + len(arranged.aside)
    indices = np.zeros(total, np.int32)
    valid = np.zeros(-(-total // 8), np.uint8)
    aborted = np.flatnonzero(execution.outcome != 0)  # several times faster over booleans
    codes, counts = encode_reasons(aborted, execution.reason, indices, valid)
    texts = [program.reason_text(code) for code in codes]
    words, remap = reason_words(program, codes)
    places = {text: place for place, text in enumerate(words)}
    if len(words) < len(texts):
        indices[aborted] = np.array(remap, np.int32)[indices[aborted]]
    for place, reason in enumerate(arranged.aside_reason, start=ran):
        indices[place] = places.setdefault(reason, len(places))
        valid[place // 8] |= 1 << (place % 8)
    numbers = [pa.py_buffer(valid), pa.py_buffer(indices)]
    array = pa.Array.from_buffers(pa.int32(), total, numbers)
    words = pa.DictionaryArray.from_arrays(array, pa.array(list(places), pa.string()), safe=False)
    return words, _tally(ran, zip(texts, counts, strict=True), arranged)


def reason_words(program: Program, codes: Iterable[int]) -> tuple[list[str], list[int]]:
    """The distinct texts behind codes, and for each code which of them it is.

    Two codes may stand for one text: a fixed reason, and an abort in the same words.
    """
    places: dict[str, int] = {}
    numbers = [places.setdefault(program.reason_text(code), len(places)) for code in codes]
    return list(places), numbers


def _tally(ran: int, aborted: Iterable[tuple[str, int]], arranged: Arranged) -> Tally:
    """The batch counted: who ran by reasons that are counted already, who did not one by one."""
    tally = Tally()
    for reason, count in aborted:
        tally.add(ABORTED, count, reason)
    tally.add(COMMITTED, ran - tally.outcomes[ABORTED])
    if len(arranged.aside):
        asides = zip(arranged.aside_outcome.tolist(), arranged.aside_reason, strict=True)
        for (outcome, reason), count in Counter(asides).items():
            tally.add(outcome, count, reason)
    return tally


def _order_columns(terms: Terms, arranged: Arranged) -> dict[str, pa.Array]:
    found = {}
    rows = pa.array(event_rows(arranged)) if terms.order_by else None
    for column in terms.order_by:
        given = arranged.events.column(column.name)
        is_fitting = arranged.is_whole and given.type == column.type.arrow  # and within its range
        where = f"events: column {column.name!r}"
        array = one_array(given) if is_fitting else conform(given, column.type, where)
        # Taken also where all are, in their order: what came in is the caller's, and may change.
        found[column.name] = array.take(rows)
    return found


def _carried_columns(terms: Terms, arranged: Arranged) -> dict[str, pa.Array]:
    found = {}
    rows = pa.array(event_rows(arranged)) if terms.carried else None
    for name, kind in terms.carried:
        array = carried_array(arranged.events.column(name), kind, name)
        found[name] = array.take(rows)
    return found


def _output(column: Column, arranged: Arranged, execution: Execution, program: Program) -> pa.Array:
    """One out column: null where the event did not commit or has no such column."""
    ran, aside = len(arranged.order), len(arranged.aside)
    nulls = execution.outcome != COMMITTED
    values: np.ndarray | None = None
    routed = None
    if len(program.signatures) > 1:
        routed = arranged.route if arranged.is_whole else arranged.route[arranged.order]
    for number, work in enumerate(arranged.works):
        mine, lacking = _output_values(work, column)
        nulls |= lacking if routed is None else lacking & (routed == number)
        if mine is None:
            continue
        if values is None or routed is None:
            values = mine
        else:
            values = np.where(routed == number, mine, values)
    if values is None:
        return pa.nulls(ran + aside, column.type.arrow)
    if aside:
        values = np.concatenate([values, np.zeros(aside, values.dtype)])
        nulls = np.concatenate([nulls, np.ones(aside, np.bool_)])
    return to_arrow(values, column.type, program.pool, nulls)


def _output_values(work: Work, column: Column) -> tuple[np.ndarray | None, np.ndarray | np.bool_]:
    """The values of an out column, if it has it, and where there is none."""
    output = work.signature.output
    if work.out is None or work.out_layout is None or output is None or column.name not in output:
        return None, np.True_
    field = work.out_layout.field(column.name)
    word, place = divmod(field.offset, WORD_BYTES)
    size = np.dtype(field.format).itemsize
    values = work.out[word].view(field.format)[place // size :: WORD_BYTES // size]
    nulls = field.nulls_in(work.out[field.null_word]) if field.nullable else np.False_
    return np.ascontiguousarray(values), nulls


def as_results(results: pa.Table) -> list[Result]:
    """Each row of the results by itself."""
    names = results.column_names
    columns = [_plain(one_array(column)) for column in results.columns]
    return [Result(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _plain(array: pa.Array) -> list[Any]:
    """The values as Python has them; the usual types by NumPy, which is many times faster, but for
    a few values it takes longer to begin with than all of them."""
    if len(array) <= _FEW:
        few: list[Any] = array.to_pylist()
        return few
    if pa.types.is_dictionary(array.type):
        words = [*array.dictionary.to_pylist(), None]
        places = array.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
        return [words[place] for place in places.tolist()]
    kind = array.type
    if array.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return values
    plain: list[Any] = array.to_pylist()
    return plain


@dataclass(frozen=True)
class _Left:
    """The rows that one transaction's events left behind at one parameter."""

    access: Access
    words: Words  # rows x words
    spans: Spans  # by event row: where its rows stand


def _left(work: Work, name: str) -> _Left | None:
    parameters = [one for one in work.signature.parameters if isinstance(one.stands_for, Access)]
    for parameter, spans, after in zip(parameters, work.spans, work.after, strict=True):
        access = parameter.stands_for
        if parameter.name == name and after is not None and isinstance(access, Access):
            return _Left(access, after, spans)
    return None


def _updated(
    column: Column, arranged: Arranged, execution: Execution, program: Program
) -> pa.Array:
    """The rows as the transactions left them: null where one did not commit or deleted the row."""
    total = len(arranged.order) + len(arranged.aside)
    firsts, lengths = np.zeros(total, np.int64), np.zeros(total, np.int64)
    nulls, parts, base = np.ones(total, np.bool_), [], 0
    routed, committed = arranged.route[arranged.order], execution.outcome == COMMITTED
    access = None
    for number, work in enumerate(arranged.works):
        left = _left(work, column.name)
        if left is None:
            continue
        access = left.access
        mine = np.flatnonzero((routed == number) & committed)
        rows = arranged.order[mine]
        firsts[mine] = base + left.spans.firsts[rows]
        lengths[mine] = left.spans.lengths[rows]
        nulls[mine] = False
        parts.append(left.words)
        base += len(left.words)
    if access is None:
        return pa.nulls(total, column.type.arrow)
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1] if total else 0) + np.repeat(firsts - ends + lengths, lengths)
    words = np.ascontiguousarray(np.concatenate(parts)[places])
    layout = program.tables[access.table.name].layout
    if access.is_single:
        whole = np.zeros((total, layout.words), np.int64)
        whole[~nulls] = words
        return _structs(whole, layout, program)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, _structs(words, layout, program), mask=pa.array(nulls))


def _structs(words: Words, layout: Layout, program: Program) -> pa.Array:
    """Rows as structs, null where they are not alive."""
    nulls = (words[:, 0] & HEADER_ALIVE) == 0
    records = words.reshape(-1).view(layout.dtype)
    arrays = []
    for field in layout.fields:
        values = stored_column(records[field.name], field.type)
        mine = nulls | field.nulls_in(words[:, field.null_word]) if field.nullable else nulls
        arrays.append(to_arrow(values, field.type, program.pool, mine))
    fields = [pa.field(field.name, field.type.arrow) for field in layout.fields]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(nulls))


class Result(Mapping[str, Any]):
    """The result of one `call`: its columns as items and as attributes.

    >>> Result({"outcome": "aborted", "reason": "closed"}).reason
    'closed'

    A column goes before a method of its name; no output has columns `"keys"` and `"committed"`.

    >>> Result({"outcome": "committed", "items": 3}).items
    3
    """

    def __init__(self, columns: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __getattribute__(self, name: str) -> Any:
        if name in _GIVING_WAY and name in self._columns:
            return self._columns[name]
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("_columns", {})  # there are none while it is unpickled
        if name not in columns:
            raise AttributeError(f"the result has no column {name!r}: {', '.join(columns)}")
        return columns[name]

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as every mapping

    @property
    def committed(self) -> bool:
        """Whether the event took effect; `reason` says why not."""
        return bool(self._columns["outcome"] == OUTCOMES[COMMITTED])

    def __repr__(self) -> str:
        shown = {k: v for k, v in self._columns.items() if k != "reason" or v is not None}
        return f"Result({', '.join(f'{name}={text(repr(v))}' for name, v in shown.items())})"


# --- reasons as a dictionary ----------------------------------------------------------------------


_FEW_REASONS = 64  # a batch has about this many reasons at most; more are found by sorting


@numba.njit(cache=True, nogil=True)
def _encode_few(
    aborted: np.ndarray,
    reason: np.ndarray,
    indices: np.ndarray,
    valid: np.ndarray,
    codes: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Number the reasons in order of appearance; returns how many there are, -1 for too many."""
    count = 0
    for position in aborted:
        place = 0
        while place < count and codes[place] != reason[position]:
            place += 1
        if place == count:
            if count == len(codes):
                return -1
            codes[count] = reason[position]
            counts[count] = 0
            count += 1
        counts[place] += 1
        indices[position] = place
        valid[position // 8] |= np.uint8(1 << (position % 8))
    return count


def encode_reasons(
    aborted: np.ndarray, reason: np.ndarray, indices: np.ndarray, valid: np.ndarray
) -> tuple[list[int], list[int]]:
    """Set indices and validity bits, zeros so far, of the positions that did not commit; returns
    the distinct codes, and how many events have each."""
    if not len(aborted):
        return [], []
    codes, counts = np.empty(_FEW_REASONS, np.int64), np.empty(_FEW_REASONS, np.int64)
    count = int(_encode_few(aborted, reason, indices, valid, codes, counts))
    if count >= 0:
        return codes[:count].tolist(), counts[:count].tolist()
    codes, firsts, numbers, counts = np.unique(
        reason[aborted], return_index=True, return_inverse=True, return_counts=True
    )
    appearance = np.argsort(firsts)  # numbered in order of appearance, as the few are
    indices[aborted] = np.argsort(appearance)[numbers]
    np.bitwise_or.at(valid, aborted // 8, np.uint8(1) << (aborted % 8).astype(np.uint8))
    return codes[appearance].tolist(), counts[appearance].tolist()


@numba.njit(cache=True, nogil=True)
def lacks(bits: np.ndarray, offset: int, route: np.ndarray, owners: np.ndarray) -> bool:
    """Whether a value is null, by these validity bits, that its event's transaction needs."""
    for row in range(len(route)):
        place = offset + row
        if owners[route[row]] and not bits[place // 8] >> (place % 8) & 1:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def own_bits(route: np.ndarray, owners: np.ndarray, bits: np.ndarray) -> None:
    """Set the bits, zeros so far, of the events whose transaction has the column."""
    for row in range(len(route)):
        if owners[route[row]]:
            bits[row // 8] |= np.uint8(1 << (row % 8))


@numba.njit(cache=True, nogil=True)
def pick(route: np.ndarray, number: int, mine: np.ndarray, all_of: np.ndarray) -> None:
    """Put what one transaction gave among what all of them gave."""
    for row in range(len(route)):
        if route[row] == number:
            all_of[row] = mine[row]


def by_event(results: pa.Table, rows: EventRows) -> list[Result]:
    """Each result in the place of its event."""
    found: dict[int, Result] = dict(zip(rows.tolist(), as_results(results), strict=True))
    return [found[row] for row in range(len(found))]
