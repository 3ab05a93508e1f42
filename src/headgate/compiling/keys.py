"""Keys: functions that compute the key of a row from the event and from other rows.

Such a function only reads: the rows of parameters declared before, as they are before the
transaction's own function runs. What it gives is stored as if it were assigned to the columns of
the key: the same kinds fit, and what is out of range is an OverflowError.
"""

from __future__ import annotations

import dis
import inspect
import keyword
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headgate.compiling.actions import abort, delete
from headgate.compiling.bytecode import Code, called_functions, codes, effects_of, references
from headgate.compiling.compiler import compile_along
from headgate.compiling.numba_types import RecordType
from headgate.compiling.refusals import describe_error, refuse_forms
from headgate.compiling.signature import Parameter, Signature, event_type, row_type, rows_type
from headgate.compiling.texts import texts_type
from headgate.errors import DeclarationError
from headgate.state.layout import row_layout
from headgate.state.table import Access, KeyFunction

_VARIED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


# --- what a key function may do -------------------------------------------------------------------


def check_sources(access: Access, before: Sequence[Parameter], where: str) -> None:
    """Refuse a function that takes what it cannot have: it names parameters declared before."""
    known = [
        one.name
        for one in before
        if one.stands_for is None
        or (isinstance(one.stands_for, Access) and one.stands_for.window is None)
    ]
    for one in access.functions:
        code = one.function.__code__
        place = f"{where}: {_line(one)}: the function of the key"
        if code.co_kwonlyargcount or code.co_flags & _VARIED:
            raise DeclarationError(f"{place} takes the names of parameters, and nothing else")
        for name in one.parameters:
            if name not in known:
                raise DeclarationError(
                    f"{place} takes {name!r}, which is no parameter with rows that is declared "
                    f"before this one; it may take: {', '.join(known)}"
                )
    if access.follows:
        _check_followed(access, before, where)


def _check_followed(access: Access, before: Sequence[Parameter], where: str) -> None:
    """`each(function)` goes over the rows of one parameter that names several."""
    roles = {one.name: one.stands_for for one in before if isinstance(one.stands_for, Access)}
    several = [name for name, role in roles.items() if not role.is_single]
    found = [name for name in source_names(access) if name in several]
    if len(found) != 1:
        raise DeclarationError(
            f"{where}: each(function) has a row for each row of one parameter that names several, "
            f"which the function takes, row by row; it takes {', '.join(found) or 'none of them'}, "
            f"and those are: {', '.join(several) or 'none'}"
        )


def refuse_writes(one: KeyFunction, where: str) -> None:
    """Refuse a function of a key that would change something, or abort."""
    for called in called_functions(one.function):
        for code in codes(called.__code__):
            for number, step in enumerate(code.steps):
                if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
                    raise _reads_only(where, str(code.place(number)), f"sets .{step.argval}")
        if any(value is abort for value in references(called).values()):
            place = str(Code(called.__code__).place(0))
            raise _reads_only(where, place, "calls hg.abort, which belongs in the transaction")
    if effects_of(one.function, delete).may_delete:
        raise _reads_only(where, _line(one), "calls hg.delete")


def _reads_only(where: str, place: str, what: str) -> DeclarationError:
    return DeclarationError(f"{where}: {place}: the function of a key only reads, and this {what}")


def _line(one: KeyFunction) -> str:
    code = one.function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def columns_read(access: Access, table_columns: Sequence[str]) -> frozenset[str]:
    """Those of these columns that the functions of a key may read, at the most."""
    found: set[str] = set()
    for one in access.functions:
        for called in called_functions(one.function):
            for code in codes(called.__code__):
                found.update(code.code.co_names)
                found.update(text for text in code.code.co_consts if isinstance(text, str))
    return frozenset(found & set(table_columns))


_LOADS = frozenset(
    (
        "RESUME",
        "LOAD_FAST",
        "LOAD_CONST",
        "LOAD_ATTR",
        "BUILD_TUPLE",
        "RETURN_VALUE",
        "RETURN_CONST",
    )
)


def never_raises(access: Access) -> bool:
    """Whether a key is made of columns alone, each of which fits the key as it is."""
    loads = all(
        step.opname in _LOADS
        for one in access.functions
        for step in dis.get_instructions(one.function)
    )
    return loads and all(key.type.kind in ("bigint", "string") for key in access.table.key_columns)


def key_parts(value: Any, count: int, label: str) -> list[Any]:
    """What one function gave for all columns of a key."""
    if not isinstance(value, tuple) or len(value) != count:
        raise TypeError(f"{label} is a tuple of {count} values, not {value!r}")
    return list(value)


# --- its compiled form ----------------------------------------------------------------------------


def source_names(access: Access) -> tuple[str, ...]:
    """The parameters that the functions of a key take, each once."""
    return tuple(dict.fromkeys(name for one in access.functions for name in one.parameters))


def key_function(access: Access) -> Callable[..., Any]:
    """A function that computes a key and puts it into a record of the key's columns.

    It stands where the user's first function does, for messages name its line.
    """
    first, scope = access.functions[0].function.__code__, {"__name__": "key_of_row"}
    targets = [f"key__target.{name}" for name in target_names(access)]
    lines = []
    for place, one in enumerate(access.keys):
        if isinstance(one, KeyFunction):
            scope[f"key__{place}"] = one.function  # type: ignore[assignment]
            target = ", ".join(targets) if access.gives_tuple else targets[place]
            lines.append(f"{target} = key__{place}({', '.join(one.parameters)})")
    taken = ", ".join(["key__target", *source_names(access)])
    text = "\n" * (first.co_firstlineno - 1) + f"def key({taken}): {'; '.join(lines)}\n"
    exec(compile(text, first.co_filename, "exec"), scope)
    return scope["key"]  # type: ignore[return-value]


def target_names(access: Access) -> list[str]:
    """The key's columns as attributes: where one is no plain word, by its place."""
    return [
        name if name.isidentifier() and not keyword.iskeyword(name) else f"part_{place}"
        for place, name in enumerate(access.table.key)
    ]


def target_type(access: Access) -> RecordType:
    """A record of the key's columns, where they stand in a row."""
    table = access.table
    layout = row_layout(table.schema, table.key)
    names = target_names(access)
    found = [layout.field(name) for name in table.key]
    fields = tuple(
        (name, f.type.kind, f.type.precision, f.type.scale, f.offset, f.format, False, -1)
        for name, f in zip(names, found, strict=True)
    )
    return RecordType(f"the key of table {table.name!r}", fields, False)


def source_types(signature: Signature, access: Access) -> tuple[Any, ...]:
    """The Numba types of what the functions of a key take; rows are only read."""
    roles = {one.name: one.stands_for for one in signature.parameters}
    found: list[Any] = []
    for name in source_names(access):
        role = roles[name]
        if isinstance(role, Access):
            read = replace(role, read_only=True)
            found.append(row_type(read) if access.follows else rows_type(read))
        else:
            found.append(event_type(signature))
    return tuple(found)


def compile_key(signature: Signature, access: Access) -> Any:
    """The dispatcher of a key's function, compiled along with its transaction's."""
    is_reaching = signature.is_reaching
    return compile_along(key_function(access), signature.functions, None, is_reaching)


def check_key_compiles(signature: Signature, access: Access, where: str) -> None:
    """Refuse a key that does not compile, or that is no key of the table."""
    for one in access.functions:
        refuse_forms(one.function, where)
    dispatcher = compile_key(signature, access)
    reach = (texts_type,) if signature.is_reaching else ()
    try:
        dispatcher.compile((*reach, target_type(access), *source_types(signature, access)))
    except Exception as error:  # Numba's own checks are partly bare assertions
        told = describe_error(error, dispatcher.py_func)
        raise DeclarationError(f"{where}: its key {told}") from None
