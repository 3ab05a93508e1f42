"""The SQL shell: over a pipe, in a line editor, and on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from headgate.cli.output import Format
from headgate.cli.shell import Shell, _talk, make_session, split
from headgate.errors import InputError

ROOT = Path(__file__).resolve().parents[3]


def tell(shell: Shell, *lines: str) -> None:
    for line in lines:
        shell.read(line)


def test_a_query_takes_lines_until_its_semicolon(
    bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(bank, Format.json)
    tell(shell, "select count(*)", "  as n from accounts")
    assert shell.is_waiting
    assert capsys.readouterr().out == ""
    tell(shell, "; select 'a;b' as t; select 1 -- ;")
    assert capsys.readouterr().out == '[{"n": 5}]\n[{"t": "a;b"}]\n'
    assert shell.is_waiting
    shell.forget()
    assert not shell.is_waiting


@pytest.mark.parametrize(
    ("text", "ended", "rest"),
    [
        ("", [], ""),
        ("select 1", [], "select 1"),
        ("select 1;", ["select 1"], ""),
        ("select ';'; x", ["select ';'"], " x"),
        ("select ';", [], "select ';"),
        ('select ";"', [], 'select ";"'),
        ("select $$;$$; ", ["select $$;$$"], " "),
        ("select 'é'; select 'ü';", ["select 'é'", " select 'ü'"], ""),
        ("select 1 /* ; */", [], "select 1 /* ; */"),
    ],
)
def test_only_a_real_semicolon_ends_a_query(text: str, ended: list[str], rest: str) -> None:
    assert split(text) == (ended, rest)


def test_the_commands_describe_and_choose(bank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(bank, Format.csv)
    tell(shell, "\\d")
    listed = capsys.readouterr().out
    assert "accounts" in listed and "owners" in listed and "results of transfer" in listed
    tell(shell, "\\d accounts", "\\d results")
    described = capsys.readouterr().out
    assert "balance" in described and "check: balance >= 0" in described
    assert "outcome" in described
    tell(shell, "\\epoch 1", "select balance from accounts where id = 0;")
    assert capsys.readouterr().out.endswith('"balance"\n100\n')
    tell(shell, "\\epoch newest", "select balance from accounts where id = 0;")
    assert capsys.readouterr().out.endswith('"balance"\n70\n')
    tell(shell, "\\timing on", "select 1;")
    assert "1 row at epoch 5, " in capsys.readouterr().out
    tell(shell, "\\h", "\\q")
    assert "\\timing" in capsys.readouterr().out
    assert shell.is_done


def test_what_goes_wrong_is_said_and_the_shell_goes_on(
    bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(bank, Format.csv)
    wrong = ["select * from nothing;", "drop table accounts;", "\\x", "\\d nothing", "\\epoch 99"]
    tell(shell, *wrong, "copy accounts to 'x.csv';", "\\timing maybe")
    said = capsys.readouterr().err
    assert said.count("error:") == 7
    assert "Traceback" not in said
    tell(shell, "select 1 as n;")
    assert capsys.readouterr().out == '"n"\n1\n'


def test_no_shell_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no store"):
        Shell(tmp_path / "nothing")


def test_tables_columns_and_words_are_completed(
    bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HISTORY", str(tmp_path / "history"))
    completer = make_session(Shell(bank), output=DummyOutput()).completer
    assert completer is not None

    def complete(text: str) -> set[str]:
        found = completer.get_completions(Document(text), CompleteEvent())
        return {one.text for one in found}

    assert "accounts" in complete("select * from acc")
    assert "balance" in complete("select bal")
    assert "select" in complete("SEL")
    assert "reason" in complete("select rea")


def test_the_editor_keeps_its_history(
    bank: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADGATE_HISTORY", str(tmp_path / "history"))
    with create_pipe_input() as keys:
        keys.send_text("select count(*) as n from accounts;\r")
        keys.send_text("\\q\r")
        shell = Shell(bank, Format.json)
        _talk(shell, make_session(shell, input=keys, output=DummyOutput()))
    assert '[{"n": 5}]' in capsys.readouterr().out
    with create_pipe_input() as keys:
        keys.send_text("\x1b[A\x1b[A\r")  # twice up: the query of the session before
        keys.send_text("\x04")
        shell = Shell(bank, Format.json)
        _talk(shell, make_session(shell, input=keys, output=DummyOutput()))
    assert '[{"n": 5}]' in capsys.readouterr().out


def command(bank: Path) -> list[str]:
    return [sys.executable, "-m", "headgate.cli", "sql", str(bank)]


def environment(tmp_path: Path) -> dict[str, str]:
    history = str(tmp_path / "history")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "HEADGATE_HISTORY": history, "PYTHONPATH": path, "TERM": "xterm"}


def test_a_pipe_is_read_to_its_end(bank: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*command(bank), "--format", "csv"],
        input="select sum(balance) as total\nfrom accounts;\nselect 2 as n",
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '"total"\n500\n"n"\n2\n'
    assert not (tmp_path / "history").exists()


def test_on_a_real_terminal_it_prompts_answers_and_leaves(bank: Path, tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        command(bank), stdin=theirs, stdout=theirs, stderr=theirs, env=environment(tmp_path)
    )
    os.close(theirs)
    try:
        read_until(terminal, "headgate>")
        os.write(terminal, b"select 6 * 7 as answer;\r")
        assert "42" in read_until(terminal, " ms")
        os.write(terminal, b"\\q\r")
        process.wait(60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait(30)
        os.close(terminal)
    assert "select 6 * 7 as answer;" in (tmp_path / "history").read_text()


def read_until(terminal: int, text: str) -> str:
    """What the program wrote, up to a text; prompt_toolkit asks where the cursor is on the way."""
    found = ""
    while text not in found:
        ready, _, _ = select.select([terminal], [], [], 120)
        assert ready, f"no {text!r} in {found!r}"
        found += os.read(terminal, 4096).decode(errors="replace")
        if found.endswith("\x1b[6n"):
            os.write(terminal, b"\x1b[1;1R")
    return found
