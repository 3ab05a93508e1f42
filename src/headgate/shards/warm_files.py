"""Warm files: a shard's rows with their index on an executor's own disk, for whoever works there.

Workers of Spark end when they are idle, and with their program. A file has the rows of a shard as
memory has them, so that the next worker maps it, brings it forward by what was committed since, and
makes no index anew. It is never changed in place: nothing can be half done in it. It is written
behind the task that it is due after: what that task did nobody may have committed, and the file
says so, as the copy in memory does. A large copy that was written is mapped itself from then on:
its memory goes, but for the pages that change. Where copies are too much memory, they are written
before the next one comes. Invariant: what a file holds is known by its digests and by the
attempt that ran in it; one that is missing, older than the store's image or in doubt costs reading
the store, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.io.mapped import MappedArrays, map_arrays, said_in, write_arrays
from headgate.shards.warm import Held, ShardRows, Tentative, size_of
from headgate.state.rows import TableRows
from headgate.state.version_rows import VersionRows

# A file is written anew when what was committed since is beyond this, and a share of the rows.
BEHIND_BYTES_MIN = 1 << 22
BEHIND_SHARE = 4
# A copy that takes more is mapped when it was written; and so much may all copies of a worker take
# as memory of its own, beside one that is made anew: then it stays below a gibibyte.
MAP_BYTES_MIN = 1 << 24
OWN_BYTES_MAX = 448 << 20
WORTH_SHARE = 16  # a copy is written for that if one part of so many of it is not in its file
_TEXTS_AT_ONCE = 1 << 18
ROOM_SHARE = 4  # one more row for so many: those that come next must not move all others


# Files of which nobody made use for so long go, and those of stores that are no more.
_UNUSED_SECONDS, _UNFINISHED_SECONDS = 7 * 86_400.0, 3_600.0
_FREE_SHARE = 10  # of a disk so much stays free: one part of so many
_SUFFIX = ".warm"


class WarmFiles:
    """The files of one machine, or of one executor, in one folder.

    With `beside` they are written by a thread, once `begin` was called: a task must not wait.
    """

    def __init__(self, folder: str, run: str = "", *, beside: bool = False) -> None:
        self._folder, self._run, self._beside = folder, run, beside
        self._changed = threading.Condition()
        self._due: OrderedDict[Held, tuple[ShardRows, str]] = OrderedDict()
        self._owed: set[Held] = set()  # were due, and their rows changed before it was done
        self._stores: dict[int, str] = {}  # where they are
        self._written: ShardRows | None = None  # at this moment
        self._writes = False  # whether there is a thread
        self._is_tidy = False

    def _path(self, key: Held) -> str:
        store, lineage, mark, shard = key
        return os.path.join(self._folder, f"{store:016x}-{lineage:016x}-{mark[:32]}-{shard}.warm")

    def restore(self, key: Held, rows: ShardRows) -> bool:
        """Let the rows be those of the shard's file; whether there is one of use."""
        path = self._path(key)
        found = map_arrays(path, self._run) if is_private(path) else None
        if found is None or found.said["key"] != list(key):
            return False
        rows.clear()
        if not _put_texts(rows, found.arrays):
            return False
        for name, table in rows.tables.items():
            _put_rows(table, found.said["tables"][name], found.arrays, name)
        _map(rows, found)
        rows.digests = {int(part): digest for part, digest in found.said["digests"].items()}
        ran = found.said["tentative"]
        rows.tentative = None if ran is None else Tentative(ran[0], frozenset(ran[1]))
        rows.behind = 0
        with contextlib.suppress(OSError):
            os.utime(path)  # it is of use
        return True

    def keep(self, key: Held, rows: ShardRows, store: str, *, now: bool) -> None:
        """Have the rows written as they are, when that is due, or in any case.

        Who wants to change them calls `release` before.
        """
        self._stores[key[0]] = store
        is_due = rows.behind > max(BEHIND_BYTES_MIN, size_of(rows) // BEHIND_SHARE)
        is_due = is_due or now or key in self._owed
        if not is_due or not any(rows.digests.values()):
            return
        if not self._beside:
            self._write(key, rows, store)
            return
        with self._changed:
            self._due[key] = rows, store

    def finish(self, let_go: Iterable[ShardRows]) -> None:
        """Nobody keeps these rows any more: what is due of them is written here and now, so that
        their memory goes before that of others is taken."""
        gone = {id(rows) for rows in let_go}
        with self._changed:
            due = [(key, *one) for key, one in self._due.items() if id(one[0]) in gone]
            for key, *_ in due:
                del self._due[key]
        for one in due:
            with contextlib.suppress(Exception):  # as beside a task: it costs time later, no more
                self._write(*one)

    def bound(self, held: Mapping[Held, ShardRows]) -> None:
        """Write, here and now, the copies that are the most memory, while all that are held are
        too much: a page of a file comes and goes as the machine has room.

        Those that say little that their file does not are left: their pages would soon change
        again, and each change would cost writing many rows.
        """
        worth = {
            key: rows for key, rows in held.items() if rows.behind > size_of(rows) // WORTH_SHARE
        }
        while worth and sum(rows.own_bytes() for rows in held.values()) > OWN_BYTES_MAX:
            key, rows = max(worth.items(), key=lambda one: one[1].own_bytes())
            del worth[key]
            self.release(rows)
            if rows.behind and not self._write(key, rows, self._stores[key[0]], maps=True):
                return  # the disk is full, and is for the next one

    def begin(self) -> None:
        """A task is over: what is due may be written."""
        with self._changed:
            if self._due and not self._writes:
                thread = threading.Thread(target=self._write_due, name="headgate-warm", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread is to be had: no file then
                    thread.start()
                    self._writes = True

    def release(self, rows: ShardRows) -> None:
        """Return when nobody writes these rows, or will; whether they were is seen by `behind`."""
        with self._changed:
            for key in [key for key, (due, _) in self._due.items() if due is rows]:
                del self._due[key]
                self._owed.add(key)
            self._changed.wait_for(lambda: self._written is not rows)

    def _write_due(self) -> None:
        while True:
            with self._changed:
                self._written = None
                self._changed.notify_all()
                if not self._due:
                    self._writes = False
                    return
                key, (rows, store) = self._due.popitem(last=False)
                self._written = rows
            # What goes wrong here costs reading the store again, and has nobody to be told.
            with contextlib.suppress(Exception):
                self._write(key, rows, store)

    def _write(self, key: Held, rows: ShardRows, store: str, *, maps: bool = False) -> bool:
        """Write the rows as they are, and map them if they are many; whether that went well."""
        arrays, room, tables = _texts(rows), {}, {}
        for name, table in rows.tables.items():
            arrays[f"{name}/words"] = table.words[: table.count]
            arrays[f"{name}/entries"] = table.entries
            arrays[f"{name}/free"] = table.free[: table.free_count]
            rows_max = table.count + table.count // ROOM_SHARE + 1024
            room[f"{name}/words"] = rows_max * table.layout.words
            tables[name] = {"count": table.count}
        ran = rows.tentative
        said = {
            "key": list(key), "digests": rows.digests, "tables": tables, "store": store,
            "tentative": None if ran is None else [ran.file, sorted(ran.parts)],
        }  # fmt: skip
        self._tidy(key)
        if not self._has_room(sum(one.nbytes for one in arrays.values())):
            return False
        written = write_arrays(self._path(key), said, arrays, room, self._run)
        if written is None:
            return False
        rows.behind = 0
        self._owed.discard(key)
        if maps or rows.own_bytes() > MAP_BYTES_MIN:
            _map(rows, written)
        return True

    def _has_room(self, size: int) -> bool:
        """Whether the disk stays well beyond full with so many bytes more."""
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            disk = shutil.disk_usage(self._folder)
            return disk.free - size > disk.total // _FREE_SHARE
        return False

    def _tidy(self, key: Held) -> None:
        """Remove older files of the same shard, and once those that nobody has any use for."""
        store, shard = f"{key[0]:016x}-", f"-{key[3]}{_SUFFIX}"
        for file in _files(self._folder):
            name = os.path.basename(file)
            is_older = name.startswith(store) and name.endswith(shard) and file != self._path(key)
            if is_older or not (self._is_tidy or _is_of_use(file)):
                with contextlib.suppress(OSError):
                    os.remove(file)
        self._is_tidy = True


def _files(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [os.path.join(folder, name) for name in os.listdir(folder) if _SUFFIX in name]
    return []


def _is_of_use(file: str) -> bool:
    """Whether somebody may map a file, or still write it."""
    with contextlib.suppress(OSError):
        age = time.time() - os.stat(file).st_mtime
        if not file.endswith(_SUFFIX):
            return age < _UNFINISHED_SECONDS
        said = said_in(file)
        return age < _UNUSED_SECONDS and said is not None and os.path.isdir(said["store"])
    return True  # another process has just removed it


def is_private(path: str) -> bool:
    """Whether nobody but this user can put a file there, or change it, or there is none."""
    found = []
    with contextlib.suppress(OSError):
        found = [os.lstat(os.path.dirname(path))]
        found.append(os.lstat(path))
    return all(
        one.st_uid == os.getuid() and not stat.S_ISLNK(one.st_mode) and not one.st_mode & 0o022
        for one in found
    )


def _texts(rows: ShardRows) -> dict[str, np.ndarray]:
    """The texts of all rows with their codes: where each begins, and all characters."""
    used = [codes for table in rows.tables.values() for codes in table.text_codes()]
    codes = np.unique(np.concatenate([*used, np.zeros(0, np.int64)]))
    texts = rows.pool.texts(codes).cast(pa.large_string())
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[: len(texts) + 1] if len(texts) else codes
    size = int(starts[-1]) if len(texts) else 0
    letters = np.zeros(size // 8 + 1, np.int64)
    if size:
        letters.view(np.uint8)[:size] = np.frombuffer(data, np.uint8)[:size]
    return {"codes": codes, "starts": starts, "letters": letters}


def _put_texts(rows: ShardRows, arrays: dict[str, np.ndarray]) -> bool:
    """Have the texts of a file under the very codes that its rows have."""
    codes = arrays["codes"]
    buffers = [None, pa.py_buffer(arrays["starts"]), pa.py_buffer(arrays["letters"])]
    texts = pa.Array.from_buffers(pa.large_string(), len(codes), buffers)
    for first in range(0, len(codes), _TEXTS_AT_ONCE):
        some = texts.slice(first, _TEXTS_AT_ONCE).cast(pa.string())
        if not np.array_equal(rows.pool.intern(some), codes[first : first + _TEXTS_AT_ONCE]):
            return False  # two texts of one hash came in another order
    return True


def _put_rows(
    table: TableRows, said: dict[str, Any], arrays: dict[str, np.ndarray], name: str
) -> None:
    table.is_indexed = not isinstance(table, VersionRows)
    table.count = said["count"]
    free = arrays[f"{name}/free"]
    table.free, table.free_count = np.resize(free, max(16, len(free))), len(free)
    table.ordered.clear()
    table.kept.clear()
    table.refills += 1


def _map(rows: ShardRows, found: MappedArrays) -> None:
    """Have the words of all rows, and their index, where a file has them."""
    for name, table in rows.tables.items():
        table.words = found.arrays[f"{name}/words"].reshape(-1, table.layout.words)
        table.entries = found.arrays[f"{name}/entries"]
    rows.note_mapped()
