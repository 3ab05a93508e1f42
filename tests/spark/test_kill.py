"""Kill -9 at random moments: the ledger, started again, ends as one undisturbed run would.

HEADGATE_KILLS says how often (6 by default, 100 under --long), HEADGATE_SEED when.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.durability import StoreReader
from tests.spark.checkpoints import REFUSED, delivered, remove_refused

PROGRAM = Path(__file__).with_name("ledger_program.py")
KILLS, KILLS_LONG = 6, 100  # few: inside of the commit by all four hooks, and two others by chance
EVENTS_PER_FILE = 30
ACCOUNTS = 8
START = datetime(2024, 1, 1, tzinfo=UTC)
SECONDS_MAX = 400.0  # a start takes ten seconds, a minute on a machine with much else to do


@dataclass(frozen=True)
class Moment:
    """When to kill: some seconds after the program says a word, or inside of its commit."""

    word: str = ""
    occurrence: int = 1
    delay_s: float = 0.0
    hook: str = ""


def moments(chance: random.Random, count: int) -> list[Moment]:
    """Moments of every kind, over and over, each time anew: inside of the commit first, and then
    the others in any order, for there may be no room for all."""
    found: list[Moment] = []
    hooks = ["before append", "after append", "before publish", "after publish"]
    while len(found) < count:
        found += [Moment(hook=f"{hook} {chance.randint(1, 2)}") for hook in hooks]
        others = [
            Moment("batch", chance.randint(1, 2), chance.uniform(0, 0.3)),
            Moment("applied", chance.randint(1, 2), chance.uniform(0, 0.2)),
            Moment("query", 1, chance.uniform(0, 2)),
            Moment("copy", 1, chance.uniform(0, 1)),
            Moment("copy", 1, chance.uniform(1, 4)),
            Moment("session", 1, chance.uniform(0, 1)),
            Moment("started", 1, chance.uniform(0, 4)),
        ]
        found += chance.sample(others, len(others))
    chosen = found[:count]
    chance.shuffle(chosen)
    return chosen


def write_events(folder: Path, files: int) -> list[int]:
    """Files of events out of order, some of them late; returns the numbers of the events.

    A killed query may put two files into one micro-batch that an undisturbed one runs one by one,
    which is Spark's right. So the disorder stays within the watermark, or is far beyond it: which
    event is late, and the order of all others, then do not depend on where batches end.
    """
    chance = random.Random(7)
    folder.mkdir(parents=True)
    numbers = []
    for file in range(files):
        rows = []
        for place in range(EVENTS_PER_FILE):
            number = file * EVENTS_PER_FILE + place
            shift = chance.choice([0.0, 0.25, 0.5, 1.5])
            moment = START + timedelta(seconds=file + shift)
            if file > files // 2 and place % 10 == 3:
                moment -= timedelta(hours=1)
            rows.append(event(chance, number, moment))
            numbers.append(number)
        write_file(folder, file, rows)
    # One event far ahead makes the watermark pass all others; it is held back itself.
    write_file(folder, files, [event(chance, -1, START + timedelta(days=1))])
    return numbers


def event(chance: random.Random, number: int, moment: datetime) -> dict[str, Any]:
    kind = chance.choice("tttd")
    return {
        "kind": kind,
        "ts": moment,
        "event": number,
        "src": chance.randrange(ACCOUNTS) if kind == "t" else None,
        "dst": chance.randrange(ACCOUNTS + (2 if kind == "d" else 1)),
        "amount": float(chance.randint(1, 90)),
    }


def write_file(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    schema = pa.schema(
        {
            "kind": pa.string(),
            "ts": pa.timestamp("us", tz="UTC"),
            "event": pa.int64(),
            "src": pa.int64(),
            "dst": pa.int64(),
            "amount": pa.float64(),
        }
    )
    path = folder / f"{number:04}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    # Spark takes files in the order of their times.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


class Run:
    """One start of the program in a process group of its own."""

    def __init__(self, folder: Path, environment: dict[str, str], moment: Moment) -> None:
        self._moment = moment
        # The copy costs seconds to start; it runs when it shall be killed, and to the end.
        copies = "yes" if moment.word in ("copy", "") and not moment.hook else "no"
        asked = {"HEADGATE_DIE_AT": moment.hook, "HEADGATE_COPY": copies}
        self._folder, self._hangs = folder, False
        self._seen: Counter[str] = Counter()
        self._errors = (folder / "stderr.txt").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder)],
            env={**environment, **_scratch(folder), **asked},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def wait(self) -> bool:
        """Follow the program to its end; False when it was done, True when it was killed, or had to
        give up because the one before it was killed where Spark cannot go on."""
        watch = threading.Timer(SECONDS_MAX, self._give_up)
        watch.start()
        try:
            self._follow()
        finally:
            watch.cancel()
            self._kill()
            code = self._process.wait()
            self._errors.close()
        assert not self._hangs, f"the program hangs after {dict(self._seen)}: {self._tail()}"
        if code == 1 and REFUSED in self._tail():
            assert remove_refused(self._folder), (
                f"there is a batch, and it is refused: {self._tail()}"
            )
            return True
        assert code in (0, -signal.SIGKILL), f"the program failed with {code}: {self._tail()}"
        return code != 0

    def _follow(self) -> None:
        seen = self._seen
        for line in self._process.stdout or ():
            word = line.strip()
            seen[word] += 1
            if (word, seen[word]) == (self._moment.word, self._moment.occurrence):
                time.sleep(self._moment.delay_s)
                return
        self._process.wait()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _give_up(self) -> None:
        self._hangs = True
        self._kill()

    def _tail(self) -> str:
        return Path(self._errors.name).read_text(errors="replace")[-3000:]


def _scratch(folder: Path) -> dict[str, str]:
    """A killed JVM cannot clean up, so what it leaves lies in the folder of the test."""
    place = folder / "scratch"
    place.mkdir(exist_ok=True)
    return {"TMPDIR": str(place), "SPARK_LOCAL_DIRS": str(place)}


def state_of(folder: Path) -> list[dict[str, Any]]:
    rows = StoreReader.open(folder / "bank").table("accounts").to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def results_of(folder: Path) -> list[dict[str, Any]]:
    store = StoreReader.open(folder / "bank")
    found = []
    for epoch, batch in store.results(1, store.last_epoch()):
        found += [{"epoch": epoch, **row} for row in batch.to_pylist()]
    return found


def copy_of(folder: Path) -> list[dict[str, Any]]:
    """What the copying query delivered."""
    rows = delivered(folder / "copy").to_pylist()
    return sorted(rows, key=lambda row: (row["epoch"], row["position"]))


@pytest.mark.timeout(0)
def test_a_killed_ledger_ends_as_an_undisturbed_one(
    tmp_path: Path, program_environment: dict[str, str], long_run: bool
) -> None:
    kills = int(os.environ.get("HEADGATE_KILLS", KILLS_LONG if long_run else KILLS))
    files = kills + 10  # a run that is killed gets one or two of them done
    seed = int(os.environ.get("HEADGATE_SEED", random.randrange(10**6)))
    print(f"HEADGATE_SEED={seed}")
    calm, harsh = tmp_path / "calm", tmp_path / "harsh"
    numbers = write_events(calm / "events", files)
    write_events(harsh / "events", files)
    assert not Run(calm, program_environment, Moment()).wait()
    killed = 0
    for moment in moments(random.Random(seed), kills):
        started = time.monotonic()
        killed += Run(harsh, program_environment, moment).wait()
        print(f"{time.monotonic() - started:5.1f} s  {moment}")
    while Run(harsh, program_environment, Moment()).wait():
        print("once more: Spark refused the checkpoint")
    print(f"killed {killed} times")
    assert killed >= kills * 0.9, "too many runs came to their end; there is too little to do"
    check_same(calm, harsh, numbers)


def check_same(calm: Path, harsh: Path, numbers: list[int]) -> None:
    results = results_of(harsh)
    assert Counter(row["event"] for row in results) == Counter(numbers), "not exactly once"
    assert serial_order(results) == serial_order(results_of(calm))
    assert late_ones(results) == late_ones(results_of(calm))
    carried = {row["event"]: row["kind"] for row in results}
    assert carried == {row["event"]: row["kind"] for row in results_of(calm)}
    assert {row["outcome"] for row in results} == {"committed", "aborted", "late"}
    assert state_of(harsh) == state_of(calm)
    assert_is_copy(copy_of(harsh), results)
    assert_is_copy(copy_of(calm), results_of(calm))


def serial_order(results: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What ran, in its order; the numbers of epochs depend on where Spark ends a batch."""
    columns = ("ts", "event", "transaction", "outcome", "reason", "balance")
    return [tuple(row[name] for name in columns) for row in results if row["outcome"] != "late"]


def late_ones(results: list[dict[str, Any]]) -> set[int]:
    return {row["event"] for row in results if row["outcome"] == "late"}


def assert_is_copy(copied: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    assert [(row["epoch"], row["position"]) for row in copied] == [
        (row["epoch"], row["position"]) for row in results
    ]
    assert serial_order(copied) == serial_order(results)
