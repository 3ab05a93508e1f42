"""Display: how values look in a notebook: an HTML table, escaped, of bounded rows and columns.

Whatever stands in a cell is text to the page, never markup: rows hold what strangers sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any

ROWS_MAX = 20
COLUMNS_MAX = 20
CELL_CHARACTERS_MAX = 80
_RIGHT = "text-align: right"


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a line above it; no more of the rows is taken than is shown.

    >>> html_table("<2 rows>", ["id"], [(1,), ("<b>",)]).count("&lt;")
    2
    """
    shown = [*heads[:COLUMNS_MAX], *(["…"] if len(heads) > COLUMNS_MAX else [])]
    head = "".join(f"<th>{escape(text(name))}</th>" for name in shown)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in islice(rows, ROWS_MAX))
    return (
        f"<div><p>{escape(caption)}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[Any]) -> str:
    found = []
    for value in row[:COLUMNS_MAX]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        style = f' style="{_RIGHT}"' if is_number else ""
        found.append(f"<td{style}>{escape(text(value))}</td>")
    return "".join(found) + ("<td>…</td>" if len(row) > COLUMNS_MAX else "")


def text(value: Any) -> str:
    """A value in few enough characters for a cell or a line.

    >>> text("x" * 100)[-3:]
    'xx…'
    """
    if value is None:
        return "null"
    whole = value if isinstance(value, str) else str(value)
    return whole if len(whole) <= CELL_CHARACTERS_MAX else whole[: CELL_CHARACTERS_MAX - 1] + "…"


def names(found: Sequence[str]) -> str:
    """Names in one line, the first of them when there are many.

    >>> names([str(number) for number in range(30)])[-21:]
    '18, 19, … (30 in all)'
    """
    if len(found) <= COLUMNS_MAX:
        return ", ".join(map(text, found))
    return f"{', '.join(map(text, found[:COLUMNS_MAX]))}, … ({len(found)} in all)"


def counted(count: int, what: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
