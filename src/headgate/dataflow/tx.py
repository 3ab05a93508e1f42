"""The tx: a procedure's one way to tables, and to SQL over them and its batch.

It sees the rows as they are at its turn, its own writes with them, and touches what the procedure
declared and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headgate.dataflow.order_of_units import ReadTable
from headgate.dataflow.procedures import Procedure, Trigger
from headgate.dataflow.writes import WriteRefused
from headgate.engine.events import as_table, complete_rows, defaults_of, require_columns
from headgate.errors import DeclarationError, InputError, not_among, shown
from headgate.query.kept_questions import KeptQuestions
from headgate.query.sql import Parameters, check_asked, check_query, named_in
from headgate.state.table import Table

Fire = Callable[[Table, pa.Table], None]  # rows were added to a table: what they start runs


class Writing(Protocol):
    """Where the writes of a procedure go."""

    def insert(self, table: Table, given: pa.Table) -> int: ...

    def update(self, table: Table, given: pa.Table) -> int: ...

    def upsert(self, table: Table, given: pa.Table, complete: Any) -> int: ...

    def delete(self, table: Table, given: pa.Table) -> int: ...

    def added(self) -> list[pa.Table]: ...  # by the last statement, whole rows

    @property
    def names(self) -> Iterable[str]: ...  # of all tables that there are

    def versioned(self, name: str) -> str | None: ...


class Tx:
    """What a procedure is handed beside its batch."""

    def __init__(
        self,
        procedure: Procedure | Trigger,
        batches: Mapping[str, pa.Table],
        writes: Writing,
        read: ReadTable,
        questions: KeptQuestions,
        fire: Fire | None = None,
    ) -> None:
        self._procedure, self._batches, self._writes = procedure, batches, writes
        self._read, self._questions, self._fire = read, questions, fire
        self.failure: str | None = None  # of a write: from then on nothing can commit
        self.wrong: DeclarationError | None = None  # what no batch can mend
        self._is_open = True

    def sql(self, query: str, parameters: Parameters = None) -> pa.Table:
        """Run one SELECT by DuckDB over the batch, the declared tables and own writes.

        The batch is called `batch`, and as its stream is. Parameters are a list for each ?, or a
        dict for each $name.
        """
        self._check()
        try:
            check_asked(query, parameters)
        except InputError as error:
            raise self._wrong(f"{self._where()}: {error}") from None
        check_query(query, parameters)
        known = {one.name: one for one in self._procedure.tables}
        tables = {name: self._batches[name] for name in named_in(query, self._batches)}
        tables |= {name: self._read(name) for name in named_in(query, known)}
        try:
            return self._questions.run(query, tables, parameters)
        except InputError as error:
            raise InputError(f"{self._where()}: {error}") from None
        except DeclarationError as error:  # no batch is wrong: it waits until the program is mended
            found = named_in(query, [one for one in self._writes.names if one not in known])
            told = f"; {self._about(found[-1])}" if found else ""
            raise self._wrong(f"{self._where()}: {error}{told}") from None

    def _about(self, name: str) -> str:
        """What to do about a table that cannot be read."""
        versioned = self._writes.versioned(name)
        if versioned is None:
            return f"{name!r} is a table: declare it, reads=[{name}]"
        return f"{name!r} has the versions of {versioned!r}, which procedures do not read"

    def rows(self, table: Table | str) -> pa.Table:
        """All rows of a declared table as they are now, own writes with them, in no order.

        Of a small table that is a tenth of the time of a question in SQL.
        """
        known = {one.name: one for one in self._procedure.tables}
        return self._read(self._declared(table, known, "reads", "reads=[...]").name)

    def insert(self, table: Table | str, rows: Any) -> int:
        """Add rows, whose keys must be new; columns that they lack take their defaults.

        Rows are Arrow, a frame, a list of dicts, or the text of a SELECT as `sql` takes it.
        """
        found = self._found(table)
        given = self._rows(found, rows, "insert")
        return self._write(self._writes.insert, found, self._complete(found)(given))

    def update(self, table: Table | str, rows: Any) -> int:
        """Give rows that are there, named by their keys, new values in the columns given."""
        found = self._found(table)
        return self._write(self._writes.update, found, self._keyed(found, rows, "update"))

    def upsert(self, table: Table | str, rows: Any) -> int:
        """Update the rows that are there, and insert those that are not."""
        found = self._found(table)
        given = self._keyed(found, rows, "upsert")
        return self._write(self._writes.upsert, found, given, self._complete(found))

    def delete(self, table: Table | str, rows: Any) -> int:
        """Remove the rows with these keys, where they are there; returns how many were."""
        found = self._found(table)
        given = self._rows(found, rows, "delete")
        require_columns(given, found.key, f"{self._where()}: delete from {found.name!r}")
        return self._write(self._writes.delete, found, given.select(list(found.key)))

    # --- what a statement needs ---------------------------------------------------------------

    def close(self) -> None:
        """The procedure has ended: who kept its tx can do no more with it."""
        self._is_open = False

    def check_program(self) -> None:
        """Raise what it asked for and never declared, also where the procedure caught that."""
        if self.wrong is not None:
            raise self.wrong

    def _check(self) -> None:
        if not self._is_open:
            raise InputError(f"{self._where()}: its batch has ended; a tx is of one batch")

    def _wrong(self, told: str) -> DeclarationError:
        """What must be changed in the program; to catch it in the procedure does not mend it."""
        self.wrong = self.wrong or DeclarationError(told)
        return self.wrong

    def _where(self) -> str:
        return f"{self._procedure.told} {self._procedure.name!r}"

    def _found(self, table: Any) -> Table:
        known = {one.name: one for one in self._procedure.writes}
        return self._declared(table, known, "writes", "writes=[...]")

    def _declared(self, table: Any, known: Mapping[str, Table], what: str, where: str) -> Table:
        self._check()
        if not isinstance(table, Table | str):
            raise InputError(f"{self._where()}: hand in a table or its name, not {shown(table)}")
        name = table if isinstance(table, str) else table.name
        if name not in known:
            among = not_among(name, known, "tables that it declares so")
            raise self._wrong(
                f"{self._where()} {what} the table {name!r}, which it does not declare in "
                f"{where}; {among}"
            )
        return known[name]

    def _rows(self, table: Table, rows: Any, what: str) -> pa.Table:
        where = f"{self._where()}: {what} {table.name!r}"
        given = self.sql(rows) if isinstance(rows, str) else rows
        if isinstance(given, Mapping):
            given = [given]
        return as_table(given, table.schema, where, absent=defaults_of(table))

    def _keyed(self, table: Table, rows: Any, what: str) -> pa.Table:
        """Rows that name their keys and some other columns of the table."""
        given, where = self._rows(table, rows, what), f"{self._where()}: {what} {table.name!r}"
        require_columns(given, table.key, where)
        for name in given.column_names:
            if name not in table.schema:
                among = not_among(name, table.schema.names, "columns")
                raise InputError(f"{where}: no column {name!r} in the table; {among}")
        return given

    def _complete(self, table: Table) -> Callable[[pa.Table], pa.Table]:
        where = f"{self._where()}: insert {table.name!r}"
        return lambda given: complete_rows(given, table, where)

    def _write(self, statement: Callable[..., int], table: Table, *given: Any) -> int:
        if not given[0].num_rows:
            return 0
        try:
            self._check_part(table, given[0])
            count = statement(table, *given)
            if self._fire is not None:
                for rows in self._writes.added():
                    self._fire(table, rows)
            return count
        except WriteRefused as error:
            self.failure = self.failure or str(error)
            raise
        except BaseException as error:  # half of it may be done
            self.failure = self.failure or f"error: {type(error).__name__}: {error}"
            raise

    def _check_part(self, table: Table, given: pa.Table) -> None:
        step = self._procedure
        part = step.partition if isinstance(step, Procedure) else None
        if part is not None and not part.is_all(given):
            raise WriteRefused(f"{table.name}: a row with {part.column!r} of another partition")


def batches_of(names: Sequence[str], tables: Sequence[pa.Table]) -> dict[str, pa.Table]:
    """What a procedure is given, by the names that its SQL has for it."""
    found = dict(zip(names, tables, strict=True))
    return {"batch": tables[0], **found} if len(tables) == 1 else found
