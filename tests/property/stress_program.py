"""Runs batch after batch by one scheme after another; whoever started it watches the clock."""

from __future__ import annotations

import faulthandler
import sys

from tests.property.test_schemes import PARALLEL
from tests.property.test_units import EXPLORED, OTHERS, spent

HANG_SECONDS = 90


def main(rounds: int) -> None:
    schemes = [*EXPLORED, *OTHERS, *PARALLEL]
    for scheme in schemes:
        spent(3, 10, scheme=scheme, threads=2)  # compiled before the clock runs
    for number in range(rounds):
        for keys in (3, 40):
            for scheme in schemes:
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
                spent(keys, 150, scheme=scheme, threads=2 + number % 4)
                faulthandler.cancel_dump_traceback_later()
                print(scheme, keys, number, flush=True)
    print("all done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
