"""Rows that expire: with constraints, watermarks, late events and stops, as the oracle has it."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import InvariantError
from headgate.execution import expiring
from headgate.kernels import sweeping
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property.family import FAMILY
from tests.property.family_expiry import ROUTED, cards, clubs, guests, routes
from tests.property.harness import Harness, same_bytes, sorted_table
from tests.property.test_durable import RECOVERY, STOPS, Life

TABLES = [clubs, cards]
SECONDS = st.integers(0, 20).map(lambda s: making.START + datetime.timedelta(seconds=s))
KINDS = st.sampled_from(("enroll", "enroll", "befriend", "befriend", "look", "fly"))
NOTHING = np.empty(0, np.int64)
PLAIN = dict.fromkeys(ROUTED, False)
MIXED = {"enroll": True, "befriend": False, "look": True}


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kind": draw(KINDS),
        "ts": draw(st.one_of(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.none())),
        "id": draw(making.SMALL),
        "src": draw(making.SMALL),
        "other": draw(making.SMALL),
        "name": draw(st.sampled_from(("a", "b", "c", "d", "e"))),
        "until": draw(st.one_of(st.none(), SECONDS)),
        "n": draw(st.integers(0, 9)),
    }


OPTIONS = st.sampled_from(
    (
        {"order_by": "ts"},
        {"order_by": "ts, id"},
        {"order_by": "ts", "watermark": "3 seconds"},
        {"order_by": "ts", "watermark": "3 seconds", "late": "append"},
        {},
    )
)


def test_rows_that_others_refer_to_stay_until_those_go() -> None:
    ts = making.START
    second = datetime.timedelta(seconds=1)
    engine = hg.open(None, tables=TABLES, transactions=routes(PLAIN).values())
    first = {"kind": "enroll", "ts": ts, "id": 1, "src": 1, "name": "a", "until": ts, "n": 1}
    other = {**first, "id": 2, "src": 2, "name": "b"}
    options = {"route_by": "kind", "order_by": "ts"}
    engine.run(routes(PLAIN), [first], **options)
    assert engine.counts() == {"clubs": 1, "cards": 1}, "the card keeps its club"
    assert engine.metrics().overdue == {"clubs": 1, "cards": 0}
    engine.run(routes(PLAIN), [{**other, "ts": ts + 2 * second}], **options)
    assert [row["id"] for row in engine.sql("select id from clubs").dicts()] == [2]
    assert engine.metrics().expired == {"clubs": 1, "cards": 1}
    engine.close()


@making.examples(25)
@given(
    batches=making.batches(events(), 4),
    options=OPTIONS,
    mix=st.sampled_from((PLAIN, MIXED)),
    room=st.sampled_from((1, 4096)),
)
def test_constraints_are_kept_true_as_rows_expire(
    batches: Any, options: Any, mix: Any, room: int
) -> None:
    options = {"route_by": "kind", **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiring, "NOTED_ROOM_MAX", room)  # where there is too little, all is asked
        engine = hg.open(None, tables=TABLES, transactions=routes(mix).values())
        oracle = SerialOracle(TABLES)
        for events in batches:
            expected = oracle.run(routes(mix), events, **options)
            assert results_difference(engine.run(routes(mix), events, **options), expected) is None
            assert difference(engine, oracle) is None
        if "watermark" in options:
            expected = oracle.flush(routes(mix), **options)
            engine.run(routes(mix), [], **options)
            assert results_difference(engine.flush(routes(mix), **options), expected) is None
        assert difference(engine, oracle) is None
        engine.close()


@making.examples(15)
@given(batches=making.batches(events(), 5), options=OPTIONS, stops=STOPS, recovery=RECOVERY)
def test_what_has_expired_stays_so_over_a_stop(
    batches: Any, options: Any, stops: Any, recovery: str
) -> None:
    options = {"route_by": "kind", "name": "s", **options}
    life, oracle = Life(TABLES, routes(PLAIN).values(), recovery), SerialOracle(TABLES)
    for events, stop in zip(batches, stops, strict=False):
        life.stop(stop)
        expected = oracle.run(routes(PLAIN), events, **options)
        assert (
            results_difference(life.engine.run(routes(PLAIN), events, **options), expected) is None
        )
    life.stop("kill")
    assert difference(life.engine, oracle) is None
    if "watermark" in options:
        life.engine.run(routes(PLAIN), [], **options)
        expected = oracle.flush(routes(PLAIN), **options)
        assert results_difference(life.engine.flush(routes(PLAIN), **options), expected) is None
    life.stop("close")
    assert difference(life.engine, oracle) is None


@making.examples(10)
@given(data=st.data())
def test_any_batch_size_gives_the_same_rows(data: st.DataObject) -> None:
    member = FAMILY["drop_in"]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    given_events = data.draw(making.batch(making.sound_events(member), 16), "events")
    ordered = sorted(given_events, key=lambda event: event["ts"])
    harness = Harness(["drop_in"], rows)
    for engine, compiled in zip(harness.engines, (True, False), strict=True):
        size = data.draw(st.integers(1, 16))
        engine.run(member.form(compiled), ordered, order_by="ts", batch_size=size)
    one, other = (sorted_table(engine, guests) for engine in harness.engines)
    assert same_bytes(one, other)


# --- canaries -------------------------------------------------------------------------------------


def _differs(compiled: bool) -> bool:
    """Whether some plain events show a seeded bug."""
    second = datetime.timedelta(seconds=1)
    start = {"id": 1, "a": 3, "b": 0, "back": making.START, "n": 1}
    moments = (0, 1, 2, 3, 4, 6, 6, 7, 9, 12)
    events = [{**start, "ts": making.START + one * second, "id": one % 3} for one in moments]
    events += [{**events[-1], "ts": making.START + 13 * second, "n": 3, "id": 4}]
    drop_in, oracle = FAMILY["drop_in"].form(compiled), SerialOracle([guests])
    with hg.open(None, tables=[guests], transactions=[drop_in]) as engine:
        for batch in (events[:6], events[6:]):
            expected = oracle.run(drop_in, batch, order_by="ts")
            try:
                found = engine.run(drop_in, batch, order_by="ts")
            except InvariantError:
                return True
            if results_difference(found, expected) is not None:
                return True
        return difference(engine, oracle) is not None


def _go_early(patch: pytest.MonkeyPatch) -> None:
    begin = expiring.Expiring.begin

    def seeded(self: Any, run: Any) -> None:
        self.moments = self.moments + 1_000_000
        begin(self, run)

    patch.setattr(expiring.Expiring, "begin", seeded)


def _go_late(patch: pytest.MonkeyPatch) -> None:
    begin = expiring.Expiring.begin

    def seeded(self: Any, run: Any) -> None:
        self.moments = self.moments - 1
        begin(self, run)

    patch.setattr(expiring.Expiring, "begin", seeded)


def _forget_the_end(patch: pytest.MonkeyPatch) -> None:
    sweep = expiring.Expiring._sweep

    def seeded(self: Any, time: int) -> None:
        if time != self.horizon:
            sweep(self, time)

    patch.setattr(expiring.Expiring, "_sweep", seeded)


def _forget_the_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(expiring.ExpiringTable, "due", lambda self, time: (NOTHING, NOTHING))


def _forget_the_made(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(expiring.Expiring, "note_touched", lambda self, touched: None)


@pytest.mark.parametrize(
    ("seed", "compiled"),
    [
        (_go_late, True),
        (_go_early, True),
        (_forget_the_end, True),
        (_forget_the_known, True),
        (_forget_the_made, False),
    ],
)
def test_a_row_that_goes_too_early_or_too_late_is_seen(seed: Any, compiled: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        assert not _differs(compiled), "without the bug there is no difference"
        seed(patch)
        assert _differs(compiled)


def _clubs_differ() -> bool:
    """The same of rows that are unique and refer to each other."""
    first = {"ts": making.START, "until": making.START, "kind": "enroll", "n": 1, "src": 1}
    second = datetime.timedelta(seconds=1)
    moments, names = (0, 3, 6, 9, 12), ("a", "b", "a", "b", "a")
    events = [
        {**first, "ts": making.START + moment * second, "id": id, "name": name}
        for id, (moment, name) in enumerate(zip(moments, names, strict=True))
    ]
    oracle, options = SerialOracle(TABLES), {"route_by": "kind", "order_by": "ts"}
    with hg.open(None, tables=TABLES, transactions=routes(PLAIN).values()) as engine:
        expected = oracle.run(routes(PLAIN), events, **options)
        found = engine.run(routes(PLAIN), events, **options)
        return bool(results_difference(found, expected) or difference(engine, oracle))


@pytest.mark.parametrize(
    ("word", "differs"),
    [
        (sweeping.UNIQUES, _clubs_differ),
        (sweeping.REFERENCES, _clubs_differ),
        (sweeping.CHILDREN, _clubs_differ),
        (sweeping.INDEXES, lambda: _differs(False)),
    ],
    ids=["unique", "references", "children", "index"],
)
def test_what_a_row_that_goes_leaves_behind_is_seen(word: int, differs: Any) -> None:
    tell = expiring.Expiring._tell

    def without(self: Any, record: Any, at: int, found: Any) -> Any:
        return tell(self, record, at, [] if at == word else found)

    with pytest.MonkeyPatch.context() as patch:
        assert not differs(), "without the bug there is no difference"
        patch.setattr(expiring.Expiring, "_tell", without)
        assert differs()
