"""The report of the schemes: measurements in, one HTML file with its plots inside out.

Nothing is loaded from anywhere: plots are SVG drawn here. Every sentence about what is seen is made
from the measurements of that run, so that the text never says more than they do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

import numpy as np

from bench.bars import all_bars, show, standings
from bench.drawing import (
    PARTS,
    SHARES,
    Paint,
    Plane,
    draw_bars,
    draw_lines,
    draw_parts,
    draw_shares,
    legend,
    picture,
    rect,
    svg,
)
from bench.figures import Figure, Row, figures, model_ratio, split
from bench.race import MODEL, SERIAL

TOLD = (
    "Schemes marked “from outside” do not count in their threads: there useful is what the serial "
    "scheme needed to execute the same batch, and what remains of the threads' time is not told "
    "apart. The others counted, in rounds of their own, whose throughput is not reported."
)
CELL_CHARACTERS = 16  # a cell with no more does not break
DRAWN_MAX = 12  # lines of one plot; more are only in its table
WHY_NOT = (
    "Why not, where it does not: the papers' gaps open with tens of cores, most of which wait for "
    "a turn or a lock. Of two threads one can always run, so waiting costs at most half of what "
    "two cores give, and where the useful shares above are high nothing is left that chains or a "
    "graph could win back, only their own planning to pay for. Where they are low although the "
    "schemes differ little, look at the load before the run: a thread that spins for a turn loses "
    "far more when something else has taken the other one's core."
)


# --- words ------------------------------------------------------------------------------------


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of texts; figures and short words do not break."""
    top = "".join(f"<th>{escape(word)}</th>" for word in head)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in line)}</tr>" for line in lines)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(words: str) -> str:
    is_short = words[:1].isdigit() or len(words) <= CELL_CHARACTERS
    return f"<td{' class=number' * is_short}>{escape(words)}</td>"


def fold(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def cost_words(cost_us: float) -> str:
    return f"{cost_us:g} µs per operation" if cost_us else "cheap operations"


def figure_table(found: Sequence[Figure], incorrect: Iterable[str], first: str = "") -> str:
    """Throughput, latency end to end, and what the threads spent their time on."""
    head = ["scheme", "ratio to serial", "thousand events/s", "latency median ms", "99th pct. ms",
            *SHARES, "batches", "results"]  # fmt: skip
    wrong = set(incorrect)
    lines = [
        [
            one.name, f"{one.ratio:.2f}", f"{one.thousand_per_s:.1f}",
            *(f"{latency:.2f}" for latency in one.latency_ms),
            *(_share(one, part) for part in SHARES), f"{one.batches}", _verdict(one, wrong),
        ]
        for one in found
    ]  # fmt: skip
    if first:
        head.insert(0, first)
        lines = [[f"{one.value:g}", *line] for one, line in zip(found, lines, strict=True)]
    return table(head, lines)


def _share(one: Figure, part: str) -> str:
    share = one.shares.get(part, 0.0)
    return f"{share:.0%}" if share else "–"


def _verdict(one: Figure, incorrect: set[str]) -> str:
    if one.scheme in incorrect:
        return "incorrect by design" + (", equal here" if one.is_equal else ", and differ here")
    behind = f", {one.fallbacks} batches run serially in its place" if one.fallbacks else ""
    return "the reference" if one.scheme == SERIAL else f"equal to serial{behind}"


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


def show_bars(rows: Sequence[Row], planned: Sequence[Row], paint: Paint) -> str:
    """What was asked of the schemes, and what this run found."""
    bars = all_bars(rows, planned, paint.incorrect)
    if not bars:
        return ""
    lines = [
        [f"{bar.group}: {bar.words}", show(bar.found), bar.limit_words, bar.verdict, bar.remark]
        for bar in bars
    ]
    met = sum(bar.is_met for bar in bars)
    doubt = f"{_noise(rows):.0%}"
    return (
        "<section><h2>The bars</h2>"
        f"<p>{met} of {len(lines)} are met in this run. A bar for the model compares it with the "
        "best of all fixed schemes after the fact: the fastest of several noisy medians is a "
        "little too fast, so a model that always chose right would still come out below 1. "
        f"How noisy the machine was: the middle half of the serial scheme's batches of a race "
        f"spreads over {doubt} of their median; a bar missed or met by less says little.</p>"
        f"{table(['bar', 'found', 'asked', '', ''], lines)}{_order_words(rows)}</section>"
    )


def _noise(rows: Sequence[Row]) -> float:
    """The spread of the serial scheme's time per event, the median over all steady races."""
    spreads = []
    for mine in split(rows, "section", "application", "cost_us", "value", "phase").values():
        steady = [row for row in mine if row["scheme"] == SERIAL and row["section"] != "dynamic"]
        each = [row["seconds"] / row["events"] for row in steady if not row["is_warm"]]
        if each:
            low, middle, high = np.percentile(each, (25, 50, 75))
            spreads.append((high - low) / middle)
    return float(np.median(spreads)) if spreads else 0.0


def _order_words(rows: Sequence[Row]) -> str:
    """Whether the papers' order comes out under contention."""
    found = standings(rows)
    if not found:
        return ""
    theirs = sum(standing.is_papers for standing in found)
    lines = "".join(f"<li>{escape(standing.words)}</li>" for standing in found)
    return (
        "<p>Under contention the papers have operation chains and the graph of operations ahead of "
        f"PAT ahead of LAL and LWM. Here that comes out at {theirs} of {len(found)} points; ratios "
        f"are to the serial scheme.</p><ul>{lines}</ul>"
        + (f"<p>{WHY_NOT}</p>" if theirs < len(found) else "")
    )


def show_planning(planned: Sequence[Row]) -> str:
    """What planning costs, by the size of the batch."""
    lines = [
        [row["step"], f"{row['operations']:,}", f"{row['ns']:.1f}",
         f"{row['ns'] * row['operations'] / 1e6:.2f}"]
        for row in planned
    ]  # fmt: skip
    return (
        "<section><h2>Planning</h2><p>Nanoseconds per operation of batches like those of the "
        "Streaming Ledger, on one thread; nothing runs. The first three steps make the graph of "
        "operations with its chains; the last one is the simpler graph of whole transactions, "
        "which the engine tries first.</p>"
        + table(["step", "operations", "ns per operation", "ms"], lines)
        + "</section>"
    )


def show_applications(rows: Sequence[Row], paint: Paint) -> str:
    pictures, parts, shares, tables, sentences = [], [], [], [], []
    for (name, cost), mine in split(rows, "application", "cost_us").items():
        found, title = figures(mine), f"{name}, {cost_words(cost)}"
        pictures.append(picture(title, draw_bars(found, paint)))
        two = [one for one in found if one.threads > 1 or one.scheme == SERIAL]
        parts.append(picture(title, draw_parts(two)))
        shares.append(picture(title, draw_shares([one for one in two if one.shares])))
        shape = f"Events in a batch: {mine[0]['events']}. {graph_words(mine)}"
        tables.append(fold(title, f"<p>{shape}</p>" + figure_table(found, paint.incorrect)))
        sentences.append(f"<li>{title}: {seen(found, paint.incorrect, 2)}</li>")
    return (
        "<section><h2>The four applications</h2><p>Throughput over that of the serial scheme in "
        "the same rounds, which is the line at 1. Pale bars: one thread; full bars: two.</p>"
        f'<ul>{"".join(sentences)}</ul><div class="grid">{"".join(pictures)}</div>'
        f"{''.join(tables)}</section>"
        "<section><h2>What threads spend their time on</h2><p>Shares of the thread time of a batch "
        "with two threads, from planning to the last transaction; ordering events and building "
        "results are the same for all and left out. Planning runs on one thread, before the others "
        f"begin. {TOLD}</p>"
        f'{legend(SHARES)}<div class="grid">{"".join(shares)}</div></section>'
        "<section><h2>Where the wall time goes</h2><p>Wall time per event of a batch with two "
        "threads, taken around the engine's phases from outside. Planning includes the look-up of "
        "the keys, which the serial scheme does while it executes.</p>"
        f'{legend(PARTS)}<div class="grid">{"".join(parts)}</div></section>'
    )


def show_contention(rows: Sequence[Row], paint: Paint) -> str:
    pictures, shares, tables = [], [], []
    for (name, phase, cost), mine in split(rows, "application", "phase", "cost_us").items():
        found, title = figures(mine), f"{name}, {phase} keys, {cost_words(cost)}"
        pictures.append(picture(title, draw_bars(found, paint)))
        shares.append(picture(title, draw_shares([one for one in found if one.shares])))
        shape = f"Events in a batch: {mine[0]['events']}. {graph_words(mine)}"
        tables.append(fold(title, f"<p>{shape}</p>" + figure_table(found, paint.incorrect)))
    return (
        "<section><h2>Contention</h2><p>The same applications on two threads with uniform keys, "
        "with a skew of 1, and with that skew over a hundred rows. Throughput over that of the "
        f'serial scheme.</p><div class="grid">{"".join(pictures)}</div>'
        f"<h3>What threads spend their time on</h3>{legend(SHARES)}"
        f'<div class="grid">{"".join(shares)}</div>{"".join(tables)}</section>'
    )


def show_throughput(rows: Sequence[Row], paint: Paint) -> str:
    tables = []
    for (name,), mine in split(rows, "application").items():
        title = f"<h3>{escape(name)}: batches of {mine[0]['events']:,} events</h3>"
        tables.append(title + figure_table(figures(mine), paint.incorrect))
    return (
        "<section><h2>Events per second</h2><p>No added cost, 100,000 keys, in memory, from events "
        "in Arrow to results in Arrow: what the bars compare with the public figures of "
        f"MorphStream.</p>{''.join(tables)}</section>"
    )


def graph_words(rows: Sequence[Row]) -> str:
    """The figures of the first batch's graph that a reader wants."""
    known = json.loads(rows[0]["graph"] or "{}")
    wanted = (
        "operations", "temporal", "parametric", "logical", "strata", "widest_stratum",
        "longest_path", "longest_chain", "degree_skew", "cycles", "ideal_speedup",
    )  # fmt: skip
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
        pictures.append(picture(name, drawing))
        tables.append(fold(name, figure_table(found, paint.incorrect, mine[0]["parameter"])))
        sentences.append(f"<li>{escape(name)}: {_sweep_words(found, paint.incorrect)}</li>")
    swept = {row["scheme"] for row in rows} - {SERIAL}
    names = [name for name in paint.schemes if name in swept]
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
        parts += [
            fold(f"phase {phase}: all schemes", figure_table(figures(part), paint.incorrect))
            for (phase,), part in split(mine, "phase").items()
        ]
        parts.append(fold("what the model chose for each batch, and why", _choices(mine)))
    return (
        "<section><h2>The dynamic workload</h2><p>Four phases of the Streaming Ledger on the same "
        "engines: mostly deposits on scattered keys; then the skew rises to 1; then the share of "
        "transfers rises to 0.9; then that of aborts rises to 0.9. Each batch's ratio is to the "
        "serial run of the same batch, so single points are noisy; the table has the ratios of the "
        "medians of a phase, with a table of each phase below. The strip under the plot has the "
        f"colour of the scheme that the model chose.</p>{''.join(parts)}</section>"
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
    drawn = _drawn(series)
    lines = paint.legend([*drawn, SERIAL])
    lines += draw_lines(drawn, ticks, paint, "ratio to serial", "", size)
    plane, parts = Plane(*size, 1.0, above=2), []
    wide = (plane.x(1) - plane.x(0)) / max(1, len(by_batch) - 1)
    for place, decision, why in chosen:
        colour = paint.colour(decision.split(" + ")[0])
        left = max(plane.x(0), plane.x(0) + (place - 0.5) * wide)
        right = min(plane.x(1), plane.x(0) + (place + 0.5) * wide)
        parts.append(rect(left, 2, right - left - 1, 14, colour, f"{decision}: {why}"))
    return lines + svg(size[0], 20, parts, "the model's choice for each batch")


def _drawn(
    series: Mapping[str, list[tuple[int, float]]],
) -> dict[str, list[tuple[int, float]]]:
    """The model and the fastest others, as many as a plot can show."""
    ranked = sorted(series, key=lambda name: -float(np.median([y for _, y in series[name]])))
    kept = {MODEL, *[name for name in ranked if name != MODEL][: DRAWN_MAX - 1]}
    return {name: values for name, values in series.items() if name in kept}


def _phase_table(rows: Sequence[Row], paint: Paint) -> str:
    lines = []
    for (phase,), mine in split(rows, "phase").items():
        found = figures(mine)
        for threads in sorted({row["threads"] for row in mine}):
            placed = model_ratio(found, paint.incorrect, threads)
            picks = [
                row["decision"] for row in mine
                if row["threads"] == threads and row["scheme"] == MODEL
            ]  # fmt: skip
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
disturbs all alike. A ratio is that of the medians over the batches of one race. The first two
batches of a race are run but not counted. The added cost of an operation is a loop of arithmetic
whose steps were timed on this machine before the run. Latency is end to end, of an event, from its
arrival to its result in Arrow, for a stream as fast as the scheme can take it: the event waits
until its batch is complete, while the one before it runs, and then for its own batch; both times
are measured, the even arrival is assumed.</p>
<p>After each batch the results of every scheme were compared with the serial ones, after each race
all rows of all tables; a difference ends the benchmark, so that a report exists only where there
was none. The scheme marked incorrect is left out of this: it isolates nothing and is a bound for
speed. A quick run leaves the schemes that work by operations out where operations are cheap. All
measurements, batch by batch, are in the Parquet files beside this one.</p>
"""


def render(
    rows: Sequence[Row],
    planned: Sequence[Row],
    facts: Mapping[str, str],
    schemes: Mapping[str, str],
    incorrect: frozenset[str],
) -> str:
    """The whole page."""
    paint = Paint(schemes, incorrect)
    of = split(rows, "section")
    shown = {
        "applications": show_applications, "throughput": show_throughput,
        "contention": show_contention, "sweeps": show_sweeps, "dynamic": show_dynamic,
    }  # fmt: skip
    swept = [mine for (section,), mine in of.items() if section not in shown]
    of["sweeps",] = [{**row, "cost_us_shown": _shown(row)} for mine in swept for row in mine]
    facts_table = table(["this run", ""], [[name, words] for name, words in facts.items()])
    meaning = table(["scheme", ""], [[name, words] for name, words in schemes.items()])
    parts = [
        "<h1>Schemes side by side</h1>",
        '<p class="lead">How the ways to run a batch of transactions compare, on one machine in '
        "one run. Figures are ratios to the serial scheme; absolute ones are for orientation.</p>",
        facts_table,
        show_bars(rows, planned, paint),
        *(draw(of[section,], paint) for section, draw in shown.items() if of.get((section,))),
        show_planning(planned) if planned else "",
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
