"""Random changes of declarations over random rows, against a plain statement of what rows become.

The model holds rows as dicts and changes them itself. After every epoch it remembers them; in the
end every epoch is read again, from the files and by an engine, in the names and types of its time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.durability import StoreReader
from headgate.query.store_tables import read_table
from headgate.testing import SimulatedClock, SimulatedDisk
from tests.property import making, workers

PATH = "/store"
NAMES = ("a", "b", "c", "d", "e")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-5, 5) | st.sampled_from((2**31 - 1, -(2**31))),
    "bigint": st.integers(-5, 5) | st.sampled_from((2**63 - 1, -(2**63))),
    "float": st.sampled_from((0.0, 1.5, -2.25)),
    "double": st.sampled_from((0.0, 0.1, 1e300)),
    "string": st.sampled_from(("", "x", "ÄÖ", "it's")),
    "boolean": st.booleans(),
    "decimal(6,2)": st.integers(-99, 99).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(9,4)": st.integers(-99, 99).map(lambda n: Decimal(n).scaleb(-4)),
}
WIDER = {
    "int": ("bigint", "double"),
    "float": ("double",),
    "decimal(6,2)": ("decimal(9,4)",),
}
# A value computed from a column: as SQL, as Python, and its type.
COMPUTED: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "int": ("case when {0} > 0 then 'more' else 'less' end", lambda v: "more" if v > 0 else "less",
            "string"),
    "bigint": ("{0} % 7 = 0", lambda v: v % 7 == 0, "boolean"),
    "string": ("length({0})", len, "bigint"),
    "boolean": ("not {0}", lambda v: not v, "boolean"),
    "decimal(6,2)": ("{0} * 2", lambda v: v * 2, "decimal(9,4)"),
}  # fmt: skip


@dataclass
class Held:
    """A table of the model: the types of its columns, in order, its rows by key, its promises."""

    key: str
    types: dict[str, str]
    defaults: dict[str, Any] = field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    check: tuple[str, int] | None = None
    unique: list[str] = field(default_factory=list)
    nullable: set[str] = field(default_factory=set)

    @property
    def ddl(self) -> str:
        return ", ".join(
            f"{one} {kind}{' NULL' if one in self.nullable else ''}"
            for one, kind in self.types.items()
        )

    def values(self, column: str) -> st.SearchStrategy[Any]:
        found = VALUES[self.types[column]]
        return st.none() | found if column in self.nullable else found

    def declared(self, name: str) -> hg.Table:
        check = None if self.check is None else f"{self.check[0]} >= {self.check[1]}"
        return hg.Table(name, self.ddl, self.key, check, self.defaults, unique=list(self.unique))

    def is_broken(self) -> bool:
        rows = list(self.rows.values())
        if any(row[one] is None for row in rows for one in self.types if one not in self.nullable):
            return True
        checked = [] if self.check is None else [row[self.check[0]] for row in rows]
        if self.check is not None and any(
            one < self.check[1] for one in checked if one is not None
        ):
            return True
        values = [[row[one] for row in rows if row[one] is not None] for one in self.unique]
        return any(len(set(found)) < len(found) for found in values)

    def rename(self, old: str, new: str) -> None:
        def put(given: dict[str, Any]) -> dict[str, Any]:
            return {new if one == old else one: value for one, value in given.items()}

        self.types, self.defaults = put(self.types), put(self.defaults)
        self.rows = {key: put(row) for key, row in self.rows.items()}
        self.key = new if self.key == old else self.key
        self.unique = [new if one == old else one for one in self.unique]
        self.nullable = {new if one == old else one for one in self.nullable}
        if self.check is not None and self.check[0] == old:
            self.check = (new, self.check[1])


Model = dict[str, Held]


def widened(value: Any, kind: str) -> Any:
    return float(value) if kind == "double" and value is not None else value


class Changes:
    """Draws steps of a migration and makes them to the model."""

    def __init__(self, draw: Callable[..., Any], model: Model, name: str) -> None:
        self.draw = draw
        self.model = model
        self.migration = hg.Migration(name)

    def step(self) -> None:
        table = self.draw(st.sampled_from(sorted(self.model)), "table")
        kinds = [
            self.rename_table, self.drop_table, self.add_column, self.compute_column,
            self.drop_column, self.rename_column, self.widen, self.set_default,
            self.set_check, self.add_unique, self.drop_unique, self.add_nullable,
            self.allow_null, self.forbid_null,
        ]  # fmt: skip
        self.draw(st.sampled_from(kinds), "step")(table, self.model[table])

    def free(self, taken: Any) -> str | None:
        names = [name for name in NAMES if name not in taken]
        return self.draw(st.sampled_from(names), "name") if names else None

    def rename_table(self, name: str, held: Held) -> None:
        new = self.free(self.model)
        if new is not None:
            self.model[new] = self.model.pop(name)
            self.migration = self.migration.rename_table(name, new)

    def drop_table(self, name: str, held: Held) -> None:
        if len(self.model) > 1:
            del self.model[name]
            self.migration = self.migration.drop_table(name)

    def add_column(self, name: str, held: Held) -> None:
        column = self.free(held.types)
        if column is None:
            return
        kind = self.draw(st.sampled_from(sorted(VALUES)), "type")
        value = self.draw(VALUES[kind], "default")
        held.types[column], held.defaults[column] = kind, value
        for row in held.rows.values():
            row[column] = value
        ddl = hg.Table("t", f"k int, {column} {kind}", "k", defaults={column: value})
        self.migration = self.migration.add_column(name, ddl.schema[column].ddl)

    def add_nullable(self, name: str, held: Held) -> None:
        column = self.free(held.types)
        if column is None:
            return
        held.types[column] = self.draw(st.sampled_from(sorted(VALUES)), "type")
        held.nullable.add(column)
        value = self.draw(held.values(column), "default")
        for row in held.rows.values():
            row[column] = value
        if value is not None:
            held.defaults[column] = value
        ddl = f"k int, {column} {held.types[column]} NULL"
        made = hg.Table("t", ddl, "k", defaults={column: value})
        self.migration = self.migration.add_column(name, made.schema[column].ddl)

    def allow_null(self, name: str, held: Held) -> None:
        found = [one for one in held.types if one != held.key and one not in held.nullable]
        if found:
            column = self.draw(st.sampled_from(found), "column")
            held.nullable.add(column)
            self.migration = self.migration.allow_null(name, column)

    def forbid_null(self, name: str, held: Held) -> None:
        if held.nullable:
            column = self.draw(st.sampled_from(sorted(held.nullable)), "column")
            held.nullable.remove(column)
            self.migration = self.migration.forbid_null(name, column)

    def compute_column(self, name: str, held: Held) -> None:
        column = self.free(held.types)
        known = [one for one in held.types if one not in held.nullable]
        sources = [one for one in known if held.types[one] in COMPUTED]
        if column is None or not sources:
            return
        source = self.draw(st.sampled_from(sources), "source")
        text, compute, kind = COMPUTED[held.types[source]]
        for row in held.rows.values():
            row[column] = None if row[source] is None else compute(row[source])
        first = self.draw(st.booleans(), "first")
        types = {column: kind, **held.types} if first else {**held.types, column: kind}
        held.types = types
        self.migration = self.migration.add_column(
            name, f"{column} {kind}", value=text.format(source), first=first
        )

    def drop_column(self, name: str, held: Held) -> None:
        named = {held.key, *held.unique, held.check[0] if held.check else held.key}
        found = [one for one in held.types if one not in named]
        if not found:
            return
        column = self.draw(st.sampled_from(found), "column")
        del held.types[column]
        held.nullable.discard(column)
        held.defaults.pop(column, None)
        for row in held.rows.values():
            del row[column]
        self.migration = self.migration.drop_column(name, column)

    def rename_column(self, name: str, held: Held) -> None:
        old, new = self.draw(st.sampled_from(list(held.types)), "column"), self.free(held.types)
        if new is not None:
            held.rename(old, new)
            self.migration = self.migration.rename_column(name, old, new)

    def widen(self, name: str, held: Held) -> None:
        found = [
            (column, wider)
            for column, kind in held.types.items()
            for wider in WIDER.get(kind, ())
            if not (wider == "double" and (column == held.key or column in held.unique))
        ]
        if not found:
            return
        column, kind = self.draw(st.sampled_from(found), "column")
        held.types[column] = kind
        if column in held.defaults:
            held.defaults[column] = widened(held.defaults[column], kind)
        for key, row in list(held.rows.items()):
            row[column] = widened(row[column], kind)
            held.rows[key] = row
        self.migration = self.migration.widen(name, f"{column} {kind}")

    def set_default(self, name: str, held: Held) -> None:
        column = self.draw(st.sampled_from(list(held.types)), "column")
        value = self.draw(st.none() | VALUES[held.types[column]], "default")
        held.defaults.pop(column, None)
        if value is not None:
            held.defaults[column] = value
        self.migration = self.migration.set_default(name, column, value)

    def set_check(self, name: str, held: Held) -> None:
        numbers = [one for one, kind in held.types.items() if kind in ("int", "bigint", "double")]
        column = self.draw(st.none() | st.sampled_from(numbers), "column") if numbers else None
        bound = self.draw(st.sampled_from((-(10**9), -2, 0)), "bound")
        held.check = None if column is None else (column, bound)
        text = None if column is None else f"{column} >= {bound}"
        self.migration = self.migration.set_check(name, text)

    def add_unique(self, name: str, held: Held) -> None:
        found = [
            one
            for one, kind in held.types.items()
            if kind in ("int", "bigint", "string", "boolean") and one not in held.unique
        ]
        if found:
            column = self.draw(st.sampled_from(found), "column")
            held.unique.append(column)
            self.migration = self.migration.add_unique(name, column)

    def drop_unique(self, name: str, held: Held) -> None:
        if held.unique:
            column = self.draw(st.sampled_from(held.unique), "column")
            held.unique.remove(column)
            self.migration = self.migration.drop_unique(name, column)


class World:
    """A store on a simulated disk beside its model."""

    path = PATH

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        self.disk = SimulatedDisk()
        self.model: Model = {
            "a": Held("a", {"a": "int", "b": "string", "c": "decimal(6,2)"}),
            "b": Held("a", {"a": "bigint", "b": "int"}, {"b": 3}),
        }
        self.epochs: dict[int, Model] = {0: copy.deepcopy(self.model)}
        self.applied: list[hg.Migration] = []
        with self.open():
            pass

    def open(self, *transactions: hg.Transaction) -> hg.Engine:
        tables = [held.declared(name) for name, held in self.model.items()]
        return hg.open(
            self.path, tables=tables, transactions=transactions, migrations=self.applied,
            disk=self.disk, clock=SimulatedClock(),
        )  # fmt: skip

    def remember(self, epoch: int) -> None:
        self.epochs[epoch] = copy.deepcopy(self.model)

    def write(self, number: int) -> None:
        """Rows that come and go, by transactions over the tables as they are declared now."""
        name = self.draw(st.sampled_from(sorted(self.model)), "written")
        held = self.model[name]
        table = held.declared(name)
        names = tuple(held.types)

        def put(event: Any, row: Any = table.at(held.key, create=True)) -> Any:
            for one in names:
                if one != held_key:
                    setattr(row, one, getattr(event, one))

        held_key = held.key
        put.__name__ = f"put_{number}"
        made = hg.transaction(event=held.ddl, compiled=False)(put)
        with self.open(made) as engine:
            for _ in range(self.draw(st.integers(1, 3), "rows")):
                row = {one: self.draw(held.values(one)) for one in held.types}
                row[held.key] = self.draw(st.integers(0, 5), "key")
                before = copy.deepcopy(held.rows)
                held.rows[row[held.key]] = row
                if held.is_broken():
                    held.rows = before
                engine.call(made, **row)
                self.remember(engine.epoch)
            if self.draw(st.booleans(), "snapshot"):
                engine.snapshot()

    def migrate(self, number: int) -> None:
        model = copy.deepcopy(self.model)
        changes = Changes(self.draw, model, f"migration {number}")
        for _ in range(self.draw(st.integers(1, 5), "steps")):
            changes.step()
        if not changes.migration.steps:
            return
        migrations = [*self.applied, changes.migration]
        if any(held.is_broken() for held in model.values()):
            try:
                hg.migrate(self.path, migrations, disk=self.disk)
            except hg.DeclarationError as error:
                assert "nothing was changed" in str(error)
                return
            raise AssertionError(f"{changes.migration} was not refused")
        [tried] = hg.migrate(self.path, migrations, dry_run=True, disk=self.disk)
        assert not tried.offenders and tried.epoch == max(self.epochs) + 1
        self.model, self.applied = model, migrations
        with self.open() as engine:
            self.remember(engine.epoch)

    def live(self, rounds: int) -> None:
        """Writes and migrations in turn, and all that can be read after them."""
        for number in range(rounds):
            self.write(number)
            self.migrate(number)
        self.write(99)
        self.check()

    def check(self) -> None:
        """Every epoch as it was, in the files and to an engine."""
        reader = StoreReader.open(self.path, self.disk)
        with self.open() as engine:
            for epoch, model in self.epochs.items():
                assert set(reader.declared(epoch)["tables"]) == set(model)
                for name, held in model.items():
                    expected = sorted(held.rows.values(), key=lambda row: row[held.key])
                    for found in (
                        read_table(reader, name, epoch),
                        engine.sql(f'select * from "{name}"', epoch=epoch).arrow(),
                    ):
                        assert found.schema.equals(held.declared(name).schema.arrow)
                        rows = sorted(found.to_pylist(), key=lambda row: row[held.key])
                        assert rows == expected


@making.examples(25)
@given(data=st.data())
def test_every_epoch_shows_the_rows_as_they_were_declared_then(data: st.DataObject) -> None:
    world = World(data.draw)
    world.live(data.draw(st.integers(1, 4), "rounds"))


class ShardedWorld(World):
    """The same with the rows in shards."""

    path = workers.PATH

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.shards = draw(st.sampled_from((1, 3)), "shards")
        super().__init__(draw)

    def open(self, *transactions: hg.Transaction) -> hg.Engine:
        tables = [held.declared(name) for name, held in self.model.items()]
        return workers.open_sharded(
            tables, transactions, self.shards, workers.Workers(), self.disk,
            migrations=self.applied,
        )  # fmt: skip


@making.examples(15)
@given(data=st.data())
def test_it_does_so_in_shards_and_back_in_one_process(data: st.DataObject) -> None:
    world = ShardedWorld(data.draw)
    world.live(data.draw(st.integers(1, 3), "rounds"))
    change = hg.reshard(world.path, 0, disk=world.disk)
    tables = [held.declared(name) for name, held in world.model.items()]
    with hg.open(world.path, tables=tables, migrations=world.applied, disk=world.disk) as one:
        assert one.epoch == change.epoch == max(world.epochs) + 1
        for name, held in world.model.items():
            rows = sorted(one.scan(name).dicts(), key=lambda row: row[held.key])
            assert rows == sorted(held.rows.values(), key=lambda row: row[held.key])
