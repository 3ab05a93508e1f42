"""`headgate migrate`: a dry run that touches nothing, then the same applied, then nothing to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headgate.cli.commands import app

PROGRAM = """
import headgate as hg

migrations = [
    hg.Migration("holders")
    .rename_table("accounts", "ledger")
    .add_column("ledger", "holder string DEFAULT 'nobody'")
    .set_check("ledger", "balance >= 0"),
]
poor = hg.Migration("poor").set_check("accounts", "balance < 100")
nothing = 7
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "changes.py").write_text(PROGRAM)
    return tmp_path / "changes.py"


def run(runner: CliRunner, *words: object) -> Result:
    return runner.invoke(app, [str(word) for word in words])


def test_a_dry_run_shows_it_and_a_run_applies_it_once(
    runner: CliRunner, bank: Path, program: Path
) -> None:
    tried = run(runner, "migrate", bank, f"{program}:migrations", "--dry-run")
    assert tried.exit_code == 0
    assert "'holders' would be applied as epoch 6" in tried.stdout
    assert "tested 5 rows of ledger" in tried.stdout
    assert "Nothing was touched" in tried.stdout
    assert "accounts" in run(runner, "tables", bank).stdout
    applied = run(runner, "migrate", bank, f"{program}:migrations")
    assert applied.exit_code == 0 and "'holders' was applied as epoch 6" in applied.stdout
    assert "nothing to do" in run(runner, "migrate", bank, f"{program}:migrations").stdout
    count = ("--format", "csv", "select count(*) from ledger where holder = 'nobody'")
    assert run(runner, "sql", bank, *count).stdout.splitlines()[1] == "5"
    old = ("--epoch", 5, "--format", "csv", "select count(*) from accounts")
    assert run(runner, "sql", bank, *old).stdout.splitlines()[1] == "5"
    assert "migration holders" in run(runner, "log", bank).stdout
    assert run(runner, "verify", bank).exit_code == 0


def test_rows_that_stand_against_it_are_named(runner: CliRunner, bank: Path, program: Path) -> None:
    tried = run(runner, "migrate", bank, f"{program}:poor", "--dry-run")
    assert tried.exit_code == 1
    assert "check failed: balance < 100: 3 rows: id=2 | id=3 | id=4" in tried.stdout
    refused = run(runner, "migrate", bank, f"{program}:poor")
    assert refused.exit_code == 1 and "id=2 | id=3 | id=4" in refused.stderr
    assert run(runner, "verify", bank).exit_code == 0


def test_what_names_no_migrations_is_refused(runner: CliRunner, bank: Path, program: Path) -> None:
    for target, words in [
        (f"{program}:nothing", "a int"),
        (f"{program}:missing", "nothing"),
        ("changes.py", "package.module:migrations"),
        ("no_such_file.py:migrations", "no program"),
    ]:
        found = run(runner, "migrate", bank, target)
        assert found.exit_code == 1 and words in found.stderr
