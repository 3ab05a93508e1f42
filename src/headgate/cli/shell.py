"""The shell: SQL over a store line by line, with history, completion, timing and a few commands.

It reads beside a running writer: every query sees the newest epoch, unless `\\epoch` fixes one.
What goes wrong is said in one line, and the shell goes on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from headgate.cli import output, stores
from headgate.durability import StoreReader
from headgate.errors import HeadgateError, InputError
from headgate.query.connections import shared
from headgate.query.store_tables import RESULT_COLUMNS, RESULTS, tables_of
from headgate.state.schema import Schema

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

HISTORY = Path("~/.headgate_history")
HELP = """\
\\d            the tables             \\timing       time on or off
\\d TABLE      the columns of one     \\epoch N      tables as of epoch N, "newest" for now
\\h            this list              \\q            leave
A query ends with ; and may take several lines. "results" holds the results of transactions."""


class Shell:
    """One store, and what the user has chosen so far."""

    def __init__(self, path: Path, form: output.Format = output.Format.table) -> None:
        self._path = path
        self._form = form
        self.epoch: int | None = None
        self.is_timing = False
        self.is_done = False
        self._pending = ""
        stores.require_store(path)

    @property
    def is_waiting(self) -> bool:
        """Whether a query was begun and not ended."""
        return bool(self._pending)

    def store(self) -> StoreReader:
        """The store as it is declared now."""
        return StoreReader.open(self._path)

    def read(self, line: str) -> None:
        """Take one line: a command, or a part of a query; run the query that it ends."""
        if not self._pending and line.strip().startswith("\\"):
            self._attempt(lambda: self._command(line.split()))
            return
        if not self._pending and line.strip().lower().rstrip(";") in ("quit", "exit"):
            self.is_done = True
            return
        ended, self._pending = split(f"{self._pending}\n{line}" if self._pending else line)
        if not self._pending.strip():
            self._pending = ""
        for text in ended:
            self._run(text)

    def finish(self) -> None:
        """Run what was begun, though nothing ends it."""
        text, self._pending = self._pending, ""
        self._run(text)

    def forget(self) -> None:
        """Drop what was begun."""
        self._pending = ""

    def _run(self, text: str) -> None:
        if text.strip():
            self._attempt(lambda: self._query(text))

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except HeadgateError as error:
            sys.stdout.flush()
            output.say_error(str(error))

    def _query(self, text: str) -> None:
        began = time.perf_counter()
        answer = stores.ask(self._path, text, self.epoch, None)
        seconds = time.perf_counter() - began
        table = answer.arrow()
        output.write(table, self._form)
        if self.is_timing:
            rows = f"{table.num_rows:,} {'row' if table.num_rows == 1 else 'rows'}"
            print(f"{rows} at epoch {answer.epoch}, {seconds * 1000:,.1f} ms")

    def _command(self, words: list[str]) -> None:
        name, given = words[0], words[1:]
        if name in ("\\q", "\\quit"):
            self.is_done = True
        elif name in ("\\h", "\\?", "\\help"):
            print(HELP)
        elif name == "\\timing":
            self._set_timing(given)
        elif name == "\\epoch":
            self._set_epoch(given)
        elif name == "\\d":
            self._describe(given[0]) if given else self._list()
        else:
            raise InputError(f"no command {name}; \\h lists them")

    def _set_timing(self, given: list[str]) -> None:
        if given and given[0] not in ("on", "off"):
            raise InputError("write \\timing on, \\timing off, or \\timing")
        self.is_timing = given[0] == "on" if given else not self.is_timing
        print(f"timing is {'on' if self.is_timing else 'off'}")

    def _set_epoch(self, given: list[str]) -> None:
        store = self.store()
        first, last = store.first_epoch(), store.last_epoch()
        if not given:
            where = "the newest" if self.epoch is None else str(self.epoch)
            print(f"queries see epoch {where}; the store has {first} to {last}")
        elif given[0] in ("newest", "latest"):
            self.epoch = None
            print(f"queries see the newest epoch, now {last}")
        elif not given[0].isdigit() or not first <= int(given[0]) <= last:
            raise InputError(f"no epoch {given[0]}: the store has {first} to {last}")
        else:
            self.epoch = int(given[0])
            print(f"queries see epoch {self.epoch}")

    def _list(self) -> None:
        store = self.store()
        grid = output.make_grid(None, {"table": "left", "columns": "left", "key": "left"})
        for name, declared in tables_of(store, self.epoch).items():
            grid.add_row(name, declared["columns"], ", ".join(declared["key"]))
        for name, declared in store.declared(self.epoch).get("streams", {}).items():
            grid.add_row(f"{RESULTS} of {name}", declared["results"], "")
        output.make_console().print(grid)

    def _describe(self, name: str) -> None:
        store = self.store()
        name = name.rstrip(";")
        columns = columns_of(store, self.epoch)
        if name not in columns:
            known = ", ".join(columns) or "none"
            raise InputError(f"no table {name!r}; the tables are: {known}")
        declared = tables_of(store, self.epoch).get(name, {"key": [], "check": None})
        grid = output.make_grid(name, {"column": "left", "type": "left", "key": "left"})
        for column in columns[name]:
            is_key = column.name in declared["key"]
            grid.add_row(column.name, column.kept_as, "key" if is_key else "")
        output.make_console().print(grid)
        if declared.get("check"):
            print(output.visible(f"check: {declared['check']}"))


def columns_of(store: StoreReader, epoch: int | None = None) -> dict[str, Schema]:
    """The columns of every table, the results included, at an epoch or now."""
    tables = tables_of(store, epoch)
    found = {name: Schema.parse(one["columns"]) for name, one in tables.items()}
    streams = [one["results"] for one in store.declared(epoch).get("streams", {}).values()]
    schemas = [Schema.parse(text, structs=True) for text in [RESULT_COLUMNS, *streams]]
    results = {column.name: column for schema in schemas for column in schema}
    found.setdefault(RESULTS, Schema(tuple(results.values())))
    return found


def split(text: str) -> tuple[list[str], str]:
    """The queries that end in a text, each without its semicolon, and what is left behind them.

    A semicolon inside of a text or a comment ends nothing.

    >>> split("select 1; select ';' -- ;")
    (['select 1'], " select ';' -- ;")
    """
    content = text.encode()
    ended, first = [], 0
    for place, kind in duckdb.tokenize(text):
        if kind == duckdb.token_type.operator and content[place : place + 1] == b";":
            ended.append(content[first:place].decode())
            first = place + 1
    return ended, content[first:].decode()


def words_of(store: StoreReader) -> list[str]:
    """What may stand in a query: tables, columns, and the words of SQL."""
    columns = columns_of(store)
    names = {column.name for schema in columns.values() for column in schema}
    with shared.one() as connection:
        rows = connection.execute("select keyword_name from duckdb_keywords()").fetchall()
    return [*columns, *sorted(names - set(columns)), *sorted(str(row[0]) for row in rows)]


# ---------------------------------------------------------------- reading lines


def run(path: Path, form: output.Format, epoch: int | None) -> None:
    """A shell on the terminal, or over the lines that come in by a pipe."""
    shell = Shell(path, form)
    if epoch is not None:
        shell.read(f"\\epoch {epoch}")
    if sys.stdin.isatty():
        shell.is_timing = True
        _talk(shell, make_session(shell))
    else:
        _read_all(shell, sys.stdin)


def _read_all(shell: Shell, lines: Iterable[str]) -> None:
    for line in lines:
        shell.read(line.rstrip("\n"))
        if shell.is_done:
            return
    shell.finish()


def _talk(shell: Shell, session: PromptSession[str]) -> None:
    print("\\h lists the commands, \\q leaves; a query ends with ;")
    for line in _lines(shell, session):
        shell.read(line)
        if shell.is_done:
            return


def _lines(shell: Shell, session: PromptSession[str]) -> Iterator[str]:
    """The lines that the user types; Ctrl-C drops a query, Ctrl-D leaves."""
    while True:
        try:
            yield session.prompt(_prompt(shell))
        except KeyboardInterrupt:
            shell.forget()
        except EOFError:
            return


def _prompt(shell: Shell) -> str:
    if shell.is_waiting:
        return "     ...> "
    return "headgate> " if shell.epoch is None else f"epoch {shell.epoch}> "


def make_session(shell: Shell, **streams: Any) -> PromptSession[str]:
    """A line editor with the history of all sessions and completion for this store."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.lexers import PygmentsLexer

    sql_lexer = import_module("pygments.lexers.sql").SqlLexer  # it has no types
    history = Path(os.environ.get("HEADGATE_HISTORY", HISTORY)).expanduser()
    commands = ["\\d", "\\epoch", "\\h", "\\q", "\\timing"]
    return PromptSession(
        history=FileHistory(str(history)),
        completer=WordCompleter([*words_of(shell.store()), *commands], ignore_case=True),
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        lexer=PygmentsLexer(sql_lexer),
        **streams,
    )
