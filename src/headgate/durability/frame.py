"""Frames: one epoch's commit as bytes, and back.

Invariant: a frame of any length is written with bounded memory, and its header, without which the
frame does not exist, is written last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from headgate.durability import format as layout
from headgate.durability.commit import Commit, Inlet
from headgate.durability.decoding import batch_of, checked_changes, checked_meta, json_of
from headgate.durability.format import Position
from headgate.durability.packing import Packer, unpack
from headgate.errors import InvariantError
from headgate.io import File

# A frame up to this size is encoded whole and written by one call; a longer one goes in pieces.
PIECE_BYTES_MAX = 8 << 20
_FIRST_BUFFER_BYTES = 1 << 20
_PIECE_ROWS_MAX = 1 << 16
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


def write_stream(sink: pa.FixedSizeBufferWriter, batch: pa.RecordBatch) -> None:
    """Write a batch as an Arrow IPC stream of its own."""
    with pa.ipc.new_stream(sink, batch.schema, options=_IPC_OPTIONS) as stream:
        stream.write_batch(batch)


def _check_overflow(error: OSError) -> None:
    """Pass on any error but that the buffer was too small."""
    if "out of bounds" not in str(error):
        raise error


class _TooLong(Exception):
    """The frame does not fit into the buffer whole."""


class FrameWriter:
    """Writes the parts of one frame at an offset of a file, through the encode buffer.

    With a packer it takes for granted that the frame fits into the buffer, which saves asking for
    sizes, and raises _TooLong when it does not; nothing was written to the file then. Only such a
    frame has short parts.
    """

    def __init__(
        self,
        file: File,
        offset: int,
        previous: int,
        memory: EncodeBuffer,
        packer: Packer | None = None,
    ) -> None:
        self._file = file
        self._offset = offset
        self._previous = previous
        self._memory = memory
        self._packer = packer
        self._hash: Any = xxhash.xxh3_64(seed=previous)
        self._flushed = 0
        self._begin(layout.RECORD_BYTES)

    def _begin(self, gap: int) -> None:
        """Start to fill the buffer anew, after a gap that the header takes in the first piece."""
        self._sink = pa.FixedSizeBufferWriter(self._memory.buffer)
        self._start = gap
        if gap:
            self._sink.write(_ZEROS[:gap])

    def add_bytes(self, kind: int, name: str, body: bytes) -> None:
        """Add a part that is already bytes."""
        form = layout.FORM_SHORT
        if self._packer is None:
            form = layout.FORM_ALIGNED
            self._make_room(name, len(body))
        try:
            self._open_part(kind, name, form)
            self._sink.write(body)
            self._close_part(len(body))
        except OSError as error:
            _check_overflow(error)
            raise _TooLong from error

    def add_batch(self, kind: int, name: str, batch: pa.RecordBatch) -> None:
        """Add a record batch, as several parts when it is long."""
        if self._packer is not None:
            packed = self._packer.pack(kind, name, batch)
            if packed is None:
                self._add_stream(kind, name, batch)
            else:
                self.add_bytes(kind, name, packed)
            return
        for piece in pieces_of(batch):
            self._add_piece(kind, name, piece)

    def _add_piece(self, kind: int, name: str, batch: pa.RecordBatch) -> None:
        # The size of an Arrow batch as IPC is close to, but not exactly, its own; a wrong guess
        # is told by the sink before anything is lost, and answered with twice the room.
        room = batch_room(batch)
        while True:
            self._make_room(name, room)
            part = self._sink.tell()
            try:
                self._add_stream(kind, name, batch)
            except _TooLong:
                self._rewind(part)
                room *= 2
            else:
                return

    def _add_stream(self, kind: int, name: str, batch: pa.RecordBatch) -> None:
        try:
            self._open_part(kind, name, layout.FORM_ALIGNED)
            body = self._sink.tell()
            write_stream(self._sink, batch)
            self._close_part(self._sink.tell() - body)
        except OSError as error:
            _check_overflow(error)
            raise _TooLong from error

    def _make_room(self, name: str, body_length: int) -> None:
        """See that a part of this length fits: flush what is there, enlarge what is too small."""
        need = part_room(name, body_length)
        if self._sink.tell() + need <= self._memory.buffer.size:
            return
        if self._sink.tell() > self._start:
            self.flush()
        if self._start + need > self._memory.buffer.size:
            self._memory.reserve(self._start + need)
            self._begin(self._start)

    def _rewind(self, place: int) -> None:
        """Forget what was written to the buffer after the place."""
        kept = bytes(self._memory.view[:place])
        self._sink = pa.FixedSizeBufferWriter(self._memory.buffer)
        self._sink.write(kept)

    def _open_part(self, kind: int, name: str, form: int) -> None:
        encoded = name.encode()
        self._part = self._sink.tell()
        self._kind, self._form = kind, form
        self._name_length = len(encoded)
        body = self._part + layout.PART_HEADER.size + len(encoded)
        gap = layout.aligned(body, form) - body
        self._sink.write(bytes(layout.PART_HEADER.size) + encoded + _ZEROS[:gap])

    def _close_part(self, body_length: int) -> None:
        end = self._sink.tell()
        self._sink.write(_ZEROS[: layout.aligned(end, self._form) - end])
        fields = (self._kind, self._name_length, self._form, body_length)
        layout.PART_HEADER.pack_into(self._memory.view, self._part, *fields)

    def flush(self) -> None:
        """Write the piece in the buffer to the file, where the header leaves room for itself."""
        end = self._sink.tell()
        piece = self._memory.view[self._start : end]
        self._hash.update(piece)
        self._file.write(self._offset + layout.RECORD_BYTES + self._flushed, piece)
        self._flushed += end - self._start
        self._begin(0)

    def finish(self, epoch: int, time_us: int, durable: int) -> layout.FrameHeader:
        """Write the header and with it the frame; a short frame goes in this one call."""
        if self._flushed and self._sink.tell():
            self.flush()
        self._fill()
        end = self._sink.tell()
        length = self._flushed + end - self._start
        covered = layout.frame_header(epoch, time_us, durable, length, self._previous)
        self._hash.update(self._memory.view[self._start : end])
        self._hash.update(covered)
        checksum = self._hash.intdigest()
        record = layout.sealed_frame_header(covered, checksum)
        if self._flushed:
            self._file.write(self._offset, record)
        else:
            self._memory.view[: layout.RECORD_BYTES] = record
            self._file.write(self._offset, self._memory.view[:end])
        return layout.FrameHeader(epoch, time_us, durable, length, self._previous, checksum)

    def _fill(self) -> None:
        """End the payload at a multiple of 64."""
        try:
            self._sink.write(_ZEROS[: _gap(self._sink.tell())])
        except OSError as error:
            _check_overflow(error)
            raise _TooLong from error


def _gap(length: int) -> int:
    return -length % layout.ALIGNMENT_BYTES


def pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices that are short enough to encode in bounded memory."""
    if batch.nbytes <= PIECE_BYTES_MAX // 2:
        yield batch
        return
    bytes_per_row = max(1, batch.nbytes // batch.num_rows)
    rows = int(max(1, min(_PIECE_ROWS_MAX, PIECE_BYTES_MAX // 4 // bytes_per_row)))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def batch_room(batch: pa.RecordBatch) -> int:
    """About how many bytes a batch takes as an Arrow IPC stream."""
    return int(batch.nbytes + 2048 + 384 * batch.num_columns)


def part_room(name: str, body_length: int) -> int:
    """How many bytes a part takes with its header and its zeros."""
    head = layout.PART_HEADER.size + 4 * len(name)
    return layout.padded(head) + layout.padded(body_length)


def commit_room(commit: Commit) -> int:
    """About how many bytes a commit takes as a frame, when that is few; else the most of a piece.

    With so much room in the buffer from the start, a short frame is written by one call.
    """
    parts = list(commit.changes.items())
    if commit.results is not None:
        parts.append(("", commit.results))
    if commit.input is not None:
        parts.append(("", commit.input))
    for name, inlet in commit.inlets.items():
        parts.extend((name, batch) for batch in batches_of(inlet.held))
    rooms = (part_room(name, batch_room(batch)) for name, batch in parts)
    meta = 4096 + 64 * (len(commit.changes) + len(commit.inlets))
    return min(sum(rooms) + meta, PIECE_BYTES_MAX)


def write_frame(
    file: File,
    place: Position,
    memory: EncodeBuffer,
    packer: Packer,
    commit: Commit,
    durable: int,
    slots: Mapping[str, int],
) -> layout.FrameHeader:
    """Write a commit as the frame that begins at the place."""
    if place.checksum is None:
        raise InvariantError(f"the log's end in {file.path} has no checksum to chain to")
    start = (file, place.offset, place.checksum, memory)
    try:
        return _write_parts(FrameWriter(*start, packer), commit, durable, slots)
    except _TooLong:
        memory.reserve(commit_room(commit))
        return _write_parts(FrameWriter(*start), commit, durable, slots)


def _write_parts(
    writer: FrameWriter, commit: Commit, durable: int, slots: Mapping[str, int]
) -> layout.FrameHeader:
    writer.add_bytes(layout.PART_META, "", encode_meta(commit, slots))
    for table, batch in commit.changes.items():
        writer.add_batch(layout.PART_CHANGES, table, batch)
    if commit.results is not None:
        writer.add_batch(layout.PART_RESULTS, "", commit.results)
    if commit.input is not None:
        writer.add_batch(layout.PART_INPUT, "", commit.input)
    for name, inlet in commit.inlets.items():
        for batch in batches_of(inlet.held):
            writer.add_batch(layout.PART_HELD, name, batch)
    return writer.finish(commit.epoch, commit.time_us, durable)


def encode_meta(commit: Commit, slots: Mapping[str, int]) -> bytes:
    """The JSON that describes a commit."""
    meta: dict[str, Any] = {
        "rows": {table: batch.num_rows for table, batch in commit.changes.items()},
        "slots": slots,
    }
    if commit.origin is not None:
        meta["source"] = commit.origin
    if commit.results is not None:
        meta["results"] = commit.results.num_rows
    if commit.inlets:
        meta["inlets"] = {name: inlet_meta(inlet) for name, inlet in commit.inlets.items()}
    if commit.input is not None:
        meta["input"] = commit.input.num_rows
        meta["fingerprint"] = commit.fingerprint
    return _encode_json(meta).encode()


def inlet_meta(inlet: Inlet) -> dict[str, Any]:
    """An inlet without its held events."""
    return {
        "watermark_us": inlet.watermark_us,
        "arrivals": inlet.arrivals,
        "held": inlet.held is not None,
    }


def batches_of(held: pa.Table | None) -> list[pa.RecordBatch]:
    """The batches of held events: at least one when there is a table, so that its schema stays."""
    if held is None:
        return []
    empty = pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in held.schema], schema=held.schema
    )
    return held.to_batches() or [empty]


@dataclass(frozen=True)
class PayloadPart:
    """One part of a payload."""

    kind: int
    name: str
    body: pa.Buffer
    form: int

    def batch(self) -> pa.RecordBatch:
        """The record batch in this part; the arrays of a long one view the payload."""
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
    first = next(parts_of(payload), None)
    if first is None or first.kind != layout.PART_META:
        raise ValueError("a payload does not begin with its meta")
    found = json_of(first.body.to_pybytes())
    return checked_meta({"source": None, "results": None, "inlets": {}, **found})


def changes_in(
    payload: pa.Buffer, meta: Mapping[str, Any], only: str | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The changes in a payload, of all tables or of one, piece by piece with their tables.

    They are as many as the meta says, and each slot is within its bounds.
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
        changes={name: _joined(changes[name]) for name in sorted(changes)},
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
        )
        for name, fields in meta["inlets"].items()
    }
