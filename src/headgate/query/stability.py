"""Stability: what in a query gives another answer when it is asked again over the same rows.

DuckDB says of each function whether it does, and of what a text calls; a few it calls stable that
read the clock are named here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator
from typing import Any

import duckdb

from headgate.errors import DeclarationError

_CLOCKS = {
    "ago", "current_localtime", "current_localtimestamp", "pg_conf_load_time",
    "pg_postmaster_start_time",
}  # fmt: skip
_WORDS = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
_STABLE = {"error"}  # it only ever ends the query


def unstable_in(query: str, columns: Collection[str]) -> str | None:
    """The first thing in a query that changes by itself, such as now(); None when nothing does.

    `columns` are names that mean a column, also where without one they would be the clock. Of what
    is no query nothing is said: it will not run.

    >>> unstable_in("select id + random() from t", ["id"])
    'random()'
    >>> unstable_in("select abs(id) from t", ["id"]) is None
    True
    """
    try:
        with duckdb.connect(":memory:") as connection:
            row = connection.execute("select json_serialize_sql(?)", [query]).fetchone()
        tree = json.loads(row[0]) if row else {}
    except duckdb.Error:
        return None
    except RecursionError:
        raise DeclarationError("the SQL is nested too deep: compute it in several steps") from None
    known = {name.lower() for name in columns}
    for node in _nodes(tree):
        found = _unstable(node, known)
        if found is not None:
            return found
    return None


def _unstable(node: dict[str, Any], columns: Collection[str]) -> str | None:
    if node.get("class") == "FUNCTION":
        name = str(node.get("function_name", "")).lower()
        reads_clock = name == "age" and len(node.get("arguments", ())) == 1
        return f"{name}()" if reads_clock or name in _unstable_names() else None
    if node.get("class") == "COLUMN_REF":
        names = [str(one).lower() for one in node.get("column_names", ())]
        is_word = len(names) == 1 and names[0] in _WORDS and names[0] not in columns
        return names[0] if is_word else None
    return "a sample" if node.get("sample") is not None else None


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in the tree, in the order of the text, however deep it is."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            one = list(one.values())
        if isinstance(one, list):
            waiting += reversed(one)


@functools.cache
def _unstable_names() -> frozenset[str]:
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(
            "select distinct lower(function_name) from duckdb_functions() "
            "where stability <> 'CONSISTENT'"
        ).fetchall()
    return frozenset({name for (name,) in rows} | _CLOCKS) - _STABLE
