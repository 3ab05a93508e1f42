"""The worker: the process that runs the queries of strangers, so that it can be ended.

It holds nothing but tables that the server shares with it, and the kernel bounds its memory: a
query that asks for more fails, whatever function of DuckDB's asks. It ends with its server.

A message is a head (lengths of both parts), then JSON, then bytes. The server sends `map` (with
descriptors of segments), `forget`, `run` and `stop`; the worker sends one answer for each `run`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
from typing import Any

import orjson

from headgate.errors import InputError, LimitError
from headgate.query.connections import KeptConnections
from headgate.query.sharing import Mapped
from headgate.query.sql import Limit, limited, run_sql
from headgate.web.bodies import Body, read_parameters, table_answer

HEAD = struct.Struct("<IQ")
MESSAGE_BYTES_MAX = 1 << 32
DESCRIPTORS_MAX = 64  # in one message
NICENESS = 5  # the server itself comes first
SLACK_BYTES = 256 << 20  # for the answer as JSON, beside what DuckDB may take
DEATH_SECONDS = 10.0  # of the processor, when no server is left to end an endless query


def send(connection: socket.socket, message: Any, body: bytes = b"", fds: Any = ()) -> None:
    """One message."""
    text = orjson.dumps(message)
    head = HEAD.pack(len(text), len(body))
    if fds:
        socket.send_fds(connection, [head], fds)
        connection.sendall(text)
    else:
        connection.sendall(head + text)
    if body:
        connection.sendall(body)


def receive(connection: socket.socket, bytes_max: int) -> tuple[Any, bytearray, list[int]] | None:
    """The next message, None at the end; ValueError when it is longer than it may be."""
    head, fds, _, _ = socket.recv_fds(connection, HEAD.size, DESCRIPTORS_MAX)
    head += _exactly(connection, HEAD.size - len(head)) if head else b""
    if len(head) < HEAD.size:
        return None
    text_bytes, body_bytes = HEAD.unpack(head)
    if text_bytes > bytes_max or body_bytes > bytes_max:
        raise ValueError("a message is too long")
    text = _exactly(connection, text_bytes)
    body = _exactly(connection, body_bytes)
    if len(text) < text_bytes or len(body) < body_bytes:
        return None
    return orjson.loads(text), body, fds


def _exactly(connection: socket.socket, count: int) -> bytearray:
    found = bytearray(count)
    view, done = memoryview(found), 0
    while done < count:
        size = connection.recv_into(view[done:])
        if not size:
            break
        done += size
    view.release()
    del found[done:]
    return found


class Worker:
    """The worker's own side: one query at a time, and an ear for the word to stop."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mapped = Mapped()
        self._connections = KeptConnections()
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._running: tuple[int, Limit] | None = None
        self._base_bytes = 0

    def work(self, memory: str, threads: int) -> None:
        """Answer until the server ends or a query has left too much behind."""
        with limited(Limit(None, memory, threads)):
            run_sql("select count(*) from range(100000)", {}, connections=self._connections)
        self._base_bytes = _address_space()
        threading.Thread(target=self._listen, daemon=True).start()
        send(self._connection, {"ready": os.getpid()})
        while True:
            asked = self._asked.get()
            kind = asked["kind"]
            if kind == "map":
                for number, fd in zip(asked["segments"], asked["fds"], strict=True):
                    self._mapped.add(number, fd)
            elif kind == "forget":
                self._mapped.forget(asked["segments"])
            elif not self._answer(asked):
                return

    def _listen(self) -> None:
        """Hear the server while a query runs; without it there is nothing left to do."""
        with contextlib.suppress(OSError, ValueError):
            while (message := receive(self._connection, MESSAGE_BYTES_MAX)) is not None:
                asked, _, fds = message
                if asked["kind"] == "stop":
                    running = self._running
                    if running is not None and asked["number"] == running[0]:
                        running[1].stop("stopped")
                else:
                    self._asked.put({**asked, "fds": fds})
        os._exit(0)

    def _answer(self, asked: Any) -> bool:
        """Run one query and send what it found; whether there may be another."""
        limit = Limit(asked["rows_max"], asked["memory"], asked["threads"])
        self._running = asked["number"], limit
        room = asked["memory_bytes"] + SLACK_BYTES
        base = self._base_bytes + self._mapped.size_bytes
        _bound(base + room, asked["seconds"])
        body = b""
        try:
            found = self._run(asked, limit)
            body, told = found.body, {"headers": found.headers, "media": found.media}
        except MemoryError:
            told = {"error": "limit", "why": "the answer needs too much memory: ask for less"}
        except (InputError, LimitError) as error:
            kind = "limit" if isinstance(error, LimitError) else "input"
            told = {"error": kind, "why": str(error)}
        except Exception:
            told = {"error": "failed", "why": traceback.format_exc()}
        is_last = _address_space() > base + room // 4  # what is not given back is missing later
        send(self._connection, {**told, "is_last": is_last}, body)
        return not is_last

    def _run(self, asked: Any, limit: Limit) -> Body:
        tables = {
            name: self._mapped.table(first, spots)
            for name, (first, spots) in asked["tables"].items()
        }
        with limited(limit):
            parameters = read_parameters(asked["parameters"])
            found = run_sql(asked["query"], tables, parameters, connections=self._connections)
        answer = table_answer(found.arrow(), asked["epoch"], asked["media"])
        if len(answer.body) > asked["answer_bytes_max"]:
            raise LimitError(
                f"the answer is longer than {asked['answer_bytes_max']:,} bytes: ask for less"
            )
        return answer


def _bound(bytes_max: int, seconds: float) -> None:
    """Let the kernel refuse memory beyond this, and end the process if no one else does."""
    resource.setrlimit(resource.RLIMIT_AS, (bytes_max, resource.RLIM_INFINITY))
    used = resource.getrusage(resource.RUSAGE_SELF)
    cores = os.cpu_count() or 1
    end = used.ru_utime + used.ru_stime + (seconds + DEATH_SECONDS) * cores
    resource.setrlimit(resource.RLIMIT_CPU, (int(end) + 1, resource.RLIM_INFINITY))


def _address_space() -> int:
    """The bytes of addresses that this process has taken."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux: what it ever had in memory is near enough
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(fd: int, memory: str, threads: int) -> None:
    """What the process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server hears it, and ends us
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server has ended
        Worker(socket.socket(fileno=fd)).work(memory, threads)
    os._exit(0)  # at once: the threads of a query that was stopped are not waited for


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
