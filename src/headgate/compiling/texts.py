"""Texts: what compiled functions do with characters: order, length, parts, and `+`.

A function that looks at characters gets one more argument before its own, the way to the pool's
texts, and hands it to those that it calls; one that compares codes alone is compiled without. The
tables at the end say what is called instead of an operator, a builtin or a method of a text where
that argument is there. Invariant: a text compares, counts and joins as Python's own does, by code
points; what is not a text goes the way it goes without.
"""

from __future__ import annotations

import builtins
import inspect
import operator
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.extending import intrinsic, models, register_model

from headgate.compiling.numba_types import I64, TextType, code_of, text_of
from headgate.compiling.operators import CHECKED_BUILTINS, CHECKED_OPERATORS
from headgate.compiling.optionals import inner_of, is_optional, present
from headgate.compiling.refusals import Refusal
from headgate.state.characters import (
    compare_texts,
    contains,
    digits_of,
    ends_with,
    join,
    length_of,
    starts_with,
)
from headgate.state.compiled import overload
from headgate.state.strings import text_code

TEXTS = "headgate_texts"  # the name of the argument
_TRUE, _FALSE = text_code("True"), text_code("False")


class TextsType(types.Type):
    """The way to the characters of texts: the address of a pool's window."""

    def __init__(self) -> None:
        super().__init__(name="texts")


texts_type = TextsType()


@register_model(TextsType)
class _TextsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, I64)


@intrinsic
def texts_at(typing_context: Any, address: Any) -> Any:
    """The way to the texts of the pool whose window is at this address."""
    return texts_type(types.int64), lambda context, builder, sig, args: args[0]


@intrinsic
def _window(typing_context: Any, texts: Any) -> Any:
    return types.int64(texts_type), lambda context, builder, sig, args: args[0]


def with_texts(function: Any) -> inspect.Signature:
    """The signature of a function that has the argument."""
    first = inspect.Parameter(TEXTS, inspect.Parameter.POSITIONAL_ONLY)
    own = inspect.signature(function)
    return own.replace(parameters=[first, *own.parameters.values()])


def _is_text(*kinds: Any) -> bool:
    return all(isinstance(kind, TextType) for kind in kinds)


# --- operators ------------------------------------------------------------------------------------


def _of_two(name: str, on_texts: Any, otherwise: Any) -> Any:
    """`on_texts` for two texts, and for all else what is called without the argument."""

    def apply(texts: Any, left: Any, right: Any) -> Any:
        return otherwise(left, right)

    apply.__name__ = name

    @overload(apply)
    def choose(texts: Any, left: Any, right: Any) -> Any:
        if is_optional(left, right) and _is_text(inner_of(left)):
            return lambda texts, left, right: apply(texts, present(left), present(right))
        if _is_text(left, right):
            return lambda texts, left, right: on_texts(
                _window(texts), code_of(left), code_of(right)
            )
        return lambda texts, left, right: otherwise(left, right)

    return apply


def _comparing(function: Callable[..., Any]) -> Any:
    def compare(texts: Any, left: Any, right: Any) -> Any:
        return function(compare_texts(texts, left, right), 0)

    overload(compare)(lambda texts, left, right: compare)
    return _of_two(function.__name__, compare, CHECKED_OPERATORS[function])


def _joined(texts: Any, left: Any, right: Any) -> Any:
    return text_of(join(texts, left, right))


overload(_joined)(lambda texts, left, right: _joined)


# --- builtins and methods -------------------------------------------------------------------------


def length(texts: Any, value: Any) -> Any:
    return len(value)


@overload(length)
def _choose_length(texts: Any, value: Any) -> Any:
    if is_optional(value):
        return lambda texts, value: length(texts, present(value))
    if _is_text(value):
        return lambda texts, value: length_of(_window(texts), code_of(value))
    return lambda texts, value: len(value)


def _extreme(builtin: Any, is_better: Any) -> Any:
    """min or max: of texts the first that no other one beats."""
    otherwise = CHECKED_BUILTINS[builtin]

    def choose_of(texts: Any, *values: Any) -> Any:
        return otherwise(*values)

    choose_of.__name__ = builtin.__name__

    @overload(choose_of)
    def choose(texts: Any, *values: Any) -> Any:
        kinds = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
        if len(kinds) < 2 or not _is_text(*map(inner_of, kinds)):
            return lambda texts, *values: otherwise(*values)
        if len(kinds) == 2:

            def of_two(texts: Any, *values: Any) -> Any:
                is_second = is_better(texts, values[1], values[0])  # None is neither: it raises
                return present(values[1]) if is_second else present(values[0])

            return of_two

        def of_many(texts: Any, *values: Any) -> Any:
            best = choose_of(texts, values[0], values[1])
            return choose_of(texts, best, *values[2:])

        return of_many

    return choose_of


def shown(texts: Any, value: Any) -> Any:
    return str(value)


@overload(shown)
def _choose_shown(texts: Any, value: Any) -> Any:
    if _is_text(value):
        return lambda texts, value: value
    if isinstance(value, types.Boolean):
        return lambda texts, value: text_of(_TRUE) if value else text_of(_FALSE)
    if isinstance(value, types.Integer):
        return lambda texts, value: text_of(digits_of(_window(texts), value))
    raise Refusal(f"the text of a {value}; str and f-strings take texts, ints and booleans")


def _part(name: str, is_there: Any) -> Any:
    """startswith or endswith: of a text, or of one of a tuple of texts."""

    def test(texts: Any, text: Any, part: Any) -> Any:
        return getattr(text, name)(part)

    test.__name__ = name

    @overload(test)
    def choose(texts: Any, text: Any, part: Any) -> Any:
        if is_optional(text):
            return lambda texts, text, part: test(texts, present(text), part)
        if is_optional(part):
            return lambda texts, text, part: test(texts, text, present(part))
        if _is_text(text, part):
            return lambda texts, text, part: is_there(_window(texts), code_of(text), code_of(part))
        if not _is_text(text) or not isinstance(part, types.BaseTuple):
            raise Refusal(f"{name} takes a text or a tuple of texts, not a {part}")
        if not part.types:
            return lambda texts, text, part: False
        if not _is_text(*part.types):
            raise Refusal(f"{name} takes a tuple of texts alone")

        def among(texts: Any, text: Any, part: Any) -> Any:
            for one in part:
                if is_there(_window(texts), code_of(text), code_of(one)):
                    return True
            return False

        return among

    return test


# --- the tables -----------------------------------------------------------------------------------

_less, _greater = _comparing(operator.lt), _comparing(operator.gt)
_add = _of_two("add", _joined, CHECKED_OPERATORS[operator.add])

TEXT_OPERATORS = {
    operator.lt: _less,
    operator.le: _comparing(operator.le),
    operator.gt: _greater,
    operator.ge: _comparing(operator.ge),
    operator.add: _add,
    operator.iadd: _add,
    operator.contains: _of_two("contains", contains, CHECKED_OPERATORS[operator.contains]),
}
TEXT_BUILTINS: dict[Any, Any] = {
    builtins.len: length,
    builtins.min: _extreme(builtins.min, _less),
    builtins.max: _extreme(builtins.max, _greater),
    builtins.str: shown,
}
TEXT_METHODS = {
    "startswith": _part("startswith", starts_with),
    "endswith": _part("endswith", ends_with),
}
