"""Building: the kernels of one set of transactions, made of plain functions and generated pieces.

There are four families, each made when it is first asked for: the serial loop, whole transactions
on several threads (in_place.py), units over versions (over_versions.py), and the protocols. They
share the frame; compiled code is kept by the cache under a fingerprint of all that went into it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from numba.core import types
from numba.core.errors import NumbaError

from headgate.compiling import cache
from headgate.compiling.actions import decimal
from headgate.compiling.bytecode import is_user_function, references
from headgate.compiling.compiler import compile_along
from headgate.compiling.keys import compile_key, target_type
from headgate.compiling.numba_types import RowsType, code_of
from headgate.compiling.refusals import reason_of
from headgate.compiling.signature import (
    Signature,
    column_places,
    event_type,
    output_type,
    row_type,
    window_type,
)
from headgate.compiling.slicing import Cut, Slicing, slice_transaction
from headgate.compiling.texts import texts_at, texts_type
from headgate.compiling.version_windows import window_at
from headgate.errors import DeclarationError
from headgate.kernels import (
    comparison,
    constraints,
    explorations,
    in_place,
    over_versions,
    protocols,
    serial,
    shares,
    sweeping,
    timely,
    versions,
)
from headgate.kernels.binding import bind, codes
from headgate.kernels.frame import REACH, FrameLayout
from headgate.kernels.generating import Generator
from headgate.kernels.generating_look_ups import NoRoom
from headgate.kernels.generating_units import UnitGenerator, protocol_source
from headgate.kernels.generating_windows import is_kept
from headgate.kernels.pointers import (
    event_at,
    fixed_word,
    get_word,
    key_at,
    output_at,
    record_at,
    rows_at,
    set_word,
)
from headgate.kernels.serial import STEPS, no_keys
from headgate.state.compiled import mix, prefetch, prefetch_to_write
from headgate.state.entries import is_full, note_moved
from headgate.state.entry_looks import look
from headgate.state.layout import STORED, row_layout
from headgate.state.ranges import Index
from headgate.state.survey import first_of, last_of
from headgate.state.table import Access, Constraint, Table
from headgate.state.trail import is_crowded, note_version

CHECKS_MAX = 256  # in a process; of more, the oldest is forgotten
_CHECKS: dict[tuple[str, bool], Any] = {}  # compiled checks, by their text


@dataclass(frozen=True)
class Kernel:
    """The compiled loop and the undo of one event, and who writes more for these transactions."""

    generator: Generator
    run: Any
    restore: Any
    resolve: Any  # the look-ups of a whole batch
    predict: Any  # those of keys that depend on rows, as far as they are certain
    look_ahead: Any  # those of a section, by another thread
    run_found: Any  # the loop over such a section
    run_until: Any = None  # the loop by which rows expire, where they may

    @property
    def reasons(self) -> tuple[str, ...]:
        """The fixed reasons; reason code -1 - i means reasons[i]."""
        return tuple(self.generator.reasons)

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.generator.tables

    @property
    def layout(self) -> FrameLayout:
        return self.generator.layout

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Those it keeps, by number."""
        return self.generator.judge.constraints


def build_kernel(
    signatures: Sequence[Signature],
    declared: Sequence[Table] = (),
    updates: bool = False,
    moving: Sequence[Index] = (),
    expiring: Sequence[Table] = (),
) -> Kernel:
    """Make and compile (or load) the serial loop of these transactions, numbered as given.

    `declared` are the engine's tables when a constraint of theirs may matter, else none; with
    `updates` it keeps the rows as each transaction leaves them. Indexes that are `moving` it keeps,
    and rows of `expiring` tables it lets go.
    """
    generator = Generator(signatures, declared, updates, moving, expiring)
    modules, names = [serial], ["run", "restore", "resolve", "predict", "look_ahead", "run_found"]
    scope = _scope(generator)
    if generator.expiry.is_needed:
        modules, names = [serial, timely], [*names, "run_until"]
    made = _build("kernel", generator, generator.source(), modules, scope)
    return Kernel(generator, **{name: made[name] for name in names})


def build_transaction_kernels(generator: Generator, is_virtual: bool = False) -> Mapping[str, Any]:
    """The kernels by which threads share whole transactions, by name, and `collect`."""
    modules = [in_place, explorations, shares, comparison]
    scope = {**_scope(generator), "MAY_UNDO": in_place.MAY_UNDO}
    source = generator.dynamic.virtual_source() if is_virtual else generator.source()
    return _build("kernel", generator, source, modules, scope)


def build_protocol_kernels(generator: Generator) -> Mapping[str, Any]:
    """The lock-based and the timestamp-based kernel."""
    scope = {**_scope(generator), "note": protocols.note}
    return _build("protocol", generator, protocol_source(generator), [serial, protocols], scope)


@dataclass(frozen=True)
class UnitKernels:
    """The kernels that run a batch by operations, and how the transactions were cut into them."""

    kernels: Mapping[str, Any]
    slicings: tuple[Slicing, ...]

    @property
    def slices_max(self) -> int:
        return max(len(slicing.slices) for slicing in self.slicings)


def build_unit_kernels(generator: Generator) -> UnitKernels:
    """Make and compile (or load) the unit kernels of these transactions."""
    slicings = tuple(slice_transaction(signature) for signature in generator.signatures)
    units = UnitGenerator(generator, slicings)
    scope = {**_scope(generator), "found": versions.found, "MAY_UNDO": over_versions.MAY_UNDO}
    for name in ("note_operation", "begin_unit", "whole_unit"):
        scope[name] = getattr(over_versions, name)
    for number, signature in enumerate(generator.signatures):
        roles = {parameter.name: parameter.stands_for for parameter in signature.parameters}
        for place, part in enumerate(slicings[number].slices if units.is_cut(number) else ()):
            cut = Cut(roles, part)
            function = compile_along(
                signature.function, signature.functions, cut, signature.is_reaching
            )
            scope[f"function_{number}_{place}"] = function
    modules = [over_versions, explorations, comparison]
    return UnitKernels(_build("units", generator, units.source(), modules, scope), slicings)


def _build(
    name: str, generator: Generator, source: str, modules: Sequence[ModuleType],
    scope: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The generated pieces, and the functions of the modules bound to them.

    The code of shared functions is part of the fingerprint, so that a change is never missed.
    """
    functions = tuple(signature.function for signature in generator.signatures)
    functions += tuple(one for signature in generator.signatures for one in signature.key_functions)
    described = repr([(one.event, one.parameters) for one in generator.signatures])
    declared = tuple(generator.declared.values())
    shared = tuple(one.py_func.__code__ for one in scope.values() if _is_shared(one))
    mark = cache.fingerprint(source, functions, described, declared, shared)
    pieces = cache.load_source(source, name, mark, dict(scope))
    if mark is not None:
        mark = cache.fingerprint(mark, codes(modules))
    return bind(modules, pieces, name, mark)


def _is_shared(value: Any) -> bool:
    """Whether it is a compiled function of ours, the same for all programs."""
    plain = getattr(value, "py_func", None)
    return plain is not None and plain.__module__.startswith("headgate.")


def _scope(generator: Generator) -> dict[str, Any]:
    """The objects the source refers to: user functions, checks and pointer intrinsics."""
    scope: dict[str, Any] = {"code_of": code_of, "get": get_word, "put": set_word}
    scope["fixed"] = fixed_word
    # A constant would be a type of its own, and whatever is called with it compiled once more.
    scope |= {
        "mix": mix,
        "prefetch": prefetch,
        "prefetch_to_write": prefetch_to_write,
        "word": types.int64,
    }
    scope |= {step.py_func.__name__: step for step in STEPS}
    scope |= {**constraints.SHARED, "note_row": in_place.note_row}
    if not generator.dynamic.is_needed:
        scope |= dict.fromkeys(("compute", "guess", "ask"), no_keys)
    scope["deal_row"] = shares.deal_row
    scope["texts_at"] = texts_at
    if generator.expiry.is_needed:
        scope |= {name: getattr(sweeping, name) for name in ("note_due", "stir", "sweep")}
    scope |= {"look": look, "note_moved": note_moved, "is_full": is_full}
    scope["NoRoom"] = NoRoom
    if generator.windows.tables:
        scope |= {"first_of": first_of, "last_of": last_of}
        scope |= {"is_crowded": is_crowded, "note_version": note_version}
    for number, signature in enumerate(generator.signatures):
        scope[f"function_{number}"] = compile_along(
            signature.function, signature.functions, None, signature.is_reaching
        )
        scope[f"event_{number}"] = event_at(event_type(signature))
        if signature.output is not None:
            scope[f"output_{number}"] = output_at(output_type(signature.name, signature.output))
        for place, access in generator.accesses(number):
            size = 8 * row_layout(access.table.schema, access.table.key).words
            scope |= _of_versions(signature, place, access)
            row = row_type(access)
            scope[f"row_{place}"] = record_at(row, size)
            scope[f"rows_{place}"] = rows_at(RowsType(row, size))
            for part, name in enumerate(access.keys or access.columns):
                if isinstance(name, str):
                    column = column_places(signature.event)[name]
                    kind = signature.event[name].type.element or signature.event[name].type
                    scope[f"key_{place}_{part}"] = key_at(column, STORED[kind.kind])
            if access.is_dynamic:
                scope[f"compute_key_{place}"] = compile_key(signature, access)
                scope[f"target_{place}"] = record_at(target_type(access), size)
            if signature.is_dynamic:
                read = row_type(replace(access, read_only=True))
                scope[f"read_row_{place}"] = record_at(read, size)
                scope[f"read_rows_{place}"] = rows_at(RowsType(read, size))
    for place, table in enumerate(generator.tables):
        if table.check is not None:
            scope[f"check_{place}"] = compiled_check(table)
    return scope | generator.judge.scope()


def _of_versions(signature: Signature, place: int, access: Access) -> dict[str, Any]:
    """What the source refers to for an access that looks at versions, or keeps them."""
    history = access.table.history
    if history is None or not (access.window is not None or is_kept(access)):
        return {}
    found: dict[str, Any] = {}
    time = history.time_column(signature.event, f"transaction {signature.name!r}")
    if time is not None:
        found[f"time_{place}"] = key_at(column_places(signature.event)[time], "i8")
    if access.window is not None:
        found[f"window_{place}"] = window_at(window_type(access))
    return found


def compile_first(kernel: Any) -> None:
    """Compile a kernel of words now: threads that wait for each other must not wait for that."""
    if not kernel.signatures:
        kernel.compile((types.int64,) * kernel.py_func.__code__.co_argcount)


def literal_texts(signature: Signature) -> set[str]:
    """Every text the function or one it calls may name, so that the pool knows their codes."""
    texts: set[str] = set()
    seen: set[int] = set()
    for function in (signature.function, *signature.key_functions):
        _collect_texts(function, texts, seen)
    for table in signature.tables:
        if table.check is not None:
            texts |= table.check.texts
    return texts


def _collect_texts(function: Any, texts: set[str], seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    _collect_constants(function.__code__.co_consts, texts)
    for value in references(function).values():
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, enum.IntEnum):  # its name, or another text that it has
            found = (getattr(value, name, None) for name in function.__code__.co_names)
            texts |= {text for text in found if isinstance(text, str)}
        elif is_user_function(value):
            _collect_texts(value, texts, seen)


def _collect_constants(constants: Any, texts: set[str]) -> None:
    for value in constants:
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, (tuple, frozenset)):
            _collect_constants(value, texts)
        elif hasattr(value, "co_consts"):
            _collect_constants(value.co_consts, texts)


def check_function(table: Table) -> Any:
    """The table's check as a Python function of a row."""
    if table.check is None:
        return None
    scope: dict[str, Any] = {"decimal": decimal, "__name__": f"check_{table.name}"}
    exec(f"def check(row):\n    return {table.check.python}\n", scope)
    return scope["check"]


def compiled_check(table: Table) -> Any:
    """The same, to be called by compiled code; one for all tables that have the same check."""
    if table.check is None:
        return None
    text, is_reaching = table.check.python, table.check.is_reaching
    if (text, is_reaching) not in _CHECKS:
        while len(_CHECKS) >= CHECKS_MAX:
            del _CHECKS[next(iter(_CHECKS))]
        _CHECKS[text, is_reaching] = compile_along(check_function(table), is_reaching=is_reaching)
    return _CHECKS[text, is_reaching]


def check_compiles(table: Table) -> None:
    """Refuse a check that does not compile or is not boolean, at the declaration."""
    if table.check is None:
        return
    mark = cache.fingerprint(_CHECK_SOURCE, repr(table), "compiles")
    if cache.is_known_good(mark):
        return
    where = f"table {table.name!r}: the check {table.check.text!r}"
    row = row_type(Access(table, "at", table.key, read_only=True, create=False))
    dispatcher = compiled_check(table)
    given = (texts_type, row) if table.check.is_reaching else (row,)
    try:
        dispatcher.compile(given)
    except NumbaError as error:
        raise DeclarationError(f"{where} cannot be compiled: {reason_of(error)}") from None
    answer = dispatcher.overloads[given].signature.return_type
    if answer != types.boolean:
        raise DeclarationError(f"{where} is not a boolean expression but a {answer}")
    cache.remember_good(mark)


def build_check(table: Table) -> Any:
    """A loop (texts, words, first, last) -> the first slot that fails the check, or -1.

    The first two are addresses: the window of the pool of texts, or 0, and the rows' words.
    """
    access = Access(table, "at", table.key, read_only=True, create=False)
    size = 8 * row_layout(table.schema, table.key).words
    scope = {
        "check": compiled_check(table),
        "texts_at": texts_at,
        "row": record_at(row_type(access), size),
    }
    is_reaching = table.check is not None and table.check.is_reaching
    source = _CHECK_SOURCE.replace("REACH", f"{REACH}, " if is_reaching else "")
    mark = cache.fingerprint(source, repr(table))
    return cache.load_source(source, "check", mark, scope)["failing"]


def first_failure(failing: Any, texts: int, words: int, slots: range) -> int | None:
    """The first slot whose row fails the check, or makes it raise, by halving."""
    try:
        found = int(failing(texts, words, slots.start, slots.stop))
        return found if found >= 0 else None
    except Exception:
        if len(slots) == 1:
            return slots.start
    middle = slots.start + len(slots) // 2
    before = first_failure(failing, texts, words, range(slots.start, middle))
    if before is not None:
        return before
    return first_failure(failing, texts, words, range(middle, slots.stop))


_CHECK_SOURCE = '''"""Generated by Headgate: the check of one table over a range of its slots."""

from numba import njit


@njit(nogil=True, cache=True)
def failing(texts, words, first, last):
    for slot in range(first, last):
        if not check(REACHrow(words, slot)):
            return slot
    return -1
'''
