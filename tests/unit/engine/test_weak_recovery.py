"""Weak recovery: the log holds the input, and opening the store runs it again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.engine import journal, rerun

accounts = hg.Table("accounts", "id bigint, balance bigint, note string", key="id")
EVENT = "ts timestamp, kind string, src bigint, dst bigint, amount bigint"


def move(event, src=accounts.at("src"), dst=accounts.at("dst", create=True)):
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    dst.note = "got"
    if event.amount == 3:
        hg.delete(dst)


def move_more(event, src=accounts.at("src"), dst=accounts.at("dst", create=True)):
    src.balance -= event.amount + 1
    dst.balance += event.amount


FIRST = hg.transaction(event=EVENT, compiled=False, name="move")(move)
CHANGED = hg.transaction(event=EVENT, compiled=False, name="move")(move_more)


def make_events(seed: int, count: int = 30) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "ts": seed * 1000 + chance.randrange(900),
            "kind": "move",
            "src": chance.randrange(4),
            "dst": chance.randrange(8),
            "amount": chance.randrange(6),
        }
        for _ in range(count)
    ]


def open_store(path: Path | None, transaction: Any = FIRST, **options: Any) -> hg.Engine:
    return hg.open(path, tables=[accounts], transactions=[transaction], **options)


def fill(engine: hg.Engine) -> None:
    rows = [{"id": number, "balance": 50, "note": ""} for number in range(4)]
    engine.load(accounts, rows)


def contents(engine: hg.Engine) -> Any:
    return engine.sql("select * from accounts").rows()  # in the order of their slots


def workload(engine: hg.Engine, transaction: Any = FIRST) -> None:
    options = {"order_by": "ts", "watermark": "200 microseconds"}
    engine.run(transaction, make_events(1), **options)
    engine.run({"move": transaction}, make_events(2), route_by="kind", order_by="ts")
    engine.run(transaction, make_events(3), **options)
    engine.flush(transaction, **options)
    engine.call(transaction, **make_events(4, 1)[0])


def test_an_undisturbed_engine_and_one_that_runs_its_input_again_agree(tmp_path: Path) -> None:
    with open_store(None) as plain:
        fill(plain)
        workload(plain)
        expected, epoch = contents(plain), plain.epoch
    with open_store(tmp_path / "store", recovery="weak") as engine:
        fill(engine)
        workload(engine)
        assert contents(engine) == expected
    for recovery in ("weak", "strong"):
        with open_store(tmp_path / "store", recovery=recovery) as again:
            assert contents(again) == expected
            assert again.epoch == epoch


def test_both_kinds_of_log_stand_in_one_store(tmp_path: Path) -> None:
    with open_store(None) as plain:
        fill(plain)
        for seed in range(6):
            plain.run(FIRST, make_events(seed), order_by="ts")
        expected = contents(plain)
    for seed in range(6):
        recovery = "weak" if seed % 2 else "strong"
        with open_store(tmp_path / "store", recovery=recovery) as engine:
            fill(engine)
            engine.run(FIRST, make_events(seed), order_by="ts")
    with open_store(tmp_path / "store") as engine:
        assert contents(engine) == expected


def test_changed_code_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", recovery="weak") as engine:
        fill(engine)
        engine.run(FIRST, make_events(1), order_by="ts")
        expected = contents(engine)
    with pytest.raises(hg.StoreError, match="code that has changed"):
        open_store(tmp_path / "store", CHANGED, recovery="weak")
    with open_store(tmp_path / "store", recovery="weak") as engine:
        assert contents(engine) == expected


def test_changed_code_runs_the_input_when_told_to(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", recovery="weak") as engine:
        fill(engine)
        engine.run(FIRST, make_events(1), order_by="ts")
        before = contents(engine)
    with open_store(tmp_path / "store", CHANGED, recovery="weak", changed_code="accept") as engine:
        assert contents(engine) != before


def test_code_that_cannot_be_fingerprinted_is_refused_at_once(tmp_path: Path) -> None:
    class Mood:
        def __init__(self, is_good: bool) -> None:
            self.is_good = is_good

    mood = Mood(True)

    def moody(event, src=accounts.at("src")):
        if not mood.is_good:
            return hg.abort("not today")

    transaction = hg.transaction(event=EVENT, compiled=False)(moody)
    with pytest.raises(hg.DeclarationError, match="fingerprint"):
        open_store(tmp_path / "store", transaction, recovery="weak")


def test_a_snapshot_of_a_weak_store_needs_no_input_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_LOG_BYTES", 1)
    with open_store(tmp_path / "store", recovery="weak") as engine:
        fill(engine)
        engine.run(FIRST, make_events(1), order_by="ts")
        expected = contents(engine)
    with open_store(tmp_path / "store", CHANGED) as engine:  # nothing is run again
        assert contents(engine) == expected


def test_unknown_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hg.InputError, match="'strong' or 'weak'"):
        open_store(tmp_path / "store", recovery="maybe")


numbers = hg.Table("numbers", "id bigint, value double", key="id")


@hg.transaction(event="id bigint, values array<double>, value double", compiled=False)
def note(event, row=numbers.at("id", create=True), out=hg.output("seen double")):
    row.value = event.value
    out.seen = event.value


@pytest.mark.parametrize(
    "options", [{}, {"updates": True}, {"carry": "value, values"}, {"order_by": "value"}]
)
def test_what_is_not_a_number_is_the_same_when_it_runs_again(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path, nan = tmp_path / "store", float("nan")
    events = [{"id": n, "values": [1.0, nan], "value": nan if n == 1 else n} for n in range(3)]
    with hg.open(path, tables=[numbers], transactions=[note], recovery="weak") as engine:
        engine.run(note, events, **options)
    with hg.open(path, tables=[numbers], transactions=[note], recovery="weak") as engine:
        assert repr(engine.scan(numbers).rows()) == "[(0, 0.0), (1, nan), (2, 2.0)]"


@pytest.mark.parametrize("other", [{"a": 2.0}, {"a": float("nan")}, {"a": None}, None])
def test_results_that_differ_beside_one_that_is_not_a_number_are_told(other: Any) -> None:
    kind, nan = pa.list_(pa.struct([("a", pa.float64())])), float("nan")
    one, another = (
        pa.table({"x": pa.array([[{"a": nan}, {"a": 1.0}], [found]], kind)})
        for found in ({"a": 1.0}, other)
    )
    again = pa.table({"x": pa.array([[{"a": nan}, {"a": 1.0}], [{"a": 1.0}]], kind)})
    assert rerun._are_same(one, again)
    assert not rerun._are_same(one, another)
