"""Calls with a key run once: sent again, at once or after a restart, they get the same result."""

from __future__ import annotations

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.engine.calls.calling import Call
from headgate.engine.calls.keyed import KeyedCalls
from headgate.testing import SerialOracle

accounts = hg.Table(
    "accounts", "id bigint, balance decimal(12,2), seen timestamp DEFAULT '1970-01-01 00:00:00'",
    key="id", check="balance >= 0",
)  # fmt: skip
EVENT = "src bigint, dst bigint, amount decimal(12,2), ts timestamp"


@hg.transaction(event=EVENT, compiled=False)
def move(
    event: Any,
    src: Any = accounts.at("src"),
    dst: Any = accounts.at("dst"),
    out: Any = hg.output("left decimal(12,2), seen timestamp, day date, share double, text string"),
) -> Any:
    src.balance -= event.amount
    dst.balance += event.amount
    src.seen = event.ts
    out.left = src.balance
    out.seen = event.ts
    out.share = 0.1


@hg.transaction(event="id bigint", compiled=False)
def double(event: Any, account: Any = accounts.at("id")) -> Any:
    account.balance += account.balance


NOON = datetime.datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=datetime.UTC)
ROWS = [{"id": number, "balance": Decimal(100)} for number in range(10)]
PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [move, double]}


def pay(amount: str, src: int | None = 1, dst: int = 2) -> dict[str, Any]:
    return {"src": src, "dst": dst, "amount": Decimal(amount), "ts": NOON}


def opened(path: Path | None, **options: Any) -> hg.Engine:
    engine = hg.open(path, **PROGRAM, **options)
    engine.load(accounts, ROWS)
    return engine


def contents(engine: hg.Engine) -> list[dict[str, Any]]:
    return engine.sql("select * from accounts order by id").dicts()


def expected(calls: list[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """What the oracle has after these calls."""
    oracle = SerialOracle(PROGRAM["tables"], PROGRAM["transactions"])
    oracle.load(accounts, ROWS)
    for transaction, columns in calls:
        oracle.call(transaction, **columns)
    return oracle.table("accounts")


def test_the_same_key_gets_the_same_result_and_one_effect() -> None:
    with opened(None) as engine:
        first = engine.call_once("a", move, **pay("5.25"))
        assert first.committed and first.left == Decimal("94.75") and first.seen == NOON
        assert dict(engine.call_once("a", move, **pay("5.25"))) == dict(first)
        assert engine.call_once("b", move, **pay("5.25")).left == Decimal("89.50")
        assert contents(engine) == expected([(move, pay("5.25"))] * 2)


def test_a_call_is_the_same_however_its_values_are_written() -> None:
    with opened(None) as engine:
        first = engine.call_once("a", move, **pay("5"))
        zone = datetime.timezone(datetime.timedelta(hours=5))
        other = {**pay("5.00"), "ts": NOON.astimezone(zone)}
        assert dict(engine.call_once("a", move, **other)) == dict(first)


@pytest.mark.parametrize(
    ("transaction", "columns"), [(move, pay("5.01")), (move, pay("5", dst=3)), (double, {"id": 1})]
)
def test_a_key_for_another_call_is_refused(transaction: Any, columns: dict[str, Any]) -> None:
    with opened(None) as engine:
        engine.call_once("a", move, **pay("5"))
        with pytest.raises(hg.ConflictError, match="'a'"):
            engine.call_once("a", transaction, **columns)
        assert contents(engine) == expected([(move, pay("5"))])


@pytest.mark.parametrize("key", ["", "x" * 256, None, 7])
def test_a_key_is_a_short_text(key: Any) -> None:
    with opened(None) as engine, pytest.raises(hg.InputError, match="key"):
        engine.call_once(key, move, **pay("5"))


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_keys_are_known_after_a_restart(tmp_path: Path, recovery: str, snapshot: bool) -> None:
    calls = [("a", pay("5")), ("b", pay("500")), ("c", pay("1", src=None)), ("d", pay("2.50"))]
    with opened(tmp_path / "bank", recovery=recovery) as engine:
        told = [dict(engine.call_once(key, move, **columns)) for key, columns in calls]
        assert [one["outcome"] for one in told] == [
            "committed", "aborted", "rejected", "committed",
        ]  # fmt: skip
        if snapshot:
            images = engine._memory.images() if recovery == "weak" else None
            engine._journal.store.snapshot(engine.epoch, images)
    for _ in range(2):
        with opened(tmp_path / "bank", recovery=recovery) as engine:
            before = engine.epoch
            again = [dict(engine.call_once(key, move, **columns)) for key, columns in calls]
            assert again == told
            assert engine.epoch == before
            assert contents(engine) == expected([(move, columns) for _, columns in calls])
            with pytest.raises(hg.ConflictError):
                engine.call_once("a", move, **pay("6"))


def test_keys_outlive_the_log_they_came_in(tmp_path: Path) -> None:
    retain = hg.Retention(snapshots=1)
    with opened(tmp_path / "bank", retain=retain) as engine:
        told = dict(engine.call_once("a", move, **pay("5")))
        for _ in range(2):
            engine.call(double, id=5)
            engine._journal.store.snapshot()
        assert StoreReader.open(tmp_path / "bank").first_epoch() > told["epoch"]
    with opened(tmp_path / "bank", retain=retain) as engine:
        assert dict(engine.call_once("a", move, **pay("5"))) == told


def test_many_threads_with_one_key_run_it_once(tmp_path: Path) -> None:
    with opened(tmp_path / "bank", durability="group") as engine:
        start = threading.Barrier(8)

        def work(number: int) -> list[dict[str, Any]]:
            start.wait(60)
            found = []
            for step in range(10):
                amount = str(step)
                found.append(dict(engine.call_once(f"key {step}", move, **pay(amount))))
            return found

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(work, range(8)))
        assert all(one == found[0] for one in found)
        assert contents(engine) == expected([(move, pay(str(step))) for step in range(10)])


def test_calls_handed_in_together_have_answers_of_their_own() -> None:
    calls = [
        Call(move, pay("1"), "a"),
        Call(double, {"id": 1}),
        Call(move, pay("1"), "a"),
        Call(move, pay("2"), "a"),
        Call(move, {**pay("1"), "src": "one"}),
        Call(move, {"src": 1}),
        Call(move, pay("1", src=None)),
        Call(move, pay("3"), "b"),
    ]
    with opened(None) as engine:
        found = engine.call_all(calls)
        assert [type(one) for one in found] == [
            hg.Result, hg.Result, hg.Result, hg.ConflictError,
            hg.InputError, hg.InputError, hg.Result, hg.Result,
        ]  # fmt: skip
        assert list(map(repr, found[:3:2])) == [repr(found[0])] * 2
        ran = sorted(
            (one.epoch, one.position, place)
            for place, one in enumerate(found)
            if isinstance(one, hg.Result) and one.committed and place != 2
        )
        order = [(calls[place].transaction, calls[place].columns) for _, _, place in ran]
        assert contents(engine) == expected(order)


def test_only_the_newest_keys_are_remembered() -> None:
    calls = KeyedCalls(count_max=3)
    for number in range(5):
        calls.note([(f"key {number}", "digest", hg.Result({"epoch": number}))])
    assert calls.count == 3
    known = [calls.find(f"key {number}", "digest") for number in range(5)]
    assert [None if one is None else one["epoch"] for one in known] == [None, None, 2, 3, 4]
    again = KeyedCalls(count_max=3)
    for image in calls.image():
        again.restore(image)
    known = [again.find(f"key {number}", "digest") for number in range(5)]
    assert [None if one is None else one["epoch"] for one in known] == [None, None, 2, 3, 4]
    again.note([("key 5", "digest", hg.Result({"epoch": 5}))])
    assert again.find("key 2", "digest") is None
    assert again.count == 3


def test_the_log_lists_no_table_of_the_engines_own(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from headgate.cli.commands import app

    with opened(tmp_path / "bank") as engine:
        engine.call_once("a", move, **pay("5"))
    for command in ("log", "tables"):
        shown = CliRunner().invoke(app, [command, str(tmp_path / "bank")])
        assert shown.exit_code == 0 and "__calls" not in shown.output
