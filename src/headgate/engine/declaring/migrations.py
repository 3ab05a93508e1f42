"""Migrations: named lists of changes to a store's declarations, written in code.

A migration is a value; each method returns it with one more step. What it does to declarations is
said in `steps.py` and `drafts.py`. Which migration a program needs to fit its store is suggested as
code to paste. A rename is never guessed: what has gone and what is new stand beside each other, and
the user knows whether they are one.

>>> wider = (
...     Migration("2026-11 wider balances")
...     .rename_column("accounts", "owner", "holder")
...     .widen("accounts", "balance double")
...     .set_check("accounts", "balance >= 0")
... )
>>> wider
Migration('2026-11 wider balances')
    .rename_column('accounts', 'owner', 'holder')
    .widen('accounts', 'balance double')
    .set_check('accounts', 'balance >= 0')
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.engine.declaring.drafts import Columns, Draft, Drafts
from headgate.engine.declaring.steps import (
    AddColumn,
    AddReference,
    AddUnique,
    AllowNull,
    Contents,
    DropColumn,
    DropReference,
    DropTable,
    DropUnique,
    ForbidNull,
    RenameColumn,
    RenameTable,
    RenameTransaction,
    SetCheck,
    SetDefault,
    Step,
    Widen,
    code_of,
    convert_versions,
    declare_of_versions,
)
from headgate.errors import DeclarationError, HeadgateError, InputError, shown
from headgate.state.row_history import ENDING, lost_history
from headgate.state.schema import require_text, split_list
from headgate.state.table import Table
from headgate.state.types import Column, ColumnType, is_wider, logical_value


def _fault_of(draft: Draft) -> DeclarationError | None:
    """Why a draft is no table, if it is none."""
    try:
        draft.table()
    except DeclarationError as error:
        return error
    return None


@dataclass(frozen=True, repr=False)
class Migration:
    """Changes to the declarations of a store, applied once and together, as one epoch.

    >>> renamed = Migration("holders").rename_column("accounts", "owner", "holder")
    >>> renamed.name
    'holders'
    """

    name: str
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        given: Any = self.name
        if not isinstance(given, str) or not given.strip():
            raise DeclarationError(
                f"a migration has a name that tells it from others, a text, not {shown(given)}"
            )

        require_text(str(self.name), "a migration's name")

    def _and(self, step: Step) -> Migration:
        for text in _texts(vars(step)):
            require_text(text, f"migration {self.name!r}")
        return Migration(self.name, (*self.steps, step))

    def rename_table(self, old: Table | str, new: Table | str) -> Migration:
        """Give a table another name; its rows and its history stay."""
        return self._and(RenameTable(_name(old), _name(new)))

    def drop_table(self, table: Table | str) -> Migration:
        """Remove a table; epochs before the migration still show it."""
        return self._and(DropTable(_name(table)))

    def add_column(
        self,
        table: Table | str,
        column: str,
        *,
        value: str | None = None,
        after: str | None = None,
        first: bool = False,
    ) -> Migration:
        """Add a column given as DDL, with a DEFAULT or with a `value` in SQL over each row."""
        return self._and(AddColumn(_name(table), column, value, after, first))

    def drop_column(self, table: Table | str, column: str) -> Migration:
        """Remove a column; epochs before the migration still show it."""
        return self._and(DropColumn(_name(table), column))

    def rename_column(self, table: Table | str, old: str, new: str) -> Migration:
        """Give a column another name, also where key, check and constraints name it."""
        return self._and(RenameColumn(_name(table), old, new))

    def widen(self, table: Table | str, column: str) -> Migration:
        """Give a column a type that holds every value exactly, and more: 'balance double'."""
        return self._and(Widen(_name(table), column))

    def set_default(self, table: Table | str, column: str, value: Any) -> Migration:
        """Change what new rows get in a column; None: they get no default. Old rows stay."""
        return self._and(SetDefault(_name(table), column, value))

    def allow_null(self, table: Table | str, column: str) -> Migration:
        """Let a column be null from now on."""
        return self._and(AllowNull(_name(table), _called(column)))

    def forbid_null(self, table: Table | str, column: str) -> Migration:
        """Let a column always have a value from now on; every row must have one."""
        return self._and(ForbidNull(_name(table), _called(column)))

    def set_check(self, table: Table | str, check: str | None) -> Migration:
        """Hold a table to another check, or with None to no check; every row must pass it."""
        return self._and(SetCheck(_name(table), check))

    def add_unique(self, table: Table | str, columns: str | Sequence[str]) -> Migration:
        """No two rows may share these columns from now on; none may do so now."""
        return self._and(AddUnique(_name(table), _columns(columns)))

    def drop_unique(self, table: Table | str, columns: str | Sequence[str]) -> Migration:
        """Let rows share these columns."""
        return self._and(DropUnique(_name(table), _columns(columns)))

    def add_reference(
        self, table: Table | str, columns: str | Sequence[str], parent: Table | str
    ) -> Migration:
        """These columns hold the key of a row of the other table from now on, and now."""
        return self._and(AddReference(_name(table), _columns(columns), _name(parent)))

    def drop_reference(self, table: Table | str, columns: str | Sequence[str]) -> Migration:
        """Let these columns hold anything."""
        return self._and(DropReference(_name(table), _columns(columns)))

    def rename_transaction(self, old: str, new: str) -> Migration:
        """Give a transaction another name, under which its past results are read, too."""
        return self._and(RenameTransaction(_called(old), _called(new)))

    def declare(self, drafts: Drafts) -> None:
        """Change the drafts; DeclarationError that names the migration where a step cannot be."""
        if not self.steps:
            raise DeclarationError(f"the migration {self.name!r} changes nothing")
        before = copy.deepcopy(drafts)
        for step in self.steps:
            try:
                step.declare(drafts)
                declare_of_versions(step, drafts)
            except DeclarationError as error:
                raise self._refused(step, error) from None
        for draft in drafts.tables.values():
            fault = _fault_of(draft)
            if fault is not None:
                raise self._refused(self._culprit(before, draft.origin), fault)

    def _refused(self, step: Step, error: HeadgateError) -> HeadgateError:
        return type(error)(f"migration {self.name!r} at {code_of(step)}: {error}")

    def _culprit(self, drafts: Drafts, origin: str) -> Step:
        """The step since which a table cannot be: those behind it did not mend it."""
        culprit: Step | None = None
        for step in self.steps:
            step.declare(drafts)
            declare_of_versions(step, drafts)
            draft = next(one for one in drafts.tables.values() if one.origin == origin)
            is_sound = _fault_of(draft) is None
            culprit = None if is_sound else culprit or step
        return culprit or self.steps[-1]

    def convert(self, rows: Contents) -> None:
        """Change the rows of some tables as the steps say."""
        for step in self.steps:
            try:
                step.convert(rows)
                convert_versions(step, rows)
            except InputError as error:
                raise self._refused(step, error) from None

    def record(self, epoch: int) -> dict[str, Any]:
        """What a store keeps of it once it is applied."""
        return {"name": self.name, "epoch": epoch, "steps": [code_of(one) for one in self.steps]}

    def __repr__(self) -> str:
        return "\n    ".join([f"Migration({self.name!r})", *map(code_of, self.steps)])


def _name(table: Any) -> str:
    return table.name if isinstance(table, Table) else _called(table)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a step."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for part in value.items() for text in _texts(part))
    elif isinstance(value, Iterable):
        yield from (text for part in value for text in _texts(part))


def _called(thing: Any) -> str:
    name = thing if isinstance(thing, str) else getattr(thing, "name", None)
    if not isinstance(name, str):
        raise DeclarationError(f"a migration names things by a string, not by {shown(thing)}")
    return name


def _columns(columns: str | Iterable[str]) -> Columns:
    names = split_list(columns) if isinstance(columns, str) else columns
    return tuple(name.strip() for name in names)


def advice(declared: Table, stored: Table, pending: Sequence[str] = ()) -> str:
    """What to do about a difference: the migration that would end it, as code to paste.

    With migrations that are yet to be applied, `stored` is what they lead to, and the steps that
    are missing go into the last of them.
    """
    if declared.key != stored.key and len(declared.key) != len(stored.key):
        return (
            "a key stays what it is: declare it as the store has it, or declare a new table with "
            "the other key and load the rows into it"
        )
    steps = suggested(declared, stored)
    so = "so" if pending else "as the store has it"
    if not steps.steps:
        remarks = _remarks(declared, stored)
        return f"declare it {so}" + (f"; {remarks}" if remarks else "")
    if pending:
        code = "\n    ".join(code_of(one) for one in steps.steps)
        change = f"add to {'it' if len(pending) == 1 else 'the last of them'}:\n\n    {code}\n"
    else:
        text = str(steps).replace("\n", "\n    ")
        change = (
            f"change the store by a migration, hg.open(..., migrations=[...]):\n\n    hg.{text}\n"
        )
    return f"declare it {so}, or {change}{_remarks(declared, stored)}"


def suggested(declared: Table, stored: Table) -> Migration:
    """The migration from one declaration to another; a rename is never guessed."""
    name, found = declared.name, Migration("say here what it is for")
    for unique in stored.unique:
        if unique not in declared.unique:
            found = found.drop_unique(name, unique.columns)
    for reference in stored.references:
        if reference not in declared.references:
            found = found.drop_reference(name, reference.columns)
    if lost_history(declared, stored) is not None:
        found = found.drop_table(name + ENDING)
    before = None if stored.check is None else stored.check.text
    check = None if declared.check is None else declared.check.text
    if check != before and check is None:
        found = found.set_check(name, None)
    found = _column_steps(found, declared, stored)
    if check != before and check is not None:
        found = found.set_check(name, check)
    for unique in declared.unique:
        if unique not in stored.unique:
            found = found.add_unique(name, unique.columns)
    for reference in declared.references:
        if reference not in stored.references:
            found = found.add_reference(name, reference.columns, reference.parent)
    return found


def _column_steps(found: Migration, declared: Table, stored: Table) -> Migration:
    name = declared.name
    after: str | None = None
    before = {column.name: column for column in stored.schema}
    for column in declared.schema:
        known = before.get(column.name)
        if known is None:
            wanted = "..." if column.default is None and not column.nullable else None
            first = after is None
            found = found.add_column(name, column.ddl, value=wanted, after=after, first=first)
        elif is_wider(column.type, known.type):
            found = found.widen(name, f"{column.name} {column.type}")
        if known is not None and known.nullable != column.nullable:
            change = found.allow_null if column.nullable else found.forbid_null
            found = change(name, column.name)
        if known is not None and known.type == column.type and known.default != column.default:
            found = found.set_default(name, column.name, _literal(column.type, column.default))
        after = column.name
    for column in stored.schema:  # last: what is added may be computed from it
        if column.name not in declared.schema:
            found = found.drop_column(name, column.name)
    return found


def _literal(kind: ColumnType, default: Any) -> Any:
    value = None if default is None else logical_value(kind, default)
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _remarks(declared: Table, stored: Table) -> str:
    """What the suggestion cannot know."""
    gone = [c for c in stored.schema if c.name not in declared.schema]
    new = [c for c in declared.schema if c.name not in stored.schema]
    found = [
        f".rename_column({declared.name!r}, {one.name!r}, {other.name!r})"
        for one in gone
        for other in new
        if one.type == other.type
    ]
    lines = []
    if found:
        lines.append(f"where a column only has another name, in place of dropping it: {found[0]}")
    for column in declared.schema:
        if column.name in stored.schema:
            known = stored.schema[column.name]
            if column.type != known.type and not is_wider(column.type, known.type):
                lines.append(
                    f"{column.name!r}: a {column.type} does not hold every {known.type} exactly; "
                    "add a column with value='...', drop the old one, then rename the new one"
                )
    return "\n".join(lines)


# --- next steps -----------------------------------------------------------------------------------
# What to do about a table that does not fit its store, in words.


def filling(declared: Table, bare: Column) -> str:
    if bare.nullable:
        return (
            "add it by a migration, which writes the default into them: migrations=["
            f"hg.Migration('...').add_column({declared.name!r}, {bare.ddl!r})]"
        )
    return (
        f"declare a default, as in: {bare.ddl} {_zero_default(bare)}, or compute it: "
        f"migrations=[hg.Migration('...').add_column({declared.name!r}, {bare.ddl!r}, "
        "value='an SQL expression over the row')]"
    )


def of_before(parted: Mapping[str, Any]) -> str:
    """What to do with a program whose table is the one before a migration."""
    before = f"the program's is the table as it was before the migration {parted['name']!r}"
    if parted["epoch"] is None:
        return f"{before}, which is yet to be applied: declare it as it is after it"
    return (
        f"{before}, applied as epoch {parted['epoch']}: the program is older than the store; start "
        "the program that goes with the migration, or declare the table as the store has it"
    )


def _zero_default(column: Column) -> str:
    zeros = {"string": "''", "boolean": "false", "date": "date '1970-01-01'"}
    zeros["timestamp"] = "timestamp '1970-01-01 00:00:00'"
    return f"DEFAULT {zeros.get(column.type.kind, '0')}"
