"""The cluster on paper: its figures follow from its costs, and its reasons from its figures."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InputError
from headgate.lab.cluster_model import (
    BANKS,
    DESIGNS,
    EXECUTORS,
    LOCAL,
    MIXED,
    SHUFFLED,
    ClusterCosts,
    EpochLoad,
    curves,
    draw_rows,
    epoch_of,
    load_of,
    loads_of,
)

FREE = ClusterCosts(**{one.name: 0.0 for one in fields(ClusterCosts)})
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def load(events: int, shards: int, travelling: int = 0, largest: int = 0) -> EpochLoad:
    home = np.full(shards, (events - travelling) // shards)
    return EpochLoad(events, home, travelling, largest, bool(travelling))


def test_rows_are_in_one_bank_but_for_the_share_that_crosses() -> None:
    for cross in (0.0, 0.25, 1.0):
        src, dst = draw_rows(20_000, 100 * BANKS, cross, 0.8)
        apart = float((src % BANKS != dst % BANKS).mean())
        assert apart == pytest.approx(cross, abs=0.03)
        assert max(src.max(), dst.max()) < 100 * BANKS
    assert (draw_rows(5000, 100 * BANKS, 0.0, 1.2)[0] == 0).mean() > 0.1
    assert (draw_rows(5000, 100 * BANKS, 0.0, 0.0)[0] == 0).mean() < 0.01


def test_a_load_is_what_components_say_by_hand() -> None:
    #  0-1 on shard 0 and 1 (banks 0, 1); 2-2+BANKS at home; an event that hangs together with 0-1
    src, dst = np.array([0, 2, 1]), np.array([1, 2 + BANKS, 1 + BANKS])
    found = load_of(src, dst, 4)
    assert (found.travelling, found.largest, found.home) == (2, 2, 1)
    assert found.at_home.tolist() == [0, 0, 1, 0]
    assert not load_of(src[1:], dst[1:], 4).is_crossed


def test_when_all_else_is_free_nodes_share_what_is_at_home_and_no_more() -> None:
    at_home = load(64_000, 64)
    for nodes in COUNTS:
        assert epoch_of(EXECUTORS, at_home, nodes, 10.0, FREE).ms == pytest.approx(640 / nodes)
    assert epoch_of(EXECUTORS, at_home, 2, 10.0, FREE, cores=4).ms == pytest.approx(80.0)
    assert epoch_of(LOCAL, at_home, 64, 10.0, FREE).ms == pytest.approx(640)
    giant = load(64_000, 64, travelling=64_000, largest=64_000)
    for nodes in COUNTS:
        assert epoch_of(EXECUTORS, giant, nodes, 10.0, FREE).ms == pytest.approx(640)
    many = replace(giant, largest=10)
    assert epoch_of(EXECUTORS, many, 64, 10.0, FREE).ms == pytest.approx(10)
    assert epoch_of(MIXED, many, 64, 10.0, FREE).ms == pytest.approx(640)


@settings(max_examples=40)
@given(
    st.sampled_from([one.name for one in fields(ClusterCosts)]),
    st.sampled_from(list(DESIGNS)),
    st.integers(1, 64),
    st.integers(0, 6400),
)
def test_no_cost_makes_an_epoch_shorter_and_no_node_longer(
    name: str, design: str, nodes: int, travelling: int
) -> None:
    costs = ClusterCosts()
    dear = replace(costs, **{name: getattr(costs, name) + 100.0})
    one = load(6400, 64, travelling, travelling // 3)
    taken = epoch_of(design, one, nodes, 1.0, costs)
    assert epoch_of(design, one, nodes, 1.0, dear).ms >= taken.ms
    assert epoch_of(design, one, nodes + 1, 1.0, costs).ms <= taken.ms + 1e-9
    assert taken.rate == pytest.approx(1e3 * 6400 / taken.ms)
    assert taken.latency_ms > taken.ms


def test_cheap_events_stay_in_the_driver_and_dear_ones_scale_until_the_driver_is_full() -> None:
    loads = {count: load(512_000, 4 * count) for count in COUNTS}
    cheap, dear = (curves(loads, cost, ClusterCosts()) for cost in (0.1, 100.0))
    assert cheap[LOCAL].epochs[-1].rate > cheap[EXECUTORS].epochs[-1].rate
    assert cheap[LOCAL].stops.nodes == 1 and "stops at 1" in cheap[LOCAL].why
    assert dear[EXECUTORS].epochs[4].rate > 12 * dear[LOCAL].epochs[0].rate
    middling = curves(loads, 4.0, ClusterCosts())
    assert 8 <= middling[EXECUTORS].stops.nodes < 64
    assert "fetch" in middling[EXECUTORS].why
    assert middling[SHUFFLED].epochs[-1].rate > middling[EXECUTORS].epochs[-1].rate


def test_under_skew_one_component_has_all_and_is_named_as_the_reason() -> None:
    loads = loads_of((1, 4, 16), 20_000, 20 * BANKS, 0.2, 1.2, 4)
    found = curves(loads, 20.0, ClusterCosts())[EXECUTORS]
    assert found.stops.nodes == 1
    assert "largest component" in found.why


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="no design 'far'"):
        epoch_of("far", load(10, 1), 1, 1.0, FREE)
    with pytest.raises(InputError, match="from 1 on"):
        epoch_of(MIXED, load(10, 1), 0, 1.0, FREE)
