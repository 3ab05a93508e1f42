"""A small run of the benchmark of shards, with no Spark: its events are what their names say."""

from __future__ import annotations

import pytest

import headgate as hg
from bench import cluster
from tests.property.workers import Workers, open_sharded


@pytest.mark.parametrize(("across", "scheme"), [(0.0, "executors"), (0.5, "mixed")])
def test_transfers_stay_in_a_shard_or_a_share_of_them_does_not(across: float, scheme: str) -> None:
    keys = 4 * cluster.BANKS
    events = cluster.events_of(300, keys, across, 1)
    one = hg.open(None, tables=[cluster.accounts], transactions=[cluster.cheap])
    with open_sharded([cluster.accounts], [cluster.cheap], 4, Workers()) as engine:
        for each in (one, engine):
            each.load(cluster.accounts, cluster.rows_of(keys))
        assert engine.run(cluster.cheap, events) == one.run(cluster.cheap, events)
        assert engine.decisions()[-1].scheme == scheme
        query = "select * from accounts order by id"
        assert engine.sql(query).arrow() == one.sql(query).arrow()


def test_the_model_of_clusters_is_asked_about_the_same_epochs() -> None:
    keys = 4 * cluster.BANKS
    one, two = (
        cluster.model_said(cluster.cheap, 0.5, 2_000, nodes, "executors", keys) for nodes in (1, 2)
    )
    assert one[0] > 0 and two[1] > two[0]  # cheap events are fastest in the driver
    assert two[1] <= one[1]
