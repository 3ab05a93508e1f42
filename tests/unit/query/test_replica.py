"""The replica: whatever is read in between, it has the rows of the last published epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.engine import memory
from headgate.engine.memory import Memory
from headgate.query import mirror, point, replica

table = hg.Table("t", "id bigint, name string, n bigint", key=["id", "name"])
other = hg.Table("other", "id string, n bigint", key="id")
NAMES = ("", "a", "b")


@hg.transaction(event="id bigint, name string, n bigint", compiled=False)
def change(event: Any, row: Any = table.at("id", "name", create=True)) -> None:
    if event.n < 0:
        hg.delete(row)
    else:
        row.n = event.n


@hg.transaction(event="id string, n bigint", compiled=False)
def note(event: Any, row: Any = other.at("id", create=True)) -> None:
    row.n = event.n


KEYS = st.tuples(st.integers(0, 3), st.sampled_from(NAMES))
CHANGES = st.lists(st.tuples(KEYS, st.integers(-1, 5)), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), CHANGES),
        st.tuples(st.just("note"), st.integers(0, 9)),
        st.tuples(st.just("get"), KEYS),
        st.sampled_from([("all", None), ("both", None), ("forget", None)]),
    ),
    max_size=25,
)


class Model:
    """The same in two dictionaries, beside an engine."""

    def __init__(self) -> None:
        self.engine = hg.open(None, tables=[table, other], transactions=[change, note])
        self.rows: dict[tuple[int, str], int] = {}
        self.notes: dict[str, int] = {}

    def change(self, changes: Any) -> None:
        events = [{"id": key[0], "name": key[1], "n": n} for key, n in changes]
        self.engine.run(change, events)
        for key, n in changes:
            self.rows[key] = n
            if n < 0:
                del self.rows[key]

    def note(self, n: int) -> None:
        self.engine.call(note, id=f"text {n}", n=n)
        self.notes[f"text {n}"] = n

    def get(self, key: tuple[int, str]) -> None:
        wanted = None
        if key in self.rows:
            wanted = {"id": key[0], "name": key[1], "n": self.rows[key]}
        assert self.engine.get("t", key) == wanted

    def all(self, _: Any) -> None:
        found = {(row[0], row[1]): row[2] for row in self.engine.scan("t").rows()}
        assert found == self.rows

    def both(self, _: Any) -> None:
        query = "select (select count(*) from t), (select count(*) from other)"
        assert self.engine.sql(query).rows() == [(len(self.rows), len(self.notes))]
        for name, n in self.notes.items():
            assert self.engine.get("other", name) == {"id": name, "n": n}

    def forget(self, _: Any) -> None:
        """A reader that is broken off in the middle leaves nothing half done behind."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replica.Copy, "apply", broken_off)
            try:
                self.engine.scan("t")
            except KeyboardInterrupt:
                return


def broken_off(copy: replica.Copy, changes: Any, epoch: int) -> None:
    copy.rows.words[:] = 0
    raise KeyboardInterrupt


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, chunk=st.integers(1, 4), rows_max=st.sampled_from([0, 3, 1000]))
def test_reads_in_between_change_nothing_and_miss_nothing(
    steps: Any, chunk: int, rows_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "CHUNK_SLOTS", chunk)
        patch.setattr(replica, "PENDING_ROWS_MAX", rows_max)
        patch.setattr(replica, "PENDING_EPOCHS_MIN", 1)
        patch.setattr(replica, "POOL_SLACK", 2)
        patch.setattr(point, "PLACES_MAX", 3)
        model = Model()
        for name, argument in [*steps, ("all", None), ("both", None)]:
            getattr(model, name)(argument)


KEYS_IN_ALL = [(number, name) for number in range(8) for name in NAMES]
STAGES = (
    [((number, name), number) for number in range(6) for name in NAMES],
    [((1, "a"), 9), ((2, "b"), 9)],  # changed
    [((0, ""), -1), ((3, "a"), -1), ((3, "b"), -1)],  # gone
    [((7, "b"), 1), ((6, ""), 2)],  # new, where others were
    [((0, ""), 5), ((3, "a"), 6)],  # there again, elsewhere
)


@pytest.mark.parametrize("chunk", [3, mirror.CHUNK_SLOTS])
@pytest.mark.parametrize("asked", range(len(STAGES)))
def test_a_key_is_found_whenever_it_is_first_asked_for(
    asked: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQL follows the table from the first epoch on; its index is made at one of those later."""
    monkeypatch.setattr(mirror, "CHUNK_SLOTS", chunk)
    model = Model()
    for number, changes in enumerate(STAGES):
        model.change(changes)
        model.all(None)
        copy = model.engine._memory.replica.copies["t"]
        assert copy.rows.is_indexed == (number > asked)
        for key in KEYS_IN_ALL if number >= asked else ():
            model.get(key)
            model.get(key)


def test_an_index_is_kept_while_chunks_are_copied_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHUNK_SLOTS", 3)
    monkeypatch.setattr(replica, "PENDING_ROWS_MAX", 0)
    monkeypatch.setattr(replica, "PENDING_EPOCHS_MIN", 0)
    model = Model()
    model.change(STAGES[0])
    for key in KEYS_IN_ALL:
        model.get(key)
    for changes in STAGES[1:]:
        model.change(changes)  # is let go at once: the chunks are copied again
        assert model.engine._memory.replica.followed == frozenset()
        for key in KEYS_IN_ALL:
            model.get(key)
        model.all(None)


def test_rows_that_come_while_an_indexed_table_is_not_followed_find_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "PENDING_ROWS_MAX", 0)
    monkeypatch.setattr(replica, "PENDING_EPOCHS_MIN", 0)
    model = Model()
    model.change([((0, "a"), 0)])
    model.get((0, "a"))
    model.change([((number, "b"), number) for number in range(3000)])
    for number in (0, 1, 1500, 2999, 3000):
        model.get((number, "b"))
    model.all(None)


def test_texts_of_rows_that_are_gone_may_be_forgotten_before_the_table_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "POOL_SLACK", 0)
    model = Model()
    for n in (1, -1):  # their slots keep the codes of their texts
        model.change([((number, f"text {number}"), n) for number in range(10)])
    for number in range(30):
        for n in (1, -1):
            model.change([((1, f"another {number}"), n)])
    assert model.engine._memory.pool.count < 30
    model.all(None)
    model.get((3, "text 3"))


def test_tables_that_nobody_reads_are_not_copied() -> None:
    model = Model()
    model.change([((1, "a"), 1)])
    model.note(1)
    assert model.engine.get("other", "text 1") == {"id": "text 1", "n": 1}
    copies = model.engine._memory.replica.copies
    assert (copies["t"].rows.count, copies["other"].rows.count) == (0, 1)


def test_a_stream_that_nobody_reads_keeps_no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "PENDING_ROWS_MAX", 10)
    model = Model()
    model.all(None)
    for n in range(200):
        model.change([((n % 4, "a"), n)])
        assert len(model.engine._memory.replica._pending) <= replica.PENDING_EPOCHS_MIN
    model.all(None)


def test_what_changed_while_nobody_followed_is_copied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror, "CHUNK_SLOTS", 2)
    monkeypatch.setattr(replica, "PENDING_ROWS_MAX", 0)
    monkeypatch.setattr(replica, "PENDING_EPOCHS_MIN", 1)
    model = Model()
    model.change([((key, "a"), 0) for key in range(4)])
    model.all(None)
    model.change([((0, "a"), 1)])
    model.change([((0, "a"), 2)])  # that is too much: the table is let go
    assert model.engine._memory.replica.followed == frozenset()
    model.change([((3, "a"), 3)])
    model.all(None)


def test_a_reader_that_is_broken_off_is_made_good_by_the_next() -> None:
    model = Model()
    model.change([((key, "a"), 0) for key in range(4)])
    model.all(None)
    model.get((1, "a"))
    model.change([((1, "a"), 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica.Copy, "apply", broken_off)
        with pytest.raises(KeyboardInterrupt):
            model.engine.scan("t")
    model.get((1, "a"))
    model.all(None)


def test_an_epoch_that_comes_while_a_reader_catches_up_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model()
    model.change([((1, "a"), 1)])
    model.get((1, "a"))
    model.change([((1, "a"), 2)])
    at_the_end = replica.Replica._compact_pool

    def meanwhile(copies: replica.Replica) -> None:
        monkeypatch.setattr(replica.Replica, "_compact_pool", at_the_end)
        model.change([((1, "a"), 3)])

    monkeypatch.setattr(replica.Replica, "_compact_pool", meanwhile)
    assert model.engine.get("t", (1, "a")) == {"id": 1, "name": "a", "n": 2}
    model.get((1, "a"))


def test_a_table_that_changes_while_it_is_first_copied_is_of_one_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror, "CHUNK_SLOTS", 1)
    model = Model()
    model.change([((key, "a"), 0) for key in range(4)])
    changes = iter(
        [
            [((0, "a"), 1), ((3, "a"), 1)],  # one that is copied already, one that is not yet
            [((2, "a"), 2)],
            [((2, "a"), -1)],
            [((2, "b"), 3)],  # in the slot of the one that went
        ]
    )
    honest = Memory.image

    def meanwhile(live: Memory, name: str, slots: range, words: Any) -> Any:
        for some in changes if slots.start == 1 else ():
            model.change(some)
        return honest(live, name, slots, words)

    monkeypatch.setattr(Memory, "image", meanwhile)
    model.all(None)
    assert next(changes, None) is None
    for key in [(number, name) for number in range(4) for name in NAMES]:
        model.get(key)
        model.get(key)


@pytest.mark.parametrize("is_durable", [False, True])
def test_rows_that_are_loaded_after_the_table_was_read_are_seen(
    is_durable: bool, tmp_path: Path
) -> None:
    """The copy has no such rows: they come whole, not as new values of rows that are there."""
    book = hg.Table("book", "id bigint, n bigint, note string", key="id")

    @hg.transaction(event="id bigint, n bigint")
    def put(event: Any, row: Any = book.at("id", create=True)) -> None:
        row.n += event.n

    path = tmp_path / "store" if is_durable else None
    with hg.open(path, tables=[book], transactions=[put]) as engine:
        assert engine.sql("select * from book").rows() == []
        engine.load(book, [{"id": 0, "n": 13, "note": ""}])
        assert engine.get(book, 0) == {"id": 0, "n": 13, "note": ""}
        engine.run(put, [{"id": 0, "n": 1}, {"id": 1, "n": 2}])
        engine.load(book, [{"id": 7, "n": 5, "note": "x"}], mode="missing")
        engine.run(put, [{"id": 7, "n": 1}, {"id": 1, "n": 2}])
        wanted = [(0, 14, ""), (1, 4, ""), (7, 6, "x")]
        assert engine.sql("select * from book order by id").rows() == wanted
