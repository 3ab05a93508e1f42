"""The compile cache: a second process starts without compiling; nothing stale is ever served."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import headgate
from headgate.compiling import cache
from headgate.kernels import frame, versions
from headgate.state import sources
from headgate.state.compiled import cache_folder

# --- real processes -------------------------------------------------------------------------------

PROGRAM = """
import numba.core.event as event

compiled = event.RecordingListener()
event.register("numba:compile", compiled)

import headgate as hg
import rates

CONSTANT = {constant}

def fee(n, factor={factor}):
    return {fee}

table = hg.Table("t", "id bigint, n bigint DEFAULT {default}", key="id"{check})

@hg.transaction(event="id bigint, n bigint")
def bump(event, row=table.at("id", create=True), out=hg.output("n bigint")):
    row.n += fee(event.n) + CONSTANT + rates.STEP
    out.n = row.n

engine = hg.open(None, tables=[table], transactions=[bump])
result = engine.call(bump, id=1, n=2)
print(result.outcome, result.n, len(compiled.buffer))
"""
KNOBS = {"constant": "100", "factor": "1", "fee": "n * factor", "default": "0", "check": ""}
CHANGES = {
    "a constant": ({"constant": "200"}, 10, "committed 212"),
    "a called function": ({"fee": "n * factor + 3"}, 10, "committed 115"),
    "a default parameter of a called function": ({"factor": "5"}, 10, "committed 120"),
    "a member of a module": ({}, 50, "committed 152"),
    "a default in the declaration": ({"default": "7"}, 10, "committed 119"),
    "a check in the declaration": ({"check": ', check="n < 100"'}, 10, "aborted None"),
}


def run(folder: Path, step: int = 10, **knobs: str) -> str:
    """Run the program in a process of its own; prints outcome, n and how much was compiled."""
    (folder / "rates.py").write_text(f"STEP = {step}\n")
    (folder / "program.py").write_text(PROGRAM.format(**{**KNOBS, **knobs}))
    source = str(Path(headgate.__file__).resolve().parents[1])
    finished = subprocess.run(
        [sys.executable, "-B", "program.py"],
        cwd=folder,
        env={**os.environ, "HEADGATE_CACHE": str(folder / "cache"), "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose cache holds the kernel of the unchanged program."""
    folder = tmp_path_factory.mktemp("cache")
    outcome, n, compiled = run(folder).split()
    assert (outcome, n) == ("committed", "112") and int(compiled) > 0
    return folder


def test_a_second_process_compiles_nothing(warm: Path) -> None:
    assert run(warm) == "committed 112 0"


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_is_compiled_anew(warm: Path, what: str) -> None:
    knobs, step, expected = CHANGES[what]
    assert run(warm, step, **knobs).rpartition(" ")[0] == expected


def test_without_a_folder_to_write_to_it_works_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert run(tmp_path).startswith("committed 112")


# --- fingerprints ---------------------------------------------------------------------------------

SOURCE = """
import enum
import functools
import numba
import numpy as np
import package

NUMBER = 1
TEXT = "a"
PAIR = (1, (2, "b"))
ARRAY = np.array([1, 2])

class Kind(enum.IntEnum):
    LARGE = 1

@numba.njit
def compiled(n):
    return n + 1

def inner(n):
    return n + 1

def helper(n, step=1, *, scale=1):
    return inner(n) * step * scale

def make():
    hidden = 1
    def function(event):
        a = helper(event.n) + NUMBER + compiled(1)
        b = PAIR[0] + ARRAY[0] + Kind.LARGE + package.inside.DEEP
        return a + b + hidden + (lambda n: n + 1)(a), TEXT, 1.0, {1: 1}
    return function

function = make()
"""
VARIANTS = {
    "a number": ("NUMBER = 1", "NUMBER = 2"),
    "a number's type": ("NUMBER = 1", "NUMBER = 1.0"),
    "a text": ('TEXT = "a"', 'TEXT = "b"'),
    "a part of a tuple": ('(1, (2, "b"))', '(1, (2, "c"))'),
    "an array": ("np.array([1, 2])", "np.array([1, 3])"),
    "an enumeration": ("LARGE = 1", "LARGE = 2"),
    "a function compiled by the user": (
        "def compiled(n):\n    return n + 1",
        "def compiled(n):\n    return n",
    ),
    "a function two calls away": (
        "def inner(n):\n    return n + 1",
        "def inner(n):\n    return n + 2",
    ),
    "a default parameter": ("step=1", "step=2"),
    "a default by keyword": ("scale=1", "scale=2"),
    "a closure": ("hidden = 1", "hidden = 2"),
    "a literal": ("1.0, {1: 1}", "2.0, {1: 1}"),
    "a lambda inside": ("lambda n: n + 1", "lambda n: n + 2"),
}


def fingerprint(source: str, deep: int = 1) -> str | None:
    inside = types.ModuleType("package.inside")
    inside.DEEP = deep  # type: ignore[attr-defined]
    package = types.ModuleType("package")
    package.inside = inside  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "package", package)
        scope = {"__name__": "user_program"}
        exec(source, scope)
    return cache.fingerprint(scope["function"])


def test_the_same_program_has_the_same_fingerprint() -> None:
    assert fingerprint(SOURCE) is not None
    assert fingerprint(SOURCE) == fingerprint(SOURCE.replace("import enum", "import enum  # again"))


@pytest.mark.parametrize("what", VARIANTS)
def test_a_change_of_anything_it_refers_to_changes_the_fingerprint(what: str) -> None:
    old, new = VARIANTS[what]
    assert SOURCE.count(old) == 1
    assert fingerprint(SOURCE.replace(old, new)) != fingerprint(SOURCE)


def test_a_member_of_a_module_in_a_package_counts() -> None:
    assert fingerprint(SOURCE, deep=2) != fingerprint(SOURCE)


def test_what_cannot_be_fingerprinted_is_not_cached() -> None:
    scope = {"__name__": "user_program", "thing": object()}
    exec("def function(event):\n    return thing", scope)
    assert cache.fingerprint(scope["function"]) is None


def test_a_constant_from_another_file_counts() -> None:
    """It is in the compiled code: code that was made with another value must not be found."""
    found = sources.files_of(versions.found.py_func)
    assert {frame.__file__, versions.__file__} <= found


def test_the_folder_is_the_chosen_one_or_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_CACHE", "/chosen")
    assert cache_folder() == Path("/chosen")
    monkeypatch.delenv("HEADGATE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/users/cache")
    assert cache_folder() == Path("/users/cache/headgate")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/.cache/headgate")
