"""The count of cases: every one is a recovery that was compared with the model."""

from __future__ import annotations

from collections import Counter

from headgate.testing.disk import SimulatedDisk
from tests.faults.workload import Told, check


class Tally:
    """Counts cases by what they are, and examines whole what was not seen before.

    Two crashes that leave the same bytes after the same promises have the same answer. So each
    is recovered from and compared, but only every third disk that is new is also read by a reader
    and crashed once more.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._seen: set[tuple[bytes, Told]] = set()

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def check(self, what: str, disk: SimulatedDisk, told: Told) -> None:
        """One case: the disk must keep what was told."""
        case = (disk.fingerprint(), told)
        is_new = case not in self._seen
        check(disk, told, thorough=is_new and len(self._seen) % 3 == 0)
        self._seen.add(case)
        self.count(what)
        self.counts["different disks among them"] += is_new
