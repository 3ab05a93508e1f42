"""The commands sql, tables, log and the errors they show; the real program once, in a process."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import headgate
import headgate as hg
from headgate.cli import commands, output
from headgate.cli.commands import app
from tests.unit.cli.bank import open_bank, pay

SOURCES = str(Path(headgate.__path__[0]).parent)


def run(runner: CliRunner, *words: object) -> Result:
    return runner.invoke(app, [str(word) for word in words])


def rows_of(text: str) -> list[list[str]]:
    """The cells of a printed table; two blanks part them."""
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("─")]
    return [re.split(r"\s{2,}", line) for line in kept]


# ---------------------------------------------------------------- sql


def test_sql_shows_the_newest_epoch_as_a_table(runner: CliRunner, bank: Path) -> None:
    found = run(runner, "sql", bank, "select id, balance from accounts order by id limit 3")
    assert found.exit_code == 0
    assert rows_of(found.stdout) == [
        ["id", "balance"],
        ["0", "70.0"],
        ["1", "80.0"],
        ["2", "148.75"],
    ]


def test_sql_reads_an_older_epoch(runner: CliRunner, bank: Path) -> None:
    query = "select id, balance from accounts where id < 2 order by id"
    found = run(runner, "sql", bank, "--epoch", 2, "--format", "json", query)
    assert json.loads(found.stdout) == [{"id": 0, "balance": 70.0}, {"id": 1, "balance": 130.0}]


def test_sql_offers_the_results_up_to_the_epoch(runner: CliRunner, bank: Path) -> None:
    query = "select epoch, outcome, reason, balance from results order by epoch"
    found = run(runner, "sql", bank, "--epoch", 3, "--format", "json", query)
    assert [tuple(row.values()) for row in json.loads(found.stdout)] == [
        (2, "committed", None, 70.0),
        (3, "aborted", "check failed: accounts: balance >= 0", None),
    ]


def test_sql_writes_csv(runner: CliRunner, bank: Path) -> None:
    found = run(runner, "sql", bank, "--format", "csv", "select id from accounts where id > 2")
    assert found.stdout == '"id"\n3\n4\n'


def test_sql_writes_an_arrow_stream(runner: CliRunner, bank: Path) -> None:
    query = "select sum(balance) as total from accounts"
    found = run(runner, "sql", bank, "--format", "arrow", query)
    table = pa.ipc.open_stream(io.BytesIO(found.stdout_bytes)).read_all()
    assert table.to_pylist() == [{"total": 500.0}]


def test_sql_reads_an_unwritten_table_as_empty(runner: CliRunner, bank: Path) -> None:
    found = run(
        runner, "sql", bank, "--format", "json", "select count(*) n, max(since) m from OWNERS"
    )
    assert json.loads(found.stdout) == [{"n": 0, "m": None}]


def test_sql_works_on_the_store_of_a_running_writer(runner: CliRunner, bank: Path) -> None:
    query = "select balance from accounts where id = 4"
    with open_bank(bank) as engine:
        pay(engine, 0, 4, 5.0)
        found = run(runner, "sql", bank, "--format", "json", query)
        pay(engine, 0, 4, 5.0)
        again = run(runner, "sql", bank, "--format", "json", query)
    assert json.loads(found.stdout) == [{"balance": 105.0}]
    assert json.loads(again.stdout) == [{"balance": 110.0}]


def test_a_long_answer_says_how_much_it_leaves_out(
    runner: CliRunner, bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "ROWS_SHOWN_MAX", 2)
    found = run(runner, "sql", bank, "select id from accounts order by id")
    assert "and 3 more rows" in found.stdout


def test_json_keeps_decimals_exact_where_a_number_cannot(runner: CliRunner, bank: Path) -> None:
    query = "select 0.1::decimal(4,2) a, 12345678901234567.89::decimal(19,2) b, 7::hugeint c"
    found = run(runner, "sql", bank, "--format", "json", query)
    assert json.loads(found.stdout) == [{"a": 0.1, "b": "12345678901234567.89", "c": 7}]


# ---------------------------------------------------------------- tables and log


def test_tables_shows_declarations_and_rows(runner: CliRunner, bank: Path) -> None:
    found = run(runner, "tables", bank)
    shown = rows_of(found.stdout)
    assert ["Tables at epoch 5"] in shown
    assert ["accounts", "id bigint, balance double", "id", "balance >= 0", "5"] in shown
    assert ["owners", "name string, since date DEFAULT date'2024-01-01'", "name", "0"] in shown
    assert any(row[0] == "transfer" and "balance double" in row[1] for row in shown)


def test_log_shows_the_last_epochs(runner: CliRunner, bank: Path) -> None:
    found = run(runner, "log", bank, "--last", 3)
    shown = rows_of(found.stdout)[1:]
    assert [row[0] for row in shown] == ["3", "4", "5"]
    assert [row[2] for row in shown] == ["run, call or flush"] * 3
    # The aborted transfer of epoch 3 changed no row, so that cell is empty.
    assert [len(row) for row in shown] == [5, 6, 6]
    assert [row[3] for row in shown] == ["1", "accounts 2", "accounts 2"]


def test_log_tells_a_load_and_a_query_from_a_call(runner: CliRunner, bank: Path) -> None:
    found = rows_of(run(runner, "log", bank).stdout)
    assert found[1][2:5] == ["load", "accounts 5", "0"]
    query = "0a1b2c3d-aaaa-bbbb-cccc-1234567890ab"
    info = commands.CommitInfo(1, 0, (query, 7), {}, 1, 64, "x", 0)
    assert commands._source(info, None) == "query 0a1b2c3d, batch 7"
    flushed = commands.CommitInfo(2, 0, None, {}, 0, 64, "x", 0)  # as that of a dataflow's source
    assert commands._source(flushed, None) == "run, call or flush"


def test_log_names_all_nodes_and_batches_of_an_epoch(runner: CliRunner, tmp_path: Path) -> None:
    """Executions that take no time share one."""
    kept = hg.Table("kept", "k bigint, n bigint DEFAULT 0", key="k")
    came = hg.Stream("came", "k bigint", batch="1 row")
    gone = hg.Stream("gone", "k bigint")

    @hg.transaction(event=came, output=gone, compiled=False)
    def count(event: Any, row: Any = kept.at("k", create=True)) -> None:
        row.n += 1

    @hg.procedure(gone)
    def look(batch: Any, tx: hg.Tx) -> None:
        tx.sql("select count(*) from batch")

    store, flow = tmp_path / "flow", hg.Dataflow("flow", [count, look])
    with hg.open(store, tables=[kept], dataflows=flow) as engine:
        engine.push(came, [{"k": k} for k in range(9)])
        engine.push(came, [])
    sources = [row[2] for row in rows_of(run(runner, "log", store).stdout)[1:]]
    assert sources[0].startswith("dataflow count, batches 1 to 9")
    looked = [one.partition("look, batch")[2] for one in sources]
    numbers = [int(word) for one in looked for word in one.split() if word.isdecimal()]
    assert (min(numbers), max(numbers)) == (1, 9)


# ---------------------------------------------------------------- errors and help


ERRORS = [
    (["tables", "nowhere"], "there is no store at .*nowhere: check the path, or make a store"),
    (["tables", "."], r"there is no store at .*: did you mean bank\?"),
    (["sql", "bank", "select * from acounts"], "acounts does not exist.*accounts"),
    (["sql", "bank", "select nothing from accounts"], "nothing"),
    (["sql", "bank", "selec"], "syntax error"),
    (["sql", "bank", "delete from accounts"], "only SELECT reads a store"),
    (["sql", "bank", "select 1; select 2"], "one query"),
    (["sql", "bank", "--epoch", "77", "select 1"], "no epoch 77 in .*: it has epochs 0 to 5"),
    (["log", "nowhere"], "there is no store"),
    (["verify", "nowhere"], "there is no store"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS, ids=lambda value: str(value)[:40])
def test_a_refusal_is_one_line_and_exit_code_1(
    runner: CliRunner, bank: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(bank.parent)
    found = run(runner, *words)
    assert found.exit_code == 1
    assert found.stdout == ""
    assert re.fullmatch(rf"error: .*{message}.*\n", found.stderr)


def test_a_newer_store_is_refused_by_name(runner: CliRunner, bank: Path) -> None:
    manifest = bank / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"headgate": 4', '"headgate": 5'))
    found = run(runner, "tables", bank)
    assert found.exit_code == 1
    assert "upgrade Headgate" in found.stderr


@pytest.mark.parametrize("command", ["demo", "sql", "tables", "log", "verify"])
def test_every_command_has_help_with_examples(runner: CliRunner, command: str) -> None:
    found = run(runner, command, "--help")
    assert found.exit_code == 0
    assert f"headgate {command}" in found.stdout


def test_version_names_the_package_and_the_format(runner: CliRunner) -> None:
    found = run(runner, "--version")
    assert found.stdout == f"headgate {headgate.__version__} (store format 4)\n"


def test_no_command_at_all_shows_the_commands(runner: CliRunner) -> None:
    assert "verify" in run(runner).output


# ---------------------------------------------------------------- the real program


def start(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    command = [sys.executable, "-m", "headgate.cli", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=check)


def test_the_program_reads_a_store_that_another_process_writes(bank: Path) -> None:
    with open_bank(bank) as engine:
        pay(engine, 0, 4, 5.0)
        found = start("sql", bank, "--format", "csv", "select sum(balance) s from accounts")
    assert (found.stdout, found.stderr) == ('"s"\n500\n', "")


def test_the_program_ends_with_its_exit_code_and_no_traceback(bank: Path) -> None:
    found = start("tables", bank / "nothing", check=False)
    assert found.returncode == 1
    assert found.stderr.startswith("error: there is no store at ")
    assert "Traceback" not in found.stderr


def test_reading_a_store_imports_neither_pyspark_nor_the_compiler(bank: Path) -> None:
    program = (
        "import sys; from headgate.cli.commands import app\n"
        f"app(['sql', {str(bank)!r}, 'select 1 from accounts'], standalone_mode=False)\n"
        "print(sorted({'pyspark', 'numba'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == "[]"


def test_tables_shows_constraints(runner: CliRunner, tmp_path: Path) -> None:
    owners = headgate.Table("owners", "name string", key="name")
    cards = headgate.Table(
        "cards", "id bigint, owner string, ts timestamp", key="id", unique="owner",
        references={"owner": owners}, index=[("ts", "owner")], expires="ts + 30 days",
    )  # fmt: skip
    with headgate.open(tmp_path / "shop", [owners, cards]):
        pass
    shown = run(runner, "tables", tmp_path / "shop").stdout
    shown = " ".join(shown.split())
    for words in ("unique (owner)", "(owner) references owners", "index (ts, owner)"):
        assert words in shown
    assert "expires ts + 30 days" in shown


# ---------------------------------------------------------------- reshard


def test_reshard_shows_what_it_would_do_and_does_it_once(runner: CliRunner, bank: Path) -> None:
    words = ("reshard", bank, "--shards", 3, "--replicate", "accounts")
    assert "would go from one process into 3" in run(runner, *words, "--dry-run").stdout
    done = run(runner, *words).stdout
    assert "went from one process into 3 shards as epoch 6" in done
    assert "accounts: 5 rows, replicate=True: on every shard" in done
    assert "nothing to do" in run(runner, *words).stdout
    back = run(runner, "reshard", bank, "--shards", 0, "--to", bank.parent / "copy").stdout
    assert "went from 3 shards into one process as epoch 7" in back
    for store in (bank, bank.parent / "copy"):
        assert run(runner, "verify", store).exit_code == 0
        for epoch in (5, 6):
            query = ("--epoch", epoch, "--format", "csv", "select sum(balance) from accounts")
            assert run(runner, "sql", store, *query).stdout.splitlines()[1] == "500"
    told = run(runner, "log", bank.parent / "copy").stdout
    assert "reshard to 3" in told and "reshard to one process" in told
    wrong = run(runner, "reshard", bank, "--shards", 2, "--shard-by", "accounts")
    assert wrong.exit_code == 1 and "it is table=column" in wrong.stderr
