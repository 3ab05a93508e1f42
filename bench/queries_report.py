"""The report of the queries benchmark: figures in, one HTML file with its plots inside out.

Nothing is loaded from anywhere, and every sentence about what is seen is made from the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from bench.drawing import COLOURS, Plane, line, picture, rect, svg, text
from bench.transfers import Figure

STYLE = """
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1d2530; background: #fff;
  margin: 0 auto; padding: 24px; max-width: 1060px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 0 0 8px; }
section { border-top: 1px solid #d8dee6; margin-top: 28px; padding-top: 20px; }
p { max-width: 860px; } figure { margin: 0 0 16px; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 2px; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, "DejaVu Sans", sans-serif; }
svg text { fill: #46515f; } line.grid { stroke: #e5e9ee; } line.one { stroke: #222; }
table { border-collapse: collapse; font-size: 13px; margin: 8px 0; }
th, td { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid #e5e9ee; }
"""
TITLES = {
    "points": "Point reads beside the stream",
    "sums": "Sums over all rows",
    "server": "Calls over HTTP",
    "aborts": "Aborts",
    "isolation": "Isolation",
    "peers": "The bank beside its peers",
}
WORDS = {
    "points": "Threads read single rows by key while transfers run and are logged. The dictionary "
    "is read in the same loop, with the same keys, by the same threads. The wall clock counts the "
    "waiting for the other threads, too.",
    "sums": "Both sums run in turn over a million rows; ours sees one whole epoch of a table that "
    "may change, bare DuckDB the same Arrow data at rest.",
    "server": "Calls of a transaction and a bare echo, behind the same server.",
    "aborts": "Transfers that ask for more than there is, as a share of all; in memory, by the "
    "thread's own time.",
    "isolation": "As in figures 7 and 10 of the TSpoon paper. The serial scheme, the default for "
    "transactions as cheap as these, is the line to compare with.",
    "peers": "The same transfers, all durable unless it says otherwise; the first round is not "
    "counted, the rate is the median of the others. Every contestant ended with the balances of "
    "the serial oracle. Clients of PostgreSQL and Redis run side by side; Redis's pipelines are "
    "packed before the clock starts. A batch has 10,240 transfers.",
}


def render(figures: Sequence[Figure], notes: Sequence[str]) -> str:
    """The whole page."""
    parts = ["<h1>Queries, and the bank beside its peers</h1>", _bars(figures)]
    for section, title in TITLES.items():
        mine = [one for one in figures if one.section.split(",")[0] == section]
        if mine:
            parts.append(
                f"<section><h2>{escape(title)}</h2><p>{escape(WORDS[section])}</p>"
                f"{_plots(section, mine)}{_table(mine)}</section>"
            )
    for note in notes:
        parts.append(f"<p>Not compared: {escape(note)}</p>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Queries</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _bars(figures: Iterable[Figure]) -> str:
    """What was asked, and what this run found."""
    asked = [one for one in figures if one.bar is not None]
    met = sum(one.is_met for one in asked)
    return f"<p>{met} of {len(asked)} bars are met in this run.</p>{_table(asked)}"


def _table(figures: Iterable[Figure]) -> str:
    lines = [(one.what, one.amount, f"{one.ratio:.2f}", one.to, one.verdict) for one in figures]
    head = "".join(f"<th>{word}</th>" for word in ("", "measured", "ratio", "to", "bar"))
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in words)}</tr>" for words in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plots(section: str, figures: Sequence[Figure]) -> str:
    if section == "isolation":
        return picture("events a second by the number of keys", draw_isolation(figures))
    if section == "peers":
        rates = [one for one in figures if one.bar is None]
        return picture("transfers a second, on a scale of powers of ten", draw_rates(rates))
    if section == "aborts":
        shares = [one for one in figures if one.bar is None]
        return picture("throughput by the share of aborts; 1: none aborts", draw_shares(shares))
    return ""


def draw_rates(figures: Sequence[Figure]) -> str:
    """One bar for each contestant; Headgate's in a colour of its own."""
    width, high, left = 1000, 24, 430
    top = math.ceil(math.log10(max(one.value for one in figures)))
    scale = (width - left - 90) / top
    parts = []
    for power in range(top + 1):
        x = left + power * scale
        parts.append(line(x, 0, x, high * len(figures), "grid"))
        parts.append(text(x, high * len(figures) + 16, f"{10**power:,}", "middle"))
    for number, one in enumerate(figures):
        y = number * high + 3
        colour = COLOURS[0] if one.what.startswith("Headgate") else "#9aa7b5"
        parts.append(text(left - 8, y + 13, one.what, "end"))
        long = max(0.0, math.log10(one.value)) * scale
        parts.append(rect(left, y, long, high - 7, colour, f"{one.what}: {one.amount}"))
        parts.append(text(left + long + 5, y + 13, f"{one.value:,.0f}"))
    return svg(width, high * len(figures) + 24, parts, "transfers a second")


def draw_shares(figures: Sequence[Figure]) -> str:
    plane = Plane(1000, 220, 1.25)
    parts = plane.frame("ratio")
    step = 1 / max(1, len(figures))
    for number, one in enumerate(figures):
        x = plane.x(number * step + 0.15 * step)
        wide = plane.x((number + 1) * step - 0.15 * step) - x
        high = plane.y(0) - plane.y(one.ratio)
        parts.append(rect(x, plane.y(one.ratio), wide, high, COLOURS[0], one.what))
        parts.append(text(x + wide / 2, plane.y(0) + 15, one.what.split(" ")[0], "middle"))
    return svg(1000, 220, parts, "throughput by share of aborts")


def draw_isolation(figures: Sequence[Figure]) -> str:
    """A line for each level and protocol over the numbers of keys."""
    ways = list(dict.fromkeys(one.what.split(",")[0] for one in figures))
    keys = list(dict.fromkeys(_keys(one) for one in figures))
    plane = Plane(1000, 320, 1.1 * max(one.value for one in figures) / 1e6, right=150)
    parts = plane.frame("million events/s", "keys", at_one=False)
    for place, count in enumerate(keys):
        share = place / max(1, len(keys) - 1)
        parts.append(text(plane.x(share), plane.y(0) + 15, f"{count:,}", "middle"))
    ends: list[float] = []
    for number, way in enumerate(ways):
        mine = [one for one in figures if one.what.split(",")[0] == way]
        points = [
            (plane.x(keys.index(_keys(one)) / max(1, len(keys) - 1)), plane.y(one.value / 1e6))
            for one in mine
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = COLOURS[number]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = points[-1][1]
        while any(abs(y - other) < 13 for other in ends):  # names must not lie on each other
            y -= 13
        ends.append(y)
        parts.append(text(points[-1][0] + 8, y + 4, way))
        parts.append(rect(points[-1][0] + 2, y - 2, 4, 4, colour, way))
    return svg(1000, 320, parts, "isolation")


def _keys(one: Figure) -> int:
    return int(one.what.split(", ")[1].split(" ")[0].replace(",", ""))
