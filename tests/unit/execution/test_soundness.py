"""Soundness: lost aborts, chance and unset variables are refused where they are defined.

The functions here are made by `exec`, as in a shell: there is no source to look at.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from typing import Any

import numpy as np
import pytest

import headgate as hg
from headgate.testing import SerialOracle

accounts = hg.Table("accounts", "id bigint, n bigint, x double, name string", key="id")
EVENT = "id bigint, a bigint, b bigint, x double, name string, names array<string>"


def defined(body: str, before: str = "") -> Any:
    """A function over the event and a row, made from text; its line 1 is the first of `before`."""
    head = "def change(event, row=accounts.at('id', create=True)):\n"
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    scope: dict[str, Any] = {"hg": hg, "accounts": accounts, "math": math, "__name__": "shell"}
    exec(compile(before + head + lines, "<shell>", "exec"), scope)
    return scope["change"]


def refusal(function: Any, compiled: bool) -> str:
    with pytest.raises(hg.DeclarationError) as error:
        hg.transaction(event=EVENT, compiled=compiled)(function)
    assert "\n" not in str(error.value)
    return str(error.value)


CHECK = """def check(event):
    if event.a > 3:
        return hg.abort("too much")
"""
LOST = {
    "abort as a statement": ("hg.abort('x')\nrow.n = 1", "", 2),
    "in a branch": ("if event.a > 1:\n    hg.abort('x')\nrow.n = 1", "", 3),
    "stored": ("stop = hg.abort('x')\nrow.n = 1", "", 2),
    "another name": ("stop = hg.abort\nstop('x')\nrow.n = 1", "", 3),
    "a called function's": ("check(event)\nrow.n = 1", CHECK, 5),
    "a called function's, stored": ("found = check(event)\nrow.n = 1", CHECK, 5),
    "tested and dropped": (
        "found = check(event)\nif found is not None:\n    row.n = 1\nrow.n = 2", CHECK, 5,
    ),
    "overwritten in a loop": (
        "found = None\nfor name in event.names:\n    found = check(event)\nreturn found", CHECK, 7,
    ),
    "lost inside the called function": (
        "return outer(event)",
        CHECK + "def outer(event):\n    check(event)\n",
        5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", LOST)
def test_an_abort_that_is_not_returned_is_refused(name: str, compiled: bool) -> None:
    body, before, line = LOST[name]
    message = refusal(defined(body, before), compiled)
    assert f"<shell>:{line}: " in message
    assert "return" in message


KEPT = {
    "returned": "if event.a > 3:\n    return hg.abort('too much')\nrow.n = event.a",
    "a called function's": "return check(event)",
    "tested for None": (
        "found = check(event)\nif found is not None:\n    return found\nrow.n = event.a"
    ),
    "tested the other way": (
        "found = check(event)\nif found is None:\n    row.n = event.a\nelse:\n    return found"
    ),
    "tested for truth": "found = check(event)\nif found:\n    return found\nrow.n = event.a",
    "in one expression": "return hg.abort('too much') if event.a > 3 else None",
}


@pytest.mark.parametrize("name", KEPT)
def test_an_abort_that_is_returned_aborts_compiled_and_plain(name: str) -> None:
    function = defined(KEPT[name], CHECK)
    events = [
        {"id": 1, "a": a, "b": 1, "x": 1.0, "name": "n", "names": ["p", "q"]} for a in (1, 5, 2)
    ]
    found = []
    for compiled in (True, False):
        transaction = hg.transaction(event=EVENT, compiled=compiled)(function)
        with hg.open(None, tables=[accounts], transactions=[transaction]) as engine:
            table = engine.run(transaction, events)
            found.append([table.column(name).to_pylist() for name in ("outcome", "reason")])
    assert found[0] == found[1]
    assert found[0][1] == [None, "too much", None]


def test_an_abort_that_nobody_could_see_lost_does_not_commit() -> None:
    function = defined(
        "with open_nothing():\n    {'stop': hg.abort}['stop']('lost')\nrow.n = 1",
        "import contextlib\nopen_nothing = contextlib.nullcontext\n",
    )
    transaction = hg.transaction(event=EVENT, compiled=False)(function)
    event = {"id": 1, "a": 1, "b": 1, "x": 1.0, "name": "n", "names": []}
    with hg.open(None, tables=[accounts], transactions=[transaction]) as engine:
        result = engine.call(transaction, **event)
        assert result.outcome == "aborted"
        assert result.reason.startswith("error: LostAbort: abort('lost') was not returned")
    [wanted] = SerialOracle([accounts], [transaction]).run(transaction, [event])
    assert wanted["reason"] == result.reason


CHANCE = {
    "random": ("row.x = random.random()", "import random\n", 3, "gives another number"),
    "a random function": ("row.x = random()", "from random import random\n", 3, "another number"),
    "a generator": ("row.x = r.random()", "import random\nr = random.Random(1)\n", 4, "another"),
    "time": ("row.x = time.time()", "import time\n", 3, "reads the clock"),
    "a time function": ("row.x = time()", "from time import time\n", 3, "reads the clock"),
    "now": ("t = datetime.now()\nrow.n = 1", "from datetime import datetime\n", 3, "the clock"),
    "now of a module": ("t = dt.datetime.now()\nrow.n = 1", "import datetime as dt\n", 3, "clock"),
    "today": ("t = date.today()\nrow.n = 1", "from datetime import date\n", 3, "the clock"),
    "a bound clock": ("t = now()\nrow.n = 1", "import datetime\nnow = datetime.datetime.now\n",
                      4, "clock"),
    "uuid": ("row.name = str(uuid.uuid4())", "import uuid\n", 3, "another value"),
    "os": ("row.name = os.getcwd()", "import os\n", 3, "asks the machine"),
    "the environment": ("row.name = environ['HOME']", "from os import environ\n", 3, "machine"),
    "numpy.random": ("row.x = np.random.random()", "import numpy as np\n", 3, "another number"),
    "print": ("print(event.a)\nrow.n = 1", "", 2, "writes to the screen"),
    "input": ("row.name = input()", "", 2, "waits for a person"),
    "open": ("f = open('x')\nrow.n = 1", "", 2, "touches files"),
    "id": ("row.n = id(event)", "", 2, "another number in each run"),
    "hash": ("row.n = hash(event.name)", "", 2, "another number in each run"),
    "an import inside": ("import random\nrow.x = random.random()", "", 2, "another number"),
    "global": ("global count\ncount = 1\nrow.n = 1", "count = 0\n", 4, "global count would change"),
    "a list of the module": ("seen.append(event.a)\nrow.n = 1", "seen = []\n", 3,
                             "changes a value"),
    "a dict of the module": ("seen['n'] = 1\nrow.n = 1", "seen = {}\n", 3, "would change"),
    "a counter in a dict": ("seen['n'] += 1\nrow.n = 1", "seen = {'n': 0}\n", 3, "would change"),
    "an object of the module": ("box.n = 1\nrow.n = 1",
                                "class Box: pass\nbox = Box()\n", 4, "would change"),
    "a method that changes": ("box.add()\nrow.n = 1",
                              "class Box:\n    def add(self):\n        self.n = 1\nbox = Box()\n",
                              6, "changes a value"),
    "what another function changes": ("row.n = count",
                                      "count = 0\ndef other():\n    global count\n    count = 2\n",
                                      6, "is changed at <shell>:4"),
    "what another function fills": ("row.n = 1 if event.a in seen else 0",
                                    "seen = []\ndef other(a):\n    seen.append(a)\n",
                                    5, "is changed at <shell>:3"),
    "a default that lives on": ("row.n = more(event.a)",
                                "def more(a, seen=[]):\n    return a\n", 1, "lives on"),
    "a set of texts": ("for name in {event.name, 'b'}:\n    row.name = name", "", 2,
                       "order of a set"),
    "a set of an array": ("for name in set(event.names):\n    row.name = name", "", 2, "order"),
    "a set in a variable": ("s = {'a', event.name}\nfor name in s:\n    row.name = name", "", 3,
                            "order of a set"),
    "in a called function": ("row.x = draw()",
                             "import random\ndef draw():\n    return random.random()\n", 3,
                             "number"),
    "a literal beyond 64 bits": ("row.n = event.a if event.a < 9223372036854775808 else 0", "", 2,
                                 "an integer beyond 64 bits: 9223372036854775808"),
    "a constant beyond 64 bits": ("row.n = event.a if event.a < BIG else 0", "BIG = 2**64\n", 3,
                                  "BIG is an integer beyond 64 bits"),
    "the event": ("event.a = 3\nrow.n = 1", "", 2, "the event cannot be changed, and event.a"),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CHANCE)
def test_what_is_not_the_same_each_time_is_refused(name: str, compiled: bool) -> None:
    body, before, line, words = CHANCE[name]
    message = refusal(defined(body, before), compiled)
    assert f"<shell>:{line}: " in message
    assert words in message
    assert "compiled=False" not in message  # it would not help


SAME = {
    "a dict of the module": ("row.n = rates[event.name]", "rates = {'a': 1, 'n': 2}\n"),
    "a set as a test": ("row.n = 1 if event.name in {'a', 'n'} else 0", ""),
    "a sorted set": ("for name in sorted({event.name, 'b'}):\n    row.name = name", ""),
    "a list of its own": ("seen = []\nseen.append(event.a)\nrow.n = seen[0]", ""),
    "time that is given": ("row.n = (dt.datetime(2024, 1, 2) - dt.datetime(2024, 1, 1)).days",
                           "import datetime as dt\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_plain_functions_may_use_what_stays_the_same(name: str) -> None:
    body, before = SAME[name]
    transaction = hg.transaction(event=EVENT, compiled=False)(defined(body, before))
    event = {"id": 1, "a": 1, "b": 1, "x": 1.0, "name": "n", "names": []}
    with hg.open(None, tables=[accounts], transactions=[transaction]) as engine:
        assert engine.call(transaction, **event).reason is None


UNSET = {
    "a branch": ("if event.a > 10:\n    fee = 7\nrow.n = event.b + fee", "", 4),
    "a loop": ("for name in event.names:\n    last = 1\nrow.n = last", "", 4),
    "deleted": ("fee = 1\nif event.a > 1:\n    del fee\nrow.n = fee", "", 5),
    "in a called function": ("row.n = fee(event.a)",
                             "def fee(a):\n    if a > 1:\n        b = 2\n    return b\n", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSET)
def test_a_variable_that_may_have_no_value_is_refused(name: str) -> None:
    body, before, line = UNSET[name]
    message = refusal(defined(body, before), compiled=True)
    assert f"<shell>:{line}: " in message
    assert "may have no value here" in message


def test_a_variable_that_every_way_sets_is_taken() -> None:
    function = defined("if event.a > 10:\n    fee = 7\nelse:\n    fee = 1\nrow.n = event.b + fee")
    hg.transaction(event=EVENT)(function)


def test_a_call_on_the_way_to_a_column_is_no_change_of_the_module() -> None:
    function = defined(
        "row.n += capped(event.a, math.floor(event.x)) - LIMIT", "LIMIT = 3\ndef capped(a, b):\n"
        "    return min(a, b)\n",
    )  # fmt: skip
    for compiled in (True, False):
        hg.transaction(event=EVENT, compiled=compiled)(function)


# --- what reaches chance by a detour ----------------------------------------------------------


COUNTER = itertools.count()
DICE = np.random.default_rng()
NOW = functools.partial(time.time)
CLOCKS = {"now": time.time}


class Watch:
    @property
    def now(self) -> float:
        return time.time()

    def __init__(self) -> None:
        self.began = time.time() if CLOCKS is None else 0.0


WATCH = Watch()


@pytest.mark.parametrize(
    "value",
    [
        lambda event: next(COUNTER),
        lambda event: int(DICE.random()),
        lambda event: int(NOW()),
        lambda event: int(CLOCKS["now"]()),
        lambda event: int(WATCH.now),
        lambda event: int(Watch().began),
    ],
    ids=["iterator", "generator", "partial", "dict", "property", "class"],
)
def test_chance_is_found_by_a_detour_too(value: Any) -> None:
    def draw(event: Any, row: Any = accounts.at("id")) -> None:
        row.n = value(event)

    with pytest.raises(hg.DeclarationError, match="depends on its event and its rows only"):
        hg.transaction(event="id bigint, n bigint", compiled=False)(draw)


def _depth(n: int) -> int:
    return 0 if n <= 0 else 1 + _depth(n - 1)


def _even(n: int) -> bool:
    return True if n == 0 else _odd(n - 1)


def _odd(n: int) -> bool:
    return False if n == 0 else _even(n - 1)


@pytest.mark.parametrize("value", [_depth, _even], ids=["itself", "another"])
def test_what_calls_itself_is_not_compiled_for_it_could_end_the_process(value: Any) -> None:
    def draw(event: Any, row: Any = accounts.at("id")) -> None:
        row.n = int(value(event.n))

    with pytest.raises(hg.DeclarationError, match="calls itself, and compiled code"):
        hg.transaction(event="id bigint, n bigint")(draw)
    hg.transaction(event="id bigint, n bigint", compiled=False)(draw)


# --- errors that are odd ----------------------------------------------------------------------


class Wordless(Exception):
    def __str__(self) -> str:
        raise TypeError("no words")


def raise_again(event: Any, row: Any = accounts.at("id", create=True)) -> None:
    try:
        row.n = 10 // event.n
    except Exception:
        raise ValueError("again")  # noqa: B904


def fail_again(event: Any, row: Any = accounts.at("id", create=True)) -> None:
    try:
        row.n = 10 // event.n
    except Exception:
        row.n = event.n + 9223372036854775807 + row.n - 1 + 9223372036854775807


@pytest.mark.parametrize("function", [raise_again, fail_again])
def test_what_is_raised_while_another_error_is_handled_is_the_reason(function: Any) -> None:
    reasons = set()
    for compiled in (True, False):
        one = hg.transaction(event="id bigint, n bigint", compiled=compiled)(function)
        with hg.open(None, tables=[accounts], transactions=[one]) as engine:
            events = [{"id": n, "n": n % 3} for n in range(9)]
            for scheme in ("serial", "strata", "ready-operation-eager", "lal"):
                found = engine.run(one, events, scheme=scheme, threads=2).column("reason")
                reasons.add(tuple(found.to_pylist()))
        judge = SerialOracle([accounts], [one])
        reasons.add(tuple(row["reason"] for row in judge.run(one, events)))
    assert len(reasons) == 1, reasons
    assert "error: " in str(reasons) and "RERAISE" not in str(reasons)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise Wordless", "error: Wordless: its text cannot be made (TypeError)"),
        ("raise ValueError(chr(0xd800))", "error: ValueError: \\ud800"),
        ("return hg.abort(chr(0xd800))", "\\ud800"),
    ],
)
def test_an_error_without_words_is_a_reason_all_the_same(body: str, reason: str) -> None:
    function = defined(body)
    function.__globals__["Wordless"] = Wordless
    one = hg.transaction(event=EVENT, compiled=False)(function)
    event = {"id": 1, "a": 1, "b": 1, "x": 1.0, "name": "n", "names": []}
    with hg.open(None, tables=[accounts], transactions=[one]) as engine:
        assert engine.run(one, [event]).column("reason").to_pylist() == [reason]
        assert engine.stopped is None
    assert SerialOracle([accounts], [one]).run(one, [event])[0]["reason"] == reason


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise SystemExit(3)", "would end the program"),
        ("exit()", "would end the program"),
        ("raise BaseException('x')", "would end the program"),
        ("row.name = '\\ud800'", "half of a surrogate pair"),
        ("return hg.abort('\\ud800')", "half of a surrogate pair"),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_what_ends_the_program_or_is_no_text_is_refused(
    body: str, words: str, compiled: bool
) -> None:
    assert words in refusal(defined(body), compiled)
