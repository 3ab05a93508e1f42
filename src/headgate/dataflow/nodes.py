"""The graph: nodes joined by the streams they take and give, checked and put in order once.

Invariants: every stream has at most one giver, no node waits for itself, and what is nested stands
together: no way leads out of a nest and back into it. A unit is what commits at once: a nest, or a
node that is in none. Units stand in dataflow order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headgate.dataflow.dividing import divided
from headgate.dataflow.partitions import Partition
from headgate.dataflow.procedures import Procedure, Trigger, checked, started_by
from headgate.dataflow.streams import BATCH, Stream, Taken, Window, stream_of
from headgate.engine.stream import OF_DATAFLOWS
from headgate.errors import DeclarationError, not_among, shown
from headgate.state.display import text as html_text
from headgate.state.table import Table
from headgate.transactions import Transaction

if TYPE_CHECKING:
    from headgate.dataflow.workers import Workers


@dataclass(frozen=True, eq=False)
class Node:
    """A procedure or a transaction in its place in a graph."""

    step: Procedure | Transaction
    triggers: tuple[Trigger, ...] = ()  # that its writes may start

    @cached_property
    def name(self) -> str:
        return self.step.name

    @cached_property
    def takes(self) -> tuple[Taken, ...]:
        """What it is given, batch by batch."""
        if isinstance(self.step, Procedure):
            return self.step.takes
        return (_declared(self.step.takes),)

    @cached_property
    def gives(self) -> tuple[Stream, ...]:
        """The streams that its batches flow on to."""
        return tuple(_declared(one) for one in self.step.gives)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that it takes, whether by a window or not."""
        return tuple(map(stream_of, self.takes))

    @cached_property
    def taken(self) -> tuple[str, ...]:
        """The names of those streams."""
        return tuple(stream.name for stream in self.streams)

    @cached_property
    def window(self) -> Window | None:
        """The window that it is over, if it is over one and nothing beside it."""
        found = self.takes[0]
        return found if isinstance(found, Window) and len(self.takes) == 1 else None

    @cached_property
    def joined(self) -> Mapping[str, Window]:
        """The windows that it takes beside others or streams, by the names they are kept under."""
        windows = [one for one in self.takes if isinstance(one, Window) and len(self.takes) > 1]
        return {f"{one.stream.name} of {self.name}": one for one in windows}

    @cached_property
    def windows(self) -> Mapping[str, Window]:
        """All windows that it takes, each by the name that it is kept under."""
        return self.joined if self.window is None else {self.name: self.window}

    @cached_property
    def written(self) -> tuple[Table, ...]:
        """The tables that it writes."""
        if isinstance(self.step, Procedure):
            started = [table for one in self.triggers for table in one.writes]
            return tuple(dict.fromkeys((*self.step.writes, *started)))
        return tuple(self.step.signature.written)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables that it reads or writes."""
        if isinstance(self.step, Procedure):
            started = [table for one in self.triggers for table in one.tables]
            return tuple(dict.fromkeys((*self.step.tables, *started)))
        return tuple(self.step.signature.tables)


def _declared(stream: Any) -> Stream:
    if not isinstance(stream, Stream):
        raise DeclarationError(f"a stream is made with hg.Stream(...); this is {shown(stream)}")
    return stream


@dataclass(frozen=True, eq=False)
class Unit:
    """Nodes that commit together, in dataflow order: a nest, or one node."""

    nodes: tuple[Node, ...]

    @cached_property
    def name(self) -> str:
        return " + ".join(node.name for node in self.nodes)

    @cached_property
    def inner(self) -> frozenset[str]:
        """The streams that one of its nodes gives."""
        return frozenset(stream.name for node in self.nodes for stream in node.gives)

    @cached_property
    def needs(self) -> tuple[Stream, ...]:
        """The streams that come to it from elsewhere."""
        found = {one.name: one for node in self.nodes for one in node.streams}
        return tuple(one for name, one in found.items() if name not in self.inner)

    @cached_property
    def writes(self) -> frozenset[str]:
        """The tables that it writes."""
        return frozenset(table.name for node in self.nodes for table in node.written)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The tables that it reads, or that must stay right when it writes."""
        tables = [table for node in self.nodes for table in node.tables]
        named = {table.name for table in tables}
        return frozenset(named | {one.parent for table in tables for one in table.references})

    @cached_property
    def partition(self) -> Partition | None:
        """The partition that it is, if it is one: by itself."""
        step = self.nodes[0].step
        return step.partition if isinstance(step, Procedure) and len(self.nodes) == 1 else None

    def is_beside(self, other: Unit) -> bool:
        """Whether the two are partitions of one procedure, which have nothing to do with each
        other."""
        mine, its = self.partition, other.partition
        return mine is not None and its is not None and mine.of == its.of

    @cached_property
    def origin(self) -> str:
        """Under which name its batches are known once they have run."""
        return f"{OF_DATAFLOWS}{self.name}"

    @cached_property
    def first(self) -> str:
        """The name of its first node."""
        return self.nodes[0].name

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The names of the streams that come to it from elsewhere."""
        return tuple(stream.name for stream in self.needs)


class FlowGraph:
    """Nodes and nests as one graph, in order."""

    def __init__(self, nodes: Sequence[Node], nests: Sequence[Sequence[Node]], where: str) -> None:
        self._where = where
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.streams: dict[str, Stream] = self._streams()
        self.givers: dict[str, Node] = {}
        for node in nodes:
            for stream in node.gives:
                self._check_giver(stream, node)
                self.givers[stream.name] = node
        self.takers: dict[str, list[Node]] = {name: [] for name in self.streams}
        for node in nodes:
            for stream in node.streams:
                self.takers[stream.name].append(node)
        self.sources: dict[str, Stream] = {
            name: one for name, one in self.streams.items() if name not in self.givers
        }
        self.order: tuple[Node, ...] = self._ordered(nodes, self._before, "node")
        self.units: tuple[Unit, ...] = self._units(nests)
        self.unit_of: dict[str, Unit] = {
            node.name: unit for unit in self.units for node in unit.nodes
        }
        self.by_name: dict[str, Node] = {node.name: node for node in self.nodes}
        # By unit: those that take what it gives, in dataflow order.
        self.followers: dict[str, tuple[Unit, ...]] = {
            unit.name: tuple(one for one in self.units if unit.inner & {*one.needed})
            for unit in self.units
        }
        # By unit: the sources that its batches come from.
        self.sources_of: dict[str, tuple[str, ...]] = {
            unit.name: self._sources_of(unit) for unit in self.units
        }

    def _streams(self) -> dict[str, Stream]:
        found: dict[str, Stream] = {}
        types: dict[str, tuple[str, Any]] = {}
        for node in self.nodes:
            for stream in (*node.streams, *node.gives):
                if found.setdefault(stream.name, stream) != stream:
                    raise DeclarationError(
                        f"{self._where}: two streams are called {stream.name!r}: {stream} and "
                        f"{found[stream.name]}; node {node.name!r} has another than those before it"
                    )
                for column in stream.schema:
                    first, kind = types.setdefault(column.name, (stream.name, column.type))
                    if kind != column.type:
                        raise DeclarationError(
                            f"{self._where}: column {column.name!r} is a {kind} in stream "
                            f"{first!r} and a {column.type} in {stream.name!r}; streams of one "
                            "dataflow are recorded together: rename it in one of them"
                        )
        return found

    def _check_giver(self, stream: Stream, node: Node) -> None:
        if stream.name in self.givers:
            raise DeclarationError(
                f"{self._where}: {self.givers[stream.name].name!r} and {node.name!r} both give the "
                f"stream {stream.name!r}; give each a stream of its own, and a node that takes both"
            )
        if stream.batch is not None:
            raise DeclarationError(
                f"{self._where}: the stream {stream.name!r} is given by {node.name!r}, batch by "
                "batch; batch= is for sources"
            )

    def fed_by(self, source: str) -> list[Unit]:
        """The units that batches of a source come to, through others or not."""
        return [unit for unit in self.units if source in self.sources_of[unit.name]]

    def _sources_of(self, unit: Unit) -> tuple[str, ...]:
        found, left = dict[str, None](), list(unit.needed)
        while left:
            name = left.pop()
            giver = self.givers.get(name)
            if giver is None:
                found[name] = None
            else:
                left += self.unit_of[giver.name].needed
        return tuple(found)

    def _before(self, node: Node) -> list[Node]:
        return [self.givers[one.name] for one in node.streams if one.name in self.givers]

    def _ordered(self, items: Sequence[Any], before: Any, what: str) -> tuple[Any, ...]:
        """The items, each behind all that it waits for; otherwise as they were given."""
        placed: dict[int, Any] = {}
        way: list[Any] = []

        def place(item: Any) -> None:
            if id(item) in placed:
                return
            if item in way:
                names = " -> ".join(one.name for one in [*way[way.index(item) :], item])
                raise DeclarationError(
                    f"{self._where}: its streams lead in a circle, {what} by {what}: {names}; a "
                    "batch would wait for itself"
                )
            way.append(item)
            for other in before(item):
                place(other)
            way.pop()
            placed[id(item)] = item

        for item in items:
            place(item)
        return tuple(placed.values())

    def _units(self, nests: Sequence[Sequence[Node]]) -> tuple[Unit, ...]:
        nested = {node.name: tuple(nest) for nest in nests for node in nest}
        units: dict[str, Unit] = {}
        for node in self.order:
            together = nested.get(node.name, (node,))
            if node.name not in units:
                unit = Unit(tuple(one for one in self.order if one in together))
                units.update((one.name, unit) for one in unit.nodes)

        def before(unit: Unit) -> list[Unit]:
            found = (units[one.name] for node in unit.nodes for one in self._before(node))
            return [one for one in found if one is not unit]

        return self._ordered(list(dict.fromkeys(units.values())), before, "nest")

    def node(self, name: str) -> Node:
        """The node of a name."""
        return self.by_name[name]

    def after(self, node: Node) -> list[Node]:
        """The nodes that what this one gives comes to, at last, in dataflow order."""
        reached = {stream.name for stream in node.gives}
        found = []
        for one in self.order:
            if any(stream.name in reached for stream in one.streams):
                found.append(one)
                reached |= {stream.name for stream in one.gives}
        return found

    def is_source(self, stream: Stream) -> bool:
        return stream.name in self.sources


@dataclass(frozen=True, init=False, eq=False)
class Dataflow:
    """Procedures and transactions joined by streams.

    >>> from headgate.dataflow.procedures import procedure
    >>> votes, valid = Stream("votes", "phone bigint"), Stream("valid", "phone bigint")
    >>> @procedure(votes, output=valid)
    ... def validate(batch, tx):
    ...     return batch
    >>> @procedure(valid)
    ... def count(batch, tx): ...
    >>> print(Dataflow("show", [validate, count]).show())
    dataflow show
      votes -> validate -> valid
      valid -> count

    The streams make the graph. `nest` names nodes that are one unit: they commit or abort together,
    as one epoch, and nothing comes in between. `workers` says on how many threads, and how;
    `triggers` are functions that rows which procedures add to a table start.
    """

    name: str
    graph: FlowGraph
    nests: tuple[tuple[str, ...], ...]
    workers: Workers | None
    triggers: tuple[Trigger, ...]

    def __init__(
        self,
        name: str,
        nodes: Iterable[Procedure | Transaction],
        nest: Iterable[Iterable[Procedure | Transaction | str]] = (),
        workers: Workers | None = None,
        triggers: Iterable[Trigger] = (),
    ) -> None:
        where = f"dataflow {name!r}"
        given: Any = name
        if not isinstance(given, str) or not name.isidentifier():
            raise DeclarationError(f"{where}: a dataflow's name is a plain word, such as 'show'")
        object.__setattr__(self, "triggers", checked(triggers, where))
        found = _nodes(nodes, self.triggers, where)
        nests = _nests(nest, found, where)
        if workers is not None and not hasattr(workers, "architecture"):
            raise DeclarationError(f"{where}: workers=hg.Workers(...), not {shown(workers)}")
        object.__setattr__(self, "workers", workers)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "graph", FlowGraph(list(found.values()), nests, where))
        object.__setattr__(self, "nests", tuple(tuple(one.name for one in each) for each in nests))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes in dataflow order."""
        return self.graph.order

    def show(self) -> str:
        """The graph as text: who takes what, and gives what; in dataflow order."""
        return self._shown(repr)

    @property
    def described(self) -> str:
        """The graph as a store knows it: aggregates of windows are made from their rows, and may be
        others at any time."""
        return self._shown(lambda window: window.bare)

    def _shown(self, of_window: Callable[[Window], str]) -> str:
        lines = [f"dataflow {self.name}"]
        for unit in self.graph.units:
            lines += [f"  nest {unit.name}:"] if len(unit.nodes) > 1 else []
            for node in unit.nodes:
                taken = ", ".join(
                    of_window(one) if isinstance(one, Window) else one.name for one in node.takes
                )
                given = "".join(f" -> {one.name}" for one in node.gives[:1])
                given += "".join(f", {one.name}" for one in node.gives[1:])
                indent = "    " if len(unit.nodes) > 1 else "  "
                lines.append(f"{indent}{taken} -> {node.name}{given}")
        lines += [f"  on insert into {one.table.name}: {one.name}" for one in self.triggers]
        return "\n".join(lines)

    def svg(self) -> str:
        """The graph as a drawing."""
        from headgate.dataflow.drawing import drawn

        return drawn(self.name, self.graph)

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<dataflow {self.name}: {', '.join(html_text(one.name) for one in self.nodes)}>"


def _nodes(given: Any, triggers: Sequence[Trigger], where: str) -> dict[str, Node]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DeclarationError(f"{where}: it takes a list of procedures and transactions")
    found: dict[str, Node] = {}
    for step in given:
        if not isinstance(step, Procedure | Transaction):
            raise DeclarationError(
                f"{where}: {shown(step)} is no node; make one with @hg.procedure(stream) or "
                "@hg.transaction(event=stream)"
            )
        if isinstance(step, Transaction) and step.takes is None:
            raise DeclarationError(
                f"{where}: the transaction {step.name!r} takes no stream; declare it with "
                "@hg.transaction(event=stream)"
            )
        for one in divided(step, where) if isinstance(step, Procedure) else (step,):
            if one.name in found:
                raise DeclarationError(f"{where}: two nodes are called {one.name!r}; rename one")
            found[one.name] = _node(one, triggers, where)
    if not found:
        raise DeclarationError(f"{where}: it has no nodes")
    _check_names(found, where)
    return found


def _node(step: Procedure | Transaction, triggers: Sequence[Trigger], where: str) -> Node:
    if isinstance(step, Procedure):
        started = started_by(step.writes, triggers)
        if started and step.partition is not None:
            raise DeclarationError(
                f"{where}: procedure {step.partition.of!r} has partitions, and rows of "
                f"{started[0].table.name!r} start the trigger {started[0].name!r}, which would see "
                "the rows of all: let a procedure behind it do that"
            )
        return Node(step, started)
    for access in step.signature.accesses:
        started = tuple(one for one in triggers if one.table.name == access.table.name)
        if access.create and started:
            raise DeclarationError(
                f"{where}: the transaction {step.name!r} creates rows of {access.table.name!r}, "
                f"which has the trigger {started[0].name!r}: rows of procedures start triggers, "
                "those of transactions do not; let a procedure add them"
            )
    return Node(step)


def _check_names(nodes: Mapping[str, Node], where: str) -> None:
    """Streams and nodes are known by one name each: in results, and to who follows them."""
    for node in nodes.values():
        for stream in (*node.streams, *node.gives):
            if stream.name in nodes:
                raise DeclarationError(
                    f"{where}: a stream and a node are both called {stream.name!r}; rename one"
                )
        columns = node.step.output or () if isinstance(node.step, Transaction) else ()
        for column in columns:
            if column.name.lower() == BATCH:
                raise DeclarationError(
                    f"{where}: node {node.name!r} has an output column {column.name!r}, which is a "
                    "column of every result of a dataflow; choose another name"
                )
            if column.name in node.streams[0].order_by:
                raise DeclarationError(
                    f"{where}: node {node.name!r} has an output column {column.name!r}, which is "
                    f"an order column of the stream that it takes, {node.streams[0].name!r}; "
                    "rename the output"
                )


def _nests(given: Any, nodes: Mapping[str, Node], where: str) -> list[list[Node]]:
    found: list[list[Node]] = []
    seen: set[str] = set()
    for nest in given:
        if isinstance(nest, str | Procedure | Transaction):
            raise DeclarationError(f"{where}: nest is a list of lists, as in nest=[[a, b]]")
        names = [one if isinstance(one, str) else getattr(one, "name", shown(one)) for one in nest]
        for name in names:
            if name not in nodes:
                among = not_among(name, nodes, "nodes")
                raise DeclarationError(f"{where}: nest: no node {name!r}; {among}")
            if name in seen:
                raise DeclarationError(f"{where}: nest: {name!r} is nested twice")
            seen.add(name)
            step = nodes[name].step
            if isinstance(step, Procedure) and step.partition is not None:
                raise DeclarationError(
                    f"{where}: nest: {name!r} is a partition, a transaction of its own; nest what "
                    "comes before it, or behind"
                )
            _refuse_history(nodes[name], where)
        found.append([nodes[name] for name in names])
    return found


def _refuse_history(node: Node, where: str) -> None:
    """What is nested may be undone when it has run, and versions that were dropped are gone."""
    tables = node.step.signature.written if isinstance(node.step, Transaction) else ()
    for table in tables:
        if table.history is not None:
            raise DeclarationError(
                f"{where}: nest: {node.name!r} writes {table.name!r}, which has history=; such a "
                "transaction commits by itself, not in a nest"
            )
