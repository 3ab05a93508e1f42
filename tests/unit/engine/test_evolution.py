"""Migrations: every kind of change to a live store's declarations, tried dry, then one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.query.store_tables import query_store

ROWS = [
    {"id": 1, "owner": "ada", "balance": 10, "note": "x", "rate": Decimal("1.50")},
    {"id": 2, "owner": "bob", "balance": -5, "note": "y", "rate": Decimal("2.25")},
    {"id": 3, "owner": "ada", "balance": 7, "note": "", "rate": Decimal("0.00")},
]
FIRST = "id bigint, owner string, balance int, note string, rate decimal(6,2)"


def accounts(
    columns: str = FIRST, name: str = "accounts", key: str = "id", **more: Any
) -> hg.Table:
    return hg.Table(name, columns, key=key, **more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    first = accounts()
    with hg.open(tmp_path / "bank", tables=[first]) as engine:
        engine.load(first, ROWS)
    yield tmp_path / "bank"


def content(path: Path, *but: str) -> dict[Path, bytes]:
    found = [one for one in path.rglob("*") if one.is_file() and "lease" not in str(one)]
    return {one: one.read_bytes() for one in found if one.name not in ("lock", *but)}


def past(store: Path, query: str, epoch: int | None = None) -> list[Any]:
    return query_store(StoreReader.open(store), query, None, epoch).rows()


def test_a_check_is_added_as_one_epoch_and_time_travel_sees_both_sides(store: Path) -> None:
    sound = hg.Migration("solvent").set_check("accounts", "balance >= -10")
    table = accounts(check="balance >= -10")
    with hg.open(store, tables=[table], migrations=[sound]) as engine:
        assert engine.epoch == 2
        assert engine.tables["accounts"].check is not None
        assert engine.sql("select count(*) from accounts", epoch=1).rows() == [(3,)]
    reader = StoreReader.open(store)
    assert reader.declared(1)["tables"]["accounts"]["check"] is None
    assert reader.declared(2)["tables"]["accounts"]["check"] == "balance >= -10"
    with hg.open(store, tables=[table], migrations=[sound]) as engine:  # it goes on
        assert engine.epoch == 2
    with hg.open(store, tables=[table]) as engine:  # with or without the migration
        assert engine.epoch == 2


def test_rows_that_break_a_new_check_are_named_and_nothing_is_touched(store: Path) -> None:
    before = content(store, "head")  # a writer says in the head that it was there
    sound = hg.Migration("solvent").set_check("accounts", "balance >= 0 and rate > 0")
    for attempt in ("open", "migrate"):
        with pytest.raises(hg.DeclarationError, match=r"2 rows: id=2 \| id=3.*nothing was changed"):
            if attempt == "open":
                table = accounts(check="balance >= 0 and rate > 0")
                hg.open(store, tables=[table], migrations=[sound])
            else:
                hg.migrate(store, [sound])
    assert content(store, "head") == before


def test_a_dry_run_says_what_would_happen_and_touches_nothing(store: Path) -> None:
    before = content(store)
    changes = (
        hg.Migration("one")
        .set_check("accounts", "balance >= 0")
        .add_column("accounts", "double_balance bigint", value="balance * 2")
    )
    later = hg.Migration("two").add_unique("accounts", "owner")
    one, two = hg.migrate(store, [changes, later], dry_run=True)
    assert (one.epoch, one.tested, two.epoch) == (2, {"accounts": 3}, 3)
    assert one.bytes > 0 and two.bytes == 0 and not one.is_applied
    assert "id=2" in one.offenders[0] and "id=3" in two.offenders[-1]
    assert str(one).startswith("'one' would be refused\n")
    assert ".set_check('accounts', 'balance >= 0')" in str(one)
    assert content(store) == before


def test_a_dry_run_needs_no_lock(store: Path) -> None:
    with hg.open(store, tables=[accounts()]):
        [trial] = hg.migrate(
            store, [hg.Migration("m").drop_column("accounts", "note")], dry_run=True
        )
        assert trial.epoch == 2
        with pytest.raises(hg.LockedError):
            hg.migrate(store, [hg.Migration("m").drop_column("accounts", "note")])


WIDE = (
    "id bigint, holder string, balance bigint, rate decimal(12,4), "
    "tier string DEFAULT 'basic', total bigint"
)


def all_at_once() -> hg.Migration:
    return (
        hg.Migration("2026-11")
        .rename_table("accounts", "ledger")
        .rename_column("ledger", "owner", "holder")
        .widen("ledger", "balance bigint")
        .widen("ledger", "rate decimal(12,4)")
        .drop_column("ledger", "note")
        .add_column("ledger", "tier string DEFAULT 'basic'")
        .add_column("ledger", "total bigint", value="balance * 10")
    )


def test_columns_and_tables_are_renamed_widened_dropped_and_added(store: Path) -> None:
    ledger = accounts(WIDE, "ledger")
    expected = [
        (1, "ada", 10, Decimal("1.5000"), "basic", 100),
        (2, "bob", -5, Decimal("2.2500"), "basic", -50),
        (3, "ada", 7, Decimal("0.0000"), "basic", 70),
    ]
    with hg.open(store, tables=[ledger], migrations=[all_at_once()]) as engine:
        assert engine.sql("select * from ledger order by id").rows() == expected
        old = engine.sql("select id, owner, note from accounts order by id", epoch=1).rows()
        assert old == [(1, "ada", "x"), (2, "bob", "y"), (3, "ada", "")]
        assert len(engine.scan("accounts", {"owner": "ada"}, epoch=1).rows()) == 2
        with pytest.raises(hg.InputError):
            engine.sql("select * from accounts")
    assert past(store, "select * from ledger order by id") == expected
    assert past(store, "select * from accounts order by id", 1)[0] == tuple(ROWS[0].values())
    with pytest.raises(hg.InputError):
        past(store, "select * from ledger", 1)
    with hg.open(store) as engine:
        assert engine.sql("select * from ledger order by id").rows() == expected


def test_transactions_write_on_after_a_migration_and_past_epochs_stay(store: Path) -> None:
    ledger = accounts(WIDE, "ledger")

    @hg.transaction(event="id bigint, amount bigint", compiled=False)
    def deposit(event, row=ledger.at("id", create=True)):
        row.balance += event.amount
        row.tier = "gold"

    with hg.open(
        store, tables=[ledger], transactions=[deposit], migrations=[all_at_once()]
    ) as engine:
        engine.run(deposit, [{"id": 1, "amount": 2**40}, {"id": 4, "amount": 1}])
    for _ in range(2):
        with hg.open(store, tables=[ledger], transactions=[deposit]) as engine:
            found = engine.sql("select id, balance, tier from ledger order by id").rows()
            assert found == [
                (1, 2**40 + 10, "gold"),
                (2, -5, "basic"),
                (3, 7, "basic"),
                (4, 1, "gold"),
            ]
            assert engine.sql("select max(total) from ledger", epoch=2).rows() == [(100,)]
            engine.snapshot()
    assert past(store, "select count(*) from ledger", 2) == [(3,)]
    assert past(store, "select sum(balance) from accounts", 1) == [(12,)]


def test_a_dropped_name_can_be_used_again_and_means_another_thing(store: Path) -> None:
    dropped = hg.Migration("drop").drop_column("accounts", "note")
    hg.migrate(store, [dropped])
    again = accounts(
        "id bigint, owner string, balance int, rate decimal(6,2), note string DEFAULT 'new'"
    )
    with hg.open(store, tables=[again], migrations=[dropped]) as engine:
        assert engine.sql("select distinct note from accounts").rows() == [("new",)]
    gone = hg.Migration("drop table").drop_table("accounts")
    fresh = hg.Table("accounts", "name string, n int", key="name")
    with hg.open(store, tables=[fresh], migrations=[dropped, gone]) as engine:
        assert engine.sql("select * from accounts").rows() == []
        assert engine.load(fresh, [{"name": "a", "n": 1}]) == 1
        engine.snapshot()
        assert engine.sql("select owner from accounts order by id", epoch=1).rows()[0] == ("ada",)
    with hg.open(store, tables=[fresh]) as engine:
        assert engine.sql("select * from accounts").rows() == [("a", 1)]


def test_a_changed_default_is_for_new_rows_only(store: Path) -> None:
    added = hg.Migration("a").add_column("accounts", "tier string DEFAULT 'old'")
    changed = hg.Migration("b").set_default("accounts", "tier", "new")
    table = accounts(FIRST + ", tier string DEFAULT 'new'")

    @hg.transaction(event="id bigint", compiled=False)
    def enter(event, row=table.at("id", create=True)):
        row.balance = 1

    with hg.open(
        store, tables=[table], transactions=[enter], migrations=[added, changed]
    ) as engine:
        engine.run(enter, [{"id": 1}, {"id": 9}])
    with hg.open(store, tables=[table]) as engine:
        found = engine.sql("select id, tier from accounts order by id").rows()
        assert found == [(1, "old"), (2, "old"), (3, "old"), (9, "new")]


def test_constraints_are_added_if_the_rows_hold_them_and_dropped(store: Path) -> None:
    with pytest.raises(hg.DeclarationError, match=r"unique failed: accounts: owner.*id=3"):
        hg.migrate(store, [hg.Migration("u").add_unique("accounts", "owner")])
    sound = hg.Migration("u").add_unique("accounts", ("owner", "note"))
    unique = accounts(unique=[("owner", "note")])
    with hg.open(store, tables=[unique], migrations=[sound]) as engine:
        assert engine.epoch == 2
    ended = hg.Migration("v").drop_unique("accounts", ("owner", "note"))
    with hg.open(store, tables=[accounts()], migrations=[sound, ended]) as engine:
        assert engine.epoch == 3


def test_references_are_tested_against_both_tables(store: Path) -> None:
    cards = hg.Table("cards", "number string, account bigint", key="number")
    with hg.open(store, tables=[accounts(), cards]) as engine:
        engine.load(cards, [{"number": "a", "account": 1}, {"number": "b", "account": 8}])
    refer = hg.Migration("r").add_reference("cards", "account", "accounts")
    with pytest.raises(hg.DeclarationError, match=r"reference failed.*number='b'"):
        hg.migrate(store, [refer])
    with pytest.raises(hg.DeclarationError, match=r"no table 'nowhere'"):
        hg.migrate(store, [hg.Migration("r").add_reference("cards", "account", "nowhere")])

    @hg.transaction(event="number string", compiled=False)
    def block(event, card=cards.at("number")):
        card.account = 2

    with hg.open(store, tables=[accounts(), cards], transactions=[block]) as engine:
        engine.call(block, number="b")
    hg.migrate(store, [refer])
    with pytest.raises(hg.DeclarationError, match=r"refers to 'accounts'.*drop_reference"):
        hg.migrate(store, [refer, hg.Migration("d").drop_table("accounts")])
    renamed = (
        hg.Migration("n").rename_table("accounts", "ledger").rename_column("ledger", "id", "no")
    )
    hg.migrate(store, [refer, renamed])
    tables = [
        accounts(FIRST.replace("id", "no", 1), "ledger", key="no"),
        hg.Table(
            "cards", "number string, account bigint", key="number", references={"account": "ledger"}
        ),
    ]
    with hg.open(store, tables=tables) as engine:
        assert engine.get("ledger", 1)["owner"] == "ada"


@pytest.mark.parametrize(
    ("migration", "match"),
    [
        (hg.Migration("m"), "changes nothing"),
        (hg.Migration("m").drop_table("none"), "no table 'none'; the tables are: accounts"),
        (hg.Migration("m").drop_column("accounts", "id"), "part of the key.*new table"),
        (hg.Migration("m").drop_column("accounts", "x"), "no column 'x'"),
        (hg.Migration("m").rename_column("accounts", "owner", "note"), "already"),
        (hg.Migration("m").rename_table("accounts", "not a word"), "plain word"),
        (hg.Migration("m").widen("accounts", "owner int"), "does not hold every"),
        (hg.Migration("m").widen("accounts", "id int"), "does not hold every"),
        (hg.Migration("m").widen("accounts", "id double"), "does not hold every"),
        (hg.Migration("m").widen("accounts", "rate decimal(12,1)"), "does not hold every"),
        (hg.Migration("m").add_column("accounts", "a int"), "needs a value.*DEFAULT"),
        (hg.Migration("m").add_column("accounts", "note int DEFAULT 1"), "already"),
        (hg.Migration("m").set_check("accounts", "nothing > 0"), "no column 'nothing'"),
        (hg.Migration("m").set_check("accounts", "balance + 1"), "condition"),
        (hg.Migration("m").set_default("accounts", "balance", "x"), "not a int"),
        (hg.Migration("m").drop_unique("accounts", "owner"), "not unique"),
        (hg.Migration("m").drop_reference("accounts", "owner"), "no reference"),
        (hg.Migration("m").add_unique("accounts", "nobody"), "no column 'nobody'"),
        (hg.Migration("m").rename_transaction("pay", "transfer"), "no transaction 'pay'"),
        (
            hg.Migration("m").add_column("accounts", "a int", value="nullif(id, 1)"),
            "no value.*id=1",
        ),
        (hg.Migration("m").add_column("accounts", "a int", value="balance + 0.5"), "not a int"),
        (hg.Migration("m").add_column("accounts", "a int", value="nonsense("), "syntax error"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_with_the_reason(
    store: Path, migration: hg.Migration, match: str
) -> None:
    before = content(store, "head")
    with pytest.raises(hg.HeadgateError, match=match):
        hg.migrate(store, [migration])
    assert content(store, "head") == before


def test_a_check_follows_a_renamed_column_and_holds_a_dropped_one(store: Path) -> None:
    first = hg.Migration("c").set_check("accounts", "note <> 'owner' and balance > -9")
    hg.migrate(store, [first])
    with pytest.raises(hg.DeclarationError, match=r"check .note <>.*set_check"):
        hg.migrate(store, [first, hg.Migration("d").drop_column("accounts", "note")])
    hg.migrate(store, [first, hg.Migration("e").rename_column("accounts", "note", "owner note")])
    check = StoreReader.open(store).declared()["tables"]["accounts"]["check"]
    assert check == "`owner note` <> 'owner' and balance > -9"


def test_the_order_and_the_names_of_migrations_are_kept(store: Path) -> None:
    one = hg.Migration("one").drop_column("accounts", "note")
    two = hg.Migration("two").drop_column("accounts", "rate")
    hg.migrate(store, [two])
    with pytest.raises(hg.DeclarationError, match=r"'one' stands before 'two'.*epoch 2"):
        hg.migrate(store, [one, two])
    with pytest.raises(hg.DeclarationError, match="two migrations are called 'one'"):
        hg.migrate(store, [one, one])
    [trial] = hg.migrate(store, [two, one])
    assert trial.is_applied and trial.epoch == 3
    assert hg.migrate(store, [two, one]) == []


def test_a_migration_that_does_not_lead_to_the_program_is_refused(store: Path) -> None:
    before = content(store)
    half = hg.Migration("half").drop_column("accounts", "note")
    with pytest.raises(hg.DeclarationError, match="does not lead to what the program declares"):
        hg.open(store, tables=[accounts("id bigint, owner string")], migrations=[half])
    assert content(store) == before


def test_a_new_store_is_beyond_its_migrations(tmp_path: Path) -> None:
    ledger = accounts(WIDE, "ledger")
    for _ in range(2):
        with hg.open(tmp_path / "new", tables=[ledger], migrations=[all_at_once()]) as engine:
            assert engine.epoch == 0
    with hg.open(None, tables=[ledger], migrations=[all_at_once()]) as engine:
        assert engine.epoch == 0


def test_the_refusal_of_a_program_shows_the_migration_that_it_needs(store: Path) -> None:
    table = accounts(
        "id bigint, holder string, balance bigint, note string DEFAULT 'n', rate decimal(6,2)",
        check="balance >= -10",
    )
    with pytest.raises(hg.DeclarationError) as refused:
        hg.open(store, tables=[table])
    text = str(refused.value)
    assert ".rename_column('accounts', 'owner', 'holder')" in text
    begin = text.index("hg.Migration(")
    code = text[begin : text.index("\n\n", begin)] if "\n\n" in text[begin:] else text[begin:]
    code = "\n".join(line for line in code.split("\n") if line.strip().startswith(("hg.", ".")))
    migration = eval("(" + code.replace("'...'", "'owner'").replace('"..."', "'owner'") + ")")
    with hg.open(store, tables=[table], migrations=[migration]) as engine:
        assert engine.sql("select holder, note from accounts where id = 1").rows() == [("ada", "x")]


def test_a_program_from_before_a_migration_is_not_taken_for_a_new_one(store: Path) -> None:
    with_default = FIRST.replace("note string", "note string DEFAULT ''")
    dropped = hg.Migration("d").drop_column("accounts", "note")
    hg.migrate(store, [dropped])
    with pytest.raises(hg.DeclarationError, match=r"column 'note' of 'accounts'.*migration 'd'"):
        hg.open(store, tables=[accounts(with_default)])
    hg.migrate(store, [dropped, hg.Migration("r").rename_table("accounts", "ledger")])
    with pytest.raises(hg.DeclarationError, match=r"table 'accounts'.*migration 'r' at epoch 3"):
        hg.open(store, tables=[accounts()])


def test_of_two_migrations_none_is_applied_when_the_second_cannot_be(store: Path) -> None:
    renamed = hg.Migration("renamed").rename_column("accounts", "note", "remark")
    rich = hg.Migration("rich").set_check("accounts", "balance > 0")
    with pytest.raises(hg.DeclarationError, match=r"'rich'.*id=2; nothing was changed"):
        hg.migrate(store, [renamed, rich])
    with hg.open(store, tables=[accounts()]) as engine:
        assert engine.epoch == 1


def test_a_migration_that_was_applied_stays_what_it_was(store: Path) -> None:
    hg.migrate(store, [hg.Migration("one").drop_column("accounts", "note")])
    other = hg.Migration("one").drop_column("accounts", "rate")
    words = (
        r"'one' was applied as epoch 2, with other steps: step 1 was .*'note'.*, and is .*'rate'"
    )
    with pytest.raises(hg.DeclarationError, match=words):
        hg.migrate(store, [other])


def test_a_migration_beside_an_open_engine_proposes_no_takeover(store: Path) -> None:
    with hg.open(store, tables=[accounts()]):
        with pytest.raises(hg.LockedError, match=r"close that engine first$"):
            hg.migrate(store, [hg.Migration("one").drop_column("accounts", "note")])
        with pytest.raises(hg.LockedError, match=r"or open with takeover=True$"):
            hg.open(store, tables=[accounts()])


OLDER = {
    "widen": (hg.Migration("m").widen("accounts", "balance bigint"), "columns"),
    "check": (hg.Migration("m").set_check("accounts", "balance > -9"), "check None"),
    "new": (hg.Migration("m").add_column("accounts", "n int DEFAULT 1"), "columns"),
    "default": (hg.Migration("m").set_default("accounts", "note", "x"), "columns"),
    "unique": (hg.Migration("m").add_unique("accounts", "note"), "the constraint 'unique"),
}


@pytest.mark.parametrize("what", OLDER)
def test_a_program_older_than_the_store_is_told_by_which_migration(store: Path, what: str) -> None:
    migration, words = OLDER[what]
    hg.migrate(store, [migration])
    for listed in ([], [migration]):
        with pytest.raises(hg.DeclarationError) as refused:
            hg.open(store, tables=[accounts()], migrations=listed)
        text = str(refused.value)
        assert words in text and "the migration 'm', applied as epoch 2" in text
        assert "the program is older than the store" in text and "hg.Migration(" not in text


def test_a_program_several_migrations_old_is_told_the_one_that_parted_them(store: Path) -> None:
    first = hg.Migration("first").widen("accounts", "balance bigint")
    second = hg.Migration("second").drop_column("accounts", "note")
    hg.migrate(store, [first, second])
    middle = accounts(FIRST.replace("balance int", "balance bigint").replace("note string, ", ""))
    hg.open(store, tables=[middle]).close()
    with pytest.raises(hg.DeclarationError, match="'second' at epoch 3"):
        hg.open(store, tables=[accounts(FIRST.replace("balance int", "balance bigint"))])
    hg.migrate(store, [first, second, hg.Migration("third").set_check("accounts", "id > 0")])
    with pytest.raises(hg.DeclarationError, match="the migration 'third', applied as epoch 4"):
        hg.open(store, tables=[middle])


def test_a_migration_that_is_yet_to_come_is_spoken_of_as_such(store: Path) -> None:
    wider = hg.Migration("wider").widen("accounts", "balance bigint")
    with pytest.raises(hg.DeclarationError) as refused:
        hg.open(store, tables=[accounts()], migrations=[wider])
    text = str(refused.value)
    assert "the program's is the table as it was before the migration 'wider', which is yet" in text
    assert "after the migration 'wider' the store would have" in text
    assert "nothing was changed" in text
    assert "hg.Migration(" not in text and "the store has '" not in text
    other = accounts(FIRST.replace("balance int", "balance bigint").replace("note string, ", ""))
    with pytest.raises(hg.DeclarationError) as refused:
        hg.open(store, tables=[other], migrations=[wider])
    text = str(refused.value)
    assert "after the migration 'wider' the store would have" in text
    assert "add to it:\n\n    .drop_column('accounts', 'note')" in text


def test_a_narrower_or_reordered_column_gets_no_empty_migration(store: Path) -> None:
    for columns in (FIRST.replace("id bigint", "id int"), f"note string, {FIRST[:-37]}"):
        with pytest.raises(hg.DeclarationError) as refused:
            hg.open(store, tables=[accounts(columns)])
        assert "say here what it is for" not in str(refused.value)


def test_a_dry_run_says_that_a_list_would_be_refused(store: Path) -> None:
    renamed = hg.Migration("renamed").rename_column("accounts", "note", "remark")
    rich = hg.Migration("rich").set_check("accounts", "balance > 0")
    one, two = hg.migrate(store, [renamed, rich], dry_run=True)
    assert str(one).startswith("'renamed' would not be applied: 'rich' would be refused, and")
    assert str(two).startswith("'rich' would be refused\n")
    assert "would be applied" not in f"{one}{two}"


def test_a_migration_written_in_another_way_is_the_same(store: Path) -> None:
    def written(check: str, column: str, value: str) -> hg.Migration:
        one = hg.Migration("one").set_check("accounts", check)
        return one.add_column("accounts", column, value=value).widen(
            "accounts", "rate decimal(9,2)"
        )

    hg.migrate(store, [written("balance >= -10 and note <> 'a  B'", "n bigint", "balance * 2")])
    same = written("BALANCE>=-10\n  AND note<>'a  B'", "n  BIGINT", "(balance*2)"[1:-1])
    assert hg.migrate(store, [same]) == []
    for check, value in (
        ("balance >= -10 and note <> 'a b'", "balance * 2"),
        ("balance >= -10 and note <> 'a  B'", "balance * 3"),
        ("balance >= -10 and note <> 'a  B'", "balance -- 2"),
    ):
        with pytest.raises(hg.DeclarationError, match=r"with other steps: step [12] was "):
            hg.migrate(store, [written(check, "n bigint", value)])
    longer = written("balance >= -10 and note <> 'a  B'", "n bigint", "balance * 2")
    with pytest.raises(hg.DeclarationError, match=r"step 4, .drop_column\(.*, was not there"):
        hg.migrate(store, [longer.drop_column("accounts", "note")])
    with pytest.raises(hg.DeclarationError, match=r"step 3, .widen\(.*, is not there any more"):
        hg.migrate(store, [hg.Migration("one", longer.steps[:2])])


def test_rows_are_mended_by_the_program_of_before_and_then_it_is_applied(store: Path) -> None:
    table = accounts()

    @hg.transaction(event="id bigint, balance int", compiled=False)
    def mend(event: hg.Event, row: hg.Row = table.at("id")) -> None:
        row.balance = event.balance

    sound = hg.Migration("solvent").set_check("accounts", "balance >= 0")
    [tried] = hg.migrate(store, [sound], dry_run=True)
    assert "id=2" in tried.offenders[0]
    with hg.open(store, tables=[table], transactions=[mend]) as engine:
        assert engine.call(mend, id=2, balance=0).committed
    with hg.open(store, tables=[accounts(check="balance >= 0")], migrations=[sound]) as engine:
        assert engine.epoch == 3 and engine.sql("select min(balance) from accounts").rows() == [
            (0,)
        ]
