"""Naming: the tables and transactions that a user hands in, as objects or by their names.

An engine knows each by one definition. Another definition of the same name, as a notebook makes
when a cell runs again, is never taken for the known one, and the message tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.errors import DeclarationError, InputError, not_among
from headgate.state.schema import refuse_twins
from headgate.state.table import Table
from headgate.transactions import Transaction

AGAIN = "close the engine and open it with this one"


def by_name(items: Any, what: str, kind: type) -> dict[str, Any]:
    """What `hg.open` is given, by name: one thing or a list; a name that occurs twice is refused.

    >>> list(by_name(Table("seats", "id int", key="id"), "table", Table))
    ['seats']
    """
    made = "hg.Table(...)" if kind is Table else "@hg.transaction(event=...)"
    given = [items] if isinstance(items, kind) else items
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DeclarationError(
            f"{what}s= takes a list of what {made} makes, such as {what}s=[...]; "
            f"this is {_described(given)}"
        )
    found: dict[str, Any] = {}
    for item in given:
        if not isinstance(item, kind):
            raise DeclarationError(_wrong_item(item, what, made))
        name = str(getattr(item, "name", ""))
        if name in found:
            raise DeclarationError(_twice(item, found[name], what))
        found[name] = item
    if kind is Table:
        refuse_twins(found, "tables", f"{what}s=")
    return found


def _wrong_item(item: Any, what: str, made: str) -> str:
    if isinstance(item, Table | Transaction):
        mine = "table" if isinstance(item, Table) else "transaction"
        return f"{what}s= holds the {mine} {item.name!r}; hand it in as {mine}s=[...]"
    return f"{what}s= holds {_described(item)}, which is not a {what}; make one with {made}"


def _twice(item: Any, other: Any, what: str) -> str:
    if item is other or item == other:
        return f"the {what} {item.name!r} is in {what}s= twice; name it once"
    told = f": {difference(item, other)}" if isinstance(item, Table) else ""
    return f"two {what}s are called {item.name!r}{told}; rename one, or leave the older one out"


def find_table(given: Any, known: Mapping[str, Table]) -> Table:
    """A table of the engine, handed in as the object or by its name."""
    if not isinstance(given, str | Table):
        raise InputError(f"hand in a table of the engine or its name, not {_described(given)}")
    name = given if isinstance(given, str) else given.name
    if name not in known:
        raise InputError(f"no table {name!r} in this engine; {not_among(name, known, 'tables')}")
    found = known[name]
    if isinstance(given, Table) and given is not found and given != found:
        raise InputError(
            f"this table {name!r} is another definition than the one that the engine was opened "
            f"with: {difference(given, found)}; {AGAIN}, "
            f"or hand in the name {name!r} to use the engine's own"
        )
    return found


def find_transaction(given: Any, known: Mapping[str, Transaction]) -> Transaction:
    """A transaction of the engine, handed in as the object or by its name."""
    if not isinstance(given, str | Transaction):
        raise InputError(
            f"hand in a transaction of the engine or its name, not {_described(given)}"
            f"{_declared_as(given, known)}"
        )
    name = given if isinstance(given, str) else given.name
    found = known.get(name)
    if found is None:
        among = not_among(name, known, "engine's transactions")
        if isinstance(given, str):
            raise InputError(f"no transaction {name!r} in this engine; {among}")
        raise InputError(f"transaction {name!r} was not opened with this engine; {among}")
    if isinstance(given, Transaction) and given is not found:
        raise InputError(
            f"this transaction {name!r} is another definition than the one that the engine was "
            f"opened with, as when a cell runs again; {AGAIN}, "
            f"or hand in the name {name!r} to run the engine's own"
        )
    return found


def find_route(given: Any, known: Mapping[str, Transaction]) -> Any:
    """What `run` and `sink` take: a transaction, or a dict of them by the values of a column."""
    if isinstance(given, Mapping):
        return {value: find_transaction(one, known) for value, one in given.items()}
    if isinstance(given, str | Transaction):
        return find_transaction(given, known)
    raise InputError(
        "hand in a transaction or its name, or a dict {value: transaction} with route_by; "
        f"not {_described(given)}{_declared_as(given, known)}"
    )


def check_tables_known(
    transactions: Mapping[str, Transaction], tables: Mapping[str, Table]
) -> None:
    """Every table a transaction uses must be one of the engine's, by the same definition."""
    for transaction in transactions.values():
        for table in transaction.signature.tables:
            known = tables.get(table.name)
            if known is None:
                raise DeclarationError(
                    f"transaction {transaction.name!r} uses the table {table.name!r}, "
                    "which is not among the tables of this engine; add it to tables=[...]"
                )
            if known != table:
                raise DeclarationError(
                    f"transaction {transaction.name!r} uses another definition of the table "
                    f"{table.name!r} than the engine is opened with: {difference(table, known)}; "
                    "define the transaction again, after the table"
                )


def difference(given: Table, known: Table) -> str:
    """In what a table differs first from the known one of its name.

    >>> known = Table("seats", "id int", key="id")
    >>> difference(Table("seats", "id int, row int", key="id"), known)
    "columns 'id int, row int' instead of 'id int'"
    """
    others = _parts(known)
    for part, told in _parts(given).items():
        if told != others[part]:
            return f"{part} {told!r} instead of {others[part]!r}"
    return "it was declared otherwise"


def _parts(table: Table) -> dict[str, str]:
    return {
        "columns": table.schema.ddl,
        "key": ", ".join(table.key),
        "check": "" if table.check is None else table.check.text,
        "constraints": "; ".join(one.name for one in table.constraints),
    }


def _declared_as(given: Any, known: Mapping[str, Transaction]) -> str:
    """For the plain function behind a transaction, which is an easy thing to have in hand."""
    if callable(given) and getattr(given, "__name__", None) in known:
        return f"; {given.__name__!r} is one"
    return "; declare it with @hg.transaction(event=...)" if callable(given) else ""


def _described(given: Any) -> str:
    """A thing that was handed in, short enough for a message."""
    if isinstance(given, Table | Transaction):
        return f"the {type(given).__name__.lower()} {given.name!r}"
    if isinstance(given, str):
        return f"the text {given!r}" if len(given) <= 60 else "a text"
    if given is None:
        return "None"
    if callable(given) and hasattr(given, "__name__"):
        return f"the function {given.__name__!r}"
    name = type(given).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
