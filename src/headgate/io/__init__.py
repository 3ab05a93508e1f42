"""The only layer that touches files and clocks, so that tests can replace both."""

from __future__ import annotations

from headgate.io.clock import Clock, RealClock, give_way
from headgate.io.disk import (
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
from headgate.io.real import RealDisk

__all__ = [
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
