"""Headgate: ACID transactions over streams, for PySpark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headgate.spark.session import choose_worker_interpreter as _choose_worker_interpreter

if TYPE_CHECKING:
    from headgate import errors as errors
    from headgate import testing as testing
    from headgate.compiling.actions import abort, decimal, delete
    from headgate.dataflow.handles import Aligned, FlowStream
    from headgate.dataflow.nodes import Dataflow
    from headgate.dataflow.procedures import Procedure, Trigger, on_insert, procedure
    from headgate.dataflow.streams import Stream, Window
    from headgate.dataflow.tx import Tx
    from headgate.dataflow.workers import Workers
    from headgate.durability import Retention
    from headgate.engine.declaring.applying import migrate
    from headgate.engine.declaring.migrations import Migration
    from headgate.engine.declaring.trial import Trial
    from headgate.engine.engine import Engine
    from headgate.engine.engine import open_engine as open
    from headgate.engine.metrics import Metrics, NodeMetrics, StreamMetrics
    from headgate.engine.prometheus import prometheus
    from headgate.engine.results import Result
    from headgate.engine.stream import EngineStream
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
    from headgate.query.answer import Answer
    from headgate.shards.resharding import Resharded, reshard
    from headgate.spark.progress import listen
    from headgate.spark.session import register
    from headgate.state.parameters import Event, Output, Row, Rows, Versions
    from headgate.state.table import Table
    from headgate.transactions import Transaction, output, transaction
    from headgate.web.client import connect

__version__ = "0.1.0"

__all__ = [
    "Aligned",
    "Answer",
    "ConflictError",
    "DamageError",
    "Dataflow",
    "DeclarationError",
    "Engine",
    "EngineStream",
    "Event",
    "FlowStream",
    "FormatError",
    "HeadgateError",
    "InputError",
    "InvariantError",
    "LimitError",
    "LockedError",
    "Metrics",
    "Migration",
    "NodeMetrics",
    "Output",
    "Procedure",
    "Resharded",
    "Result",
    "Retention",
    "Row",
    "Rows",
    "ServerError",
    "StoreError",
    "Stream",
    "StreamMetrics",
    "Table",
    "Transaction",
    "Trial",
    "Trigger",
    "Tx",
    "Versions",
    "Window",
    "Workers",
    "abort",
    "connect",
    "decimal",
    "delete",
    "listen",
    "migrate",
    "on_insert",
    "open",
    "output",
    "procedure",
    "prometheus",
    "register",
    "reshard",
    "transaction",
]

_MODULES = ("errors", "testing")  # public, too: `hg.errors`, `hg.testing.History`

# Where each public name lives. They are imported when first used, so that a Spark worker that only
# reads a store's files does not wait for the compiler to be imported.
_HOMES = {
    "dataflow.nodes": "Dataflow",
    "dataflow.handles": "Aligned FlowStream",
    "dataflow.procedures": "Procedure Trigger on_insert procedure",
    "dataflow.streams": "Stream Window",
    "dataflow.tx": "Tx",
    "dataflow.workers": "Workers",
    "durability": "Retention",
    "errors": (
        "ConflictError DamageError DeclarationError FormatError HeadgateError InputError "
        "InvariantError LimitError LockedError ServerError StoreError"
    ),
    "engine.engine": "Engine",
    "compiling.actions": "abort decimal delete",
    "engine.declaring.applying": "migrate",
    "engine.declaring.trial": "Trial",
    "engine.declaring.migrations": "Migration",
    "query.answer": "Answer",
    "engine.results": "Result",
    "engine.stream": "EngineStream",
    "engine.metrics": "Metrics NodeMetrics StreamMetrics",
    "engine.prometheus": "prometheus",
    "shards.resharding": "Resharded reshard",
    "spark.progress": "listen",
    "spark.session": "register",
    "state.parameters": "Event Output Row Rows Versions",
    "state.table": "Table",
    "transactions": "Transaction output transaction",
    "web.client": "connect",
}


if not TYPE_CHECKING:  # a checker knows the names above, and every other as a mistake

    def __getattr__(name: str) -> object:
        import importlib

        if name == "open":
            return importlib.import_module("headgate.engine.engine").open_engine
        if name in _MODULES:
            return importlib.import_module(f"headgate.{name}")
        for home, names in _HOMES.items():
            if name in names.split():
                return getattr(importlib.import_module(f"headgate.{home}"), name)
        from headgate.errors import did_you_mean

        message = f"module 'headgate' has no attribute {name!r}{did_you_mean(name, __all__)}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted(
        [*__all__, *_MODULES, "__all__", "__doc__", "__file__", "__path__", "__version__"]
    )


_choose_worker_interpreter()
