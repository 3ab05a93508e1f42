"""Answers on a terminal: what stands in a store is shown there, never obeyed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli import output
from headgate.cli.commands import app
from headgate.cli.output import Format, say_error

EVIL = "ok\x1b]0;owned\x07\x1b[2Jx\x9b31m\r\x7f\u202egpj[bold]b[/bold]\ny"
table = hg.Table("notes", "id bigint, text string", key="id")


@hg.transaction(event="id bigint, text string", compiled=False)
def note(event: Any, row: Any = table.at("id", create=True)) -> Any:
    if event.id < 0:
        return hg.abort("a reason of its own \x1b[31m")
    row.text = event.text


class Screen(io.TextIOWrapper):
    """A standard output that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        self.flush()
        found = self.buffer
        assert isinstance(found, io.BytesIO)
        return found.getvalue().decode()


def is_harmless(text: str) -> bool:
    obeyed = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\r", "\x7f", "\u202e")
    return not any(one in text for one in obeyed)


@pytest.mark.parametrize("form", [Format.table, Format.json, Format.csv])
def test_what_a_terminal_would_obey_is_written_out(
    monkeypatch: pytest.MonkeyPatch, form: Format
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    output.write(pa.table({f"name{EVIL}": [EVIL, None]}), form)
    shown = screen.shown()
    assert is_harmless(shown), repr(shown)
    assert "x1b" in shown or "u001b" in shown
    assert "[bold]b[/bold]" in shown


def test_a_pipe_gets_the_text_as_it_is(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    output.write(pa.table({"a": [EVIL]}), Format.json)
    sys.stdout.flush()
    assert json.loads(capfdbinary.readouterr().out) == [{"a": EVIL}]
    output.write(pa.table({"a": [EVIL]}), Format.csv)
    sys.stdout.flush()
    assert EVIL.encode() in capfdbinary.readouterr().out


def test_commands_show_the_texts_of_a_store_escaped(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with hg.open(path, tables=[table], transactions=[note]) as engine:
        engine.call(note, id=1, text=EVIL)
        engine.call(note, id=-1, text="")
    for arguments in (
        ["sql", path, "select * from notes"],
        ["sql", path, "select reason from results"],
        ["log", path],
        ["tables", path],
        ["verify", path],
    ):
        found = CliRunner().invoke(app, arguments)
        assert found.exit_code == 0, found.output
        assert is_harmless(found.output) and "\x1b" not in found.output, arguments


def test_an_error_is_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(f"no column {EVIL}")
    assert is_harmless(capsys.readouterr().err)


def test_plain_text_stays_as_it_is() -> None:
    assert output.visible("Zoë said “hi” → 5 €, 日本語") == "Zoë said “hi” → 5 €, 日本語"


@pytest.mark.parametrize("form", [Format.table, Format.json, Format.csv])
def test_a_time_that_python_has_not_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, form: Format
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    days = pa.array([-735_000, 0], pa.date32())
    output.write(pa.table({"day": days, "n": [7, 8]}), form)
    assert all(text in screen.shown() for text in ("-0043", "1970-01-01", "7"))
