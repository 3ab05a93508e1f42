"""Loading: a table is filled once; what cannot be its rows, or is not meant, is refused."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.durability.manifest import read_manifest, write_manifest
from headgate.engine import loading
from headgate.execution.interpreter import failures
from headgate.io import RealDisk
from headgate.state.rows import TableRows
from headgate.state.strings import StringPool

TS = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
owners = hg.Table("owners", "id bigint, email string", key="id", unique=["email"])
accounts = hg.Table(
    "accounts",
    "id bigint, owner bigint DEFAULT 0, n int DEFAULT 0, price decimal(9,2) DEFAULT 0",
    key="id",
    check="n >= 0 and n < 100",
)
cards = hg.Table("cards", "number string, owner bigint", key="number", references={"owner": owners})


@hg.transaction(event="id bigint, n bigint", compiled=False)
def put(event, row=accounts.at("id", create=True)):
    row.n = event.n


@hg.transaction(event="id bigint", compiled=False)
def close(event, row=accounts.at("id")):
    hg.delete(row)


TABLES = [owners, accounts, cards]
ROWS = [{"id": number, "n": number} for number in range(3)]


def opened(path: Path | None, **options: Any) -> hg.Engine:
    return hg.open(path, tables=TABLES, transactions=[put, close], **options)


def found(engine: hg.Engine) -> list[tuple[int, int]]:
    return engine.sql("select id, n from accounts order by id").rows()


# --- once, across restarts ------------------------------------------------------------------------


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_loaded_table_stays_as_it_is_in_every_later_life(
    tmp_path: Path, recovery: str, with_snapshot: bool
) -> None:
    with opened(tmp_path / "s", recovery=recovery) as engine:
        assert engine.load(accounts, ROWS) == 3
        assert engine.load(accounts, [{"id": 9}]) == 0
        engine.run(put, [{"id": 0, "n": 50}, {"id": 7, "n": 7}])
        if with_snapshot:
            engine.snapshot()
    for _ in range(2):
        with opened(tmp_path / "s", recovery=recovery) as engine:
            assert engine.load(accounts, ROWS) == 0
            assert found(engine) == [(0, 50), (1, 1), (2, 2), (7, 7)]


def test_a_loaded_table_whose_rows_are_all_gone_is_not_filled_again(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as engine:
        engine.load(accounts, ROWS)
        engine.run(close, [{"id": number} for number in range(3)])
    with opened(tmp_path / "s") as engine:
        assert engine.load(accounts, ROWS) == 0 and found(engine) == []


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_rows_that_events_made_before_the_first_load_are_an_error_with_the_choices(
    tmp_path: Path, recovery: str, with_snapshot: bool
) -> None:
    with opened(tmp_path / "s", recovery=recovery) as engine:
        engine.run(put, [{"id": 1, "n": 50}])
        if with_snapshot:
            engine.snapshot()
        assert engine.load(owners, [{"id": 1, "email": "a"}]) == 1  # no event wrote this one
    for _ in range(2):
        with opened(tmp_path / "s", recovery=recovery) as engine:
            assert engine.load(owners, [{"id": 2, "email": "b"}]) == 0
            assert engine.load(accounts, []) == 0
            with pytest.raises(hg.InputError) as refused:
                engine.load(accounts, ROWS)
            assert str(refused.value) == (
                "load 'accounts': the table was never loaded, but events made 1 row of it before: "
                "load it before the first events, or say what is meant: mode='missing' adds the "
                "rows whose keys are not there, mode='skip' leaves the table as it is"
            )
            assert engine.load(accounts, ROWS, mode="skip") == 0
            assert found(engine) == [(1, 50)]
    with opened(tmp_path / "s", recovery=recovery) as engine:
        assert engine.load(accounts, ROWS, mode="missing") == 2
        assert found(engine) == [(0, 0), (1, 50), (2, 2)]
    with opened(tmp_path / "s", recovery=recovery) as engine:
        assert engine.load(accounts, ROWS) == 0  # now it was
        assert engine.load(accounts, [*ROWS, {"id": 8}], mode="missing") == 1


def test_in_memory_it_is_the_same() -> None:
    engine = opened(None)
    engine.run(put, [{"id": 1, "n": 50}])
    with pytest.raises(hg.InputError, match="never loaded"):
        engine.load(accounts, ROWS)
    assert engine.load(accounts, ROWS, mode="missing") == 2
    assert engine.load(accounts, ROWS) == 0


def test_rows_that_came_and_went_leave_the_table_to_be_filled(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as engine:
        engine.run(put, [{"id": 1, "n": 50}, {"id": 2, "n": -1}])
        engine.run(close, [{"id": 1}])
    with opened(tmp_path / "s") as engine:
        assert engine.load(accounts, ROWS) == 3


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    disk, file = RealDisk(), str(path / "manifest.json")
    manifest = read_manifest(disk, file)
    change(manifest)
    write_manifest(disk, file, manifest)


def test_a_store_of_before_loads_were_noted_has_loaded_what_it_has(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as engine:
        engine.run(put, [{"id": 1, "n": 50}])
    rewrite_manifest(tmp_path / "s", lambda manifest: manifest.pop("loaded"))
    for _ in range(2):
        with opened(tmp_path / "s") as engine:
            assert engine.load(accounts, ROWS) == 0 and found(engine) == [(1, 50)]
            assert len(engine.sql("select * from owners").rows()) == 0
    with opened(tmp_path / "s") as engine:
        assert engine.load(owners, [{"id": 1, "email": "a"}]) == 1


def test_a_load_that_was_noted_and_never_came_is_no_load(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as engine:
        engine.run(put, [{"id": 1, "n": 50}])
    rewrite_manifest(tmp_path / "s", lambda manifest: manifest["loaded"].update(accounts=2))
    with opened(tmp_path / "s") as engine:
        with pytest.raises(hg.InputError, match="never loaded"):
            engine.load(accounts, ROWS)
        engine.run(put, [{"id": 2, "n": 50}])  # epoch 2 is another's
    with opened(tmp_path / "s") as engine, pytest.raises(hg.InputError, match="never loaded"):
        engine.load(accounts, ROWS)
    assert json.dumps(StoreReader.open(tmp_path / "s").manifest["loaded"]) == "{}"


def test_an_unknown_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(hg.InputError, match=r"mode is 'once' .*'missing' or 'skip', not 'all'"):
        opened(None).load(accounts, ROWS, mode="all")


# --- bad rows are refused, whatever the table holds -----------------------------------------------

BAD: dict[str, tuple[hg.Table, Any, str]] = {
    "an unknown column": (accounts, [{"id": 1, "m": 1}], "no column 'm'"),
    "a missing key": (accounts, [{"n": 1}], "no column 'id'"),
    "a wrong type": (accounts, [{"id": 1}, {"id": "x"}], "should be bigint; in row 1 'x' is a str"),
    "an Arrow type": (accounts, pa.table({"id": ["x"]}), "the column is string"),
    "out of range": (accounts, [{"id": 1, "n": 2**31}], "'n': the value in row 0 is out of range"),
    "not exact": (accounts, [{"id": 1, "n": 0.5}], "'n': the value in row 0 is not exact"),
    "a null": (accounts, [{"id": 1}, {"id": None}], "'id': the value in row 1 is null"),
    "a key twice": (accounts, [{"id": 1}, {"id": 1}], "two of the rows have the key id=1"),
    "a check": (
        accounts,
        [{"id": 1, "n": -1}],
        "the row id=1 fails the check 'n >= 0 and n < 100'",
    ),
    "many checks": (
        accounts,
        [{"id": n, "n": n - 5} for n in range(9)],
        "the rows id=0 | id=1 | id=2 and others fail the check",
    ),
    "a unique": (
        owners,
        [{"id": 1, "email": "a"}, {"id": 2, "email": "a"}],
        "the row id=2: unique failed: owners: email",
    ),
}


CHECKS = (
    "n >= 0 and n < 100", "n is null or n between -5 and 5", "n <> 7 or text = 'b'",
    "length(text) < 3 and text not like 'b%'", "text <= 'ab' or text in ('b', 'zz')",
    "price * 2 < 1.5 or n > 3", "rate < 0.5 or rate > 1e300", "n * 1844674407370955161 <> 0",
    "ts >= timestamp '2024-01-01'", "is_open or n = 1",
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_few_rows_are_judged_by_the_interpreter_as_many_by_compiled_code(check: str) -> None:
    draw = random.Random(check)
    columns = "id bigint, n bigint NULL, text string, price decimal(9,2), rate double, "
    table = hg.Table("t", columns + "ts timestamp, is_open boolean", key="id", check=check)
    rows = TableRows(table, StringPool())
    given = [
        {
            "id": number,
            "n": draw.choice((None, -(2**63), -6, -1, 0, 1, 3, 5, 7, 99, 100, 2**63 - 1)),
            "text": draw.choice(("", "a", "ab", "b", "bä", "abc", "zz", "\U0010ffff")),
            "price": decimal.Decimal(draw.choice(("-1.00", "0.75", "0.74", "9999999.99"))),
            "rate": draw.choice((0.0, -0.0, 0.5, float("nan"), float("inf"), -1e308)),
            "ts": TS + datetime.timedelta(microseconds=draw.randint(-1, 1)),
            "is_open": draw.random() < 0.5,
        }
        for number in range(60)
    ]
    slots = rows.load(loading.read_rows(table, given), 1)
    rows.pool.add_literals(sorted(table.check.texts))
    plain = failures(rows, slots, len(slots))
    assert 0 < len(plain) < len(slots)
    assert plain == loading._compiled_failures(rows, slots, len(slots))
    assert plain[:2] == failures(rows, slots, 2) == loading._compiled_failures(rows, slots, 2)


@pytest.mark.parametrize("few", [0, 64])
def test_rows_that_fail_a_check_are_named_however_many_come(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "FEW_ROWS", few)
    for what in ("a check", "many checks"):
        table, rows, words = BAD[what]
        engine = opened(None)
        with pytest.raises(hg.InputError, match=re.escape(words)):
            engine.load(table, rows)
        assert found(engine) == []


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("mode", ["once", "missing", "skip"])
def test_bad_rows_are_refused_in_the_same_words_whatever_the_table_holds(
    what: str, mode: str
) -> None:
    table, rows, words = BAD[what]
    fresh, loaded, written = opened(None), opened(None), opened(None)
    loaded.load(accounts, ROWS)
    loaded.load(owners, [{"id": 7, "email": "z"}])
    written.run(put, [{"id": 7, "n": 7}])
    said = []
    for engine in (fresh, loaded, written):
        before = [engine.sql(f"select * from {name}").rows() for name in ("accounts", "owners")]
        with pytest.raises(hg.InputError) as refused:
            engine.load(table, rows, mode=mode)
        said.append(str(refused.value))
        assert words in said[-1]
        after = [engine.sql(f"select * from {name}").rows() for name in ("accounts", "owners")]
        assert before == after
    assert len(set(said)) == 1


def test_references_are_held_to_the_rows_there_are() -> None:
    engine = opened(None)
    with pytest.raises(hg.InputError) as refused:
        engine.load(cards, [{"number": "a", "owner": 1}, {"number": "b", "owner": 2}])
    assert "the rows number='a' | number='b': reference failed" in str(refused.value)
    assert "load 'owners' first" in str(refused.value)
    engine.load(owners, [{"id": 1, "email": "a"}])
    assert engine.load(cards, [{"number": "a", "owner": 1}]) == 1
    with pytest.raises(hg.InputError, match="the row number='b': reference failed"):
        engine.load(cards, [{"number": "b", "owner": 2}], mode="missing")
    assert engine.load(cards, [{"number": "a", "owner": 2}], mode="missing") == 0  # it is there


def test_missing_rows_are_held_to_the_unique_columns_of_those_there_are() -> None:
    engine = opened(None)
    engine.load(owners, [{"id": 1, "email": "a"}])
    with pytest.raises(hg.InputError, match="the row id=2: unique failed: owners: email"):
        engine.load(owners, [{"id": 2, "email": "a"}, {"id": 3, "email": "c"}], mode="missing")
    assert engine.load(owners, [{"id": 2, "email": "b"}], mode="missing") == 1


def test_a_null_is_refused_and_what_is_absent_takes_the_default() -> None:
    columns: Sequence[Any] = (
        pa.array([None, 5], pa.int64()),
        pa.array([float("nan"), 5.0]),
        pa.array([None, 5]).dictionary_encode(null_encoding="encode"),
    )
    engine = opened(None)
    for column in columns:
        with pytest.raises(hg.InputError, match="column 'n': the value in row 0 is null"):
            engine.load(accounts, pa.table({"id": [1, 2], "n": column}))
    with pytest.raises(hg.InputError, match="column 'n': the value in row 1 is null"):
        engine.load(accounts, [{"id": 1}, {"id": 2, "n": None}])
    assert engine.load(accounts, [{"id": 1}, {"id": 2, "n": 5}]) == 2
    assert found(engine) == [(1, 0), (2, 5)]
