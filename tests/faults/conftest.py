"""What the fault suite proved, counted: the sum is printed at the end of the run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.faults.tally import Tally

_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Tally(again=config.getoption("long"))


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """Counts the cases of this session and remembers the disks that were found sound."""
    return pytestconfig.stash[_TALLY]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """What another process of this run has counted is added to ours."""
    counted = getattr(node, "workeroutput", {}).get("faults", {})
    node.config.stash[_TALLY].counts.update(counted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = dict(session.config.stash[_TALLY].counts)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts: Counter[str] = config.stash[_TALLY].counts
    if not counts:
        return
    terminalreporter.section("faults")
    for what, count in sorted(counts.items()):
        terminalreporter.write_line(f"{count:>9,}  {what}")
    crashes = sum(count for what, count in counts.items() if what.startswith("crash"))
    terminalreporter.write_line(f"{crashes:>9,}  crash-and-recover cases in all")
