"""Part files: written at once or table by table, the same tables come back, or an error."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from headgate.durability.lineage import Lineage
from headgate.durability.part_file import (
    make_epoch_folder,
    read_part,
    write_part,
    write_part_as_made,
)
from headgate.errors import DamageError, InvariantError
from headgate.testing.disk import SimulatedDisk

PATH = "/data/store"
TABLES = {
    "rows/0/a": pa.table({"id": [1, 2], "name": ["x", None]}),
    "gone/0/a": pa.table({"id": pa.array([], pa.int64())}),
    "rows/1/a": pa.table({"id": list(range(1000)), "name": ["y"] * 1000}).slice(3, 900),
}
NAMES = [*TABLES, "gone/1/a"]  # one that does not come


def begun() -> tuple[SimulatedDisk, Lineage]:
    disk = SimulatedDisk()
    make_epoch_folder(disk, PATH, 1)
    return disk, Lineage.new(disk)


def test_tables_come_back_as_they_were_however_they_were_written() -> None:
    disk, lineage = begun()
    said = {"shard": 3}
    at_once = write_part(disk, PATH, lineage, 1, "once", TABLES, said)
    given = (disk, PATH, lineage, 1, "made", NAMES, iter(TABLES.items()), said)
    made = write_part_as_made(*given)
    for name in (at_once, made):
        found = read_part(disk.after_kill(), PATH, lineage, name)
        assert found.said == said and list(found.tables) == list(TABLES)
        assert all(found.tables[one].equals(TABLES[one]) for one in TABLES)
    assert at_once.mark != made.mark


def test_a_part_of_which_a_table_could_not_be_made_is_no_part() -> None:
    def failing() -> Iterator[tuple[str, pa.Table]]:
        yield "rows/0/a", TABLES["rows/0/a"]
        raise KeyError("no")

    disk, lineage = begun()
    with pytest.raises(KeyError):
        write_part_as_made(disk, PATH, lineage, 1, "made", NAMES, failing(), {})
    other = write_part(disk, PATH, lineage, 1, "once", TABLES, {})
    with pytest.raises(DamageError, match="header"):
        read_part(disk, PATH, lineage, other._replace(file=other.file.replace("once", "made")))


def test_tables_that_were_not_announced_are_a_bug() -> None:
    disk, lineage = begun()
    with pytest.raises(InvariantError, match="other tables"):
        write_part_as_made(disk, PATH, lineage, 1, "made", ["a"], iter(TABLES.items()), {})
