"""The count of cases: what every one leaves was recovered from and compared with the model."""

from __future__ import annotations

from collections import Counter

from headgate.testing.disk import SimulatedDisk
from tests.faults.workload import Told, check


class Tally:
    """Counts cases by what they are, and examines whole what was not seen before.

    Two crashes that leave the same bytes after the same promises have the same answer. So the first
    of them is recovered from and compared, and only every third disk that is new is also read by a
    reader and crashed once more. With `again`, the others are recovered from as well.
    """

    def __init__(self, again: bool = False) -> None:
        self._again = again
        self.counts: Counter[str] = Counter()
        self._seen: set[tuple[bytes, Told]] = set()

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def check(self, what: str, disk: SimulatedDisk, told: Told, is_synced: bool = True) -> None:
        """One case: the disk must keep what was told.

        Of a disk that is not synced its bytes say not all: it is always recovered from.
        """
        case = (disk.fingerprint(), told)
        is_new = case not in self._seen
        if is_new or self._again or not is_synced:
            check(disk, told, thorough=is_new and len(self._seen) % 3 == 0)
        self._seen.add(case)
        self.count(what)
        self.counts["different disks among them"] += is_new
