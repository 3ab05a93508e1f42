"""Steps: the changes of which a migration is a list, what each does to declarations and to rows.

What a step does to declarations is carried out by a draft of them (`drafts.py`); what it does to
rows is said here, where that is more than another name for them. Invariant: `code_of` a step is the
call that makes it, and two texts of one meaning have one `meaning_of`.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import SLOT
from headgate.engine.declaring.drafts import Columns, Drafts
from headgate.errors import DeclarationError, InputError, shown
from headgate.query.sql import run_sql, unstable_in
from headgate.state.fitting import fit
from headgate.state.objects import NULL_FAULT
from headgate.state.row_history import ENDING, NUMBER
from headgate.state.schema import Schema
from headgate.state.types import Column, logical_value

_NO_VALUE = "value= is an SQL expression over the columns of a row, as in 'price * 2'"
_ONE_EACH = (
    "value= must give one value for each row, from that row; what is summed up over all rows goes "
    "into a query of its own: '(select sum(n) from t)'"
)
Contents = dict[str, pa.Table]  # "__slot" and the columns of some tables, by name


class Step(Protocol):
    """One change: `declare` to the declarations, `convert` to the rows of the tables given."""

    def declare(self, drafts: Drafts) -> None: ...

    def convert(self, rows: Contents) -> None: ...


@dataclass(frozen=True)
class RenameTable:
    old: str
    new: str

    def declare(self, drafts: Drafts) -> None:
        drafts.rename_table(self.old, self.new)

    def convert(self, rows: Contents) -> None:
        if self.old in rows:
            rows[self.new] = rows.pop(self.old)


@dataclass(frozen=True)
class DropTable:
    table: str

    def declare(self, drafts: Drafts) -> None:
        drafts.drop_table(self.table)

    def convert(self, rows: Contents) -> None:
        rows.pop(self.table, None)


@dataclass(frozen=True)
class AddColumn:
    table: str
    column: str
    value: str | None = None
    after: str | None = None
    first: bool = False

    @property
    def parsed(self) -> Column:
        columns = Schema.parse(self.column, f"add_column to {self.table!r}").columns
        if len(columns) != 1:
            raise DeclarationError(f"add_column to {self.table!r}: one column at a time")
        return columns[0]

    def declare(self, drafts: Drafts) -> None:
        if self.after is not None and self.first:
            raise DeclarationError(
                "after= and first=True are two places: name the column it comes after, or say "
                "that it comes first"
            )
        draft, given = drafts[self.table], self._said
        if given is not None:
            query, names = self._query(given), [one.name for one in draft.columns]
            unstable = unstable_in(query, names)
            if unstable is not None:
                raise DeclarationError(
                    f"value= must be the same whenever it is computed, and {unstable} is not: the "
                    "dry run would show other rows; write a literal, as in TIMESTAMP '2026-01-31'"
                )
        draft.add(self.parsed, given, self.after, self.first)

    @property
    def _said(self) -> str | None:
        """The value as SQL, if there is one; DeclarationError for what is no SQL."""
        given: Any = self.value
        if given is not None and (not isinstance(given, str) or not given.strip()):
            raise DeclarationError(f"{_NO_VALUE}, not {shown(given)}")
        return self.value

    def _query(self, value: str, first: str = "") -> str:
        return f'select {first}(\n{value}\n) as value from "{self.table}"'

    def convert(self, rows: Contents) -> None:
        if self.table not in rows:
            return
        found, column = rows[self.table], self.parsed
        if self.value is not None:
            array = self._computed(found, column, self.value)
        else:
            value = None if column.default is None else logical_value(column.type, column.default)
            array = pa.repeat(pa.scalar(value, column.type.arrow), found.num_rows)
        rows[self.table] = found.append_column(column.name, array)

    def _computed(self, found: pa.Table, column: Column, value: str) -> pa.Array:
        """The value of each row, by DuckDB; nothing is rounded to fit."""
        self._ask(self._query(value), found.slice(0, 0).drop_columns([SLOT]))
        answer = self._ask(self._query(value, f'"{SLOT}", '), found).sort_by(SLOT)
        if not answer.column(SLOT).equals(found.column(SLOT)):
            raise InputError(_ONE_EACH)
        computed = answer.column("value").combine_chunks()
        if pa.types.is_struct(computed.type) and not computed.type.num_fields:
            raise InputError(f"{_NO_VALUE}, not only a comment")
        try:
            if column.type.kind == "float" and pa.types.is_floating(computed.type):
                faults = fit(computed, column.type, "value").faults
                if faults is not None and faults.max(initial=0) > NULL_FAULT:
                    raise pa.ArrowInvalid("a value is out of range")
            made = computed.cast(column.type.arrow)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            told = "; of two ints // is an int, / is not" if "truncated" in str(error) else ""
            raise InputError(f"value= is not a {column.type} in every row: {error}{told}") from None
        _refuse_rounded(computed, made, column)
        return made

    def _ask(self, query: str, rows: pa.Table) -> pa.Table:
        """What DuckDB answers; InputError without the words of a query that nobody wrote."""
        try:
            return run_sql(query, {self.table: rows}, None).arrow()
        except InputError as error:
            told = str(error).removeprefix("the query cannot run: ").splitlines()[0]
            if SLOT in told and SLOT in rows.column_names:  # beside what sums all rows up
                raise InputError(_ONE_EACH) from None
            raise InputError(f"value= cannot be computed: {told}") from None


def _refuse_rounded(computed: pa.Array, made: pa.Array, column: Column) -> None:
    """Refuse floats for a decimal that are not the floats closest to one of its digits."""
    if not (pa.types.is_floating(computed.type) and pa.types.is_decimal(made.type)):
        return
    differs = pc.not_equal(made.cast(pa.float64()), computed.cast(pa.float64()))
    if pc.any(differs).as_py():
        one = computed.filter(differs)[0].as_py()
        raise InputError(
            f"value= is not exact as a {column.type} in every row, as with {one!r}: nothing is "
            f"rounded by itself; say how, as in round(..., {column.type.scale})"
        )


@dataclass(frozen=True)
class DropColumn:
    table: str
    column: str

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].drop(self.column)

    def convert(self, rows: Contents) -> None:
        if self.table in rows:
            rows[self.table] = rows[self.table].drop_columns([self.column])


@dataclass(frozen=True)
class RenameColumn:
    table: str
    old: str
    new: str

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].rename(self.old, self.new)

    def convert(self, rows: Contents) -> None:
        if self.table in rows:
            found = rows[self.table]
            names = [self.new if name == self.old else name for name in found.column_names]
            rows[self.table] = found.rename_columns(names)


@dataclass(frozen=True)
class Widen:
    table: str
    column: str

    @property
    def parsed(self) -> Column:
        columns = Schema.parse(self.column, f"widen {self.table!r}").columns
        if len(columns) != 1 or columns[0].default is not None or columns[0].nullable:
            raise DeclarationError(
                f"widen {self.table!r}: name one column and its new type, as in 'balance double', "
                f"not {self.column!r}"
            )
        return columns[0]

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].widen(self.parsed.name, self.parsed.type)

    def convert(self, rows: Contents) -> None:
        if self.table in rows:
            found, column = rows[self.table], self.parsed
            place = found.column_names.index(column.name)
            wide = found.column(place).cast(column.type.arrow)
            rows[self.table] = found.set_column(place, column.name, wide)


@dataclass(frozen=True)
class SetDefault:
    table: str
    column: str
    value: Any

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].set_default(self.column, self.value)

    def convert(self, rows: Contents) -> None:
        """Contents keep what they have."""


@dataclass(frozen=True)
class AllowNull:
    table: str
    column: str

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].allow_null(self.column)

    def convert(self, rows: Contents) -> None:
        """Contents keep what they have."""


@dataclass(frozen=True)
class ForbidNull:
    table: str
    column: str

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].forbid_null(self.column)

    def convert(self, rows: Contents) -> None:
        """Contents are tested, not changed."""


@dataclass(frozen=True)
class SetCheck:
    table: str
    check: str | None

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].set_check(self.check)

    def convert(self, rows: Contents) -> None:
        """Contents are tested, not changed."""


@dataclass(frozen=True)
class AddUnique:
    table: str
    columns: Columns

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].add_unique(self.columns)

    def convert(self, rows: Contents) -> None:
        """Contents are tested, not changed."""


@dataclass(frozen=True)
class DropUnique:
    table: str
    columns: Columns

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].drop_unique(self.columns)

    def convert(self, rows: Contents) -> None:
        """Contents stay as they are."""


@dataclass(frozen=True)
class AddReference:
    table: str
    columns: Columns
    parent: str

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].add_reference(self.columns, drafts[self.parent].name)

    def convert(self, rows: Contents) -> None:
        """Contents are tested, not changed."""


@dataclass(frozen=True)
class DropReference:
    table: str
    columns: Columns

    def declare(self, drafts: Drafts) -> None:
        drafts[self.table].drop_reference(self.columns)

    def convert(self, rows: Contents) -> None:
        """Contents stay as they are."""


@dataclass(frozen=True)
class RenameTransaction:
    old: str
    new: str

    def declare(self, drafts: Drafts) -> None:
        drafts.rename_transaction(self.old, self.new)

    def convert(self, rows: Contents) -> None:
        """Results keep the name under which they ran."""


# --- what a step does to the versions of a table's rows -------------------------------------------


def _of_versions(step: Step) -> Any:
    """The same change to the table of versions; None where it is about rows alone."""
    kinds = (AddColumn, DropColumn, RenameColumn, Widen, SetDefault, AllowNull, ForbidNull)
    if not isinstance(step, kinds):
        return None
    return dataclasses.replace(step, table=step.table + ENDING)


def declare_of_versions(step: Step, drafts: Drafts) -> None:
    """Change the table of versions as the step changed its table."""
    own = _of_versions(step)
    versions = None if own is None else drafts.versions_of(own.table.removesuffix(ENDING))
    if own is None or versions is None:
        return
    if isinstance(own, AddColumn):
        own = dataclasses.replace(own, after=None, first=False)
    own.declare(drafts)
    versions.order_as_versions_of(drafts[own.table.removesuffix(ENDING)])


def convert_versions(step: Step, rows: Contents) -> None:
    """Change versions as the step changed rows."""
    own = _of_versions(step)
    table = "" if own is None else own.table
    if isinstance(step, RenameTable):
        own, table = RenameTable(step.old + ENDING, step.new + ENDING), step.old + ENDING
    if own is not None and table in rows and NUMBER in rows[table].column_names:
        own.convert(rows)


_METHODS: dict[type, str] = {
    RenameTable: "rename_table",
    DropTable: "drop_table",
    AddColumn: "add_column",
    DropColumn: "drop_column",
    RenameColumn: "rename_column",
    Widen: "widen",
    SetDefault: "set_default",
    AllowNull: "allow_null",
    ForbidNull: "forbid_null",
    SetCheck: "set_check",
    AddUnique: "add_unique",
    DropUnique: "drop_unique",
    AddReference: "add_reference",
    DropReference: "drop_reference",
    RenameTransaction: "rename_transaction",
}


def code_of(step: Step) -> str:
    """The call that makes a step, as it stands in a program."""
    words = []
    for field in dataclasses.fields(step):  # type: ignore[arg-type]
        value = getattr(step, field.name)
        value = value[0] if field.name == "columns" and len(value) == 1 else value
        if field.default is dataclasses.MISSING:
            words.append(repr(value))
        elif value != field.default:
            words.append(f"{field.name}={value!r}")
    return f".{_METHODS[type(step)]}({', '.join(words)})"


# Texts and names in quotes, comments, operators of two signs, words and numbers, other signs.
_TOKENS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\$\w*\$.*?\$\w*\$"""
    r"""|--[^\n]*|/\*.*?\*/|<=|>=|<>|!=|==|\|\||::|[\w.]+|\S""",
    re.DOTALL,
)


def meaning_of(code: str) -> tuple[Any, ...]:
    """What the text of `code_of` says, the same however its SQL is spaced or capitalised.

    Names that differ in case only are one name to SQL, so folding case joins no two meanings.
    """
    call = ast.parse(f"_{code}", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return (code,)
    method = call.func.attr
    words = [(None, one) for one in call.args] + [(one.arg, one.value) for one in call.keywords]
    found = []
    for place, (name, node) in enumerate(words):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and method in ("add_column", "widen") and place == 1:
            found.append((name, Schema.parse(text).ddl))
        elif isinstance(text, str) and (name == "value" or (method, place) == ("set_check", 1)):
            found.append((name, _spaced(text)))
        else:
            found.append((name, ast.unparse(node)))
    return (method, *found)


def _spaced(text: str) -> str:
    tokens = _TOKENS.findall(text)
    return " ".join(one if one[0] in "'\"`$" else one.lower() for one in tokens)
