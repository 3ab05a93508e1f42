"""Headgate: ACID transactions over streams, for PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.spark.session import choose_worker_interpreter as _choose_worker_interpreter

if TYPE_CHECKING:
    from headgate.durability import Retention
    from headgate.engine import Engine
    from headgate.engine import open_engine as open
    from headgate.errors import (
        ConflictError,
        DamageError,
        DeclarationError,
        FormatError,
        HeadgateError,
        InputError,
        InvariantError,
        LimitError,
        LockedError,
        ServerError,
        StoreError,
    )
    from headgate.execution.actions import abort, decimal, delete
    from headgate.migrating import Trial, migrate
    from headgate.migrations import Migration
    from headgate.query.answer import Answer
    from headgate.results import Result
    from headgate.spark.session import register
    from headgate.state.table import Table
    from headgate.transactions import Transaction, output, transaction
    from headgate.web.client import connect

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "ConflictError",
    "DamageError",
    "DeclarationError",
    "Engine",
    "FormatError",
    "HeadgateError",
    "InputError",
    "InvariantError",
    "LimitError",
    "LockedError",
    "Migration",
    "Result",
    "Retention",
    "ServerError",
    "StoreError",
    "Table",
    "Transaction",
    "Trial",
    "abort",
    "connect",
    "decimal",
    "delete",
    "migrate",
    "open",
    "output",
    "register",
    "transaction",
]

# Where each public name lives. They are imported when first used, so that a Spark worker that only
# reads a store's files does not wait for the compiler to be imported.
_HOMES = {
    "durability": "Retention",
    "errors": (
        "ConflictError DamageError DeclarationError FormatError HeadgateError InputError "
        "InvariantError LimitError LockedError ServerError StoreError"
    ),
    "engine": "Engine",
    "execution.actions": "abort decimal delete",
    "migrating": "Trial migrate",
    "migrations": "Migration",
    "query.answer": "Answer",
    "results": "Result",
    "spark.session": "register",
    "state.table": "Table",
    "transactions": "Transaction output transaction",
    "web.client": "connect",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "open":
        return importlib.import_module("headgate.engine").open_engine
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"headgate.{home}"), name)
    raise AttributeError(f"module 'headgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


_choose_worker_interpreter()
