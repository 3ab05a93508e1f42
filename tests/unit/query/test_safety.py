"""No query writes, reads a file, reaches outside or changes a setting, whatever it is made of."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.errors import InputError, LimitError
from headgate.query.connections import KeptConnections
from headgate.query.sql import Limit, limited, run_sql

SECRET = "secret-6f1c"
TABLES = {"accounts": pa.table({"id": [1, 2, 3], "balance": [10.0, 20.0, 30.0]})}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a secret in every shape, where the process runs; no query may change it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADGATE_TEST_SECRET", SECRET)
    (tmp_path / "secret.csv").write_text(f"a\n{SECRET}\n")
    (tmp_path / "secret.json").write_text(f'[{{"a": "{SECRET}"}}]')
    before = sorted(os.listdir(tmp_path))
    yield tmp_path
    assert sorted(os.listdir(tmp_path)) == before


ATTACKS = """
copy accounts to 'out.csv'
copy (select 1) to 'out.parquet' (format parquet)
copy accounts from 'secret.csv'
explain analyze copy accounts to 'out.csv'
explain analyze create table t as select 1
explain analyze insert into accounts values (4, 5)
explain analyze delete from accounts
explain (analyze, format json) copy accounts to 'out.csv'
/* x */ explain analyze create table t as select 1
export database 'out'
import database 'out'
attach 'out.db' as o
attach ':memory:' as o
detach memory
use memory
install httpfs
load httpfs
force install httpfs from 'http://localhost/x'
update extensions
set threads = 1
set enable_external_access = true
reset enable_external_access
set global lock_configuration = false
set variable x = 1
pragma enable_profiling
pragma database_list
pragma temp_directory = '.'
call pragma_version()
call enable_logging()
create table t (a int)
create temp table t as select 1
create view v as select 1
create macro m() as 1
create secret s (type s3, key_id 'a', secret 'b')
create schema s
create sequence q
create type mood as enum ('a')
create function f(x) as x
drop table accounts
drop view accounts
alter table accounts add column c int
insert into accounts values (4, 40)
update accounts set balance = 0
delete from accounts
truncate accounts
merge into accounts using accounts as o on accounts.id = o.id when matched then delete
vacuum
analyze
checkpoint
force checkpoint
begin
commit
rollback
prepare p as select 1
execute p
deallocate p
comment on table accounts is 'x'
select 1; copy accounts to 'out.csv'
select 1; select 2
with d as (delete from accounts returning *) select * from d
with d as (insert into accounts values (9, 9) returning *) select * from d
select * from 'secret.csv'
select * from "secret.csv"
from 'secret.csv'
select * from read_csv('secret.csv')
select * from read_csv_auto('secret.csv')
select * from read_csv(['secret.csv', 'secret.csv'])
select * from read_json('secret.json')
select * from read_json_auto('secret.json')
select * from read_ndjson_objects('secret.json')
select * from read_text('secret.csv')
select * from read_blob('secret.csv')
select * from read_parquet('secret.parquet')
select * from parquet_scan('secret.parquet')
select * from parquet_metadata('secret.parquet')
select * from parquet_schema('secret.parquet')
select * from parquet_kv_metadata('secret.parquet')
select * from sniff_csv('secret.csv')
select * from glob('*')
select * from glob('/etc/*')
select * from read_text('/etc/hostname')
select * from read_text('/proc/self/environ')
select * from read_csv('http://localhost:1/x.csv')
select * from read_csv('https://localhost:1/x.csv')
select * from 's3://bucket/x.parquet'
select * from read_text('file:secret.csv')
select * from read_duckdb('out.db')
select getenv('HEADGATE_TEST_SECRET')
select * from query('select * from ''secret.csv''')
select * from query_table('secret.csv')
select * from query('copy accounts to ''out.csv''')
select * from json_execute_serialized_sql('{"statements": []}')
select * from enable_logging(storage='file', storage_path='.')
select * from enable_profiling(save_location='out.json')
select * from which_secret('s3://a', 's3')
select * from duckdb_secrets()
select * from secret_table
select * from place
select * from tmp_path
select * from pandas_scan(0)
select * from arrow_scan(0, 0, 0)
select * from arrow_scan(94637216::pointer, 1::pointer, 1::pointer)
select * from python_map_function((select 1))
select nextval('q')
select * from accounts where id in (select id from 'secret.csv')
select (select a from read_csv('secret.csv'))
select * from accounts union all select 1, a from 'secret.csv'
pivot 'secret.csv' on a
describe 'secret.csv'
summarize 'secret.csv'
show all tables from 'secret.csv'
""".strip().splitlines()


@pytest.mark.parametrize("query", ATTACKS)
def test_an_attack_is_refused(place: Path, query: str) -> None:
    with pytest.raises(InputError) as refused:
        run_sql(query, TABLES)
    assert SECRET not in str(refused.value)
    assert run_sql("select sum(balance) from accounts", TABLES).rows() == [(60.0,)]


SOURCES = [
    "accounts",
    "range(3)",
    "(select 1 as id)",
    "(values (1), (2)) as v(id)",
    "query('from accounts')",
    "query_table('accounts')",
    "duckdb_settings()",
    "duckdb_tables()",
    "information_schema.tables",
    "'secret.csv'",
    "read_csv('secret.csv')",
    "read_text('secret.csv')",
    "glob('*')",
]
VALUES = [
    "1",
    "*",
    "count(*)",
    "version()",
    "current_setting('temp_directory')",
    "(select max(a) from 'secret.csv')",
    "getenv('HEADGATE_TEST_SECRET')",
    "(select content from read_text('secret.csv'))",
]
SHAPES = [
    "select {value} from {source}",
    "explain analyze select {value} from {source}",
    "with a as (select {value} from {source}) select * from a, {source} as b",
    "select * from {source} as a union all by name select {value} from {source}",
    "select * from (select {value} from {source}) as q where exists (from {source})",
    "copy (select {value} from {source}) to 'out.csv'",
]


def thrown_together(chance: random.Random) -> str:
    """A query out of pieces of attacks, of honest queries, or of both."""
    if chance.random() < 0.6:
        shape = chance.choice(SHAPES)
        return shape.format(value=chance.choice(VALUES), source=chance.choice(SOURCES))
    pieces = [word for attack in ATTACKS for word in attack.split()]
    words = chance.choice(ATTACKS).split()
    words[chance.randrange(len(words))] = chance.choice(pieces)
    return " ".join(words)


def test_words_of_sql_thrown_together_never_get_through(place: Path, long_run: bool) -> None:
    """Each is refused, or it answers without the secret; no file is made, no row is changed."""
    chance, connections = random.Random(1), KeptConnections()
    answered = 0
    for _ in range(20_000 if long_run else 200):
        query = thrown_together(chance)
        try:
            found = run_sql(query, TABLES, connections=connections).arrow()
        except InputError:
            continue
        answered += 1
        assert SECRET not in str(found.to_pydict()), query
    assert answered > 20
    assert TABLES["accounts"].column("balance").to_pylist() == [10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    "query",
    [
        "select * from accounts",
        "from accounts",
        "table accounts",
        "values (1)",
        "with a as (select 1 as n) select n from a",
        "explain select * from accounts",
        "explain analyze select * from accounts",
        "EXPLAIN (ANALYZE, FORMAT json) select 1",
        "describe accounts",
        "summarize accounts",
        "show tables",
    ],
)
def test_what_only_reads_is_answered(query: str) -> None:
    assert run_sql(query, TABLES).rows()


def test_an_answer_that_is_too_long_is_refused() -> None:
    with limited(Limit(rows_max=3)):
        assert len(run_sql("select * from accounts", TABLES).rows()) == 3
        with pytest.raises(LimitError, match="more than 3 rows"):
            run_sql("select * from range(4)", TABLES)
    assert len(run_sql("select * from range(4)", TABLES).rows()) == 4


@pytest.mark.parametrize("rows_max", [None, 10])
def test_a_query_is_stopped_while_it_runs(rows_max: int | None) -> None:
    limit = Limit(rows_max)
    timer = threading.Timer(0.3, limit.stop, ["enough"])
    timer.start()
    with limited(limit), pytest.raises(LimitError, match="enough"):
        run_sql("select sum(a.range * b.range) from range(100000000) a, range(1000000) b", TABLES)
    timer.join()


def test_a_query_stopped_before_it_runs_does_not_run() -> None:
    limit = Limit()
    limit.stop("never mind")
    with limited(limit), pytest.raises(LimitError, match="never mind"):
        run_sql("select 1", TABLES)


def test_memory_is_bounded_and_nothing_spills_to_a_file(place: Path) -> None:
    query = "select list(x) from (select range || repeat('x', 100) as x from range(3000000))"
    with limited(Limit(memory="100MB")), pytest.raises(InputError, match=r"(?i)memory"):
        run_sql(query, TABLES)


def test_a_child_of_a_fork_ends_well_and_asks_a_duckdb_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import gc, os, sys\n"
        "import duckdb\n"
        "import headgate as hg\n"
        "from headgate.query.sql import run_sql\n"
        "rows = hg.Table('rows', 'id bigint', key='id')\n"
        "with hg.open(None, tables=[rows], transactions=[]) as engine:\n"
        "    assert engine.sql('select count(*) from rows').rows() == [(0,)]\n"
        "    assert run_sql('select sum(i) from range(100000) t(i)', {}).rows()\n"
        "    class Ring: pass\n"
        "    lost = hg.open(None, tables=[rows], transactions=[])\n"
        "    lost.sql('select count(*) from rows')\n"
        "    ring = Ring()\n"
        "    ring.me, ring.it = ring, lost\n"
        "    del ring, lost\n"
        "    gc.collect()  # ends the engine, and its DuckDB\n"
        "    ring = Ring()\n"
        "    ring.me, ring.it = ring, duckdb.connect(':memory:')\n"
        "    gc.disable()\n"
        "    del ring\n"
        "    gc.enable()\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        gc.collect()\n"
        "        assert run_sql('select 3', {}).rows() == [(3,)]\n"
        "        sys.exit(7)\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    assert engine.sql('select 4').rows() == [(4,)]\n"
        "sys.exit(0 if status == 7 << 8 else f'the child ended with {status}')\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
