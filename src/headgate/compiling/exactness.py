"""Exactness: no value of a compiled function is quietly another kind of number than in Python.

Numba gives a variable one type: where it holds an int here and a float there, the int becomes a
float and may lose digits. Such a function is refused, but for the harmless case of a small constant
(`total = 0`, `max(0, x)`) that only ever meets floats: there an int and a float give the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from numba.core import ir, types
from numba.core.dispatcher import Dispatcher

from headgate.compiling.decimals import INTEGER_DIGITS, DecimalType
from headgate.compiling.numba_types import AbortType, TextType, store_column
from headgate.compiling.operators import (
    CHECKED_BUILTINS,
    CHECKED_MATH,
    CHECKED_OPERATORS,
    real_power,
)
from headgate.compiling.optionals import inner_of, not_none, truth
from headgate.compiling.refusals import Refusal
from headgate.compiling.texts import TEXT_BUILTINS, TEXT_METHODS, TEXT_OPERATORS

_EXACT_MAX = 2**53  # every integer up to here is a float
_COMPARING = {
    CHECKED_OPERATORS[sign]
    for sign in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
} | {TEXT_OPERATORS[sign] for sign in (operator.lt, operator.le, operator.gt, operator.ge)}
_COMBINING = {
    CHECKED_OPERATORS[sign]
    for sign in (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv,
                 operator.mod)
} | {
    real_power, CHECKED_OPERATORS[operator.pow], CHECKED_BUILTINS[divmod],
    TEXT_OPERATORS[operator.add],
}  # fmt: skip
_PASSING = {
    not_none,
    CHECKED_BUILTINS[abs],
    CHECKED_BUILTINS[min],
    CHECKED_BUILTINS[max],
    CHECKED_BUILTINS[round],
    CHECKED_OPERATORS[operator.pos],
    TEXT_BUILTINS[min],
    TEXT_BUILTINS[max],
}
_TAKING = {
    store_column, bool, truth, CHECKED_BUILTINS[float], CHECKED_BUILTINS[int],
    *(found for function, found in CHECKED_MATH.items() if function is not math.gcd),
}  # fmt: skip
# The values that may be None: those of columns.
_VALUES = (types.Integer, types.Float, types.Boolean, DecimalType, TextType)
_HANDING_ON = ("cast", "phi", "build_tuple", "static_getitem", "exhaust_iter")
_KNOWING_NONE = {
    not_none, store_column, truth, real_power,
    *CHECKED_OPERATORS.values(), *CHECKED_BUILTINS.values(), *CHECKED_MATH.values(),
    *TEXT_OPERATORS.values(), *TEXT_BUILTINS.values(), *TEXT_METHODS.values(),
} - {CHECKED_BUILTINS[sum], TEXT_BUILTINS[str]}  # fmt: skip
_METHODS = ("append", "pop", "clear", "reverse", "extend", "insert", "copy")
_ABSENT = {
    types.Complex: "a complex number has no column to be stored in",
    types.Set: "a set has no order that is the same everywhere; use a tuple",
    types.DictType: "a dict has no compiled form; use if and elif, or a table",
    types.Array: "an array of NumPy has other rules than Python's numbers; use a tuple",
}


def refuse_inexact(
    func_ir: Any, typemap: Mapping[str, Any], calltypes: Mapping[Any, Any], answer: Any
) -> None:
    """Raise a Refusal for the first line whose numbers would not be Python's."""
    _Judge(func_ir, typemap, calltypes, answer).judge()


def _plain(kind: Any) -> Any:
    return types.unliteral(kind)


class _Judge:
    def __init__(
        self, func_ir: Any, typemap: Mapping[str, Any], calltypes: Mapping[Any, Any], answer: Any
    ) -> None:
        self.func_ir = func_ir
        self.typemap = typemap
        self.calltypes = calltypes
        self.answer = answer
        self.definitions: dict[str, list[Any]] = {}
        for statement in self._assigns():
            self.definitions.setdefault(statement.target.name, []).append(statement.value)
        self.maybe_int: set[str] = set()  # floats and decimals that are an int in Python, or may be

    def _statements(self) -> Iterator[Any]:
        for label in sorted(self.func_ir.blocks):
            yield from self.func_ir.blocks[label].body

    def _assigns(self) -> Iterator[Any]:
        return (one for one in self._statements() if isinstance(one, ir.Assign))

    def judge(self) -> None:
        for statement in self._assigns():
            self._refuse_kinds(statement)
            self._note_conversions(statement)
        while self._spread():
            pass
        for statement in self._statements():
            self._judge_uses(statement)

    # --- what a variable is -----------------------------------------------------------------------

    def _type(self, variable: Any) -> Any:
        """The type of a variable, of one that may be None that of its value."""
        return inner_of(_plain(self.typemap[variable.name]))

    def _may_be_none(self, variable: Any) -> bool:
        """Whether it has the type of a value that may be None; an abort is no value."""
        kind = _plain(self.typemap[variable.name])
        return isinstance(kind, types.Optional) and not isinstance(kind.type, AbortType)

    def _constant(self, name: str) -> int | None:
        found = self.definitions.get(name, [])
        if len(found) != 1:
            return None
        if isinstance(found[0], (ir.Const, ir.Global, ir.FreeVar)):
            value = found[0].value
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        return self._constant(found[0].name) if isinstance(found[0], ir.Var) else None

    def _callee(self, call: Any) -> Any:
        found = self.definitions.get(call.func.name, [])
        if len(found) == 1 and isinstance(found[0], (ir.Global, ir.FreeVar, ir.Const)):
            return found[0].value
        return None

    def _sources(self, value: Any) -> list[Any]:
        """The variables whose value an assignment hands on."""
        if isinstance(value, ir.Var):
            return [value]
        if isinstance(value, ir.Expr) and value.op == "cast":
            return [value.value]
        if isinstance(value, ir.Expr) and value.op == "phi":
            return [one for one in value.incoming_values if one is not ir.UNDEFINED]
        return []

    # --- conversions ------------------------------------------------------------------------------

    def _refuse_kinds(self, statement: Any) -> None:
        value, kind = statement.value, self._type(statement.target)
        for absent, why in _ABSENT.items():
            if isinstance(kind, absent):
                raise Refusal(why, loc=statement.loc)
        if isinstance(kind, types.Integer) and not kind.signed:
            raise Refusal("an integer beyond 64 bits", loc=statement.loc)
        if self._may_be_none(statement.target) and not isinstance(kind, _VALUES):
            raise self._none_refusal(statement, kind)
        if not isinstance(value, ir.Expr):
            return
        self._refuse_optional_use(value, statement.loc)
        is_method = value.op == "getattr" and isinstance(self._type(value.value), types.List)
        if is_method and value.attr not in _METHODS:
            raise Refusal(f"a list's .{value.attr} has no compiled form", loc=statement.loc)
        if value.op == "build_list":
            for item in value.items:
                self._refuse_change(item, kind.dtype, statement.loc, "the list holds")
        if value.op == "call" and value in self.calltypes:
            self._refuse_arguments(value, statement.loc)

    def _refuse_optional_use(self, value: Any, loc: Any) -> None:
        """What may be None goes only where None has Python's meaning: our own operators, stores,
        functions compiled along, and whatever hands it on."""
        if value.op in _HANDING_ON:
            return
        callee = self._callee(value) if value.op == "call" else None
        if callee in _KNOWING_NONE or isinstance(callee, Dispatcher):
            return
        for one in value.list_vars():
            if one.name in self.typemap and self._may_be_none(one):
                raise Refusal(
                    f"{_user_name(one.name)} may be None here, where a value is needed; test it "
                    "before, in a variable: x = row.column, then: if x is not None",
                    loc=loc,
                )

    def _refuse_arguments(self, call: Any, loc: Any) -> None:
        """Arguments that a callee, such as a list's append, would turn into another kind."""
        callee = self._callee(call)
        if callee in _TAKING or callee in _PASSING or callee is range:
            return
        wanted = self.calltypes[call].args
        if len(wanted) == len(call.args):
            for given, kind in zip(call.args, wanted, strict=True):
                self._refuse_change(given, _plain(kind), loc, "it is given to what takes")

    def _refuse_change(self, given: Any, kind: Any, loc: Any, what: str) -> None:
        have = self._type(given)
        if _changes(have, kind):
            raise Refusal(
                f"{_a(have)} stands where {what} {_word(kind)}s; {_advice(have, kind)}", loc=loc
            )

    def _none_refusal(self, statement: Any, kind: Any) -> Refusal:
        name = _user_name(statement.target.name)
        return Refusal(
            f"{name} is None on one way and {_a(kind)} on another; set it on every way",
            loc=self._line_of_none(statement),
        )

    def _line_of_none(self, statement: Any) -> Any:
        """Where the variable is set to None, if that can be told."""
        name = statement.target.name.split(".")[0]
        for other in self._assigns():
            is_same = other.target.name.split(".")[0] == name and not name.startswith("$")
            if is_same and isinstance(self._type(other.target), types.NoneType):
                return other.loc
        return statement.loc

    def _note_conversions(self, statement: Any) -> None:
        target = statement.target
        for source in self._sources(statement.value):
            have, kind = self._type(source), self._type(target)
            if not _changes(have, kind):
                continue
            constant = self._constant(source.name)
            bound = 10**INTEGER_DIGITS if isinstance(kind, DecimalType) else _EXACT_MAX
            if constant is None or abs(constant) > bound or isinstance(have, types.Boolean):
                raise self._mixed_refusal(target, have, kind, statement.loc)
            self.maybe_int.add(target.name)

    def _mixed_refusal(self, target: Any, have: Any, kind: Any, loc: Any) -> Refusal:
        name = _user_name(target.name)
        return Refusal(
            f"{name} is {_a(have)} on one way and {_a(kind)} on another, and compiled it has one "
            f"kind; {_advice(have, kind)}",
            loc=loc,
        )

    # --- constants that became floats -------------------------------------------------------------

    def _spread(self) -> bool:
        """Note one more variable that may be an int in Python; False when there is none."""
        before = len(self.maybe_int)
        for statement in self._assigns():
            target, value = statement.target, statement.value
            if any(source.name in self.maybe_int for source in self._sources(value)):
                self.maybe_int.add(target.name)
            if isinstance(value, ir.Expr) and value.op == "call":
                self._spread_call(statement)
        return len(self.maybe_int) > before

    def _spread_call(self, statement: Any) -> None:
        call, callee = statement.value, self._callee(statement.value)
        kind = self._type(statement.target)
        if isinstance(kind, (types.Integer, types.Boolean)):
            return
        if callee is CHECKED_BUILTINS[sum] and isinstance(kind, types.Float):
            self.maybe_int.add(statement.target.name)  # 0 when there is nothing to add
        if callee not in _PASSING:
            return
        for given in call.args if callee is not CHECKED_BUILTINS[round] else call.args[:1]:
            have = self._type(given)
            if _changes(have, kind):
                constant = self._constant(given.name)
                if constant is None or abs(constant) > _EXACT_MAX:
                    raise Refusal(
                        f"{_a(have)} or {_a(kind)} comes of this, and compiled it has one kind; "
                        + _advice(have, kind),
                        loc=statement.loc,
                    )
                self.maybe_int.add(statement.target.name)
            elif given.name in self.maybe_int:
                self.maybe_int.add(statement.target.name)

    def _judge_uses(self, statement: Any) -> None:
        if isinstance(statement, ir.Return):
            self._judge_return(statement)
        if not isinstance(statement, ir.Assign) or not isinstance(statement.value, ir.Expr):
            return
        value = statement.value
        if value.op in ("cast", "phi"):
            return
        used = [one for one in value.list_vars() if one.name in self.maybe_int]
        if not used:
            return
        callee = self._callee(value) if value.op == "call" else None
        if callee in _COMPARING or callee in _PASSING or callee in _TAKING:
            return
        if callee in _COMBINING and self._meets_floats(value.args):
            return
        name = _user_name(used[0].name)
        kind = self._type(used[0])
        raise Refusal(
            f"{name} is an int on one way and {_a(kind)} on another, which matters here; "
            + _advice(types.int64, kind),
            loc=statement.loc,
        )

    def _meets_floats(self, operands: Any) -> bool:
        """Whether one operand is for certain what the other is turned into."""
        certain = (types.Float, DecimalType)
        return any(
            isinstance(self._type(one), certain) and one.name not in self.maybe_int
            for one in operands
        )

    def _judge_return(self, statement: Any) -> None:
        have = self._type(statement.value)
        if _changes(have, _plain(self.answer)) or statement.value.name in self.maybe_int:
            kind = _plain(self.answer)
            given = have if _changes(have, kind) else types.int64
            raise Refusal(
                f"the function returns {_a(given)} here and {_a(kind)} elsewhere; "
                + _advice(types.int64, kind),
                loc=statement.loc,
            )


def _changes(have: Any, kind: Any) -> bool:
    """Whether a value of the first type is no longer itself as one of the second."""
    have, kind = inner_of(have), inner_of(kind)
    if isinstance(have, types.Boolean):
        return isinstance(kind, (types.Integer, types.Float, DecimalType))
    return isinstance(have, types.Integer) and isinstance(kind, (types.Float, DecimalType))


def _advice(have: Any, kind: Any) -> str:
    if isinstance(have, types.Boolean):
        return "write int(...) around the boolean"
    if isinstance(kind, DecimalType):
        return 'write a constant as hg.decimal("0"), or keep two variables'
    return "write a constant as 0.0, or float(...) around the int"


def _user_name(name: str) -> str:
    """A variable as the user wrote it; one of Numba's own is 'the value'."""
    return "the value" if name.startswith("$") else name.split(".")[0]


def _a(kind: Any) -> str:
    word = _word(kind)
    return f"an {word}" if word == "int" else f"a {word}"


def _word(kind: Any) -> str:
    if isinstance(kind, types.Boolean):
        return "bool"
    if isinstance(kind, types.Integer):
        return "int"
    if isinstance(kind, types.Float):
        return "float"
    return "decimal" if isinstance(kind, DecimalType) else str(kind)
