"""The words of `isolation=`, what is counted, and where the level does not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.isolation.levels import choose_protocol
from headgate.parallel.decision import Thresholds
from headgate.testing import History

cells = hg.Table("cells", "id bigint, n bigint", key="id")


@hg.transaction(event="id bigint, other bigint")
def add(event, cell=cells.at("id", create=True), other=cells.at("other", mode="read")):
    cell.n += 1 + other.n


EVENTS = [{"id": n % 3, "other": (n + 1) % 3} for n in range(50)]


@pytest.fixture
def engine() -> Any:
    with hg.open(None, [cells], [add]) as found:
        found.load(cells, [{"id": n, "n": 0} for n in range(3)])
        yield found


@pytest.mark.parametrize(
    "level",
    ["PL1", "PL2", "PL3", "PL4", "read-uncommitted", "read-committed", "serializable", "strict"],
)
def test_a_level_has_a_name_and_an_alias(engine: hg.Engine, level: str) -> None:
    assert engine.run(add, EVENTS, isolation=level).num_rows == 50
    assert engine.sink(add, isolation=level) is not None
    assert engine.call(add, id=1, other=2, isolation=level).outcome == "committed"


@pytest.mark.parametrize("level", ["PL5", "pl3", "", None, 3])
def test_any_other_word_is_refused(engine: hg.Engine, level: Any) -> None:
    with pytest.raises(hg.InputError, match=r"PL3 \(serializable\)"):
        engine.run(add, EVENTS, isolation=level)
    with pytest.raises(hg.InputError, match=r"PL3 \(serializable\)"):
        engine.sink(add, isolation=level)
    with pytest.raises(hg.InputError, match=r"PL3 \(serializable\)"):
        engine.call(add, id=1, other=2, isolation=level)


def test_an_unknown_scheme_is_told_of_both_protocols(engine: hg.Engine) -> None:
    with pytest.raises(hg.InputError, match=r"lock, timestamp; did you mean 'lock'"):
        engine.run(add, EVENTS, scheme="luck")
    with pytest.raises(hg.InputError, match="threads is a number of at least 1"):
        engine.run(add, EVENTS, scheme="lock", threads=0)


def test_results_say_who_kept_the_level_and_how_often_one_ran_again(engine: hg.Engine) -> None:
    found = engine.run(add, EVENTS, isolation="serializable", scheme="timestamp", threads=2)
    told = {key.decode(): value.decode() for key, value in found.schema.metadata.items()}
    assert told["headgate.isolation"] == "PL3"
    assert told["headgate.scheme"] == "timestamp"
    assert engine.metrics()["retries"] == int(told["headgate.retries"])


def test_what_is_recorded_names_every_read_and_write(engine: hg.Engine) -> None:
    record: list[Any] = []
    engine.run(add, EVENTS[:2], scheme="lock", threads=1, record=record)
    first, second = History.observed(record[0]).transactions.values()
    assert {read.item for read in first.reads} == {("cells", 0), ("cells", 1)}
    assert first.writes == (("cells", 0),)
    assert {read.writer for read in second.reads} == {None}


def test_only_the_protocols_record(engine: hg.Engine) -> None:
    with pytest.raises(hg.InputError, match="lock or timestamp"):
        engine.run(add, EVENTS, record=[])


def test_events_aside_keep_their_place_after_those_that_ran(engine: hg.Engine) -> None:
    events = [{"id": None, "other": 1}, *EVENTS]
    found = engine.run(add, events, scheme="timestamp", isolation="PL3", threads=2)
    assert found.column("outcome").to_pylist() == ["committed"] * 50 + ["rejected"]


def test_weak_recovery_runs_in_event_order_whatever_the_level(tmp_path: Path) -> None:
    with hg.open(tmp_path / "s", [cells], [add], recovery="weak") as engine:
        engine.load(cells, [{"id": n, "n": 0} for n in range(3)])
        for scheme in ("lock", "timestamp"):
            engine.run(add, EVENTS, scheme=scheme, isolation="PL1", threads=4)
        before = engine.sql("select * from cells order by id").rows()
    with hg.open(tmp_path / "s", [cells], [add], recovery="weak") as engine:
        assert engine.sql("select * from cells order by id").rows() == before


def test_the_model_takes_a_protocol_only_where_threads_pay() -> None:
    assert choose_protocol("PL4", 1e6, 1000, 4, Thresholds()) is None
    assert choose_protocol("PL3", None, 1000, 4, Thresholds()) is None
    assert choose_protocol("PL3", 50.0, 1_000_000, 4, Thresholds()) is None
    assert choose_protocol("PL3", 1e5, 1000, 1, Thresholds()) is None
    decision = choose_protocol("PL3", 1e5, 1000, 4, Thresholds())
    assert decision is not None
    assert decision.scheme == "timestamp"
    assert "PL3" in decision.why
