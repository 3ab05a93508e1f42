"""Sharing: what another process maps is what was shared, copied once, and given back."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headgate.query.sharing import VERSIONS_KEPT, Mapped, Shared, Shelf

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("a", pa.list_(pa.int64()))])


def batch(first: int, count: int = 10) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = [list(numbers), [f"text {n}" for n in numbers], [[n] * (n % 3) for n in numbers]]
    return pa.record_batch(columns, schema=SCHEMA)


def table(*batches: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches(batches, schema=SCHEMA)


def mapped(shared: Shared) -> dict[str, pa.Table]:
    """The tables as another process sees them."""
    seen = Mapped()
    for number, segment in shared.segments.items():
        seen.add(number, os.dup(segment.fd))
    return {name: seen.table(first, spots) for name, (first, spots) in shared.tables.items()}


def test_what_is_mapped_is_what_was_shared() -> None:
    given = {"t": table(batch(0), batch(10, 5)), "u": table(batch(3)[2:7]), "empty": table()}
    with Shelf().share(given) as shared:
        found = mapped(shared)
    assert {name: one.to_pylist() for name, one in found.items()} == {
        name: one.to_pylist() for name, one in given.items()
    }
    assert all(one.schema == SCHEMA for one in found.values())


def test_only_batches_that_are_new_are_copied() -> None:
    shelf = Shelf()
    batches = [batch(10 * number) for number in range(8)]
    first = table(*batches)
    with shelf.share({"t": first}) as shared:
        before = set(shared.segments)
    with shelf.share({"t": first}) as shared:
        assert set(shared.segments) == before
    size = shelf.size_bytes
    second = table(*batches[:7], batch(70, 3))
    with shelf.share({"t": second}) as shared:
        assert len(shared.segments) == 2 and before < set(shared.segments)
        assert mapped(shared)["t"].to_pylist() == second.to_pylist()
    assert shelf.size_bytes < size * 1.6


@pytest.fixture
def collecting() -> Iterator[None]:
    """Collections that look at what a test made, not at all that the tests before it left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_memory_of_the_past_is_given_back(collecting: None) -> None:
    shelf = Shelf()
    batches = [batch(10 * number) for number in range(16)]
    sizes = []
    for step in range(100):
        batches[step % 16] = batch(step, 7)
        now = table(*batches)
        with shelf.share({"t": now}) as shared:
            assert mapped(shared)["t"].to_pylist() == now.to_pylist()
            numbers = list(shared.segments)
        gc.collect()
        sizes.append(shelf.size_bytes)
        assert all(shelf.is_alive(number) for number in numbers)
    assert max(sizes[50:]) < 6 * sizes[0]
    assert not shelf.is_alive(1)


def test_a_version_that_is_read_outlives_newer_ones() -> None:
    shelf = Shelf()
    old = table(batch(0))
    with shelf.share({"t": old}) as shared:
        for step in range(VERSIONS_KEPT + 3):
            with shelf.share({"t": table(batch(step))}):
                pass
        assert mapped(shared)["t"].to_pylist() == old.to_pylist()


def test_no_one_can_change_what_is_shared() -> None:
    with Shelf().share({"t": table(batch(0))}) as shared:
        segment = next(iter(shared.segments.values()))
        with pytest.raises(PermissionError):
            os.pwrite(segment.fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, 0)


def test_descriptors_are_closed() -> None:
    shelf = Shelf()
    before = len(os.listdir("/proc/self/fd"))
    for step in range(50):
        with shelf.share({"t": table(batch(step))}):
            pass
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + VERSIONS_KEPT + 1
