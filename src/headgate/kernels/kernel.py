"""Kernels: the compiled loop over a batch in serial order, generated for one set of transactions.

For each event: find its rows, keep a copy of those it may change, run the function, and either mark
what changed or put the copy back. Codes out: 0 for committed, a text's code or a fixed reason for
aborted. An exception leaves the kernel at once; `restore` then undoes that one event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numba.core import types
from numba.core.errors import NumbaError

from headgate.compiling import cache
from headgate.compiling.actions import decimal
from headgate.compiling.bytecode import is_user_function, references
from headgate.compiling.compiler import compile_along
from headgate.compiling.refusals import reason_of
from headgate.compiling.signature import (
    Signature,
    column_places,
    event_type,
    output_type,
    row_type,
)
from headgate.compiling.slicing import Cut, Slicing, slice_transaction
from headgate.compiling.values import RowsType, code_of
from headgate.errors import DeclarationError
from headgate.kernels import atomics, ticks, versions
from headgate.kernels.frame import FrameLayout
from headgate.kernels.isolation_source import MOVING, PROTOCOL, PROTOCOLS, IsolationWriter
from headgate.kernels.pointers import (
    event_at,
    fixed_word,
    get_word,
    key_at,
    record_at,
    rows_at,
    set_word,
)
from headgate.kernels.scheme_source import SCHEMES, SchemeWriter
from headgate.kernels.source import SourceWriter, output_words
from headgate.kernels.steps import STEPS
from headgate.kernels.unit_source import UNIT_KERNELS, UnitWriter
from headgate.state.compiled import prefetch
from headgate.state.constraint import Constraint
from headgate.state.index import mix
from headgate.state.layout import STORED, row_layout
from headgate.state.table import Access, Table


@dataclass(frozen=True)
class Kernel:
    """The compiled loop and the undo of one event, with the layout of the frame they take."""

    run: Any
    restore: Any
    reasons: tuple[str, ...]  # the fixed reasons; reason code -1 - i means reasons[i]
    tables: tuple[Table, ...]
    layout: FrameLayout
    schemes: Mapping[str, Any]  # the parallel kernels by name, and `resolve` and `collect`
    constraints: tuple[Constraint, ...] = ()  # those it keeps, by number


def build_kernel(
    signatures: Sequence[Signature], declared: Sequence[Table] = (), updates: bool = False
) -> Kernel:
    """Generate and compile (or load) the kernel of these transactions, numbered as given.

    `declared` are the engine's tables when a constraint of theirs may matter, else none; with
    `updates` it keeps the rows as each transaction leaves them.
    """
    writer = SourceWriter(signatures, declared, updates)
    source = writer.source() + "\n\n" + SchemeWriter(writer).source()
    functions = [signature.function for signature in signatures]
    described = repr([(signature.event, signature.parameters) for signature in signatures])
    mark = cache.fingerprint(source, tuple(functions), described, tuple(declared))
    scope = _scope(writer)
    module = cache.load_source(source, "kernel", mark, scope)
    reasons = tuple(writer.reasons)
    schemes = {name: module[name] for name in (*SCHEMES, "resolve", "collect")}
    return Kernel(
        module["run"], module["restore"], reasons, writer.tables, writer.layout, schemes,
        writer.judge.constraints,
    )  # fmt: skip


@dataclass(frozen=True)
class IsolationKernels:
    """The kernels of the protocols, and the layout of the frame they take."""

    kernels: Mapping[str, Any]
    layout: FrameLayout


def build_isolation_kernels(
    signatures: Sequence[Signature], updates: bool = False
) -> IsolationKernels:
    """Generate and compile (or load) the lock-based and timestamp-based kernels."""
    writer = SourceWriter(signatures, (), updates, PROTOCOL, MOVING)
    source = writer.source() + "\n\n" + IsolationWriter(writer).source()
    functions = [signature.function for signature in signatures]
    described = repr([(signature.event, signature.parameters) for signature in signatures])
    mark = cache.fingerprint(source, tuple(functions), described)
    module = cache.load_source(source, "isolation", mark, _scope(writer))
    kernels = {name: module[name] for name in (*PROTOCOLS, "resolve_all")}
    return IsolationKernels(kernels, writer.layout)


@dataclass(frozen=True)
class UnitKernels:
    """The kernels that run a batch by operations, and how the transactions were cut into them."""

    kernels: Mapping[str, Any]
    slicings: tuple[Slicing, ...]
    layout: FrameLayout

    @property
    def slices_max(self) -> int:
        return max(len(slicing.slices) for slicing in self.slicings)


def build_unit_kernels(signatures: Sequence[Signature]) -> UnitKernels:
    """Generate and compile (or load) the unit kernels of these transactions."""
    slicings = tuple(slice_transaction(signature) for signature in signatures)
    writer = SourceWriter(signatures)
    units = UnitWriter(writer, slicings)
    source = units.source()
    functions = [signature.function for signature in signatures]
    declared = repr([(signature.event, signature.parameters) for signature in signatures])
    mark = cache.fingerprint(source, tuple(functions), declared)
    scope = _scope(writer)
    names = (
        "found",
        "fail",
        "settle",
        "make_ready",
        "queue_ready",
        "park",
        "pause",
        "meet",
        "part",
    )
    scope |= {name: getattr(versions, name) for name in names}
    for number, signature in enumerate(signatures):
        roles = {parameter.name: parameter.stands_for for parameter in signature.parameters}
        for place, part in enumerate(slicings[number].slices if units.is_cut(number) else ()):
            cut = Cut(roles, part)
            function = compile_along(signature.function, signature.functions, cut)
            scope[f"function_{number}_{place}"] = function
    module = cache.load_source(source, "units", mark, scope)
    return UnitKernels({name: module[name] for name in UNIT_KERNELS}, slicings, writer.layout)


def _scope(writer: SourceWriter) -> dict[str, Any]:
    """The objects the source refers to: user functions, checks and pointer intrinsics."""
    scope: dict[str, Any] = {"code_of": code_of, "get": get_word, "put": set_word}
    scope["fixed"] = fixed_word
    # A constant would be a type of its own, and whatever is called with it compiled once more.
    scope |= {"mix": mix, "prefetch": prefetch, "word": types.int64}
    scope |= {step.py_func.__name__: step for step in STEPS}
    for name in ("add", "barrier", "give_way", "load", "store", "swap_if", "wait_for"):
        scope[name] = getattr(atomics, name)
    scope |= {"tick": ticks.tick, "spend": ticks.spend}
    done: dict[Any, Any] = {}
    for number, signature in enumerate(writer.signatures):
        scope[f"function_{number}"] = compile_along(signature.function, signature.functions)
        scope[f"event_{number}"] = event_at(event_type(signature))
        if signature.output is not None:
            record = output_type(signature.name, signature.output)
            words = output_words(signature)
            scope[f"output_{number}"] = record_at(record, 8 * words)
        for place, access in writer.accesses(number):
            size = 8 * row_layout(access.table.schema, access.table.key).words
            row = row_type(access)
            scope[f"row_{place}"] = record_at(row, size)
            scope[f"rows_{place}"] = rows_at(RowsType(row, size))
            for part, name in enumerate(access.columns):
                column = column_places(signature.event)[name]
                kind = signature.event[name].type.element or signature.event[name].type
                scope[f"key_{place}_{part}"] = key_at(column, STORED[kind.kind])
    for place, table in enumerate(writer.tables):
        if table.check is not None:
            scope[f"check_{place}"] = compile_along(check_function(table), done)
    return scope | writer.judge.scope()


def compile_first(kernel: Any) -> None:
    """Compile a kernel of words now: threads that wait for each other must not wait for that."""
    if not kernel.signatures:
        kernel.compile((types.int64,) * kernel.py_func.__code__.co_argcount)


def literal_texts(signature: Signature) -> set[str]:
    """Every text the function or one it calls may name, so that the pool knows their codes."""
    texts: set[str] = set()
    _collect_texts(signature.function, texts, set())
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


def check_compiles(table: Table) -> None:
    """Refuse a check that does not compile or is not boolean, at the declaration."""
    if table.check is None:
        return
    mark = cache.fingerprint(_CHECK_SOURCE, repr(table), "compiles")
    if cache.is_known_good(mark):
        return
    where = f"table {table.name!r}: the check {table.check.text!r}"
    row = row_type(Access(table, "at", table.key, read_only=True, create=False))
    dispatcher = compile_along(check_function(table))
    try:
        dispatcher.compile((row,))
    except NumbaError as error:
        raise DeclarationError(f"{where} cannot be compiled: {reason_of(error)}") from None
    answer = dispatcher.overloads[(row,)].signature.return_type
    if answer != types.boolean:
        raise DeclarationError(f"{where} is not a boolean expression but a {answer}")
    cache.remember_good(mark)


def build_check(table: Table) -> Any:
    """A loop (address of the words, first, last) -> the first slot that fails the check, or -1."""
    access = Access(table, "at", table.key, read_only=True, create=False)
    size = 8 * row_layout(table.schema, table.key).words
    scope = {
        "check": compile_along(check_function(table)),
        "row": record_at(row_type(access), size),
    }
    mark = cache.fingerprint(_CHECK_SOURCE, repr(table))
    return cache.load_source(_CHECK_SOURCE, "check", mark, scope)["failing"]


def first_failure(failing: Any, words: int, slots: range) -> int | None:
    """The first slot whose row fails the check, or makes it raise, by halving."""
    try:
        found = int(failing(words, slots.start, slots.stop))
        return found if found >= 0 else None
    except Exception:
        if len(slots) == 1:
            return slots.start
    middle = slots.start + len(slots) // 2
    before = first_failure(failing, words, range(slots.start, middle))
    if before is not None:
        return before
    return first_failure(failing, words, range(middle, slots.stop))


_CHECK_SOURCE = '''"""Generated by Headgate: the check of one table over a range of its slots."""

from numba import njit


@njit(nogil=True, cache=True)
def failing(words, first, last):
    for slot in range(first, last):
        if not check(row(words, slot)):
            return slot
    return -1
'''
