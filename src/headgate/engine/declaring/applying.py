"""Applying: a migration tried on the rows of a store, and committed to it as one epoch.

Invariant: the declarations are written first and mean nothing until the epoch's record is in the
log (see durability/manifest.py). So at any moment, and after a crash at any moment, a store is
wholly before a migration or wholly after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.durability import Store, StoreReader
from headgate.durability.commit import Nowhere
from headgate.engine.declaring.declarations import (
    check_format,
    check_parents,
    fit_tables,
    named_migrations,
    refuse_inputs,
)
from headgate.engine.declaring.drafts import Drafts
from headgate.engine.declaring.migrations import Migration
from headgate.engine.declaring.steps import meaning_of
from headgate.engine.declaring.trial import Attempt, Trial, description
from headgate.engine.journal import Journal
from headgate.errors import DeclarationError, shown
from headgate.io import Clock, Disk, RealClock
from headgate.kernels.building import check_compiles
from headgate.state.table import Table

MEND = (
    "mend the rows first: open the store without the migration, run a transaction over them "
    "(engine.run, engine.call), and migrate then"
)


def migrate(
    path: str | os.PathLike[str],
    migrations: Iterable[Migration],
    *,
    tables: Iterable[Table] | None = None,
    dry_run: bool = False,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> list[Trial]:
    """Apply the migrations that a store has not seen yet, in order, each as one epoch.

    With `dry_run` nothing is touched and no lock is taken: what would happen is returned. `tables`
    are what a program declares; when they are given they must be what comes out.
    """
    given = checked(migrations)
    if dry_run:
        return _try_all(StoreReader.open(path, disk), given, tables)
    reader = StoreReader.open(path, disk)  # there must be a store
    with_clock = clock or RealClock()
    store = Store.open(reader.path, disk, with_clock)
    try:
        return migrate_store(store, given, tables, with_clock)
    finally:
        store.close()


def checked(migrations: Any) -> list[Migration]:
    """The migrations as a list; refused when two have one name."""
    given = [migrations] if isinstance(migrations, Migration) else list(migrations)
    names = []
    for one in given:
        if not isinstance(one, Migration):
            raise DeclarationError(
                f"migrations= takes a list of hg.Migration(...), not {shown(one)}"
            )
        if one.name in names:
            raise DeclarationError(f"two migrations are called {one.name!r}: name each for itself")
        names.append(one.name)
    return given


def pending_of(manifest: Mapping[str, Any], migrations: Sequence[Migration]) -> list[Migration]:
    """The migrations that a store has not seen; they must come after those it has."""
    applied = {one["name"]: one for one in manifest.get("migrations", ())}
    pending: list[Migration] = []
    for one in migrations:
        if one.name not in applied:
            pending.append(one)
            continue
        _refuse_edited(one, applied[one.name])
        if pending:
            raise DeclarationError(
                f"the migration {pending[0].name!r} stands before {one.name!r}, which was applied "
                f"as epoch {applied[one.name]['epoch']}: new ones go to the end"
            )
    return pending


def _refuse_edited(given: Migration, applied: Mapping[str, Any]) -> None:
    """A migration that was applied stays what it was; older stores did not note its steps."""
    epoch, steps = applied["epoch"], given.record(0)["steps"]
    before = applied.get("steps", steps)
    difference = _first_difference(before, steps)
    if difference is not None:
        when = f"was applied as epoch {epoch}" if epoch else "was there when the store was made"
        raise DeclarationError(
            f"the migration {given.name!r} {when}, with other steps: {difference}; leave it as it "
            "was, and say what is to change in a new one, with a name of its own"
        )


def _first_difference(before: Sequence[str], now: Sequence[str]) -> str | None:
    """The first step that means something else; how its SQL is spaced makes none."""
    for place, (old, new) in enumerate(zip(before, now, strict=False), 1):
        if old != new and meaning_of(old) != meaning_of(new):
            return f"step {place} was {old}, and is {new} now"
    count = min(len(before), len(now))
    if len(before) > count:
        return f"step {count + 1}, {before[count]}, is not there any more"
    if len(now) > count:
        return f"step {count + 1}, {now[count]}, was not there"
    return None


def migrate_store(
    store: Store, migrations: Sequence[Migration], tables: Iterable[Table] | None, clock: Clock
) -> list[Trial]:
    """Recover a store that is open and not yet recovered, and apply what is pending."""
    check_format(store.manifest)
    pending = pending_of(store.manifest, migrations)
    if not pending:
        return []
    check_result(store.manifest, pending, tables)
    recovered = store.recover(Nowhere())
    refuse_inputs([one.epoch for one in recovered.pending if one.input is not None], "migrate")
    reader = StoreReader.open(store.path, store.disk)
    # All are tried before the first is applied: a list that cannot be applied leaves no part.
    for tried in _try_all(reader, pending, tables) if len(pending) > 1 else ():
        if tried.offenders:
            raise DeclarationError(refusal(tried))
    applied: list[Trial] = []
    for migration in pending:
        attempt = Attempt(reader, [migration], recovered.epoch + len(applied))
        trial = attempt.trial()
        if trial.offenders:
            raise DeclarationError(refusal(trial))
        commit = attempt.commit(store, recovered, clock.time_us())
        store.write_manifest(attempt.manifest(store.manifest))
        store.commit(commit)
        applied.append(replace(trial, is_applied=True))
    return applied


def migrated(
    journal: Journal,
    reopen: Callable[[], Journal],
    migrations: Sequence[Migration],
    tables: Sequence[Table],
    clock: Clock,
) -> Journal:
    """The journal of a store to which nothing is pending: this one, or it opened again."""
    try:
        store = journal.store if journal.manifest.get("tables") else None
        if store is None or not migrate_store(store, migrations, tables, clock):
            return journal
    except BaseException:
        journal.close()
        raise
    journal.close()  # its store was recovered as it was before
    return reopen()


def refusal(trial: Trial) -> str:
    """Why a migration cannot be applied, and that nothing was touched."""
    rows = "; ".join(trial.offenders)
    return f"migration {trial.name!r}: {rows}; nothing was changed: {MEND}"


def declared_after(
    reader: StoreReader, migrations: Sequence[Migration], tables: Sequence[Table]
) -> Mapping[str, Any]:
    """What a store would declare when the migrations were applied, which are tried on its rows."""
    with reader.hold():
        manifest, epoch = reader.declared(), reader.last_epoch()
        pending = pending_of(manifest, migrations) if manifest.get("tables") else []
        if pending:
            check_result(manifest, pending, tables)
            refuse_inputs([one.epoch for one in reader.inputs()], "migrate")
        for place in range(len(pending)):
            attempt = Attempt(reader, pending[: place + 1], epoch)
            trial = attempt.trial()
            if trial.offenders:
                raise DeclarationError(refusal(trial))
            manifest = attempt.manifest(manifest)
        return manifest


def check_result(
    manifest: Mapping[str, Any], pending: Sequence[Migration], tables: Iterable[Table] | None
) -> None:
    """Refuse migrations that cannot be, or that do not lead to what the program declares."""
    drafts, after = Drafts.read(manifest), dict(manifest)
    for migration in pending:
        drafts = drafts.next()
        migration.declare(drafts)
        after = _declared_after(after, drafts, migration)
    for draft in drafts.tables.values():
        check_compiles(draft.table())
    if tables is None:
        check_parents({name: draft.table() for name, draft in drafts.tables.items()})
        return
    try:
        fit_tables(tables, after)
    except DeclarationError as error:
        names = named_migrations([one.name for one in pending])
        lead = "does not lead" if len(pending) == 1 else "do not lead"
        raise DeclarationError(
            f"{names} {lead} to what the program declares, and nothing was changed: {error}"
        ) from None


def _declared_after(
    before: Mapping[str, Any], drafts: Drafts, migration: Migration
) -> dict[str, Any]:
    """The declarations as they would be after a migration, which has no epoch yet."""
    done = {**migration.record(0), "epoch": None}
    return {
        "tables": {name: description(one) for name, one in drafts.tables.items()},
        "migrations": [*before.get("migrations", ()), done],
        "past": [*before.get("past", ()), before],
    }


def _try_all(
    reader: StoreReader, migrations: Sequence[Migration], tables: Iterable[Table] | None
) -> list[Trial]:
    with reader.hold():
        epoch, version = reader.last_epoch(), reader.declared()
        check_format(version)
        pending = pending_of(version, migrations)
        check_result(version, pending, tables)
        if pending:
            refuse_inputs([one.epoch for one in reader.inputs()], "migrate")
        chains = [pending[: count + 1] for count in range(len(pending))]
        trials = [
            replace(Attempt(reader, chain, epoch).trial(), epoch=epoch + len(chain))
            for chain in chains
        ]
    refused = next((one.name for one in trials if one.offenders), None)
    return [one if one.offenders else replace(one, blocked_by=refused) for one in trials]
