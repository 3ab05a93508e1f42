"""Every byte of a store on disk, described in one place; version 4. All numbers little-endian.

    STORE/
      manifest.json                   declarations (JSON, with a checksum)
      head                            the newest published epoch: two slots, written in turn
      floor                           the oldest epoch that can be read; absent: 0, all of them
      lock                            the writer's lock, holding its process number
      log/00000000000000000001.log    segments, named by the first epoch in them
      snapshots/00000000000000000042.snapshot    all tables at one epoch
      snapshots/00000000000000000017.blocks      once a snapshot, kept for the blocks that newer
                                      ones refer to
      readers/00000000000000000042.PID.TOKEN.lease   locked by a reader while it needs what comes
                                      after the epoch; the lock ends with its process
      readers/00000000000000000042.until.MICROSECONDS.TOKEN.lease   the same up to a time, for work
                                      that several processes share; it needs no lock
      parts/00000000000000000042/*.part   of a store with shards: what the tasks of an epoch handed
                                      over, see below
      *.new                           unfinished; removed when the store is next opened

Records. Segment header, frame header, head slot, the head's identity, floor, snapshot header and
snapshot trailer are records of 64 bytes. Each begins with 4 bytes magic, u16 version, u16 kind and
ends with u64 checksum; these places stay the same in every later version, so that an older Headgate
can refuse a newer store by name. The checksum is xxh3_64 over the record's first 56 bytes (seed 0);
a frame's also covers its payload.

Identity. A store has a number of its own, and each history of it, its lineage, another; both are
random. Segments, floor and head name both, snapshots the lineage; the manifest says which is right.
In format 1, whose records are the same otherwise, these places are 0; what is carried over from it
is told by the manifest ("carried").

Segment: one segment header, then frames without gaps until the end of the file.
    header  magic "HGsg", version, kind 1, u64 first epoch, u64 previous (checksum of the last frame
            before this segment, 0 at the log's beginning), i64 creation time in us, u64 store, u64
            lineage, 8 zero bytes, u64 checksum

Frame: one epoch. 64-byte header, then the payload, whose length is a multiple of 64.
    header  magic "HGfr", version, kind 1 (commit), u64 epoch, i64 time in us, u64 durable (the
            newest epoch known to be synced when this frame was written), u64 payload length,
            u64 previous (checksum of the frame before, or of the segment header), u64 zero,
            u64 checksum
    The checksum is xxh3_64 with seed `previous` over the payload followed by the header's first 56
    bytes. The payload comes first because a long frame is written in pieces and its length, which
    the header holds, is known last. `previous` is both stored and used as seed: each frame proves
    its own bytes and its place in the chain. `durable` tells a torn tail from damage: only a frame
    that no later frame calls durable may be cut.

Payload: parts, then fewer than 64 zeros, each part of
    u16 kind, u16 name length in bytes, u32 form, u64 body length, name (UTF-8), zeros up to a
    multiple of 64 (counted from the payload's beginning; of 8 in forms 1 and 2), body, zeros
    likewise
    form 0  meta as JSON, a batch as an Arrow IPC stream of one record batch; in formats 1 and 2
            the only one, since 4 for batches that have a type without a code (a list, a struct)
    form 1  format 3: meta as JSON, a batch of few rows packed
    form 2  meta as JSON, a batch plain: the usual form of all parts
    kind 1  meta     one part: see below. The first, but where results were written while their
                     batch still ran it stands behind them; up to format 3 always the first
    kind 2  changes  a batch; name = table; "__slot" (i8) is its first column. With "__alive"
                     (boolean) behind it and then the columns of the table these are whole rows,
                     or rows that are gone, of which only slots need be there. Without "__alive"
                     they are rows that were and stay alive, and the columns that follow, which may
                     be some of the table's, are their new values. A table has as many such parts
                     as needed (a long batch is cut), and each slot in one of them
    kind 3  results  a batch; name empty; a long one is cut into several parts
    kind 4  held     as above; name = inlet; at least one part (perhaps of no rows) when held
    kind 5  input    as above; name empty: the events of the batch, to be run again by the code
    meta    {"source": [query id, batch id] or null, "rows": {table: changed rows}, "results": rows
            or null, "slots": {table: one more than the highest slot ever used}, "inlets": {name:
            {"watermark_us": n or null, "arrivals": n, "held": true or false}}}. An inlet with
            "drops": n (only in stores that declare dataflows) is a change: what it held before
            stays, without its first n rows, and what is held here comes behind it. Inlets of
            dataflows are called "dataflow stream NAME" (held: its rows under way, with "__batch";
            arrivals: its last whole batch) and "dataflow node NAME" (arrivals: the last batch that
            it is done with; held: the rows of its window). A window that a node takes beside other
            windows or streams is "dataflow window STREAM of NAME" (held: its rows, from the first
            of its newest whole content on; arrivals: how many of them had come when it was whole;
            watermark: the end of its next window of time). A frame with input has also "input":
            rows and "fingerprint": the code's, or null; source, results and inlets are left out
            when they are null or empty. An inlet with a name of "\\0time " and the name of a
            table is no stream's: its watermark is the time by which that table's rows expire. One
            with a name of "\\0tick ", an inlet and a transaction has the time of its last tick
    plain   u32 rows, u16 description length, u16 zero, description, a byte per column that says the
            way it is written, then the columns; each of these begins at a multiple of 8, with
            zeros before it. Where the way has 128 a column begins with a bit per row that has a
            value. Values are those of Arrow: bits of a boolean (like all bits lowest first), bytes
            of any other of fixed width, (rows + 1) i32 offsets and the bytes of texts, of a
            dictionary column the indices. Ways: 0 every value; 1 one value, of all rows (a boolean
            as a byte); 2 nothing, they are 0, 1, 2, ...; 3 every value in half of its bytes,
            unsigned of 8 and signed of 16; 4 nothing, all are null; 5 the value of most rows, then
            u64 count, u32 places (rows) and values of the others; 6 u64 count, places and values
            of the rows that are not null; 7 the first value, and each of the others is one more
            than the one before. Of the ways but 0 and 3 a batch has together at most 2**24 values.
            Null in a column of a table's rows: where the manifest declares the column NULL, null;
            else the row is older than the column, and has the value that its declaration fills in
    packed  u16 rows, u16 description length, description, a bit per column that has nulls (in as
            many bytes as needed, like all bits lowest first), then of each column: where it has
            nulls a bit per row that has a value; bits of a boolean, bytes of any other value of
            fixed width as Arrow has them, (rows + 1) i32 offsets and the bytes of texts; of a
            dictionary column the indices
    description  deflated, without a header, and with PRESET of describing.py as the preset
            dictionary: u16 columns, u16 pairs of metadata; of each column u8 name length, u8 flags
            (1 nullable, 2 ordered), u8 code length, name, code, and of a dictionary column u16
            count, offsets and bytes of its values; of each pair u16 length and bytes of key and of
            value
            Codes: i1 i2 i4 i8 u1 u2 u4 u8 f4 f8, d (date32), b (boolean), s (text), x (binary),
            tU and the time zone (timestamp, U = s, m, u or n for its unit), nP,S (decimal128),
            *I:V (dictionary of values V, s or x, with indices I)

Head: two slots of 64 bytes at offsets 0 and 512. The valid slot with the higher sequence counts.
Each writer makes the file anew, with the identity at offset 128 and zeros between them.
    identity magic "HGid", version, kind 1, u64 store, u64 lineage, 32 zero bytes, u64 checksum
    slot    magic "HGhd", version, kind 1, u64 sequence, u64 epoch, u64 segment (first epoch), u64
            offset (end of the epoch's frame), u64 frame checksum, u64 synced (the newest epoch
            known to be synced: below `epoch` only with durability "none"), u64 checksum

Floor: one record, replaced whole before the first file that is below it is removed.
    record  magic "HGfl", version, kind 1, u64 epoch (of the oldest snapshot that counts: this epoch
            and all after it can be read), u64 store, u64 lineage, 24 zero bytes, u64 checksum

Snapshot: header, blocks, footer, trailer. A snapshot is incremental: a block whose slots did not
change since an older snapshot is not written again but referred to in the file that holds it, which
stays (as .blocks, when its own epoch is given up) for as long as anyone refers to it. References
name the file itself, never another reference, so a snapshot needs no chain of older ones to be
whole.
    header  magic "HGsn", version, kind 1, u64 epoch, i64 time in us, u64 segment, u64 offset, u64
            frame checksum (the place in the log where replay goes on), u64 lineage, u64 checksum
    block   an Arrow IPC stream of one record batch, with zeros up to a multiple of 64
    footer  JSON with spaces up to a multiple of 64: {"tables": {name: {"slots": n, "blocks":
            [block...]}}, "sources": {query id: [batch id, epoch]}, "recorded": {query id:
            [block...]}, "inlets": {name: {"watermark_us", "arrivals", "held": [block...] or
            null}}}; "recorded" holds the results of each source's last epoch, so that a replayed
            batch finds them when the log has been trimmed; a block is [offset, length with zeros,
            rows, lowest slot, highest slot, checksum], its checksum is xxh3_64 over its bytes and
            zeros with the header's checksum as seed; a block in another file has also [..., epoch
            in that file's name, seed, that is the checksum of that file's header]
    trailer magic "HGst", version, kind 1, u64 footer offset, u64 footer length, u64 footer checksum
            (xxh3_64, seed as for blocks), 24 zero bytes, u64 checksum; the file ends here

Part: of a store with shards, whose rows are in no frame of the log. One file, written once.
    header  magic "HGpt", version, kind 1, u64 epoch (that it was written for), u64 store, u64
            lineage, u64 body length, u64 body checksum (xxh3_64, seed 0), u64 zero, u64 checksum:
            this last one is the part's mark
    body    u64 length, JSON {"tables": [[name, length with zeros], ...], "said": {...}}, which may
            end with spaces, zeros up to a multiple of 64; then each table as an Arrow IPC stream
            with zeros likewise
    A part is named SHARD-RUN-EPOCH-SHARE-ATTEMPT.part: the run is a number of the process that
    commits, the attempt one of the task that wrote it, so that no two writers share a name. It has
    it from its first byte on: what is not whole yet is named by no record, either. It
    counts when the log names it: rows of the table "__parts", changed by the same frame that holds
    the results.
    Columns: shard (one more than the last is what all shards have), epoch, kind ("changes" or
    "image", all rows of the shard at that epoch, perhaps in several files, which takes the
    place of all changes up to it),
    file, mark, bytes, digest (xxh3_64 over the digest before and the marks of the epoch, in their
    order: what the shard's rows are), grown (JSON: by table, how many rows more it made).
    Tables of "changes" and "image": "rows/SHARD/TABLE" have whole rows as they are now, "gone/
    SHARD/TABLE" the keys of rows that are gone. Files in parts/work (events for tasks, rows that
    travel, results) have the same form, are not synced, and go with their epoch.

Manifest: JSON {"headgate": version, "checksum": 16 hex digits, "store": 16 hex digits, "lineage":
16 hex digits, "carried": the last epoch that files of format 1 may hold or null, "manifest":
declarations}; the checksum is xxh3_64 over the JSON of [version, store, lineage, carried,
declarations] with sorted keys and no spaces; in format 1 there are only version and declarations.
A log without a manifest is damage.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import xxhash

from headgate.errors import DamageError, FormatError

VERSION = 4
VERSIONS = (1, 2, 3, 4)  # that can be read
RECORD_BYTES = 64
ALIGNMENT_BYTES = 64
SHORT_ALIGNMENT_BYTES = 8
KIND = 1

SEGMENT_MAGIC = b"HGsg"
FRAME_MAGIC = b"HGfr"
HEAD_MAGIC = b"HGhd"
FLOOR_MAGIC = b"HGfl"
SNAPSHOT_MAGIC = b"HGsn"
TRAILER_MAGIC = b"HGst"
IDENTITY_MAGIC = b"HGid"
PART_MAGIC = b"HGpt"

SEGMENT_HEADER = struct.Struct("<4sHHQQqQQ8xQ")
FRAME_HEADER = struct.Struct("<4sHHQqQQQQQ")
HEAD_SLOT = struct.Struct("<4sHHQQQQQQQ")
FLOOR_RECORD = struct.Struct("<4sHHQQQ24xQ")
IDENTITY_RECORD = struct.Struct("<4sHHQQ32xQ")
SNAPSHOT_HEADER = struct.Struct("<4sHHQqQQQQQ")
SNAPSHOT_TRAILER = struct.Struct("<4sHHQQQ24xQ")
PART_HEADER = struct.Struct("<HHIQ")
PART_HEADER_RECORD = struct.Struct("<4sHHQQQQQQQ")
_CHECKSUM = struct.Struct("<Q")
_PREFIX = struct.Struct("<4sHH")
COVERED_BYTES = RECORD_BYTES - _CHECKSUM.size

PART_META = 1
PART_CHANGES = 2
PART_RESULTS = 3
PART_HELD = 4
PART_INPUT = 5
FORM_ALIGNED = 0
FORM_SHORT = 1
FORM_PLAIN = 2

SLOTS_MAX = 2**31 - 2  # of a table

HEAD_SLOT_OFFSETS = (0, 512)
IDENTITY_OFFSET = 128
HEAD_BYTES = 576

MANIFEST_NAME = "manifest.json"
HEAD_NAME = "head"
FLOOR_NAME = "floor"
LOCK_NAME = "lock"
LOG_FOLDER = "log"
SNAPSHOT_FOLDER = "snapshots"
LEASE_FOLDER = "readers"
PARTS_FOLDER = "parts"
WORK_FOLDER = "work"  # below that of parts
SEGMENT_SUFFIX = ".log"
SNAPSHOT_SUFFIX = ".snapshot"
BLOCKS_SUFFIX = ".blocks"
LEASE_SUFFIX = ".lease"
UNFINISHED_SUFFIX = ".new"

checksum_of = xxhash.xxh3_64_intdigest


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log between two frames: after `epoch`, whose frame has this checksum.

    Offset 0 means before the segment's header; `checksum` is None where the chain's value is not
    known because reading starts in the middle.
    """

    epoch: int
    segment: int
    offset: int
    checksum: int | None


BEGINNING = Position(epoch=0, segment=1, offset=0, checksum=0)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fields of a frame's header."""

    epoch: int
    time_us: int
    durable: int
    payload_length: int
    previous: int
    checksum: int


def padded(length: int) -> int:
    """The length up to the next multiple of 64."""
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def aligned(place: int, form: int) -> int:
    """The place up to the next one where a part of the form, or its body, may begin."""
    if form not in (FORM_ALIGNED, FORM_SHORT, FORM_PLAIN):
        raise ValueError(f"a part of form {form}")
    step = ALIGNMENT_BYTES if form == FORM_ALIGNED else SHORT_ALIGNMENT_BYTES
    return -(-place // step) * step


def segment_name(first_epoch: int) -> str:
    """The file name of the segment that begins with the epoch."""
    return f"{first_epoch:020d}{SEGMENT_SUFFIX}"


def snapshot_name(epoch: int) -> str:
    """The file name of the snapshot at the epoch."""
    return f"{epoch:020d}{SNAPSHOT_SUFFIX}"


def blocks_name(epoch: int) -> str:
    """The file name of what was once the snapshot at the epoch and now only holds blocks."""
    return f"{epoch:020d}{BLOCKS_SUFFIX}"


def numbers_of(names: list[str], suffix: str) -> list[int]:
    """The epochs in the file names that end with the suffix, ascending."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal())


def seal(layout: struct.Struct, magic: bytes, *fields: int) -> bytes:
    """A 64-byte record with its checksum."""
    open_record = layout.pack(magic, VERSION, KIND, *fields, 0)[:COVERED_BYTES]
    return open_record + _CHECKSUM.pack(checksum_of(open_record))


def unseal(layout: struct.Struct, magic: bytes, record: bytes, where: str) -> tuple[int, ...]:
    """The fields of a record and its checksum, or DamageError or FormatError naming `where`."""
    if len(record) < RECORD_BYTES:
        raise DamageError(f"{where}: the file ends inside a record")
    stored = _CHECKSUM.unpack_from(record, COVERED_BYTES)[0]
    if record[:4] != magic or checksum_of(record[:COVERED_BYTES]) != stored:
        raise DamageError(f"{where}: the record does not match its checksum")
    version, kind = _PREFIX.unpack_from(record)[1:]
    if version not in VERSIONS or kind != KIND:
        raise FormatError(
            f"{where}: written by format {version}, kind {kind}, and this Headgate reads format "
            f"{VERSION}: upgrade Headgate"
        )
    return layout.unpack(record)[3:]


def frame_header(
    epoch: int, time_us: int, durable: int, payload_length: int, previous: int
) -> bytes:
    """A frame's header without its checksum: what the checksum covers after the payload."""
    fields = (epoch, time_us, durable, payload_length, previous, 0, 0)
    return FRAME_HEADER.pack(FRAME_MAGIC, VERSION, KIND, *fields)[:COVERED_BYTES]


def sealed_frame_header(covered: bytes, checksum: int) -> bytes:
    """The header as it goes to disk."""
    return covered + _CHECKSUM.pack(checksum)


def parse_frame_header(record: Any) -> FrameHeader | None:
    """The fields of a frame header, or None when these bytes do not begin a frame."""
    if len(record) < RECORD_BYTES:
        return None
    magic, version, kind, *fields = FRAME_HEADER.unpack(record)
    epoch, time_us, durable, payload_length, previous, zero, checksum = fields
    known = magic == FRAME_MAGIC and version in VERSIONS and kind == KIND and zero == 0
    if not known or payload_length % ALIGNMENT_BYTES:
        return None
    return FrameHeader(epoch, time_us, durable, payload_length, previous, checksum)


def frame_checksum(payload: Any, covered: Any, previous: int) -> int:
    """The checksum of a frame from its payload, its header's first 56 bytes and the chain."""
    running = xxhash.xxh3_64(payload, seed=previous)
    running.update(covered)
    return running.intdigest()


def damage(path: str, offset: int, what: str) -> DamageError:
    """The error for damaged bytes, with their place and what to do."""
    return DamageError(
        f"damaged bytes in {path} at offset {offset}: {what}; `headgate verify` shows what can be "
        "saved, or restore the store from a backup"
    )
