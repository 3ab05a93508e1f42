"""What was quickened in Numba gives what Numba's own gives, and the same code."""

from __future__ import annotations

import gc
import itertools
import operator
import os
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest
from llvmlite import ir as llvm
from numba.core import ir, types
from numba.core.base import BaseContext
from numba.core.compiler import Flags, run_frontend
from numba.core.registry import cpu_target
from numba.core.targetconfig import TargetConfig
from numba.core.types.functions import BaseFunction

from headgate.kernels import explorations, protocols, serial, versions
from headgate.kernels.binding import roles
from headgate.kernels.pointers import get_word, set_word
from headgate.state import quickening, tree
from headgate.state.compiled import mix
from headgate.state.quickening import NUMBAS_OWN, OURS
from tests.property import family

OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv,
    operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, operator.neg,
    operator.invert, operator.not_, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge, operator.iadd, operator.isub, operator.iand, operator.ior,
    operator.pow,
]  # fmt: skip
NUMBERS = [types.int64, types.int32, types.boolean, types.float64, types.float32, types.literal(3)]


@pytest.fixture
def numbas_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for (owner, name), function in NUMBAS_OWN.items():
        monkeypatch.setattr(owner, name, function)


def functions() -> Iterator[Any]:
    """Kernels, parts of them, and the transactions of the family."""
    for module in (explorations, protocols, serial, versions, tree):
        yield from roles(module).values()
        found = (getattr(one, "py_func", None) for one in vars(module).values())
        yield from (one for one in found if one is not None)
    yield from (one.compiled.signature.function for one in family.FAMILY.values())


def statements() -> list[Any]:
    blocks = [one for each in functions() for one in run_frontend(each).blocks.values()]
    found = [statement for block in blocks for statement in block.body]
    return found + [one.value for one in found if isinstance(one, ir.Assign)]


def test_a_statement_names_the_same_variables_in_the_same_order() -> None:
    found = [one for one in statements() if isinstance(one, ir.Inst)]
    assert len(found) > 2000 and {type(one) for one in found} >= {ir.Assign, ir.Expr, ir.Branch}
    own = NUMBAS_OWN[ir.Inst, "_rec_list_vars"]
    for one in found:
        held = one._kws if isinstance(one, ir.Expr) else one.__dict__
        assert one.list_vars() == own(one, held)


def test_variables_are_found_in_whatever_holds_them() -> None:
    variables = [ir.Var(None, name, ir.unknown_loc) for name in "abcd"]
    a, b, c, d = variables
    inner = ir.Expr.build_tuple([c, d], ir.unknown_loc)
    pair = namedtuple("pair", "one other")
    held = {"one": a, "list": [b, None, "text"], "deep": (pair(inner, 3), {"again": a})}
    own = NUMBAS_OWN[ir.Inst, "_rec_list_vars"]
    expected = [a, b, c, d, a]
    assert OURS[ir.Inst, "_rec_list_vars"](inner, held) == own(inner, held) == expected


def type_of(function: Any, args: tuple[Any, ...]) -> Any:
    """What a call is typed as: its signature and what is called; or why it has none."""
    context = cpu_target.typing_context
    context.refresh()
    kind = context.resolve_value_type(function)
    try:
        signature = kind.get_call_type(context, args, {})
        return signature, kind.get_impl_key(signature)
    except numba.core.errors.NumbaError as error:
        return type(error)


def all_types() -> dict[Any, Any]:
    pairs = list(itertools.product(NUMBERS, NUMBERS))
    alone = [(one,) for one in NUMBERS]
    unary = (operator.neg, operator.invert, operator.not_)
    return {
        (function, args): type_of(function, args)
        for function in OPERATORS
        for args in (alone if function in unary else pairs)
    }


def test_an_operator_has_the_type_that_numba_gives_it(request: pytest.FixtureRequest) -> None:
    first, second = all_types(), all_types()
    request.getfixturevalue("numbas_own")
    assert BaseFunction.get_call_type is NUMBAS_OWN[BaseFunction, "get_call_type"]
    assert first == second == all_types()


def test_a_value_has_the_size_that_llvm_gives_it() -> None:
    byte, word, real = llvm.IntType(8), llvm.IntType(64), llvm.DoubleType()
    kinds = [
        llvm.IntType(1), byte, word, real, llvm.FloatType(), word.as_pointer(),
        llvm.ArrayType(real, 3), llvm.LiteralStructType([byte, word, byte]),
        llvm.LiteralStructType([byte, word, byte], packed=True),
    ]  # fmt: skip
    context = cpu_target.target_context
    sizes = [context.get_abi_sizeof(kind) for kind in kinds]
    assert sizes == [context.get_abi_sizeof(kind) for kind in kinds]  # as they are remembered
    assert sizes == [NUMBAS_OWN[BaseContext, "get_abi_sizeof"](context, kind) for kind in kinds]
    assert sizes == [1, 1, 8, 8, 4, 8, 24, 24, 10]


def test_options_have_the_values_that_were_set_and_defaults() -> None:
    own = NUMBAS_OWN[TargetConfig, "values"]
    one, other = Flags(), Flags()
    assert list(one.values().items()) == list(own(one).items()) and one == other
    one.nrt, one.no_compile = True, True
    assert list(one.values().items()) == list(own(one).items()) and one != other
    one.discard("nrt")
    assert one.values() == own(one) and not one.values()["nrt"]
    assert hash(one) == hash(other) and other.values() == own(other)


@pytest.fixture
def watched() -> Iterator[tuple[Any, list[bool]]]:
    """A function, and whether the collector was on each time one that it calls got its types."""
    found: list[bool] = []

    @numba.extending.intrinsic
    def look(typing_context: Any, value: Any) -> Any:
        found.append(gc.isenabled())
        if isinstance(value, types.Float):
            raise ZeroDivisionError
        return types.int64(value), lambda context, builder, sig, args: args[0]

    @numba.njit
    def inner(value: int) -> int:
        return look(value)

    was = gc.isenabled()
    yield numba.njit(lambda value: inner(value) + 1), found
    gc.enable() if was else gc.disable()


def test_the_collector_waits_until_it_is_compiled(watched: tuple[Any, list[bool]]) -> None:
    outer, seen = watched
    gc.enable()
    assert outer(3) == 4 and gc.isenabled()
    assert seen and not any(seen)
    with pytest.raises(ZeroDivisionError):
        outer(0.5)
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off(watched: tuple[Any, list[bool]]) -> None:
    outer, seen = watched
    gc.disable()
    assert outer(3) == 4
    assert not gc.isenabled() and not any(seen)


def test_a_child_that_is_forked_while_others_compile_has_a_collector() -> None:
    gc.enable()
    with quickening._collector:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def code_of(function: Callable[..., Any], kinds: tuple[Any, ...]) -> str:
    """The code before it is machine code, with the names that count compilations numbered anew."""
    dispatcher = numba.njit(nogil=True)(function)
    dispatcher.compile(kinds)
    names: dict[str, str] = {}
    text = dispatcher.inspect_llvm(dispatcher.signatures[0])
    numbered = re.compile(r"(?:_ZN|\.const\.|NumbaEnv)[\w$.]+|const\.[\w.]+")
    return numbered.sub(lambda found: names.setdefault(found[0], f"name{len(names)}"), text)


def sample_of_words(address: int, count: int) -> int:
    total = 0
    for place in range(count):
        word = get_word(address, place)
        if (word > 7 and word != -3) or word & 12 == 4:
            set_word(address, place, mix(word, place << 2) // 3)
        total += abs(word) % 5 - (place >> 1)
    return total


def sample_of_arrays(values: np.ndarray, scale: float) -> float:
    total = 0.0
    for place in range(len(values)):
        total += values[place] * scale if values[place] >= 0.5 else -scale / (place + 1)
    return total


SAMPLES = [
    (sample_of_words, (types.int64, types.int64)),
    (sample_of_arrays, (types.float64[::1], types.float64)),
]


@pytest.mark.parametrize(("function", "kinds"), SAMPLES)
def test_the_code_is_the_same(
    function: Any, kinds: tuple[Any, ...], request: pytest.FixtureRequest
) -> None:
    quickened = code_of(function, kinds)
    request.getfixturevalue("numbas_own")
    assert code_of(function, kinds) == quickened


@pytest.mark.parametrize("place", OURS, ids=lambda place: place[1])
def test_they_are_in_numbas_place(place: tuple[Any, str]) -> None:
    assert getattr(*place) is OURS[place] is not NUMBAS_OWN[place]
    assert OURS[place].__module__ == quickening.__name__
