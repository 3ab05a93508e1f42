"""The values that cross the border of the durability layer: what is committed and recovered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headgate.durability.format import Position

SLOT = "__slot"
ALIVE = "__alive"


@dataclass(frozen=True)
class Inlet:
    """The order state of one stream of events: a query or the name of a `run`."""

    watermark_us: int | None
    held: pa.Table | None
    arrivals: int


@dataclass(frozen=True)
class Commit:
    """One epoch: the rows it changed by slot, its results, and the inlets it moved.

    A batch of changes has the columns "__slot" (int64, each slot at most once), "__alive" (bool),
    then the table's own; where alive is false the row is gone and its columns mean nothing.

    For weak recovery `input` takes the place of `changes`: the events of the batch, which the code
    of the given fingerprint runs again; `slots` then says per table one more than the highest slot
    used, which the changes would have told. What the code needs beside the events, such as the
    name of the transaction, goes into the metadata of the batch's schema.
    """

    epoch: int
    time_us: int
    source: tuple[str, int] | None = None
    changes: Mapping[str, pa.RecordBatch] = field(default_factory=dict)
    results: pa.RecordBatch | None = None
    inlets: Mapping[str, Inlet] = field(default_factory=dict)
    input: pa.RecordBatch | None = None
    fingerprint: str | None = None
    slots: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Recovered:
    """The state of a store at its last durable epoch; epoch 0 is a new store.

    `images` hold "__slot" and the table's columns, live rows only, slot-ascending; a table that
    was never written is absent. `slots` says per table one more than the highest slot ever used.

    When some epochs were logged as input, `pending` holds the commits from the first of them on, in
    order, and everything else is the state before them, at `image_epoch`: the engine runs inputs
    again and applies changes by slot, and is then at `epoch`.
    """

    epoch: int
    time_us: int
    images: Mapping[str, pa.Table]
    sources: Mapping[str, tuple[int, int]]
    inlets: Mapping[str, Inlet]
    slots: Mapping[str, int]
    pending: tuple[Commit, ...] = ()

    @property
    def image_epoch(self) -> int:
        return self.epoch - len(self.pending)


@dataclass(frozen=True)
class Mark:
    """All that a store remembers after an epoch, but the rows themselves."""

    position: Position
    time_us: int
    sources: Mapping[str, tuple[int, int]]
    inlets: Mapping[str, Inlet]
    slots: Mapping[str, int]

    @property
    def epoch(self) -> int:
        return self.position.epoch


@dataclass(frozen=True)
class CommitInfo:
    """What one frame of the log holds, without its rows."""

    epoch: int
    time_us: int
    source: tuple[str, int] | None
    rows: Mapping[str, int]
    result_rows: int
    bytes: int
    file: str
    offset: int
