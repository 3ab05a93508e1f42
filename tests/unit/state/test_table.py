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
