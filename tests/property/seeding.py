"""Seeding: a bug put into one function of the package, as if it had been written so."""

from __future__ import annotations

import inspect
import textwrap
from types import ModuleType
from typing import Any

import pytest

from headgate.state import templates


def with_bug(module: ModuleType, name: str, old: str, new: str) -> Any:
    """The function of a module with a piece of its text replaced."""
    found = getattr(module, name)
    text = textwrap.dedent(inspect.getsource(getattr(found, "py_func", found)))
    assert old in text, f"{module.__name__}.{name} has no {old!r} to break"
    scope = dict(vars(module))
    exec(text.replace(old, new), scope)
    return scope[name]


def plant(patch: pytest.MonkeyPatch, module: ModuleType, name: str, old: str, new: str) -> None:
    """Replace it in the module: kernels that are made from now on have the bug."""
    patch.setattr(templates, "_templates", {})  # which are of the sound code
    patch.setattr(module, name, with_bug(module, name, old, new))
