"""The calibration: the costs measured on this machine, kept in a file between runs.

Whatever is wrong with the file, the defaults stand in for it: a decision may then be slower, never
wrong. A file of another machine counts as wrong.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from headgate.io import Disk, RealDisk, make_folders, read_file, replace_file
from headgate.scheduling.decision import Thresholds

VARIABLE = "HEADGATE_CALIBRATION"
FILE_NAME = "calibration.json"
FORMAT = 1


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
    make_folders(disk, str(path.parent))
    replace_file(disk, str(path), json.dumps(content, indent=2).encode() + b"\n")
    _load.cache_clear()


def load_thresholds(folder: Path) -> Thresholds:
    """The costs of this machine, or the defaults; the file is read once in a process.

    A file that is damaged or of another machine is told of in a warning, once.
    """
    return _load(str(calibration_path(folder)))


@functools.cache
def _load(path: str) -> Thresholds:
    try:
        content = read_file(RealDisk(), path)
    except FileNotFoundError:
        return Thresholds()
    except OSError as error:
        return _defaults(path, f"cannot be read ({error.strerror or error})")
    try:
        found = json.loads(content)
        return _checked(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return _defaults(path, str(error) if isinstance(error, _Unfit) else "is damaged")


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


def _defaults(path: str, why: str) -> Thresholds:
    warnings.warn(
        f"{path} {why}; Headgate goes on with default costs. Run `headgate calibrate` again",
        RuntimeWarning,
        stacklevel=4,
    )
    return Thresholds()
