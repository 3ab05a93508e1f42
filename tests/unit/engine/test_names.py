"""Names: two that differ in case only are refused; every column of a result can be reached."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.engine.results import Result

seats = hg.Table("seats", "id bigint, n bigint", key="id")


def transaction(event: str, output: str, name: str) -> hg.Transaction:
    @hg.transaction(event=event, name=name, compiled=False)
    def one(event, seat=seats.at("id", create=True), out=hg.output(output)):
        seat.n += 1

    return one


TWINS: dict[str, Any] = {
    "columns of a table": lambda: hg.Table("t", "id bigint, ID bigint", key="id"),
    "event columns": lambda: transaction("id bigint, Ts int, ts int", "x int", "a"),
    "output columns": lambda: transaction("id bigint", "x int, X int", "a"),
    "tables": lambda: hg.open(
        None, tables=[hg.Table("a", "id int", key="id"), hg.Table("A", "id int", key="id")]
    ),
}


@pytest.mark.parametrize("what", TWINS)
def test_names_that_differ_in_case_only_are_refused(what: str) -> None:
    with pytest.raises(hg.DeclarationError, match=r"differ in case only.*; rename one of them"):
        TWINS[what]()


def test_a_table_of_the_store_and_one_of_the_program(tmp_path: Path) -> None:
    hg.open(tmp_path / "s", tables=[seats]).close()
    other = hg.Table("Seats", "id bigint", key="id")
    with pytest.raises(hg.DeclarationError, match="'seats' and 'Seats' differ in case only"):
        hg.open(tmp_path / "s", tables=[other])


def test_an_output_that_is_a_column_of_every_result_in_other_letters() -> None:
    with pytest.raises(hg.DeclarationError, match="'Epoch' is a column of every result"):
        transaction("id bigint", "Epoch bigint", "a")


def test_columns_of_one_stream_are_told_apart_by_more_than_case() -> None:
    one, two = (
        transaction("id bigint, ts int", "x int", "a"),
        transaction("id bigint, TS int", "y int", "b"),
    )
    shout = transaction("id bigint, ts int", "TS int", "c")
    more = transaction("id bigint, ts int", "X int", "d")
    engine = hg.open(None, tables=[seats], transactions=[one, two, shout, more])
    with pytest.raises(hg.DeclarationError, match="event columns 'ts' and 'TS'"):
        engine.run({1: one, 2: two}, [], route_by="kind")
    with pytest.raises(hg.DeclarationError, match=r"results columns 'TS' and 'ts'|'ts' and 'TS'"):
        engine.run(shout, [], order_by="ts")
    with pytest.raises(hg.DeclarationError, match=r"results columns '[xX]' and '[xX]'"):
        engine.run({1: one, 2: more}, [], route_by="kind")
    assert engine.run(one, [{"id": 1, "ts": 1}], order_by="ts").num_rows == 1


def test_results_of_one_stream_over_time(tmp_path: Path) -> None:
    with hg.open(
        tmp_path / "s", tables=[seats], transactions=[transaction("id bigint", "x int", "a")]
    ) as engine:
        engine.call("a", id=1)
    after = transaction("id bigint", "X int", "a")
    with (
        pytest.raises(hg.DeclarationError, match=r"results columns 'x' and 'X'"),
        hg.open(tmp_path / "s", tables=[seats], transactions=[after]) as engine,
    ):
        engine.call("a", id=1)


# --- results --------------------------------------------------------------------------------------

COLUMNS = "items int, values int, get int, _x int, left int"


def test_every_column_of_a_result_is_an_item_and_an_attribute() -> None:
    one = transaction("id bigint", COLUMNS, "a")
    result = hg.open(None, tables=[seats], transactions=[one]).call(one, id=1)
    assert result.committed is True and result.outcome == "committed"
    for name in ("items", "values", "get", "_x", "left"):
        assert result[name] == 0 and getattr(result, name) == 0
    assert dict(result) == dict(zip(result, (result[name] for name in result), strict=True))
    assert {**result} == dict(result) and list(result.keys()) == list(result)
    assert result == dict(result) and result == pickle.loads(pickle.dumps(result))
    assert copy.copy(result) == result and result != {} and result != 5
    assert "items" in result and len(result) == 10


def test_without_such_columns_the_methods_are_those_of_a_mapping() -> None:
    result = Result({"outcome": "aborted", "n": 3})
    assert list(result.items()) == [("outcome", "aborted"), ("n", 3)]
    assert list(result.values()) == ["aborted", 3] and result.get("m", 4) == 4
    assert not result.committed
    with pytest.raises(AttributeError, match="the result has no column 'm': outcome, n"):
        _ = result.m


@pytest.mark.parametrize("name", ["committed", "keys"])
def test_what_every_result_has_is_no_output_column(name: str) -> None:
    with pytest.raises(hg.DeclarationError, match=f"every result has a '{name}' of its own"):
        hg.output(f"{name} boolean")
