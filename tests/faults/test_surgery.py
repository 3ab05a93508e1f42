"""Store surgery: bytes that were changed and then sealed again, so that every checksum is right.

Every case gives the acknowledged state or a named error; none a raw one, a wrong sum, or a crash.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability import ALIVE, SLOT, Commit, Inlet, Store, StoreReader, verify
from headgate.durability import format as layout
from headgate.durability.describing import BatchShape
from headgate.durability.head import Head
from headgate.durability.log import LogWriter
from headgate.durability.manifest import read_lineage
from headgate.durability.plain_batches import PlainBatch
from headgate.durability.scan import LogReader
from headgate.errors import DamageError, HeadgateError
from headgate.io import RealClock
from headgate.testing.disk import SimulatedDisk
from tests.faults.tally import Tally

PATH = "/bank"
accounts = hg.Table("accounts", "id bigint, name string, balance bigint", key="id")


@hg.transaction(event="id bigint, name string, amount bigint", compiled=False)
def put(event, account=accounts.at("id", create=True), out=hg.output("left bigint")):
    account.name = event.name
    account.balance += event.amount
    out.left = account.balance


PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [put]}


def bank(snapshot: bool) -> SimulatedDisk:
    disk = SimulatedDisk()
    with hg.open(PATH, **PROGRAM, disk=disk) as engine:
        engine.load(accounts, [{"id": n, "name": f"n{n}", "balance": 10} for n in range(20)])
        for number in range(4):
            engine.run(put, [{"id": number, "name": "x", "amount": 1}, {"id": None}])
        if snapshot:
            assert engine._journal.store is not None
            engine._journal.store.snapshot()
        engine.run(put, [{"id": 30 + n, "name": "new", "amount": 2} for n in range(3)])
    return disk


TOTAL = 20 * 10 + 4 + 6
EPOCHS = 6


def frames(disk: SimulatedDisk) -> list[Any]:
    log = LogReader(disk, f"{PATH}/log")
    return list(log.frames(layout.BEGINNING, EPOCHS))


def sealed_again(disk: SimulatedDisk, payloads: dict[int, bytes]) -> SimulatedDisk:
    """The same log with other payloads of some epochs, every checksum of the chain made anew."""
    found = frames(disk)
    forged = disk.after_kill()
    for path in forged.paths():
        if path.startswith(f"{PATH}/log/"):
            forged.remove(path)
    lineage = read_lineage(disk, f"{PATH}/manifest.json")
    log = LogWriter(forged, f"{PATH}/log", RealClock(), layout.BEGINNING, lineage=lineage)
    log.begin_segment()
    for frame in found:
        payload = payloads.get(frame.header.epoch)
        if payload is not None:
            payload = payload.ljust(layout.padded(len(payload)), b"\0")
            header = replace(frame.header, payload_length=len(payload))
            frame = replace(frame, header=header, payload=pa.py_buffer(payload))
        log.copy(frame)
    Head.begin(forged, f"{PATH}/head", log.position, lineage).close()
    log.close()
    return forged


def judge(disk: SimulatedDisk, tally: Tally, total: int = TOTAL) -> set[str]:
    """What opening, reading and verifying say: the acknowledged sum, or the name of an error."""
    tally.count("stores with forged content")
    said = set()

    def opened() -> int:
        with hg.open(PATH, **PROGRAM, disk=disk.after_kill()) as engine:
            return int(engine.sql("select sum(balance) from accounts").arrow()[0][0].as_py())

    def read() -> int:
        table = StoreReader.open(PATH, disk.after_kill()).table("accounts")
        return int(sum(table.column("balance").to_pylist()))

    def results() -> int:
        reader = StoreReader.open(PATH, disk.after_kill())
        list(reader.results(reader.first_epoch() + 1, reader.last_epoch()))
        list(reader.commits())
        return total

    for look in (opened, read, results):
        try:
            found = look()
            assert found == total, (look.__name__, found)
            said.add("whole")
        except HeadgateError as error:
            said.add(type(error).__name__)
            assert "bug in Headgate" not in str(error), error
    report = verify(PATH, disk.after_kill())
    said.add("whole" if report.is_whole else "DamageError")
    return said


def part(kind: int, name: str, body: bytes) -> bytes:
    head = layout.PART_HEADER.pack(kind, len(name), 0, len(body)) + name.encode()
    return head.ljust(layout.padded(len(head)), b"\0") + body.ljust(layout.padded(len(body)), b"\0")


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def changes(slots: list[Any], **columns: Any) -> pa.RecordBatch:
    count = len(slots)
    arrays: dict[str, Any] = {
        SLOT: pa.array(slots, pa.int64()),
        ALIVE: pa.array([True] * count),
        "id": pa.array(range(100, 100 + count), pa.int64()),
        "name": ["n"] * count,
        "balance": pa.array([5] * count, pa.int64()),
    }
    return pa.record_batch({**arrays, **columns})


def payload(meta: dict[str, Any] | bytes, *parts: bytes) -> bytes:
    content = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    return part(layout.PART_META, "", content) + b"".join(parts)


def meta(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "source": None, "rows": {"accounts": 1}, "results": None, "slots": {"accounts": 23},
        "inlets": {},
    }  # fmt: skip
    return {**found, **given}


def changed(*slots: Any, **columns: Any) -> bytes:
    return part(layout.PART_CHANGES, "accounts", stream(changes(list(slots), **columns)))


def updated(slot: int, is_plain: bool = False, **columns: Any) -> bytes:
    """New values of a row, without its key."""
    batch = pa.record_batch({SLOT: pa.array([slot], pa.int64()), "balance": [5], **columns})
    if not is_plain:
        return part(layout.PART_CHANGES, "accounts", stream(batch))
    shape = BatchShape.of(batch.schema)
    assert shape is not None
    body = b"".join(PlainBatch.of(batch, shape).encode())
    head = layout.PART_HEADER.pack(2, 8, layout.FORM_PLAIN, len(body)) + b"accounts"
    return head + body


DEEP = b'{"source":null,"rows":{},"results":null,"slots":{},"inlets":' + b"[" * 200_000
FORGED: dict[str, bytes] = {
    **{
        f"slot {slot}": payload(meta(), changed(slot))
        for slot in (-1, -1000, -(10**6), -(2**62), 23, 10**6, 2**31, 2**62)
    },
    **{
        f"new values of slot {slot}, plain: {is_plain}": payload(meta(), updated(slot, is_plain))
        for slot in (-1, 20, 22, 23, 2**31) for is_plain in (True, False)
    },
    "new values of another type": payload(meta(), updated(0, balance=["text"])),
    "rows said to be alive behind": payload(meta(), updated(0, **{ALIVE: [True]})),
    "slot null": payload(meta(), changed(None)),
    "slots of the meta beyond": payload(meta(slots={"accounts": 2**62}), changed(2**62 - 1)),
    "slots of the meta negative": payload(meta(slots={"accounts": -5}), changed(0)),
    "slots of the meta a text": payload(meta(slots={"accounts": "many"}), changed(0)),
    "slots of the meta missing": payload(meta(slots={}), changed(0)),
    "slot as int32": payload(
        meta(), changed(0, **{SLOT: pa.array([0], pa.int32())})
    ),
    "alive null": payload(meta(), changed(0, **{ALIVE: pa.array([None], pa.bool_())})),
    "a column of another type": payload(meta(), changed(0, balance=["text"])),
    "no meta": part(layout.PART_CHANGES, "accounts", stream(changes([0]))),
    "meta is a list": payload(b"[1, 2]"),
    "meta is deep": payload(DEEP),
    "meta is no json": payload(b"\xff\xfe{"),
    "meta has a bad source": payload(meta(source=["q"])),
    "meta has a bad inlet": payload(meta(inlets={"a": {"watermark_us": "x"}})),
    "meta holds what is not there": payload(
        meta(inlets={"a": {"watermark_us": 1, "arrivals": 1, "held": True}})
    ),
    "a part beyond the end": payload(meta()) + layout.PART_HEADER.pack(2, 0, 0, 2**40).ljust(64),
    "a part of endless length": payload(meta())
    + layout.PART_HEADER.pack(2, 0, 0, 2**64 - 64).ljust(64),
    "a name that is no text": payload(meta())
    + (layout.PART_HEADER.pack(2, 2, 0, 0) + b"\xff\xff").ljust(64),
    "an empty stream": payload(meta(), part(layout.PART_CHANGES, "accounts", b"")),
    "a stream of zeros": payload(meta(), part(layout.PART_CHANGES, "accounts", bytes(128))),
    "a stream that is cut": payload(meta(), part(2, "accounts", stream(changes([0]))[:300])),
    "nothing at all": b"",
}  # fmt: skip


# Other content in the right form: what it means is another state, or an error with a name.
OTHER: dict[str, bytes] = {
    "a column missing": payload(
        meta(), part(2, "accounts", stream(changes([0]).drop_columns(["balance", "name"])))
    ),
    "new values that are null": payload(meta(), updated(0, balance=pa.nulls(1, pa.int64()))),
    "new values of an unknown column": payload(meta(), updated(0, ghost=[1])),
    "new values of a key": payload(meta(), updated(0, id=[77])),
    "an unknown table": payload(
        meta(slots={"ghosts": 1}, rows={"ghosts": 1}), part(2, "ghosts", stream(changes([0])))
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_content_in_the_right_form_is_no_raw_error(name: str, tally: Tally) -> None:
    look(sealed_again(bank(False), {EPOCHS: OTHER[name]}), tally)


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_frame_is_a_named_error(name: str, tally: Tally) -> None:
    disk = sealed_again(bank(False), {EPOCHS: FORGED[name]})
    assert "DamageError" in judge(disk, tally)


def test_the_forged_log_itself_is_read_when_nothing_was_forged(tally: Tally) -> None:
    assert judge(sealed_again(bank(False), {}), tally) == {"whole"}


def test_verify_finds_a_slot_out_of_bounds() -> None:
    disk = sealed_again(bank(False), {EPOCHS: FORGED["slot -1000"]})
    report = verify(PATH, disk)
    assert len(report.damages) == 1 and "slots -1000" in report.damages[0]
    assert ".log at offset" in report.damages[0]


def test_bytes_of_a_stream_changed_at_random_are_never_a_crash(
    tally: Tally, request: pytest.FixtureRequest
) -> None:
    rounds = 3000 if request.config.getoption("--long") else 150
    source = bank(False)
    whole = {frame.header.epoch: frame.payload.to_pybytes() for frame in frames(source)}
    for seed in range(rounds):
        chance = random.Random(seed)
        epoch = chance.randrange(1, EPOCHS + 1)
        content = bytearray(whole[epoch])
        for _ in range(chance.choice((1, 1, 2, 8))):
            place = chance.randrange(len(content))
            content[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        disk = sealed_again(source, {epoch: bytes(content)})
        look(disk, tally)  # what a changed number means is not to be known: nothing raw may come


def look(disk: SimulatedDisk, tally: Tally) -> None:
    """Open, read and verify: named errors or none."""
    tally.count("streams changed at random")

    def opened() -> None:
        with hg.open(PATH, **PROGRAM, disk=disk.after_kill()) as engine:
            engine.sql("select * from accounts").arrow()

    def read() -> None:
        reader = StoreReader.open(PATH, disk.after_kill())
        reader.table("accounts")
        list(reader.results(reader.first_epoch() + 1, reader.last_epoch()))

    for work in (opened, read, lambda: verify(PATH, disk.after_kill())):
        try:
            work()
        except HeadgateError as error:
            assert "bug in Headgate" not in str(error), error


def forge_footer(disk: SimulatedDisk, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the footer of the snapshot and seal it again."""
    path = next(path for path in disk.paths() if path.endswith(".snapshot"))
    content = disk.content(path)
    trailer = content[-64:]
    offset, length, _, _ = layout.unseal(
        layout.SNAPSHOT_TRAILER, layout.TRAILER_MAGIC, trailer, path
    )
    seed = int.from_bytes(content[56:64], "little")
    footer = json.loads(content[offset : offset + length])
    change(footer)
    changed = json.dumps(footer).encode()
    changed = changed.ljust(layout.padded(len(changed)))
    fields = (offset, len(changed), layout.checksum_of(changed, seed))
    sealed = layout.seal(layout.SNAPSHOT_TRAILER, layout.TRAILER_MAGIC, *fields)
    disk.replace(path, content[:offset] + changed + sealed)


FOOTERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "fewer slots": lambda footer: footer["tables"]["accounts"].update(slots=3),
    "slots negative": lambda footer: footer["tables"]["accounts"].update(slots=-1),
    "slots endless": lambda footer: footer["tables"]["accounts"].update(slots=2**70),
    "no tables": lambda footer: footer.pop("tables"),
    "a block of texts": lambda footer: footer["tables"]["accounts"].update(blocks=[["a"] * 6]),
    "a block elsewhere": lambda footer: footer["tables"]["accounts"]["blocks"][0].__setitem__(
        0, 2**50
    ),
    "a block before the file": lambda footer: footer["tables"]["accounts"]["blocks"][0].__setitem__(
        0, -64
    ),
    "other rows": lambda footer: footer["tables"]["accounts"]["blocks"][0].__setitem__(2, 7),
    "sources of texts": lambda footer: footer.update(sources={"q": ["a", "b"]}),
    "inlets of texts": lambda footer: footer.update(inlets={"q": "a"}),
}


@pytest.mark.parametrize("name", FOOTERS)
def test_a_forged_footer_costs_time_or_is_a_named_error(name: str, tally: Tally) -> None:
    disk = bank(True)
    forge_footer(disk, FOOTERS[name])
    said = judge(disk, tally)
    assert "DamageError" in said, said  # verify finds it, though the log has all of it


def test_a_manifest_that_is_deep_or_no_object_is_damage(tally: Tally) -> None:
    for content in (b"[" * 500_000, b"[]", b'"x"', b"{" * 10, b'{"headgate":1}'):
        disk = bank(False)
        disk.replace(f"{PATH}/manifest.json", content)
        tally.count("stores with forged content")
        with pytest.raises(DamageError, match=r"manifest\.json"):
            hg.open(PATH, **PROGRAM, disk=disk.after_kill())
        with pytest.raises(DamageError, match=r"manifest\.json"):
            StoreReader.open(PATH, disk)


def test_what_the_system_refuses_is_an_error_of_the_store(tmp_path: Any) -> None:
    path = tmp_path / "bank"
    with hg.open(path, **PROGRAM) as engine:
        engine.load(accounts, [{"id": 1, "name": "a", "balance": 1}])
    segment = next((path / "log").iterdir())
    for file in (segment, path / "head", path / "manifest.json"):
        kept = file.read_bytes()
        file.unlink()
        file.mkdir()
        for work in (
            lambda: hg.open(path, **PROGRAM),
            lambda: StoreReader.open(path).table("accounts"),
            lambda: list(StoreReader.open(path).commits()),
            lambda: verify(path).is_whole or None,
        ):
            try:
                work()
            except HeadgateError as error:
                assert str(path) in str(error)
        file.rmdir()
        file.write_bytes(kept)
    with hg.open(path, **PROGRAM) as engine:
        assert engine.get(accounts, 1) is not None


def test_held_events_and_inputs_that_are_forged_are_named_errors(tally: Tally) -> None:
    disk = SimulatedDisk()
    store = Store.open(PATH, disk)
    store.recover()
    store.write_manifest({"tables": {}})
    held = pa.table({"id": [1, 2]})
    store.commit(Commit(1, 0, inlets={"a": Inlet(5, held, 2)}))
    store.close()
    log = LogReader(disk, f"{PATH}/log")
    frame = next(log.frames(layout.BEGINNING, 1))
    content = bytearray(frame.payload.to_pybytes())
    for number in range(0, len(content), 7):
        forged = bytearray(content)
        forged[number] ^= 0xFF
        found = disk.after_kill()
        lineage = read_lineage(disk, f"{PATH}/manifest.json")
        place = (found.after_kill(), f"{PATH}/log", RealClock(), layout.BEGINNING)
        other = LogWriter(*place, lineage=lineage)
        for path in other._disk.paths():  # type: ignore[attr-defined]
            if path.endswith(".log"):
                other._disk.remove(path)
        other.begin_segment()
        other.copy(replace(frame, payload=pa.py_buffer(bytes(forged))))
        tally.count("stores with forged content")
        try:
            again = Store.open(PATH, other._disk)
            again.recover()
            again.close()
        except HeadgateError as error:
            assert "bug in Headgate" not in str(error), error
