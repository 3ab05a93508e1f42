"""The count of cases, and the disks already judged: the same bytes need no second trial."""

from __future__ import annotations

from collections import Counter

from headgate.testing.disk import SimulatedDisk
from tests.faults.workload import Told, check


class Tally:
    """Counts cases by what they are; a case whose disk was judged before costs only the look.

    Recovery is a function of the bytes on the disk. Two crashes that leave the same bytes, after
    the same promises, are two cases with one answer, which is found once.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sound: set[tuple[bytes, Told]] = set()

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def check(self, what: str, disk: SimulatedDisk, told: Told) -> None:
        """One case: the disk must keep what was told. Every third new disk is examined whole."""
        self.count(what)
        case = (disk.fingerprint(), told)
        if case not in self._sound:
            check(disk, told, thorough=len(self._sound) % 3 == 0)
            self._sound.add(case)
            self.counts["disks of these cases that differ"] += 1
