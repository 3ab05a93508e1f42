"""Mistakes that a type checker tells, each with what mypy says of it in strict mode."""

from __future__ import annotations

import headgate as hg
from headgate import Nothing  # E: Module "headgate" has no attribute "Nothing"

accounts = hg.Table("accounts", "id bigint", key="id")
hg.Tabel  # E: Module has no attribute "Tabel"; maybe "Table"?
hg.Table("t", 5, key="id")  # E: Argument 2 to "Table" has incompatible type "int"; expected "str"
hg.Table("t", "id bigint")  # E: Missing positional argument "key" in call to "Table"


@hg.transaction  # E: Argument 1 to "transaction" has incompatible type
def bare(event: hg.Event) -> None: ...


@hg.transaction(event="id bigint")
def swapped(
    event: hg.Event,
    row: hg.Rows = accounts.at("id"),  # E: Incompatible default for parameter "row"
) -> None:
    event.id = 3  # E: "Event" has no attribute "id"
    row.balance = 5  # E: "Rows" has no attribute "balance"
    reason = hg.abort("no")  # E: "abort" does not return a value


def use(engine: hg.Engine, answer: hg.Answer) -> None:
    engine.cal(swapped, id=1)  # E: "Engine" has no attribute "cal"; maybe "call"?
    engine.call(5, id=1)  # E: Argument 1 to "call" of "Engine" has incompatible type "int"
    engine.run(swapped, [], order_by=5)  # E: Argument "order_by" to "run" of "Engine" has
    engine.run(swapped, [], isolaton="PL3")  # E: Unexpected keyword argument "isolaton"
    swapped("text")  # E: Argument 1 to "__call__" of "Transaction" has incompatible type "str"
    number: int = answer.rows()  # E: Incompatible types in assignment
    hg.open(None, tables="accounts")  # E: Argument "tables" to "open_engine" has incompatible
    hg.connect(5)  # E: Argument 1 to "connect" has incompatible type "int"
