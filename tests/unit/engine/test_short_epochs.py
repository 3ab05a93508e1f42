"""Many short epochs: snapshots and trimming come by their number, not only by the log's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader, retention

counters = hg.Table("counters", "id bigint, n bigint", key="id")


@hg.transaction(event="id bigint", compiled=False)
def count(event: Any, one: Any = counters.at("id", create=True)) -> Any:
    one.n += 1


def opened(path: Path, **more: Any) -> hg.Engine:
    return hg.open(path, tables=[counters], transactions=[count], durability="none", **more)


def files(path: Path, folder: str) -> list[str]:
    return sorted(each.name for each in (path / folder).iterdir())


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_retention_of_ten_epochs_keeps_few_more(tmp_path: Path, recovery: str) -> None:
    path = tmp_path / "bank"
    options = {"retain": hg.Retention(epochs=10), "recovery": recovery}
    with opened(path, **options) as engine:
        for _ in range(200):
            engine.call(count, id=7)
            while (snapshot := engine._journal._snapshot) is not None and not snapshot.done():
                snapshot.result()
    reader = StoreReader.open(path)
    assert 200 - 96 <= reader.first_epoch() <= 190
    assert files(path, "log")[0] > f"{64:020d}.log"
    assert len(files(path, "snapshots")) <= 4
    if recovery == "strong":
        for epoch in range(190, 201):
            assert reader.table("counters", epoch).to_pylist() == [{"id": 7, "n": epoch}]
    assert [epoch for epoch, _ in reader.results(191, 200)] == list(range(191, 201))
    with pytest.raises(hg.InputError, match=r"no epoch 20 .* older ones were trimmed"):
        reader.table("counters", 20)
    with opened(path, **options) as engine:
        engine.call(count, id=7)
        assert engine.sql("select n from counters").rows() == [(201,)]


def test_without_retention_snapshots_come_too_and_every_epoch_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SNAPSHOT_EPOCHS", 50)
    path = tmp_path / "bank"
    with opened(path) as engine:
        for _ in range(120):
            engine.call(count, id=7)
            while (snapshot := engine._journal._snapshot) is not None and not snapshot.done():
                snapshot.result()
    assert files(path, "snapshots") == [f"{50:020d}.snapshot", f"{100:020d}.snapshot"]
    reader = StoreReader.open(path)
    assert reader.first_epoch() == 0
    assert reader.table("counters", 3).to_pylist() == [{"id": 7, "n": 3}]
    with opened(path) as engine:
        store = engine._journal.store
        assert store is not None and store.outcome is not None
        assert store.outcome.replayed_epochs == 20
        assert engine.sql("select n from counters").rows() == [(120,)]


@pytest.mark.parametrize(
    ("epochs", "slots", "distance"),
    [(None, 0, 2048), (None, 1 << 20, 4096), (10, 0, 32), (10, 1 << 20, 4096), (500, 9, 500),
     (9999, 9, 2048)],
)  # fmt: skip
def test_how_far_apart_snapshots_are(epochs: int | None, slots: int, distance: int) -> None:
    policy = None if epochs is None else hg.Retention(epochs=epochs)
    last = retention.Mark(retention.layout.Position(distance, 1, 64, 0), 0, {}, {}, {"t": slots})
    assert retention.is_due(policy, last, 0)
    assert not retention.is_due(policy, last, 1)
