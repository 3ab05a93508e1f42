"""Schemes: the ways in which threads can share a batch, all in one register.

What a scheme is, which dimensions it takes, how it attempts a transaction, which kernel it runs and
what that needs is said here and nowhere else; whoever wants to know asks the scheme, not its name.
All but `nolock` give what the serial one gives; the protocols give what a level of isolation says.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from headgate.errors import InputError, not_among, shown

# How a scheme gets a batch done.
ONE_BY_ONE = "one after another"
CHOSEN = "as the model chooses"
TRANSACTIONS = "whole transactions in the tables"
UNITS = "units over versions of rows"
PROTOCOL = "a protocol that keeps a level of isolation"

GRANULARITIES = ("transaction", "operation", "chain")
ABORTS = ("eager", "lazy")
POOLS = ("everything", "nothing", "socket")
SCOPES = ("table", "rows")

# The kernels that make the plan of a batch.
PLAN = ("serial.resolve", "collect")  # the graph of transactions
UNIT_PLAN = ("serial.resolve", "units.collect")  # the graph of operations


@dataclass(frozen=True)
class Kind:
    """One entry of the register."""

    name: str
    what: str
    way: str
    kernel: str = ""
    needs: str = "nothing"  # of its kernel: "graph", "shares", "locks", "partitions", "turns"
    # or "pools"
    dimensions: tuple[str, ...] = ()  # of a Scheme, that a user may name
    is_compared: bool = False  # kept to be measured beside the others, never chosen by the model
    is_whole: bool = False  # over versions, and yet a unit is a whole transaction
    is_isolated: bool = True
    is_queued: bool = False  # its kernel takes tasks from a queue of those that are ready
    plans_itself: bool = False  # its kernel takes a batch as it is: no graph, no sections
    is_virtual: bool = False  # keys that depend on rows are computed by its steps
    on_copies: bool = False  # its steps change copies of rows, which it installs at the end


def _explored(name: str, what: str, is_queued: bool = False) -> Kind:
    dimensions = ("granularity", "abort")
    return Kind(name, what, TRANSACTIONS, name, "graph", dimensions, is_queued=is_queued)


def _compared(name: str, what: str, way: str, needs: str, **more: Any) -> Kind:
    kernel = more.pop("kernel", name)
    return Kind(name, f"{what} (for comparison)", way, kernel, needs, is_compared=True, **more)


_TSTREAM = (
    "operation chains, threads going round them; -nothing, -socket or -everything says "
    "who shares a pool of them, -static that it is shared out beforehand"
)
KINDS = {
    kind.name: kind
    for kind in (
        Kind("auto", "what the decision model chooses for each batch (the default)", CHOSEN),
        Kind("serial", "one thread, event after event; no graph", ONE_BY_ONE),
        Kind(
            "shares", "all threads plan at once, each its share of the events and of the rows, and "
            "take blocks of events in order", TRANSACTIONS, "shares", "shares", plans_itself=True,
        ),
        _explored("strata", "the graph breadth first: stratum after stratum with a barrier"),
        _explored(
            "depth", "the graph depth first: each thread its share, waiting for its own "
            "dependencies",
        ),
        _explored("ready", "the graph non-structured: whoever is free takes what is ready", True),
        _compared(
            "tstream", _TSTREAM, UNITS, "pools", kernel="chains", dimensions=("pool", "stealing")
        ),
        _compared("lal", "lock-ahead two-phase locking", TRANSACTIONS, "locks"),
        _compared("lwm", "low water marks over versions", UNITS, "turns", is_whole=True),
        _compared(
            "pat", "a counter for each partition of the rows, S-Store's way", TRANSACTIONS,
            "partitions",
        ),
        _compared(
            "virtual", "a key that depends on rows touches the whole of its table, and is computed "
            "when all before it have run: MorphStream's virtual operations; -rows has one for each "
            "row, as the paper does", TRANSACTIONS, "graph",
            kernel="ready", dimensions=("scope",), is_queued=True, is_virtual=True,
        ),
        Kind(
            "nolock", "no order and no isolation: a bound for speed, INCORRECT on purpose",
            TRANSACTIONS, "nolock", is_compared=True, is_isolated=False,
        ),
        Kind("lock", "two-phase locking, at the level that isolation= says", PROTOCOL, "lock"),
        Kind(
            "timestamp", "copies, stamps and validation, again where another was faster", PROTOCOL,
            "timestamp", on_copies=True,
        ),
    )
}  # fmt: skip
SCHEME_NAMES = {kind.name: kind.what for kind in KINDS.values() if kind.way != PROTOCOL}
PROTOCOLS = {kind.name: kind.what for kind in KINDS.values() if kind.way == PROTOCOL}
EXPLORATIONS = tuple(
    kind.name for kind in KINDS.values() if kind.needs == "graph" and not kind.is_compared
)

# What may follow the name of a scheme, each behind a hyphen: which dimension it says, and how.
_WORDS: dict[str, tuple[str, Any]] = {
    **{word: ("granularity", word) for word in GRANULARITIES},
    **{word: ("abort", word) for word in ABORTS},
    **{word: ("pool", word) for word in POOLS},
    **{word: ("scope", word) for word in SCOPES},
    "static": ("stealing", False),
}
VARIANTS = (
    f"{', '.join(EXPLORATIONS)} take one of {', '.join(GRANULARITIES)} and one of "
    f"{', '.join(ABORTS)}, each behind a hyphen; tstream takes one of {', '.join(POOLS)} and "
    "static, virtual takes rows"
)


@dataclass(frozen=True)
class Scheme:
    """How a batch is run: the scheme, its dimensions, and the threads it may use."""

    name: str
    threads: int
    granularity: str = "transaction"  # strata, depth and ready: what is scheduled at once
    abort: str = "eager"  # of operations and chains: settle at once, or when all has run
    pool: str = "everything"  # tstream: who shares a pool of chains
    stealing: bool = True  # tstream: take chains freely, or have them shared out
    scope: str = "table"  # virtual: what a key touches that is not known, as one or row by row

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def is_serial(self) -> bool:
        return self.kind.way == ONE_BY_ONE

    @property
    def is_chosen(self) -> bool:
        """Whether the model says for each batch what it is."""
        return self.kind.way == CHOSEN

    @property
    def is_protocol(self) -> bool:
        return self.kind.way == PROTOCOL

    @property
    def by_units(self) -> bool:
        """Whether it runs over versions of rows, and not in the tables themselves."""
        return self.kind.way == UNITS or self.granularity != "transaction"

    def __str__(self) -> str:
        words = [self.name]
        if "granularity" in self.kind.dimensions and self.granularity != "transaction":
            words += [self.granularity, self.abort]
        if "pool" in self.kind.dimensions:
            words += [self.pool] if self.stealing else [self.pool, "static"]
        if self.scope != "table":
            words += [self.scope]
        return "-".join(words)


SERIAL = Scheme("serial", 1)


def make_scheme(text: str, threads: int | None) -> Scheme:
    """Read the words of `run` and `sink`: "ready", "strata-chain-lazy", "tstream-nothing", "lock".

    >>> str(make_scheme("ready-operation-lazy", 2))
    'ready-operation-lazy'
    """
    given: Any = threads
    if given is not None and (not isinstance(given, int) or given < 1):
        raise InputError(
            f"threads is a number of at least 1, or None for all cores; not {shown(given)}"
        )
    if not isinstance(text, str):
        raise InputError(f"scheme is a text, such as 'auto'; not {shown(text)}")
    name, *words = text.split("-")
    if name not in KINDS or (words and KINDS[name].way == PROTOCOL):
        among = not_among(text, list(KINDS), "schemes")
        raise InputError(f"scheme {shown(text)} is unknown; {VARIANTS}; {among}")
    if text == SERIAL.name:
        return SERIAL
    scheme = Scheme(name, threads if threads is not None else len(os.sched_getaffinity(0)))
    for word in words:
        dimension, value = _WORDS.get(word, ("", None))
        if dimension not in scheme.kind.dimensions:
            raise InputError(f"scheme {text!r}: {word!r} does not go with {name!r}; {VARIANTS}")
        scheme = replace(scheme, **{dimension: value})
    return scheme


def needed(scheme: Scheme) -> tuple[str, ...]:
    """The kernels that a scheme runs, those of its plan first."""
    kernel = scheme.kind.kernel
    if scheme.is_protocol:
        return "serial.resolve", f"protocol.{kernel}"
    if scheme.by_units:
        return *UNIT_PLAN, f"units.{kernel}", "units.reasons"
    if scheme.kind.is_virtual:
        return PLAN[0], "virtual.collect", f"virtual.{kernel}"
    return (kernel,) if scheme.kind.plans_itself else (*PLAN, kernel)
