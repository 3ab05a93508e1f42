"""A small life of a store, the model of what it should hold, and the checker that compares."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headgate.durability import (
    Commit,
    Durability,
    Inlet,
    Recovered,
    Retention,
    Store,
    StoreReader,
)
from headgate.durability.commit import Changes
from headgate.errors import DamageError, StoreError
from headgate.io import Disk
from headgate.testing.disk import SimulatedClock, SimulatedDisk
from headgate.testing.survival import Survival
from tests.faults.accounts import accounts_of, changes_of

PATH = "/data/bank"
# So short that a new segment begins between two epochs that are in flight together.
SEGMENT_BYTES = 2300
LAST_EPOCH = 17
PIECE_ROWS = 60  # of results that are written while their batch runs
RETAIN = Retention(snapshots=2)
MANIFESTS: list[dict[str, Any]] = [
    {},
    {"tables": {"accounts": {}, "names": {}, "rates": {}}},
    {"tables": {"accounts": {}, "names": {}, "rates": {}}, "note": "second"},
]
SURVIVALS = [
    (Survival.DROP, 0),
    (Survival.KEEP, 0),
    (Survival.NAMES, 0),
    *((Survival.TEAR, seed) for seed in range(2)),
    *((Survival.RANDOM, seed) for seed in range(3)),
]


# Loaded once and never changed: every later snapshot refers to its block.
RATES = pa.record_batch({"__slot": range(200), "rate": range(200)})
LOAD_EPOCH = 5


class Lost(AssertionError):
    """The checker found that a store broke its promise."""


@dataclass
class State:
    """What a store should hold after an epoch."""

    accounts: dict[int, tuple[int, float]] = field(default_factory=dict)
    names: dict[int, tuple[str | None]] = field(default_factory=dict)
    rates: dict[int, tuple[int]] = field(default_factory=dict)
    origins: dict[str, tuple[int, int]] = field(default_factory=dict)
    inlets: dict[str, tuple[int | None, list[int] | None, int]] = field(default_factory=dict)


@functools.cache
def commit_of(epoch: int, weak: bool = False) -> Commit:
    """The commit of an epoch, the same whenever it is asked for; weak: some are logged as input."""
    if weak and epoch % 4 in (2, 3):
        strong = commit_of(epoch)
        events = pa.record_batch({"epoch": pa.array([epoch], pa.int64())})
        slots = {"accounts": epoch + 6, "names": epoch + 1}
        return replace(strong, changes={}, input=events, fingerprint="v1", slots=slots)
    changes: dict[str, Changes] = {"accounts": accounts_of(epoch)}
    if epoch == LOAD_EPOCH:
        changes["rates"] = RATES.add_column(1, "__alive", pa.array([True] * RATES.num_rows))
    if epoch % 3 == 0:
        changes["names"] = pa.record_batch(
            {
                "__slot": pa.array([epoch, 0], pa.int64()),
                "__alive": pa.array([True, epoch % 2 == 0]),
                "name": pa.array([f"name {epoch}", None], pa.string()),
            }
        )
    held = pa.table({"event": pa.array(range(epoch % 4), pa.int64())})
    inlets = {"tolls": Inlet(epoch * 10, held if epoch % 2 else None, epoch)}
    return Commit(
        epoch=epoch,
        time_us=epoch * 1000,
        origin=(f"query {epoch % 2}", epoch) if epoch % 5 else None,
        changes=changes,
        results=results_of(epoch) if epoch % 4 else None,
        inlets=inlets if epoch % 3 == 1 else {},
    )


@functools.cache
def results_of(epoch: int) -> pa.RecordBatch:
    """The results of an epoch; some are long enough to need several sectors."""
    count = 3 + (epoch % 3) * 100
    outcomes = pa.array(["committed", "aborted"]).take(pa.array([n % 2 for n in range(count)]))
    positions = pa.array(range(count), pa.int64())
    numbers = pa.array([n * n % 97 for n in range(count)], pa.int64())
    return pa.record_batch(
        {"position": positions, "outcome": outcomes.dictionary_encode(), "x": numbers}
    )


def states() -> list[State]:
    """The model: what the store holds after each epoch, by plain dictionaries."""
    result = [State()]
    for epoch in range(1, LAST_EPOCH + 10):
        result.append(_after(result[-1], epoch))
    return result


def _after(last: State, epoch: int) -> State:
    commit = commit_of(epoch)
    state = State(
        dict(last.accounts),
        dict(last.names),
        {slot: (slot,) for slot in range(200)} if epoch >= LOAD_EPOCH else {},
        dict(last.origins),
        dict(last.inlets),
    )
    for slot, row in changes_of(epoch).items():
        _set(state.accounts, slot, row)
    if epoch % 3 == 0:
        _set(state.names, epoch, (f"name {epoch}",))
        _set(state.names, 0, (None,) if epoch % 2 == 0 else None)
    if commit.origin is not None:
        state.origins[commit.origin[0]] = (commit.origin[1], epoch)
    if commit.inlets:
        held = list(range(epoch % 4)) if epoch % 2 else None
        state.inlets["tolls"] = (epoch * 10, held, epoch)
    return state


def _set(rows: dict[int, Any], slot: int, row: Any) -> None:
    if row is None:
        rows.pop(slot, None)
    else:
        rows[slot] = row


STATES = states()


@dataclass(frozen=True)
class Told:
    """What the store told its user before the end: the promise that recovery must keep.

    Epochs up to `acknowledged` survive a loss of power, those up to `written` the end of the
    process; only with durability "none" are these two not the same.
    """

    acknowledged: int = 0
    written: int = 0
    attempted: int = 0
    manifest: int = 0
    manifest_attempted: int = 0
    floor_attempted: int = 0
    shows_unsynced: bool = False
    weak: bool = False


def killed(told: Told) -> Told:
    """What must be left when only the process ended: all that was written counts."""
    return replace(told, acknowledged=max(told.acknowledged, told.written))


@dataclass(frozen=True)
class Life:
    """The way a store is used: its durability, and whether some epochs are logged as input."""

    name: str
    durability: Durability = "sync"
    weak: bool = False


SYNC = Life("sync")
LIVES = [SYNC, Life("none", "none"), Life("input", weak=True)]


class Diary:
    """The promises as they are made, one after another."""

    def __init__(self, life: Life = SYNC) -> None:
        self.life = life
        self.told = Told(shows_unsynced=life.durability == "none", weak=life.weak)

    def note(self, **changed: int) -> None:
        self.told = replace(self.told, **changed)


def open_store(
    disk: Disk, durability: Durability = "sync", retain: Retention | None = None
) -> Store:
    return Store.open(
        PATH,
        disk,
        SimulatedClock(),
        segment_bytes=SEGMENT_BYTES,
        durability=durability,
        retain=retain,
    )


def live(disk: Disk, diary: Diary) -> None:
    """Open, load, commit one by one and together, snapshot, trim, close; on the same folder thrice.

    The first life keeps everything, the second gives up what is older than two snapshots, the
    third trims further when it is told to.
    """
    store = _reopened(disk, diary, None)
    _declare(store, diary, 1)
    _commit(store, diary, [1])
    _commit(store, diary, [2])
    _commit(store, diary, [3, 4])
    _snapshot(store, diary, 4, from_log=True)
    _commit(store, diary, [5])
    _close(store, diary)
    store = _reopened(disk, diary, RETAIN)
    _declare(store, diary, 2)
    _commit(store, diary, [6, 7, 8])
    _snapshot(store, diary, 8, from_log=False, floor=4)
    _commit(store, diary, [9])
    _snapshot(store, diary, 9, from_log=True, floor=8)
    for epoch in range(10, 13):
        _commit(store, diary, [epoch])
    _snapshot(store, diary, 12, from_log=True, floor=9)
    _commit(store, diary, [13, 14])
    _close(store, diary)
    store = _reopened(disk, diary, None)
    _commit(store, diary, [15])
    diary.note(floor_attempted=12)
    store.trim(Retention(snapshots=1))
    for epoch in range(16, LAST_EPOCH + 1):
        _commit(store, diary, [epoch])
    _close(store, diary)


def _reopened(disk: Disk, diary: Diary, retain: Retention | None) -> Store:
    store = open_store(disk, diary.life.durability, retain)
    store.recover()
    return store


def _declare(store: Store, diary: Diary, number: int) -> None:
    diary.note(manifest_attempted=number)
    store.write_manifest(MANIFESTS[number])
    diary.note(manifest=number)


def _commit(store: Store, diary: Diary, epochs: list[int]) -> None:
    """Append several epochs, then wait for the last: they are in flight together."""
    for epoch in epochs:
        diary.note(attempted=epoch)
        _append(store, commit_of(epoch, diary.life.weak))
    store.wait(epochs[-1])
    diary.note(written=epochs[-1])
    if store.durability != "none":
        diary.note(acknowledged=epochs[-1])


def _append(store: Store, commit: Commit) -> None:
    """Append a commit; some are begun while their batch would still run."""
    results = commit.results
    if results is None or commit.epoch % 2:
        store.append(commit)
        return
    frame = store.open_frame()
    for first in range(0, results.num_rows, PIECE_ROWS):
        store.add_results(frame, results.slice(first, PIECE_ROWS))
    store.append(replace(commit, results=None), frame)


def _snapshot(store: Store, diary: Diary, epoch: int, from_log: bool, floor: int = 0) -> None:
    diary.note(floor_attempted=floor)
    if from_log and not diary.life.weak:
        store.snapshot()
    else:
        store.snapshot(epoch, dict(images_of(STATES[epoch])))
    diary.note(acknowledged=epoch)


def _close(store: Store, diary: Diary) -> None:
    store.close()
    diary.note(acknowledged=diary.told.attempted)


def images_of(state: State) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
    """The model's tables as the engine would hand them over, in two batches."""
    slots = sorted(state.accounts)
    ids = [state.accounts[slot][0] for slot in slots]
    balances = [state.accounts[slot][1] for slot in slots]
    accounts = pa.record_batch(
        {
            "__slot": pa.array(slots, pa.int64()),
            "id": pa.array(ids, pa.int64()),
            "balance": pa.array(balances, pa.float64()),
        }
    )
    yield "accounts", [accounts.slice(0, 3), accounts.slice(3)]
    if state.rates:
        yield "rates", [RATES]
    slots = sorted(state.names)
    names = [state.names[slot][0] for slot in slots]
    yield (
        "names",
        [
            pa.record_batch(
                {"__slot": pa.array(slots, pa.int64()), "name": pa.array(names, pa.string())}
            )
        ],
    )


def check(disk: SimulatedDisk, told: Told, thorough: bool = True) -> int:
    """Recover on what is left and compare with the model; returns the epoch that was found."""
    if thorough:
        check_reader(disk, told)
    epoch = check_recovery(disk, told, thorough)
    if StoreReader.open(PATH, disk).last_epoch() != epoch:
        raise Lost(f"epoch {epoch} was recovered but not published")
    if thorough:
        # What recovery says must itself be durable: another crash at once must not change it.
        again = replace(told, acknowledged=epoch, attempted=epoch)
        check_recovery(disk.after_crash(Survival.DROP), again)
    return epoch


def check_going_on(disk: SimulatedDisk, told: Told) -> None:
    """Recover, commit until a new segment has begun, lose the power, and recover once more."""
    store = open_store(disk)
    first = store.recover().epoch + 1
    last = first + 5
    for epoch in range(first, last + 1):
        store.commit(commit_of(epoch))
    check(disk.after_crash(Survival.DROP), replace(told, acknowledged=last, attempted=last))


class Shelf:
    """The place of one table: its rows by slot, as an engine has them."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Any, ...]] = {}

    def reserve(self, slots: int) -> None:
        if self.rows:
            raise Lost("a place that has rows was begun again")

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        self.rows.update(_rows(pa.Table.from_batches([batch])))

    def apply(self, batch: pa.RecordBatch, epoch: int) -> None:
        if "__alive" not in batch.schema.names:
            for slot, balance in zip(*batch.to_pydict().values(), strict=True):
                self.rows[slot] = (self.rows[slot][0], balance)
            return
        for slot, alive, *row in zip(*batch.to_pydict().values(), strict=True):
            _set(self.rows, slot, tuple(row) if alive else None)


class Shelves:
    """A receiver, as an engine is one, for all tables but the names."""

    def __init__(self) -> None:
        self.places: dict[str, Shelf] = {}

    def begin(self) -> None:
        self.places.clear()

    def place(self, table: str) -> Shelf | None:
        return None if table == "names" else self.places.setdefault(table, Shelf())


def check_recovery(disk: SimulatedDisk, told: Told, thorough: bool = True) -> int:
    """Open, recover and compare; every other case by way of a receiver."""
    store = open_store(disk)
    shelves = Shelves() if told.attempted % 2 else None
    recovered = store.recover(shelves)
    epoch = recovered.epoch
    if not told.acknowledged <= epoch <= told.attempted:
        raise Lost(f"epoch {epoch}, {told}")
    if store.manifest not in MANIFESTS[told.manifest : told.manifest_attempted + 1]:
        raise Lost(f"manifest {store.manifest} in place of number {told.manifest}")
    _check_recovered(recovered, {} if shelves is None else shelves.places)
    if thorough:
        _check_replayed_batches(store, epoch)
    store.close()
    return epoch


def _check_recovered(recovered: Recovered, received: dict[str, Shelf]) -> None:
    """The state that is handed over is right, and so is what is left for the engine to do."""
    images = {name: _rows(image) for name, image in recovered.images.items()}
    images.update((name, shelf.rows) for name, shelf in received.items())
    inlets = {name: _inlet(inlet) for name, inlet in recovered.inlets.items()}
    tables = [images.get(name, {}) for name in ("accounts", "names", "rates")]
    found = State(*tables, dict(recovered.origins), inlets)
    epoch = recovered.image_epoch
    _same(found, STATES[epoch], f"recovered epoch {epoch}")
    if recovered.time_us != epoch * 1000:
        raise Lost(f"time {recovered.time_us} at epoch {epoch}")
    for pending in recovered.pending:
        epoch += 1
        if not _same_commit(pending, epoch):
            raise Lost(f"the pending commit of epoch {epoch} is {pending}")


def _same_commit(found: Commit, epoch: int) -> bool:
    """Whether a commit came back as it was given, but for the slots, which are filled in."""
    given = commit_of(epoch, weak=True)
    same_input = found.input is given.input is None or found.input.equals(given.input)
    same_results = found.results is given.results is None or found.results.equals(given.results)
    return (
        (found.epoch, found.time_us, found.origin) == (epoch, epoch * 1000, given.origin)
        and found.fingerprint == given.fingerprint
        and dict(found.changes) == dict(given.changes)
        and same_input
        and same_results
    )


def _check_replayed_batches(store: Store, epoch: int) -> None:
    """A batch that comes again finds what it was answered, also when the log was trimmed."""
    for _, last in STATES[epoch].origins.values():
        found = dict(store.results(last, last))
        if last % 4 and (last not in found or not found[last].equals(results_of(last))):
            raise Lost(f"the results of epoch {last} are gone at epoch {epoch}")


def check_reader(disk: SimulatedDisk, told: Told) -> None:
    """A reader sees whole epochs that the store attempted, and no other, from its floor on."""
    if not disk.exists(f"{PATH}/manifest.json"):
        return
    reader = StoreReader.open(PATH, disk)
    try:
        first, last = reader.first_epoch(), reader.last_epoch()
    except DamageError as error:
        # A crash may tear a slot of the head; readers say so, until a writer has opened the store.
        if "a slot of the head is not whole" not in str(error):
            raise
        return
    if not first <= last <= told.attempted or first > told.floor_attempted:
        raise Lost(f"a reader sees epochs {first} to {last}, {told}")
    if "tables" not in reader.manifest:
        return
    if told.weak:
        # Only the engine can say what an input did; the results are there all the same.
        _check_results(dict(reader.results(first + 1, last)), first, last)
        return
    try:
        _check_readable(reader, first, last)
    except StoreError:
        # Readers see what is written with durability "none"; the power took some of it.
        if not told.shows_unsynced:
            raise


def _check_readable(reader: StoreReader, first: int, last: int) -> None:
    for past in {first, (first + last) // 2, last}:
        accounts = reader.table("accounts", past).to_pydict().values()
        expected = [STATES[past].accounts[slot] for slot in sorted(STATES[past].accounts)]
        if list(zip(*accounts, strict=True)) != expected:
            raise Lost(f"a reader at epoch {past} of {first} to {last} sees {accounts}")
    rates = reader.table("rates", last)
    if last >= LOAD_EPOCH and rates.column("rate").to_pylist() != RATES.column("rate").to_pylist():
        raise Lost(f"a reader at epoch {last} sees other rates")
    _check_results(dict(reader.results(first + 1, last)), first, last)


def _check_results(found: dict[int, pa.RecordBatch], first: int, last: int) -> None:
    expected = [number for number in range(first + 1, last + 1) if number % 4]
    if list(found) != expected:
        raise Lost(f"results of epochs {list(found)}, from {first} up to {last}")
    for number, batch in found.items():
        if not batch.equals(results_of(number)):
            raise Lost(f"results of epoch {number} differ")


def _rows(image: pa.Table) -> dict[int, tuple[Any, ...]]:
    rows = list(zip(*image.to_pydict().values(), strict=True))
    if rows != sorted(rows, key=lambda row: row[0]):
        raise Lost("an image is not in the order of its slots")
    return {row[0]: row[1:] for row in rows}


def _inlet(inlet: Inlet) -> tuple[int | None, list[int] | None, int]:
    held = None if inlet.held is None else inlet.held.column("event").to_pylist()
    return inlet.watermark_us, held, inlet.arrivals


def _same(found: State, expected: State, what: str) -> None:
    if found != expected:
        raise Lost(f"{what}: {found} in place of {expected}")
