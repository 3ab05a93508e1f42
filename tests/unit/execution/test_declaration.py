"""Declarations of transactions: parameters, events and outputs, and every refusal in its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg

people = hg.Table("people", "id bigint, n bigint", key="id")
rooms = hg.Table("rooms", "house int, name string, n int", key="house, name")
fines = hg.Table("fines", "amount decimal(8,2), n int", key="amount")


def declared(function: Callable[..., Any], event: str = "id bigint, n bigint") -> Any:
    return hg.transaction(event=event, compiled=False)(function)


def test_a_transaction_knows_its_name_its_event_and_its_output() -> None:
    def count(event, row=people.at("id"), out=hg.output("n bigint, big boolean")):
        row.n += 1

    found = declared(count)
    assert found.name == "count"
    assert found.event.names == ("id", "n")
    assert found.output.names == ("n", "big")
    assert repr(found) == "<transaction count(id, n)>"


def test_a_transaction_may_be_given_a_name() -> None:
    def count(event, row=people.at("id")):
        row.n += 1

    found = hg.transaction(event="id bigint", name="tally", compiled=False)(count)
    assert found.name == "tally"


def test_a_transaction_can_be_called_as_the_plain_function_it_is() -> None:
    class Row:
        n = 5

    def count(event, row=people.at("id")):
        if event == "bad":
            return hg.abort("bad event")
        row.n += 1

    row = Row()
    assert declared(count)(None, row) is None and row.n == 6
    assert declared(count)("bad", row).reason == "bad event"


def no_parameters():
    pass


def event_with_a_default(event=5):
    pass


def parameter_without_a_default(event, row):
    pass


def parameter_with_another_default(event, rate=0.5):
    pass


def two_outputs(event, one=hg.output("a int"), other=hg.output("b int")):
    pass


def unknown_key_column(event, row=people.at("person")):
    pass


def key_of_another_type(event, row=people.at("name")):
    pass


def a_wider_key(event, row=rooms.at("id", "name")):
    pass


def array_for_at(event, row=people.at("ids")):
    pass


def scalar_for_each(event, rows=people.each("id")):
    pass


def a_scalar_and_an_array_for_each(event, rows=rooms.each("n", "names")):
    pass


def another_scale(event, row=fines.at("paid")):
    pass


def output_of_another_type(event, row=people.at("id"), out=hg.output("name bigint")):
    pass


EVENT = "id bigint, name string, ids array<bigint>, paid decimal(8,3), n int, names array<string>"
REFUSED = {
    no_parameters: "the first parameter is the event and has no default",
    event_with_a_default: "the first parameter is the event and has no default",
    parameter_without_a_default: 'it stands for: table.at("column"), table.each("column") or',
    parameter_with_another_default: "parameter 'rate' needs a default that says what it stands for",
    two_outputs: "one hg.output(...) at most",
    unknown_key_column: "parameter 'row': event: no column 'person'; the columns are: id, name",
    key_of_another_type: "event column 'name' is a string, the key people.id a bigint",
    a_wider_key: "event column 'id' is a bigint, the key rooms.house a int",
    array_for_at: "event column 'ids' is a array<bigint>, the key people.id a bigint",
    scalar_for_each: "each('id') needs an array column, 'id' is a bigint",
    a_scalar_and_an_array_for_each: "'n' is a int; so for each column of the key",
    another_scale: "event column 'paid' is a decimal(8,3), the key fines.amount a decimal(8,2)",
    output_of_another_type: "output column 'name' is a bigint, the event's column of that name a s",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_a_declaration_that_does_not_fit_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(hg.DeclarationError) as refused:
        declared(function, EVENT)
    assert str(refused.value).startswith(f"transaction {function.__name__!r}: ")
    assert REFUSED[function] in str(refused.value)


BAD_EVENTS = {
    "id bigint DEFAULT 5": "event column 'id' has a default; defaults belong to tables",
    "`my id` bigint": "event column 'my id' is not a plain word",
    "id number": "unknown type 'number'",
    "": "has no columns",
}


@pytest.mark.parametrize("event", BAD_EVENTS)
def test_a_bad_event_is_refused(event: str) -> None:
    def nothing(event):
        pass

    with pytest.raises(hg.DeclarationError) as refused:
        declared(nothing, event)
    assert BAD_EVENTS[event] in str(refused.value)


BAD_OUTPUTS = {
    "epoch bigint": "column 'epoch' is a column of every result; choose another name",
    "reason string": "column 'reason' is a column of every result; choose another name",
    "a array<int>": "column 'a': arrays are not supported",
    "a": "output: ",
}


@pytest.mark.parametrize("schema", BAD_OUTPUTS)
def test_a_bad_output_is_refused(schema: str) -> None:
    with pytest.raises(hg.DeclarationError) as refused:
        hg.output(schema)
    assert BAD_OUTPUTS[schema] in str(refused.value)


@pytest.mark.parametrize("thing", [len, 5, "text", type("Callable", (), {"__call__": None})()])
def test_only_a_plain_function_is_a_transaction(thing: Any) -> None:
    with pytest.raises(hg.DeclarationError, match="goes on a plain Python function"):
        declared(thing)


def test_a_decimal_that_is_none_is_refused() -> None:
    with pytest.raises(hg.InputError, match=r"decimal\('much'\): not a decimal number"):
        hg.decimal("much")
