"""Units written down by hand, for tests of what is planned over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headgate.parallel.precedence import Precedence, Units, link

# A transaction is a list of units; a unit is the row it writes, or None, and other rows it reads.
Unit = tuple[int | None, Sequence[int]]


def units_of(transactions: Sequence[Sequence[Unit]], rows: int) -> Units:
    """The arrays that the kernels would have collected."""
    starts, unit_starts, read_starts = [0], [0], [0]
    touched: list[int] = []
    writes: list[int] = []
    unit_of: list[int] = []
    transaction_of: list[int] = []
    reads: list[int] = []
    for number, units in enumerate(transactions):
        place: dict[int, int] = {}
        for written, read in units:
            for row in (*([] if written is None else [written]), *read):
                if row not in place:
                    place[row] = len(touched)
                    touched.append(row)
                    writes.append(0)
                    unit_of.append(-1)
        for written, read in units:
            unit = len(transaction_of)
            transaction_of.append(number)
            if written is not None:
                writes[place[written]], unit_of[place[written]] = 1, unit
            own = [] if written is None else [place[written]]
            reads += dict.fromkeys([*own, *(place[row] for row in read)])
            read_starts.append(len(reads))
        starts.append(len(touched))
        unit_starts.append(len(transaction_of))
    lists = (starts, touched, writes, unit_of, unit_starts, transaction_of, read_starts, reads)
    a, b, c, d, e, f, g, h = (np.array(values, np.int64) for values in lists)
    return Units(a, b, c, d, e, f, g, h, rows)


def linked(transactions: Sequence[Sequence[Unit]], rows: int) -> Precedence:
    return link(units_of(transactions, rows))
