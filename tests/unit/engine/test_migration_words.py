"""Migrations that cannot be: each is refused with its name, its step, and words that help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headgate as hg

things = hg.Table("t", "id bigint, v int", key="id")


def m(name: str = "g") -> hg.Migration:
    return hg.Migration(name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with hg.open(tmp_path / "store", tables=[things]) as engine:
        engine.load(things, [{"id": number, "v": number // 2} for number in range(1, 14)])
    return tmp_path / "store"


def refused(store: Path, migration: hg.Migration) -> str:
    """What is said, which is the same in a dry run and for good, and changes nothing."""
    told = []
    for dry_run in (True, False):
        with pytest.raises((hg.InputError, hg.DeclarationError)) as error:
            hg.migrate(store, [migration], dry_run=dry_run)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "__slot" not in told[0] or "__slot" in repr(migration)
    return told[0]


@pytest.mark.parametrize(
    ("migration", "step"),
    [
        (m().set_check("t", "nope > 1").widen("t", "v bigint"), ".set_check('t', 'nope > 1')"),
        (
            m().set_check("t", "v >").rename_table("t", "u").add_column("u", "w int DEFAULT 1"),
            ".set_check('t', 'v >')",
        ),
        (
            m().add_unique("t", "nope").rename_column("t", "v", "w"),
            ".add_unique('t', 'nope')",
        ),
        (m().set_check("t", "x > 1").set_check("t", "y > 1"), ".set_check('t', 'x > 1')"),
    ],
)
def test_the_step_that_is_wrong_is_named(store: Path, migration: hg.Migration, step: str) -> None:
    assert refused(store, migration).startswith(f"migration 'g' at {step}: table ")


@pytest.mark.parametrize("is_renamed_before", [False, True])
def test_a_table_of_versions_is_renamed_with_the_table_that_they_are_of(
    tmp_path: Path, is_renamed_before: bool
) -> None:
    kept = hg.Table("kept", "id bigint, n int", key="id", history="9 rows")
    hg.open(tmp_path / "store", tables=[kept]).close()
    owner = "held" if is_renamed_before else "kept"
    migration = m().rename_table("kept", "held") if is_renamed_before else m()
    told = refused(tmp_path / "store", migration.rename_table(f"{owner}_history", "past"))
    assert told.startswith(f"migration 'g' at .rename_table('{owner}_history', 'past'): table ")
    assert f".rename_table('{owner}', ...)" in told
    assert f".drop_table('{owner}_history')" in told


def test_a_step_may_need_one_behind_it(store: Path) -> None:
    later = m().set_check("t", "w >= 0").add_column("t", "w int DEFAULT 0")
    assert hg.migrate(store, [later], dry_run=True)[0].offenders == ()


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("w int", "sum(id)", "one value for each row"),
        ("w int", "nope + 1", 'column "nope" not found'),
        ("w int", "__slot + 1", 'column "__slot" not found'),
        ("w int", "1); drop table t; --", "syntax error"),
        ("w int", "", "an SQL expression over the columns of a row"),
        ("w int", "  ", "an SQL expression over the columns of a row"),
        ("w int", "-- nothing", "an SQL expression over the columns of a row"),
        ("w int", 5, "an SQL expression over the columns of a row"),
        ("w int", "id / 2", "is not a int in every row"),
        ("w int", "'abc'", "is not a int in every row"),
        ("w decimal(6,2)", "id / 3", r"not exact as a decimal\(6,2\)"),
        ("w decimal(6,2)", "id / 3.000", r"decimal\(6,2\) in every row"),
        ("w double", "random()", r"random\(\)"),
        ("w double", "id + (select max(random()) from t)", r"random\(\)"),
        ("w timestamp", "NOW()", r"now\(\)"),
        ("w timestamp", "current_timestamp", "current_timestamp"),
        ("w timestamp", "localtimestamp", "localtimestamp"),
        ("w date", "current_date + 1", "current_date"),
        ("w date", "today()", r"today\(\)"),
        ("w string", "uuid()::varchar", r"uuid\(\)"),
        ("w bigint", "datepart('year', age(DATE '2020-01-01'))", r"age\(\)"),
        ("w bigint", "(select id from t using sample 1)", "a sample"),
        pytest.param("w bigint", "+".join(["1"] * 600), "nested too deep", id="long"),
        pytest.param("w bigint", "+".join(["1"] * 3000), "depth", id="longer"),
    ],
)
def test_a_value_that_cannot_be_names_its_step(
    store: Path, column: str, value: Any, words: str
) -> None:
    said: hg.Migration = m().add_column("t", column, value=value)
    told = refused(store, said)
    assert told.startswith(f"migration 'g' at .add_column('t', {column!r}, value=")
    with pytest.raises((hg.InputError, hg.DeclarationError), match=words):
        hg.migrate(store, [said])


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("w decimal(6,2)", "round(id / 3, 2)", "0.33"),
        ("w decimal(6,2)", "(id / 3)::decimal(6,2)", "0.33"),
        ("w decimal(6,2)", "id / 2", "0.50"),
        ("w timestamp", "TIMESTAMP '2026-01-31'", "2026-01-31 00:00:00+00:00"),
        ("w bigint", "datepart('year', age(DATE '2026-01-01', DATE '2020-01-01'))", "6"),
        ("w bigint", "(select count(*) from t)", "13"),
        ("w string", "'now() is a text'", "now() is a text"),
        ("w int", "case when id < 0 then error('no') else 1 end", "1"),
    ],
)
def test_a_value_that_can_be_is_computed(
    store: Path, column: str, value: str, expected: str
) -> None:
    hg.migrate(store, [m().add_column("t", column, value=value)])
    with hg.open(store) as engine:
        assert str(engine.sql("select w from t where id = 1").rows()[0][0]) == expected


def test_a_column_called_as_the_clock_is_a_column(tmp_path: Path) -> None:
    table = hg.Table("t", "id bigint, `current_date` int", key="id")
    with hg.open(tmp_path / "s", tables=[table]) as engine:
        engine.load(table, [{"id": 1, "current_date": 7}])
    hg.migrate(tmp_path / "s", [m().add_column("t", "w int", value="current_date + 1")])
    with hg.open(tmp_path / "s") as engine:
        assert engine.sql("select w from t").rows() == [(8,)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hg.Migration(None), "a text, not None"),  # type: ignore[arg-type]
        (lambda: hg.Migration(5), "a text, not 5"),  # type: ignore[arg-type]
        (lambda: hg.Migration(" "), "a text, not ' '"),
    ],
)
def test_a_migration_has_a_text_for_a_name(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(hg.DeclarationError, match=words):
        make()


def test_a_column_has_one_place(store: Path) -> None:
    both = m().add_column("t", "w int DEFAULT 1", after="v", first=True)
    assert "after= and first=True are two places" in refused(store, both)


@pytest.mark.parametrize(
    "make",
    [
        lambda: m().add_column("t", "w timestamp DEFAULT '2020-01-01 00:00:00.1234567'"),
        lambda: m().set_check(
            "t", "TIMESTAMP '2020-01-01 00:00:00.1234567+02:00' < DATE '2030-01-01'"
        ),
    ],
)
def test_a_time_is_not_cut_off(store: Path, make: Callable[[], hg.Migration]) -> None:
    assert "more exact than a timestamp, which has microseconds" in refused(store, make())
    zeros = m().add_column("t", "w timestamp DEFAULT '2020-01-01 00:00:00.123456000'")
    assert hg.migrate(store, [zeros], dry_run=True)


def test_what_is_not_unique_is_said_with_what_is(store: Path) -> None:
    assert "'v' is not unique; no columns of this table are unique" in refused(
        store, m().drop_unique("t", "v")
    )
    assert "'v' is no reference; no columns of this table are a reference" in refused(
        store, m().drop_reference("t", "v")
    )
    known = m("k").add_unique("t", "id, v").add_unique("t", "id").drop_unique("t", "v")
    assert "'v' is not unique; ('id', 'v'), 'id' are unique" in refused(store, known)


def test_rows_that_share_a_value_are_named_with_it(store: Path) -> None:
    trial = hg.migrate(store, [m().add_unique("t", "v")], dry_run=True)[0]
    (told,) = trial.offenders
    assert told == (
        "table 't': unique failed: t: v: 12 rows share 6 values: v=1 in id=2 | id=3; v=2 in id=4 | "
        "id=5; v=3 in id=6 | id=7; v=4 in id=8 | id=9; v=5 in id=10 | id=11; and 1 more values"
    )
    flat = m().add_column("t", "k string DEFAULT 'x'").add_unique("t", "k")
    (told,) = hg.migrate(store, [flat], dry_run=True)[0].offenders
    assert told == (
        "table 't': unique failed: t: k: 13 rows share a value: "
        "k='x' in id=1 | id=2 | id=3 | id=4 | id=5 and 8 more"
    )
    with pytest.raises(hg.DeclarationError, match=r"k='x' in id=1 \| id=2"):
        hg.migrate(store, [flat])


@pytest.mark.parametrize(
    "migration",
    [
        m().rename_column("t", "v", "w"),
        m().add_unique("t", "id"),
        m().add_column("t", "w int", value="id"),
    ],
)
def test_a_dry_run_refuses_what_was_logged_as_input(
    tmp_path: Path, migration: hg.Migration
) -> None:
    @hg.transaction(event="id bigint", compiled=False)
    def put(event, row=things.at("id", create=True)):
        row.v += 1

    path = tmp_path / "weak"
    program: dict[str, Any] = {"tables": [things], "transactions": [put], "recovery": "weak"}
    with hg.open(path, **program) as engine:
        for number in range(4):
            engine.call(put, id=number)
    told = []
    for dry_run in (True, False):
        with pytest.raises(hg.StoreError, match=r"epochs 1 to 4 .* engine\.snapshot\(\)") as error:
            hg.migrate(path, [migration], dry_run=dry_run)
        told.append(str(error.value))
    assert told[0] == told[1]
    with hg.open(path, **program) as engine:
        engine.snapshot()
    assert "would be applied" in str(hg.migrate(path, [migration], dry_run=True)[0])
    assert "was applied" in str(hg.migrate(path, [migration])[0])
