"""The public names are typed in full, and a user's program is checked against them.

pyright judges every public name and member; mypy, in strict mode, finds nothing in a program that
uses them well and each mistake in one that does not.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate import testing
from tests.unit.typed import program

ROOT = Path(__file__).resolve().parents[2]
TYPED = ROOT / "tests" / "unit" / "typed"
# What the public functions hand out, beside the public names themselves.
HANDED_OUT = (
    "headgate.web.client.Client",
    "headgate.spark.sink.Sink",
    "headgate.engine.calls.calling.Call",
    "headgate.parallel.figures.Figures",
    "headgate.parallel.decision.Decision",
    "headgate.state.schema.Schema",
    "headgate.state.types.Column",
    "headgate.state.types.ColumnType",
)


def homes() -> list[str]:
    """Where each public name is defined, dotted in full."""
    found = [getattr(hg, name) for name in hg.__all__]
    found += [getattr(testing, name) for name in testing.__all__]
    return [*(f"{one.__module__}.{one.__qualname__}" for one in found), *HANDED_OUT]


def complaints(symbols: list[dict[str, Any]], names: list[str]) -> list[str]:
    """What pyright says of these names and their members, where a type is not known in full."""
    found = []
    for symbol in symbols:
        name = symbol["name"]
        if not any(name == home or name.startswith(f"{home}.") for home in names):
            continue
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]:
            told = "; ".join(one["message"] for one in symbol["diagnostics"])
            found.append(f"{name}: {told or 'one of its members'}")
    return found


def test_every_public_name_and_member_is_typed_in_full() -> None:
    command = [sys.executable, "-m", "pyright", "--verifytypes", "headgate", "--ignoreexternal"]
    finished = subprocess.run(
        [*command, "--pythonpath", sys.executable, "--outputjson"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(finished.stdout)["typeCompleteness"]
    known = {symbol["name"] for symbol in report["symbols"]}
    assert [home for home in homes() if home not in known] == []
    assert complaints(report["symbols"], homes()) == []


def test_a_name_without_its_type_would_be_told() -> None:
    good = {"name": "a.B", "isTypeKnown": True, "isTypeAmbiguous": False, "diagnostics": []}
    told = [{"message": "Type is missing"}]
    bad = {"name": "a.B.c", "isTypeKnown": False, "isTypeAmbiguous": False, "diagnostics": told}
    assert complaints([good, bad], ["a.B"]) == ["a.B.c: Type is missing"]
    assert complaints([good, bad], ["a.D"]) == []


def judged(name: str) -> list[tuple[int, str]]:
    """What mypy says of one of the files, as a user with no settings of his own runs it."""
    cache = ROOT / ".mypy_cache" / "users"
    finished = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", name],
        cwd=TYPED,
        env={key: value for key, value in os.environ.items() if not key.startswith("MYPY")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stderr == ""
    found = re.findall(rf"^{name}:(\d+): error: (.*)$", finished.stdout, re.MULTILINE)
    return [(int(line), words) for line, words in found]


def test_a_typed_program_passes_in_strict_mode() -> None:
    assert judged("program.py") == []


def test_every_mistake_is_told_at_its_line_and_nothing_else() -> None:
    lines = (TYPED / "mistakes.py").read_text().splitlines()
    wanted = {
        number: line.partition("# E: ")[2]
        for number, line in enumerate(lines, start=1)
        if "# E: " in line
    }
    found = dict(judged("mistakes.py"))
    assert sorted(found) == sorted(wanted)
    assert {n: told for n, told in found.items() if not told.startswith(wanted[n])} == {}


def test_a_typed_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row[0] for row in program.main()] == [0, 1, 3]
    assert "did you mean 'transfer'?" in capsys.readouterr().out


# --- the names themselves -------------------------------------------------------------------------


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(hg.__path__[0]) / "py.typed").exists()


def test_dir_names_what_is_public_and_all_of_it_is_there() -> None:
    assert set(hg.__all__) | {"errors", "testing", "__version__"} <= set(dir(hg))
    assert [name for name in dir(hg) if not hasattr(hg, name)] == []
    assert [name for name in dir(hg) if name.startswith("_") and not name.startswith("__")] == []


def test_an_unknown_name_is_an_error_that_names_the_one_that_is_meant() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Tabel'; did you mean 'Table'\?"):
        _ = hg.Tabel  # type: ignore[attr-defined]


def test_every_public_class_and_function_says_what_it_is() -> None:
    found = [getattr(hg, name) for name in hg.__all__]
    found += [
        member
        for one in found
        if inspect.isclass(one)
        for name, member in inspect.getmembers(one, callable)
        if name in vars(one) and not name.startswith("_")
    ]
    assert [one.__qualname__ for one in found if not inspect.getdoc(one)] == []


def test_the_handed_out_are_there() -> None:
    for dotted in HANDED_OUT:
        module, _, name = dotted.rpartition(".")
        assert inspect.isclass(getattr(importlib.import_module(module), name))
