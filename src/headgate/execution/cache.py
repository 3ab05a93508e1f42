"""The compile cache: kernels on disk under a fingerprint of everything that went into them.

The fingerprint covers the generated source, the user's functions with all they call and refer to,
the declarations, and the versions of Numba, Python and Headgate's own sources. A change in any of
them is a new fingerprint, so a stale kernel is never found. What has no fingerprint is not cached.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib.util
import os
import platform
import sys
import types
from pathlib import Path
from typing import Any

import numba
import numpy as np

from headgate.execution import bounds
from headgate.execution.compiler import is_user_function, references
from headgate.execution.output import Output
from headgate.io import RealDisk, make_folders, read_file
from headgate.state.table import Access, Table

_DISK = RealDisk()
_PLAIN = (int, float, complex, str, bytes, bool, type(None), np.generic)


def cache_folder() -> Path:
    """Where kernels are kept: HEADGATE_CACHE, or headgate/ in the user's cache folder."""
    if chosen := os.environ.get("HEADGATE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "headgate"


@functools.cache
def _own_sources() -> str:
    """A digest of the sources kernels are made from: a new Headgate compiles anew."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parents[1]
    for part in ("execution", "state"):
        for name in _DISK.list(str(folder / part)):
            if name.endswith(".py"):
                digest.update(name.encode())
                digest.update(read_file(_DISK, str(folder / part / name)))
    return digest.hexdigest()


def fingerprint(*parts: Any) -> str | None:
    """A digest of the parts (texts, numbers, functions...), or None if one cannot be digested."""
    digest = hashlib.sha256()
    versions = (
        numba.__version__, np.__version__, sys.version, platform.machine(), _own_sources(),
        bounds.IS_ON,
    )  # fmt: skip
    digest.update(repr(versions).encode())
    try:
        for part in parts:
            _update(digest, part, set())
    except TypeError:
        return None
    return digest.hexdigest()[:32]


def code_fingerprint(*parts: Any) -> str | None:
    """As `fingerprint`, but of the parts alone: the same for every version of what runs them."""
    digest = hashlib.sha256()
    try:
        for part in parts:
            _update(digest, part, set())
    except TypeError:
        return None
    return digest.hexdigest()[:32]


def _update(digest: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, _PLAIN):
        digest.update(f"{type(value).__name__}:{value!r};".encode())
    elif isinstance(value, (tuple, list, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, frozenset) else value
        digest.update(f"{type(value).__name__}{len(value)}(".encode())
        for item in items:
            _update(digest, item, seen)
    elif isinstance(value, types.CodeType):
        _update_code(digest, value, seen)
    elif isinstance(value, types.ModuleType):
        digest.update(f"module:{value.__name__}:{getattr(value, '__version__', '')};".encode())
    elif isinstance(value, types.FunctionType) and is_user_function(value):
        _update_function(digest, value, seen)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif hasattr(value, "py_func"):  # a function the user compiled with Numba
        _update(digest, value.py_func, seen)
    elif isinstance(value, enum.Enum):
        digest.update(f"enum:{type(value).__qualname__}.{value.name};".encode())
        _update(digest, value.value, seen)
    elif callable(value) and hasattr(value, "__module__") and hasattr(value, "__qualname__"):
        digest.update(f"callable:{value.__module__}.{value.__qualname__};".encode())
    elif isinstance(value, Table):
        digest.update(repr(value).encode())
    elif isinstance(value, np.ufunc):
        digest.update(f"ufunc:{value.__name__};".encode())
    else:
        raise TypeError(f"cannot fingerprint {type(value).__name__}")


def _update_function(digest: Any, function: types.FunctionType, seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    _update_code(digest, function.__code__, seen)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()):
        if not isinstance(default, (Access, Output)):  # those are in the declaration's own digest
            _update(digest, default, seen)
    for name, value in sorted(references(function).items()):
        digest.update(f"{name}=".encode())
        _update(digest, value, seen)


def _update_code(digest: Any, code: types.CodeType, seen: set[int]) -> None:
    digest.update(code.co_code)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    digest.update(repr(names).encode())
    _update(digest, code.co_consts, seen)


_LOADED: dict[tuple[str, str], dict[str, Any]] = {}  # what this process has loaded before


def load_source(source: str, name: str, mark: str | None, scope: dict[str, Any]) -> dict[str, Any]:
    """Run generated source with these names in scope, from a file that Numba can cache beside.

    Without a fingerprint, or where the cache folder cannot be written, it runs from memory.
    """
    path = _written(source, name, mark) if mark else None
    if path is not None and (str(path), source) in _LOADED:
        return _LOADED[str(path), source]
    if path is None:
        source = source.replace("@njit(nogil=True, cache=True)", "@njit(nogil=True)")
    module = types.ModuleType(f"headgate_generated_{mark or 'unsaved'}")
    module.__dict__.update(scope)
    if path is not None:
        module.__file__ = str(path)
        spec = importlib.util.spec_from_file_location(module.__name__, path)
        module.__spec__ = spec
        # Numba pickles by module name when it writes a cache entry.
        sys.modules[module.__name__] = module
    exec(compile(source, str(path or f"<{name}>"), "exec"), module.__dict__)
    if path is not None:
        _LOADED[str(path), source] = module.__dict__
    return module.__dict__


def _written(source: str, name: str, mark: str) -> Path | None:
    path, content = cache_folder() / "kernels" / mark / f"{name}.py", source.encode()
    try:
        if not _DISK.exists(str(path)) or read_file(_DISK, str(path)) != content:
            _write(path, content)
    except OSError:
        return None
    return path


def _write(path: Path, content: bytes) -> None:
    """Write a file of the cache; another process that writes the same one does no harm."""
    make_folders(_DISK, str(path.parent.absolute()))
    fresh = f"{path}.{os.getpid()}.tmp"
    file = _DISK.open(fresh, "create")
    try:
        file.write(0, content)
    finally:
        file.close()
    _DISK.rename(fresh, str(path))


def is_known_good(mark: str | None) -> bool:
    """Whether this very function was compiled and accepted before."""
    return mark is not None and _DISK.exists(str(cache_folder() / "checked" / mark))


def remember_good(mark: str | None) -> None:
    if mark is not None:
        with contextlib.suppress(OSError):
            _write(cache_folder() / "checked" / mark, b"")
