"""A takeover that is refused costs nothing: the engine that has the store goes on."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import headgate as hg

accounts = hg.Table("accounts", "id bigint, name string, balance bigint", key="id")


def adding(table: hg.Table, times: int = 1) -> Any:
    @hg.transaction(event="id bigint, amount bigint", compiled=False)
    def add(event, account=table.at("id", create=True)):
        account.balance += event.amount * times

    return add


add = adding(accounts)
PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [add]}


def table(columns: str = "id bigint, name string, balance bigint", **more: Any) -> hg.Table:
    return hg.Table("accounts", columns, key="id", **more)


def program(one: hg.Table) -> dict[str, Any]:
    return {"tables": [one], "transactions": [adding(one)]}


wide = table("id bigint, name string, balance bigint, note string DEFAULT ''")
sums = hg.Table("sums", "id bigint, balance bigint", key="id")
owned = table(references={"id": "sums"})


REFUSED: dict[str, Any] = {
    "other columns": program(table("id bigint, name string, balance double")),
    "a check": program(table(check="balance >= 0")),
    "a bare column": program(table("id bigint, name string, balance bigint, note string")),
    "a table that is not named": {"tables": [], "transactions": [adding(sums)]},
    "another definition": {"tables": [accounts], "transactions": [adding(wide)]},
    "no parent": program(owned),
    "no tables": {"tables": "accounts", "transactions": [add]},
    "rows that break what is new": program(table(unique=["name"])),
    "rows without a parent": {"tables": [owned, sums], "transactions": [adding(owned)]},
    "a new column that all have": program(
        table("id bigint, name string, balance bigint, note string DEFAULT ''", unique=["note"])
    ),
    "recovery": {**PROGRAM, "recovery": "none"},
    "changed code": {**PROGRAM, "changed_code": "yes"},
    "durability": {**PROGRAM, "durability": "fast"},
    "a migration that cannot be": {
        **PROGRAM,
        "migrations": [hg.Migration("one").drop_column("accounts", "colour")],
    },
    "a migration that leads elsewhere": {
        **PROGRAM,
        "migrations": [hg.Migration("one").add_column("accounts", "note string DEFAULT ''")],
    },
    "a migration whose check fails": {
        **program(table(check="balance > 1000")),
        "migrations": [hg.Migration("one").set_check("accounts", "balance > 1000")],
    },
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "bank"


@pytest.fixture
def running(store: Path) -> Any:
    with hg.open(store, **PROGRAM) as engine:
        engine.call(add, id=1, amount=10)
        engine.call(add, id=2, amount=20)
        yield engine


@pytest.mark.parametrize("refused", REFUSED)
def test_a_refused_takeover_leaves_the_engine_at_work(
    store: Path, running: hg.Engine, refused: str
) -> None:
    with pytest.raises((hg.DeclarationError, hg.InputError)):
        hg.open(store, **REFUSED[refused], takeover=True)
    assert running.stopped is None
    assert running.call(add, id=1, amount=5).committed
    running.close()
    with hg.open(store, **PROGRAM) as engine:
        assert engine.get(accounts, 1) == {"id": 1, "name": "", "balance": 15}
        assert engine.epoch == 3


@pytest.mark.parametrize("refused", REFUSED)
def test_what_a_takeover_refuses_is_refused_in_the_same_words_as_without_one(
    store: Path, running: hg.Engine, refused: str
) -> None:
    with pytest.raises(hg.HeadgateError) as before:
        hg.open(store, **REFUSED[refused], takeover=True)
    running.close()
    with pytest.raises(hg.HeadgateError) as after:
        hg.open(store, **REFUSED[refused])
    assert (type(before.value), str(before.value)) == (type(after.value), str(after.value))


def test_a_takeover_by_a_program_that_changes_the_store_goes_through(
    store: Path, running: hg.Engine
) -> None:
    more = table("id bigint, name string, balance bigint, note string DEFAULT 'x'", unique=["id"])
    moved = [hg.Migration("one").add_column("accounts", "note string DEFAULT 'x'")]
    with hg.open(store, **program(more), migrations=moved, takeover=True) as engine:
        assert running.stopped is not None
        assert engine.get("accounts", 2) == {"id": 2, "name": "", "balance": 20, "note": "x"}


def test_weak_recovery_is_not_taken_over_by_other_code(store: Path) -> None:
    changed = {"tables": [accounts], "transactions": [adding(accounts, 2)]}
    weak: dict[str, Any] = {"recovery": "weak", "takeover": True}
    engine = hg.open(store, **PROGRAM, **weak)
    engine.call(add, id=1, amount=10)
    with pytest.raises(hg.StoreError, match=r"code that has changed.*engine\.snapshot\(\)"):
        hg.open(store, **changed, **weak)
    assert engine.call(add, id=1, amount=10).committed
    engine.snapshot()
    with hg.open(store, **changed, **weak) as after:
        after.call("add", id=1, amount=10)
        assert after.get(accounts, 1) == {"id": 1, "name": "", "balance": 40}


def test_weak_recovery_is_taken_over_by_other_code_where_that_is_accepted(store: Path) -> None:
    changed = {"tables": [accounts], "transactions": [adding(accounts, 2)]}
    engine = hg.open(store, **PROGRAM, recovery="weak")
    engine.call(add, id=1, amount=10)
    again: dict[str, Any] = {"changed_code": "accept", "takeover": True}
    with hg.open(store, **changed, recovery="weak", **again) as after:
        assert after.get(accounts, 1) == {"id": 1, "name": "", "balance": 20}


def test_an_engine_that_stopped_by_itself_is_taken_over_unheard(store: Path) -> None:
    engine = hg.open(store, **PROGRAM)
    engine.call(add, id=1, amount=10)
    with pytest.raises(RuntimeError), engine._guard.all_or_stopped():
        raise RuntimeError("torn")
    with hg.open(store, **program(table(unique=["balance"])), takeover=True) as after:
        assert after.get("accounts", 1) == {"id": 1, "name": "", "balance": 10}
    gc.collect()


def test_an_engine_that_stopped_by_itself_is_opened_again_without_a_word(store: Path) -> None:
    engine = hg.open(store, **PROGRAM)
    engine.call(add, id=1, amount=10)
    with pytest.raises(RuntimeError), engine._guard.all_or_stopped():
        raise RuntimeError("torn")
    with hg.open(store, **program(table(unique=["balance"]))) as after:
        assert after.get("accounts", 1) == {"id": 1, "name": "", "balance": 10}
    gc.collect()


@pytest.mark.parametrize("wrong", [{"recovery": "none"}, {"changed_code": "yes"}])
def test_a_wrong_word_makes_no_folder(store: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(hg.InputError, match="recovery is 'strong' or 'weak'"):
        hg.open(store, **PROGRAM, **wrong)
    assert not store.exists()
