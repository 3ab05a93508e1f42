"""Unique columns and references: declaration, loading, migration, and what a user is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate as hg

customers = hg.Table("customers", "id bigint, name string", key="id")
COLUMNS = "id bigint, customer bigint, email string, region int"


def accounts_with(**constraints: Any) -> hg.Table:
    return hg.Table("accounts", COLUMNS, key="id", **constraints)


accounts = accounts_with(unique=["email"], references={"customer": customers})


def plain(table: hg.Table, parent: hg.Table = customers) -> list[hg.Transaction]:
    @hg.transaction(event="id bigint, customer bigint, email string", compiled=False)
    def put(event, row=table.at("id", create=True)):
        row.customer = event.customer
        row.email = event.email

    @hg.transaction(event="a bigint, b bigint", compiled=False)
    def swap(event, a=table.at("a"), b=table.at("b")):
        email = a.email
        a.email = b.email
        b.email = email

    @hg.transaction(event="id bigint", compiled=False)
    def drop(event, customer=parent.at("id")):
        hg.delete(customer)

    @hg.transaction(event="id bigint, account bigint", compiled=False)
    def drop_both(event, customer=parent.at("id"), row=table.at("account")):
        hg.delete(customer)
        hg.delete(row)

    return [put, swap, drop, drop_both]


@pytest.fixture
def bank() -> Any:
    put, swap, drop, drop_both = plain(accounts)
    with hg.open(None, [customers, accounts], [put, swap, drop, drop_both]) as engine:
        engine.load(customers, [{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}])
        rows = [{"id": n, "customer": 1, "email": f"{n}@x", "region": 0} for n in (1, 2)]
        engine.load(accounts, rows)
        yield engine, {one.name: one for one in (put, swap, drop, drop_both)}


def test_a_transaction_that_breaks_a_constraint_aborts_with_its_name(bank: Any) -> None:
    engine, do = bank
    twice = engine.call(do["put"], id=3, customer=1, email="1@x")
    assert (twice.outcome, twice.reason) == ("aborted", "unique failed: accounts: email")
    orphan = engine.call(do["put"], id=3, customer=9, email="3@x")
    assert orphan.reason == "reference failed: accounts.customer: customers"
    parent = engine.call(do["drop"], id=1)
    assert parent.reason == "reference failed: accounts.customer: customers"
    assert engine.sql("select count(*) from accounts").rows() == [(2,)]


def test_a_constraint_may_be_broken_until_the_transaction_ends(bank: Any) -> None:
    engine, do = bank
    assert engine.call(do["swap"], a=1, b=2).committed
    assert engine.sql("select email from accounts order by id").rows() == [("2@x",), ("1@x",)]


def test_a_parent_goes_when_its_last_child_does(bank: Any) -> None:
    engine, do = bank
    assert engine.call(do["put"], id=7, customer=2, email="7@x").committed
    assert not engine.call(do["drop"], id=2).committed
    assert engine.call(do["drop_both"], id=2, account=7).committed
    assert engine.call(do["put"], id=7, customer=2, email="7@x").reason.startswith("reference")


def test_an_aborted_transaction_leaves_no_trace_in_the_index(bank: Any) -> None:
    engine, do = bank
    assert not engine.call(do["put"], id=3, customer=9, email="3@x").committed
    assert engine.call(do["put"], id=4, customer=1, email="3@x").committed
    assert not engine.call(do["put"], id=3, customer=1, email="3@x").committed


def test_a_batch_that_may_break_a_constraint_runs_serially_and_says_why(bank: Any) -> None:
    engine, do = bank
    for scheme in ("auto", "strata", "lock"):
        engine.run(do["put"], [{"id": 1, "customer": 1, "email": "1@x"}], scheme=scheme, threads=2)
        decision = engine.decisions()[-1]
        assert decision.scheme == "serial"
        assert "unique accounts: email" in decision.why


def test_the_index_grows_with_the_table() -> None:
    things = hg.Table("things", "id bigint, code bigint", key="id", unique=["code"])

    @hg.transaction(event="id bigint, code bigint", compiled=False)
    def put(event, thing=things.at("id", create=True)):
        thing.code = event.code

    with hg.open(None, [things], [put]) as engine:
        for first in range(0, 1500, 250):
            span = range(first, first + 250)
            fresh = engine.run(put, [{"id": n, "code": 7 * n} for n in span])
            assert set(fresh.column("outcome").to_pylist()) == {"committed"}
            again = engine.run(put, [{"id": 10_000 + n, "code": 7 * (n // 2)} for n in span])
            assert set(again.column("reason").to_pylist()) == {"unique failed: things: code"}


# --- loading --------------------------------------------------------------------------------------


def test_a_load_that_breaks_a_constraint_is_refused_whole() -> None:
    with hg.open(None, [customers, accounts]) as engine:
        row = {"id": 1, "customer": 1, "email": "a", "region": 0}
        with pytest.raises(hg.InputError, match=r"id=1.*reference failed.*load 'customers' first"):
            engine.load(accounts, [row])
        engine.load(customers, [{"id": 1, "name": "ada"}])
        with pytest.raises(hg.InputError, match=r"id=2.*unique failed: accounts: email"):
            engine.load(accounts, [row, {**row, "id": 2}])
        assert engine.load(accounts, [row]) == 1


# --- declaration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        ({"unique": ["nothing"]}, "no column 'nothing'"),
        ({"unique": [("email", "email")]}, "named twice"),
        ({"unique": 7}, "a list of columns"),
        ({"unique": [()]}, "name a column"),
        ({"references": {"nothing": customers}}, "no column 'nothing'"),
        ({"references": {"email": customers}}, "'email' is a string"),
        ({"references": {("customer", "region"): customers}}, "its key has 1 column"),
        ({"references": {"customer": 5}}, "is not a table"),
        ({"references": ["customer"]}, "a dict"),
    ],
)
def test_a_bad_constraint_is_refused_where_it_is_declared(constraints: Any, words: str) -> None:
    with pytest.raises(hg.DeclarationError, match=words):
        accounts_with(**constraints)


def test_a_column_whose_equal_values_differ_in_bytes_cannot_be_unique() -> None:
    with pytest.raises(hg.DeclarationError, match="'x' is a double"):
        hg.Table("t", "id int, x double", key="id", unique=["x"])


def test_a_reference_to_a_table_the_engine_has_not_is_refused() -> None:
    with pytest.raises(hg.DeclarationError, match="'customers', which is not among the tables"):
        hg.open(None, [accounts])
    staff = hg.Table("staff", "id int, boss bigint", key="id", references={"boss": "staff"})
    with pytest.raises(hg.DeclarationError, match=r"'boss' is a bigint, the key staff.id a int"):
        hg.open(None, [staff])


def test_a_table_may_refer_to_itself() -> None:
    staff = hg.Table("staff", "id bigint, boss int", key="id", references={"boss": "staff"})
    with hg.open(None, [staff]) as engine:
        assert engine.load(staff, [{"id": 1, "boss": 1}, {"id": 2, "boss": 1}]) == 2


# --- a store --------------------------------------------------------------------------------------


def store_of(path: Path, emails: list[str]) -> None:
    with hg.open(path, [customers, accounts_with()]) as engine:
        engine.load(customers, [{"id": 1, "name": "ada"}])
        rows = [
            {"id": n, "customer": 1 + (email == "orphan"), "email": email, "region": 0}
            for n, email in enumerate(emails)
        ]
        engine.load("accounts", rows)


def test_a_constraint_that_holds_can_be_added_and_is_then_kept(tmp_path: Path) -> None:
    store_of(tmp_path / "bank", ["a", "b"])
    put, *_ = plain(accounts)
    with hg.open(tmp_path / "bank", [customers, accounts], [put]) as engine:
        assert not engine.call(put, id=5, customer=1, email="a").committed
        assert engine.call(put, id=5, customer=1, email="c").committed
    with hg.open(tmp_path / "bank") as engine:  # the store knows its constraints
        assert engine.tables["accounts"] == accounts
    with hg.open(tmp_path / "bank", [customers, accounts], [put]) as engine:
        assert not engine.call(put, id=6, customer=1, email="c").committed


@pytest.mark.parametrize(
    ("emails", "words"), [(["a", "b", "a"], "id=2 breaks"), (["a", "orphan"], "id=1 breaks")]
)
def test_a_constraint_that_does_not_hold_is_refused_and_nothing_is_touched(
    tmp_path: Path, emails: list[str], words: str
) -> None:
    store_of(tmp_path / "bank", emails)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(hg.DeclarationError, match=words):
        hg.open(tmp_path / "bank", [customers, accounts])
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.name for path in before} <= {path.name for path in after}
    # The rows are judged by a writer, and each writer takes the lock and begins its own head.
    changed = {path.name for path in before if after.get(path) != before[path]}
    assert changed <= {"lock", "head"}
    with hg.open(tmp_path / "bank", [customers, accounts_with()]) as engine:
        assert engine.sql("select count(*) from accounts").rows() == [(len(emails),)]


def test_a_constraint_of_the_store_cannot_be_left_out(tmp_path: Path) -> None:
    with hg.open(tmp_path / "bank", [customers, accounts]):
        pass
    with pytest.raises(hg.DeclarationError, match="the store has the constraint 'unique accounts"):
        hg.open(tmp_path / "bank", [customers, accounts_with(references={"customer": customers})])
