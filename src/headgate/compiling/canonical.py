"""Canonical forms: declarations as tuples of plain values, for digests that outlive a release.

Invariant: a form says all that a declaration says, and nothing of how it is shown. Stores hold
digests of these forms: a change here makes programs look changed that are not.
"""

from __future__ import annotations

from typing import Any

from headgate.compiling.output import Output
from headgate.compiling.signature import Parameter, Signature
from headgate.state.schema import Column, ColumnType, Schema
from headgate.state.table import Table

Form = tuple[Any, ...]


def of_signature(signature: Signature) -> Form:
    """A transaction's name, event and parameters; its code is not in it."""
    parameters = tuple(_parameter(one) for one in signature.parameters)
    return ("transaction", signature.name, _schema(signature.event), parameters)


def of_table(table: Table) -> Form:
    """All that a table is declared with."""
    check = None if table.check is None else table.check.text
    unique = tuple(one.columns for one in table.unique)
    references = tuple((one.columns, one.parent) for one in table.references)
    return ("table", table.name, _schema(table.schema), table.key, check, unique, references)


def _parameter(parameter: Parameter) -> Form:
    role = parameter.stands_for
    if role is None:
        return ("event", parameter.name)
    if isinstance(role, Output):
        return ("output", parameter.name, _schema(role.schema))
    words = (role.form, role.columns, role.read_only, role.create, role.reads)
    return ("rows", parameter.name, of_table(role.table), *words)


def _schema(schema: Schema) -> Form:
    return tuple(_column(one) for one in schema)


def _column(column: Column) -> Form:
    return (column.name, _type(column.type), column.default)


def _type(kind: ColumnType) -> Form:
    element = None if kind.element is None else _type(kind.element)
    fields = tuple(_column(one) for one in kind.fields)
    return (kind.kind, kind.precision, kind.scale, element, fields)
