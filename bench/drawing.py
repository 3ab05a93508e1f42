"""Drawing: figures as SVG, one colour for each scheme in the whole report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from bench.figures import Figure
from bench.race import MODEL

PARTS = {
    "order": ("order and check the events", "#8ecae6"),
    "resolve": ("resolve keys before execution", "#219ebc"),
    "plan": ("plan: look-up, operations, graph", "#ffb703"),
    "execute": ("execute", "#5a9e4b"),
    "results": ("build the results", "#b08bbb"),
    "rest": ("the rest", "#c9c9c9"),
}
SHARES = {
    "useful": ("useful: the transactions themselves", "#5a9e4b"),
    "sync": ("sync: waiting for others", "#d55e00"),
    "lock": ("lock: taking and awaiting locks or turns", "#a05d3b"),
    "construct": ("construct: planning", "#ffb703"),
    "explore": ("explore: finding what to run next", "#56b4e9"),
    "abort": ("abort: undoing and running again", "#cc79a7"),
    "uncounted": ("not told apart: sync, lock, explore, abort", "#c9c9c9"),
}
COLOURS = (
    "#0072b2", "#222222", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#7a5195", "#56b4e9",
    "#a05d3b", "#6b8e23", "#b22222", "#4b6a88", "#d4b106", "#2f8f8f", "#e377c2", "#8c8c3c",
)  # fmt: skip


def _nice_step(top: float, ticks: int = 4) -> float:
    raw = max(top, 1e-9) / ticks
    power = 10.0 ** np.floor(np.log10(raw))
    return float(next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * 0.999))


@dataclass(frozen=True)
class Plane:
    """The area of a plot: from a value and a share of the width to places in the picture."""

    width: int
    height: int
    top: float
    left: int = 46
    right: int = 22
    above: int = 12
    below: int = 40

    def x(self, share: float) -> float:
        return self.left + share * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        room = self.height - self.above - self.below
        return self.above + room * (1 - min(value, self.top) / self.top)

    def frame(self, y_label: str, x_label: str = "", at_one: bool = True) -> list[str]:
        """Lines and labels of the axes; the line of the serial scheme is at 1."""
        step, parts = _nice_step(self.top), []
        for number in range(int(self.top / step + 1e-6) + 1):
            value = number * step
            parts.append(line(self.x(0), self.y(value), self.x(1), self.y(value), "grid"))
            parts.append(text(self.x(0) - 6, self.y(value) + 4, f"{value:g}", "end"))
        if at_one and self.top > 1:
            parts.append(line(self.x(0), self.y(1), self.x(1), self.y(1), "one"))
        middle = (self.y(0) + self.y(self.top)) / 2
        parts.append(
            f'<text transform="translate(11 {middle:.1f}) rotate(-90)" class="label" '
            f'text-anchor="middle">{escape(y_label)}</text>'
        )
        if x_label:
            parts.append(text(self.x(0.5), self.height - 5, x_label, "middle", "label"))
        return parts


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}">{escape(words)}</text>'


def rect(
    x: float, y: float, width: float, height: float, colour: str, tip: str, more: str = ""
) -> str:
    size = f'width="{max(width, 0.3):.1f}" height="{max(height, 0.3):.1f}"'
    inside = f"<title>{escape(tip)}</title>"
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}" {more}>{inside}</rect>'


def svg(width: int, height: int, parts: Iterable[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def picture(title: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"


@dataclass(frozen=True)
class Paint:
    """One colour for each scheme, the same in the whole report."""

    schemes: Mapping[str, str]
    incorrect: frozenset[str]

    def colour(self, scheme: str) -> str:
        if scheme in self.incorrect:
            return "#9a9a9a"
        known = list(self.schemes)
        if scheme not in known:  # a scheme that only the model chose: that of its exploration
            scheme = scheme.partition("-")[0]
        return COLOURS[known.index(scheme) % len(COLOURS)] if scheme in known else "#ffffff"

    def dash(self, scheme: str) -> str:
        return 'stroke-dasharray="4 3"' if scheme in self.incorrect else ""

    def legend(self, schemes: Iterable[str]) -> str:
        items = []
        for scheme in schemes:
            mark = " (incorrect)" if scheme in self.incorrect else ""
            style = f"background:{self.colour(scheme)}"
            items.append(f'<span><i style="{style}"></i>{escape(scheme)}{mark}</span>')
        return f'<p class="legend">{"".join(items)}</p>'


def draw_bars(found: Sequence[Figure], paint: Paint) -> str:
    """Ratio to serial, a row for each scheme; a paler bar for one thread above a full one."""
    width, high, left = 520, 11, 138
    top = max(1.15, 1.12 * max(one.ratio for one in found))
    scale = (width - left - 34) / top
    parts, y = [], 4.0
    for scheme in dict.fromkeys(one.scheme for one in found):
        mine = [one for one in found if one.scheme == scheme]
        parts.append(text(left - 6, y + high * len(mine) / 2 + 4, scheme, "end"))
        for one in mine:
            pale = 'fill-opacity="0.45"' if one.threads == 1 and len(mine) > 1 else ""
            tip = f"{one.name}: {one.ratio:.2f} × serial, {one.thousand_per_s:.0f} thousand/s"
            wide = one.ratio * scale
            parts.append(rect(left, y, wide, high - 2, paint.colour(scheme), tip, pale))
            parts.append(text(left + wide + 3, y + 8, f"{one.ratio:.2f}", kind="tiny"))
            y += high
        y += 4
    parts.append(line(left + scale, 0, left + scale, y, "one"))
    return svg(width, int(y) + 2, parts, "ratio to serial by scheme")


def draw_lines(
    series: Mapping[str, Sequence[tuple[int, float]]],
    ticks: Sequence[str],
    paint: Paint,
    y_label: str,
    x_label: str,
    size: tuple[int, int] = (400, 250),
) -> str:
    """One line a scheme over evenly spaced places, each with its tick."""
    highest = max((value for values in series.values() for _, value in values), default=1.0)
    plane = Plane(*size, max(1.15, 1.08 * highest))
    parts = plane.frame(y_label, x_label)
    count = max(1, len(ticks) - 1)
    for place, tick in enumerate(ticks):
        if tick:
            parts.append(text(plane.x(place / count), plane.y(0) + 15, tick, "middle"))
    for scheme, values in series.items():
        points = " ".join(f"{plane.x(x / count):.1f},{plane.y(y):.1f}" for x, y in values)
        wide = 2.8 if scheme == MODEL else 1.6
        colour = paint.colour(scheme)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}" '
            f"{paint.dash(scheme)}><title>{escape(scheme)}</title></polyline>"
        )
        for x, y in values:
            tip = f"{scheme} at {ticks[x] or x}: {y:.2f}"
            parts.append(
                f'<circle cx="{plane.x(x / count):.1f}" cy="{plane.y(y):.1f}" r="2.4" '
                f'fill="{colour}"><title>{escape(tip)}</title></circle>'
            )
    return svg(plane.width, plane.height, parts, f"{y_label} by {x_label}")


def draw_parts(found: Sequence[Figure]) -> str:
    """Where the wall time of a batch goes, one stacked bar a scheme."""
    longest = max(sum(one.parts_us.values()) for one in found)
    stacks = [(one.name, one.parts_us, f"{sum(one.parts_us.values()):.2f} µs") for one in found]
    return _draw_stacks(stacks, PARTS, longest, "µs per event", "time per event by part")


def draw_shares(found: Sequence[Figure]) -> str:
    """What the threads spend their time on, one stacked bar a scheme."""
    percent = [{part: 100 * share for part, share in one.shares.items()} for one in found]
    marks = ["" if one.is_told_apart else "from outside" for one in found]
    stacks = [
        (one.name, shares, mark) for one, shares, mark in zip(found, percent, marks, strict=True)
    ]
    return _draw_stacks(stacks, SHARES, 100.0, "% of the thread time", "thread time by purpose")


def _draw_stacks(
    stacks: Sequence[tuple[str, Mapping[str, float], str]],
    kinds: Mapping[str, tuple[str, str]],
    longest: float,
    unit: str,
    title: str,
) -> str:
    width, high, left = 520, 17, 150
    scale = (width - left - 74) / longest
    parts = []
    for number, (name, sizes, mark) in enumerate(stacks):
        y, x = 4 + number * high, float(left)
        parts.append(text(left - 6, y + 10, name, "end"))
        for kind, (words, colour) in kinds.items():
            if sizes.get(kind, 0.0) <= 0:
                continue
            wide = sizes[kind] * scale
            parts.append(
                rect(x, y, wide, high - 4, colour, f"{name}, {words}: {sizes[kind]:.3g} {unit}")
            )
            x += wide
        parts.append(text(x + 5, y + 10, mark))
    return svg(width, 8 + high * len(stacks), parts, title)


def legend(kinds: Mapping[str, tuple[str, str]]) -> str:
    """What the colours of stacked bars mean."""
    items = [
        f'<span><i style="background:{colour}"></i>{escape(words)}</span>'
        for words, colour in kinds.values()
    ]
    return f'<p class="legend">{"".join(items)}</p>'
