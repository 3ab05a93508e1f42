"""Measured costs come back as they were kept; a file that cannot be trusted gives the defaults."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import InputError
from headgate.parallel import decision as calibration
from headgate.parallel.decision import (
    Thresholds,
    calibration_path,
    check_place,
    load_thresholds,
    save_thresholds,
)
from headgate.testing import SimulatedCrash, SimulatedDisk, Survival

MEASURED = replace(Thresholds(), barrier_ns=1234.5, signal_ns=17.25)


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(calibration.VARIABLE, raising=False)
    calibration._load.cache_clear()
    yield
    calibration._load.cache_clear()


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_is_kept_comes_back_without_a_word(tmp_path: Path) -> None:
    path = calibration_path(tmp_path / "new" / "folder")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_thresholds(path.parent) == Thresholds()  # there is no file yet
        save_thresholds(MEASURED, path)
        assert load_thresholds(path.parent) == MEASURED


def test_the_variable_says_where_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "elsewhere.json"
    monkeypatch.setenv(calibration.VARIABLE, str(chosen))
    assert calibration_path(tmp_path) == chosen
    save_thresholds(MEASURED, calibration_path(tmp_path))
    assert load_thresholds(tmp_path) == MEASURED
    assert chosen.exists()
    monkeypatch.delenv(calibration.VARIABLE)
    assert load_thresholds(tmp_path) == Thresholds()


def test_a_file_is_read_once_and_again_when_it_was_written_anew(tmp_path: Path) -> None:
    path = calibration_path(tmp_path)
    save_thresholds(MEASURED, path)
    assert load_thresholds(tmp_path) == MEASURED
    path.unlink()
    assert load_thresholds(tmp_path) == MEASURED
    save_thresholds(replace(MEASURED, start_ns=5.0), path)
    assert load_thresholds(tmp_path).start_ns == 5.0


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"{}", b"null", b"7", b'{"format": 1}', b"[" * 100_000],
)
def test_a_damaged_file_gives_the_defaults_and_one_warning(tmp_path: Path, content: bytes) -> None:
    calibration_path(tmp_path).write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is damaged.*headgate calibrate") as told:
        assert load_thresholds(tmp_path) == Thresholds()
        assert load_thresholds(tmp_path) == Thresholds()
    assert len(told) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 2}, "another format"),
        ({"machine": {"cpus": 9999, "platform": "Linux x86_64"}}, "another machine"),
        ({"machine": None}, "another machine"),
        ({"thresholds": {"signal_ns": -1.0}}, "says -1.0 for signal_ns"),
        ({"thresholds": {"signal_ns": float("nan")}}, "says nan for signal_ns"),
        ({"thresholds": {"signal_ns": "fast"}}, "is damaged"),
        ({"thresholds": {"signal_ns": None}}, "is damaged"),
        ({"thresholds": None}, "is damaged"),
    ],
)
def test_a_file_that_does_not_fit_gives_the_defaults_and_says_why(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    path = calibration_path(tmp_path)
    save_thresholds(MEASURED, path)
    change(path, **changes)
    with pytest.warns(RuntimeWarning, match=why):
        assert load_thresholds(tmp_path) == Thresholds()


def test_a_folder_in_its_place_gives_the_defaults(tmp_path: Path) -> None:
    calibration_path(tmp_path).mkdir()
    with pytest.warns(RuntimeWarning, match="cannot be read.*a file of your own, or set") as told:
        assert load_thresholds(tmp_path) == Thresholds()
    assert "again" not in str(told[0].message), "it could not be kept there either"


def test_a_cache_that_cannot_be_has_no_costs_and_no_second_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_thresholds(tmp_path / "file") == Thresholds()
        assert load_thresholds(Path("/dev/null/x")) == Thresholds()


@pytest.mark.parametrize("where", ["file/costs.json", "folder"])
def test_costs_that_cannot_be_kept_are_told_before_and_after(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for attempt in (check_place, lambda path: save_thresholds(MEASURED, path)):
        with pytest.raises(InputError, match=r"cannot be kept.*HEADGATE_CALIBRATION"):
            attempt(tmp_path / where)


def test_fields_of_an_older_or_newer_headgate_do_not_matter(tmp_path: Path) -> None:
    path = calibration_path(tmp_path)
    save_thresholds(MEASURED, path)
    kept = asdict(MEASURED)
    del kept["barrier_ns"]
    change(path, thresholds={**kept, "moon_ns": 4})
    assert load_thresholds(tmp_path) == replace(MEASURED, barrier_ns=Thresholds().barrier_ns)


def test_a_crash_while_it_is_written_leaves_the_old_file_or_the_new_one() -> None:
    path, newer = Path("/cache/calibration.json"), replace(MEASURED, start_ns=5.0)
    survived = set()
    for survival in Survival:
        for call in range(1, 10):
            disk = SimulatedDisk()
            save_thresholds(MEASURED, path, disk)
            disk.crash_at = disk.calls + call
            try:
                save_thresholds(newer, path, disk)
            except SimulatedCrash:
                disk = disk.after_crash(survival, call)
            kept = json.loads(disk.content(str(path)))["thresholds"]
            assert kept in (asdict(MEASURED), asdict(newer))
            survived.add(kept["start_ns"])
    assert survived == {MEASURED.start_ns, newer.start_ns}
