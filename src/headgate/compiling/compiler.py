"""The compiler: a user's Python function, and those it calls, as Numba functions over our values.

One extra pass gives the function Python's meaning where Numba's differs: integer sums and products
that leave 64 bits raise OverflowError, texts are codes, and setting a column obeys its type.
"""

from __future__ import annotations

import enum
import operator
import types as python_types
from typing import Any

import numba
import numpy as np
from numba.core import ir, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, FunctionPass, register_pass
from numba.core.ir_utils import build_definitions, get_definition, guard, mk_unique_var
from numba.core.typed_passes import NopythonTypeInference
from numba.core.untyped_passes import FixupArgs, RewriteDynamicRaises

from headgate.compiling import actions
from headgate.compiling.bytecode import is_filled, is_user_function, mended_code, references
from headgate.compiling.containers import same_length, same_lengths
from headgate.compiling.exactness import refuse_inexact
from headgate.compiling.flow import tested_for_none
from headgate.compiling.generators import inline_generators
from headgate.compiling.numba_types import AbortType, store_column, text_of
from headgate.compiling.operators import (
    CHECKED_BUILTINS,
    CHECKED_MATH,
    CHECKED_OPERATORS,
    real_power,
)
from headgate.compiling.optionals import not_none, truth
from headgate.compiling.refusals import ALWAYS, Refusal, describe_error
from headgate.compiling.texts import (
    TEXT_BUILTINS,
    TEXT_METHODS,
    TEXT_OPERATORS,
    TEXTS,
    with_texts,
)
from headgate.compiling.uncompiled import MAX, MIN
from headgate.errors import DeclarationError
from headgate.state.compiled import lowered_only
from headgate.state.strings import text_code
from headgate.state.table import Access

FUNCTIONS = "__headgate_functions__"  # in a clone's globals: function -> its compiled form
CUT = "__headgate_cut__"  # in a clone's globals: which slice of it to keep, see slicing.py


# --- the pass -------------------------------------------------------------------------------------


@register_pass(mutates_CFG=False, analysis_only=False)
class _Meaning(FunctionPass):
    """Rewrites the untyped IR: texts to codes, column stores and checked arithmetic to calls."""

    _name = "headgate_meaning"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        func_ir = state.func_ir
        rewriter = _Rewriter(func_ir, state.func_id.func.__globals__.get(FUNCTIONS, {}))
        tested = tested_for_none(func_ir)
        for label, block in func_ir.blocks.items():
            block.body = [new for old in block.body for new in rewriter.rewrite(block, old)]
            for name, loc in tested.get(label, ()):
                variable = ir.Var(block.scope, name, loc)
                block.body[:0] = rewriter.call(block, not_none, [variable], variable, loc)
        func_ir._definitions = build_definitions(func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Generators(FunctionPass):
    """Makes loops of generator expressions, before anything else looks at them."""

    _name = "headgate_generators"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        return inline_generators(state.func_ir)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Cutting(FunctionPass):
    """Leaves only one slice of the function where one was asked for."""

    _name = "headgate_cutting"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        cut = state.func_id.func.__globals__.get(CUT)
        if cut is None:
            return False
        cut.apply(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=False, analysis_only=True)
class _Exactness(AnalysisPass):
    """Refuses values that Numba would quietly turn into another kind of number."""

    _name = "headgate_exactness"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        refuse_inexact(state.func_ir, state.typemap, state.calltypes, state.return_type)
        return False


class _Rewriter:
    def __init__(self, func_ir: Any, functions: dict[Any, Any]) -> None:
        self.func_ir = func_ir
        self.functions = functions
        self.literal_names = self._literal_arguments()
        self.has_texts = TEXTS in func_ir.arg_names
        self.text_methods = self._text_methods() if self.has_texts else {}

    def _literal_arguments(self) -> set[str]:
        """Variables handed to decimal() and getattr(): their literals must stay literals."""
        names: set[str] = set()
        for block in self.func_ir.blocks.values():
            for call in block.find_exprs(op="call"):
                if self._value_of(call.func) in (actions.decimal, getattr):
                    names.update(argument.name for argument in call.args)
        return names

    def _text_methods(self) -> dict[str, Any]:
        """By variable: the methods that are called at once, of what may be a text."""
        members = {
            statement.target.name: statement.value
            for block in self.func_ir.blocks.values()
            for statement in block.find_insts(ir.Assign)
            if isinstance(statement.value, ir.Expr) and statement.value.op == "getattr"
        }
        calls = [call for one in self.func_ir.blocks.values() for call in one.find_exprs(op="call")]
        found = {call.func.name: members.get(call.func.name) for call in calls}
        return {
            name: value
            for name, value in found.items()
            if value is not None
            and value.attr in TEXT_METHODS
            and isinstance(self._value_of(value.value), (str, type(None)))
        }

    def _value_of(self, variable: Any) -> Any:
        """The Python object a variable stands for, through globals and module attributes."""
        definition = guard(get_definition, self.func_ir, variable)
        if isinstance(definition, (ir.Global, ir.FreeVar, ir.Const)):
            return definition.value
        if isinstance(definition, ir.Expr) and definition.op == "getattr":
            owner = self._value_of(definition.value)
            if isinstance(owner, (python_types.ModuleType, enum.EnumType, enum.Enum)):
                return getattr(owner, definition.attr, None)
        return None

    def rewrite(self, block: Any, statement: Any) -> list[Any]:
        if isinstance(statement, ir.SetAttr):
            return self._store(block, statement)
        if not isinstance(statement, ir.Assign):
            return [statement]
        value = statement.value
        if isinstance(value, (ir.Const, ir.Global, ir.FreeVar)):
            return self._named(block, statement, value.value)
        if not isinstance(value, ir.Expr):
            return [statement]
        if value.op in ("binop", "inplace_binop", "unary"):
            return self._operation(block, statement)
        if value.op == "getattr":
            return self._member(block, statement)
        if value.op == "call":
            return self._called(block, statement)
        if value.op in _UNKNOWN_FORMS:
            raise Refusal(_UNKNOWN_FORMS[value.op], loc=statement.loc)
        return [statement]

    def _operation(self, block: Any, statement: Any) -> list[Any]:
        value = statement.value
        function = CHECKED_OPERATORS.get(value.fn)
        if function is None:
            return [statement]
        args = [value.value] if value.op == "unary" else [value.lhs, value.rhs]
        if self.has_texts and value.fn in TEXT_OPERATORS:
            function, args = TEXT_OPERATORS[value.fn], [self._texts(block), *args]
        if value.fn in (operator.pow, operator.ipow) and self._is_real_power(*args):
            function = real_power
        return self.call(block, function, args, statement.target, statement.loc)

    def _is_real_power(self, base: Any, exponent: Any) -> bool:
        """Whether constants tell that the power of floats is no complex number."""
        given, raised = self._value_of(base), self._value_of(exponent)
        if isinstance(given, (int, float)) and given >= 0:
            return True
        return isinstance(raised, float) and raised.is_integer()

    def _named(self, block: Any, statement: Any, value: Any) -> list[Any]:
        """A constant, global or closure value: as it is, in its compiled form, or refused."""
        if self.has_texts and value is str:
            return []  # it is called by another name, see `_reaching`
        if isinstance(value, str):
            return self._text(block, statement, value)
        if (number := as_number(value)) is not value:
            return [ir.Assign(ir.Const(number, statement.loc), statement.target, statement.loc)]
        replaced = _replacement(value)
        if replaced is not None:
            found = ir.Global(getattr(value, "__name__", "call"), replaced, statement.loc)
            return [ir.Assign(found, statement.target, statement.loc)]
        if value is ir.UNDEFINED:
            missing = f"the name {statement.value.name} is not defined before this function"
            raise Refusal(missing + ALWAYS, statement.loc)
        why = refused_value(value, self.functions)
        if why is not None:
            name = getattr(statement.value, "name", None)
            what = f"{name} is {why}" if name else f"here is {why}"
            raise Refusal(what, loc=statement.loc)
        return [statement]

    def _called(self, block: Any, statement: Any) -> list[Any]:
        value = statement.value
        if self.has_texts and (reaching := self._reaching(block, value)) is not None:
            function, args = reaching
            return self.call(block, function, args, statement.target, statement.loc, value)
        if dict(value.kws).keys() == {"strict"}:
            return self._strict_zip(block, statement)
        if self._value_of(value.func) is bool and len(value.args) == 1:
            return self._truth(block, statement)
        if self._value_of(value.func) is pow:
            if len(value.args) != 2 or value.kws:
                raise Refusal("pow takes two values here", loc=statement.loc)
            if self._is_real_power(*value.args):
                return self.call(block, real_power, value.args, statement.target, statement.loc)
        return [statement]

    def _texts(self, block: Any) -> Any:
        """The argument by which it reaches characters."""
        return block.scope.get_exact(TEXTS)

    def _reaching(self, block: Any, call: Any) -> tuple[Any, list[Any]] | None:
        """What to call instead, and with what, where characters may be looked at; or None."""
        texts, called = self._texts(block), self._value_of(call.func)
        method = self.text_methods.get(call.func.name)
        if method is not None:
            if len(call.args) != 1 or call.kws or call.vararg:
                raise Refusal(f"{method.attr} takes one text here, or a tuple of them", call.loc)
            return TEXT_METHODS[method.attr], [texts, method.value, *call.args]
        if called in TEXT_BUILTINS and not call.kws and not call.vararg:
            return TEXT_BUILTINS[called], [texts, *call.args]
        compiled = self.functions.get(called, called)
        if any(compiled is one for one in self.functions.values()):
            return compiled, [texts, *call.args]
        return None

    def _truth(self, block: Any, statement: Any) -> list[Any]:
        """A condition; what a comparison gives is a boolean, and tested as it is."""
        (given,) = statement.value.args
        made = guard(get_definition, self.func_ir, given)
        is_operation = isinstance(made, ir.Expr) and made.op in ("binop", "unary")
        if is_operation and made.fn in _COMPARISONS:
            return [statement]
        return self.call(block, truth, [given], statement.target, statement.loc)

    def _strict_zip(self, block: Any, statement: Any) -> list[Any]:
        """zip(a, b, strict=...): Numba's zip takes no keywords, so compare the lengths first."""
        call = statement.value
        strict = guard(self.func_ir.infer_constant, dict(call.kws)["strict"])
        if self._value_of(call.func) is not zip or strict not in (True, False):
            return [statement]
        plain = ir.Assign(
            ir.Expr.call(call.func, call.args, (), call.loc), statement.target, statement.loc
        )
        if not strict:
            return [plain]
        if len(call.args) not in _SAME_LENGTHS:
            raise Refusal("zip(strict=True) takes two or three; write two of them", loc=call.loc)
        nothing = ir.Var(block.scope, mk_unique_var("$lengths"), statement.loc)
        compare = _SAME_LENGTHS[len(call.args)]
        return [*self.call(block, compare, call.args, nothing, statement.loc), plain]

    def _member(self, block: Any, statement: Any) -> list[Any]:
        """A member of a module: a constant, or a function in its compiled form."""
        if statement.target.name in self.text_methods:
            return []  # it is called by another name, see `_reaching`
        owner = self._value_of(statement.value.value)
        found = self._value_of(statement.target)
        if isinstance(owner, enum.IntEnum) and isinstance(found, str):
            return self._text(block, statement, found)
        is_member = isinstance(owner, enum.IntEnum) and isinstance(found, int)
        if (number := as_number(found)) is not found or is_member:
            # Numba computes with members of an IntEnum as if they were of no certain width.
            why = refused_value(number, self.functions)
            if why is not None:
                raise Refusal(f"{statement.value.attr} is {why}", loc=statement.loc)
            return [ir.Assign(ir.Const(number, statement.loc), statement.target, statement.loc)]
        if not isinstance(owner, python_types.ModuleType):
            return [statement]
        if isinstance(found, str):
            return self._text(block, statement, found)
        replaced = _replacement(found)
        if isinstance(found, python_types.FunctionType) and found in self.functions:
            replaced = self.functions[found]
        if replaced is not None:
            value = ir.Global(statement.value.attr, replaced, statement.loc)
            return [ir.Assign(value, statement.target, statement.loc)]
        why = refused_value(found, self.functions)
        if why is not None and hasattr(owner, statement.value.attr):
            raise Refusal(f"{owner.__name__}.{statement.value.attr} is {why}", loc=statement.loc)
        return [statement]

    def _text(self, block: Any, statement: Any, text: str) -> list[Any]:
        if statement.target.name in self.literal_names:
            return [statement]
        code, setup = self._constant(block, text_code(text), statement.loc)
        return [setup, *self.call(block, text_of, [code], statement.target, statement.loc)]

    def _store(self, block: Any, statement: Any) -> list[Any]:
        name, setup = self._constant(block, statement.attr, statement.loc)
        nothing = ir.Var(block.scope, mk_unique_var("$stored"), statement.loc)
        args = [statement.target, name, statement.value]
        return [setup, *self.call(block, store_column, args, nothing, statement.loc)]

    def _constant(self, block: Any, value: Any, loc: Any) -> tuple[Any, Any]:
        variable = ir.Var(block.scope, mk_unique_var("$constant"), loc)
        return variable, ir.Assign(ir.Const(value, loc), variable, loc)

    def call(
        self, block: Any, function: Any, args: list[Any], target: Any, loc: Any, like: Any = None
    ) -> list[Any]:
        """The statements that call a function; with what other arguments `like` is called."""
        callee = ir.Var(block.scope, mk_unique_var("$callee"), loc)
        found = ir.Global(getattr(function, "__name__", "call"), function, loc)
        kws, vararg = ((), None) if like is None else (like.kws, like.vararg)
        call = ir.Expr.call(callee, args, kws, loc, vararg=vararg)
        return [ir.Assign(found, callee, loc), ir.Assign(call, target, loc)]


_SAME_LENGTHS = {2: same_length, 3: same_lengths}
_COMPARISONS = {
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
    operator.is_, operator.is_not, operator.contains, operator.not_,
}  # fmt: skip
_UNKNOWN_FORMS = {
    "make_function": "a function inside the function; define it beside the transaction",
    "build_set": "a set has no order that is the same everywhere; use a tuple",
    "build_map": "a dict has no compiled form; use if and elif, or a table",
    "yield": "a generator has no compiled form; use a loop",
}
_PERMITTED = (
    bool, enumerate, getattr, len, range, zip,
    actions.abort, actions.delete, actions.decimal,
)  # fmt: skip


def as_number(value: Any) -> Any:
    """A member of an IntEnum, also within a tuple, as the integer it is; else the value itself."""
    if isinstance(value, enum.IntEnum):
        return int(value)
    if type(value) is tuple and any(as_number(part) is not part for part in value):
        return tuple(map(as_number, value))
    return value


def _replacement(value: Any) -> Any:
    """What to call instead of a builtin or a function of math, or None."""
    for table in (CHECKED_BUILTINS, CHECKED_MATH):
        for known, checked in table.items():
            if value is known:
                return checked
    return None


def refused_value(value: Any, functions: dict[Any, Any]) -> str | None:
    """Why a compiled function may not use this value of its module, or None if it may."""
    if value is None or isinstance(value, (bool, float, str, enum.Enum, python_types.ModuleType)):
        return None
    if isinstance(value, int):
        return None if MIN <= value <= MAX else f"an integer beyond 64 bits: {value}"
    if isinstance(value, (tuple, slice)):
        parts = value if isinstance(value, tuple) else (value.start, value.stop, value.step)
        reasons = (refused_value(part, functions) for part in parts)
        return next((f"a tuple with {reason}" for reason in reasons if reason), None)
    if any(value is known for known in (*_PERMITTED, *CHECKED_BUILTINS, *CHECKED_MATH)):
        return None
    if isinstance(value, type):
        is_plain = issubclass(value, (BaseException, enum.Enum))
        return None if is_plain else f"the class {value.__name__}, which has no compiled form"
    if isinstance(value, (list, dict, set, bytearray, np.ndarray)):
        kind = type(value).__name__
        return f"a {kind}, which may change while the engine runs; use a tuple"
    if any(value is known for known in functions.values()) or _is_own(value):
        return None
    if isinstance(value, python_types.CodeType):
        return "a lambda or a def inside the function, which has no compiled form"
    if value is any or value is all:
        return "a function that takes one generator expression or array here; write a loop"
    if callable(value):
        return "a function whose compiled form does not give what Python gives"
    return f"a {type(value).__name__}, which has no compiled form"


def _is_own(value: Any) -> bool:
    """Whether a function is one of Headgate's own, such as a pointer intrinsic."""
    module = str(getattr(value, "__module__", ""))
    return module.split(".")[0] == "headgate" or module == "numba.core.unsafe.eh"  # its try blocks


class _Compiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        manager = lowered_only(DefaultPassBuilder.define_nopython_pipeline(self.state))
        manager.add_pass_after(_Generators, FixupArgs)
        manager.add_pass_after(_Cutting, _Generators)
        manager.add_pass_after(_Meaning, RewriteDynamicRaises)
        manager.add_pass_after(_Exactness, NopythonTypeInference)
        manager.finalize()
        return [manager]


# --- functions, and what they call ----------------------------------------------------------------


def compile_along(
    function: Any, done: dict[Any, Any] | None = None, cut: Any = None, is_reaching: bool = False
) -> Any:
    """A dispatcher of the function in which every Python function it calls is compiled too.

    With a cut (see slicing.py) only one slice of the function itself is compiled. One that reaches
    characters (see texts.py) takes the way to them before its own arguments.
    """
    done = {} if done is None else done
    if function in done and cut is None:
        return done[function]
    scope = dict(function.__globals__)
    scope[FUNCTIONS] = done
    if cut is not None:
        scope[CUT] = cut
    cells = tuple(python_types.CellType() for _ in function.__closure__ or ())
    code = mended_code(function.__code__)
    clone = python_types.FunctionType(code, scope, function.__name__, None, cells)
    clone.__defaults__ = None if _has_accesses(function) else function.__defaults__
    # A cached kernel imports this module when it is loaded; the user's may not be importable.
    clone.__module__ = __name__
    if is_reaching:
        clone.__dict__["__signature__"] = with_texts(clone)
    dispatcher = numba.njit(nogil=True, pipeline_class=_Compiler)(clone)
    if cut is None:
        done[function] = dispatcher
    for name, value in references(function).items():
        if is_user_function(value):
            compiled = compile_along(value, done, None, is_reaching)
            if "." not in name and name in scope:
                scope[name] = compiled
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        if is_filled(old):
            value = old.cell_contents
            cell.cell_contents = done.get(value, value) if is_user_function(value) else value
    return dispatcher


def _has_accesses(function: Any) -> bool:
    return any(isinstance(value, Access) for value in function.__defaults__ or ())


def compile_checked(dispatcher: Any, signature: tuple[Any, ...], where: str) -> None:
    """Compile for these argument types; refuse with the line and the reason what cannot compile."""
    try:
        dispatcher.compile(signature)
    except Exception as error:  # Numba's own checks are partly bare assertions
        raise DeclarationError(f"{where} {describe_error(error, dispatcher.py_func)}") from None
    answer = dispatcher.overloads[signature].signature.return_type
    inner = answer.type if isinstance(answer, types.Optional) else answer
    if not isinstance(inner, (types.NoneType, AbortType)):
        raise DeclarationError(
            f"{where} returns a value of type {answer}; a transaction returns nothing or "
            'hg.abort("why"), and hands values on through hg.output(...)'
        )
