"""The disks: the simulated one behaves like the machine's own, and its faults are real."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.io import (
    Disk,
    RealDisk,
    make_folders,
    read_file,
    read_fully,
    replace_file,
    write_fully,
)
from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.unit.durability.conftest import Place

NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("write"), NAMES, NAMES, st.integers(0, 40), st.binary(max_size=20)),
        st.tuples(st.just("truncate"), NAMES, NAMES, st.integers(0, 40), st.just(b"")),
        st.tuples(st.just("rename"), NAMES, NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("remove"), NAMES, NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("sync"), NAMES, NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("folder"), NAMES, NAMES, st.just(0), st.just(b"")),
    ),
    max_size=25,
)
Step = tuple[str, str, str, int, bytes]


def perform(disk: Disk, folder: str, step: Step) -> str:
    """Do one step and say how it ended."""
    action, name, other, place, data = step
    path = f"{folder}/{name}"
    try:
        if action == "create":
            disk.open(path, "create").close()
        elif action == "rename":
            disk.rename(path, f"{folder}/{other}")
        elif action == "remove":
            disk.remove(path)
        elif action == "folder":
            disk.sync_folder(folder)
        else:
            change(disk, path, action, place, data)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def change(disk: Disk, path: str, action: str, place: int, data: bytes) -> None:
    file = disk.open(path, "write")
    try:
        if action == "write":
            file.write(place, data, b"!")
        elif action == "truncate":
            file.truncate(place)
        else:
            file.sync()
    finally:
        file.close()


@given(steps=STEPS)
def test_the_simulated_disk_does_what_the_real_one_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    real_folder = str(tmp_path_factory.mktemp("disk"))
    real, simulated = RealDisk(), SimulatedDisk()
    simulated.make_folder("/f")
    for step in steps:
        assert perform(real, real_folder, step) == perform(simulated, "/f", step), step
    assert real.list(real_folder) == simulated.list("/f")
    for name in simulated.list("/f"):
        assert read_file(real, f"{real_folder}/{name}") == simulated.content(f"/f/{name}")


def test_reading_stops_where_the_file_ends(place: Place) -> None:
    make_folders(place.disk, place.path)
    file = place.disk.open(f"{place.path}/x", "create")
    file.write(3, b"abc", memoryview(b"def"))
    target = bytearray(10)
    assert file.read_into(5, memoryview(target)) == 4
    assert bytes(target[:4]) == b"cdef"
    assert file.size() == 9
    assert read_file(place.disk, file.path) == b"\0\0\0abcdef"


def test_missing_files_and_folders_are_told(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.open(f"{place.path}/x", "read")
    assert not place.disk.exists(f"{place.path}/x/y")
    make_folders(place.disk, place.path)
    make_folders(place.disk, place.path)
    place.disk.make_folder(place.path)
    place.disk.open(f"{place.path}/x", "create").close()
    with pytest.raises(NotADirectoryError):
        place.disk.list(f"{place.path}/x")
    with pytest.raises(IsADirectoryError):
        place.disk.open(place.path, "write")


def test_a_write_is_completed_however_short_the_calls_are() -> None:
    written = bytearray()

    def three_bytes(pieces: list[memoryview], offset: int) -> int:
        assert offset == len(written)
        data = b"".join(pieces)[:3]
        written.extend(data)
        return len(data)

    write_fully(three_bytes, 0, [b"", b"ab", b"cdefg", memoryview(b"hi")])
    assert written == b"abcdefghi"


def test_a_write_that_makes_no_headway_is_an_error() -> None:
    with pytest.raises(OSError, match="no bytes"):
        write_fully(lambda pieces, offset: 0, 0, [b"x"])


def test_a_read_is_completed_however_short_the_calls_are() -> None:
    content = b"0123456789"

    def two_bytes(target: memoryview, offset: int) -> int:
        piece = content[offset : offset + 2][: len(target)]
        target[: len(piece)] = piece
        return len(piece)

    target = bytearray(5)
    assert read_fully(two_bytes, 3, memoryview(target)) == 5
    assert target == b"34567"
    assert read_fully(two_bytes, 7, memoryview(target)) == 3


def test_more_pieces_than_one_call_takes_are_written(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "x"), "create")
    file.write(0, *[b"ab"] * 3000)
    assert file.size() == 6000


def test_a_large_file_is_freed_bit_by_bit_but_never_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing many megabytes at once holds up the syncs of others; a copy by link stays whole."""
    sizes: list[int] = []
    truncate = os.ftruncate
    monkeypatch.setattr(
        os, "ftruncate", lambda file, size: (sizes.append(size), truncate(file, size))
    )
    disk, content = RealDisk(), os.urandom(20 << 20)
    for name in ("lone", "linked"):
        (tmp_path / name).write_bytes(content)
    os.link(tmp_path / "linked", tmp_path / "copy")
    disk.remove(str(tmp_path / "linked"))
    assert sizes == []
    disk.remove(str(tmp_path / "lone"))
    assert sizes == [12 << 20, 4 << 20, 0]
    assert disk.list(str(tmp_path)) == ["copy"]
    assert (tmp_path / "copy").read_bytes() == content


def test_a_large_file_that_may_not_be_written_is_removed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").write_bytes(bytes(20 << 20))

    def refuse(path: str, *_: int) -> int:
        raise PermissionError(errno.EACCES, "not yours", path)

    monkeypatch.setattr(os, "open", refuse)
    RealDisk().remove(str(tmp_path / "theirs"))
    assert RealDisk().list(str(tmp_path)) == []


def test_only_what_was_synced_is_sure_to_survive() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/f")
    disk.sync_folder("/")
    file = disk.open("/f/x", "create")
    file.write(0, b"old")
    file.sync()
    assert disk.after_crash(Survival.DROP).paths() == ()
    assert disk.after_crash(Survival.NAMES).content("/f/x") == b"old"
    disk.sync_folder("/f")
    file.write(0, b"new!")
    assert disk.after_crash(Survival.DROP).content("/f/x") == b"old"
    assert disk.after_crash(Survival.KEEP).content("/f/x") == b"new!"
    assert disk.after_kill().content("/f/x") == b"new!"
    torn = {disk.after_crash(Survival.TEAR, seed).content("/f/x") for seed in range(40)}
    assert torn == {b"old", b"nld", b"ned", b"new", b"new!"}


def test_sectors_of_unsynced_writes_survive_in_any_combination() -> None:
    disk = SimulatedDisk()
    file = disk.open("/x", "create")
    disk.sync_folder("/")
    file.write(0, b"a" * 512 + b"b" * 512)
    found = {disk.after_crash(Survival.RANDOM, seed).content("/x") for seed in range(200)}
    assert {b"", b"a" * 512, b"a" * 512 + b"b" * 512, bytes(512) + b"b" * 512} <= found


def test_a_rename_is_never_half_done() -> None:
    disk = SimulatedDisk()
    replace_file(disk, "/x", b"old")
    file = disk.open("/x.new", "create")
    file.write(0, b"new")
    file.sync()
    disk.rename("/x.new", "/x")
    found = {disk.after_crash(Survival.RANDOM, seed).content("/x") for seed in range(50)}
    assert found == {b"old", b"new"}


def test_a_crashed_disk_does_nothing_any_more() -> None:
    disk = SimulatedDisk(crash_at=2)
    file = disk.open("/x", "create")
    with pytest.raises(SimulatedCrash):
        file.write(0, b"abc")
    for action in (file.sync, lambda: disk.open("/y", "create"), lambda: disk.list("/")):
        with pytest.raises(SimulatedCrash):
            action()


def test_a_failed_sync_loses_the_bytes_that_programs_still_see() -> None:
    disk = SimulatedDisk(fail_at=3)
    file = disk.open("/x", "create")
    file.write(0, b"abc")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.sync()
    disk.sync_folder("/")
    file.sync()
    assert disk.content("/x") == b"abc"
    assert disk.after_crash(Survival.KEEP).content("/x") == b""


def test_a_full_disk_takes_what_fits_and_then_refuses() -> None:
    disk = SimulatedDisk(capacity_bytes=5)
    file = disk.open("/x", "create")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.write(0, b"0123456789")
    assert disk.content("/x") == b"01234"
    file.write(1, b"xyz")
    assert disk.content("/x") == b"0xyz4"


def test_the_simulated_clock_moves_by_steps_and_on_demand() -> None:
    clock = SimulatedClock(start_us=0, step_us=10)
    assert [clock.time_us(), clock.time_us()] == [10, 20]
    clock.advance(1.5)
    assert clock.time_us() == 1_500_030
    assert clock.monotonic() < clock.monotonic()
