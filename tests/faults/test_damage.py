"""Damaged bytes: every flipped byte and every cut gives the right state, a prefix, or an error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from headgate.durability import Commit, Retention, Store, StoreReader, verify
from headgate.durability import format as layout
from headgate.errors import DamageError, FormatError, HeadgateError
from headgate.testing.disk import SimulatedClock, SimulatedDisk
from headgate.testing.survival import Survival
from tests.faults.tally import Tally

PATH = "/bank"
LAST = 4
MANIFEST = {"tables": {"accounts": {}}}
LOG = f"{PATH}/log/00000000000000000001.log"
LAST_LOG = f"{PATH}/log/00000000000000000004.log"
HEAD = f"{PATH}/head"


def commit_of(epoch: int) -> Commit:
    """A commit of two rows; as few bytes as may be, since each of them is going to be damaged."""
    first = pa.record_batch({"__slot": [0], "balance": [epoch / 2]})
    if epoch == 1:  # the row is new then
        first = first.add_column(1, "__alive", pa.array([True]))
    other = {"__slot": [epoch], "__alive": [True], "balance": [float(epoch)]}
    changes = (first, pa.record_batch(other))
    results = pa.record_batch({"position": [epoch]}) if epoch == 2 else None
    return Commit(epoch, epoch * 1000, ("q", epoch), {"accounts": changes}, results)


def balances_at(epoch: int) -> dict[int, float]:
    """The model: what the table holds after an epoch."""
    return {slot: float(slot) or epoch / 2 for slot in range(epoch + 1 if epoch else 0)}


def image_at(epoch: int) -> pa.RecordBatch:
    rows = balances_at(epoch)
    return pa.record_batch({"__slot": list(rows), "balance": list(rows.values())})


def small_store() -> SimulatedDisk:
    """Two segments of three epochs and one, and snapshots of epochs 2 and 3."""
    disk = SimulatedDisk()
    store = Store.open(PATH, disk, SimulatedClock(), segment_bytes=800)
    store.recover()
    store.write_manifest(MANIFEST)
    for epoch in range(1, LAST + 1):
        store.commit(commit_of(epoch))
        if epoch in (2, 3):
            store.snapshot(epoch, {"accounts": [image_at(epoch)]})
    store.close()
    return disk


def trimmed_store() -> SimulatedDisk:
    """A floor, one snapshot that refers to blocks of one that was given up, and the log's end."""
    disk = SimulatedDisk()
    retain = Retention(snapshots=1)
    store = Store.open(PATH, disk, SimulatedClock(), segment_bytes=500, retain=retain)
    store.recover()
    store.write_manifest(MANIFEST)
    store.append(replace(commit_of(1), changes={**commit_of(1).changes, "names": NAMES}))
    for epoch in range(2, LAST + 1):
        store.commit(commit_of(epoch))
        if epoch in (2, 3):
            store.snapshot()
    store.close()
    return disk


NUMBERS = [number * number % 1009 for number in range(90)]
NAMES = pa.record_batch({"__slot": range(90), "__alive": [True] * 90, "name": NUMBERS})
WHOLE = small_store()
TRIMMED = trimmed_store()
STORES = {"whole": WHOLE, "trimmed": TRIMMED}
FILES = [
    pytest.param(name, path, id=f"{name}{path.removeprefix(PATH)}")
    for name, disk in STORES.items()
    for path in disk.paths()
    if not path.endswith("lock")
]
every_file = pytest.mark.parametrize(("store", "path"), FILES)


def damaged(
    path: str, change: Callable[[bytearray], None], whole: SimulatedDisk | None = None
) -> SimulatedDisk:
    disk = (whole or WHOLE).after_crash(Survival.KEEP)
    content = bytearray(disk.content(path))
    change(content)
    disk.replace(path, bytes(content))
    return disk


def recovered_epoch(disk: SimulatedDisk) -> int | str:
    """The recovered epoch, compared with the model, or the name of the error."""
    try:
        store = Store.open(PATH, disk, SimulatedClock())
    except HeadgateError as error:
        return type(error).__name__
    try:
        recovered = store.recover()
    except HeadgateError as error:
        return type(error).__name__
    finally:
        store.close()
    accounts = recovered.images.get("accounts")
    rows = {} if accounts is None else {r["__slot"]: r["balance"] for r in accounts.to_pylist()}
    epoch = recovered.epoch
    assert rows == balances_at(epoch)
    names = recovered.images.get("names")
    assert names is None or names.column("name").to_pylist() == NUMBERS
    assert recovered.origins == ({"q": (epoch, epoch)} if epoch else {})
    assert recovered.time_us == epoch * 1000
    assert store.manifest == MANIFEST
    return recovered.epoch


def read_epoch(disk: SimulatedDisk, first: int = 0) -> int | str:
    """The epoch that a reader sees, compared with the model, or the name of the error."""
    try:
        reader = StoreReader.open(PATH, disk)
        epoch = reader.last_epoch()
        balances = reader.table("accounts", epoch).column("balance").to_pylist()
        results = dict(reader.results(first + 1, epoch))
    except HeadgateError as error:
        return type(error).__name__
    assert balances == list(balances_at(epoch).values())
    assert list(results) == ([2] if first < 2 <= epoch else [])
    assert all(batch.equals(commit_of(number).results) for number, batch in results.items())
    return epoch


def flip(offset: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[offset] ^= 1 << (offset * 5 % 8)

    return change


def stride(store: str, long_run: bool) -> int:
    """Every byte of the whole store; of the trimmed one, much of which is the same, every third."""
    return 1 if store == "whole" or long_run else 3


def test_the_store_to_be_damaged_is_whole_and_has_all_kinds_of_files() -> None:
    assert recovered_epoch(WHOLE.after_crash(Survival.KEEP)) == LAST
    assert read_epoch(WHOLE.after_crash(Survival.KEEP)) == LAST
    names = sorted(path.removeprefix(PATH) for path in WHOLE.paths())
    assert names == [
        "/head",
        "/lock",
        "/log/00000000000000000001.log",
        "/log/00000000000000000004.log",
        "/manifest.json",
        "/snapshots/00000000000000000002.snapshot",
        "/snapshots/00000000000000000003.snapshot",
    ]


def test_the_trimmed_store_is_whole_and_has_what_the_other_lacks() -> None:
    assert recovered_epoch(TRIMMED.after_crash(Survival.KEEP)) == LAST
    assert verify(PATH, TRIMMED).is_whole
    names = sorted(path.removeprefix(PATH) for path in TRIMMED.paths())
    assert names == [
        "/floor",
        "/head",
        "/lock",
        "/log/00000000000000000002.log",
        "/log/00000000000000000004.log",
        "/manifest.json",
        "/snapshots/00000000000000000002.blocks",
        "/snapshots/00000000000000000003.snapshot",
    ]


@every_file
def test_any_flipped_byte_gives_the_whole_store_or_a_named_error(
    store: str, path: str, tally: Tally, long_run: bool
) -> None:
    whole = STORES[store]
    allowed: set[int | str] = {LAST, "DamageError"}
    if path.endswith("manifest.json"):
        allowed.add("FormatError")
    for offset in range(0, len(whole.content(path)), stride(store, long_run)):
        disk = damaged(path, flip(offset), whole)
        found = recovered_epoch(disk)
        assert found in allowed, (offset, found)
        tally.count("bytes flipped, recovered")


@every_file
def test_a_reader_of_a_flipped_byte_sees_the_whole_store_or_a_named_error(
    store: str, path: str, tally: Tally
) -> None:
    whole = STORES[store]
    first = 3 if store == "trimmed" else 0
    allowed: set[int | str] = {LAST, "DamageError"}
    if path.endswith("manifest.json"):
        allowed.add("FormatError")
    if path == HEAD:
        # A damaged slot leaves a reader with the epoch before, until a writer comes.
        allowed.add(LAST - 1)
    for offset in range(0, len(whole.content(path)), 3):
        read = read_epoch(damaged(path, flip(offset), whole), first=first)
        assert read in allowed, (offset, read)
        tally.count("bytes flipped, read")


@every_file
def test_verify_finds_any_flipped_byte_and_names_its_file(
    store: str, path: str, tally: Tally, long_run: bool
) -> None:
    whole = STORES[store]
    for offset in range(0, len(whole.content(path)), 1 if long_run else 5):
        disk = damaged(path, flip(offset), whole)
        try:
            report = verify(PATH, disk)
        except FormatError as error:
            assert path in str(error)
            continue
        found = [*report.damages, *(note for note in report.notes if path == HEAD)]
        assert any(path in each for each in found), (offset, report)
        tally.count("bytes flipped, found by verify")


@every_file
def test_a_file_cut_anywhere_gives_the_whole_store_or_a_named_error(
    store: str, path: str, tally: Tally, long_run: bool
) -> None:
    whole = STORES[store]
    for size in range(0, len(whole.content(path)), stride(store, long_run)):

        def cut(content: bytearray, size: int = size) -> None:
            del content[size:]

        disk = damaged(path, cut, whole)
        assert recovered_epoch(disk) in {LAST, "DamageError"}, size
        tally.count("files cut at a byte")


def test_damage_in_the_log_is_named_with_file_and_offset() -> None:
    disk = damaged(LAST_LOG, flip(200))
    store = Store.open(PATH, disk, SimulatedClock())
    with pytest.raises(DamageError, match=rf"{LAST_LOG} at offset 64: .*headgate verify"):
        store.recover()


def test_a_damaged_newest_snapshot_is_replaced_by_an_older_one_or_the_log() -> None:
    snapshots = [path for path in WHOLE.paths() if path.endswith(".snapshot")]
    disk = damaged(snapshots[1], flip(300))
    assert recovered_epoch(disk) == LAST
    disk.replace(snapshots[0], b"")
    assert recovered_epoch(disk) == LAST
    store = Store.open(PATH, disk, SimulatedClock())
    store.recover()
    assert store.outcome is not None
    assert len(store.outcome.damaged_snapshots) == 2


def test_with_all_snapshots_damaged_the_log_is_verified_from_its_beginning() -> None:
    disk = damaged(LOG, flip(150))
    assert recovered_epoch(disk) == LAST
    for path in disk.paths():
        if path.endswith(".snapshot"):
            disk.replace(path, b"nothing")
    assert recovered_epoch(disk) == "DamageError"


def test_a_missing_segment_is_damage() -> None:
    for path in (LOG, LAST_LOG):
        disk = WHOLE.after_crash(Survival.KEEP)
        disk.remove(path)
        assert recovered_epoch(disk) == "DamageError"


def frames_of(content: bytes) -> list[bytes]:
    """The frames of a segment after its header, cut apart at their magic."""
    starts = [n for n in range(64, len(content), 64) if content[n : n + 4] == b"HGfr"]
    return [content[a:b] for a, b in zip(starts, [*starts[1:], len(content)], strict=True)]


def test_frames_swapped_or_repeated_are_damage(tally: Tally) -> None:
    content = WHOLE.content(LOG)
    frames = frames_of(content)
    orders = {
        order
        for length in range(1, 5)
        for order in itertools.product(range(3), repeat=length)
        if order != (0, 1, 2)
    }
    for order in sorted(orders):
        tally.count("frames swapped, doubled or dropped")
        disk = WHOLE.after_crash(Survival.KEEP)
        disk.replace(LOG, content[:64] + b"".join(frames[number] for number in order))
        for path in disk.paths():
            if path.endswith(".snapshot"):
                disk.remove(path)
        # A segment ends where the next one begins: what stands behind that is read by no one.
        is_behind = order[: len(frames)] == tuple(range(len(frames)))
        wanted = LAST if is_behind else "DamageError"
        assert recovered_epoch(disk) == wanted, order
        assert read_epoch(disk) == wanted, order


def test_without_a_head_only_the_last_frame_may_be_cut() -> None:
    """Each frame calls the ones before it durable, so damage to those is never taken for a tear."""
    for offset in range(64, len(WHOLE.content(LOG)), 7):
        disk = damaged(LOG, flip(offset))
        for path in disk.paths():
            if path in (HEAD, LAST_LOG) or path.endswith(".snapshot"):
                disk.remove(path)
        last_frame = len(WHOLE.content(LOG)) - len(frames_of(WHOLE.content(LOG))[-1])
        expected = 2 if offset >= last_frame else "DamageError"
        assert recovered_epoch(disk) == expected, offset


def test_a_frame_in_flight_behind_a_torn_one_is_cut_with_it() -> None:
    """Two frames were appended and neither was synced: the second may survive without the first."""
    disk = SimulatedDisk()
    store = Store.open(PATH, disk, SimulatedClock())
    store.recover()
    store.write_manifest(MANIFEST)
    store.commit(commit_of(1))
    store.append(commit_of(2))
    store.append(commit_of(3))
    content = bytearray(disk.content(LOG))
    content[len(content) - sum(map(len, frames_of(bytes(content))[1:])) + 100] ^= 1
    disk = disk.after_crash(Survival.KEEP)
    disk.replace(LOG, bytes(content))
    assert recovered_epoch(disk) == 1
    assert disk.content(LOG) == bytes(content[: 64 + len(frames_of(bytes(content))[0])])


def test_a_long_torn_tail_is_gone_before_the_next_segment_begins() -> None:
    """Bytes that were left behind the last frame would be damage once another segment follows."""
    disk = damaged(LAST_LOG, lambda content: content.extend(b"never finished" * 1000))
    store = Store.open(PATH, disk, SimulatedClock(), segment_bytes=800)
    store.recover()
    for epoch in range(LAST + 1, LAST + 5):
        store.commit(commit_of(epoch))
    store.close()
    assert len([path for path in disk.paths() if path.endswith(".log")]) > 2
    assert recovered_epoch(disk) == LAST + 4


def test_a_newer_format_is_refused_and_nothing_is_touched() -> None:
    disk = damaged(f"{PATH}/manifest.json", lambda content: None)
    mine, next_one = (f'"headgate": {layout.VERSION + more}'.encode() for more in (0, 1))
    newer = disk.content(f"{PATH}/manifest.json").replace(mine, next_one)
    disk.replace(f"{PATH}/manifest.json", newer)
    before = {path: disk.content(path) for path in disk.paths()}
    with pytest.raises(FormatError, match="upgrade Headgate"):
        Store.open(PATH, disk, SimulatedClock())
    with pytest.raises(FormatError, match="upgrade Headgate"):
        StoreReader.open(PATH, disk)
    assert {path: disk.content(path) for path in disk.paths()} == before
