"""Shapes: transactions made up from a seed, up to nine tables and twelve parameters wide.

The fixed family shows what a function may do; these show how much of it may stand side by side. A
shape is a set of routed transactions over its tables: each parameter an `at` or an `each`, read
only, creating or neither, over keys so few that two parameters often name one row. What a function
does is simple integer work, in which every row may depend on any other. All tables but the first,
and each third after it, have columns that may be null, those of constraints among them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import headgate as hg

TABLES_MAX = 9
PARAMETERS_MAX = 12
KEYS = 6  # so few that parameters meet


@dataclass(frozen=True, eq=False)
class Shape:
    """The tables of one program and its transactions, by the value that leads to each."""

    tables: tuple[hg.Table, ...]
    routes: dict[str, Any]

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Of each transaction: how many tables, how many parameters name rows."""
        found = [one.signature for one in self.routes.values()]
        return [(len(one.tables), len(one.accesses)) for one in found]


@dataclass(frozen=True)
class Parameter:
    """One parameter to be: which rows of which table it names, and how."""

    name: str
    table: int
    form: str  # at, each, where or between
    mode: str  # "", read or create
    nullable: bool  # its rows have columns that may be null
    key: str = ""  # the function that computes its key, where one does

    @property
    def column(self) -> str:
        return f"k_{self.name}"

    @property
    def default(self) -> str:
        more = {"": "", "read": ', mode="read"', "create": ", create=True"}[self.mode]
        if self.form == "where":
            return f'table_{self.table}.where("{self.column}", index="tag"{more})'
        if self.form == "between":
            return f'table_{self.table}.between("{self.column}", "z"{more}, limit=4)'
        named = self.key or f'"{self.column}"'
        return f"table_{self.table}.{self.form}({named}{more})"

    @property
    def event(self) -> str:
        return f"{self.column} {'array<bigint>' if self.form == 'each' else 'bigint'}"


def make_shape(
    seed: int,
    tables: int | None = None,
    parameters: int | None = None,
    constrained: bool = False,
    routes: int | None = None,
    ranges: str | None = None,
    computed: float = 0.0,
) -> Shape:
    """A shape of this seed; the numbers are drawn where they are not given.

    Some parameters are ranges where they are asked for: that rows stay in, or come to and leave.
    About so many of the keys are `computed` from rows of parameters before.
    """
    draw = random.Random(seed)
    keys = random.Random(seed)  # shapes without computed keys stay what they are
    count = tables or draw.randint(1, TABLES_MAX)
    made = _tables(draw, count, constrained, ranges)
    found = {}
    for number in range(routes or draw.choice((1, 1, 2, 3))):
        most = parameters or PARAMETERS_MAX
        wide = most if parameters and number == 0 else draw.randint(1, most)
        share = (keys, computed)
        label = f"shape_{seed}"
        found[f"r{number}"] = _transaction(draw, label, number, made, wide, ranges, share)
    return Shape(made, found)


_NEVER_NULL = "id bigint, n bigint DEFAULT 3, tag bigint DEFAULT 1, x double"
_NULLABLE = "id bigint, n bigint DEFAULT 3, gap bigint NULL, tag bigint NULL DEFAULT 1, x double"


def _tables(
    draw: random.Random, count: int, constrained: bool, ranges: str | None
) -> tuple[hg.Table, ...]:
    found: list[hg.Table] = []
    for number in range(count):
        options: dict[str, Any] = {}
        if draw.random() < 0.5:
            options["check"] = "n < 900"
        if ranges:
            options["index"] = ["tag"]
        if constrained and number % 3 == 1:
            options["unique"] = ["tag"]
        if constrained and number % 3 == 2:
            options["references"] = {"tag": found[0]}
        found.append(
            hg.Table(
                f"t{number}",
                _NEVER_NULL if ranges or number % 3 == 0 else _NULLABLE,
                key="id",
                **options,
            )
        )
    return tuple(found)


def _transaction(
    draw: random.Random,
    label: str,
    route: int,
    tables: tuple[hg.Table, ...],
    wide: int,
    ranges: str | None,
    computed: tuple[random.Random, float],
) -> Any:
    parameters: list[Parameter] = []
    name = f"{label}_{route}"
    for number in range(wide):
        # The first transaction comes to all tables, as far as it is wide enough.
        table = number % len(tables) if route == 0 else draw.randrange(len(tables))
        form = draw.choice(("at", "at", "at", "each"))
        mode = draw.choice(("", "", "", "read", "create"))
        if ranges and number % 3 == 1:
            form, mode = draw.choice(("where", "where", "between")), draw.choice(("", "read"))
        if ranges == "steady" and mode == "create":
            mode = ""
        nullable = tables[table].schema["tag"].nullable
        made = Parameter(f"p{route}_{number}", table, form, mode, nullable)
        if parameters and form == "at" and computed[0].random() < computed[1]:
            made = replace(made, key=_key(computed[0], parameters))
        parameters.append(made)
    has_output = draw.random() < 0.6
    source = _source(draw, name, parameters, has_output, ranges != "steady")
    scope: dict[str, Any] = {"hg": hg}
    scope |= {f"table_{number}": table for number, table in enumerate(tables)}
    exec(source, scope)
    event = ", ".join(
        ["ts bigint", "x bigint", "z bigint", "y bigint NULL", *(one.event for one in parameters)]
    )
    return hg.transaction(event=event)(scope[name])


def _key(draw: random.Random, before: list[Parameter]) -> str:
    """A function of a key: of one row or two, or of the rows of a list; some of them raise."""
    one = draw.choice(before)
    if one.form == "each":
        return f"lambda event, {one.name}: len({one.name}) + event.x % 3"
    other = draw.choice([found for found in before if found.form == "at"])
    names = ", ".join(dict.fromkeys([one.name, other.name]))
    return draw.choice((
        f"lambda {one.name}: {one.name}.tag",
        f"lambda event, {names}: ({one.name}.n + {other.name}.tag + event.x) % {KEYS + 1}",
        f"lambda {names}: ({one.name}.n + 24 // {other.name}.tag) % {KEYS + 2}",
    ))  # fmt: skip


def _source(
    draw: random.Random, name: str, parameters: list[Parameter], has_output: bool, moves: bool
) -> str:
    given = [f"{one.name}={one.default}" for one in parameters]
    given += ['out=hg.output("total bigint, rest bigint NULL, share bigint")'] if has_output else []
    lines = [f"def {name}(event, {', '.join(given)}):", "    total = event.x"]
    lines += ["    if event.x % 9 == 8:", "        return hg.abort('early')"]
    for one in parameters:
        lines += _use(draw, one, moves)
    lines += [f"    if total % {draw.randint(5, 11)} == 4:", "        return hg.abort('late')"]
    deleted = [one for one in parameters if one.form == "at" and one.mode != "read"]
    if deleted and moves:
        lines += ["    if event.x % 19 == 3:", f"        hg.delete({draw.choice(deleted).name})"]
    if has_output:
        lines += ["    out.total = total", "    out.share = 12 // event.z"]
        lines += ["    if event.y is not None:", "        out.rest = event.y or None"]
    return "\n".join(lines) + "\n"


def _use(draw: random.Random, one: Parameter, moves: bool) -> list[str]:
    """What the function does with the rows of a parameter."""
    row, inside = one.name, "    "
    lines = []
    if one.form != "at":
        row, inside = f"row_{one.name}", "        "
        lines.append(f"    for {row} in {one.name}:")
    lines.append(f"{inside}total += {row}.n % {draw.randint(2, 40)}")
    if one.mode != "read":
        amount = draw.choice(("event.x", "total % 100", f"{row}.tag + 1"))
        lines.append(f"{inside}{row}.n += {amount}")
        if draw.random() < 0.3 and moves:
            other = "None if total % 7 == 2 else " if one.nullable else ""
            lines.append(f"{inside}{row}.tag = {other}total % 6")
        if one.nullable:
            lines += [
                f"{inside}if {row}.gap is None:",
                f"{inside}    {row}.gap = event.y",
                f"{inside}elif total % 11 == 0:",
                f"{inside}    {row}.gap = {row}.gap + event.y",
                f"{inside}else:",
                f"{inside}    {row}.gap = None",
            ]
        if draw.random() < 0.3:
            lines.append(f"{inside}{row}.x = {row}.x * 0.5 + event.x")
    return lines


# --- rows and events ------------------------------------------------------------------------------


def make_rows(seed: int, shape: Shape) -> dict[str, list[dict[str, Any]]]:
    """Nearly all keys, so that a wide transaction may find its rows; tags fit every constraint."""
    draw = random.Random(seed)
    found: dict[str, list[dict[str, Any]]] = {}
    for table in shape.tables:
        keys = draw.sample(range(KEYS), draw.choice((KEYS, KEYS, KEYS - 1)))
        parents = [row["id"] for row in found[shape.tables[0].name]] if found else [1]
        found[table.name] = [
            {"id": key, "n": draw.randint(0, 60), "tag": key, "x": 1.5} for key in keys
        ]
        if table.schema["tag"].nullable:
            for row in found[table.name]:
                row["gap"] = draw.choice((None, 1, 4))
                row["tag"] = draw.choice((None, *[row["tag"]] * 5))
        if table.references:
            for row in found[table.name]:
                row["tag"] = draw.choice((*parents, None))
    return found


def make_events(seed: int, shape: Shape, count: int) -> list[dict[str, Any]]:
    """Events for all routes; in some of them several parameters name the same new key."""
    draw = random.Random(seed)
    columns = {c.name: c.type for one in shape.routes.values() for c in one.event}
    events = []
    for _ in range(count):
        event: dict[str, Any] = {"kind": draw.choice(sorted(shape.routes))}
        fresh, share = KEYS + draw.randrange(4), draw.choice((0.0, 0.0, 0.0, 0.1, 0.5))

        def key(fresh: int = fresh, share: float = share) -> int:
            return fresh if draw.random() < share else draw.randrange(KEYS)

        for name, kind in columns.items():
            size = draw.choice((0, 1, 1, 2, 3))
            event[name] = key() if kind.element is None else [key() for _ in range(size)]
        event |= {"ts": draw.randrange(count), "x": draw.randrange(40)}
        event["y"] = draw.choice((None, 0, 5, -2))
        event["z"] = 0 if draw.random() < 0.02 else draw.randint(1, 5)
        events.append(event)
    return events
