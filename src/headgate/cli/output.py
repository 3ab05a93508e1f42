"""Answers on the screen or in a pipe: a table to read, or JSON, CSV or Arrow to go on with."""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from headgate.errors import InputError
from headgate.query.answer import shown_values

ROWS_SHOWN_MAX = 200
PIPE_COLUMNS = 1000


class Format(StrEnum):
    """How an answer is written."""

    table = "table"
    json = "json"
    csv = "csv"
    arrow = "arrow"


def make_console() -> Console:
    """A console on standard output; in a pipe it is wide, so that nothing is cut or wrapped."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def visible(text: str) -> str:
    """A text with every character that a terminal would obey written out.

    >>> visible("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# The controls of C0 and C1, delete, and what turns the direction of the text around.
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class _Grid(Grid):
    """A table whose texts are shown as they are: no markup, nothing that a terminal obeys."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        plain = (Text(visible(cell)) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, **options)


def make_grid(title: str | None, columns: Mapping[str, str]) -> Grid:
    """An empty table with these columns and their sides, "left" or "right"."""
    head = None if title is None else Text(visible(title))
    grid = _Grid(box=box.SIMPLE_HEAD, title=head, title_justify="left", title_style="bold")
    for name, side in columns.items():
        grid.add_column(Text(visible(name)), justify="right" if side == "right" else "left")
    return grid


def write(answer: pa.Table, form: Format) -> None:
    """Write the answer of a query to standard output."""
    WRITERS[form](answer)


def _write_table(answer: pa.Table) -> None:
    sides = {field.name: "right" if _is_number(field.type) else "left" for field in answer.schema}
    grid = make_grid(None, sides)
    shown = answer.slice(0, ROWS_SHOWN_MAX)
    for row in zip(*map(shown_values, shown.columns), strict=True):
        grid.add_row(*(_cell(value) for value in row))
    console = make_console()
    console.print(grid)
    rest = answer.num_rows - shown.num_rows
    if rest:
        console.print(f"… and {rest:,} more rows; --format csv writes them all", style="dim")


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", "dim")
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return Text(value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC"))
    return Text(visible(str(value)))


def _write_json(answer: pa.Table) -> None:
    """One array, a row on each line: both a JSON document and easy to cut by lines."""
    names, rows = answer.column_names, zip(*map(shown_values, answer.columns), strict=True)
    objects = [_plain(dict(zip(names, row, strict=True))) for row in rows]
    lines = [json.dumps(row, ensure_ascii=False) for row in objects]
    if sys.stdout.isatty():
        lines = [visible(line) for line in lines]
    sys.stdout.write("[" + ",\n ".join(lines) + "]\n")


def _plain(value: Any) -> Any:
    """A value that JSON has; a decimal is a number where a number can hold it exactly."""
    if isinstance(value, Decimal):
        if value == value.to_integral_value():
            return int(value)
        return float(value) if Decimal(repr(float(value))) == value else str(value)
    if isinstance(value, float) and value - value != 0:  # infinite or not a number
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _write_csv(answer: pa.Table) -> None:
    sys.stdout.flush()
    if not sys.stdout.isatty():
        pyarrow.csv.write_csv(answer, _binary_output())
        return
    written = pa.BufferOutputStream()
    pyarrow.csv.write_csv(answer, written)
    text = written.getvalue().to_pybytes().decode(errors="backslashreplace")
    sys.stdout.write("".join(f"{visible(line)}\n" for line in text.split("\n")[:-1]))


def _write_arrow(answer: pa.Table) -> None:
    if sys.stdout.isatty():
        raise InputError("Arrow is not for a screen; send it to a file with > rows.arrow")
    with pa.ipc.new_stream(_binary_output(), answer.schema) as stream:
        stream.write_table(answer)


def _binary_output() -> BinaryIO:
    return sys.stdout.buffer


WRITERS: Mapping[Format, Callable[[pa.Table], None]] = {
    Format.table: _write_table,
    Format.json: _write_json,
    Format.csv: _write_csv,
    Format.arrow: _write_arrow,
}


def numbers(values: Sequence[int]) -> str:
    """Ascending numbers as ranges, as in "1 to 4, 7".

    >>> numbers([1, 2, 3, 4, 7])
    '1 to 4, 7'
    """
    ranges: list[list[int]] = []
    for value in values:
        if ranges and ranges[-1][-1] == value - 1:
            ranges[-1] = [ranges[-1][0], value]
        else:
            ranges.append([value])
    return ", ".join(" to ".join(map(str, dict.fromkeys(found))) for found in ranges)


def amount_of_bytes(count: int) -> str:
    """A size for people.

    >>> amount_of_bytes(1536)
    '1.5 KiB'
    """
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def say_note(message: str) -> None:
    """One line on standard error that is no error."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(visible(message), markup=False, style="dim")


def say_error(message: str) -> None:
    """One line on standard error; what DuckDB draws below its messages is left out."""
    lines = message.partition("\n\nLINE ")[0].split("\n")
    message = " ".join(line.strip() for line in lines if line.strip())
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("[bold red]error:[/bold red]", end=" ")
    console.print(visible(message), markup=False)
