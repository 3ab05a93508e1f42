"""Looks: the ranges that the events of a batch look at, told and drawn beside its graph.

A range covers the rows that it finds, and the places between its bounds where rows may come to
stand: an event before it that may move rows of the index may let one in or out. Under the graph
each index has an axis of all bounds that the batch has there, and each look a bar over its stretch.
Nothing runs: rows are counted as the tables are now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from headgate.execution.interpreter import EventView
from headgate.execution.run import Run, Work
from headgate.kernels.generating_look_ups import may_move
from headgate.state.display import counted
from headgate.state.ranges import RowRange
from headgate.state.table import Access

LOOKS_MAX = 60  # drawn; the others are counted
MARGIN, LINE, AXIS, LETTER = 16, 18, 240, 6.6
_MOMENTS = {"timestamp": "datetime64[us]", "date": "datetime64[D]"}


@dataclass(frozen=True)
class Look:
    """One range of one event: from `low` to `high` by some columns of an index."""

    transaction: int  # the position of its event
    parameter: str
    index: str
    low: tuple[Any, ...]
    high: tuple[Any, ...]
    rows: int
    is_written: bool  # whether its rows may be written
    movers: int  # events before it that may move rows of the index

    def __str__(self) -> str:
        """It in one line.

        >>> print(Look(3, "dear", "index orders: total", (1,), (9,), 2, False, 1))
        3 dear: index orders: total from 1 to 9, 2 rows read; 1 event before it may move rows there
        """
        done = "read and written" if self.is_written else "read"
        text = f"{self.transaction} {self.parameter}: {self.index} {self.stretch}, "
        text += f"{counted(self.rows, 'row')} {done}"
        moved = counted(self.movers, "event")
        return f"{text}; {moved} before it may move rows there" if self.movers else text

    @property
    def stretch(self) -> str:
        """From where to where it goes."""
        low, high = (", ".join(map(str, bound)) for bound in (self.low, self.high))
        return f"at {low}" if low == high else f"from {low} to {high}"


def find_looks(run: Run) -> tuple[Look, ...]:
    """All looks of a batch whose rows were found, by position."""
    found = []
    for position, row in enumerate(run.order.tolist()):
        work = run.works[int(run.route[row])]
        for place, access in enumerate(work.signature.accesses):
            if access.span is not None:
                found.append(_look(run, work, place, access, access.span, position, row))
    return tuple(found)


def _look(
    run: Run, work: Work, place: int, access: Access, span: RowRange, position: int, row: int
) -> Look:
    event = EventView(work.signature.event, dict(work.columns), row, run.program.pool)
    values = [_shown(getattr(event, name), column.type.kind) for name, column in access.named]
    moves = [may_move(one, access.table, span.index) for one in run.program.signatures]
    before = run.route[run.order[:position]]
    return Look(
        position, work.signature.row_names[place], span.index.name,
        tuple(values[: span.count]), tuple(values[-span.count :]),
        int(work.spans[place].lengths[row]), not access.read_only,
        int(np.count_nonzero(np.array(moves)[before])),
    )  # fmt: skip


def _shown(value: Any, kind: str) -> Any:
    return np.int64(value).astype(_MOMENTS[kind]) if kind in _MOMENTS else value


# --- as a picture ---------------------------------------------------------------------------------


def looks_height(looks: Sequence[Look]) -> float:
    """How high the drawing of these is."""
    lines = min(len(looks), LOOKS_MAX) + len({look.index for look in looks[:LOOKS_MAX]})
    lines += len(looks) > LOOKS_MAX
    return float(lines * LINE + MARGIN) if looks else 0.0


def draw_looks(looks: Sequence[Look], top: float, colours: Sequence[str]) -> list[str]:
    """The looks by index, each a bar from its low to its high bound; `colours` by transaction."""
    parts, y = [], top + LINE
    shown = looks[:LOOKS_MAX]
    for index in dict.fromkeys(look.index for look in shown):
        mine = [look for look in shown if look.index == index]
        parts.append(
            f'<text class="axis" x="{MARGIN}" y="{y:g}">{escape(index, quote=False)}</text>'
        )
        bounds = sorted({_place(one) for look in mine for one in (look.low, look.high)})
        step = AXIS / len(bounds)
        for look in mine:
            y += LINE
            first, last = (bounds.index(_place(one)) for one in (look.low, look.high))
            parts += _bar(look, MARGIN + first * step, (last + 1 - first) * step, y, colours)
        y += LINE
    if len(looks) > LOOKS_MAX:
        more = counted(len(looks) - LOOKS_MAX, "range")
        parts.append(f'<text x="{MARGIN}" y="{y:g}">and {more} more</text>')
    return parts


def _bar(look: Look, x: float, width: float, y: float, colours: Sequence[str]) -> list[str]:
    """One look; nothing is between a low bound and a high one below it."""
    colour, dash = colours[look.transaction], ' stroke-dasharray="4 2"' if look.movers else ""
    told = escape(str(look), quote=False)
    return [
        f'<g class="look" data-transaction="{look.transaction}"><title>{told}</title>'
        f'<rect x="{x:g}" y="{y - 11:g}" width="{max(width, 1.0):g}" height="13" rx="3" '
        f'fill="{colour}" fill-opacity=".28" stroke="{colour}"{dash}/>'
        f'<text x="{MARGIN + AXIS + 12:g}" y="{y:g}">{told}</text></g>'
    ]


def looks_width(looks: Sequence[Look]) -> float:
    """How wide the drawing of these is."""
    longest = max((len(str(look)) for look in looks[:LOOKS_MAX]), default=0)
    return MARGIN + AXIS + 12 + longest * LETTER + MARGIN if looks else 0.0


def _place(bound: Sequence[Any]) -> tuple[Any, ...]:
    """Where a bound stands among others: NaN is the last."""
    return tuple((value != value, 0 if value != value else value) for value in bound)
