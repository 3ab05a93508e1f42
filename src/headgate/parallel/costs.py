"""The calibration: the costs measured on this machine, kept in a file between runs.

Whatever is wrong with the file, the defaults stand in for it: a decision may then be slower, never
wrong. A file of another machine counts as wrong.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from headgate.errors import InputError
from headgate.io import Disk, RealDisk, make_folders, read_file, replace_file
from headgate.parallel.decision import Thresholds

VARIABLE = "HEADGATE_CALIBRATION"
FILE_NAME = "calibration.json"
FORMAT = 1
_ELSEWHERE = f"set {VARIABLE} to a file that can be written, and run `headgate calibrate`"


def calibration_path(folder: Path) -> Path:
    """Where the file is: HEADGATE_CALIBRATION, or in this folder, the compile cache's."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else folder / FILE_NAME


def machine() -> dict[str, Any]:
    """What must be the same for measured costs to hold."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def save_thresholds(thresholds: Thresholds, path: Path, disk: Disk | None = None) -> None:
    """Keep the costs; a crash leaves the old file or the new one."""
    path = Path(os.path.abspath(path))
    content = {"format": FORMAT, "machine": machine(), "thresholds": asdict(thresholds)}
    disk = disk or RealDisk()
    with _keeping(path):
        make_folders(disk, str(path.parent))
        replace_file(disk, str(path), json.dumps(content, indent=2).encode() + b"\n")
    _load.cache_clear()


def check_place(path: Path) -> None:
    """InputError where no costs can be kept; said before they are measured."""
    path = Path(os.path.abspath(path))
    with _keeping(path):
        make_folders(RealDisk(), str(path.parent))
        if not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextlib.contextmanager
def _keeping(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"the costs cannot be kept in {path} ({why}): {_ELSEWHERE}") from error


def load_thresholds(folder: Path) -> Thresholds:
    """The costs of this machine, or the defaults; the file is read once in a process.

    A file that is damaged or of another machine is told of in a warning, once.
    """
    return _load(str(calibration_path(folder)))


@functools.cache
def _load(path: str) -> Thresholds:
    try:
        content = read_file(RealDisk(), path)
    except (FileNotFoundError, NotADirectoryError):  # nothing was ever kept there
        return Thresholds()
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        return _defaults(path, why, f"Make it a file of your own, or {_ELSEWHERE}")
    try:
        found = json.loads(content)
        return _checked(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error) if isinstance(error, _Unfit) else "is damaged"
        return _defaults(path, why, "Run `headgate calibrate` again")


class _Unfit(ValueError):
    """The file is whole but not for us."""


def _checked(found: Any) -> Thresholds:
    """The thresholds in the content of a file; a field that it lacks has its default."""
    if found["format"] != FORMAT:
        raise _Unfit("has another format")
    if found["machine"] != machine():
        raise _Unfit("was measured on another machine, or with other cores")
    given: Mapping[str, Any] = found["thresholds"]
    known = [field.name for field in fields(Thresholds) if field.name in given]
    values = {name: float(given[name]) for name in known}
    for name, value in values.items():
        if not math.isfinite(value) or value < 0:
            raise _Unfit(f"says {value} for {name}")
    return replace(Thresholds(), **values)


def _defaults(path: str, why: str, what: str) -> Thresholds:
    warnings.warn(
        f"{path} {why}; Headgate goes on with default costs. {what}",
        RuntimeWarning,
        stacklevel=4,
    )
    return Thresholds()
