"""Rerun: a batch's input in the log, with all it takes to run it again through the same code.

Weak recovery logs what came in, not what changed. It is right only for the code that ran it first,
so every record carries that code's fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.compiling.cache import code_fingerprint, signature_form
from headgate.durability import Commit
from headgate.engine.calls.keyed import DIGEST, KEY
from headgate.engine.events import describe_carry, read_carry
from headgate.engine.results import with_epoch
from headgate.engine.routing import Route
from headgate.engine.terms import Terms
from headgate.errors import (
    DamageError,
    DeclarationError,
    InputError,
    InvariantError,
    StoreError,
    shown,
)
from headgate.state.fitting import one_array
from headgate.transactions import Transaction

_TERMS = b"headgate.plan"  # as stores of every version have it


def check_recovery(recovery: Any, changed_code: Any) -> None:
    """Refuse words for recovery that mean nothing."""
    if recovery not in ("strong", "weak") or changed_code not in ("refuse", "accept"):
        raise InputError(
            f"recovery is 'strong' or 'weak', changed_code 'refuse' or 'accept'; "
            f"not {shown(recovery)}, {shown(changed_code)}"
        )


def fingerprint_of(transactions: Iterable[Transaction]) -> str:
    """A digest of the transactions' code and declarations, whatever runs them."""
    signatures = [transaction.signature for transaction in transactions]
    declared = tuple(signature_form(one) for one in signatures)
    keys = [function for one in signatures for function in one.key_functions]
    mark = code_fingerprint(declared, tuple(one.function for one in signatures), *keys)
    if mark is None:
        raise DeclarationError(
            "weak recovery needs transactions whose code can be fingerprinted; one of them refers "
            "to an object that cannot: pass it as a constant, or open with recovery='strong'"
        )
    return mark


def with_terms(events: pa.Table, terms: Terms) -> pa.RecordBatch:
    """The needed columns of the events as one batch that says how they were run."""
    routes = [[value, transaction.name] for value, transaction in terms.route.values]
    words = {
        "transactions": [transaction.name for transaction in terms.route.transactions],
        "routes": routes,
        "route_by": terms.route.column,
        "order_by": [column.name for column in terms.order_by],
        "watermark_us": terms.watermark_us,
        "late": terms.late,
        "name": terms.name,
        "updates": terms.updates,
        "carry": describe_carry(terms.carried),
    }
    if terms.route.ticks:
        words["ticks"] = [transaction.name for transaction in terms.route.ticks]
    beside = [name for name in (KEY, DIGEST) if name in events.column_names]
    names = [*terms.columns, *beside]
    arrays = [one_array(events.column(name)) for name in names]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    return batch.replace_schema_metadata({_TERMS: json.dumps(words).encode()})


def read_terms(commit: Commit, known: Mapping[str, Transaction]) -> Terms:
    """How the logged input of an epoch was run, over the transactions of this program."""
    if commit.input is None:
        raise InvariantError(f"epoch {commit.epoch} has no input")
    try:
        return _read_terms(commit.input, known)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        name = type(error).__name__
        raise DamageError(
            f"the input of epoch {commit.epoch} does not say how it was run ({name}: {error}): "
            "restore the store from a backup"
        ) from error


def _read_terms(batch: pa.RecordBatch, known: Mapping[str, Transaction]) -> Terms:
    """The inverse of `with_terms`."""
    words = json.loads((batch.schema.metadata or {})[_TERMS])
    missing = [name for name in words["transactions"] if name not in known]
    if missing:
        raise StoreError(
            f"the log has input of the transaction {missing[0]!r}, which this program does not "
            "declare; open the store with it to recover"
        )
    transactions = tuple(known[name] for name in words["transactions"])
    values = tuple((value, known[name]) for value, name in words["routes"])
    ticks = tuple(known[name] for name in words.get("ticks", ()))
    route = Route(transactions, values, words["route_by"], ticks)
    terms = Terms(route, (), words["watermark_us"], words["late"], words["name"])
    order_by = tuple(terms.event[name] for name in words["order_by"])
    carried = read_carry(words.get("carry", ()))
    carry = tuple(name for name, _ in carried)
    updates = words.get("updates", False)
    return replace(terms, order_by=order_by, updates=updates, carry=carry, carried=carried)


def is_code_changed(commit: Commit, terms: Terms, *, accept: bool) -> bool:
    """Whether an epoch was logged by other code than this; refused unless that is accepted."""
    changed = commit.fingerprint != fingerprint_of(terms.route.transactions)
    if changed and not accept:
        raise StoreError(
            f"epoch {commit.epoch} was logged as input of code that has changed since: to run "
            "it again would give other results; open with the old code, whose engine.snapshot() "
            "leaves nothing to run again, or with changed_code='accept'"
        )
    return changed


def check_same_results(commit: Commit, results: pa.Table) -> None:
    """What ran again must give what it gave when it was logged."""
    recorded = None if commit.results is None else with_epoch(commit.results, commit.epoch)
    if recorded is not None and not _are_same(results, recorded):
        raise StoreError(
            f"epoch {commit.epoch} gave other results when it was run again: a transaction "
            "depends on more than its event and rows; weak recovery cannot bring it back"
        )


def _are_same(results: pa.Table, recorded: pa.Table) -> bool:
    """Whether two tables say the same; NaN is what NaN was, though no number is equal to it."""
    if results.equals(recorded):
        return True
    if results.schema != recorded.schema or results.num_rows != recorded.num_rows:
        return False
    columns = zip(results.columns, recorded.columns, strict=True)
    return all(_is_same(one_array(one), one_array(other)) for one, other in columns)


def _is_same(one: pa.Array, other: pa.Array) -> bool:
    kind = one.type
    if one.equals(other) or not _has_floats(kind):
        return bool(one.equals(other))
    if not one.is_valid().equals(other.is_valid()):
        return False
    if pa.types.is_struct(kind):
        return all(map(_is_same, one.flatten(), other.flatten()))
    if pa.types.is_list(kind):
        lengths = [pc.list_value_length(array) for array in (one, other)]
        return lengths[0].equals(lengths[1]) and _is_same(one.flatten(), other.flatten())
    mine, others = (array.fill_null(0.0).to_numpy(zero_copy_only=False) for array in (one, other))
    return bool(np.array_equal(mine, others, equal_nan=True))


def _has_floats(kind: pa.DataType) -> bool:
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    return pa.types.is_floating(kind) or any(map(_has_floats, inner))


@dataclass(frozen=True)
class Border:
    """What weak recovery logs of a batch: its input and the fingerprint of the code that ran it."""

    input: pa.RecordBatch | None = None
    fingerprint: str | None = None

    @classmethod
    def of(cls, events: pa.Table, terms: Terms) -> Border:
        return cls(with_terms(events, terms), fingerprint_of(terms.route.transactions))
