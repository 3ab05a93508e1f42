"""The decision: which scheme runs a batch, and why, in words.

Serial execution needs no graph at all, so the first question is whether a graph could pay for
itself; only then is one built and looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.planning.figures import Figures


@dataclass(frozen=True)
class Thresholds:
    """What planning and threads cost; the defaults hold for common machines."""

    plan_ns_per_operation: float = 40.0
    start_ns: float = 300_000.0  # threads of one batch, started and joined
    barrier_ns: float = 15_000.0
    signal_ns: float = 60.0  # one edge of the graph, counted down
    speedup_min: float = 1.15  # less than this is not worth the second core
    cost_ns_min: float = 2_000.0  # a transaction cheaper than this never pays for its signals


@dataclass(frozen=True)
class Decision:
    """The scheme of one batch and the reason for it."""

    scheme: str
    why: str


def worth_planning(
    transactions: int, operations: int, cost_ns: float | None, threads: int, costs: Thresholds
) -> Decision | None:
    """A decision for serial when a graph cannot pay for itself, else None: build it and look."""
    if threads < 2:
        return Decision("serial", "one thread")
    if cost_ns is None:
        return Decision("serial", "the cost of a transaction is not known yet: measured now")
    if cost_ns < costs.cost_ns_min:
        return Decision(
            "serial", f"a transaction takes {cost_ns:.0f} ns, less than telling others of it"
        )
    serial_ns = cost_ns * transactions
    overhead_ns = costs.plan_ns_per_operation * operations + costs.start_ns
    best_ns = serial_ns / threads + overhead_ns
    if serial_ns < costs.speedup_min * best_ns:
        return Decision(
            "serial",
            f"{transactions} transactions of {cost_ns:.0f} ns take {serial_ns / 1e6:.1f} ms one "
            f"after another; planning and {threads} threads would take {best_ns / 1e6:.1f} ms",
        )
    return None


def choose(figures: Figures, cost_ns: float, threads: int, costs: Thresholds) -> Decision:
    """The exploration whose estimate is lowest, or serial when none is better."""
    serial_ns = cost_ns * figures.transactions
    parallel = min(float(threads), figures.ideal_speedup)
    work_ns = serial_ns / parallel
    estimates = {
        "strata": work_ns + costs.barrier_ns * figures.strata,
        "ready": work_ns + costs.signal_ns * (figures.edges + figures.transactions),
    }
    scheme = min(estimates, key=lambda name: estimates[name])
    plan_ns = costs.plan_ns_per_operation * figures.operations + costs.start_ns
    total_ns = estimates[scheme] + plan_ns
    shape = (
        f"{figures.transactions} transactions in {figures.strata} strata, "
        f"{figures.edges} dependencies, ideal speed-up {figures.ideal_speedup:.1f}"
    )
    if serial_ns < costs.speedup_min * total_ns:
        return Decision("serial", f"{shape}: {threads} threads would not gain enough")
    others = "few strata, so barriers are cheap" if scheme == "strata" else "many small strata"
    return Decision(scheme, f"{shape}: {others}")
