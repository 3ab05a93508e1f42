"""The values that cross the border of the durability layer: what is committed and recovered.

A mark is what a store remembers after an epoch, carried on from commit to commit. Invariant: a mark
follows its predecessor by exactly one epoch, and its slots never shrink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from headgate.durability.format import Position
from headgate.durability.plain_batches import PlainBatch
from headgate.errors import InputError, InvariantError, shown

SLOT = "__slot"
ALIVE = "__alive"
Durability = Literal["sync", "group", "none"]


# What an epoch did to a table, or its results: a batch, or several. Those of a table may have
# different columns, and have no slot twice.
Batch: TypeAlias = pa.RecordBatch | PlainBatch
Changes: TypeAlias = Batch | tuple[Batch, ...]


@dataclass(frozen=True)
class Inlet:
    """The order state of one stream of events: a query, the name of a `run`, or what a dataflow
    has under way.

    With `drops` it is a change of one: what was held before stays, without so many of its first
    rows, and `held` comes behind it. So a long queue costs an epoch only what it added.
    """

    watermark_us: int | None
    held: pa.Table | None
    arrivals: int
    drops: int | None = None
    # Of a change: from which inlet to which, so that those who follow it do so once together.
    _moved: tuple[Inlet | None, Inlet] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def after(self, before: Inlet | None) -> Inlet:
        """The inlet that this change makes of one; ValueError where it cannot."""
        known = self._moved
        if known is not None and known[0] is before:
            return known[1]
        found = _moved(before, self)
        if found is not self:  # which stays, and what was before it would, too
            object.__setattr__(self, "_moved", (before, found))
        return found


@dataclass(frozen=True)
class Commit:
    """One epoch: the rows it changed by slot, its results, and the inlets it moved.

    A batch of changes has the columns "__slot" (int64, each slot at most once), "__alive" (bool),
    then the table's own; where alive is false the row is gone and its columns mean nothing. One
    without "__alive" has new values of rows that were there and stay, in the columns it names.

    A batch is Arrow's, or a `PlainBatch` of NumPy columns, which is made faster: of changes and of
    results alike. It must not change before the epoch is appended. Results of several batches, all
    of the same columns, come back as one.

    For weak recovery `input` takes the place of `changes`: the events of the batch, which the code
    of the given fingerprint runs again; `slots` then says per table one more than the highest slot
    used, which the changes would have told. What the code needs beside the events, such as the
    name of the transaction, goes into the metadata of the batch's schema.
    """

    epoch: int
    time_us: int
    origin: tuple[str, int] | None = None
    changes: Mapping[str, Changes] = field(default_factory=dict)
    results: Changes | None = None
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
    origins: Mapping[str, tuple[int, int]]
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
    origins: Mapping[str, tuple[int, int]]
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
    origin: tuple[str, int] | None
    rows: Mapping[str, int]
    result_rows: int
    bytes: int
    file: str
    offset: int


def check_durability(durability: str, group_delay_us: int = 0) -> None:
    """InputError unless this is a way to make commits durable."""
    known = get_args(Durability)
    if durability not in known:
        raise InputError(f"durability {shown(durability)}: it is one of {', '.join(known)}")
    if group_delay_us < 0:
        raise InputError(f"group_delay_us is {group_delay_us}: it cannot be below 0")


def pieces_in(changes: Changes) -> tuple[Batch, ...]:
    """The batches of a table's changes."""
    return changes if isinstance(changes, tuple) else (changes,)


def rows_in(changes: Changes) -> int:
    """How many rows of a table changed."""
    return sum(piece.num_rows for piece in pieces_in(changes))


INLET_CHUNKS_MAX = 64  # pieces of what is held, before they are joined into one


def moved(before: Mapping[str, Inlet], changed: Mapping[str, Inlet]) -> dict[str, Inlet]:
    """The inlets after an epoch that changed some of them; ValueError where one cannot have."""
    return {**before, **{name: one.after(before.get(name)) for name, one in changed.items()}}


def _moved(before: Inlet | None, after: Inlet) -> Inlet:
    if after.drops is None:
        return after
    kept = None if before is None else before.held
    count = 0 if kept is None else kept.num_rows
    if not 0 <= after.drops <= count:
        raise ValueError(f"an inlet of {count} rows that loses {after.drops}")
    parts = [] if kept is None or after.drops == count else [kept.slice(after.drops)]
    parts += [] if after.held is None else [after.held]
    held = _joined(parts) if len(parts) > 1 else next(iter(parts), None)
    if held is not None and held.column(0).num_chunks > INLET_CHUNKS_MAX:
        held = held.combine_chunks()
    return Inlet(after.watermark_us, held, after.arrivals)


def _joined(parts: list[pa.Table]) -> pa.Table:
    """Rows of an inlet; older ones may lack columns that a stream has got since, which are null."""
    if all(one.schema.equals(parts[0].schema) for one in parts[1:]):
        return pa.concat_tables(parts)
    return pa.concat_tables(parts, promote_options="default")


def next_mark(last: Mark, commit: Commit) -> Mark:
    """What the store remembers after the commit; InvariantError when the commit does not fit."""
    if commit.epoch != last.epoch + 1:
        raise InvariantError(f"epoch {commit.epoch} cannot follow epoch {last.epoch}")
    if commit.input is not None and commit.changes:
        raise InvariantError(f"epoch {commit.epoch} has both input and changed rows")
    origins, inlets, slots = last.origins, last.inlets, dict(last.slots)
    if commit.origin is not None:
        query, batch = commit.origin
        origins = {**origins, query: (batch, commit.epoch)}
    if commit.inlets:
        inlets = moved(inlets, commit.inlets)
    for table, changes in commit.changes.items():
        bounds = [_slot_bound(table, piece) for piece in pieces_in(changes)]
        slots[table] = max(slots.get(table, 0), *bounds)
    for table, bound in commit.slots.items():
        slots[table] = max(slots.get(table, 0), bound)
    return Mark(last.position, commit.time_us, origins, inlets, slots)


def mark_at(mark: Mark, position: Position) -> Mark:
    """The same mark at the place behind its frame."""
    return Mark(position, mark.time_us, mark.origins, mark.inlets, mark.slots)


_FEW = 64  # values of which Python finds the highest faster than NumPy does
_REMEMBERED = 256
_known_begins: set[bytes] = set()  # descriptions of changes that begin as they should


def _slot_bound(table: str, changes: Batch) -> int:
    """One more than the highest slot of a batch of changes."""
    if not isinstance(changes, PlainBatch):
        _check_begin(table, changes.schema)
    elif changes.shape.description not in _known_begins:
        _check_begin(table, changes.shape.schema)
        if len(_known_begins) >= _REMEMBERED:
            _known_begins.clear()
        _known_begins.add(changes.shape.description)
    if changes.num_rows == 0:
        return 0
    given = changes.columns[0] if isinstance(changes, PlainBatch) else changes.column(0).to_numpy()
    slots = np.asarray(given)
    # Seen as unsigned, a negative slot is the highest: one pass checks and finds the bound.
    unsigned = slots.view(f"u{slots.itemsize}")
    highest = max(unsigned.tolist()) if len(slots) <= _FEW else int(unsigned.max())
    if highest >= 1 << 63:
        raise InvariantError(f"changes of table {table} have slot {highest - (1 << 64)}")
    return highest + 1


def _check_begin(table: str, schema: pa.Schema) -> None:
    begin = [
        (field.name, field.type) for field in (schema.field(n) for n in range(len(schema))[:2])
    ]
    is_alive = begin[1:] == [(ALIVE, pa.bool_())] or ALIVE not in schema.names
    if begin[:1] != [(SLOT, pa.int64())] or not is_alive:
        raise InvariantError(
            f"changes of table {table} begin with {begin} in place of {SLOT} int64, {ALIVE} bool"
        )


def check_images(mark: Mark, epoch: int, images: Mapping[str, Any]) -> None:
    """InvariantError unless the images are of the mark's epoch and of all its tables."""
    if epoch != mark.epoch:
        raise InvariantError(f"a snapshot of epoch {epoch} after epoch {mark.epoch} was appended")
    missing = sorted(set(mark.slots) - set(images))
    if missing:
        raise InvariantError(f"the snapshot of epoch {epoch} lacks the tables {missing}")


# --- where recovery puts the rows it finds --------------------------------------------------------
# An engine has a place for every row already. Handing it the rows block by block saves to gather
# them first, which for a large table takes longer than to read it.


class RowPlace(Protocol):
    """Where the rows of one table go."""

    def reserve(self, slots: int) -> None:
        """Have room for the slots below this one; the first call, and made once."""
        ...

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        """Take rows of the snapshot of an epoch: "__slot", ascending, and the table's columns.

        Several threads call it at once, each with other slots. The batch's memory is used again
        when it returns.
        """
        ...

    def apply(self, batch: pa.RecordBatch, epochs: int | np.ndarray) -> None:
        """Take changes of an epoch, or of an epoch for each row: "__slot", "__alive" and columns.

        Without "__alive" they are new values of rows that are there; ValueError when one is not.
        They come in the order of the epochs, no slot twice in a batch.
        """
        ...


class Nowhere:
    """A receiver that forgets all rows, for who wants to know only where a store stands."""

    def begin(self) -> None:
        pass

    def place(self, table: str) -> RowPlace:
        return Forgotten()


class Forgotten:
    """The place of a table whose rows no one wants."""

    def reserve(self, slots: int) -> None:
        pass

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        pass

    def apply(self, batch: pa.RecordBatch, epochs: int | np.ndarray) -> None:
        pass


class Receiver(Protocol):
    """Places for the tables of a store."""

    def begin(self) -> None:
        """Forget what was received: recovery begins, perhaps anew from an older snapshot."""
        ...

    def place(self, table: str) -> RowPlace | None:
        """The place for a table's rows; None when they should come as an image."""
        ...
