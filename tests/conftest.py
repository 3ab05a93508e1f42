"""What every test shares: Hypothesis profiles and the --long option.

Profiles: `dev` explores anew at every run, `ci` gives the same answer for the same commit, `long`
searches deep. None has a deadline: the first example of a test may compile a kernel.
"""

from __future__ import annotations

import faulthandler
import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

_STDERR = os.dup(2)  # as it was before any test's output was captured

# Tests of what the model decides must not depend on what was measured here.
os.environ.setdefault("HEADGATE_CALIBRATION", os.path.join(os.path.dirname(__file__), "none.json"))

# Compiling makes many objects that stay: to look through them every 700 is a tenth of its time.
gc.set_threshold(50_000, 20, 20)

_SLOW_START = [HealthCheck.too_slow]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_START)
settings.register_profile(
    "ci", deadline=None, suppress_health_check=_SLOW_START, derandomize=True, print_blob=True
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
    limit = float(item.config.getini("timeout") or 0)
    if not limit or item.config.getoption("long"):
        return (yield)
    with open(os.dup(_STDERR), "w") as shown:
        faulthandler.dump_traceback_later(limit + _GRACE_SECONDS, file=shown, exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


# What takes longest begins first, when several processes share the tests.
_FIRST = (
    "test_kill.py",
    "tests/spark/",
    "test_pages.py",
    "test_units.py",
    "tests/property/",
    "tests/web/",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


def _turn(name: str) -> int:
    return next((place for place, part in enumerate(_FIRST) if part in name), len(_FIRST))


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
