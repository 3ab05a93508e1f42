"""The only layer that touches files and clocks, so that tests can replace both."""

from __future__ import annotations

from headgate.io.files import (
    Aside,
    Clock,
    Disk,
    File,
    Lock,
    OpenMode,
    local_folder,
    make_folders,
    read_file,
    read_fully,
    reason_of,
    replace_file,
    write_fully,
)
from headgate.io.real import RealClock, RealDisk, give_way

__all__ = [
    "Aside",
    "Clock",
    "Disk",
    "File",
    "Lock",
    "OpenMode",
    "RealClock",
    "RealDisk",
    "give_way",
    "local_folder",
    "make_folders",
    "read_file",
    "read_fully",
    "reason_of",
    "replace_file",
    "write_fully",
]
