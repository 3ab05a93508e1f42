"""What a newcomer gets wrong in a declaration: one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg
from tests.unit.engine.refusing import accounts, refusal, stock


def parameter(event: Any, role: Any, **options: Any) -> Any:
    """A transaction over that event with one parameter that stands for this."""

    def pay(event, row=role):
        pass

    return hg.transaction(event=event, compiled=False, **options)(pay)


TYPES = (
    "the types are: array<type>, bigint, boolean, date, decimal(p,s), double, float, int, string, "
    "timestamp"
)
OPTIONS = "after the type may stand NULL, NOT NULL, DEFAULT literal, COMMENT 'text'"
A_SCHEMA = "a schema is a DDL string such as 'id bigint, balance double'"

SCHEMAS: dict[Any, str] = {
    "id bigintt": f"column 'id': unknown type 'bigintt'; {TYPES}; did you mean 'bigint'?",
    "id int64": f"column 'id': unknown type 'int64'; {TYPES}; did you mean 'bigint'?",
    "id bigint, s varchar(9)": f"column 's': unknown type 'varchar(9)'; {TYPES}; "
    "did you mean 'string'?",
    "id bigint, t datetime": f"column 't': unknown type 'datetime'; {TYPES}; "
    "did you mean 'timestamp'?",
    "bigint id": "cannot read the column 'bigint id'; the name comes first: 'id bigint'",
    "id": "cannot read the column 'id'; write it as 'name type'",
    "": "the schema '' has no columns; write 'name type, ...'",
    None: f"{A_SCHEMA}, not NoneType",
    ("id bigint",): f"{A_SCHEMA}, not tuple",
    "id bigint, id int": "column 'id' is declared twice",
    "id bigint primary key": f"column 'id': cannot read 'primary key'; {OPTIONS}; "
    "the key is named beside the schema: key='id'",
    "id bigint NULL, n int": "key column 'id' is declared NULL, and a key is never null",
    "id bigint, n int NULL NOT NULL": "column 'n': it is NULL or NOT NULL, not both",
    "id bigint, n int = 5": f"column 'n': cannot read '= 5'; {OPTIONS}; "
    "write DEFAULT in place of =",
    "id bigint; n int": f"column 'id': cannot read '; n int'; {OPTIONS}; "
    "columns are separated by commas",
    "id bigint, n int DEFAULT 'x'": "column 'n': the default 'x' is not a int",
    "id bigint, t timestamp DEFAULT now()": "column 't': cannot read the default 'now()'; "
    "it is a literal: a number, true, false or 'text'",
    "id bigint, n decimal(38,2)": "column 'n': decimal(38,2) is out of bounds; at most 18 digits "
    "are kept exact, the scale at most the digits",
    "id bigint, n array<int>": "column 'n' is an array; arrays belong in events, not in rows",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_bad_schema(schema: Any) -> None:
    told = refusal(hg.DeclarationError, lambda: hg.Table("t", schema, key="id"))
    assert told == f"table 't': {SCHEMAS[schema]}"


FUNCTIONS = (
    "in a check; the functions are: abs, least, greatest, length, startswith, endswith, contains, "
    "concat; test the rest in the transaction and return hg.abort(...)"
)
TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "a key that is no column": (
        {"key": "nn"},
        "table 't': key: no column 'nn'; the columns are: id, n, s; did you mean 'n'?",
    ),
    "a key that is none": (
        {"key": None},
        "table 't': a key is a column name or a list of them, not None",
    ),
    "an empty key": ({"key": ""}, "table 't': a table needs a key"),
    "a name of two words": (
        {"name": "my table"},
        "table 'my table': a table's name is a plain word, such as 'accounts'",
    ),
    "no name": (
        {"name": None},
        "table None: a table's name is a plain word, such as 'accounts'",
    ),
    "a check of a text in capitals": (
        {"check": "upper(s) < 'B'"},
        f"table 't': check: no function 'upper' {FUNCTIONS}: \"upper(s) < 'B'\" at "
        "\"upper(s) < 'B'\"",
    ),
    "a check by a pattern of too many parts": (
        {"check": "s like 'a%b%c'"},
        "table 't': check: a pattern has % at its ends or once within, and no _ or backslash: "
        "\"s like 'a%b%c'\" at \"'a%b%c'\"",
    ),
    "a check of a number's length": (
        {"check": "length(n) < 10"},
        "table 't': check: length takes 1 text: 'length(n) < 10' at 'length(n) < 10'",
    ),
    "a check of a text and a number": (
        {"check": "s = 5"},
        "table 't': check: a text cannot be compared with a number: 's = 5' at '= 5'",
    ),
    "a check that is no condition": (
        {"check": "n"},
        "table 't': check: this is a number, and a condition is needed, as in n > 0: 'n' at 'n'",
    ),
    "a check with Python's and": (
        {"check": "n > 0 && id > 0"},
        "table 't': check: cannot read this (write AND): 'n > 0 && id > 0' at ' && id > 0'",
    ),
    "a check with double quotes": (
        {"check": 's = "new"'},
        "table 't': check: cannot read this (write a text in single quotes, a column without "
        "quotes or in backticks: `order`): 's = \"new\"' at ' \"new\"'",
    ),
    "a check that is a function": (
        {"check": len},
        "table 't': check: it is a text such as 'balance >= 0', not builtin_function_or_method",
    ),
    "defaults that are no dict": (
        {"defaults": [1]},
        "table 't': defaults is a dict {column: value}, not [1]",
    ),
    "a unique column that is none": (
        {"unique": ["ss"]},
        "table 't': unique: no column 'ss'; the columns are: id, n, s; did you mean 's'?",
    ),
    "references that are no dict": (
        {"references": ["n"]},
        "table 't': references is a dict {column: table}, not list",
    ),
    "a reference to nothing": (
        {"references": {"n": None}},
        "table 't': references: None is not a table; hand in the table, or its name",
    ),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_bad_table(what: str) -> None:
    options, words = TABLES[what]
    given = {"name": "t", "schema": "id bigint, n int, s string", "key": "id", **options}
    assert refusal(hg.DeclarationError, lambda: hg.Table(**given)) == words


STANDS_FOR = (
    "transaction 'pay': parameter 'row' needs a default that says what it stands for: "
    'table.at("column"), table.each("column") or hg.output("column type")'
)
TRANSACTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "no brackets": (
        lambda: hg.transaction(len),  # type: ignore[call-overload]
        "transaction 'len': @hg.transaction needs the columns of the event: "
        'write @hg.transaction(event="ts timestamp, amount double")',
    ),
    "no function": (
        lambda: hg.transaction(event="n int")(dict),
        "@hg.transaction(event=...) goes on a plain Python function, not on <class 'dict'>",
    ),
    "an event that is a list": (
        lambda: parameter(["n"], accounts.at("n")),
        f"transaction 'pay': event: {A_SCHEMA}, not list",
    ),
    "a name that is no text": (
        lambda: parameter("n bigint", accounts.at("n"), name=5),
        "a transaction's name is a text, not 5",
    ),
    "an event column that is none": (
        lambda: parameter("source bigint", accounts.at("sorce")),
        "transaction 'pay': parameter 'row': event: no column 'sorce'; the columns are: source; "
        "did you mean 'source'?",
    ),
    "too few columns": (
        lambda: stock.at("sku"),
        "table 'stock'.at('sku'): the key has 2 columns (sku, house), so name 2 event columns, "
        "not 1",
    ),
    "no column": (
        lambda: accounts.at(),
        "table 'accounts'.at(): the key has 1 column (id), so name 1 event column, not 0",
    ),
    "a column that is no text": (
        lambda: accounts.at(5),  # type: ignore[arg-type]
        "table 'accounts'.at(5): name the event's columns by their names, as texts, "
        "or give a def or a lambda that computes the key",
    ),
    "a mode that is none": (
        lambda: accounts.at("n", mode="rw"),
        "table 'accounts'.at('n'): mode is 'write' or 'read', not 'rw'",
    ),
    "a table in place of its rows": (
        lambda: parameter("n bigint", accounts),
        f"{STANDS_FOR}, as in accounts.at(...)",
    ),
    "nothing in place of rows": (lambda: parameter("n bigint", None), STANDS_FOR),
    "each over one key": (
        lambda: parameter("n bigint", accounts.each("n")),
        "transaction 'pay': parameter 'row': each('n') needs an array column, 'n' is a bigint",
    ),
    "a key of another type": (
        lambda: parameter("n string", accounts.at("n")),
        "transaction 'pay': parameter 'row': event column 'n' is a string, "
        "the key accounts.id a bigint",
    ),
    "an empty output": (
        lambda: hg.output(""),
        "output: the schema '' has no columns; write 'name type, ...'",
    ),
    "an output that is a list": (
        lambda: hg.output(["n"]),  # type: ignore[arg-type]
        f"output: {A_SCHEMA}, not list",
    ),
    "an output that is a column of every result": (
        lambda: hg.output("epoch bigint"),
        "output: column 'epoch' is a column of every result; choose another name",
    ),
    "an output that Python cannot name": (
        lambda: parameter("n bigint", hg.output("class int")),
        "transaction 'pay': output column 'class' is not a plain word",
    ),
}


@pytest.mark.parametrize("what", TRANSACTIONS)
def test_a_bad_transaction(what: str) -> None:
    attempt, words = TRANSACTIONS[what]
    assert refusal(hg.DeclarationError, attempt) == words


LONE = "\ud800"


def nothing(event: hg.Event) -> None:
    pass


UNWRITABLE: dict[str, Callable[[], object]] = {
    "default": lambda: hg.Table("t", f"id bigint, w string DEFAULT '{LONE}'", key="id"),
    "column": lambda: hg.Table("t", f"id bigint, `w{LONE}` string", key="id"),
    "check": lambda: hg.Table("t", "id bigint, w string", key="id", check=f"w <> '{LONE}'"),
    "event": lambda: hg.transaction(event=f"`id{LONE}` bigint")(nothing),
    "migration": lambda: hg.Migration(f"n{LONE}"),
    "added column": lambda: hg.Migration("n").add_column("t", f"w string DEFAULT '{LONE}'"),
    "new default": lambda: hg.Migration("n").set_default("t", "w", LONE),
    "new name": lambda: hg.Migration("n").rename_column("t", "w", LONE),
    "new check": lambda: hg.Migration("n").set_check("t", f"w <> '{LONE}'"),
    "new key": lambda: hg.Migration("n").add_unique("t", ["w", LONE]),
}


@pytest.mark.parametrize("what", UNWRITABLE)
def test_a_text_that_no_file_can_hold_is_refused_where_it_is_declared(what: str) -> None:
    with pytest.raises(hg.DeclarationError, match="lone surrogate"):
        UNWRITABLE[what]()
