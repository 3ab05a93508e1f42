"""What each epoch of the small life does to its accounts, and how that is logged."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pyarrow as pa

from headgate.durability.commit import Changes


def changes_of(epoch: int) -> dict[int, tuple[int, float] | None]:
    """The account rows that an epoch changes: some new, some again, and some gone."""
    rows: dict[int, tuple[int, float] | None] = {
        slot: (1000 + slot, epoch + slot / 8) for slot in range(epoch, epoch + 6)
    }
    rows[epoch // 2] = None
    return rows


@functools.cache
def alive_after(epoch: int) -> frozenset[int]:
    """The slots of the accounts that are there after an epoch."""
    if epoch == 0:
        return frozenset()
    rows = changes_of(epoch)
    gone = {slot for slot, row in rows.items() if row is None}
    return frozenset((alive_after(epoch - 1) | set(rows)) - gone)


def accounts_of(epoch: int) -> Changes:
    """As an engine logs them: rows that are gone, new ones whole, new values of the others.

    Some epochs have all of them whole in one batch, as the migration of a table has.
    """
    rows, before = changes_of(epoch), alive_after(epoch - 1)
    if epoch % 4 == 3:
        return _account_rows(rows)
    gone = {slot: row for slot, row in rows.items() if row is None}
    new = {slot: row for slot, row in rows.items() if row is not None and slot not in before}
    again = {slot: row for slot, row in rows.items() if row is not None and slot in before}
    balances = [row[1] for row in again.values() if row is not None]
    found = [
        _account_rows(gone).select(["__slot", "__alive"]),
        _account_rows(new),
        pa.record_batch({"__slot": pa.array(again, pa.int64()), "balance": pa.array(balances)}),
    ]
    return tuple(piece for piece in found if piece.num_rows)


def _account_rows(rows: Mapping[int, tuple[int, float] | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "__slot": pa.array(rows, pa.int64()),
            "__alive": pa.array([row is not None for row in rows.values()], pa.bool_()),
            "id": pa.array([0 if row is None else row[0] for row in rows.values()], pa.int64()),
            "balance": pa.array([-1.0 if row is None else row[1] for row in rows.values()]),
        }
    )
