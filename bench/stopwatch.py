"""The stopwatch: what the parts of a batch take, from outside; and what its threads counted.

Taking the time of the parts costs next to nothing and is done for every batch. Counting inside the
threads costs a little for every operation, so it is done in rounds of its own, whose throughput is
not reported.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import headgate as hg

# What is timed, and as which part of a batch; time inside a nested call counts for that call alone.
WATCHED = (
    ("headgate.engine.ordering:Arranger.arrange", "order"),
    ("headgate.execution.program:Program.resolve", "resolve"),
    ("headgate.parallel.whole_transactions:TransactionBatch.decide", "plan"),
    ("headgate.parallel.whole_transactions:TransactionBatch.crew", "plan"),
    ("headgate.parallel.whole_transactions:TransactionBatch.resolve", "plan"),
    ("headgate.parallel.units:UnitBatch.__init__", "plan"),
    ("headgate.parallel.units:UnitCrew.__init__", "plan"),
    ("headgate.isolation.levels:Executor.execute", "execute"),
    ("headgate.engine.batch:build_results", "results"),
    # The same of a batch that goes the straight path.
    ("headgate.engine.straight_path:StraightPath.take", "order"),
    ("headgate.execution.straight_run:StraightRun.place_rows", "resolve"),
    ("headgate.execution.straight_run:StraightRun.run", "execute"),
    ("headgate.engine.straight_results:StraightResults.made", "results"),
)
PARTS = ("order", "resolve", "plan", "execute", "results", "rest")

# What threads spend their time on, as in the papers; the last is what nobody told apart.
COUNTED = ("useful", "sync", "lock", "construct", "explore", "abort")
UNCOUNTED = "uncounted"
SHARES = (*COUNTED, UNCOUNTED)


class Stopwatch:
    """Times the parts of a batch from outside, by standing in for the functions that do them."""

    def __init__(self) -> None:
        self.missing: list[str] = []  # what the engine no longer has: counted with what calls it
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._open = ["rest"]
        self._mark = 0.0
        self._undo = ExitStack()

    def __enter__(self) -> Stopwatch:
        for path, part in WATCHED:
            owner, name = _owner(path)
            found = getattr(owner, name, None)
            if found is None:
                self.missing.append(path)
                continue
            self._undo.callback(setattr, owner, name, found)
            setattr(owner, name, self._timed(found, part))
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            self._charge()
            self._open.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._charge()
                self._open.pop()

        return timed

    def _charge(self) -> None:
        now = time.perf_counter()
        self._spent[self._open[-1]] += now - self._mark
        self._mark = now

    def measure(self, action: Callable[[], Any]) -> tuple[Any, float, dict[str, float]]:
        """What the action gave, its seconds, and those of each part."""
        self._spent = dict.fromkeys(PARTS, 0.0)
        began = self._mark = time.perf_counter()
        result = action()
        self._charge()
        return result, self._mark - began, dict(self._spent)


def _owner(path: str) -> tuple[Any, str]:
    """The module or class that holds a function, and the function's name in it."""
    module, _, name = path.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for step in outer:
        owner = getattr(owner, step, None)
    return owner, last


def let_count(engine: hg.Engine, is_on: bool = True) -> None:
    """Have the threads of an engine's next batches count what they spend their time on, or not."""
    for executor in engine._executors.values():
        executor.scheduler.is_timed = is_on


def counted(engine: hg.Engine) -> dict[str, float | None]:
    """Seconds of thread time by what they were spent on, None where the scheme counts nothing."""
    for executor in engine._executors.values():
        found: Mapping[str, float] | None = executor.scheduler.breakdown
        if found:
            return {f"{part}_s": float(found.get(part, 0.0)) for part in COUNTED}
    return {f"{part}_s": None for part in COUNTED}
