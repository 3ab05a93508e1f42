"""Stored tables: the rows of a store's files at one epoch, as any process can read them.

Names and columns are those of the declarations at that epoch. Rows that were written before a
column was declared show the default it was declared with, as they do to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import StoreReader
from headgate.state.schema import Schema
from headgate.state.storage import Storage, require_table

ALL_STREAMS = "*"  # the name under which a reader finds the results of all streams
UNROUTED = "unrouted"  # and that of events that no route took: they have no transaction


def of_stream(
    results: pa.RecordBatch,
    stream: str,
    streams: Mapping[str, Any] = MappingProxyType({}),
    epoch: int = 0,
) -> pa.RecordBatch:
    """The recorded results of an epoch that belong to a stream.

    `streams` are those declared; they say under which names its results are recorded.
    """
    if stream == ALL_STREAMS:
        return results
    names = results.column("transaction")
    if stream == UNROUTED:
        return results.filter(names.is_null())
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    meant = [
        name
        for name, first, last in recorded_names(streams, stream)
        if first <= epoch and (last is None or epoch <= last)
    ]
    return results.filter(pc.is_in(names, pa.array(meant, pa.string())))


def read_table(
    reader: StoreReader,
    name: str,
    epoch: int | None = None,
    *,
    slot_range: tuple[int, int] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The declared columns, or those named, also of rows older than their declaration."""
    epoch = reader.last_epoch() if epoch is None else epoch
    described = require_table(reader.declared(epoch).get("tables", {}), name, f"epoch {epoch}")
    storage = Storage.read(name, described)
    declared = Schema.parse(described["columns"])
    wanted = [column for column in declared if columns is None or column.name in columns]
    stored = None if columns is None else [storage.column(column.name) for column in wanted]
    found = reader.table(storage.name, epoch, slot_range=slot_range, columns=stored)
    return storage.from_files(found, wanted)


def recorded_names(streams: Mapping[str, Any], name: str) -> list[tuple[str, int, int | None]]:
    """Under which names a stream's results are recorded: name, its first and its last epoch.

    A name that another stream had before means this one only after that.
    """
    known = streams.get(name, {}).get("names")
    if known is not None:
        return [(one, first, last) for one, first, last in known]
    others = [entry for one in streams.values() for entry in one.get("names", ())]
    ended = [last + 1 for one, _, last in others if one == name and last is not None]
    return [(name, max(ended, default=0), None)]


Origin = tuple[str, int]  # a stream by the first name it had, and the epoch from which on it had it


def origin_of(streams: Mapping[str, Any], name: str, epoch: int) -> Origin | None:
    """The stream that had a name which none has any more; None when none ever had it.

    Of several it is the one that had it at an epoch, or was the last before to get it.
    """
    had = [
        (first <= epoch, first if first <= epoch else -first, other)
        for other, one in streams.items()
        for recorded, first, _ in one.get("names", ())
        if recorded == name
    ]
    return recorded_names(streams, max(had)[2])[0][:2] if had else None


def name_of(streams: Mapping[str, Any], origin: Origin) -> str:
    """What a stream is called among those declared, whatever names it had before."""
    found = (name for name in streams if recorded_names(streams, name)[0][:2] == origin)
    return next(found, origin[0])


def slots_of(reader: StoreReader, name: str, epoch: int) -> int:
    """One more than the highest slot that a table has used up to an epoch."""
    described = require_table(reader.declared(epoch).get("tables", {}), name, f"epoch {epoch}")
    return reader.slots(Storage.read(name, described).name, epoch)
