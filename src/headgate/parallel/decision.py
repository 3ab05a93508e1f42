"""The decision: which scheme runs a batch, and why, in words.

Serial execution needs no graph at all, so the first question is whether a graph could pay for
itself; only then is one built and looked at. The graph of whole transactions comes first, as it is
the cheaper one; where it is too narrow for the threads, the graph of operations is asked, and then
all three dimensions are open: exploration, granularity, handling of aborts.

What planning and threads cost is measured by `headgate calibrate` and kept in a file. Whatever is
wrong with that file, the defaults stand in for it: a decision may then be slower, never wrong.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from headgate.errors import InputError
from headgate.io import Disk, RealDisk, make_folders, read_file, replace_file
from headgate.kernels.shares import SECTION_EVENTS
from headgate.parallel.figures import Shape

PROBE_BATCHES = 64
CHANGE_MIN = 1.5
CHANGED_BATCHES = 3
TRIAL_BATCHES = 256
VARIABLE = "HEADGATE_CALIBRATION"
FILE_NAME = "calibration.json"
FORMAT = 1
_ELSEWHERE = f"set {VARIABLE} to a file that can be written, and run `headgate calibrate`"

BALANCED_SKEW = 3.0  # the busiest row has at most this many times the mean: fixed shares are even
LAZY_REDO_STEPS = 4.0  # units that an abort found late takes with it, as far as is known
# On two real threads shares were seen at 0.8 to 0.9 of the serial loop, whatever the costs say:
# what they need more of is lines of the cache that move from core to core.
SHARES_THREADS_MIN = 4


@dataclass(frozen=True)
class Thresholds:
    """What planning and threads cost; the defaults hold for common machines."""

    plan_ns_per_operation: float = 40.0  # the graph of whole transactions
    unit_plan_ns_per_operation: float = 80.0  # the graph of operations, with its versions
    version_ns_per_operation: float = 60.0  # copying rows to versions and back
    abort_ns: float = 20_000.0  # stopping all threads once and undoing what must be undone
    start_ns: float = 300_000.0  # threads of one batch, started and joined
    barrier_ns: float = 15_000.0
    signal_ns: float = 60.0  # one edge of the graph, counted down
    share_ns_per_operation: float = 12.0  # planned by all threads at once, and run along that
    share_start_ns: float = 100_000.0  # the same with two threads, however small the batch
    thread_ns: float = 5_000.0  # each further thread
    speedup_min: float = 1.15  # less than this is not worth the second core
    cost_ns_min: float = 2_000.0  # a transaction cheaper than this never pays for its signals


@dataclass(frozen=True)
class Load:
    """What is known of a batch before any graph: its size, and what the last ones cost."""

    transactions: int
    operations: int
    cost_ns: float | None  # of one transaction
    abort_ratio: float
    threads: int
    shared_ns: float | None = None  # of one transaction by shares, as the last batches took

    @property
    def serial_ns(self) -> float:
        return (self.cost_ns or 0.0) * self.transactions


@dataclass(frozen=True)
class Decision:
    """The scheme of one batch, or of one group in it, and the reason."""

    scheme: str
    why: str
    ns: float = 0.0  # what it is expected to take
    transactions: int = 0


def worth_planning(load: Load, costs: Thresholds) -> Decision | None:
    """A decision for serial when a graph cannot pay for itself, else None: build it and look."""
    if load.threads < 2:
        return _serial(load, "one thread")
    if load.cost_ns is None:
        return _serial(load, "the cost of a transaction is not known yet: measured now")
    if load.cost_ns < costs.cost_ns_min:
        why = f"a transaction takes {load.cost_ns:.0f} ns, less than telling others of it"
        return _serial(load, why)
    overhead_ns = costs.plan_ns_per_operation * load.operations + costs.start_ns
    best_ns = load.serial_ns / load.threads + overhead_ns
    if load.serial_ns < costs.speedup_min * best_ns:
        return _serial(
            load,
            f"{load.transactions} transactions of {load.cost_ns:.0f} ns take "
            f"{load.serial_ns / 1e6:.1f} ms one after another; planning and {load.threads} "
            f"threads would take {best_ns / 1e6:.1f} ms",
        )
    return None


def before_a_graph(load: Load, costs: Thresholds) -> Decision | None:
    """What can be said without a graph: serial, shares where they pay; None: build it and look."""
    serial = worth_planning(load, costs)
    if serial is None or load.threads < SHARES_THREADS_MIN or load.cost_ns is None:
        return serial
    ns = shares_ns(load, costs)
    if load.serial_ns < costs.speedup_min * ns:
        return serial
    why = (
        f"{load.transactions} transactions of {load.cost_ns:.0f} ns, too cheap for a graph: "
        f"{load.threads} threads that plan at once take {ns / 1e6:.1f} instead of "
        f"{load.serial_ns / 1e6:.1f} ms"
    )
    return Decision("shares", why, ns, load.transactions)


def shares_ns(load: Load, costs: Thresholds) -> float:
    """What a batch takes by shares: more work in all, shared evenly; or more, where the last ones
    did, for how much threads wait for each other shows only as they run."""
    work_ns = load.serial_ns + costs.share_ns_per_operation * load.operations
    meetings = 2 * -(-load.transactions // SECTION_EVENTS)
    start_ns = costs.share_start_ns + costs.thread_ns * (load.threads - 2)
    found_ns = start_ns + work_ns / load.threads + meetings * costs.barrier_ns
    return max(found_ns, (load.shared_ns or 0.0) * load.transactions)


def _serial(load: Load, why: str) -> Decision:
    return Decision("serial", why, load.serial_ns, load.transactions)


def choose_transactions(load: Load, shape: Shape, skewed: float, costs: Thresholds) -> Decision:
    """The best way to run whole transactions, or serial when none is better."""
    step_ns = load.serial_ns / max(1, shape.work)
    plan_ns = costs.plan_ns_per_operation * load.operations + costs.start_ns
    exploration, explore_ns, because = _exploration(load, shape, skewed, step_ns, costs)
    total_ns = _bound_ns(load, shape, step_ns) + explore_ns + plan_ns
    found = (
        f"{load.transactions} transactions in {shape.strata} strata, {shape.edges} dependencies, "
        f"ideal speed-up {shape.ideal_speedup:.1f}"
    )
    if load.serial_ns < costs.speedup_min * total_ns:
        return _serial(load, f"{found}: {load.threads} threads would not gain enough")
    return Decision(exploration, f"{found}: {because}", total_ns, load.transactions)


def is_wide(load: Load, shape: Shape) -> bool:
    """Whether whole transactions keep the threads busy, so that finer units cannot gain."""
    return shape.ideal_speedup >= 2 * load.threads


def choose_units(
    load: Load, fine: Shape, coarse: Shape, cycles: int, skewed: float, costs: Thresholds
) -> Decision:
    """The best way to run the batch by operations, or by chains of them."""
    step_ns = load.serial_ns / max(1, fine.work)
    granularity, shape, grain = _granularity(load, fine, coarse, cycles, step_ns, costs)
    exploration, explore_ns, because = _exploration(load, shape, skewed, step_ns, costs)
    abort, abort_ns, rule = _abort(load, step_ns, costs)
    overhead_ns = costs.unit_plan_ns_per_operation * load.operations + costs.start_ns
    overhead_ns += costs.version_ns_per_operation * load.operations / load.threads
    total_ns = _bound_ns(load, shape, step_ns) + explore_ns + overhead_ns + abort_ns
    found = (
        f"{fine.work} operations with a longest path of {shape.path}, {shape.edges} dependencies"
    )
    return Decision(
        f"{exploration}-{granularity}-{abort}",
        f"{found}: {grain}; {because}; {rule}",
        total_ns,
        load.transactions,
    )


def _bound_ns(load: Load, shape: Shape, step_ns: float) -> float:
    """No schedule is shorter than the longest path, or than the work shared evenly."""
    return max(load.serial_ns / load.threads, shape.path * step_ns)


def _exploration(
    load: Load, shape: Shape, skewed: float, step_ns: float, costs: Thresholds
) -> tuple[str, float, str]:
    """Structured where meeting is cheap or shares are even, else non-structured."""
    # At each barrier threads wait for the last task: half of one in the mean, but for one thread.
    idle_ns = step_ns * shape.work / max(1, shape.tasks) * (1 - 1 / load.threads) / 2
    strata_ns = (costs.barrier_ns + idle_ns) * shape.strata
    signals_ns = costs.signal_ns * (shape.edges + shape.tasks)
    if strata_ns < signals_ns / 2:
        return "strata", strata_ns, "few strata, so barriers are cheap"
    if skewed <= BALANCED_SKEW and shape.ideal_speedup >= 2 * load.threads:
        return "depth", signals_ns / 2, "rows are used evenly, so each thread takes its share"
    return "ready", signals_ns, "many small strata, so whoever is free takes what is ready"


def _granularity(
    load: Load, fine: Shape, coarse: Shape, cycles: int, step_ns: float, costs: Thresholds
) -> tuple[str, Shape, str]:
    """Chains where they do not lengthen the way, for they signal less; else single operations."""
    ways = {}
    for name, shape in (("operation", fine), ("chain", coarse)):
        signals_ns = costs.signal_ns * (shape.edges + shape.tasks)
        ways[name] = _bound_ns(load, shape, step_ns) + signals_ns / load.threads
    if ways["chain"] <= ways["operation"]:
        return "chain", coarse, f"{coarse.tasks} chains, {cycles} merged, signal less"
    return "operation", fine, f"{cycles} chains wait for each other, so single operations"


def _abort(load: Load, step_ns: float, costs: Thresholds) -> tuple[str, float, str]:
    """Eager where an abort costs less than the work it would spoil."""
    aborts = load.abort_ratio * load.transactions
    eager_ns = aborts * costs.abort_ns
    lazy_ns = aborts * LAZY_REDO_STEPS * step_ns
    if lazy_ns <= eager_ns:
        return "lazy", lazy_ns, f"{load.abort_ratio:.0%} aborts of cheap operations wait to the end"
    return "eager", eager_ns, f"{load.abort_ratio:.0%} aborts are settled at once"


# --- when the cost of a transaction is asked again ------------------------------------------------


class Probing:
    """Keeps count of the parallel batches since the last serial one.

    What a transaction costs can be told from serial batches only. While batches run in parallel, it
    is asked again after so many of them, and as soon as some in a row go clearly faster or slower
    than they did: a single one may just have been held up.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._pace_ns: float | None = None  # of a transaction, when they began to run in parallel
        self._changed = 0  # the last so many batches
        self.is_due = False

    def learnt(self) -> None:
        """A serial batch was measured."""
        self._batches, self._pace_ns, self._changed, self.is_due = 0, None, 0, False

    def ran(self, pace_ns: float) -> None:
        """A parallel batch took so long for each transaction."""
        self._batches += 1
        if self._pace_ns is None:
            self._pace_ns = pace_ns
        slower, faster = self._pace_ns * CHANGE_MIN, self._pace_ns / CHANGE_MIN
        self._changed = 0 if faster <= pace_ns <= slower else self._changed + 1
        self.is_due = self._batches >= PROBE_BATCHES or self._changed >= CHANGED_BATCHES


class Attempts:
    """What the last batches by shares took; where that was too long, they are tried again after so
    many others."""

    def __init__(self) -> None:
        self.pace_ns: float | None = None  # of a transaction
        self._passed = 0

    def ran(self, pace_ns: float) -> None:
        self._passed = 0
        self.pace_ns = pace_ns if self.pace_ns is None else (self.pace_ns + pace_ns) / 2

    def failed(self) -> None:
        """The batch had to be put back."""
        self._passed, self.pace_ns = 0, math.inf

    def passed(self) -> None:
        """A batch ran one after another."""
        self._passed += 1
        if self._passed >= TRIAL_BATCHES:
            self._passed, self.pace_ns = 0, None


# --- costs in their file --------------------------------------------------------------------------


def calibration_path(folder: Path) -> Path:
    """Where the file is: HEADGATE_CALIBRATION, or in this folder, the compile cache's."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else folder / FILE_NAME


def machine() -> dict[str, Any]:
    """What must be the same for measured costs to hold."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def save_thresholds(thresholds: Thresholds, path: Path, disk: Disk | None = None) -> None:
    """Keep the costs; a crash leaves the old file or the new one."""
    path = Path(os.path.abspath(path))
    content = {"format": FORMAT, "machine": machine(), "thresholds": asdict(thresholds)}
    disk = disk or RealDisk()
    with _keeping(path):
        make_folders(disk, str(path.parent))
        replace_file(disk, str(path), json.dumps(content, indent=2).encode() + b"\n")
    _load.cache_clear()


def check_place(path: Path) -> None:
    """InputError where no costs can be kept; said before they are measured."""
    path = Path(os.path.abspath(path))
    with _keeping(path):
        make_folders(RealDisk(), str(path.parent))
        if not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextlib.contextmanager
def _keeping(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"the costs cannot be kept in {path} ({why}): {_ELSEWHERE}") from error


def load_thresholds(folder: Path) -> Thresholds:
    """The costs of this machine, or the defaults; the file is read once in a process.

    A file that is damaged or of another machine is told of in a warning, once.
    """
    return _load(str(calibration_path(folder)))


@functools.cache
def _load(path: str) -> Thresholds:
    try:
        content = read_file(RealDisk(), path)
    except (FileNotFoundError, NotADirectoryError):  # nothing was ever kept there
        return Thresholds()
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        return _defaults(path, why, f"Make it a file of your own, or {_ELSEWHERE}")
    try:
        found = json.loads(content)
        return _checked(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error) if isinstance(error, _Unfit) else "is damaged"
        return _defaults(path, why, "Run `headgate calibrate` again")


class _Unfit(ValueError):
    """The file is whole but not for us."""


def _checked(found: Any) -> Thresholds:
    """The thresholds in the content of a file; a field that it lacks has its default."""
    if found["format"] != FORMAT:
        raise _Unfit("has another format")
    if found["machine"] != machine():
        raise _Unfit("was measured on another machine, or with other cores")
    given: Mapping[str, Any] = found["thresholds"]
    known = [field.name for field in fields(Thresholds) if field.name in given]
    values = {name: float(given[name]) for name in known}
    for name, value in values.items():
        if not math.isfinite(value) or value < 0:
            raise _Unfit(f"says {value} for {name}")
    return replace(Thresholds(), **values)


def _defaults(path: str, why: str, what: str) -> Thresholds:
    warnings.warn(
        f"{path} {why}; Headgate goes on with default costs. {what}",
        RuntimeWarning,
        stacklevel=4,
    )
    return Thresholds()
