"""A transaction is known by itself: another one of its name and columns is never taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg

jars = hg.Table("jars", "id bigint, n bigint", key="id")


def adding(amount: int) -> Any:
    """A new transaction each time, all with one name and the same columns."""

    @hg.transaction(event="id bigint", name="add")
    def add(event, jar=jars.at("id", create=True)):
        jar.n += amount

    return add


EVENT = [{"kind": "a", "id": 1}]
WAYS: dict[str, Callable[[hg.Engine, Any], Any]] = {
    "run": lambda engine, one: engine.run(one, EVENT),
    "run by routes": lambda engine, one: engine.run({"a": one}, EVENT, route_by="kind"),
    "sink": lambda engine, one: engine.sink(one),
    "sink by routes": lambda engine, one: engine.sink({"a": one}, route_by="kind"),
    "call": lambda engine, one: engine.call(one, id=1),
    "call_once": lambda engine, one: engine.call_once("key", one, id=1),
    "submit": lambda engine, one: engine.submit(one, id=1),
    "explain": lambda engine, one: engine.explain({"a": one}, EVENT, route_by="kind"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_redefined_transaction_is_refused(way: str) -> None:
    first, second = adding(1), adding(100)
    with hg.open(None, tables=[jars], transactions=[first]) as engine:
        WAYS["run"](engine, first)
        WAYS["run by routes"](engine, first)  # whose plan is then known
        with pytest.raises(hg.InputError) as caught:
            WAYS[way](engine, second)
        assert "another definition" in str(caught.value)
        assert "open" in str(caught.value)  # what to do next
        assert engine.get(jars, 1)["n"] == 2


def test_the_new_one_runs_in_an_engine_that_is_opened_with_it() -> None:
    for amount in (1, 100):
        one = adding(amount)
        with hg.open(None, tables=[jars], transactions=[one]) as engine:
            engine.run({"a": one}, EVENT, route_by="kind")
            assert engine.get(jars, 1)["n"] == amount


def test_routes_of_other_values_are_other_routes() -> None:
    """1 and True are equal in Python; as routes they are not."""
    one = adding(1)
    with hg.open(None, tables=[jars], transactions=[one]) as engine:
        flagged = [{"kind": True, "id": 1}]
        numbered = [{"kind": 1, "id": 1}]
        for _ in range(2):
            found = engine.run({True: one}, flagged, route_by="kind")
            assert found["outcome"].to_pylist() == ["committed"]
            found = engine.run({1: one}, numbered, route_by="kind")
            assert found["outcome"].to_pylist() == ["committed"]
