"""The generators: the same events for the same seed, with the characteristics they are told."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench import transactions
from bench.workloads import (
    APPLICATIONS,
    Parameters,
    Workload,
    dynamic_ledger,
    make_workload,
    zipf_shares,
)
from headgate.testing import SerialOracle, difference, results_difference

NAMES = sorted(APPLICATIONS)
SIGMAS = 5  # of a share; with the fixed seeds the answer is the same at every run


def small(name: str, cost_us: float = 0, **changes: Any) -> Workload:
    lists = {"length": 3} if name in ("grep_sum", "bidding") else {}
    given = {"keys": 40, "events": 100, "batch_events": 40, "steps_per_us": 1.0, **lists}
    return make_workload(name, cost_us=cost_us, **{**given, **changes})


def is_share(observed: float, expected: float, count: int) -> bool:
    return abs(observed - expected) <= SIGMAS * np.sqrt(expected * (1 - expected) / count) + 1e-12


def numbers(table: pa.Table, column: str) -> np.ndarray:
    return table.column(column).to_numpy()


def lists(table: pa.Table, column: str) -> list[list[int]]:
    return table.column(column).to_pylist()


# --- the same events --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_can_be_made_again_by_itself(name: str) -> None:
    batches = list(small(name, disorder=8).batches())
    assert small(name, disorder=8).batch(1).equals(batches[1])
    assert small(name).rows() == small(name).rows()


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_or_another_batch_gives_other_events(name: str) -> None:
    workload = small(name, events=80)
    first = workload.batch(0).drop_columns("ts")
    assert not first.equals(workload.vary(seed=8).batch(0).drop_columns("ts"))
    assert not first.equals(workload.batch(1).drop_columns("ts"))


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_as_long_as_the_punctuation_interval_and_the_last_has_the_rest(
    name: str,
) -> None:
    workload = small(name)
    assert [batch.num_rows for batch in workload.batches()] == [40, 40, 20]
    assert small(name, events=0).batch_count == 0
    with pytest.raises(ValueError, match="there is no batch 3; there are 3"):
        workload.batch(3)


def test_events_arrive_late_within_their_batch_only() -> None:
    workload = small("ledger", events=2_000, batch_events=500, disorder=20)
    stamps = [numbers(batch, "ts").astype(np.int64) for batch in workload.batches()]
    for earlier, later in itertools.pairwise(stamps):
        assert earlier.max() < later.min()
    overtaken = np.concatenate([np.maximum.accumulate(part) - part for part in stamps])
    places = overtaken / 1_000
    assert 10 < places.max() <= 20
    assert np.unique(np.concatenate(stamps)).size == 2_000
    ordered = numbers(workload.vary(disorder=0).batch(0), "ts").astype(np.int64)
    assert (np.diff(ordered) > 0).all()


def test_disorder_changes_the_arrival_and_nothing_else() -> None:
    shuffled = small("bidding", disorder=15).batch(0)
    assert shuffled.sort_by("ts").equals(small("bidding").batch(0))


# --- skew -------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.6, 1.0, 1.3])
def test_the_hottest_keys_are_as_hot_as_the_formula_says(theta: float) -> None:
    count, keys = 60_000, 500
    workload = make_workload("tolls", keys=keys, events=count, batch_events=count, theta=theta)
    segments = numbers(workload.vary(cost_us=0).batch(0), "segment")
    observed = np.sort(np.bincount(segments, minlength=keys))[::-1] / count
    expected = zipf_shares(keys, theta)
    assert np.isclose(expected.sum(), 1)
    assert np.isclose(expected[0] / expected[9], 10**theta)
    if theta >= 0.6:  # below, the ranks lie so near that chance swaps them
        assert is_share(observed[0], expected[0], count)
        assert is_share(observed[9], expected[9], 9_000)
    assert is_share(observed[:50].sum(), expected[:50].sum(), 4_000)


def test_a_hot_key_stays_hot_when_the_skew_changes() -> None:
    def hottest(theta: float) -> int:
        events = make_workload("tolls", theta=theta, cost_us=0).batch(0)
        return int(np.bincount(numbers(events, "segment")).argmax())

    assert hottest(0.7) == hottest(1.1) == hottest(1.5)


@pytest.mark.parametrize(("keys", "length"), [(1_000, 10), (10, 10)])
def test_an_event_never_names_a_key_twice(keys: int, length: int) -> None:
    workload = small("bidding", keys=keys, length=length, theta=1.2, mix=(0, 1, 0))
    for found in lists(workload.batch(0), "items"):
        assert len(set(found)) == length
    transfers = small("ledger", keys=2).batch(0)
    assert (numbers(transfers, "src_account") != numbers(transfers, "dst_account")).all()
    assert (numbers(transfers, "src_asset") != numbers(transfers, "dst_asset")).all()


# --- shares, lengths, partitions --------------------------------------------------------------


@pytest.mark.parametrize(("name", "mix"), [("grep_sum", (3, 1)), ("bidding", (6, 1, 1))])
def test_the_mix_is_kept(name: str, mix: tuple[float, ...]) -> None:
    kinds = numbers(small(name, events=8_000, batch_events=8_000, mix=mix).batch(0), "kind")
    for kind, weight in enumerate(mix):
        assert is_share((kinds == kind).mean(), weight / sum(mix), 8_000)


def test_a_mix_without_a_transaction_has_none_of_its_events() -> None:
    assert set(lists(small("grep_sum", mix=(0, 1)).batch(0), "kind")) == {1}
    assert set(lists(small("grep_sum", mix=(1, 0)).batch(0), "kind")) == {0}


def test_lists_are_as_long_as_told() -> None:
    events = small("grep_sum", length=4, accesses=3).batch(0)
    assert {len(keys) for keys in lists(events, "keys")} == {4}
    by_kind = set(zip(lists(events, "kind"), map(len, lists(events, "sources")), strict=True))
    assert by_kind == {(0, 0), (1, 2)}
    bids = small("bidding", length=7).batch(0)
    for kind, items, prices, tops in zip(
        *(lists(bids, name) for name in ("kind", "items", "prices", "quantities")), strict=True
    ):
        wanted = {0: (0, 0, 0), 1: (7, 7, 0), 2: (7, 0, 7)}[kind]
        assert (len(items), len(prices), len(tops)) == wanted


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_so_many_events_touch_several_partitions(ratio: float) -> None:
    workload = small(
        "bidding", keys=800, events=4_000, batch_events=4_000, length=6, mix=(0, 1, 0),
        partitions=8, multi_partition_ratio=ratio, partitions_touched=4,
    )  # fmt: skip
    items = np.array(lists(workload.batch(0), "items"))
    touched = np.array([len(set(row)) for row in (items % 8)])
    assert set(touched) <= {1, 4}
    assert is_share((touched == 4).mean(), ratio, 4_000)
    assert np.bincount(items[:, 0] % 8).min() > 300  # every partition has its share


def test_a_transfer_of_one_partition_has_all_four_rows_in_it() -> None:
    workload = small("ledger", partitions=4, multi_partition_ratio=0.0)
    names = ("src_account", "dst_account", "src_asset", "dst_asset")
    rows = np.array([numbers(workload.batch(0), name) % 4 for name in names])
    assert (rows == rows[0]).all()


# --- the cost of an operation -----------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_costed_form_takes_work_and_the_cheap_form_does_not(name: str) -> None:
    costed, cheap = small(name, cost_us=10, steps_per_us=7.5), small(name)
    assert set(lists(costed.batch(0), "work")) == {75}
    assert costed.batch(0).drop_columns("work").equals(cheap.batch(0))
    assert all("work" in found.event for found in costed.transactions)
    assert not any("work" in found.event for found in cheap.transactions)


def test_the_compiler_does_not_see_through_the_cost() -> None:
    loop = transactions.busy_loop()
    assert {loop(50, seed) for seed in (-3, 0, 1, transactions.PRIME, 2**62)} == {0}
    assert transactions.busy(50, 5) == 0
    # No machine makes a step of a dependent multiplication and a remainder in a tenth of a ns.
    assert 1 < transactions.steps_per_us() < 10_000


# --- what the engine makes of them ------------------------------------------------------------


@pytest.mark.parametrize("cost_us", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_gives_what_the_oracle_gives(name: str, cost_us: float) -> None:
    workload = small(
        name, cost_us, abort_ratio=0.2, theta=0.9, disorder=10, partitions=2
    )  # fmt: skip
    oracle = SerialOracle(workload.tables, workload.transactions)
    with workload.open() as engine:
        for table, rows in workload.rows().items():
            oracle.load(table, rows.to_pylist())
        for batch in workload.batches():
            results = engine.run(workload.target, batch, **workload.options)
            expected = oracle.run(workload.target, batch.to_pylist(), **workload.options)
            assert results_difference(results, expected) is None
        assert difference(engine, oracle) is None


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_give_the_same_results_and_tables(name: str) -> None:
    found = []
    for cost_us in (0, 3):
        workload = small(name, cost_us, abort_ratio=0.2)
        with workload.open() as engine:
            results = [
                engine.run(workload.target, batch, **workload.options).to_pylist()
                for batch in workload.batches()
            ]
            tables = [engine.sql(f"from {t.name} order by 1").rows() for t in workload.tables]
            found.append((results, tables))
    assert found[0] == found[1]


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "grouped_tolls"])
def test_the_abort_ratio_is_that_of_the_results_for_every_transaction(
    name: str, ratio: float
) -> None:
    workload = small(name, keys=200, events=6_000, batch_events=3_000, abort_ratio=ratio)
    with workload.open() as engine:
        parts = [engine.run(workload.target, b, **workload.options) for b in workload.batches()]
    results = pa.concat_tables(parts).to_pandas()
    shares = results["outcome"].eq("aborted").groupby(results["transaction"].astype(str))
    assert shares.ngroups == len(workload.routes)
    for share, count in zip(shares.mean(), shares.size(), strict=True):
        assert is_share(share, ratio, count)


def test_of_two_groups_the_one_is_skewed_and_aborts_and_the_other_is_neither() -> None:
    workload = make_workload(
        "grouped_tolls", keys=200, events=20_000, batch_events=20_000, cost_us=0
    )
    events = workload.batch(0)
    segment, fails = numbers(events, "segment"), numbers(events, "speed") < 0
    lower = segment < 100
    assert is_share(lower.mean(), 0.5, 20_000)
    assert is_share(fails[lower].mean(), 0.5, int(lower.sum()))
    assert not fails[~lower].any()
    hottest = np.bincount(segment) / 20_000
    assert is_share(hottest[:100].max() * 2, zipf_shares(100, 0.8)[0], 10_000)
    assert hottest[100:].max() < 0.01


# --- defaults and the dynamic workload --------------------------------------------------------


def test_the_defaults_are_those_of_the_papers() -> None:
    found = {name: application.defaults for name, application in APPLICATIONS.items()}
    for name in ("ledger", "grep_sum", "bidding", "tolls"):
        assert (found[name].theta, found[name].abort_ratio) == (0.2, 0.01)
        assert found[name].cost_us == 10
    assert [found[name].batch_events for name in ("ledger", "grep_sum", "tolls")] == [
        10_240, 10_240, 40_960,
    ]  # fmt: skip
    assert (found["grep_sum"].length, found["grep_sum"].accesses) == (1, 2)
    assert (found["bidding"].length, found["bidding"].mix) == (20, (6, 1, 1))
    assert found["ledger"].mix == (1, 1)


def test_the_dynamic_workload_changes_one_thing_in_each_phase() -> None:
    phases = dynamic_ledger(batches_per_phase=5, keys=1_000, batch_events=4_000, cost_us=0)
    assert [phase.name for phase in phases] == ["deposits", "skew", "transfers", "aborts"]
    firsts = [phase.workload.at(0) for phase in phases]
    lasts = [phase.workload.at(4) for phase in phases]
    assert [given.theta for given in firsts] == [0, 0, 0.2, 0.2]
    assert [given.theta for given in lasts] == [0, 1, 0.2, 0.2]
    assert np.allclose([given.mix[1] for given in firsts], [0.1, 0.1, 0.1, 0.9])
    assert np.allclose([given.mix[1] for given in lasts], [0.1, 0.1, 0.9, 0.9])
    assert [given.abort_ratio for given in firsts] == [0, 0, 0, 0]
    assert [given.abort_ratio for given in lasts] == [0, 0, 0, 0.9]


def test_the_events_of_the_phases_follow_their_trends() -> None:
    phases = {
        phase.name: phase.workload
        for phase in dynamic_ledger(batches_per_phase=3, keys=1_000, batch_events=4_000, cost_us=0)
    }
    hottest = [
        np.bincount(numbers(batch, "dst_account")).max() for batch in phases["skew"].batches()
    ]
    transfers = [numbers(batch, "kind").mean() for batch in phases["transfers"].batches()]
    aborts = [
        (np.abs(numbers(batch, "amount")) > 100).mean() for batch in phases["aborts"].batches()
    ]
    assert hottest[0] < hottest[1] < hottest[2]
    assert np.allclose(transfers, [0.1, 0.5, 0.9], atol=0.05)
    assert np.allclose(aborts, [0, 0.45, 0.9], atol=0.05)


def test_the_phases_go_on_in_time_over_the_same_tables_and_transactions() -> None:
    phases = dynamic_ledger(batches_per_phase=2, keys=100, batch_events=50, cost_us=0)
    stamps = [
        numbers(batch, "ts").astype(np.int64)
        for phase in phases
        for batch in phase.workload.batches()
    ]
    assert len(stamps) == 8
    assert (np.diff(np.concatenate(stamps)) > 0).all()
    assert len({phase.workload.transactions for phase in phases}) == 1
    assert len({phase.workload.tables for phase in phases}) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": 10, "partitions": 3}, "10 keys do not make 3 equal partitions"),
        ({"abort_ratio": 1.1}, "abort_ratio cannot be 1.1"),
        ({"theta": -0.1}, "theta cannot be -0.1"),
        ({"length": 0}, "length cannot be 0"),
        ({"mix": (0.0, 0.0)}, "mix cannot be"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(Parameters(), **changes)


def test_a_workload_refuses_a_mix_for_other_transactions_and_too_few_keys() -> None:
    with pytest.raises(ValueError, match="the transactions are bid, alter, top"):
        small("bidding", mix=(1, 1))
    with pytest.raises(ValueError, match="2 keys in a partition, an event needs 3"):
        small("bidding", keys=4, partitions=2).batch(0)
