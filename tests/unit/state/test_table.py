"""Table declarations: keys, defaults, accesses, and what is refused with which words."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

import headgate as hg


def test_a_table_is_a_value() -> None:
    one = hg.Table("t", "id bigint, x double", key="id", check="x > 0")
    assert one == hg.Table("t", "id bigint, x double", key=["id"], check="x > 0")
    assert one != hg.Table("t", "id bigint, x double", key="id")
    assert len({one, hg.Table("t", "id bigint, x double", key="id", check="x > 0")}) == 1


def test_a_key_may_have_several_columns_in_their_own_order() -> None:
    table = hg.Table("t", "a int, b string, c date", key="c, a")
    assert table.key == ("c", "a")
    assert [column.name for column in table.key_columns] == ["c", "a"]


@pytest.mark.parametrize("given", ["b, s", " b ,s ", ["b", "s"], ("b", "s"), iter(["b", "s"])])
def test_columns_that_place_rows_are_given_as_those_of_a_key(given: Any) -> None:
    table = hg.Table("t", "a int, b int, s string, v int", key="a, b, s", shard_by=given)
    assert table.shard_by == ("b", "s")


def test_defaults_may_be_python_values() -> None:
    table = hg.Table(
        "t",
        "id int, d decimal(5,2), day date, s string DEFAULT 'old'",
        key="id",
        defaults={
            "d": decimal.Decimal("1.5"),
            "day": datetime.date(1970, 1, 2),
            "s": "new",
        },
    )
    assert [column.default for column in table.schema] == [None, 150, 1, "new"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no plain name": ({"name": "a b"}, "table 'a b': a table's name is a plain word"),
    "a reserved name": ({"name": "__t"}, "a table's name is a plain word"),
    "a name that is no text": ({"name": 5}, "a table's name is a plain word"),
    "an unknown key": ({"key": "nope"}, "key: no column 'nope'; the columns are: id, x"),
    "no key": ({"key": ""}, "a table needs a key"),
    "an empty list of keys": ({"key": []}, "a table needs a key"),
    "a key that is no name": ({"key": 5}, "table 't'"),
    "a key twice": ({"key": "id, id"}, "key column 'id' is named twice"),
    "a float key": ({"key": "x"}, "key column 'x' is a double; a key is one of: int, bigint"),
    "an array column": ({"schema": "id int, a array<int>"}, "arrays belong in events"),
    "an unknown default": ({"defaults": {"y": 1}}, "defaults: no column 'y'"),
    "a bad default": (
        {"defaults": {"x": "much"}},
        "column 'x': the default 'much' is not a double",
    ),
    "shards by a column beside the key": (
        {"shard_by": "id, x"},
        "shard_by names columns of the key (id), by which events find rows; 'x' is none of them",
    ),
    "shards by a misspelt column": ({"shard_by": ["ids"]}, "'ids' is none of them; did you mean"),
    "shards by a column twice": ({"shard_by": "id, id"}, "shard_by: column 'id' is named twice"),
    "shards by no name": ({"shard_by": 5}, "shard_by is a column of the key or a list of them"),
    "shards by None": ({"shard_by": None}, "a column of the key or a list of them, not None"),
    "all rows on every shard, and each on one": (
        {"shard_by": "id", "replicate": True},
        "with replicate=True every shard has all rows, and with shard_by each row is on one",
    ),
    "a bad check": ({"check": "y > 0"}, "check: no column 'y' (the columns are: id, x)"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_table_is_refused(what: str) -> None:
    changed, words = BAD[what]
    declared = {"name": "t", "schema": "id bigint, x double", "key": "id", **changed}
    with pytest.raises(hg.DeclarationError) as refused:
        hg.Table(**declared)
    assert words in str(refused.value)


ACCESSES: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "too few columns": (
        ("a",),
        {},
        "the key has 2 columns (id, name), so name 2 event columns, not ",
    ),
    "too many columns": (("a", "b", "c"), {}, "so name 2 event columns, not 3"),
    "an unknown mode": (("a", "b"), {"mode": "rw"}, "mode is 'write' or 'read', not 'rw'"),
    "create to read": (
        ("a", "b"),
        {"mode": "read", "create": True},
        "create=True needs mode='write'",
    ),
    "no names": ((1, 2), {}, "name the event's columns by their names, as texts"),
}


@pytest.mark.parametrize("form", ["at", "each"])
@pytest.mark.parametrize("what", ACCESSES)
def test_a_bad_access_is_refused(what: str, form: str) -> None:
    table = hg.Table("t", "id bigint, name string", key="id, name")
    columns, options, words = ACCESSES[what]
    with pytest.raises(hg.DeclarationError) as refused:
        getattr(table, form)(*columns, **options)
    assert f"table 't'.{form}" in str(refused.value)
    assert words in str(refused.value)
