"""Records of the log: one epoch's commit as the bytes of a frame, and back.

The bytes of a frame are those of its batches where they stand in memory: they are named, hashed in
one pass and written by one call. Invariant: a frame of any length is written with bounded memory of
its own, and its header, without which the frame does not exist, is not written before the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from headgate.durability import format as layout
from headgate.durability.commit import Batch, Changes, Commit, Inlet, pieces_in, rows_in
from headgate.durability.decoding import batch_of, checked_changes, checked_meta, json_of
from headgate.durability.describing import Shapes, unpack
from headgate.durability.format import Position
from headgate.durability.plain_batches import Piece, PlainBatch, size_of
from headgate.durability.viewing import decoded
from headgate.errors import InvariantError
from headgate.io import File

# A frame up to this size is written by one call; a longer one goes in pieces.
PIECE_BYTES_MAX = 8 << 20
_FIRST_BUFFER_BYTES = 1 << 20
PIECE_ROWS_MAX = 1 << 16
_JOINED_BYTES_MAX = 1 << 12  # bytes that are cheaper to copy than to name
_KNOWN_BYTES = 1 << 9  # a description that is kept, for one that is the same may come next
_ZEROS = bytes(layout.ALIGNMENT_BYTES)
# Made once: looking the options up, or making an encoder, takes longer than a short frame does.
_IPC_OPTIONS = pa.ipc.IpcWriteOptions()
_encode_json = json.JSONEncoder(separators=(",", ":")).encode


class EncodeBuffer:
    """One reused piece of memory: allocating it anew for every frame costs more than encoding."""

    def __init__(self, size: int = _FIRST_BUFFER_BYTES) -> None:
        self._replace(size)

    def _replace(self, size: int) -> None:
        self.buffer = pa.allocate_buffer(size)
        self.view = memoryview(self.buffer).cast("B")

    def reserve(self, size: int) -> None:
        """Make room for so many bytes; what was in the buffer is lost."""
        if size > self.buffer.size:
            self._replace(1 << (size - 1).bit_length())

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        """A batch as an IPC stream with zeros up to a multiple of 64, in the buffer."""
        room = batch_room(batch)
        while True:
            self.reserve(room)
            sink = pa.FixedSizeBufferWriter(self.buffer)
            try:
                write_stream(sink, batch)
                sink.write(_ZEROS[: _gap(sink.tell())])
            except OSError as error:
                _check_overflow(error)
                room *= 2
            else:
                return self.view[: sink.tell()]


def write_stream(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    """Write a batch as an Arrow IPC stream of its own."""
    with pa.ipc.new_stream(sink, batch.schema, options=_IPC_OPTIONS) as stream:
        stream.write_batch(batch)


def _check_overflow(error: OSError) -> None:
    """Pass on any error but that the buffer was too small."""
    if "out of bounds" not in str(error):
        raise error


class FrameWriter:
    """Writes the parts of one frame at an offset of a file."""

    def __init__(self, file: File, offset: int, previous: int, shapes: Shapes) -> None:
        self._file = file
        self._offset = offset
        self._previous = previous
        self._shapes = shapes
        self._hash: Any = xxhash.xxh3_64(seed=previous)
        self._pieces: list[Piece] = []
        self._length = 0  # of the payload so far
        self._flushed = 0  # of that, what is in the file

    def add_bytes(self, kind: int, name: str, body: bytes) -> None:
        """Add a part that is already bytes."""
        self._add(kind, name, layout.FORM_PLAIN, [body])

    def add_batch(self, kind: int, name: str, batch: Batch) -> None:
        """Add a batch, as several parts when it is long; it must not change before the end."""
        if isinstance(batch, PlainBatch):
            self._add(kind, name, layout.FORM_PLAIN, batch.encode())
            return
        shape = self._shapes.find((kind, name, batch.num_columns), batch)
        if shape is None:
            for piece in pieces_of(batch):
                sink = pa.BufferOutputStream()
                write_stream(sink, piece)
                self._add(kind, name, layout.FORM_ALIGNED, [memoryview(sink.getvalue())])
            return
        for first in range(0, max(1, batch.num_rows), PIECE_ROWS_MAX):
            is_long = batch.num_rows > PIECE_ROWS_MAX
            piece = batch.slice(first, PIECE_ROWS_MAX) if is_long else batch
            self._add(kind, name, layout.FORM_PLAIN, PlainBatch.of(piece, shape).encode())

    def _add(self, kind: int, name: str, form: int, body: list[Piece]) -> None:
        encoded, size = name.encode(), sum(map(size_of, body))
        head = layout.PART_HEADER.pack(kind, len(encoded), form, size) + encoded
        begin = layout.aligned(self._length + len(head), form)
        end = layout.aligned(begin + size, form)
        self._pieces.append(head + _ZEROS[: begin - self._length - len(head)])
        self._pieces += body
        self._pieces.append(_ZEROS[: end - begin - size])
        self._length = end
        if self._length - self._flushed > PIECE_BYTES_MAX:
            self.flush()

    def _take(self) -> list[Piece]:
        """All pieces that wait, the short ones among them joined."""
        if self._length - self._flushed <= _JOINED_BYTES_MAX:
            joined, self._pieces = b"".join(self._pieces), []
            return [joined]
        found: list[Piece] = []
        short: list[Piece] = []
        for piece in self._pieces:
            if size_of(piece) <= _JOINED_BYTES_MAX:
                short.append(piece)
            else:
                found += (b"".join(short), piece)
                short = []
        found.append(b"".join(short))
        self._pieces = []
        return found

    def flush(self) -> None:
        """Write what waits to the file, where the header leaves room for itself."""
        pieces, begin = self._take(), self._offset + layout.RECORD_BYTES + self._flushed
        for piece in pieces:
            self._hash.update(piece)
        self._file.write(begin, *pieces)
        self._file.will_sync(begin, self._length - self._flushed)
        self._flushed = self._length

    def finish(self, epoch: int, time_us: int, durable: int) -> layout.FrameHeader:
        """Write the header and with it the frame; a short frame goes in this one call."""
        gap = _gap(self._length)
        self._pieces.append(_ZEROS[:gap])
        self._length += gap
        if self._flushed:
            self.flush()
        pieces = self._take()
        for piece in pieces:
            self._hash.update(piece)
        length = self._length
        covered = layout.frame_header(epoch, time_us, durable, length, self._previous)
        self._hash.update(covered)
        checksum = self._hash.intdigest()
        self._file.write(self._offset, layout.sealed_frame_header(covered, checksum), *pieces)
        return layout.FrameHeader(epoch, time_us, durable, length, self._previous, checksum)


def _gap(length: int) -> int:
    return -length % layout.ALIGNMENT_BYTES


def pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices that are short enough to encode in bounded memory."""
    if batch.nbytes <= PIECE_BYTES_MAX // 2:
        yield batch
        return
    bytes_per_row = max(1, batch.nbytes // batch.num_rows)
    rows = int(max(1, min(PIECE_ROWS_MAX, PIECE_BYTES_MAX // 4 // bytes_per_row)))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def batch_room(batch: pa.RecordBatch) -> int:
    """About how many bytes a batch takes as an Arrow IPC stream."""
    return int(batch.nbytes + 2048 + 384 * batch.num_columns)


class OpenFrame:
    """A frame that is begun while its batch still runs: results go to the file as they are made.

    It is none before `finish` has written its header; until then its bytes mean nothing.
    """

    def __init__(self, file: File, place: Position, shapes: Shapes) -> None:
        if place.checksum is None:
            raise InvariantError(f"the log's end in {file.path} has no checksum to chain to")
        self.place: Position = place
        self.result_rows: int = 0
        self._writer = FrameWriter(file, place.offset, place.checksum, shapes)

    def add_results(self, batch: Batch) -> None:
        """Write results of the batch, those that come next in its order."""
        self._writer.add_batch(layout.PART_RESULTS, "", batch)
        self._writer.flush()
        self.result_rows += batch.num_rows

    def finish(self, commit: Commit, durable: int, slots: Mapping[str, int]) -> layout.FrameHeader:
        """Write all else that there is of the epoch, and with it the frame."""
        if self.result_rows and commit.results is not None:
            raise InvariantError(f"epoch {commit.epoch} has its results twice")
        return _write_parts(self._writer, commit, durable, slots, self.result_rows)


def _write_parts(
    writer: FrameWriter, commit: Commit, durable: int, slots: Mapping[str, int], written: int
) -> layout.FrameHeader:
    writer.add_bytes(layout.PART_META, "", encode_meta(commit, slots, written))
    for table, changes in commit.changes.items():
        for batch in pieces_in(changes):
            writer.add_batch(layout.PART_CHANGES, table, batch)
    for batch in () if commit.results is None else pieces_in(commit.results):
        writer.add_batch(layout.PART_RESULTS, "", batch)
    if commit.input is not None:
        writer.add_batch(layout.PART_INPUT, "", commit.input)
    for name, inlet in commit.inlets.items():
        for batch in batches_of(inlet.held):
            writer.add_batch(layout.PART_HELD, name, batch)
    return writer.finish(commit.epoch, commit.time_us, durable)


def encode_meta(commit: Commit, slots: Mapping[str, int], written: int = 0) -> bytes:
    """The JSON that describes a commit, of whose results so many are in the frame already."""
    rows = {table: rows_in(changes) for table, changes in commit.changes.items()}
    results = (written or None) if commit.results is None else rows_in(commit.results)
    if commit.origin is None and not commit.inlets and commit.input is None:
        return _plain_meta(tuple(rows.items()), tuple(slots.items()), results)
    meta = _counts(rows, slots, results)
    if commit.origin is not None:
        meta["source"] = commit.origin
    if commit.inlets:
        meta["inlets"] = {name: inlet_meta(inlet) for name, inlet in commit.inlets.items()}
    if commit.input is not None:
        meta["input"] = commit.input.num_rows
        meta["fingerprint"] = commit.fingerprint
    return _encode_json(meta).encode()


def _counts(
    rows: Mapping[str, int], slots: Mapping[str, int], results: int | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": rows, "slots": slots}
    return found if results is None else {**found, "results": results}


@lru_cache(maxsize=1 << 10)
def _plain_meta(
    rows: tuple[tuple[str, int], ...], slots: tuple[tuple[str, int], ...], results: int | None
) -> bytes:
    """The JSON of a commit that has nothing but counts: those of short epochs are much alike."""
    return _encode_json(_counts(dict(rows), dict(slots), results)).encode()


def inlet_meta(inlet: Inlet) -> dict[str, Any]:
    """An inlet without its held events."""
    found = {
        "watermark_us": inlet.watermark_us,
        "arrivals": inlet.arrivals,
        "held": inlet.held is not None,
    }
    return found if inlet.drops is None else {**found, "drops": inlet.drops}


def batches_of(held: pa.Table | None) -> list[pa.RecordBatch]:
    """The batches of held events: at least one when there is a table, so that its schema stays."""
    found = [] if held is None else held.to_batches()
    if held is None or found:
        return found
    none = [pa.array([], field.type) for field in held.schema]
    return [pa.RecordBatch.from_arrays(none, schema=held.schema)]


class PayloadPart(NamedTuple):
    """One part of a payload."""

    kind: int
    name: str
    body: pa.Buffer
    form: int

    def batch(self) -> pa.RecordBatch:
        """The record batch in this part; the arrays of a long one view the payload."""
        if self.form == layout.FORM_PLAIN:
            return decoded(self.body)
        if self.form == layout.FORM_SHORT:
            return unpack(self.body.to_pybytes())
        return batch_of(self.body)


def parts_of(payload: pa.Buffer) -> Iterator[PayloadPart]:
    """The parts of a payload whose checksum was found right."""
    view = memoryview(payload)
    place = 0
    size = payload.size
    while place < size:
        if size - place < layout.ALIGNMENT_BYTES and not any(view[place:]):
            return
        kind, name_length, form, body_length = layout.PART_HEADER.unpack_from(view, place)
        name_start = place + layout.PART_HEADER.size
        body = layout.aligned(name_start + name_length, form)
        if body + body_length > size:
            raise ValueError(f"a part at {place} of the payload passes its end")
        name = bytes(view[name_start : name_start + name_length]).decode()
        yield PayloadPart(kind, name, payload.slice(body, body_length), form)
        place = layout.aligned(body + body_length, form)


def meta_of(payload: pa.Buffer) -> dict[str, Any]:
    """The JSON of a payload."""
    first = next((part for part in parts_of(payload) if part.kind == layout.PART_META), None)
    if first is None:
        raise ValueError("a payload has no meta")
    content = first.body.to_pybytes()
    return dict(_known_meta(content)) if len(content) <= _KNOWN_BYTES else _read_meta(content)


def _read_meta(content: bytes) -> dict[str, Any]:
    return checked_meta({"source": None, "results": None, "inlets": {}, **json_of(content)})


# Those of short epochs are much alike: many epochs are read at once, and no one changes a meta.
_known_meta = lru_cache(maxsize=1 << 10)(_read_meta)


def changes_in(
    payload: pa.Buffer, meta: Mapping[str, Any], only: str | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The changes in a payload, of all tables or of one, piece by piece with their tables.

    A piece without "__alive" has new values of rows that are there. They are as many as the meta
    says, and each slot is within its bounds.
    """
    left = dict(meta["rows"]) if only is None else {only: meta["rows"].get(only, 0)}
    for part in parts_of(payload):
        if part.kind == layout.PART_CHANGES and only in (None, part.name):
            batch = part.batch()
            left[part.name] = left.get(part.name, 0) - batch.num_rows
            yield part.name, checked_changes(part.name, batch, meta["slots"].get(part.name, 0))
    if any(left.values()):
        raise ValueError(f"the changed rows are not those of the meta: {meta['rows']}")


def results_of(payload: pa.Buffer) -> pa.RecordBatch | None:
    """The results in a payload as one batch."""
    return _batch_of(payload, layout.PART_RESULTS, "")


def commit_of(header: layout.FrameHeader, payload: pa.Buffer) -> Commit:
    """A whole commit out of its frame."""
    meta = meta_of(payload)
    origin = meta["source"]
    changes: dict[str, list[pa.RecordBatch]] = {}
    for table, piece in changes_in(payload, meta):
        changes.setdefault(table, []).append(piece)
    return Commit(
        epoch=header.epoch,
        time_us=header.time_us,
        origin=None if origin is None else (origin[0], origin[1]),
        changes={name: _as_changes(changes[name]) for name in sorted(changes)},
        results=results_of(payload),
        inlets=inlets_of(payload, meta),
        input=_batch_of(payload, layout.PART_INPUT, ""),
        fingerprint=meta.get("fingerprint"),
        slots=meta["slots"],
    )


def _batch_of(payload: pa.Buffer, kind: int, name: str) -> pa.RecordBatch | None:
    """The parts of a kind and name as one batch."""
    parts = (part for part in parts_of(payload) if part.kind == kind and part.name == name)
    batches = [part.batch() for part in parts]
    return _joined(batches) if batches else None


def _as_changes(pieces: list[pa.RecordBatch]) -> Changes:
    """The pieces of a table's changes as one batch, where they have the same columns."""
    is_one = all(piece.schema.equals(pieces[0].schema) for piece in pieces)
    return _joined(pieces) if is_one else tuple(pieces)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def inlets_of(payload: pa.Buffer, meta: Mapping[str, Any]) -> dict[str, Inlet]:
    """The inlets that a payload changed."""
    held: dict[str, list[pa.RecordBatch]] = {}
    if any(fields["held"] for fields in meta["inlets"].values()):
        for part in parts_of(payload):
            if part.kind == layout.PART_HELD:
                held.setdefault(part.name, []).append(part.batch())
    return {
        name: Inlet(
            watermark_us=fields["watermark_us"],
            held=pa.Table.from_batches(held[name]) if fields["held"] else None,
            arrivals=fields["arrivals"],
            drops=fields.get("drops"),
        )
        for name, fields in meta["inlets"].items()
    }
