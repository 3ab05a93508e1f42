"""Templates: a function that is bound to one program after another is compiled once, then renamed.

Loops, explorations and most look-ups are the same for many programs, and only call other pieces.
Numba would read, type and lower them anew for each, which is about half of the time to compile one.
So the code of the first is kept as text, and a later one is that text with the names of its own
pieces in it. All of it is optimised and made machine code together, as before.

Invariant: a template serves only where Numba would have made the same text but for those names: the
same Python code over the same arguments, the same values behind all names that are no compiled
functions, and the same types of what those that are give back. Else Numba is asked.
"""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from llvmlite import binding as llvm_binding
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.lowering import Environment

from headgate.state.compiled import Lowered, linked, way_in

_PLAIN = (bool, int, float, str)  # known by their values
TEMPLATES_MAX = 1024  # in a process; of more, the oldest is forgotten
_numbers = itertools.count(1)
_templates: dict[tuple[Any, ...], Template] = {}


@dataclass(frozen=True)
class CalledPiece:
    """A compiled function that a template calls, by the name that the Python code has for it."""

    name: str
    arguments: tuple[Any, ...]
    gives: Any
    symbol: str


@dataclass(frozen=True)
class Template:
    """The code of a function as it was first compiled, and what it calls."""

    text: str
    symbols: frozenset[str]  # all names of the text
    result: Any  # Numba's
    called: tuple[CalledPiece, ...]
    others: tuple[Any, ...]  # libraries of what it calls by no name of its own
    kept: tuple[Any, ...]  # the values behind its names: while they live, so do their ids


def templated(function: FunctionType) -> Any:
    """As `linked`, for a function whose globals are those of one program."""
    found = linked(function)
    if not function.__closure__ and not function.__defaults__:
        found._compiler = _TemplateCompiler(found._compiler, function)
    return found


class _TemplateCompiler:
    """Numba's compiler of one function, but a template serves where there is one."""

    def __init__(self, numbas: Any, function: FunctionType) -> None:
        self._numbas = numbas
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._numbas, name)

    @global_compiler_lock
    def compile(self, args: Any, return_type: Any) -> Any:
        named = self._named()
        key = _key(self._function, tuple(args), return_type, named)
        if key is None:
            return self._numbas.compile(args, return_type)
        template = _templates.get(key)
        pieces = None if template is None else _pieces(template, named)
        if template is not None and pieces is not None:
            return _renamed(template, pieces, self._function)
        result = self._numbas.compile(args, return_type)
        made = _template(result, named)
        if made is not None:
            _templates[key] = made
        while len(_templates) > TEMPLATES_MAX:
            del _templates[next(iter(_templates))]
        return result

    def _named(self) -> dict[str, Any]:
        space, names = self._function.__globals__, self._function.__code__.co_names
        return {name: space[name] for name in names if name in space}


def _key(
    function: FunctionType, args: tuple[Any, ...], gives: Any, named: dict[str, Any]
) -> tuple[Any, ...] | None:
    """All that decides on the text of a function but the names of what it calls, if that is so."""
    values: list[Any] = []
    first: dict[int, str] = {}
    for name, value in named.items():
        if isinstance(value, ModuleType):  # what it names there may be another thing one day
            return None
        if isinstance(value, Dispatcher):  # two names of one function have one name in the text
            values.append((name, first.setdefault(id(value), name)))
        else:
            is_plain = type(value) in _PLAIN
            values.append((name, type(value), value) if is_plain else (name, id(value)))
    code = function.__code__
    constants = tuple((type(one), one) for one in code.co_consts)
    said = code.co_name, code.co_code, constants, code.co_names, code.co_varnames
    return *said, code.co_argcount, code.co_exceptiontable, args, gives, tuple(values)


def _template(result: Any, named: dict[str, Any]) -> Template | None:
    """What is to be kept of a function that Numba has compiled; None where that cannot be."""
    if result.environment.consts:  # Python objects, which only Numba can hand on
        return None
    text = str(result.library._final_module)
    symbols = frozenset(_SYMBOL.findall(text))
    called = [
        CalledPiece(name, arguments, one.signature.return_type, one.fndesc.mangled_name)
        for name, value in named.items()
        if isinstance(value, Dispatcher)
        for arguments, one in value.overloads.items()
        if one.fndesc.mangled_name in symbols
    ]
    unnamed = symbols - {one.symbol for one in called}
    others = [
        one
        for one in dict.fromkeys(result.library._linking_libraries)
        if symbol_of(one) is None or symbol_of(one) in unnamed
    ]
    return Template(text, symbols, result, tuple(called), tuple(others), tuple(named.values()))


def symbol_of(library: Any) -> str | None:
    """The name by which what is linked, or called where it is, is called; None of Numba's own."""
    if library.headgate_apart is not None:
        return str(library.headgate_apart.symbol)
    return library.symbol if isinstance(library, Lowered) else None


_SYMBOL = re.compile(r"@([\w.$]+)")


def _pieces(template: Template, named: dict[str, Any]) -> list[Any] | None:
    """The compiled functions that stand for those of the template; None if one gives another type.

    They are compiled before the one that calls them, as when Numba finds the call.
    """
    found = []
    for one in template.called:
        piece = named[one.name]
        try:
            piece.compile(one.arguments)
        except Exception:  # Numba says what is wrong where it is called
            return None
        result = piece.overloads[one.arguments]
        if result.signature.return_type != one.gives:
            return None
        found.append(result)
    before = {one.symbol for one in template.called}
    after = {one.fndesc.mangled_name for one in found}
    # What it calls by no name of its own must stay another function than these.
    is_same = len(after) == len(before) and not after & (template.symbols - before)
    return found if is_same else None


def _renamed(template: Template, pieces: list[Any], function: FunctionType) -> Any:
    """The template under names of its own, calling these pieces."""
    before = template.result
    described = _described(before.fndesc, function.__module__)
    names = {one.symbol: piece.fndesc.mangled_name
             for one, piece in zip(template.called, pieces, strict=True)}  # fmt: skip
    names[before.fndesc.mangled_name] = described.mangled_name
    names[before.fndesc.env_name] = described.env_name
    text = _SYMBOL.sub(lambda one: f"@{names.get(one[1], one[1])}", template.text)
    library = Lowered(before.target_context.codegen(), before.library.name)
    library.symbol = described.mangled_name
    library._final_module = llvm_binding.parse_assembly(text)
    for one in (*template.others, *(piece.library for piece in pieces)):
        for linked_in in (one, *one._linking_libraries):
            library.add_linking_library(linked_in)
    library.finalize()
    environment = Environment.from_fndesc(described)
    entry = way_in(before.target_context, described, environment, library)
    return before._replace(
        entry_point=entry, fndesc=described, library=library, environment=environment, metadata={}
    )


def _described(before: Any, module: str) -> Any:
    """The description of a function, under names that no other has."""
    found, tag = copy.copy(before), f"t{next(_numbers)}"
    found.modname = module
    found.unique_name = f"{before.qualname}${tag}"
    found.mangled_name = f"{before.mangled_name}.{tag}"
    found.env_name = f"{before.env_name}.{tag}"
    return found
