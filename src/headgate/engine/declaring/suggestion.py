"""Suggestions: the migration that would lead from what a store declares to what a program does.

It is code to paste. A rename is never guessed: what has gone and what is new stand beside each
other, and the user knows whether they are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.engine.declaring.migrations import Migration, code_of
from headgate.state.schema import ColumnType, is_wider, logical_value
from headgate.state.table import Table


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
            wanted = "..." if column.default is None else None
            first = after is None
            found = found.add_column(name, column.ddl, value=wanted, after=after, first=first)
        elif is_wider(column.type, known.type):
            found = found.widen(name, f"{column.name} {column.type}")
        if known is not None and known.type == column.type and known.default != column.default:
            found = found.set_default(name, column.name, _said(column.type, column.default))
        after = column.name
    for column in stored.schema:  # last: what is added may be computed from it
        if column.name not in declared.schema:
            found = found.drop_column(name, column.name)
    return found


def _said(kind: ColumnType, default: Any) -> Any:
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
