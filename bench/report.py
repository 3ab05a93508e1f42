"""The report of the schemes: measurements in, one HTML file with its plots inside out.

Nothing is loaded from anywhere: plots are SVG drawn here. Every sentence about what is seen is made
from the measurements of that run, so that the text never says more than they do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from bench.schemes import MODEL, SERIAL, Figure, figures, model_ratio, split

Row = Mapping[str, Any]

PARTS = {
    "order": ("order and check the events", "#8ecae6"),
    "resolve": ("resolve keys before execution", "#219ebc"),
    "plan": ("plan: look-up, operations, graph", "#ffb703"),
    "execute": ("execute", "#5a9e4b"),
    "results": ("build the results", "#b08bbb"),
    "rest": ("the rest", "#c9c9c9"),
}
COLOURS = (
    "#0072b2", "#222222", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#7a5195", "#56b4e9",
    "#a05d3b", "#6b8e23", "#b22222", "#4b6a88", "#d4b106", "#2f8f8f", "#e377c2", "#8c8c3c",
)  # fmt: skip
MODEL_BAR, UNIFORM_BAR = 0.95, 1.8
GRAPH_SCHEMES = ("strata", "depth", "ready")
WHY_NOT = (
    "A likely reason: the papers' gaps open with tens of cores, most of which wait for a turn or a "
    "lock; two cores can gain a factor of two at most, which leaves little between the schemes."
)


# --- drawing ----------------------------------------------------------------------------------


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
            parts.append(_line(self.x(0), self.y(value), self.x(1), self.y(value), "grid"))
            parts.append(_text(self.x(0) - 6, self.y(value) + 4, f"{value:g}", "end"))
        if at_one and self.top > 1:
            parts.append(_line(self.x(0), self.y(1), self.x(1), self.y(1), "one"))
        middle = (self.y(0) + self.y(self.top)) / 2
        parts.append(
            f'<text transform="translate(11 {middle:.1f}) rotate(-90)" class="label" '
            f'text-anchor="middle">{escape(y_label)}</text>'
        )
        if x_label:
            parts.append(_text(self.x(0.5), self.height - 5, x_label, "middle", "label"))
        return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}">{escape(words)}</text>'


def _rect(
    x: float, y: float, width: float, height: float, colour: str, tip: str, more: str = ""
) -> str:
    size = f'width="{max(width, 0.3):.1f}" height="{max(height, 0.3):.1f}"'
    inside = f"<title>{escape(tip)}</title>"
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}" {more}>{inside}</rect>'


def _svg(width: int, height: int, parts: Iterable[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _picture(title: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"


@dataclass(frozen=True)
class Paint:
    """One colour for each scheme, the same in the whole report."""

    schemes: Mapping[str, str]
    incorrect: frozenset[str]

    def colour(self, scheme: str) -> str:
        if scheme in self.incorrect:
            return "#9a9a9a"
        return COLOURS[list(self.schemes).index(scheme) % len(COLOURS)]

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
    """Ratio to serial by scheme, a paler bar for one thread beside a full one for two."""
    schemes = list(dict.fromkeys(one.scheme for one in found))
    plane = Plane(520, 210, max(1.15, 1.12 * max(one.ratio for one in found)))
    parts = plane.frame("ratio to serial")
    slot = 1 / len(schemes)
    for place, scheme in enumerate(schemes):
        mine = [one for one in found if one.scheme == scheme]
        wide = 0.8 * slot / len(mine)
        for number, one in enumerate(mine):
            x = plane.x(place * slot + 0.1 * slot + number * wide)
            high = plane.y(0) - plane.y(one.ratio)
            pale = 'fill-opacity="0.45"' if one.threads == 1 and len(mine) > 1 else ""
            tip = f"{one.name}: {one.ratio:.2f} × serial, {one.thousand_per_s:.0f} thousand/s"
            width = plane.x(wide) - plane.x(0) - 1
            parts.append(_rect(x, plane.y(one.ratio), width, high, paint.colour(scheme), tip, pale))
            middle = x + width / 2
            parts.append(
                _text(middle, plane.y(one.ratio) - 3, f"{one.ratio:.2f}", "middle", "tiny")
            )
        parts.append(_text(plane.x((place + 0.5) * slot), plane.y(0) + 15, scheme, "middle"))
    return _svg(plane.width, plane.height - 18, parts, "ratio to serial by scheme")


def draw_lines(
    series: Mapping[str, Sequence[tuple[int, float]]],
    ticks: Sequence[str],
    paint: Paint,
    y_label: str,
    x_label: str,
    size: tuple[int, int] = (400, 250),
) -> str:
    """One line a scheme over evenly spaced places, each with its tick."""
    highest = max((value for line in series.values() for _, value in line), default=1.0)
    plane = Plane(*size, max(1.15, 1.08 * highest))
    parts = plane.frame(y_label, x_label)
    count = max(1, len(ticks) - 1)
    for place, tick in enumerate(ticks):
        if tick:
            parts.append(_text(plane.x(place / count), plane.y(0) + 15, tick, "middle"))
    for scheme, line in series.items():
        points = " ".join(f"{plane.x(x / count):.1f},{plane.y(y):.1f}" for x, y in line)
        wide = 2.8 if scheme == MODEL else 1.6
        colour = paint.colour(scheme)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}" '
            f"{paint.dash(scheme)}><title>{escape(scheme)}</title></polyline>"
        )
        for x, y in line:
            tip = f"{scheme} at {ticks[x] or x}: {y:.2f}"
            parts.append(
                f'<circle cx="{plane.x(x / count):.1f}" cy="{plane.y(y):.1f}" r="2.4" '
                f'fill="{colour}"><title>{escape(tip)}</title></circle>'
            )
    return _svg(plane.width, plane.height, parts, f"{y_label} by {x_label}")


def draw_parts(found: Sequence[Figure]) -> str:
    """Where the time of a batch goes, one stacked bar a scheme."""
    width, high, left = 520, 19, 72
    longest = max(sum(one.parts_us.values()) for one in found)
    scale = (width - left - 64) / longest
    parts = []
    for number, one in enumerate(found):
        y, x = 6 + number * high, float(left)
        parts.append(_text(left - 6, y + 11, one.name, "end"))
        for part, (words, colour) in PARTS.items():
            wide = one.parts_us[part] * scale
            tip = f"{one.name}, {words}: {one.parts_us[part]:.3f} µs per event"
            parts.append(_rect(x, y, wide, high - 5, colour, tip))
            x += wide
        parts.append(_text(x + 5, y + 11, f"{sum(one.parts_us.values()):.2f} µs"))
    return _svg(width, 10 + high * len(found), parts, "time per event by part")


# --- words ------------------------------------------------------------------------------------


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of texts; figures do not break and have the same width."""
    top = "".join(f"<th>{escape(word)}</th>" for word in head)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in line)}</tr>" for line in lines)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(words: str) -> str:
    is_number = words[:1].isdigit() or words[:1] in ("−", "–")
    return f"<td{' class=number' * is_number}>{escape(words)}</td>"


def fold(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def cost_words(cost_us: float) -> str:
    return f"{cost_us:g} µs per operation" if cost_us else "cheap operations"


def figure_table(found: Sequence[Figure], incorrect: Iterable[str], first: str = "") -> str:
    head = ["scheme", "ratio to serial", "thousand events/s", "batch median ms", "99th pct. ms",
            "useful", "batches", "results"]  # fmt: skip
    wrong = set(incorrect)
    lines = [
        [
            one.name, f"{one.ratio:.2f}", f"{one.thousand_per_s:.1f}", f"{one.median_ms:.2f}",
            f"{one.p99_ms:.2f}", f"{one.useful:.0%}", f"{one.batches}", _verdict(one, wrong),
        ]
        for one in found
    ]  # fmt: skip
    if first:
        head.insert(0, first)
        lines = [[f"{one.value:g}", *line] for one, line in zip(found, lines, strict=True)]
    return table(head, lines)


def _verdict(one: Figure, incorrect: set[str]) -> str:
    if one.scheme in incorrect:
        return "incorrect by design" + (", equal here" if one.is_equal else ", and differ here")
    return "the reference" if one.scheme == SERIAL else "equal to serial"


def seen(found: Sequence[Figure], incorrect: Iterable[str], threads: int) -> str:
    """One sentence: the best and the last of the correct schemes, and where the model stands."""
    wrong = set(incorrect)
    mine = [one for one in found if one.threads == threads or one.scheme == SERIAL]
    fixed = [one for one in mine if one.scheme not in {MODEL, *wrong}]
    if len(fixed) < 2:
        return ""
    best, last = max(fixed, key=lambda one: one.ratio), min(fixed, key=lambda one: one.ratio)
    words = f"{best.name} is first with {best.ratio:.2f}, {last.name} last with {last.ratio:.2f}"
    placed = model_ratio(found, wrong, threads)
    return words + (f"; the model reaches {placed[0]:.2f} of the first." if placed else ".")


# --- sections ---------------------------------------------------------------------------------


def show_bars(rows: Sequence[Row], paint: Paint) -> str:
    """What was asked of the schemes, and what this run found."""
    lines = []
    for words, found, bar in _bars(rows, paint.incorrect):
        lines.append([words, f"{found:.2f}", f"{bar:g}", "met" if found >= bar else "not met"])
    if not lines:
        return ""
    met = sum(line[3] == "met" for line in lines)
    doubt = f"{_noise(rows):.0%}"
    return (
        "<section><h2>The bars</h2>"
        f"<p>{met} of {len(lines)} are met in this run. A bar for the model compares it with the "
        "best of all fixed schemes after the fact: the fastest of several noisy medians is a "
        "little too fast, so a model that always chose right would still come out below 1. "
        f"How noisy the machine was: the middle half of the serial scheme's batches of a race "
        f"spreads over {doubt} of their median; a bar missed or met by less says little.</p>"
        f"{table(['bar', 'found', 'at least', ''], lines)}{_order_words(rows, paint)}</section>"
    )


def _noise(rows: Sequence[Row]) -> float:
    """The spread of the serial scheme's time per event, the median over all steady races."""
    spreads = []
    for mine in split(rows, "section", "application", "cost_us", "value", "phase").values():
        steady = [row for row in mine if row["scheme"] == SERIAL and not row["is_warm"]]
        each = [row["seconds"] / row["events"] for row in steady if not row["phase"]]
        if each:
            low, middle, high = np.percentile(each, (25, 50, 75))
            spreads.append((high - low) / middle)
    return float(np.median(spreads)) if spreads else 0.0


def _order_words(rows: Sequence[Row], paint: Paint) -> str:
    """Whether the papers' order comes out where contention is highest."""
    skewed = [row for row in rows if row["section"] == "skew" and row["cost_us"]]
    top = max((row["value"] for row in skewed), default=0.0)
    found = figures(row for row in skewed if row["value"] == top)
    fixed = [one for one in found if one.scheme not in (MODEL, *paint.incorrect)]
    place = {one.scheme: one.ratio for one in sorted(fixed, key=lambda one: -one.ratio)}
    graph = max((place[name] for name in GRAPH_SCHEMES if name in place), default=None)
    if graph is None or "pat" not in place or "lal" not in place:
        return ""
    locks = max(place[name] for name in ("lal", "lwm") if name in place)
    is_theirs = graph >= place["pat"] >= locks
    order = ", ".join(f"{name} {ratio:.2f}" for name, ratio in place.items())
    return (
        f"<p>Under the highest skew ({top:g}) with {cost_words(skewed[0]['cost_us'])} the order is "
        f"{order}. The papers have the graph ahead of PAT ahead of the locks; here it "
        + ("comes out so.</p>" if is_theirs else f"does not. {WHY_NOT}</p>")
    )


def _bars(rows: Sequence[Row], incorrect: frozenset[str]) -> Iterable[tuple[str, float, float]]:
    ratio_words = "model / best fixed scheme"
    for (section, name, cost, phase), mine in split(
        [row for row in rows if row["section"] in ("applications", "dynamic")],
        "section", "application", "cost_us", "phase",
    ).items():  # fmt: skip
        placed = model_ratio(figures(mine), incorrect, 2 if cost else 1)
        what = f"dynamic, phase {phase}" if section == "dynamic" else name
        threads = "2 threads" if cost else "1 thread"
        if placed:
            yield f"{what}, {cost_words(cost)}, {threads}: {ratio_words}", placed[0], MODEL_BAR
    skewed = [row for row in rows if row["section"] == "skew" and row["cost_us"]]
    for (value,), mine in split(skewed, "value").items():
        found = figures(mine)
        model = [one.ratio for one in found if one.scheme == MODEL]
        placed = model_ratio(found, incorrect, 2)
        where = f"skew {value:g}, {cost_words(mine[0]['cost_us'])}, 2 threads"
        if value == 0 and model:
            yield f"{where}: model / serial", model[0], UNIFORM_BAR
        elif placed:
            yield f"{where}: {ratio_words}", placed[0], MODEL_BAR


def show_applications(rows: Sequence[Row], paint: Paint) -> str:
    pictures, parts, tables, sentences = [], [], [], []
    for (name, cost), mine in split(rows, "application", "cost_us").items():
        found, title = figures(mine), f"{name}, {cost_words(cost)}"
        pictures.append(_picture(title, draw_bars(found, paint)))
        two = [one for one in found if one.threads > 1 or one.scheme == SERIAL]
        parts.append(_picture(title, draw_parts(two)))
        shape = f"Events in a batch: {mine[0]['events']}. {graph_words(mine)}"
        tables.append(fold(title, f"<p>{shape}</p>" + figure_table(found, paint.incorrect)))
        sentences.append(f"<li>{title}: {seen(found, paint.incorrect, 2)}</li>")
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{words}</span>'
        for words, colour in PARTS.values()
    )
    return (
        "<section><h2>The four applications</h2><p>Throughput over that of the serial scheme in "
        "the same rounds, which is the line at 1. Pale bars: one thread; full bars: two.</p>"
        f'<ul>{"".join(sentences)}</ul><div class="grid">{"".join(pictures)}</div>'
        f"{''.join(tables)}</section>"
        "<section><h2>Where the time goes</h2><p>Wall time per event of a batch with two threads, "
        "taken around the engine's phases from outside. Planning includes the look-up of the keys, "
        "which the serial scheme does while it executes; execution includes starting the threads, "
        "waiting, locks, rollback of aborts and finding work, which cannot be told apart from "
        "outside. The column “useful” of the tables says how much of it all is real work: what the "
        "serial scheme needs for execution, over the thread time of the scheme.</p>"
        f'<p class="legend">{legend}</p><div class="grid">{"".join(parts)}</div></section>'
    )


def graph_words(rows: Sequence[Row]) -> str:
    """The figures of the first batch's graph that a reader wants."""
    known = json.loads(rows[0]["graph"] or "{}")
    wanted = ("operations", "edges", "strata", "widest_stratum", "longest_chain", "ideal_speedup")
    words = [f"{name.replace('_', ' ')} {_count(known[name])}" for name in wanted if name in known]
    return f"Graph of the first batch: {', '.join(words)}." if words else ""


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show_sweeps(rows: Sequence[Row], paint: Paint) -> str:
    pictures, tables, sentences = [], [], []
    for (section, cost), mine in split(rows, "section", "cost_us_shown").items():
        values = sorted({row["value"] for row in mine})
        at = {value: place for place, value in enumerate(values)}
        found = _sweep_figures(mine, section)
        series: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for one in found:
            if one.scheme != SERIAL:
                series[one.scheme].append((at[one.value], one.ratio))
        words = f" ({cost})" if cost else ""
        name = f"{section}, {mine[0]['application']}{words}"
        ticks = [f"{value:g}" for value in values]
        drawing = draw_lines(series, ticks, paint, "ratio to serial", mine[0]["parameter"])
        pictures.append(_picture(name, drawing))
        tables.append(fold(name, figure_table(found, paint.incorrect, mine[0]["parameter"])))
        sentences.append(f"<li>{escape(name)}: {_sweep_words(found, paint.incorrect)}</li>")
    names = [name for name in paint.schemes if name != SERIAL]
    return (
        "<section><h2>Sweeps</h2><p>One characteristic changes, all others stay at the "
        "application's defaults; two threads, but for the sweep over threads. Each point has "
        "engines of its own and its own serial runs to compare with: 1 is the serial scheme at "
        f"that very point.</p><ul>{''.join(sentences)}</ul>{paint.legend(names)}"
        f'<div class="grid three">{"".join(pictures)}</div>{"".join(tables)}</section>'
    )


def _sweep_figures(rows: Sequence[Row], section: str) -> list[Figure]:
    if section == "threads":  # one race: the serial runs are compared with all numbers of threads
        return sorted(figures(rows), key=lambda one: one.threads)
    return [one for mine in split(rows, "value").values() for one in figures(mine)]


def _sweep_words(found: Sequence[Figure], incorrect: frozenset[str]) -> str:
    """How the model moves from the first value to the last, and who leads at both ends."""
    values = sorted({one.value for one in found})
    ends = []
    for value in (values[0], values[-1]):
        mine = [one for one in found if one.value == value and one.scheme not in incorrect]
        fixed = [one for one in mine if one.scheme != MODEL]
        model = [one.ratio for one in mine if one.scheme == MODEL]
        best = max(fixed, key=lambda one: one.ratio)
        tail = f", the model {model[0]:.2f}" if model else ""
        ends.append(f"at {value:g} {best.name} leads with {best.ratio:.2f}{tail}")
    return "; ".join(ends) + "."


def show_dynamic(rows: Sequence[Row], paint: Paint) -> str:
    parts = []
    for (cost,), mine in split(rows, "cost_us").items():
        threads = max(row["threads"] for row in mine)
        parts.append(f"<h3>{cost_words(cost)}, {threads} threads</h3>")
        parts.append(_dynamic_picture(mine, paint, threads))
        parts.append(_phase_table(mine, paint))
        parts.append(fold("what the model chose for each batch, and why", _choices(mine)))
    names = [name for name in paint.schemes if name != SERIAL]
    return (
        "<section><h2>The dynamic workload</h2><p>Four phases of the Streaming Ledger on the same "
        "engines: mostly deposits on scattered keys; then the skew rises to 1; then the share of "
        "transfers rises to 0.9; then that of aborts rises to 0.9. Each batch's ratio is to the "
        "serial run of the same batch, so single points are noisy; the table has the ratios of the "
        "medians of a phase. The strip under the plot has the colour of the scheme that the model "
        f"chose.</p>{paint.legend([*names, SERIAL])}{''.join(parts)}</section>"
    )


def _dynamic_picture(rows: Sequence[Row], paint: Paint, threads: int) -> str:
    by_batch = split(rows, "phase", "batch")
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    ticks, chosen = [""] * len(by_batch), []
    for place, ((phase, batch), mine) in enumerate(by_batch.items()):
        serial_s = next(row["seconds"] for row in mine if row["scheme"] == SERIAL)
        ticks[place] = f"{phase} →" if batch == 0 else ""
        for row in mine:
            if row["threads"] == threads and not row["is_warm"]:
                series[row["scheme"]].append((place, serial_s / row["seconds"]))
            if row["threads"] == threads and row["scheme"] == MODEL:
                chosen.append((place, row["decision"], row["why"]))
    size = (1060, 260)
    lines = draw_lines(series, ticks, paint, "ratio to serial", "", size)
    plane, parts = Plane(*size, 1.0, above=2), []
    wide = (plane.x(1) - plane.x(0)) / max(1, len(by_batch) - 1)
    for place, decision, why in chosen:
        first = decision.split(" + ")[0]
        colour = paint.colour(first) if first in paint.schemes else "#ffffff"
        left = max(plane.x(0), plane.x(0) + (place - 0.5) * wide)
        right = min(plane.x(1), plane.x(0) + (place + 0.5) * wide)
        parts.append(_rect(left, 2, right - left - 1, 14, colour, f"{decision}: {why}"))
    return lines + _svg(size[0], 20, parts, "the model's choice for each batch")


def _phase_table(rows: Sequence[Row], paint: Paint) -> str:
    lines = []
    for (phase,), mine in split(rows, "phase").items():
        found = figures(mine)
        for threads in sorted({row["threads"] for row in mine}):
            placed = model_ratio(found, paint.incorrect, threads)
            picks = [r["decision"] for r in mine if r["threads"] == threads and r["decision"]]
            counts = {name: picks.count(name) for name in dict.fromkeys(picks)}
            model = next((f for f in found if f.scheme == MODEL and f.threads == threads), None)
            if placed and model:
                lines.append([
                    phase, f"{threads}", f"{model.ratio:.2f}", placed[1].name,
                    f"{placed[1].ratio:.2f}", f"{placed[0]:.2f}",
                    ", ".join(f"{name} {count}×" for name, count in counts.items()),
                ])  # fmt: skip
    head = ["phase", "threads", "model / serial", "best fixed", "its ratio", "model / best fixed",
            "chosen"]  # fmt: skip
    return table(head, lines)


def _choices(rows: Sequence[Row]) -> str:
    """Runs of batches with the same choice are one line, with the reason of the first of them."""
    lines = []
    for threads in sorted({row["threads"] for row in rows}):
        mine = [row for row in rows if row["scheme"] == MODEL and row["threads"] == threads]
        for (phase, choice), run in groupby(mine, lambda row: (row["phase"], row["decision"])):
            same = list(run)
            batches = f"{same[0]['batch']}–{same[-1]['batch']}"
            lines.append([f"{threads}", phase, batches, choice, same[-1]["why"]])
    return table(["threads", "phase", "batches", "choice", "why (the last of them)"], lines)


# --- the page ---------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1d2530; background: #fff;
  margin: 0 auto; padding: 24px; max-width: 1120px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 0 0 8px; }
h3 { font-size: 16px; margin: 20px 0 4px; }
section { border-top: 1px solid #d8dee6; margin-top: 28px; padding-top: 20px; }
p, ul { max-width: 860px; } .lead { color: #4a5666; margin-top: 0; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: 14px; margin-bottom: 2px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 22px; }
.three { grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, "DejaVu Sans", sans-serif; }
svg text { fill: #46515f; } svg .label { fill: #1d2530; }
svg .tiny { font-size: 9px; paint-order: stroke; stroke: #fff; stroke-width: 2.5px; }
.grid line, line.grid { stroke: #e5e9ee; } line.one { stroke: #222; stroke-width: 1.2; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin: 8px 0; }
th, td { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid #e5e9ee;
  vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
details { margin: 6px 0; } summary { cursor: pointer; color: #00558a; }
.legend span { margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px;
  margin-right: 5px; vertical-align: -1px; }
"""
METHOD = """
<p>Every scheme has an engine of its own, in memory, with the same rows. Each batch goes through
all engines in turn, and who begins changes from batch to batch, so that other work on the machine
disturbs all alike. A ratio is that of the medians over the batches of one race. Latency is that of
a whole batch, from the events in Arrow to the results in Arrow, in the same runs; with fewer than a
hundred batches the 99th percentile lies near the slowest of them. The first two batches of a race
are run but not counted. The added cost of an operation is a loop of arithmetic whose steps were
timed on this machine before the run.</p>
<p>After each batch the results of every scheme were compared with the serial ones, after each race
all rows of all tables; a difference ends the benchmark, so that a report exists only where there
was none. The scheme marked incorrect is left out of this: it isolates nothing and is a bound for
speed. All measurements, batch by batch, are in the Parquet file beside this one.</p>
"""


def render(
    rows: Sequence[Row],
    facts: Mapping[str, str],
    schemes: Mapping[str, str],
    incorrect: frozenset[str],
) -> str:
    """The whole page."""
    paint = Paint(schemes, incorrect)
    of = split(rows, "section")
    applications, dynamic = of.pop(("applications",), []), of.pop(("dynamic",), [])
    swept = [{**row, "cost_us_shown": _shown(row)} for mine in of.values() for row in mine]
    facts_table = table(["this run", ""], [[name, words] for name, words in facts.items()])
    meaning = table(["scheme", ""], [[name, words] for name, words in schemes.items()])
    parts = [
        "<h1>Schemes side by side</h1>",
        '<p class="lead">How the ways to run a batch of transactions compare, on one machine in '
        "one run. Figures are ratios to the serial scheme; absolute ones are for orientation.</p>",
        facts_table,
        show_bars(rows, paint),
        show_applications(applications, paint) if applications else "",
        show_sweeps(swept, paint) if swept else "",
        show_dynamic(dynamic, paint) if dynamic else "",
        f"<section><h2>How it was measured</h2>{METHOD}{meaning}</section>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Schemes side by side</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _shown(row: Row) -> str:
    """The cost of a sweep's points, unless it is the cost that is swept."""
    return "" if row["section"] == "cost" else cost_words(row["cost_us"])
