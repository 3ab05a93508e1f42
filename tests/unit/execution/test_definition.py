"""Definition: what cannot run is refused where it is declared, with its line and what to do."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headgate as hg

accounts = hg.Table(
    "accounts",
    "id bigint, n bigint, small int, x double, due decimal(12,2), name string, open boolean",
    key="id",
)
EVENT = "id bigint, a bigint, x double, due decimal(12,2), name string, ids array<bigint>"
LIST = [1, 2]
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {}


def refused(words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note a function that must be refused with these words, at its line marked `# here`."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        REFUSED[function.__name__] = (function, words)
        return function

    return note


def marked_line(function: Callable[..., Any]) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if line.rstrip().endswith("# here"))


# --- stores that do not fit -----------------------------------------------------------------------


@refused("is bigint, and a float64 cannot be stored in it; use int() or round()")
def float_into_int(event, row=accounts.at("id")):
    row.n = row.x * 2  # here


@refused("is int, and a float64 cannot be stored")
def division_into_int(event, row=accounts.at("id")):
    row.small = row.small / 2  # here


@refused("is double, and a text cannot be stored")
def text_into_double(event, row=accounts.at("id")):
    row.x = row.name  # here


@refused("is string, and a int64 cannot be stored")
def int_into_text(event, row=accounts.at("id")):
    row.name = row.n  # here


@refused("is boolean, and a int64 cannot be stored")
def int_into_boolean(event, row=accounts.at("id")):
    row.open = row.n  # here


@refused("is decimal, and a float64 cannot be stored")
def float_into_decimal(event, row=accounts.at("id")):
    row.due = row.x  # here


@refused("is a key column and cannot be set")
def key_set(event, row=accounts.at("id")):
    row.id = 5  # here


@refused("was declared mode='read', so .n cannot be set")
def read_only_set(event, row=accounts.at("id", mode="read")):
    row.n = 5  # here


@refused("was declared mode='read', so it cannot be deleted")
def read_only_deleted(event, row=accounts.at("id", mode="read")):
    hg.delete(row)  # here


A_ROW = "hg.delete takes a row, as table.at(...) or one of table.each(...) gives it, not "


@refused(A_ROW + "the output of 'output_deleted'")
def output_deleted(event, row=accounts.at("id"), out=hg.output("n bigint")):
    hg.delete(out)  # here


@refused(A_ROW + "the event of 'event_deleted'")
def event_deleted(event, row=accounts.at("id")):
    hg.delete(event)  # here


@refused(A_ROW + "a value (int64)")
def value_deleted(event, row=accounts.at("id")):
    hg.delete(row.n)  # here


@refused(A_ROW + "a module")
def module_deleted(event, row=accounts.at("id")):
    hg.delete(hg)  # here


@refused("the event cannot be changed, and event.a is a column of it; use a variable")
def event_set(event, row=accounts.at("id")):
    event.a = 1  # here


# --- names that are not there ---------------------------------------------------------------------


@refused("table 'accounts' has no column 'balance'; the columns are: id, n, small, x, due")
def unknown_column(event, row=accounts.at("id")):
    row.n = row.balance  # here


@refused("table 'accounts' has no column 'balance'")
def unknown_column_set(event, row=accounts.at("id")):
    row.balance = 1  # here


@refused("the event of 'unknown_event_column' has no column 'amount'; the columns are: id, a, x")
def unknown_event_column(event, row=accounts.at("id")):
    row.n = event.amount  # here


@refused("the name nowhere is not defined before this function")
def unknown_name(event, row=accounts.at("id")):
    row.n = nowhere  # type: ignore[name-defined]  # noqa: F821  # here


# --- texts and decimals ---------------------------------------------------------------------------


@refused("text")
def text_product(event, row=accounts.at("id")):
    row.name = row.name * 3  # here


@refused("text")
def text_order(event, row=accounts.at("id")):
    row.open = row.name < row.n  # here


@refused("startswith takes one text here, or a tuple of them")
def text_start(event, row=accounts.at("id")):
    row.open = row.name.startswith("a", 1)  # here


@refused("endswith takes a text or a tuple of texts")
def text_end(event, row=accounts.at("id")):
    row.open = row.name.endswith(1)  # here


@refused("min or max of values of which there are none: no value passes the condition")
def least_of_nothing(event, row=accounts.at("id")):
    row.n = min((one for one in event.ids if "" > "a"), default=1)  # here


@refused("text")
def text_part(event, row=accounts.at("id")):
    row.name = row.name[1:]  # here


@refused("text")
def text_method(event, row=accounts.at("id")):
    row.name = row.name.upper()  # here


@refused("a decimal and a double do not mix")
def decimal_with_float(event, row=accounts.at("id")):
    row.due = row.due * 0.5  # here


@refused("a decimal and a double do not mix")
def decimal_beside_float(event, row=accounts.at("id")):
    row.open = row.due > event.x  # here


@refused("division of decimals has no exact result")
def decimal_division(event, row=accounts.at("id")):
    row.due = row.due / event.due  # here


@refused("the remainder of decimals has no exact result")
def decimal_remainder(event, row=accounts.at("id")):
    row.due = row.due % 3  # here


@refused("is too large to be exact; store the product in a column first")
def decimal_product(event, row=accounts.at("id")):
    row.due = row.due * row.due * event.due * event.due  # here


@refused("decimal() needs a literal like '0.05'")
def decimal_of_a_text(event, row=accounts.at("id")):
    row.due = hg.decimal(event.name)  # here


# --- the shape of the function --------------------------------------------------------------------


@refused("the reason of abort must be a text, not")
def abort_with_a_number(event, row=accounts.at("id")):
    return hg.abort(event.a)  # here


@refused("open touches files")
def opens_a_file(event, row=accounts.at("id")):
    with open("file") as file:  # here
        row.name = file.read()


@refused("there is no compiled form")
def number_of_a_text(event, row=accounts.at("id")):
    row.n = int(event.name)  # here


@refused("except KeyError has no compiled form, except Exception has")
def catches_one_error(event, row=accounts.at("id")):
    try:
        row.n = event.a // row.n
    except KeyError:  # here
        row.n = 0


@refused("found may be None here, where a value is needed; test it before")
def counts_up_to_none(event, row=accounts.at("id")):
    found = None
    if event.a > 2:
        found = event.a
    for step in range(found):  # here
        row.n += step


@refused("is not declared NULL, and None cannot be stored in it")
def sets_what_is_never_null(event, row=accounts.at("id")):
    row.n = None  # here


@refused("None stands where a value is needed")
def adds_none(event, row=accounts.at("id")):
    row.n = event.a + None  # here


@refused("which matters here; write a constant as 0.0")
def int_or_float(event, row=accounts.at("id")):
    rate = 2
    if event.a > 2:
        rate = event.x
    row.x = rate * event.a  # here


@refused("is a bool on one way and an int on another")
def bool_or_int(event, row=accounts.at("id")):
    row.n = row.open and event.a  # here


@refused("an int or a float comes of this")
def larger_of_two_kinds(event, row=accounts.at("id")):
    row.x = max(event.a, event.x)  # here


@refused("is a complex number in Python; use math.pow(x, y)")
def fractional_power(event, row=accounts.at("id")):
    row.x = event.x**0.5  # here


@refused("a boolean stands left of +; write int(...) around it")
def boolean_sum(event, row=accounts.at("id")):
    row.n = row.open + event.a  # here


@refused("`is` compares objects, not values")
def identity_of_numbers(event, row=accounts.at("id")):
    row.open = event.a is row.n  # here


@refused("LIST is a list, which may change while the engine runs; use a tuple")
def list_of_the_module(event, row=accounts.at("id")):
    row.n = LIST[0]  # here


@refused("numpy.exp is a function whose compiled form does not give what Python gives")
def function_of_numpy(event, row=accounts.at("id")):
    row.x = np.exp(event.x)  # here


@refused("math.hypot is a function whose compiled form does not give what Python gives")
def function_of_math(event, row=accounts.at("id")):
    row.x = math.hypot(event.x, event.x)  # here


@refused("here is a lambda or a def inside the function, which has no compiled form")
def order_of_its_own(event, row=accounts.at("id")):
    row.n = max((event.a, row.n), key=lambda n: -n)  # here


@refused("a dict has no compiled form; use if and elif, or a table")
def dict_of_its_own(event, row=accounts.at("id")):
    row.n = {1: 2}[event.a]  # here


@refused("the places of round must be a constant, 0 or more")
def rounded_to_tens(event, row=accounts.at("id")):
    row.x = round(event.x, -1)  # here


@refused("`in` among floats")
def among_floats(event, row=accounts.at("id")):
    row.open = event.x in (0.5, 1.5)  # here


@refused("a name with a star takes what is left over; take the values one by one")
def starred(event, row=accounts.at("id")):
    first, *_others = event.a, event.a, 3  # here
    row.n = first


@refused("the text of a float64; str and f-strings take texts, ints and booleans")
def formatted_reason(event, row=accounts.at("id")):
    if row.n < event.a:
        return hg.abort(f"only {event.x} left")  # here


@refused("a format or a conversion in an f-string has no compiled form; write {value} alone")
def formatted_number(event, row=accounts.at("id")):
    row.name = f"{event.x:.2f}"  # here


@refused("a generator expression stands only in sum, min, max, any or all; write a loop")
def generator_kept(event, row=accounts.at("id")):
    numbers = (n for n in (event.a, row.n))  # here
    row.n = sum(numbers) + sum(numbers)


@refused("a generator expression stands only in sum, min, max, any or all; write a loop")
def generator_in_a_tuple(event, row=accounts.at("id")):
    row.n = len(tuple(n for n in (event.a, row.n)))  # here


@refused("a generator expression beside try has no compiled form; write a loop")
def generator_beside_try(event, row=accounts.at("id")):
    try:
        row.n = sum(n for n in (event.a, row.n))  # here
    except Exception:
        row.n = 0


@refused("a name that is set in a generator expression; write a loop")
def generator_that_sets(event, row=accounts.at("id")):
    last = 0
    row.open = any((last := n) > 3 for n in (event.a, row.n))  # here
    row.n = last


@refused("limit may have no value here, it is set on some ways only; give limit a value before")
def generator_with_what_is_unset(event, row=accounts.at("id")):
    if event.a > 3:
        limit = 7
    row.open = any(n > limit for n in (event.a, row.n))  # here


@refused("hg.abort(...) on one way and a bool on another; write if ...: return hg.abort(...)")
def abort_by_and(event, row=accounts.at("id")):
    return row.open and hg.abort("open")  # here


@refused("hg.abort(...) on one way and a bool on another; write if ...: return hg.abort(...)")
def abort_or_value(event, row=accounts.at("id")):
    if row.n < 0:
        return hg.abort("negative")
    return row.open  # here


@refused("an import inside the function; write it at the top of the module")
def own_import(event, row=accounts.at("id")):
    from math import sqrt  # here

    row.x = sqrt(event.x)


@refused("del of a column")
def column_deleted(event, row=accounts.at("id")):
    del row.n  # here


# What fails as plain Python, too: the message must not propose that.
NEVER = {
    "generator_with_what_is_unset",
    "adds_none",
    "sets_what_is_never_null",
    "float_into_int", "division_into_int", "text_into_double", "int_into_text", "int_into_boolean",
    "float_into_decimal", "key_set", "read_only_set", "read_only_deleted", "output_deleted",
    "event_deleted", "value_deleted", "module_deleted",
    "event_set", "unknown_column", "unknown_column_set", "unknown_event_column", "unknown_name",
    "decimal_with_float", "abort_with_a_number", "opens_a_file",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_is_refused_with_its_line_and_the_reason(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(hg.DeclarationError) as error:
        hg.transaction(event=EVENT)(function)
    message = str(error.value)
    assert message.startswith(f"transaction {name!r}")
    assert f"test_definition.py:{marked_line(function)}" in message
    assert words in message
    proposed = message.endswith("declare the transaction with compiled=False to run it as Python")
    assert proposed == (name not in NEVER)
    assert proposed == ("compiled=False" in message)
    assert "\n" not in message and "\x1b" not in message


@pytest.mark.parametrize(
    "name", ["text_part", "text_product", "function_of_math", "decimal_division"]
)
def test_what_does_not_compile_may_be_declared_as_python(name: str) -> None:
    transaction = hg.transaction(event=EVENT, compiled=False)(REFUSED[name][0])
    assert transaction.name == name


@pytest.mark.parametrize("compiled", [True, False])
def test_what_a_call_does_not_run_is_no_transaction(compiled: bool) -> None:
    def yields(event, row=accounts.at("id")):
        row.n += 1
        yield row.n

    async def waits(event, row=accounts.at("id")):
        row.n += 1

    for function, words in ((yields, "the function yields"), (waits, "the function is async")):
        with pytest.raises(hg.DeclarationError, match=rf"test_definition.py:\d+: {words}"):
            hg.transaction(event=EVENT, compiled=compiled)(function)


def test_a_value_that_is_returned_is_refused() -> None:
    def returns(event, row=accounts.at("id")):
        return row.n

    with pytest.raises(hg.DeclarationError, match=r"returns a value of type int64; .*hg\.output"):
        hg.transaction(event=EVENT)(returns)


@pytest.mark.parametrize("compiled", [True, False])
def test_an_abort_without_return_is_refused(compiled: bool) -> None:
    def loses_its_abort(event, row=accounts.at("id")):
        if row.n < 0:
            hg.abort("negative")  # here
        row.n += 1

    line = marked_line(loses_its_abort)
    with pytest.raises(hg.DeclarationError) as error:
        hg.transaction(event=EVENT, compiled=compiled)(loses_its_abort)
    assert f"test_definition.py:{line}: abort(...) without return has no effect" in str(error.value)
    assert str(error.value).endswith("write return hg.abort(...)")


def test_a_called_function_is_refused_with_its_own_line() -> None:
    def double(row):
        return row.name * 2  # here

    def calls(event, row=accounts.at("id")):
        row.name = double(row)

    with pytest.raises(hg.DeclarationError) as error:
        hg.transaction(event=EVENT)(calls)
    assert f"test_definition.py:{marked_line(double)}" in str(error.value)


def test_a_check_that_does_not_compile_is_refused_with_its_text() -> None:
    check = "greatest(n, x) > 0"
    table = hg.Table("t", "id bigint, n bigint, x double", key="id", check=check)
    with pytest.raises(hg.DeclarationError) as error:

        @hg.transaction(event="id bigint")
        def count(event, row=table.at("id")):
            row.n += 1

    assert f"table 't': the check {check!r} cannot be compiled: an int or a float" in str(
        error.value
    )


def test_a_check_that_is_no_condition_is_refused() -> None:
    with pytest.raises(hg.DeclarationError, match="a condition is needed"):
        hg.Table("t", "id bigint, n bigint", key="id", check="n + 1")
