"""The start benchmark: from the first line of a program to its first committed batch.

Each start is a process of its own, with an empty compile cache or with the one that such a start
left behind. Two programs: the README's transfer into a store, and four transactions of the
applications, each of which gives a result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

EXAMPLE = """
import datetime as dt
import sys

import headgate as hg

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double")
def transfer(
    event, src=accounts.at("src"), dst=accounts.at("dst"), out=hg.output("src_balance double")
):
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.src_balance = src.balance


now = dt.datetime.now(dt.timezone.utc)
with hg.open(sys.argv[1], tables=[accounts], transactions=[transfer]) as engine:
    engine.load(accounts, [{"id": number, "balance": 100.0} for number in range(10)])
    events = [{"ts": now, "src": 1, "dst": 2, "amount": 5.0}]
    print(engine.run(transfer, events, order_by="ts").column("outcome").to_pylist(), flush=True)
"""
FOUR = """
import sys

import headgate as hg
from apps import bidding, grep_sum, tolls

modules = (grep_sum, bidding, tolls)
tables = {id(t): t for m in modules for t in vars(m).values() if isinstance(t, hg.Table)}
found = {id(t): t for m in modules for t in vars(m).values() if isinstance(t, hg.Transaction)}
four = list(found.values())[:4]
with hg.open(sys.argv[1], tables=list(tables.values()), transactions=four) as engine:
    for one in four:
        event = {}
        for column in one.event:
            kind = str(column.type)
            event[column.name] = [1] if kind.startswith("array") else "a" if kind == "string" else 1
        print(engine.run(one, [event]).column("outcome").to_pylist(), flush=True)
"""
PROGRAMS = {"the README's example": EXAMPLE, "four transactions": FOUR}
ROOT = Path(__file__).resolve().parents[1]


def start(program: str, folder: Path, cache: Path) -> float:
    """Seconds from the start of the process to its last result."""
    store = tempfile.mkdtemp(dir=folder)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "HEADGATE_CACHE": str(cache), "PYTHONPATH": paths}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program, f"{store}/store"], env=environment, cwd=folder,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        lines, last = 0, began
        for _ in process.stdout or ():
            lines, last = lines + 1, time.perf_counter()
    if process.returncode or not lines:
        raise RuntimeError(f"the program failed with {process.returncode}")
    return last - began


def measure(program: str, folder: Path, rounds: int) -> tuple[float, float]:
    """Median seconds of a start with an empty cache, and of one with a full one."""
    cold, warm = [], []
    for number in range(rounds):
        cache = folder / f"cache-{number}"
        cold.append(start(program, folder, cache))
        warm += [start(program, folder, cache) for _ in range(2)]
    return median(cold), median(warm)


def main(quick: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("program", "empty cache, s", "bar", "full cache, s", "bar", title="First commit")
    bars = {"the README's example": ("4", "1.5"), "four transactions": ("8", "")}
    with tempfile.TemporaryDirectory(prefix="headgate-start-") as folder:
        for name, program in PROGRAMS.items():
            with console.status(name):
                cold, warm = measure(program, Path(folder), 1 if quick else 5)
            empty, full = bars[name]
            table.add_row(name, f"{cold:.2f}", empty, f"{warm:.2f}", full)
    console.print(table)
