"""Shared batches: a batch as threads share it.

Whoever has a batch says here what it may touch; parallel/whole_transactions.py has all threads plan
and run it. Invariant: the frame and all that it points to live until it has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headgate.kernels.frame import FrameLayout
from headgate.state.rows import TableRows
from headgate.state.spaces import EventRows


@dataclass(frozen=True)
class SharedBatch:
    """One batch; `changed` and `counts` are where the serial loop would note what it changed."""

    layout: FrameLayout
    frame: np.ndarray
    count: int  # of positions
    tables: Sequence[TableRows]
    changed: Sequence[np.ndarray]  # by table: slots, with room for all that can change
    counts: np.ndarray  # by table: how many of them, whether one was deleted
    undo_words: int
    singles: int  # rows that an event names one by one, at most
    lengths: Sequence[np.ndarray] = ()  # by access that names many rows, by event row: how many
    order: EventRows | None = None  # None: that of the event rows
    words: Mapping[str, np.ndarray] = field(default_factory=dict)  # others in the frame
