"""What every test shares: Hypothesis profiles and the --long option.

Profiles: `dev` explores anew at every run, `ci` gives the same answer for the same commit, `long`
searches deep. None has a deadline: the first example of a test may compile a kernel.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Tests of what the model decides must not depend on what was measured here.
os.environ.setdefault("HEADGATE_CALIBRATION", os.path.join(os.path.dirname(__file__), "none.json"))

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


# What takes longest begins first, when several processes share the tests.
_FIRST = ("test_kill.py", "tests/spark/", "test_units.py", "tests/property/", "tests/web/")


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
