"""The decision: serial where a graph does not pay, else what the figures speak for."""

from __future__ import annotations

from dataclasses import replace

from headgate.parallel.decision import (
    Load,
    Thresholds,
    before_a_graph,
    choose_transactions,
    choose_units,
    is_wide,
    worth_planning,
)
from headgate.parallel.figures import Shape

COSTS = Thresholds()
LOAD = Load(10_000, 20_000, cost_ns=20_000.0, abort_ratio=0.0, threads=2)
WIDE = Shape(tasks=10_000, edges=500, strata=3, widest_stratum=9_000, work=10_000, path=3)
NARROW = Shape(tasks=10_000, edges=20_000, strata=9_000, widest_stratum=2, work=10_000, path=9_000)


def test_serial_without_a_graph_when_it_cannot_pay() -> None:
    cases = {
        "one thread": replace(LOAD, threads=1),
        "not known yet": replace(LOAD, cost_ns=None),
        "less than telling others": replace(LOAD, cost_ns=150.0),
        "would take": replace(LOAD, transactions=10, operations=20),
    }
    for words, load in cases.items():
        found = worth_planning(load, COSTS)
        assert found is not None
        assert found.scheme == "serial"
        assert words in found.why
    assert worth_planning(LOAD, COSTS) is None


def test_whole_transactions_where_they_keep_the_threads_busy() -> None:
    assert is_wide(LOAD, WIDE)
    found = choose_transactions(LOAD, WIDE, 1.2, COSTS)
    assert found.scheme == "strata"
    assert "barriers are cheap" in found.why


def test_a_chain_of_transactions_is_run_serially() -> None:
    assert not is_wide(LOAD, NARROW)
    found = choose_transactions(LOAD, NARROW, 50.0, COSTS)
    assert found.scheme == "serial"
    assert "would not gain enough" in found.why


def test_even_shares_where_rows_are_used_evenly() -> None:
    layered = replace(WIDE, strata=200, path=200, edges=2_000)
    assert choose_transactions(LOAD, layered, 1.5, COSTS).scheme == "depth"
    assert choose_transactions(LOAD, layered, 90.0, COSTS).scheme == "ready"


def test_chains_where_they_do_not_lengthen_the_way() -> None:
    fine = Shape(tasks=20_000, edges=19_000, strata=500, widest_stratum=90, work=20_000, path=500)
    chains = Shape(tasks=100, edges=0, strata=1, widest_stratum=100, work=20_000, path=500)
    cyclic = Shape(tasks=2, edges=0, strata=1, widest_stratum=2, work=20_000, path=19_000)
    assert "-chain-" in choose_units(LOAD, fine, chains, 0, 3.0, COSTS).scheme
    assert "-operation-" in choose_units(LOAD, fine, cyclic, 98, 3.0, COSTS).scheme


def test_aborts_wait_where_operations_are_cheap() -> None:
    fine = Shape(tasks=20_000, edges=19_000, strata=500, widest_stratum=90, work=20_000, path=500)
    cheap = replace(LOAD, cost_ns=3_000.0, abort_ratio=0.4)
    dear = replace(LOAD, cost_ns=400_000.0, abort_ratio=0.4)
    assert choose_units(cheap, fine, fine, 0, 3.0, COSTS).scheme.endswith("-lazy")
    assert choose_units(dear, fine, fine, 0, 3.0, COSTS).scheme.endswith("-eager")


CHEAP = Load(102_400, 204_800, cost_ns=30.0, abort_ratio=0.0, threads=16)


def test_cheap_transactions_are_shared_where_there_are_enough_and_cores_for_them() -> None:
    found = before_a_graph(CHEAP, COSTS)
    assert found is not None
    assert found.scheme == "shares"
    assert "16 threads that plan at once" in found.why
    for fewer in (
        replace(CHEAP, threads=1),
        replace(CHEAP, transactions=100, operations=200),
        replace(CHEAP, cost_ns=None),
    ):
        found = before_a_graph(fewer, COSTS)
        assert found is not None
        assert found.scheme == "serial"


def test_shares_are_not_chosen_where_they_were_seen_to_take_longer() -> None:
    for seen_ns, wanted in ((10.0, "shares"), (29.0, "serial")):
        found = before_a_graph(replace(CHEAP, shared_ns=seen_ns), COSTS)
        assert found is not None
        assert found.scheme == wanted


def test_dear_transactions_are_left_to_the_graph() -> None:
    assert before_a_graph(LOAD, COSTS) is None
