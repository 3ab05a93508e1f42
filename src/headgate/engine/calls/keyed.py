"""Keyed calls: each is run one time, however often and wherever it is sent again.

Those that came lately are rows of a table of the engine's own, logged with the epoch that ran the
call: a key is remembered exactly when the effect of its call is durable. The newest `CALLS_MAX` are
remembered, a new one takes the slot of the oldest; so neither memory nor snapshots grow with time.

Invariant: a key is either running, remembered with its result, or unknown; it is remembered before
it stops running, so that no moment is left in which it could be run again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT
from headgate.engine.calls.answers import columns_of
from headgate.engine.results import Result, as_results
from headgate.errors import ConflictError, InputError, shown
from headgate.state.objects import NULL_FAULT, fitted, unwrapped
from headgate.state.types import ColumnType, stored_value
from headgate.transactions import Transaction

TABLE = "__calls"
KEY = "__key"  # beside the columns of an event: the key of its call, null when it has none
DIGEST = "__digest"
CALLS_MAX = 1 << 17
KEY_CHARACTERS_MAX = 255
# What most calls hand in, and is its own form: a column of the kind takes just this value.
_PLAIN = {"int": int, "bigint": int, "double": float, "string": str, "boolean": bool}
_TIMES = {"timestamp": datetime.datetime, "date": datetime.date}
_BIG = 1 << 63

_SCHEMA = pa.schema(
    [
        (SLOT, pa.int64()),
        (ALIVE, pa.bool_()),
        ("number", pa.int64()),
        ("key", pa.string()),
        ("digest", pa.string()),
        ("result", pa.string()),
    ]
)


class KeyedCall(NamedTuple):
    """A call that was applied: its number among those with a key, and how it ended."""

    number: int
    key: str
    digest: str
    result: str

    def answer(self) -> Result:
        return Result(_decode(self.result))


class KeyedCalls:
    """The keyed calls of one engine, newest last; changed under the engine's lock."""

    def __init__(self, count_max: int | None = None) -> None:
        self._count_max = CALLS_MAX if count_max is None else count_max
        self._slots: dict[str, int] = {}
        self._ring: dict[int, KeyedCall] = {}
        self._next = 0

    @property
    def count(self) -> int:
        """One more than the highest slot ever used."""
        return len(self._ring)

    def find(self, key: str, digest: str) -> Result | None:
        """The result of the call with this key; ConflictError when that was another call."""
        slot = self._slots.get(key)
        known = None if slot is None else self._ring[slot]
        if known is None or known.key != key:  # a newer one may just have taken its slot
            return None
        check_same(key, known.digest, digest)
        return known.answer()

    def note(self, calls: Iterable[tuple[str, str, Result]]) -> dict[str, pa.RecordBatch]:
        """Remember keys, digests and results, and return the changes as the log takes them."""
        changed: dict[int, KeyedCall] = {}
        for key, digest, result in calls:
            one = KeyedCall(self._next, key, digest, _encode(result))
            changed[self._put(one)] = one
        return {TABLE: _changes(changed.items())} if changed else {}

    def _put(self, one: KeyedCall) -> int:
        slot = one.number % self._count_max
        forgotten = self._ring.get(slot)
        if forgotten is not None and self._slots.get(forgotten.key) == slot:
            del self._slots[forgotten.key]
        self._ring[slot] = one
        self._slots[one.key] = slot
        self._next = one.number + 1
        return slot

    def restore(self, image: pa.Table | pa.RecordBatch | None) -> None:
        """Take the rows that recovery found, of a snapshot or of an epoch of the log."""
        if image is None:
            return
        rows = image.select(["number", "key", "digest", "result"]).to_pylist()
        for row in sorted(rows, key=lambda row: int(row["number"])):
            self._put(KeyedCall(**row))

    def image(self) -> Iterator[pa.RecordBatch]:
        """All of them with their slots, for a snapshot."""
        yield _changes(self._ring.items()).drop_columns([ALIVE])


def check_same(key: str, before: str, now: str) -> None:
    """ConflictError unless both are the digest of one call."""
    if before != now:
        raise ConflictError(
            f"the key {key!r} was used for another call: a key stands for one call with the same "
            "columns; choose a new one"
        )


def checked_key(key: Any) -> str:
    """The key; InputError unless it can be a call's key."""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise InputError(f"a call's key is a text of 1 to {KEY_CHARACTERS_MAX} characters")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InputError(f"a call's key is a text of UTF-8, not {shown(key)}") from None
    return key


def digest_of(
    transaction: Transaction, columns: Mapping[str, Any], called: str | None = None
) -> str:
    """What tells one call from another: the transaction and the event in its declared types.

    `called` is what the transaction was called first, where it has another name now.
    """
    values = [_canonical(column.type, columns.get(column.name)) for column in transaction.event]
    text = repr((called or transaction.name, values))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _canonical(kind: ColumnType, value: Any) -> Any:
    """One form for all that the engine takes for the same value: 5 and 5.0, a time in any zone.

    What it would reject or refuse has a form of its own: it is never answered for a value that is
    merely close to it, such as 2**53 + 1 for the double 2**53.
    """
    given = type(value)
    if given is _PLAIN.get(kind.kind) and (given is not int or -_BIG <= value < _BIG):
        return value
    if given is _TIMES.get(kind.kind):
        return stored_value(kind, value, "")
    value = unwrapped(value)
    if kind.element is not None and isinstance(value, list | tuple | np.ndarray):
        return [_canonical(kind.element, item) for item in value]
    try:
        found, fault = fitted(value, kind)
    except TypeError:
        return ("refused", type(value).__name__, shown(value))
    if fault == NULL_FAULT:
        return None
    if fault:  # the decimal form of an int has a limit, the hexadecimal one has none
        return ("rejected", hex(value) if isinstance(value, int) else repr(value))
    return stored_value(kind, found, "") if kind.kind == "decimal" else found


def with_keys(
    events: pa.Table, keys: Sequence[str | None], digests: Sequence[str | None]
) -> pa.Table:
    """Events that carry the keys of their calls to the commit, and into a logged input."""
    events = events.append_column(KEY, pa.array(keys, pa.string()))
    return events.append_column(DIGEST, pa.array(digests, pa.string()))


def keyed(
    events: pa.Table, rows: Iterable[int], results: pa.Table
) -> Iterator[tuple[str, str, Result]]:
    """Key, digest and result of each keyed event; `rows` are the event rows by position."""
    if KEY not in events.column_names:
        return
    keys, digests = events.column(KEY).to_pylist(), events.column(DIGEST).to_pylist()
    for row, result in zip(rows, as_results(results), strict=True):
        if keys[row] is not None:
            yield keys[row], digests[row], result


def keyed_few(
    keys: Sequence[tuple[str, str] | None], results: Callable[[], Sequence[Result]]
) -> Iterator[tuple[str, str, Result]]:
    """Key, digest and result of those of few calls that have a key."""
    if not any(keys):
        return  # the results may wait until they are durable
    for key, result in zip(keys, results(), strict=True):
        if key is not None:
            yield *key, result


def _changes(rows: Iterable[tuple[int, KeyedCall]]) -> pa.RecordBatch:
    found = sorted(rows, key=lambda row: row[0])
    columns = [
        [slot for slot, _ in found],
        [True] * len(found),
        [one.number for _, one in found],
        [one.key for _, one in found],
        [one.digest for _, one in found],
        [one.result for _, one in found],
    ]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _encode(result: Result) -> str:
    return _encoder(columns_of(result))


def _decode(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text, object_hook=_untagged)
    return found


def _tagged(value: Any) -> dict[str, str]:
    """A value that JSON lacks, with its type; its text is exact."""
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime.datetime):
        return {"timestamp": value.astimezone(datetime.UTC).isoformat()}
    if isinstance(value, datetime.date):
        return {"date": value.isoformat()}
    raise InputError(f"a result holds a {type(value).__name__}")


def _untagged(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        (name, text), *_ = found.items()
        if name in _UNTAG and isinstance(text, str):
            return _UNTAG[name](text)
    return found


_encoder = json.JSONEncoder(default=_tagged, separators=(",", ":")).encode  # made once

_UNTAG: Mapping[str, Any] = {
    "decimal": Decimal,
    "timestamp": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
}


class RunningCall:
    """A call that runs now; a promise is made only when someone else asks for its result."""

    __slots__ = ("digest", "owner", "promise")

    def __init__(self, digest: str, owner: object) -> None:
        self.digest: str = digest
        self.owner: object = owner  # who is to hand it in
        self.promise: Future[Result] | None = None


class Once:
    """The keyed calls of one engine: those that run now, before those that it remembers."""

    def __init__(self, calls: KeyedCalls) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._running: dict[str, RunningCall] = {}

    def claim(self, key: str | None, digest: str, owner: object) -> Future[Result] | None:
        """The promise of the result when the call is known; None when the caller is to run it.

        Who is to run it must call `keep`, `fail` or, when it is not handed in, `abandon` in the
        end.
        """
        key = checked_key(key)
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                check_same(key, running.digest, digest)
                running.promise = running.promise or Future()
                return running.promise
            known = self._calls.find(key, digest)
            if known is None:
                self._running[key] = RunningCall(digest, owner)
                return None
        promise: Future[Result] = Future()
        promise.set_result(known)
        return promise

    def keep(self, key: str, result: Result) -> None:
        """The call was run and its epoch is durable."""
        promise = self._end(key)
        if promise is not None:
            promise.set_result(result)

    def fail(self, key: str, error: BaseException) -> None:
        """The call was not run, or no one can say whether it was."""
        promise = self._end(key)
        if promise is not None:
            promise.set_exception(error)

    def abandon(self, key: str, owner: object, error: BaseException) -> None:
        """The call was not handed in, so it does not run; of no effect where it is another's."""
        with self._lock:
            running = self._running.get(key)
            if running is None or running.owner is not owner:
                return
            del self._running[key]
        if running.promise is not None:
            running.promise.set_exception(error)

    def _end(self, key: str) -> Future[Result] | None:
        with self._lock:
            ended = self._running.pop(key, None)
        return None if ended is None else ended.promise
