"""Functions that kernels call where they are: compiled once, and found under the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headgate
from headgate.state import apart, entry_looks
from headgate.state.compiled import compiled_apart, kernel_of, linked


@compiled_apart
def halved(number: int) -> int:
    if number % 2:
        raise ValueError("odd", number)
    return number // 2


@linked
def quartered(number: int) -> int:
    return halved(halved(number))


def quarter(number: int) -> int:
    return quartered(number) + 1


def eighth(number: int) -> int:
    return quartered(halved(number))


def test_kernels_call_it_however_deep_and_do_not_take_it_in() -> None:
    one, other = kernel_of(quarter, False), kernel_of(eighth, False)
    assert (one(12), other(24)) == (4, 3)
    (made,) = halved.overloads.values()
    symbol = made.fndesc.mangled_name
    for found in (one, other):
        (around,) = found.overloads.values()
        functions = {each.name: each for each in around.library._final_module.functions}
        assert functions[symbol].is_declaration
        assert [each.symbol for each in around.library.headgate_calls] == [symbol]


def test_an_error_keeps_the_values_that_it_was_raised_with() -> None:
    with pytest.raises(ValueError, match="odd") as caught:
        kernel_of(quarter, False)(14)
    assert caught.value.args == ("odd", 7)


def numbered(monkeypatch: pytest.MonkeyPatch, *versions: Any) -> Any:
    """The number that a function has in a process that begins."""
    monkeypatch.setattr(apart, "_numbers", set())
    function = SimpleNamespace(func_qualname="f", unique_id=7, unique_name="f$7")
    apart.give_number(SimpleNamespace(func_id=function, args=()), versions)
    return function.unique_id


def test_its_name_says_what_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    first = numbered(monkeypatch, "1.0", "sources")
    assert first != 7 and first == numbered(monkeypatch, "1.0", "sources")
    assert first != numbered(monkeypatch, "1.0", "other sources")
    assert first != numbered(monkeypatch, "1.1", "sources")
    assert numbered(monkeypatch, "1.0", None) == 7  # nobody knows: Numba's count will do


def test_a_kernel_is_taken_only_with_what_it_was_compiled_with() -> None:
    entry_looks.scan_one.compile("(int64,int64,int64,int64,int64,int64,int64,int64)")
    (found,) = entry_looks.scan.overloads.values()
    name, arguments = found.fndesc.mangled_name, tuple(found.signature.args)
    called = apart.CalledApart(entry_looks.__name__, "scan", arguments, name)
    assert apart.are_there((called,))
    assert not apart.are_there(
        (apart.CalledApart(entry_looks.__name__, "scan", arguments, "other"),)
    )


def test_under_a_name_of_one_process_alone_it_is_not_kept() -> None:
    halved.compile("(int64,)")
    again = compiled_apart(halved.py_func)  # its name is taken here: it has Numba's count
    again.compile("(int64,)")
    (first,), (second,) = halved.overloads.values(), again.overloads.values()
    assert first.fndesc.mangled_name != second.fndesc.mangled_name
    assert apart.may_be_kept(first) and not apart.may_be_kept(second)


# --- real processes -------------------------------------------------------------------------------

PROGRAM = """
import numba.core.event as event

compiled = event.RecordingListener()
event.register("numba:compile", compiled)

import headgate as hg
from headgate.kernels import generating

generating.TAKEN_IN_MAX = 0  # each generated function is compiled by itself

accounts = hg.Table("accounts", "id bigint, n bigint", key="id", check="n >= 0")

@hg.transaction(event="id bigint, n bigint")
def add(event, row=accounts.at("id", create=True), out=hg.output("n bigint")):
    if event.n == 13:
        return hg.abort("unlucky")
    row.n += 100 // event.n
    out.n = row.n

engine = hg.open(None, tables=[accounts], transactions=[add])
events = [{"id": n % 3, "n": n - 4} for n in range(20)]
rows = engine.run(add, events).to_pylist()
print([(row["outcome"], row["reason"], row["n"]) for row in rows], len(compiled.buffer), sep="|")
"""


def ran(folder: Path) -> list[str]:
    source = str(Path(headgate.__file__).resolve().parents[1])
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "HEADGATE_CACHE": str(folder / "cache"), "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


def test_from_the_disk_it_comes_with_its_kernels_and_alone_it_is_made_anew(tmp_path: Path) -> None:
    rows, first = ran(tmp_path)
    assert "committed" in rows and "aborted" in rows and "unlucky" in rows and int(first) > 0
    assert ran(tmp_path) == [rows, "0"]
    lost = [one for one in (tmp_path / "cache").rglob("*.code") if one.name.startswith("step_0")]
    assert len(lost) == 1
    lost[0].unlink()
    again = ran(tmp_path)
    assert again[0] == rows and 0 < int(again[1]) < int(first)
