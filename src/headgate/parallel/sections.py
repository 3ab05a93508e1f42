"""Sections: a large batch cut into pieces that are planned and run one after another.

What planning looks at then stays in the caches, so that its cost grows with the operations and not
faster. Each section ends before the next one begins, so the effect is that of the serial order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from headgate.execution.run import Run
from headgate.state.compiled import numba
from headgate.state.layout import HEADER_EPOCH_SHIFT

SECTION_OPERATIONS = 1 << 15  # about so many are planned at once


def section_count(operations: int) -> int:
    """Into how many sections a batch of so many operations is cut."""
    return max(1, round(operations / SECTION_OPERATIONS))


def cut(run: Run) -> list[range]:
    """The positions of each section of a batch, in order."""
    count = min(section_count(_operations(run)), len(run.order))  # a transaction is not cut
    edges = np.linspace(0, len(run.order), count + 1).astype(int)
    return [range(first, last) for first, last in pairwise(edges.tolist())]


def _operations(run: Run) -> int:
    """How many rows the events of the batch name."""
    if run.operations_max() <= SECTION_OPERATIONS:
        return run.operations_max()  # no need to look closer
    count, routed = 0, run.route[run.order]
    for number, work in enumerate(run.works):
        mine = routed == number
        for access in work.signature.accesses:
            if access.form == "each":
                count += int(work.key_columns(access)[0].lengths[run.order[mine]].sum())
            else:
                count += int(np.count_nonzero(mine))
    return count


def run_in_turn(run: Run, sections: Sequence[range], run_section: Callable[[Run], bool]) -> None:
    """Run section after section, serially where `run_section` says so, and put all together."""
    changed: dict[str, list[np.ndarray]] = {name: [] for name in run.table_names}
    for number, places in enumerate(sections):
        # Stamped with a number of its own, a row counts as changed once in every section: what it
        # was before can be put back there. Real epochs are not negative.
        section = _section(run, places, -1 - number)
        if not run_section(section):
            section.all()
        _take(run, section, places)
        for name, slots in section.changed().items():
            changed[name].append(slots)
    for number, name in enumerate(run.table_names):
        slots = np.concatenate([np.empty(0, np.int64), *changed[name]])
        words, found = run.program.tables[name].words, run.arrays[f"changed_{number}"]
        run.counts[2 * number] = _settle(words, slots, run.epoch, found)


def _section(run: Run, places: range, stamp: int) -> Run:
    works = [replace(work, out=None, changes=[]) for work in run.works]
    order = run.order[places.start : places.stop]
    return Run(run.program, works, order, run.route, stamp, whole=run)


def _take(run: Run, section: Run, places: range) -> None:
    """Its outcomes and outputs, and whether it deleted rows."""
    here = slice(places.start, places.stop)
    run.outcome[here], run.reason[here] = section.outcome, section.reason
    for mine, theirs in zip(run.works, section.works, strict=True):
        if mine.out is not None and theirs.out is not None:
            mine.out[here] = theirs.out
    run.counts[1::2] |= section.counts[1::2]


@numba.njit(cache=True, nogil=True)
def _settle(words: np.ndarray, slots: np.ndarray, epoch: int, found: np.ndarray) -> int:
    """Give the rows the epoch of the batch; each is found once. Returns how many there are."""
    count = 0
    for slot in slots:
        if words[slot, 0] >> HEADER_EPOCH_SHIFT != epoch:
            words[slot, 0] = (epoch << HEADER_EPOCH_SHIFT) | (words[slot, 0] & 1)
            found[count] = slot
            count += 1
    return count
