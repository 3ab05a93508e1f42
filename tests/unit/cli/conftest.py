"""The store that the tests of the command line look into, and the runner of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.cli.bank import accounts, open_bank, pay


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """Five accounts at epoch 1, then four epochs of one transfer each; one of them aborts."""
    path = tmp_path / "bank"
    with open_bank(path) as engine:
        engine.load(accounts, [{"id": number, "balance": 100.0} for number in range(5)])
        pay(engine, 0, 1, 30.0)
        pay(engine, 1, 2, 500.0)
        pay(engine, 1, 2, 50.0)
        pay(engine, 2, 3, 1.25)
    return path


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()
