"""The target: what a server is a face of: an engine, or a store that another process writes.

Both answer the same questions about tables; only an engine runs transactions. A user names a
store's folder, or an engine in a program as Python does, `package.module:engine`, or by its file,
`bank.py:engine`; the name behind the colon is an engine or a function that opens one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pyarrow as pa

from headgate.durability import StoreReader
from headgate.durability.format import MANIFEST_NAME
from headgate.engine.calls.calling import Calls
from headgate.engine.declaring.declarations import read_table as declared_table
from headgate.engine.engine import Engine
from headgate.engine.metrics import Metrics
from headgate.errors import HeadgateError, InputError, StoreError
from headgate.query.sql import named_in
from headgate.query.store_tables import RESULTS, gather_store, query_store, tables_of
from headgate.state.table import Table
from headgate.transactions import Transaction
from headgate.web.limits import Refused

Tables = Mapping[str, pa.Table]
KEPT_TABLES_MAX = 16
KEPT_BYTES_MAX = 1 << 30
MISSING = (
    "there is no store where this server reads one: its folder was moved or removed; try again "
    "when it is back"
)
LOG = logging.getLogger("headgate.web")


class Served(Protocol):
    """What a server can ask for; every method may be called from any thread."""

    @property
    def tables(self) -> Mapping[str, Table]: ...

    @property
    def transactions(self) -> Mapping[str, Transaction]: ...

    @property
    def streams(self) -> Mapping[str, str]:
        """The names of the transactions that have results, each with their columns."""
        ...

    def check(self) -> None:
        """An error when it cannot serve any more."""
        ...

    def epoch(self) -> int:
        """The newest epoch."""
        ...

    def metrics(self) -> Metrics | None:
        """What the engine counts; None of a store that another process writes."""
        ...

    def counts(self) -> Mapping[str, int]:
        """How many rows each table has, as far as that is known at no cost."""
        ...

    def gather(self, query: str, epoch: int | None) -> tuple[Tables, int]:
        """The tables that a query can read, and the one epoch that they are of."""
        ...

    def get(self, table: str, key: tuple[Any, ...]) -> Mapping[str, Any] | None: ...

    def reader(self) -> StoreReader:
        """Where the recorded results are; Refused when nothing is recorded."""
        ...

    @property
    def calls(self) -> Calls | None:
        """Where calls are handed in; None where there are no transactions."""
        ...

    def close(self) -> None: ...


class ServedEngine:
    """An engine of this process: everything."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader: StoreReader | None = None

    @property
    def tables(self) -> Mapping[str, Table]:
        return self._engine.tables

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        return self._engine.transactions

    @property
    def streams(self) -> Mapping[str, str]:
        if self._engine.path is None:
            return {}
        return _streams(StoreReader.open(self._engine.path))

    def check(self) -> None:
        if self._engine.stopped is not None:
            raise StoreError(f"the engine is stopped: {self._engine.stopped}; open it again")

    def epoch(self) -> int:
        return self._engine.epoch

    def metrics(self) -> Metrics | None:
        return self._engine.metrics()

    def counts(self) -> Mapping[str, int]:
        return self._engine.counts()

    def gather(self, query: str, epoch: int | None) -> tuple[Tables, int]:
        return self._engine.gather(query, epoch)

    def get(self, table: str, key: tuple[Any, ...]) -> Mapping[str, Any] | None:
        return self._engine.get(table, key[0] if len(key) == 1 else key)

    def reader(self) -> StoreReader:
        path = self._engine.path
        if path is None:
            raise Refused(
                409, "no_log", "this engine is in memory only and records no results to follow"
            )
        if self._reader is None:
            self._reader = StoreReader.open(path)
        return self._reader

    @property
    def calls(self) -> Calls | None:
        return self._engine.calls

    def close(self) -> None:
        self._engine.close()


class ServedStore:
    """A store's files, read beside its writer or without one: queries only.

    Its folder may be moved away and come back: until then it is not there, which is no error of
    who asks and no damage.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._is_missing = False
        self._lock = threading.Lock()
        self._reader = StoreReader.open(path)
        self._tables: dict[str, Table] = {}
        self._declared: Any = None
        self._kept: OrderedDict[tuple[str, int, str], pa.Table] = OrderedDict()

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables as declared now: a writer may add some while we run."""
        with self._there():
            declared = self._fresh().declared().get("tables", {})
        with self._lock:
            if declared != self._declared:
                self._tables = {name: declared_table(name, one) for name, one in declared.items()}
                self._declared = declared
            return self._tables

    def _fresh(self) -> StoreReader:
        return StoreReader.open(self._path)

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        """Refused for whatever fails while the store is not where it was; its log says where."""
        try:
            yield
        except HeadgateError as error:
            if (self._path / MANIFEST_NAME).exists():
                raise
            if not self._is_missing:
                LOG.warning("there is no store at %s any more; requests get 503", self._path)
            self._is_missing = True
            raise Refused(503, "no_store", MISSING, retry_after="1") from error
        if self._is_missing:
            self._is_missing = False
            LOG.warning("the store at %s is there again", self._path)

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        return {}

    @property
    def streams(self) -> Mapping[str, str]:
        with self._there():
            return _streams(self._fresh())

    def check(self) -> None:
        self.epoch()

    def epoch(self) -> int:
        with self._there():
            return self._reader.last_epoch()

    def metrics(self) -> Metrics | None:
        return None

    def counts(self) -> Mapping[str, int]:
        return {}

    def gather(self, query: str, epoch: int | None) -> tuple[Tables, int]:
        """The tables in its files; what was read lately for the same epoch is not read again."""
        with self._there():
            store = self._fresh()
            with store.hold():
                found, at = gather_store(store, (), epoch)
                for name in named_in(query, [*tables_of(store, at), RESULTS]):
                    found[name] = self._read(store, name, at)
            return found, at

    def _read(self, store: StoreReader, name: str, epoch: int) -> pa.Table:
        key = name, epoch, repr(store.manifest)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        table = gather_store(store, (name,), epoch)[0][name]
        with self._lock:
            self._kept[key] = table
            while len(self._kept) > KEPT_TABLES_MAX or self._kept_bytes() > KEPT_BYTES_MAX:
                self._kept.popitem(last=False)
        return table

    def _kept_bytes(self) -> int:
        return sum(table.nbytes for table in self._kept.values())

    def get(self, table: str, key: tuple[Any, ...]) -> Mapping[str, Any] | None:
        declared = self.tables[table]
        where = " and ".join(f'"{name}" = ?' for name in declared.key)
        query = f'select * from "{table}" where {where}'
        with self._there():
            rows = query_store(self._fresh(), query, list(key)).dicts()
        return rows[0] if rows else None

    def reader(self) -> StoreReader:
        return self._reader

    @property
    def calls(self) -> Calls | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


def _streams(reader: StoreReader) -> dict[str, str]:
    declared = reader.declared().get("streams", {})
    return {name: one["results"] for name, one in declared.items()}


# --- what a user names ----------------------------------------------------------------------------


def open_target(text: str) -> Served:
    """What the text names, opened; InputError that says what was looked for."""
    if (Path(text) / MANIFEST_NAME).exists():
        return ServedStore(Path(text))
    if ":" not in text:
        raise InputError(
            f"there is no store at {os.path.abspath(text)}; name a store's folder, or an engine "
            "as package.module:engine or bank.py:engine"
        )
    return ServedEngine(open_program(text))


def open_program(text: str) -> Engine:
    """The engine that the text names, as package.module:engine or bank.py:engine."""
    found = load_named(text, "engine")
    if found is not None and not isinstance(found, Engine) and callable(found):
        found = found()
    if not isinstance(found, Engine):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise InputError(f"{text} names {kind}; name an engine, or a function that opens one")
    return found


def load_named(text: str, what: str) -> Any:
    """What stands in a program under the name behind the colon; None when nothing does."""
    module, colon, name = text.rpartition(":")
    if not colon:
        raise InputError(
            f"{text} names no {what}; name it as package.module:{what} or bank.py:{what}"
        )
    return getattr(_import(module), name, None)


def _import(module: str) -> ModuleType:
    try:
        return _import_file(Path(module)) if module.endswith(".py") else _import_name(module)
    except HeadgateError:
        raise
    except ImportError as error:
        raise InputError(f"cannot import {module!r}: {error}") from error


def _import_name(module: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(module)


def _import_file(path: Path) -> ModuleType:
    if not path.exists():
        raise InputError(f"there is no program at {os.path.abspath(path)}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python program")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # functions that are compiled are looked up by module
    spec.loader.exec_module(module)
    return module
