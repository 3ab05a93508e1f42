"""Reopening a store with another declaration: what is added migrates, what differs is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

import headgate as hg

FIRST = "id bigint, n bigint"
MORE = "id bigint, n bigint, name string DEFAULT 'none', rate decimal(5,2) DEFAULT 1.5"


def table(columns: str, check: str | None = None) -> hg.Table:
    return hg.Table("things", columns, key="id", check=check)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    first = table(FIRST)
    with hg.open(tmp_path / "store", tables=[first]) as engine:
        engine.load(first, [{"id": 1, "n": 10}, {"id": 2, "n": 20}])
    return tmp_path / "store"


def test_a_new_column_with_a_default_is_added_to_the_rows_there_are(store: Path) -> None:
    expected = [(1, 10, "none", Decimal("1.50")), (2, 20, "none", Decimal("1.50"))]
    for _ in range(2):
        with hg.open(store, tables=[table(MORE)]) as engine:
            assert engine.sql("select * from things order by id").rows() == expected


def test_rows_written_after_the_migration_keep_their_values(store: Path) -> None:
    more = table(MORE)

    @hg.transaction(event="id bigint", compiled=False)
    def rename(event, row=more.at("id", create=True)):
        row.name = "new"

    with hg.open(store, tables=[more], transactions=[rename]) as engine:
        engine.run(rename, [{"id": 2}, {"id": 3}])
    with hg.open(store, tables=[more]) as engine:
        names = engine.sql("select id, name from things order by id").rows()
    assert names == [(1, "none"), (2, "new"), (3, "new")]


def test_a_new_table_joins_the_store(store: Path) -> None:
    other = hg.Table("others", "id bigint", key="id")
    with hg.open(store, tables=[table(FIRST), other]) as engine:
        assert engine.load(other, [{"id": 7}]) == 1
    with hg.open(store) as engine:
        assert engine.sql("select * from others").rows() == [(7,)]
        assert engine.sql("select count(*) from things").rows() == [(2,)]


@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ("id bigint, n int", None),  # another type
        ("id bigint", None),  # a column less
        ("id bigint, n bigint, m bigint", None),  # a new column without a default
        ("n bigint, id bigint", None),  # another order
        (FIRST, "n >= 0"),  # a check that the rows were never held to
    ],
)
def test_any_other_difference_is_refused_and_nothing_is_touched(
    store: Path, columns: str, check: str | None
) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(hg.DeclarationError, match="the store has"):
        hg.open(store, tables=[table(columns, check)])
    after = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert {p: b for p, b in after.items() if p.name != "lock"} == {
        p: b for p, b in before.items() if p.name != "lock"
    }
    with hg.open(store, tables=[table(FIRST)]) as engine:
        assert engine.sql("select sum(n) from things").rows() == [(30,)]
