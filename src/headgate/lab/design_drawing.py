"""Drawings of designs: who uses which table and where its rows go, and what each design would do.

Plain SVG, as the other drawings are. A line is as thick as the share of looks that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from headgate.lab.designing import PROPOSED, Proposal
from headgate.lab.flow_design import DesignedFlows

WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN = 860, 300, 44, 18, 12
LINE_MAX = 14.0  # of the one most used, in pixels
BAR, LABEL = 15, 190
COLOURS = ("#2f74c0", "#d1495b", "#2b9348", "#c58a00", "#8e5bb5", "#12908e", "#e07a1f", "#7c8794")


def draw_proposal(proposal: Proposal) -> str:
    """The graph of transactions and tables, and below it a bar for each design and figure."""
    return _graph(proposal) + _bars(proposal)


def _graph(proposal: Proposal) -> str:
    trace = proposal.trace
    uses = _uses(proposal)
    most = max([1, *uses.values()])
    events = np.bincount(trace.route[trace.order], minlength=len(trace.names))
    left = {name: _middle(row) for row, name in enumerate(trace.names)}
    right = {name: _middle(row) for row, name in enumerate(trace.tables)}
    parts = [
        f'<path d="M{MARGIN + BOX_WIDTH} {left[one]} C{WIDTH // 2} {left[one]} {WIDTH // 2} '
        f'{right[table]} {WIDTH - MARGIN - BOX_WIDTH} {right[table]}" fill="none" '
        f'stroke="{COLOURS[7]}" stroke-opacity=".55" '
        f'stroke-width="{max(1.0, LINE_MAX * count / most):.1f}"><title>{escape(one)}: '
        f"{count:,} looks at {escape(table)}</title></path>"
        for (one, table), count in uses.items()
    ]
    parts += [
        _box(MARGIN, left[name], name, f"{events[number]:,} events", COLOURS[0])
        for number, name in enumerate(trace.names)
    ]
    parts += [
        _box(
            WIDTH - MARGIN - BOX_WIDTH, right[name], name,
            proposal.design.choices[name].told(table), COLOURS[2],
        )
        for name, table in trace.tables.items()
    ]  # fmt: skip
    height = _middle(max(len(left), len(right)))
    return _svg(height, "who uses which table", parts)


def _uses(proposal: Proposal) -> dict[tuple[str, str], int]:
    """How often events of a transaction name rows of a table."""
    trace, touched = proposal.trace, proposal.trace.touched
    found = {}
    for name in trace.tables:
        mine = trace.rows_of(name)
        here = (touched.rows >= mine.start) & (touched.rows < mine.stop)
        counts = np.bincount(trace.route[touched.events[here]], minlength=len(trace.names))
        found.update({
            (one, name): int(count) for one, count in zip(trace.names, counts, strict=True) if count
        })  # fmt: skip
    return found


def _middle(row: int) -> int:
    return MARGIN + row * (BOX_HEIGHT + GAP) + BOX_HEIGHT // 2


def _box(left: int, middle: int, name: str, told: str, colour: str) -> str:
    top, centre = middle - BOX_HEIGHT // 2, left + BOX_WIDTH // 2
    return (
        f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" '
        f'fill="{colour}" fill-opacity=".14" stroke="{colour}"/>'
        f'<text x="{centre}" y="{middle - 5}" text-anchor="middle" font-weight="600">'
        f'{escape(name)}</text><text x="{centre}" y="{middle + 12}" text-anchor="middle">'
        f"{escape(told)}</text>"
    )


def _bars(proposal: Proposal) -> str:
    rows = []
    for name, one in proposal.verdicts.items():
        label = f"{name}, {one.shards} shards" if one.shards > 1 else f"{name}, one process"
        rows.append((label, "cross-shard", one.cross, f"{one.cross:.1%}", COLOURS[0]))
        rows.append(("", "travelling", one.travelling, f"{one.travelling:.1%}", COLOURS[6]))
        most = max(one.loads)
        rows.append(("", "fullest node", most, f"{most:.1%} of the load", COLOURS[1]))
    first = 2 * LABEL - 60
    parts = []
    for number, (label, what, share, told, colour) in enumerate(rows):
        top = MARGIN + number * (BAR + 4) + 10 * (number // 3)
        width = share * (WIDTH - first - 140)
        weight = ' font-weight="600"' if label.startswith(PROPOSED) else ""
        parts.append(
            f'<text x="{MARGIN}" y="{top + 12}"{weight}>{escape(label)}</text>'
            f'<text x="{first - 6}" y="{top + 12}" text-anchor="end">{what}</text>'
            f'<rect x="{first}" y="{top}" width="{max(1.0, width):.1f}" height="{BAR}" '
            f'fill="{colour}"/><text x="{first + max(1.0, width) + 6:.1f}" y="{top + 12}">'
            f"{told}</text>"
        )
    height = 2 * MARGIN + len(rows) * (BAR + 4) + 10 * len(proposal.verdicts)
    return _svg(height, "what each design would do", parts)


def draw_flows(flows: DesignedFlows) -> str:
    """Units in a row each, in the colour of their worker; between them queues, beside them tables.

    A line is dashed where it leads from one worker to another.
    """
    places = flows.parts(flows.verdicts[PROPOSED])
    units = list(flows.verdicts[PROPOSED].workers)
    tables = [name for name in places if name not in units]
    left = {name: _middle(row) for row, name in enumerate(units)}
    right = {name: _middle(row) for row, name in enumerate(tables)}
    edge = WIDTH - MARGIN - BOX_WIDTH
    parts = []
    for one, other, rows in flows.uses:
        parts.append(
            f'<path d="M{MARGIN + BOX_WIDTH} {left[one]} L{edge} {right[other]}" '
            f"{_line(places[one] == places[other])}><title>{escape(one)} uses {escape(other)}: "
            f"{rows:,} rows</title></path>"
        )
    for one, other, rows in flows.queues:
        x, bow = MARGIN + BOX_WIDTH, MARGIN + BOX_WIDTH + 60
        parts.append(
            f'<path d="M{x} {left[one] + 8} C{bow} {left[one] + 8} {bow} {left[other] - 8} {x} '
            f'{left[other] - 8}" {_line(places[one] == places[other])}><title>{rows:,} rows from '
            f"{escape(one)} to {escape(other)}</title></path>"
        )
    for name, y in left.items():
        told = f"worker {places[name]}, {flows.seconds[name] * 1e3:,.1f} ms"
        parts.append(_box(MARGIN, y, name, told, COLOURS[places[name] % len(COLOURS)]))
    for name, y in right.items():
        told = f"beside worker {places[name]}"
        parts.append(_box(edge, y, name, told, COLOURS[places[name] % len(COLOURS)]))
    return _svg(_middle(max(len(left), len(right))), "nodes, queues and tables", parts)


def _line(is_within: bool) -> str:
    dash = "" if is_within else ' stroke-dasharray="5 4"'
    return f'fill="none" stroke="{COLOURS[7]}" stroke-width="2"{dash}'


def _svg(height: int, told: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(told)}">{"".join(parts)}</svg>'
    )
