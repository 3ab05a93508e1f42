"""The benchmark of rows that an event does not name: keys that are computed from other rows.

As MorphStream's figure 15: the share of transactions with a computed key goes from 0 to 100 %. The
same events run with keys that are certain (no event changes what they depend on), with keys that
events of the batch keep changing, and by a program that has the keys in its events. Beside what the
model chooses stand one plan of threads and the paper's virtual operations. All of them take turns
in one process. Of the rounds of each the lower quartile counts: other work on the machine takes a
core away for milliseconds, in more than every second batch at times.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

import headgate as hg
from bench import expiry, ranges, windows

ROWS, EVENTS, HOT_ROWS = 100_000, 10_240, 64
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
EVENT = "kind string, src bigint, dst bigint, amount bigint"
GIVEN = "keys in the event"
WAYS = {"auto": "auto", "ready": "predicted", "virtual": "virtual operations"}
# As the paper has them, one for each row of the table that an event might come to: so few events
# already take as long as all those of the sweeps.
ROW_BY_ROW = {"auto": "auto", "virtual-rows": "virtual operations"}
EVENTS_ROW_BY_ROW, ROUNDS_ROW_BY_ROW = EVENTS // 20, 3

states = hg.Table("states", "id bigint, value bigint, next bigint", key="id")


@hg.transaction(event=EVENT)
def named(event, src=states.at("src"), dst=states.at("dst")):
    src.value -= event.amount
    dst.value += event.amount


@hg.transaction(event=EVENT)
def computed(event, src=states.at("src"), dst=states.at(lambda src: src.next)):
    src.value -= event.amount
    dst.value += event.amount


@hg.transaction(event=EVENT)
def moving(event, src=states.at("src"), dst=states.at(lambda src: src.next)):
    src.value -= event.amount
    dst.value += event.amount
    src.next = event.dst


@dataclass(frozen=True)
class Sweep:
    """What each way took for a transaction, in nanoseconds, by the share of computed keys."""

    title: str
    found: Mapping[float, Mapping[str, float]]

    def ratio(self, share: float, way: str, other: str) -> float:
        """How many times as fast as the other a way is."""
        return self.found[share][other] / self.found[share][way]


def next_of(rows: int) -> np.ndarray:
    """Where each row leads: spread over the table, and the same in every run."""
    return np.random.default_rng(7).permutation(rows)


def make_events(seed: int, count: int, share: float, rows: int, hot: int | None) -> pa.Table:
    """Events whose computed keys are in `dst`, too, unless other events change them."""
    draw = np.random.default_rng(seed)
    src = draw.integers(0, hot or rows, count)
    dst = next_of(rows)[src] if hot is None else draw.integers(0, rows, count)
    kinds = np.where(draw.random(count) < share, "computed", "named")
    amount = draw.integers(1, 100, count)
    return pa.table({"kind": pa.array(kinds), "src": src, "dst": dst, "amount": amount})


def open_states(rows: int, transactions: Sequence[Any]) -> hg.Engine:
    engine = hg.open(None, tables=[states], transactions=list(transactions))
    ids = np.arange(rows)
    first = {"id": ids, "value": np.zeros(rows, np.int64), "next": next_of(rows)}
    engine.load(states, pa.table(first))
    return engine


def measure(
    title: str, mover: Any, hot: int | None, rounds: int, rows: int = ROWS, events: int = EVENTS,
    shares: Sequence[float] = SHARES, threads: int = 2, schemes: Mapping[str, str] = WAYS,
) -> Sweep:  # fmt: skip
    """Every way over the same events, in turn; the tables must be the same in the end."""
    routes = {"named": named, "computed": mover}
    plain = {"named": named, "computed": named}
    ways = {schemes[scheme]: (routes, scheme) for scheme in schemes}
    if hot is None and schemes is WAYS:
        ways[GIVEN] = (plain, "auto")
    engines = {way: open_states(rows, set(route.values())) for way, (route, _) in ways.items()}
    taken: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds + 1):
        for share in shares:
            batch = make_events(number, events, share, rows, hot)
            for way, (route, scheme) in ways.items():
                began = time.perf_counter()
                engines[way].run(route, batch, route_by="kind", scheme=scheme, threads=threads)
                if number:  # the first round compiles
                    taken[share][way].append((time.perf_counter() - began) / events * 1e9)
    check_same(engines)
    return Sweep(title, {
        share: {way: quantiles(times, n=4)[0] for way, times in found.items()}
        for share, found in taken.items()
    })  # fmt: skip


def check_same(engines: Mapping[str, hg.Engine]) -> None:
    """Refuse figures of ways that did not do the same."""
    asked = (
        "select sum(value * (id % 1009)) as values, sum(next * (id % 1013)) as nexts from states"
    )
    found = {way: engine.sql(asked).rows() for way, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    if len({str(rows) for rows in found.values()}) > 1:
        raise RuntimeError(f"the ways did not do the same: {found}")


def lines(sweep: Sweep) -> list[str]:
    """The sweep as lines to read."""
    ways = list(next(iter(sweep.found.values())))
    told = [sweep.title, "  share  " + "  ".join(f"{way:>18}" for way in ways)]
    for share, found in sweep.found.items():
        told.append(f"  {share:5.0%}  " + "  ".join(f"{found[way]:15.0f} ns" for way in ways))
    return told


def main(quick: bool = False) -> None:
    console, rounds = Console(highlight=False, soft_wrap=True), 5 if quick else 40
    certain = measure("keys that no event of the batch changes", computed, None, rounds)
    wrong = measure("keys that other events keep changing", moving, HOT_ROWS, rounds)
    by_rows = measure(
        "virtual operations of every row, few events", computed, None, ROUNDS_ROW_BY_ROW,
        events=EVENTS_ROW_BY_ROW, shares=(0.2,), schemes=ROW_BY_ROW,
    )  # fmt: skip
    for sweep in (certain, wrong, by_rows):
        console.print("\n".join(lines(sweep)))
    virtual, auto = WAYS["virtual"], WAYS["auto"]
    bars = [
        ("prediction over virtual operations at 20 %", by_rows.ratio(0.2, auto, virtual), 5.0),
        ("the same, one for the whole table instead", certain.ratio(0.2, auto, virtual), 5.0),
        ("the same, mostly wrong, at 100 %", wrong.ratio(1.0, auto, virtual), 0.9),
        ("all right, over keys in the event", certain.ratio(1.0, auto, GIVEN), 0.7),
    ]
    for what, ratio, bar in bars:
        verdict = "met" if ratio >= bar else "MISSED"
        console.print(f"{what}: {ratio:.2f} (bar {bar}: {verdict})")
    ranges.main(quick)
    windows.main(quick)
    expiry.main(quick)
