"""Every example in a docstring of the package runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import headgate

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
