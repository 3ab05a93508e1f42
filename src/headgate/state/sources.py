"""Sources: the files of the package that a compiled function is made of, and their digests.

Invariant: a change of any of them changes the stamp; compiled code of another stamp is not read.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path
from types import FunctionType

_ROOT = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(r"^ *from (headgate[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def stamp_of(function: FunctionType) -> str | None:
    """A digest of all the sources of a function, None where one cannot be read."""
    files = sorted(files_of(function))
    digests = [file_digest(name) for name in files]
    if None in digests:
        return None
    relative = [os.path.relpath(name, _ROOT) for name in files]
    return hashlib.sha256(repr((relative, digests)).encode()).hexdigest()[:32]


def files_of(function: FunctionType) -> set[str]:
    """The source of a function and all sources of the package that it is made of.

    Not only those of the functions that it calls: a constant that it takes from elsewhere is in the
    compiled code, too.
    """
    found: set[str] = set()
    waiting = [function.__code__.co_filename]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path)
    return found


@functools.cache
def _imported(path: str) -> tuple[str, ...]:
    """The sources of the package that one of them names."""
    try:
        text = Path(path).read_text()
    except OSError:
        return ()
    found = []
    for package, names in _IMPORT.findall(text):
        folder = _ROOT.joinpath(*package.split(".")[1:])
        members = [folder / name for name in re.findall(r"\w+", names)]
        found += [one.with_suffix(".py") for one in (folder, *members)]
        found.append(folder / "__init__.py")
    return tuple(str(one) for one in found if one.is_file())


@functools.cache
def file_digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
