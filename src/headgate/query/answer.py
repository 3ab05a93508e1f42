"""Answers: what a query found, in whatever form it is wanted, and the epoch that it saw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headgate.errors import InputError
from headgate.state.display import ROWS_MAX, counted, html_table, names

# Years before 1 and after 9999, infinite times, and whatever else Arrow has and Python has not.
_UNREADABLE = (ValueError, OverflowError, pa.ArrowException)


class Answer:
    """What a query found, as Arrow, pandas or rows, and the epoch that it saw.

    It is a sequence of rows, and whatever takes an Arrow stream takes it as it is: `pyarrow.table`,
    Polars, DuckDB, `engine.load`.

    >>> answer = Answer(pa.table({"id": [1, 2], "balance": [5.0, 7.5]}), epoch=3)
    >>> answer
    <answer of 2 rows at epoch 3: id, balance>
    >>> [balance for _, balance in answer]
    [5.0, 7.5]
    >>> len(answer), pa.table(answer).num_rows
    (2, 2)
    """

    def __init__(
        self, table: pa.Table, epoch: int | None = None, by: str = "duckdb", why: str = ""
    ) -> None:
        self._table = table
        self.epoch: int | None = epoch
        self.by: str = by  # who answered: "duckdb", or "spark" of tables that are in shards
        self.why: str = why  # why that one did, where there was a choice

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(self._table.column_names)

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return self._table

    def pandas(self) -> Any:
        """All rows as a pandas frame."""
        try:
            return self._table.to_pandas()
        except _UNREADABLE as error:
            raise InputError(
                f"pandas has no values for these rows: {error}; take them as Arrow (.arrow()), or "
                "as texts in the query, such as cast(... as varchar)"
            ) from None

    df = pandas

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows as tuples."""
        return list(self)

    fetchall = rows

    def dicts(self) -> list[dict[str, Any]]:
        """All rows as dicts by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self._table.to_batches():
            values = map(_python_values, batch.columns, batch.schema.names)
            yield from zip(*values, strict=True)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __bool__(self) -> bool:
        return True  # an answer is there, also when it has no rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for any library that speaks Arrow's C stream interface."""
        return self._table.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """The columns and their types for such a library."""
        return self._table.schema.__arrow_c_schema__()

    def __repr__(self) -> str:
        return f"<answer of {self._told()}: {names(self.columns)}>"

    def _repr_html_(self) -> str:
        top = self._table.slice(0, ROWS_MAX)
        shown = zip(*(shown_values(column) for column in top.columns), strict=True)
        more = f", the first {ROWS_MAX} of them" if len(self) > ROWS_MAX else ""
        return html_table(self._told() + more, self.columns, shown)

    def _told(self) -> str:
        at = "" if self.epoch is None else f" at epoch {self.epoch:,}"
        by = "" if self.by == "duckdb" else " by Spark SQL"
        return f"{counted(len(self), 'row')}{at}{by}"


def shown_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column to be looked at: texts in the place of those that Python has not."""
    try:
        found: list[Any] = column.to_pylist()
    except _UNREADABLE:
        found = [value.as_py() if _is_readable(value) else _text(value) for value in column]
    return found


def _python_values(column: pa.Array, name: str) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except _UNREADABLE as error:
        first = next(value for value in column if not _is_readable(value))
        raise InputError(
            f"column {name!r}: Python has no value for a {first.type} that is there, {_text(first)}"
            f" ({error}): the years of its times are 1 to 9999; take the rows as Arrow (.arrow()), "
            "or as texts in the query, such as cast(... as varchar)"
        ) from None
    return found


def _is_readable(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except _UNREADABLE:
        return False
    return True


def _text(value: pa.Scalar) -> str:
    """A value that Python has not, as Arrow writes it."""
    try:
        return str(value.cast(pa.string()))
    except pa.ArrowException:  # a list or a struct
        return f"<{value.type} out of range>"
