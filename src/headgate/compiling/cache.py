"""The compile cache: kernels on disk under a fingerprint of everything that went into them.

The fingerprint covers the generated source, the user's functions with all they call and refer to,
the declarations, and the versions of Numba, Python and Headgate's own sources. A change in any of
them is a new fingerprint, so a stale kernel is never found. What has no fingerprint is not cached.
How compiled code is kept, and verified before it is read, is in state/compiled.py.

Declarations go into it in a canonical form, as tuples of plain values: a form says all that a
declaration says, and nothing of how it is shown. Stores hold digests of these forms, too: a change
of them makes programs look changed that are not.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import linecache
import platform
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from headgate.compiling import bounds
from headgate.compiling.bytecode import is_user_function, references
from headgate.compiling.signature import OutputColumns, Parameter, Signature
from headgate.io import RealDisk, read_file
from headgate.state.compiled import GENERATED, cache_folder, numba, vault
from headgate.state.schema import Schema
from headgate.state.table import Access, Table
from headgate.state.types import Column, ColumnType

_DISK = RealDisk()
Form = tuple[Any, ...]
_GOOD = b"compiled and accepted"
_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes, type(None))


@functools.cache
def _own_sources() -> str:
    """A digest of the sources kernels are made from: a new Headgate compiles anew."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parents[1]
    for part in ("compiling", "kernels", "execution", "parallel", "isolation", "state"):
        for name in _DISK.list(str(folder / part)):
            if name.endswith(".py"):
                digest.update(name.encode())
                digest.update(read_file(_DISK, str(folder / part / name)))
    return digest.hexdigest()


def fingerprint(*parts: Any) -> str | None:
    """A digest of the parts (texts, numbers, functions...), or None if one cannot be digested."""
    digest = hashlib.sha256()
    versions = (
        numba.__version__, np.__version__, sys.version, platform.machine(), _own_sources(),
        bounds.IS_ON,
    )  # fmt: skip
    digest.update(repr(versions).encode())
    try:
        for part in parts:
            _update(digest, part, set())
    except TypeError:
        return None
    return digest.hexdigest()[:32]


def code_fingerprint(*parts: Any) -> str | None:
    """As `fingerprint`, but of the parts alone: the same for every version of what runs them."""
    digest = hashlib.sha256()
    try:
        for part in parts:
            _update(digest, part, set())
    except TypeError:
        return None
    return digest.hexdigest()[:32]


def _update(digest: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, enum.Enum):  # before what is plain: many are numbers, too
        digest.update(f"enum:{type(value).__qualname__}.{value.name};".encode())
        _update(digest, value.value, seen)
    elif isinstance(value, np.generic):
        digest.update(f"{value.dtype.str}:".encode() + value.tobytes())
    elif isinstance(value, _PLAIN):
        # As the plain type shows it: what is made of one may show itself as it likes.
        base = next(kind for kind in _PLAIN if isinstance(value, kind))
        digest.update(f"{type(value).__name__}:{base.__repr__(value)};".encode())
    elif isinstance(value, (tuple, list, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, frozenset) else value
        digest.update(f"{type(value).__name__}{len(value)}(".encode())
        for item in items:
            _update(digest, item, seen)
    elif isinstance(value, types.CodeType):
        _update_code(digest, value, seen)
    elif isinstance(value, types.ModuleType):
        is_ours = value.__name__.partition(".")[0] == "headgate"
        version = "" if is_ours else getattr(value, "__version__", "")
        digest.update(f"module:{value.__name__}:{version};".encode())
    elif isinstance(value, types.FunctionType) and is_user_function(value):
        _update_function(digest, value, seen)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif hasattr(value, "py_func"):  # a function the user compiled with Numba
        _update(digest, value.py_func, seen)
    elif callable(value) and hasattr(value, "__module__") and hasattr(value, "__qualname__"):
        # Where our own stand is our affair, and may change.
        is_ours = str(value.__module__).partition(".")[0] == "headgate"
        place = "headgate" if is_ours else value.__module__
        digest.update(f"callable:{place}.{value.__qualname__};".encode())
    elif isinstance(value, Table):
        _update(digest, table_form(value), seen)
    elif isinstance(value, np.ufunc):
        digest.update(f"ufunc:{value.__name__};".encode())
    else:
        raise TypeError(f"cannot fingerprint {type(value).__name__}")


def _update_function(digest: Any, function: types.FunctionType, seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    _update_code(digest, function.__code__, seen)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()):
        if not isinstance(
            default, (Access, OutputColumns)
        ):  # those are in the declaration's own digest
            _update(digest, default, seen)
    for name, value in sorted(references(function).items()):
        digest.update(f"{name}=".encode())
        _update(digest, value, seen)


def _update_code(digest: Any, code: types.CodeType, seen: set[int]) -> None:
    digest.update(code.co_code)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    digest.update(repr(names).encode())
    _update(digest, code.co_consts, seen)


_LOADED: dict[tuple[str, ...], dict[str, Any]] = {}  # what this process has loaded before


def load_source(source: str, name: str, mark: str | None, scope: dict[str, Any]) -> dict[str, Any]:
    """Run generated source with these names in scope; what is compiled of it is kept on disk.

    Without a fingerprint it is not kept. The source itself is only ever taken from memory.
    """
    key = name, mark or "", source, str(cache_folder())  # tests seed faults in folders of their own
    if mark is not None and key in _LOADED:
        return _LOADED[key]
    if mark is None:
        source = source.replace("@njit(nogil=True, cache=True)", "@njit(nogil=True)")
        source = source.replace("@compiled_apart", "@templated")  # it has no name of its own
    module = generated_module(name, mark)
    module.__dict__.update(scope)
    file = f"<headgate {name} {mark or 'unsaved'}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), module.__dict__)
    if mark is not None:
        _LOADED[key] = module.__dict__
    return module.__dict__


def generated_module(name: str, mark: str | None) -> types.ModuleType:
    """A module for functions that are in no file; Numba knows what it keeps by its name."""
    module = types.ModuleType(f"{GENERATED}{mark or 'unsaved'}_{name}")
    if mark is not None:
        sys.modules[module.__name__] = module
    return module


def is_known_good(mark: str | None) -> bool:
    """Whether this very function was compiled and accepted before."""
    return mark is not None and vault().read(f"checked/{mark}") == _GOOD


def remember_good(mark: str | None) -> None:
    if mark is not None:
        vault().write(f"checked/{mark}", _GOOD)


# --- declarations in a canonical form -------------------------------------------------------------


def signature_form(signature: Signature) -> Form:
    """A transaction's name, event and parameters; its code is not in it."""
    parameters = tuple(_parameter(one) for one in signature.parameters)
    said = ("transaction", signature.name, _schema(signature.event), parameters)
    tick = signature.tick
    return said if tick is None else (*said, "every", tick.every_us, tick.size_us)


def table_form(table: Table) -> Form:
    """All that a table is declared with."""
    check = None if table.check is None else table.check.text
    unique = tuple(one.columns for one in table.unique)
    references = tuple((one.columns, one.parent) for one in table.references)
    index = tuple(one.columns for one in table.index)
    said = ("table", table.name, _schema(table.schema), table.key, check, unique, references)
    found: Form = (*said, index) if index else said
    if table.history is not None:
        found = (*found, "history", table.history.extent.text, table.history.by)
    return found if table.expires is None else (*found, "expires", table.expires.text)


def _parameter(parameter: Parameter) -> Form:
    role = parameter.stands_for
    if role is None:
        return ("event", parameter.name)
    if isinstance(role, OutputColumns):
        return ("output", parameter.name, _schema(role.schema))
    return ("rows", parameter.name, table_form(role.table), *role.stated)


def _schema(schema: Schema) -> Form:
    return tuple(_column(one) for one in schema)


def _column(column: Column) -> Form:
    said = (column.name, _type(column.type), column.default)
    return (*said, True) if column.nullable else said  # as before there were such columns


def _type(kind: ColumnType) -> Form:
    element = None if kind.element is None else _type(kind.element)
    fields = tuple(_column(one) for one in kind.fields)
    return (kind.kind, kind.precision, kind.scale, element, fields)
