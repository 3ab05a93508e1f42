"""Schemes: how the threads of an engine share a batch, each giving what the serial one gives.

All but `nolock` only run two transactions at once when they share no row that one of them may
write; so each transaction sees exactly what it would see in serial order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from headgate.errors import InputError

SCHEME_NAMES = {
    "auto": "what the decision model chooses for each batch (the default)",
    "serial": "one thread, event after event; no graph",
    "strata": "the graph breadth first: stratum after stratum with a barrier",
    "depth": "the graph depth first: each thread its share, waiting for its own dependencies",
    "ready": "the graph non-structured: whoever is free takes what is ready",
    "tstream": "operation chains, threads going round them; -nothing, -socket or -everything says "
    "who shares a pool of them, -static that it is shared out beforehand (for comparison)",
    "lal": "lock-ahead two-phase locking (for comparison)",
    "lwm": "low water marks over versions (for comparison)",
    "pat": "a counter for each partition of the rows, S-Store's way (for comparison)",
    "nolock": "no order and no isolation: a bound for speed, INCORRECT on purpose",
}
EXPLORATIONS = ("strata", "depth", "ready")
GRANULARITIES = ("transaction", "operation", "chain")
ABORTS = ("eager", "lazy")
POOLS = ("everything", "nothing", "socket")


@dataclass(frozen=True)
class Scheme:
    """How a batch is run: the scheme, its dimensions, and the threads it may use."""

    name: str
    threads: int
    granularity: str = "transaction"  # strata, depth and ready: what is scheduled at once
    abort: str = "eager"  # of operations and chains: settle at once, or when all has run
    pool: str = "everything"  # tstream: who shares a pool of chains
    stealing: bool = True  # tstream: take chains freely, or have them shared out

    @property
    def by_units(self) -> bool:
        """Whether it runs over versions of rows, and not in the tables themselves."""
        return self.name in ("tstream", "lwm") or self.granularity != "transaction"

    def __str__(self) -> str:
        words = [self.name]
        if self.name in EXPLORATIONS and self.granularity != "transaction":
            words += [self.granularity, self.abort]
        if self.name == "tstream":
            words += [self.pool] if self.stealing else [self.pool, "static"]
        return "-".join(words)


SERIAL = Scheme("serial", 1)


# What may follow the name of a scheme, each behind a hyphen.
VARIANTS = (
    f"{', '.join(EXPLORATIONS)} take one of {', '.join(GRANULARITIES)} and one of "
    f"{', '.join(ABORTS)}, each behind a hyphen; tstream takes one of {', '.join(POOLS)} and static"
)


def make_scheme(text: str, threads: int | None) -> Scheme:
    """Read the words of `run` and `sink`: "ready", "strata-chain-lazy", "tstream-nothing"."""
    if text == "serial":
        return SERIAL
    name, *words = text.split("-")
    if name not in SCHEME_NAMES:
        known = "; ".join(f"{known}: {what}" for known, what in SCHEME_NAMES.items())
        raise InputError(f"scheme {text!r} is unknown; the schemes are: {known}")
    count = threads if threads is not None else len(os.sched_getaffinity(0))
    if count < 1:
        raise InputError(f"threads is {threads}; it must be at least 1")
    scheme = Scheme(name, count)
    for word in words:
        if name in EXPLORATIONS and word in GRANULARITIES:
            scheme = replace(scheme, granularity=word)
        elif name in EXPLORATIONS and word in ABORTS:
            scheme = replace(scheme, abort=word)
        elif name == "tstream" and word in POOLS:
            scheme = replace(scheme, pool=word)
        elif name == "tstream" and word == "static":
            scheme = replace(scheme, stealing=False)
        else:
            raise InputError(f"scheme {text!r}: {word!r} does not go with {name!r}; {VARIANTS}")
    return scheme
