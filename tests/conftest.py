"""What every test shares: Hypothesis profiles and the --long option.

Profiles: `dev` explores anew at every run, `ci` gives the same answer for the same commit, `long`
searches deep. None has a deadline: the first example of a test may compile a kernel.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Started in the background, a shell has them ignore Ctrl-C, and all that they start, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

_STDERR = os.dup(2)  # as it was before any test's output was captured

# Tests of what the model decides must not depend on what was measured here.
os.environ.setdefault("HEADGATE_CALIBRATION", os.path.join(os.path.dirname(__file__), "none.json"))

# Compiling makes many objects that stay: to look through them every 700 is a tenth of its time.
gc.set_threshold(50_000, 20, 20)

_SLOW_START = [HealthCheck.too_slow]
# Fewer examples than Hypothesis has by default: there are some 200 properties, and `--long`.
_EXAMPLES = 60
settings.register_profile(
    "dev", deadline=None, suppress_health_check=_SLOW_START, max_examples=_EXAMPLES
)
settings.register_profile(
    "ci",
    deadline=None,
    suppress_health_check=_SLOW_START,
    max_examples=_EXAMPLES,
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "long", deadline=None, suppress_health_check=_SLOW_START, max_examples=2000, print_blob=True
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="search deep: the `long` profile, no time limit a test"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(_profile(config))
    if config.getoption("long") and config.getoption("timeout", None) is None:
        config.option.timeout = 0


# Beyond the limit of a test, for one that its signal cannot end or that never ends afterwards.
_GRACE_SECONDS = 120


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs for good ends its process with a picture of its threads.

    Among several processes that is one failed test, and the others do the rest.
    """
    own = item.get_closest_marker("timeout")  # of a test that says itself how long it may take
    limit = float((own.args[0] if own and own.args else item.config.getini("timeout")) or 0)
    if not limit or item.config.getoption("long"):
        return (yield)
    with open(os.dup(_STDERR), "w") as shown:
        faulthandler.dump_traceback_later(limit + _GRACE_SECONDS, file=shown, exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


# These start programs with a Spark of their own; all others of their folder share one.
_SPARKS_OF_THEIR_OWN = ("test_kill.py", "test_copy_kill.py", "test_demo.py", "test_workers.py")
_ONE_SPARK = "tests/spark/ with one Spark"

# What takes longest begins first, when several processes share the tests: three of them wait for
# Spark and for other programs much of the time, two compute. What is short comes last, so that no
# process waits long for the others.
_FIRST = (
    _ONE_SPARK,
    "tests/spark/test_kill.py",
    "tests/docs/test_pages.py",
    "tests/property/test_wide.py",
    "tests/property/",
    "tests/spark/",
    "tests/web/",
    "tests/faults/",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """File by file, but one process has all tests that share a Spark: its start is not repeated."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    is_by_file = config.getoption("dist") == "loadfile"
    return Scheduling(config, log) if is_by_file else None


def _together(name: str) -> str:
    """The name of what goes to one process, with this test in it."""
    file = name.partition("::")[0]
    shares = file.startswith("tests/spark/") and not file.endswith(_SPARKS_OF_THEIR_OWN)
    return _ONE_SPARK if shares else file


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Each of several processes begins to import the tests at another place.

    What a module declares is compiled when it is imported. All at the same place, each process
    would compile all of it; so each finds most of it in the cache, where the others have been.
    """
    report: Any = yield
    given = getattr(collector.config, "workerinput", None)
    if given is not None and isinstance(collector, pytest.Directory) and report.result:
        number = int(given["workerid"].removeprefix("gw"))
        begin = number * len(report.result) // int(given["workercount"])
        report.result = report.result[begin:] + report.result[:begin]
    return report


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the collector need not look through it ever again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """But at the end, when all goes: libraries say of what is left that it leaks."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        # All processes must name the tests in the same order, wherever each began.
        items.sort(key=lambda item: (_turn(item.nodeid), item.nodeid.partition("::")[0]))


def _turn(name: str) -> int:
    scope = _together(name)
    return next((place for place, part in enumerate(_FIRST) if part in scope), len(_FIRST))


def _profile(config: pytest.Config) -> str:
    if config.getoption("long"):
        return "long"
    usual = "ci" if os.environ.get("CI") else "dev"
    chosen = config.getoption("--hypothesis-profile") or os.environ.get("HYPOTHESIS_PROFILE")
    return chosen or usual


@pytest.fixture(scope="session")
def long_run(request: pytest.FixtureRequest) -> bool:
    """True under --long: a test that loops (kills, crashes, seeds) then loops much longer."""
    return bool(request.config.getoption("long"))
