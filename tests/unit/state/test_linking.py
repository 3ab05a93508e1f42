"""Functions that only compiled functions call: part of a kernel, and of nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from numba import types

from headgate.state.compiled import kernel_of, linked, numba


@linked
def halved(number: int) -> int:
    if number % 2:
        raise ValueError("odd", number)
    return number // 2


@linked
def quartered(number: int) -> int:
    return halved(halved(number))


def test_a_kernel_takes_in_what_it_calls_however_deep() -> None:
    def run(number: int) -> int:
        return quartered(number) + 1

    assert kernel_of(run, False)(12) == 4


def test_an_error_keeps_the_values_that_it_was_raised_with() -> None:
    def run(number: int) -> int:
        return quartered(number)

    with pytest.raises(ValueError, match="odd") as caught:
        kernel_of(run, False)(14)
    assert caught.value.args == ("odd", 7)


def test_a_call_from_python_is_an_error_and_no_crash() -> None:
    assert kernel_of(lambda number: halved(number), False)(4) == 2
    with pytest.raises(TypeError):
        halved(4)


def test_it_has_no_machine_code_of_its_own() -> None:
    @linked
    def inner(number: int) -> int:
        return number * 3

    @numba.njit
    def outer(number: int) -> int:
        return inner(number)

    assert outer(2) == 6
    (made,) = inner.overloads.values()
    (around,) = outer.overloads.values()
    engine = made.codegen._engine
    assert engine.is_symbol_defined(around.fndesc.llvm_func_name)
    assert not engine.is_symbol_defined(made.fndesc.llvm_func_name)


TERMS = 80  # so many are more than what takes the place of a call for being short


def stirring() -> Any:
    """A long function, straight from its first line to its last."""
    lines = [f"    x = (x * {31 + 2 * n} + {n}) ^ (x >> {1 + n % 13})" for n in range(TERMS)]
    scope: dict[str, Any] = {}
    exec("\n".join(["def stir(x):", *lines, "    return x"]), scope)
    return scope["stir"]


def stirred_by(stir: Any) -> Any:
    def run(first: int, last: int) -> int:
        total = 0
        for number in range(first, last):
            total ^= stir(number)
        return total

    return run


def test_a_long_function_is_no_call_where_it_is_called_once() -> None:
    kernel = kernel_of(stirred_by(linked(stirring())), False)
    kernel.compile((types.int64, types.int64))
    (text,) = kernel.inspect_asm().values()
    defined = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert any("stirred_by" in name for name in defined)
    assert not any("stirE" in name or "4stir" in name for name in defined)


def test_a_long_function_gives_in_a_kernel_what_it_gives_by_itself() -> None:
    alone, inside = numba.njit(stirring()), kernel_of(stirred_by(linked(stirring())), False)
    assert inside(5, 50) == stirred_by(alone)(5, 50)
