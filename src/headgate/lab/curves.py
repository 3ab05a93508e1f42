"""Curves: speed-up over cores, a line for each strategy, on a page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from headgate.lab.simulation import STRATEGIES, PlannedBatch, simulate
from headgate.parallel.decision import Thresholds

CORES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64)
WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 14, 38
# A colour says how it goes through the graph, a dash what it takes at once.
COLOURS = {
    "serial": "#7c8794",
    "shares": "#e07a1f",
    "strata": "#2f74c0",
    "depth": "#2b9348",
    "ready": "#d1495b",
    "tstream": "#8e5bb5",
    "lal": "#9c6b2f",
    "lwm": "#12908e",
    "pat": "#c58a00",
}
DASHES = {"operation": "7 4", "chain": "2 3", "nothing": "7 4"}

_STYLE = """
body { margin: 2rem auto; max-width: 960px; padding: 0 1rem; background: #fff; color: #1d2530;
  font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif; }
svg { width: 100%; height: auto; font: 11px system-ui, "DejaVu Sans", sans-serif; }
svg text { fill: currentColor; } .grid { stroke: currentColor; stroke-opacity: .15; }
.ideal { stroke: currentColor; stroke-opacity: .4; stroke-dasharray: 1 4; }
table { border-collapse: collapse; margin-top: 1rem; } th, td { padding: .15rem .7rem; }
td { text-align: right; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; } thead th { text-align: right; }
td:first-child { text-align: left; white-space: nowrap; }
@media (prefers-color-scheme: dark) { body { background: #14181e; color: #dfe5ec; } }
"""


def speedups(
    batch: PlannedBatch,
    costs: Thresholds,
    cores: Sequence[int] = CORES,
    strategies: Sequence[str] = STRATEGIES,
) -> dict[str, list[float]]:
    """How many times faster than one after another, by strategy, for each number of cores."""
    found = {}
    for strategy in strategies:
        makespans = [simulate(batch, strategy, count, costs) for count in cores]
        found[strategy] = [batch.serial_ns / max(1.0, makespan) for makespan in makespans]
    return found


def draw_page(
    title: str, facts: Sequence[str], cores: Sequence[int], speedups: Mapping[str, Sequence[float]]
) -> str:
    """The whole page: what was simulated, the curves, and the same as a table."""
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><ul>{items}</ul>"
        f"{draw_curves(cores, speedups)}{_table(cores, speedups)}</body></html>\n"
    )


def draw_curves(cores: Sequence[int], speedups: Mapping[str, Sequence[float]]) -> str:
    """The curves as SVG; the dotted line is one more for each core."""
    most = max(cores)
    highest = max([1.5, *(value for line in speedups.values() for value in line)]) * 1.05
    across, up = (WIDTH - LEFT - RIGHT) / most, (HEIGHT - TOP - BOTTOM) / highest
    bottom = HEIGHT - BOTTOM
    reach = min(most, highest)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="speed-up by cores">',
        *_grid(cores, highest, across, up),
        f'<line class="ideal" x1="{LEFT}" y1="{bottom}" x2="{LEFT + reach * across:.1f}" '
        f'y2="{bottom - reach * up:.1f}"/>',
    ]
    for name, line in speedups.items():
        points = " ".join(
            f"{LEFT + count * across:.1f},{bottom - value * up:.1f}"
            for count, value in zip(cores, line, strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke-width="1.8" {_stroke(name)}>'
            f"<title>{escape(name)}</title></polyline>"
        )
    return "".join([*parts, "</svg>"])


def _grid(cores: Sequence[int], highest: float, across: float, up: float) -> list[str]:
    bottom, parts = HEIGHT - BOTTOM, []
    step = next((one for one in (0.5, 1, 2, 4, 8, 16) if highest / one <= 9), 32)
    for turn in range(int(highest / step) + 1):
        y = bottom - turn * step * up
        parts.append(
            f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{turn * step:g}</text>'
        )
    last = -100.0
    for count in cores:
        x = LEFT + count * across
        if x - last >= 22:
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{count}</text>')
            last = x
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">cores</text>']


def _stroke(name: str) -> str:
    first, _, last = name.partition("-")
    dash = f' stroke-dasharray="{DASHES[last]}"' if last in DASHES else ""
    return f'stroke="{COLOURS.get(first, "#7c8794")}"{dash}'


def _table(cores: Sequence[int], speedups: Mapping[str, Sequence[float]]) -> str:
    """The best of the most cores first, each with its line as in the picture."""
    heads = "".join(f"<th>{count}</th>" for count in cores)
    rows = []
    for name, line in sorted(speedups.items(), key=lambda item: -item[1][-1]):
        mark = (
            f'<svg viewBox="0 0 34 8" style="width:34px;height:8px"><path d="M0 4h34" fill="none" '
            f'stroke-width="2.4" {_stroke(name)}/></svg>'
        )
        cells = "".join(f"<td>{value:.2f}</td>" for value in line)
        rows.append(f"<tr><td>{mark} {escape(name)}</td>{cells}</tr>")
    body = "".join(rows)
    return f"<table><thead><tr><th>cores</th>{heads}</tr></thead><tbody>{body}</tbody></table>"
