"""Asking: SQL over a store's tables by Spark, whose tasks read them: they never come to the driver.

A question has a session of its own: its views are the tables of one epoch over the data source, a
partition for each shard, and its settings are those under which Spark means what DuckDB means. What
DuckDB takes for granted and Spark does not is written into the text: where nulls are in an order.
Invariant: only a query runs, over the tables of the store; what comes to the driver is its answer.
"""

from __future__ import annotations

import datetime
import functools
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException

from headgate.durability.reader import StoreReader
from headgate.errors import InputError, LimitError
from headgate.query.answer import Answer
from headgate.query.connections import shared
from headgate.query.sql import Limit, Parameters, current_limit
from headgate.query.store_tables import (
    ALL_STREAMS,
    RESULT_COLUMNS,
    RESULTS,
    checked_epoch,
    tables_of,
)
from headgate.spark.selection import spark_schema
from headgate.spark.session import register, start_session
from headgate.state.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT_SESSIONS_MAX = 4  # to make one takes longer than many a query
SETTINGS = {
    "spark.sql.ansi.enabled": "true",  # what overflows is an error, not another number
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}


class Questions:
    """Asks one store's tables in sessions beside the user's."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._kept: list[SparkSession] = []

    def ask(self, store: StoreReader, query: str, parameters: Parameters, epoch: int) -> pa.Table:
        """What a query finds in the tables of one epoch, which the caller holds."""
        text, parameters = _with_times(in_words_of_spark(query), parameters)
        limit = current_limit() or Limit()
        with self._session() as session, limit.watching(_Stopper(session)):
            names = _show(session, store, text, epoch)
            try:
                return _answer(session, text, parameters, limit)
            except PySparkException as error:
                limit.check()
                _raise_if_of_query(error, tables_of(store, epoch))
                raise
            finally:
                for name in names:
                    session.catalog.dropTempView(name)

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """A session that no other question has; one in which anything failed is not kept."""
        with self._lock:
            kept = self._kept.pop() if self._kept else None
        session = self._spark.newSession() if kept is None else kept
        with _active(session):
            if kept is None:
                _settle(session)
            try:
                yield session
            except BaseException:
                session.interruptAll()  # a Ctrl-C leaves no job behind
                raise
        with self._lock:
            if len(self._kept) < KEPT_SESSIONS_MAX:
                self._kept.append(session)


def ask_store(store: StoreReader, query: str, epoch: int | None) -> Answer:
    """Ask the tables of a store in its files, with a Spark of this machine for just that."""
    with tempfile.TemporaryDirectory(prefix="headgate-sql-") as folder, store.hold():
        at = checked_epoch(store, epoch)
        session = start_session("headgate sql", Path(folder) / "spark.log")
        try:
            return Answer(Questions(session).ask(store, query, None, at), at, "spark")
        finally:
            session.stop()


def _settle(session: SparkSession) -> None:
    """Let a new session be one for questions."""
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    # Times are taken apart, and texts read as times, as DuckDB would do it here.
    session.conf.set("spark.sql.session.timeZone", _zone())
    register(session)


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Let this be the session of the thread: Spark looks for sources in that one."""
    jvm: Any = session.sparkContext._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


class _Stopper:
    """A session as a limit knows it: something that can be interrupted."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def interrupt(self) -> None:
        self._session.interruptAll()


@functools.cache
def _zone() -> str:
    with shared.one() as connection:
        row = connection.execute("select current_setting('TimeZone')").fetchone()
    return str(row[0]) if row else "UTC"


def _show(session: SparkSession, store: StoreReader, text: str, epoch: int) -> list[str]:
    """Make the tables of a store that a query of this text can name views of the session."""
    declared, words = tables_of(store, epoch), _words_of(text)
    names = [name for name in declared if name.lower() in words]
    for name in names:
        schema = Schema.parse(declared[name]["columns"])
        chosen = _columns_in(text, words, schema, declared[name]["key"])
        reader = session.read.format("headgate").option("table", name).option("epoch", epoch)
        frame = reader.schema(spark_schema(chosen)).load(store.path)
        frame.createOrReplaceTempView(f"`{name}`")
    if RESULTS in words and RESULTS not in {name.lower() for name in declared}:
        _results(session, store, epoch).createOrReplaceTempView(RESULTS)
        names.append(RESULTS)
    return names


def _results(session: SparkSession, store: StoreReader, epoch: int) -> DataFrame:
    if not store.declared().get("streams"):
        return session.createDataFrame([], spark_schema(Schema.parse(RESULT_COLUMNS)))
    reader = session.read.format("headgate").option("stream", ALL_STREAMS)
    return reader.option("endingEpoch", epoch).load(store.path)


def _columns_in(text: str, words: frozenset[str], schema: Schema, key: list[str]) -> Schema:
    """The columns of a table that a query can see: those that it names, or all where it may mean
    all of them. Of no column there are rows, too: then it is those of the key."""
    means_all = "*" in _COUNTS.sub("", text) or "natural" in words or "all" in words
    named = tuple(one for one in schema if means_all or one.name.lower() in words)
    return Schema(named or tuple(one for one in schema if one.name in key))


def _words_of(text: str) -> frozenset[str]:
    """The words of a text, in lower case; also in quotes and comments, since too many is safe."""
    return frozenset(re.findall(r"\w+", text.lower())) | frozenset(
        quoted.lower() for quoted in re.findall(r'["`]([^"`]*)["`]', text)
    )


def _answer(session: SparkSession, text: str, parameters: Parameters, limit: Limit) -> pa.Table:
    given: Any = dict(parameters) if isinstance(parameters, Mapping) else list(parameters or ())
    # By Spark's grammar only a query stands in brackets: a command is refused before it runs.
    session.sql(f"select * from (\n{text}\n) limit 0", args=given)
    frame = session.sql(text, args=given)
    if limit.rows_max is not None:
        frame = frame.limit(limit.rows_max + 1)
    found = frame.toArrow()
    if limit.rows_max is not None:
        limit.read(found.to_reader())
    return found.cast(pa.schema([_as_duckdb_has_it(field) for field in found.schema]))


def _as_duckdb_has_it(field: pa.Field) -> pa.Field:
    """A column of an answer: it may be null, whatever Spark knows of this one, and times are in
    the zone of this machine."""
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        kind = pa.timestamp(kind.unit, _zone())
    return pa.field(field.name, kind)


def _raise_if_of_query(error: PySparkException, tables: Iterable[str]) -> None:
    """Say what is wrong with a query in our words; what is wrong with the cluster is not."""
    said = str(error).strip().partition("\n")[0]
    if "maxResultSize" in said:
        raise LimitError(
            f"the answer is larger than Spark hands to a driver: {said}; ask for less, or give the "
            "session more of spark.driver.maxResultSize"
        ) from None
    condition = error.getCondition() or _OF_CLUSTER[0]
    if isinstance(error, AnalysisException) or not condition.startswith(_OF_CLUSTER):
        there = f"\nThe tables are: {', '.join(tables)}" if "NOT_FOUND" in condition else ""
        raise InputError(f"the query cannot run by Spark SQL: {said}{there}") from None


_OF_CLUSTER = (
    "INTERNAL",
    "PYTHON",
)  # how the conditions of errors begin that no query is to blame for


# --- in words of Spark ----------------------------------------------------------------------------
# DuckDB has nulls at the end of every order, Spark at the begin of a rising one; a backslash in a
# text is one to DuckDB, and a quote is written twice; parameters are $name to it, and :name to
# Spark. A query is rewritten token by token, so that what stands in quotes and comments stays.

_COUNTS = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_TOKENS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"""
    r"""|\$[^\W\d]\w*|\|>|\w+|\s+|.""",
    re.DOTALL,
)
# The same in words of Spark, where a backslash in a text stands before what is meant, and a
# parameter begins with a colon.
_ASKED_TOKENS = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"""
    r"""|::|:[^\W\d]\w*|.""",
    re.DOTALL,
)
_IGNORED = re.compile(r"\s+|--.*|/\*.*", re.DOTALL)
_OPENING, _CLOSING = frozenset("(["), frozenset(")]")
_BEHIND_AN_ORDER = {
    "limit", "offset", "fetch", "union", "intersect", "except", "minus", "rows", "range", "groups",
    "window", "|>", ",", ";",
}  # fmt: skip


def in_words_of_spark(query: str) -> str:
    """A query as Spark has to be asked for what DuckDB would answer.

    >>> in_words_of_spark("select * from t where a = $x order by b desc, c nulls first limit 1;")
    'select * from t where a = :x order by b desc nulls last, c nulls first limit 1'
    """
    found: list[str] = []
    orders: list[int | None] = [None]  # by depth of brackets: where an item of an order begins
    last = ""  # the last token that means something, in lower case
    for token in _TOKENS.findall(query.rstrip("; \n\t")):
        if _IGNORED.fullmatch(token):
            found.append(token)
            continue
        word = token.lower()
        begin = orders[-1]
        is_behind = word in _CLOSING or word in _BEHIND_AN_ORDER
        if begin is not None and is_behind and _end_item(found, begin):
            orders[-1] = None
        if word in _OPENING:
            orders.append(None)
        elif word in _CLOSING and len(orders) > 1:
            orders.pop()
        found.append(_in_words_of_spark(token))
        if (last, word) == ("order", "by") or (word == "," and begin is not None):
            orders[-1] = len(found)
        last = word
    if orders[-1] is not None:
        _end_item(found, orders[-1])
    return "".join(found)


def _in_words_of_spark(token: str) -> str:
    if token.startswith("$") and len(token) > 1:
        return f":{token[1:]}"
    if not token.startswith("'") or len(token) < 2:
        return token
    text = token[1:-1].replace("''", "'").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def _with_times(text: str, parameters: Parameters) -> tuple[str, Parameters]:
    """A query with those of its parameters that are times as literals, and the others.

    PySpark hands times over as those of Java's old calendar and of this machine's clock: an hour
    that comes twice is one there, and days before 1582 are others.
    """
    by_name = isinstance(parameters, Mapping)
    given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters or ())
    shown = {
        f":{name}" if by_name else name: literal
        for name, value in (given.items() if isinstance(given, dict) else enumerate(given))
        if (literal := _time_literal(value)) is not None
    }
    if not shown:
        return text, parameters
    found, place = list[str](), 0
    tokens = _ASKED_TOKENS.findall(text)
    for token in tokens:
        key = token if by_name else place
        is_parameter = token[0] == ":" if by_name else token == "?"
        found.append(shown.get(key, token) if is_parameter else token)
        place += token == "?"
    if isinstance(given, dict):
        return "".join(found), {k: v for k, v in given.items() if f":{k}" not in shown}
    return "".join(found), [value for n, value in enumerate(given) if n not in shown]


def _time_literal(value: Any) -> str | None:
    """A time as Spark writes it, to the microsecond; None of all else."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ', timespec='microseconds')}'"
        since = value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return f"timestamp_micros({since // datetime.timedelta(microseconds=1)}L)"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    return None


def _end_item(found: list[str], begin: int) -> bool:
    """Say where nulls are behind an item of an order that does not; whether it was one."""
    places = [place for place in range(begin, len(found)) if not _IGNORED.fullmatch(found[place])]
    if not places:
        return False  # a column that is called like what could end the order
    said = [found[place].lower() for place in places[-2:]]
    if said[:1] != ["nulls"]:
        found[places[-1]] += " nulls last"
    return True
