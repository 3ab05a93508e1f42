"""Every example in a docstring of the package runs, and every public name has a docstring."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import headgate
import headgate.testing
from docs.website import given_module

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ENTRY_POINTS = {"headgate.cli.__main__"}


def module_names() -> list[str]:
    found = pkgutil.walk_packages(headgate.__path__, "headgate.")
    return [module.name for module in found if module.name not in ENTRY_POINTS]


def count_examples(name: str) -> int:
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    return sum(len(test.examples) for test in tests)


@pytest.mark.parametrize("name", module_names())
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=FLAGS, report=False)
    assert found.failed == 0


def test_there_are_examples() -> None:
    assert sum(count_examples(name) for name in module_names()) > 20


def undocumented(module: ModuleType) -> Iterator[str]:
    """The public names of a module without a docstring, and the methods of its classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if not inspect.getdoc(value):
            yield name
        for member, found in vars(value).items() if inspect.isclass(value) else ():
            is_method = inspect.isroutine(found) or isinstance(found, property)
            if is_method and not member.startswith("_") and not inspect.getdoc(found):
                yield f"{name}.{member}"


@pytest.mark.parametrize(
    "module",
    [headgate, headgate.testing, given_module().obj],
    ids=lambda module: module.__name__,
)
def test_every_public_name_has_a_docstring(module: ModuleType) -> None:
    assert list(undocumented(module)) == []


def test_a_name_without_a_docstring_would_be_noticed() -> None:
    class Silent:
        def method(self) -> None: ...

    module = ModuleType("canary")
    vars(module).update(Silent=Silent, __all__=["Silent"])
    assert list(undocumented(module)) == ["Silent", "Silent.method"]
