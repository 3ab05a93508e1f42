"""Peers: PostgreSQL, Redis and SQLite run the bank's transfers, each in its strong form, durably.

Every peer keeps its files in a folder of the benchmark's own, is started by it and stopped by it,
and is reached over a socket in that folder. A transfer is refused when the source has too little.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENTS = 8  # threads that commit single transfers side by side: their syncs may be shared
PACKAGES = {"PostgreSQL 15": "postgresql-15", "Redis": "redis-server"}

Moves = Sequence[tuple[int, int, int]]  # source, target, amount


class MissingPeer(Exception):
    """A peer is not installed; the message names the Debian package that brings it."""


def missing(peer: str) -> MissingPeer:
    package = PACKAGES[peer]
    return MissingPeer(f"{peer} is not installed: sudo apt-get install {package}")


def share(moves: Moves, work: Callable[[int, Moves], None], clients: int = CLIENTS) -> None:
    """Give each of several threads its part of the moves; an error of any of them is raised."""
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number, moves[number::clients])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# --- PostgreSQL -------------------------------------------------------------------------------

POSTGRES = Path("/usr/lib/postgresql/15/bin")
POSTGRES_USER = "postgres"
POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "512MB",
    "effective_cache_size": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "synchronous_commit": "on",
    "fsync": "on",
    "max_connections": "32",
    "logging_collector": "off",
}
POSTGRES_SCHEMA = """
create table accounts (id bigint primary key, balance bigint not null check (balance >= 0))
    with (fillfactor = 50);  -- room on the page: an update need not touch the index
create function move(source bigint, target bigint, sum bigint)
returns boolean language plpgsql as $$
begin
    update accounts set balance = balance - sum where id = source and balance >= sum;
    if not found then return false; end if;
    update accounts set balance = balance + sum where id = target;
    return true;
end $$;
create function move_locked(source bigint, target bigint, sum bigint)
returns boolean language plpgsql as $$
begin
    perform 1 from accounts where id in (source, target) order by id for update;
    return move(source, target, sum);
end $$;
create function move_all(sources bigint[], targets bigint[], sums bigint[])
returns bigint language plpgsql as $$
declare
    done bigint := 0;
    one record;
begin
    for one in select s, t, a from unnest(sources, targets, sums) as moves(s, t, a) loop
        update accounts set balance = balance - one.a where id = one.s and balance >= one.a;
        if found then
            update accounts set balance = balance + one.a where id = one.t;
            done := done + 1;
        end if;
    end loop;
    return done;
end $$;
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Postgres:
    """A PostgreSQL server of our own with the accounts in it."""

    def __init__(self, folder: Path, port: int) -> None:
        self._place = {"host": str(folder), "port": port, "user": POSTGRES_USER}
        self._clients: dict[str, list[Any]] = {}

    def connect(self, isolation: str = "read committed") -> Any:
        import psycopg

        options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
        found = psycopg.connect(dbname="postgres", options=options, autocommit=True, **self._place)
        found.prepare_threshold = 0
        return found

    def load(self, accounts: int, balance: int) -> None:
        with self.connect() as connection:
            connection.execute(POSTGRES_SCHEMA, prepare=False)
            fill = "insert into accounts select n, %s from generate_series(0, %s) as n"
            connection.execute(fill, (balance, accounts - 1))
            connection.execute("vacuum analyze accounts", prepare=False)

    def serializable(self, moves: Moves) -> None:
        """One transaction for each transfer, SERIALIZABLE, again when PostgreSQL says so."""
        self._each("serializable", "select move(%s, %s, %s)", moves)

    def locked(self, moves: Moves) -> None:
        """One transaction for each transfer, which locks its rows in the order of their keys."""
        self._each("read committed", "select move_locked(%s, %s, %s)", moves)

    def _each(self, isolation: str, query: str, moves: Moves) -> None:
        import psycopg

        if isolation not in self._clients:
            self._clients[isolation] = [self.connect(isolation) for _ in range(CLIENTS)]

        def work(number: int, mine: Moves) -> None:
            connection = self._clients[isolation][number]
            for move in mine:
                while True:
                    try:
                        connection.execute(query, move)
                        break
                    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                        continue

        share(moves, work)

    def procedure(self, moves: Moves) -> None:
        """One call of a stored procedure, and one transaction, for the whole batch."""
        if "batch" not in self._clients:
            self._clients["batch"] = [self.connect()]
        columns = [list(column) for column in zip(*moves, strict=True)]
        self._clients["batch"][0].execute("select move_all(%s, %s, %s)", columns)

    def balances(self) -> dict[int, int]:
        with self.connect() as connection:
            return dict(connection.execute("select id, balance from accounts").fetchall())

    def close(self) -> None:
        for connection in [one for many in self._clients.values() for one in many]:
            connection.close()


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """Start PostgreSQL in this folder, and stop it at the end; never as root, which it refuses."""
    if not (POSTGRES / "postgres").exists():
        raise missing("PostgreSQL 15")
    folder.mkdir()
    who: dict[str, Any] = {}
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam(POSTGRES_USER)
        except KeyError:
            raise missing("PostgreSQL 15") from None
        os.chown(folder, user.pw_uid, user.pw_gid)
        for parent in (folder.parent, *folder.parent.parents):
            if parent.stat().st_uid == os.getuid() and parent.name.startswith("headgate-bench-"):
                parent.chmod(0o711)  # its user must be able to reach its own folder
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": folder}
    data, port = folder / "data", free_port()
    initialise = [POSTGRES / "initdb", "-D", data, "-U", POSTGRES_USER, "-A", "trust"]
    subprocess.run(
        [*initialise, "-E", "UTF8", "--locale=C"], check=True, capture_output=True, **who
    )
    settings = {**POSTGRES_SETTINGS, "port": port, "unix_socket_directories": folder}
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [POSTGRES / "postgres", "-D", data, *words], stdout=log, stderr=log, **who
        )
    found = Postgres(folder, port)
    try:
        _until_ready(lambda: found.connect().close(), server, folder / "log")
        yield found
    finally:
        found.close()
        server.terminate()
        server.wait(30)


def _until_ready(attempt: Callable[[], Any], server: Any, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            attempt()
            return
        except Exception:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)


# --- Redis ------------------------------------------------------------------------------------

MOVE_LUA = """
if tonumber(redis.call('GET', KEYS[1])) < tonumber(ARGV[1]) then return 0 end
redis.call('DECRBY', KEYS[1], ARGV[1])
redis.call('INCRBY', KEYS[2], ARGV[1])
return 1
"""


class Redis:
    """A Redis server of our own with the accounts in it, one key each."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._clients: list[Any] = []
        self._script = ""
        self._packed: socket.socket | None = None

    def connect(self) -> Any:
        import redis

        return redis.Redis(unix_socket_path=self._path, single_connection_client=True)

    def load(self, accounts: int, balance: int) -> None:
        client = self.connect()
        client.mset({f"a:{number}": balance for number in range(accounts)})
        self._script = client.script_load(MOVE_LUA)
        self._accounts = accounts
        self._clients = [self.connect() for _ in range(CLIENTS)]
        client.close()

    def scripted(self, moves: Moves) -> None:
        """One call of a Lua script for each transfer."""

        def work(number: int, mine: Moves) -> None:
            call, script = self._clients[number].evalsha, self._script
            for source, target, amount in mine:
                call(script, 2, f"a:{source}", f"a:{target}", amount)

        share(moves, work)

    def pack(self, moves: Moves) -> bytes:
        """The same calls as the bytes of one pipeline, so that no time goes into making them."""
        pieces = []
        for source, target, amount in moves:
            words = ("EVALSHA", self._script, "2", f"a:{source}", f"a:{target}", str(amount))
            pieces.append(f"*{len(words)}\r\n")
            pieces += [f"${len(word)}\r\n{word}\r\n" for word in words]
        return "".join(pieces).encode()

    def pipelined(self, packed: bytes, count: int) -> None:
        """One pipeline of calls; Redis answers each with four bytes."""
        if self._packed is None:
            self._packed = socket.socket(socket.AF_UNIX)
            self._packed.connect(self._path)
        line, missing_bytes = self._packed, 4 * count
        sender = threading.Thread(target=line.sendall, args=(packed,))
        sender.start()  # beside the reading, or both sides would wait for each other
        while missing_bytes:
            found = line.recv(1 << 16)
            if not found or b"-" in found:
                raise RuntimeError(f"Redis answered {found[:200]!r}")
            missing_bytes -= len(found)
        sender.join()

    def balances(self) -> dict[int, int]:
        client = self.connect()
        found = client.mget([f"a:{number}" for number in range(self._accounts)])
        client.close()
        return {number: int(value) for number, value in enumerate(found)}

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self._packed is not None:
            self._packed.close()


@contextmanager
def redis_server(folder: Path, sync: str) -> Iterator[Redis]:
    """Start Redis with an append-only file that is synced "always" or "everysec"."""
    program = shutil.which("redis-server")
    if program is None:
        raise missing("Redis")
    folder.mkdir()
    path = folder / "redis.sock"
    words = {
        "port": "0", "unixsocket": path, "dir": folder, "save": "", "appendonly": "yes",
        "appendfsync": sync, "auto-aof-rewrite-percentage": "0",
    }  # fmt: skip
    command = [program, *[word for name, value in words.items() for word in (f"--{name}", value)]]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    found = Redis(path)
    try:
        _until_ready(lambda: found.connect().ping(), server, folder / "log")
        yield found
    finally:
        found.close()
        server.terminate()
        server.wait(30)


# --- SQLite -----------------------------------------------------------------------------------

SQLITE_SCHEMA = """
pragma journal_mode = wal;
pragma synchronous = full;
pragma cache_size = -262144;
create table accounts (id integer primary key, balance integer not null check (balance >= 0));
create view moves as select 0 as source, 0 as target, 0 as amount;
-- A trigger: the whole transfer runs inside SQLite, and a batch is one executemany.
create trigger move instead of insert on moves
when (select balance from accounts where id = new.source) >= new.amount begin
    update accounts set balance = balance - new.amount where id = new.source;
    update accounts set balance = balance + new.amount where id = new.target;
end;
"""


class Sqlite:
    """A SQLite file with the accounts in it."""

    MOVE = "insert into moves values (?, ?, ?)"

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def load(self, accounts: int, balance: int) -> None:
        self._connection.executescript(SQLITE_SCHEMA)
        rows = [(number, balance) for number in range(accounts)]
        self._connection.execute("begin")
        self._connection.executemany("insert into accounts values (?, ?)", rows)
        self._connection.execute("commit")

    def each(self, moves: Moves) -> None:
        """One transaction for each transfer."""
        for move in moves:
            self._connection.execute(self.MOVE, move)

    def batch(self, moves: Moves) -> None:
        """One transaction for the whole batch."""
        self._connection.execute("begin immediate")
        self._connection.executemany(self.MOVE, moves)
        self._connection.execute("commit")

    def balances(self) -> dict[int, int]:
        return dict(self._connection.execute("select id, balance from accounts").fetchall())

    def close(self) -> None:
        self._connection.close()
