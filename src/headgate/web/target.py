"""The target: what a user names to be served: a store's folder, or an engine in a program.

A program is named as Python does, `package.module:engine`, or by its file, `bank.py:engine`; the
name behind the colon is an engine or a function that opens one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headgate.durability.format import MANIFEST_NAME
from headgate.engine.engine import Engine
from headgate.errors import HeadgateError, InputError
from headgate.web.served import Served, ServedEngine, ServedStore


def open_target(text: str) -> Served:
    """What the text names, opened; InputError that says what was looked for."""
    if (Path(text) / MANIFEST_NAME).exists():
        return ServedStore(Path(text))
    if ":" not in text:
        raise InputError(
            f"there is no store at {os.path.abspath(text)}; name a store's folder, or an engine "
            "as package.module:engine or bank.py:engine"
        )
    return ServedEngine(open_program(text))


def open_program(text: str) -> Engine:
    """The engine that the text names, as package.module:engine or bank.py:engine."""
    found = load_named(text, "engine")
    if found is not None and not isinstance(found, Engine) and callable(found):
        found = found()
    if not isinstance(found, Engine):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise InputError(f"{text} names {kind}; name an engine, or a function that opens one")
    return found


def load_named(text: str, what: str) -> Any:
    """What stands in a program under the name behind the colon; None when nothing does."""
    module, colon, name = text.rpartition(":")
    if not colon:
        raise InputError(
            f"{text} names no {what}; name it as package.module:{what} or bank.py:{what}"
        )
    return getattr(_import(module), name, None)


def _import(module: str) -> ModuleType:
    try:
        return _import_file(Path(module)) if module.endswith(".py") else _import_name(module)
    except HeadgateError:
        raise
    except ImportError as error:
        raise InputError(f"cannot import {module!r}: {error}") from error


def _import_name(module: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(module)


def _import_file(path: Path) -> ModuleType:
    if not path.exists():
        raise InputError(f"there is no program at {os.path.abspath(path)}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python program")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # functions that are compiled are looked up by module
    spec.loader.exec_module(module)
    return module
