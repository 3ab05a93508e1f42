"""Reading beside the stream: by key, by condition and in SQL, always one whole, durable epoch."""

from __future__ import annotations

import datetime
import decimal
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.io import RealDisk
from headgate.query import replica

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
pairs = hg.Table("pairs", "id bigint, low bigint, high bigint", key="id")
shelf = hg.Table(
    "shelf",
    "place int, name string, sold boolean, price decimal(10,2), since timestamp, day date, "
    "weight float, length double, stock bigint",
    key=["place", "name"],
)
ROWS = 40


@hg.transaction(event="src bigint, dst bigint, amount double")
def transfer(event: Any, src: Any = accounts.at("src"), dst: Any = accounts.at("dst")) -> Any:
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount


@hg.transaction(event="id bigint, low bigint")
def stretch(event: Any, pair: Any = pairs.at("id", create=True)) -> Any:
    pair.low = event.low
    pair.high = 3 * event.low


@hg.transaction(event="id bigint", compiled=False)
def drop(event: Any, account: Any = accounts.at("id")) -> None:
    hg.delete(account)


@hg.transaction(event="id bigint", compiled=False)
def settle(event: Any, account: Any = accounts.at("id", create=True)) -> None:
    account.balance = 1.0


@hg.transaction(
    event="place int, name string, sold boolean, price decimal(10,2), since timestamp, day date, "
    "weight float, length double, stock bigint",
    compiled=False,
)
def restock(event: Any, row: Any = shelf.at("place", "name")) -> None:
    for column in ("sold", "price", "since", "day", "weight", "length", "stock"):
        setattr(row, column, getattr(event, column))


# Locks, for a transaction may not change values of its module, and theirs cannot be looked into.
entered, leave = threading.Lock(), threading.Lock()


@hg.transaction(event="id bigint", compiled=False)
def linger(event: Any, account: Any = accounts.at("id")) -> None:
    """Change a row and stay in the middle of the batch until the test says go on."""
    account.balance += 1000.0
    entered.release()
    leave.acquire(timeout=20)


def open_bank(path: Path | None = None, **options: Any) -> hg.Engine:
    engine = hg.open(
        path,
        tables=[accounts, pairs, shelf],
        transactions=[transfer, stretch, drop, settle, restock, linger],
        **options,
    )
    engine.load(accounts, [{"id": number, "balance": 100.0} for number in range(ROWS)])
    return engine


@pytest.fixture
def bank() -> Iterator[hg.Engine]:
    for lock in (entered, leave):
        lock.acquire(blocking=False)
    with open_bank() as engine:
        yield engine
        if leave.locked():
            leave.release()


# --- by key -----------------------------------------------------------------------------------


def test_a_row_is_found_by_its_key_and_follows_every_commit(bank: hg.Engine) -> None:
    assert bank.get(accounts, 3) == {"id": 3, "balance": 100.0}
    assert bank.get("accounts", ROWS) is None
    for amount in (1.0, 2.0):
        bank.call(transfer, src=3, dst=4, amount=amount)
    assert bank.get("accounts", 3) == {"id": 3, "balance": 97.0}
    assert bank.getter(accounts)(4) == {"id": 4, "balance": 103.0}


def test_a_row_handed_out_is_the_readers_own(bank: hg.Engine) -> None:
    mine = bank.get("accounts", 3)
    assert mine is not None
    mine["balance"] = -1.0
    assert bank.get("accounts", 3) == {"id": 3, "balance": 100.0}


def test_a_deleted_row_is_gone_also_where_it_was_read_before(bank: hg.Engine) -> None:
    assert bank.get("accounts", 3) is not None
    bank.call(drop, id=3)
    for _ in range(2):  # the first time the long way, the second the short
        assert bank.get("accounts", 3) is None


def test_a_row_in_the_slot_of_a_deleted_one_is_not_taken_for_it(bank: hg.Engine) -> None:
    assert bank.get("accounts", 3) is not None
    bank.call(drop, id=3)
    bank.call(settle, id=77)
    for _ in range(2):
        assert bank.get("accounts", 77) == {"id": 77, "balance": 1.0}
        assert bank.get("accounts", 3) is None


class Meddler(int):
    """A key that changes the row in the very moment when it is compared with the one found."""

    __hash__ = int.__hash__
    comparisons = 0
    meddle: Any = None

    def __eq__(self, other: object) -> bool:
        self.comparisons += 1
        if self.comparisons == 2:  # the first is with the key whose place is remembered
            self.meddle()
        return int(self) == other


def test_a_row_that_changes_while_it_is_read_is_read_again(bank: hg.Engine) -> None:
    assert bank.get("accounts", 3) == {"id": 3, "balance": 100.0}
    key = Meddler(3)

    def meddle() -> None:
        bank.call(transfer, src=3, dst=4, amount=10.0)
        assert bank.get("accounts", 4) == {"id": 4, "balance": 110.0}

    key.meddle = meddle
    assert bank.get("accounts", key) == {"id": 3, "balance": 90.0}
    assert key.comparisons >= 2


def test_every_type_comes_by_key_as_it_comes_by_sql(bank: hg.Engine) -> None:
    since = datetime.datetime(2024, 2, 29, 12, 30, 1, 250, tzinfo=datetime.UTC)
    rows = [
        {
            "place": place,
            "name": name,
            "sold": place == 1,
            "price": decimal.Decimal("-12.50") * place,
            "since": since - datetime.timedelta(days=30_000 * place),
            "day": datetime.date(1969, 12, 31),
            "weight": 0.5,
            "length": -1e300,
            "stock": -(2**62),
        }
        for place in range(3)
        for name in ("", "spoon", "löffel 🥄")
    ]
    bank.load(shelf, rows)
    columns = shelf.schema.names
    for _ in range(2):  # the first time the long way, the second the short
        for row in rows:
            found = bank.get("shelf", (row["place"], row["name"]))
            assert found == row
            assert found is not None
            where = {"place": row["place"], "name": row["name"]}
            (listed,) = bank.scan(shelf, where).rows()
            assert dict(zip(columns, listed, strict=True)) == found
            assert [type(value) for value in found.values()] == [type(value) for value in listed]
    assert bank.get("shelf", (1, "fork")) is None
    changed = {
        **rows[4],
        "sold": not rows[4]["sold"],
        "price": decimal.Decimal("99.99"),
        "since": since,
        "day": datetime.date(2038, 1, 19),
        "weight": -2.25,
        "length": 1e-300,
        "stock": 2**62,
    }
    bank.call(restock, **changed)
    for row in (*rows[:4], changed, *rows[5:]):
        assert bank.get("shelf", (row["place"], row["name"])) == row


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ("accounts", "three", ["accounts", "id", "bigint"]),
        ("accounts", None, ["accounts", "id", "None"]),
        ("accounts", 2**70, ["accounts", "id"]),
        ("accounts", (1, 2), ["(id)", "one value"]),
        ("shelf", 1, ["(place, name)", "a tuple of 2"]),
        ("shelf", (2**40, "x"), ["shelf", "place"]),
        ("account", 1, ["no table 'account'", "accounts, pairs, shelf"]),
        ("accounts", [1], ["accounts", "id"]),
        ("accounts", {"id": 1}, ["accounts", "id"]),
    ],
)
def test_what_cannot_be_a_key_is_refused_in_words(
    bank: hg.Engine, table: str, key: Any, words: list[str]
) -> None:
    with pytest.raises(hg.errors.InputError) as refused:
        bank.get(table, key)
    assert [word for word in words if word not in str(refused.value)] == []


# --- by condition -----------------------------------------------------------------------------


def test_a_scan_takes_a_condition_values_and_columns(bank: hg.Engine) -> None:
    bank.call(transfer, src=3, dst=4, amount=50.0)
    assert bank.scan("accounts", "balance > 100 or id = 3 -- note").rows() == [
        (3, 50.0),
        (4, 150.0),
    ]
    assert bank.scan(accounts, {"balance": 150.0}, columns=["id"]).dicts() == [{"id": 4}]
    found = bank.scan(accounts)
    assert (len(found.pandas()), found.arrow().column_names) == (ROWS, ["id", "balance"])
    assert found.epoch == bank.epoch


@pytest.mark.parametrize(
    ("where", "columns", "words"),
    [
        ({"money": 1}, None, "no column 'money'; the columns are: id, balance"),
        (None, ["money"], "no column 'money'; the columns are: id, balance"),
        ("money > 1", None, "money"),
        ("true); drop table accounts; select (1", None, "one query"),
    ],
)
def test_a_scan_refuses_what_it_cannot_mean(
    bank: hg.Engine, where: Any, columns: Any, words: str
) -> None:
    with pytest.raises(hg.errors.InputError, match=words):
        bank.scan("accounts", where, columns)


def test_a_scan_by_values_takes_what_a_function_takes_for_equal() -> None:
    kept = hg.Table("kept", "id bigint, name string, many bigint NULL, part float", key="id",
                    index=["name", "part"])  # fmt: skip
    with hg.open(None, tables=[kept]) as engine:
        engine.load(kept, [{"id": 1, "name": "a", "many": None, "part": 0.1},
                           {"id": 2, "name": "b", "many": 3, "part": 0.5}])  # fmt: skip
        asked = ({"many": None}, {"part": 0.1}, {"many": 3, "part": 0.5})
        found = [engine.scan(kept, where=where, columns="id").rows() for where in asked]
        assert found == [[(1,)], [(1,)], [(2,)]]
        assert engine.scan(kept, where={"name": "a", "many": None}).rows()[0][0] == 1
        with pytest.raises(hg.InputError, match="half of a character"):
            engine.scan(kept, where={"name": "\ud800"})
        with pytest.raises(hg.InputError, match="half of a character"):
            engine.sql("select ?", ["\ud800"])


def test_a_query_reads_no_table_as_empty_that_is_not(bank: hg.Engine) -> None:
    for query in (
        "select count(*) from ACCOUNTS",
        'select count(*) from "Accounts"',
        "select count(*) from query_table('acc' || 'ounts')",
        "select * from query('select count(*) from acc' || 'ounts')",
    ):
        assert bank.sql(query).rows() == [(ROWS,)]


def test_queries_of_many_threads_share_connections_and_end_with_the_engine(
    bank: hg.Engine,
) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda n=n: found.append(bank.sql("select ? + count(*) from accounts", [n]))
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.rows()[0][0] for answer in found) == [ROWS + n for n in range(20)]
    kept = bank._reading._connections._free
    assert 1 <= len(kept) <= 8
    bank.close()
    assert kept == []


# --- epochs -----------------------------------------------------------------------------------


def test_any_kept_epoch_can_be_read_again(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as bank:
        first = bank.epoch
        for _ in range(5):
            bank.call(transfer, src=3, dst=4, amount=10.0)
        for later in range(6):
            wanted = [(3, 100.0 - 10 * later), (4, 100.0 + 10 * later)]
            query = "select id, balance from accounts where id in ($a, $b) order by id"
            found = bank.sql(query, {"a": 3, "b": 4}, epoch=first + later)
            assert (found.rows(), found.epoch) == (wanted, first + later)
            assert bank.scan(accounts, "id in (3, 4)", epoch=first + later).rows() == wanted
        assert bank.sql("select count(*) from accounts", epoch=0).rows() == [(0,)]
        for epoch in (-1, bank.epoch + 1):
            with pytest.raises(hg.errors.InputError, match=f"epochs 0 to {bank.epoch}"):
                bank.sql("select * from accounts", epoch=epoch)


def test_to_read_the_past_copies_nothing(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as bank:
        bank.call(transfer, src=3, dst=4, amount=10.0)
        past = bank.sql("select sum(balance) from accounts", epoch=bank.epoch - 1)
        assert past.rows() == [(100.0 * ROWS,)]
        assert bank._memory.replica.copies["accounts"].rows.count == 0


def test_in_memory_there_is_no_past(bank: hg.Engine) -> None:
    before = bank.epoch
    bank.call(transfer, src=3, dst=4, amount=10.0)
    assert bank.sql("select count(*) from accounts", epoch=bank.epoch).rows() == [(ROWS,)]
    with pytest.raises(hg.errors.InputError, match="in memory keeps only its newest"):
        bank.sql("select count(*) from accounts", epoch=before)


def test_after_the_end_nothing_is_read(bank: hg.Engine) -> None:
    get = bank.getter("accounts")
    assert get(3) is not None
    bank.close()
    for read in (lambda: get(3), lambda: bank.get("accounts", 3), lambda: bank.scan("accounts")):
        with pytest.raises(hg.errors.StoreError, match="closed"):
            read()


# --- beside the stream ------------------------------------------------------------------------


def test_readers_answer_while_a_batch_runs_and_see_the_epoch_before(bank: hg.Engine) -> None:
    assert bank.get("accounts", 3) is not None  # from now on the table is followed
    running = threading.Thread(target=bank.call, args=(linger,), kwargs={"id": 3}, daemon=True)
    running.start()
    assert entered.acquire(timeout=20)
    assert bank.get("accounts", 3) == {"id": 3, "balance": 100.0}
    assert bank.sql("select sum(balance) from accounts").rows() == [(100.0 * ROWS,)]
    assert bank.scan("accounts", {"id": 3}).rows() == [(3, 100.0)]
    leave.release()
    running.join()
    assert bank.get("accounts", 3) == {"id": 3, "balance": 1100.0}


def test_a_reader_that_dawdles_does_not_hold_the_stream_up(bank: hg.Engine) -> None:
    assert bank.get("accounts", 3) is not None
    done = threading.Event()

    def run() -> None:
        bank.call(transfer, src=3, dst=4, amount=10.0)
        done.set()

    with bank._memory.replica.lock:  # as a reader has it while it brings the copy forward
        threading.Thread(target=run, daemon=True).start()
        assert done.wait(20)
    assert bank.get("accounts", 3) == {"id": 3, "balance": 90.0}


class HeldFile:
    """A file whose sync waits until it is let through."""

    def __init__(self, file: Any, gate: threading.Event, waiting: threading.Event) -> None:
        self._file, self._gate, self._waiting = file, gate, waiting

    def sync(self) -> None:
        if not self._gate.is_set():
            self._waiting.set()
            self._gate.wait(20)
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class HeldDisk:
    """The machine's files, but for syncs that can be held back."""

    def __init__(self) -> None:
        self._disk = RealDisk()
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()

    def open(self, path: str, mode: Any) -> Any:
        return HeldFile(self._disk.open(path, mode), self.gate, self.waiting)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def test_what_is_not_durable_is_not_seen(tmp_path: Path) -> None:
    disk: Any = HeldDisk()
    with open_bank(tmp_path / "bank", disk=disk) as bank:
        words = {"src": 3, "dst": 4, "amount": 10.0}
        assert bank.get("accounts", 3) == {"id": 3, "balance": 100.0}
        bank.call(transfer, **words)  # durable, but read by nobody yet
        before = bank.epoch
        disk.gate.clear()
        running = threading.Thread(target=bank.call, args=(transfer,), kwargs=words, daemon=True)
        running.start()
        assert disk.waiting.wait(20)
        assert bank._memory.epoch == before + 1  # it ran, and its record is on the way to the disk
        assert bank.epoch == before
        assert bank.get("accounts", 3) == {"id": 3, "balance": 90.0}
        found = bank.sql("select balance from accounts where id = 4")
        assert (found.rows(), found.epoch) == ([(110.0,)], before)
        disk.gate.set()
        running.join()
        assert bank.get("accounts", 3) == {"id": 3, "balance": 80.0}


def watch(read: Callable[[], Any], wrong: list[Any], done: threading.Event) -> threading.Thread:
    """A thread that reads until the end and keeps what it should not have seen."""

    def work() -> None:
        while not done.is_set() and not wrong:
            try:
                found = read()
            except BaseException as error:
                found = error
            if found is not None:
                wrong.append(found)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("rows_max", [20, replica.PENDING_ROWS_MAX])
def test_every_answer_during_a_run_is_of_one_whole_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, rows_max: int
) -> None:
    monkeypatch.setattr(replica, "PENDING_ROWS_MAX", rows_max)
    monkeypatch.setattr(replica, "PENDING_EPOCHS_MIN", 1)
    monkeypatch.setattr("headgate.query.mirror.CHUNK_SLOTS", 7)
    bank = open_bank(tmp_path / "bank" if durable else None, durability="none")
    done, wrong, seen = threading.Event(), list[Any](), list[int]()

    def total() -> Any:
        found = bank.sql("select sum(balance), count(*) from accounts")
        seen.append(found.epoch or 0)
        return None if found.rows() == [(100.0 * ROWS, ROWS)] else found.rows()

    def joined() -> Any:
        """Both tables are of one epoch: the pair counts what the stream has done."""
        query = "select low, high, (select sum(balance) from accounts) from pairs"
        rows = bank.sql(query).rows()
        broken = [row for row in rows if row[1] != 3 * row[0] or row[2] != 100.0 * ROWS]
        return broken or None

    def single() -> Any:
        for number in range(5):
            found = bank.get("pairs", number)
            if found is not None and found["high"] != 3 * found["low"]:
                return found
        return None

    threads = [watch(read, wrong, done) for read in (total, joined, single, single)]
    with bank:
        # As long as it takes until the readers saw several epochs: a run may well outpace them.
        deadline = time.monotonic() + 60
        for number in itertools.count():
            enough = number >= 150 and (len(set(seen)) > 2 or wrong)
            if enough or time.monotonic() > deadline:
                break
            moves = [
                {"src": place % ROWS, "dst": (place * 7 + number) % ROWS, "amount": 30.0}
                for place in range(60)
            ]
            bank.run(transfer, moves)
            bank.run(stretch, [{"id": place, "low": number} for place in range(5)])
        done.set()
        for thread in threads:
            thread.join(20)
    assert wrong == []
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
