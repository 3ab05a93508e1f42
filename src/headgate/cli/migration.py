"""`headgate migrate`: the migrations of a program tried on a store, or applied to it."""

from __future__ import annotations

from pathlib import Path

import typer

from headgate.cli import output
from headgate.engine.declaring.applying import MEND, checked, migrate
from headgate.engine.declaring.migrations import Migration
from headgate.engine.declaring.trial import Trial
from headgate.errors import InputError
from headgate.web.target import load_named


def run_migration(store: Path, target: str, dry_run: bool) -> None:
    """Print what each migration does; the exit code is 1 when one would be refused."""
    trials = migrate(store, load_migrations(target), dry_run=dry_run)
    console = output.make_console()
    if not trials:
        console.print(f"{store}: nothing to do, all of {target} was applied before")
    for trial in trials:
        console.print(str(trial), markup=False, highlight=False, soft_wrap=True)
    if dry_run and trials:
        console.print(_verdict(trials), markup=False, highlight=False, soft_wrap=True)
    if any(trial.offenders for trial in trials):
        raise typer.Exit(1)


def load_migrations(target: str) -> list[Migration]:
    """The migrations that a text names: one, a list, or a function that gives them."""
    found = load_named(target, "migrations")
    if callable(found):
        found = found()
    if not isinstance(found, (Migration, list, tuple)):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise InputError(f"{target} names {kind}; name a list of hg.Migration(...)")
    return checked(found)


def _verdict(trials: list[Trial]) -> str:
    if any(trial.offenders for trial in trials):
        return f"Nothing was touched. It would be refused: {MEND}."
    return "Nothing was touched. Without --dry-run it is applied."
