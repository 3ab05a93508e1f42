"""Declared: the dataflows that a program opens an engine with, as one graph, held to its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.dataflow.nodes import Dataflow, FlowGraph, Node
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.workers import Workers
from headgate.durability import Commit
from headgate.engine.opening import Parts
from headgate.errors import DeclarationError, not_among, shown
from headgate.state.table import Table
from headgate.transactions import Transaction, difference

if TYPE_CHECKING:
    from headgate.dataflow.running import Flows

LOGGED = b"headgate.dataflow"  # the metadata of a logged input that came to a dataflow


@dataclass(frozen=True)
class Declared:
    """The dataflows that a program opens an engine with, as one graph."""

    flows: Mapping[str, Dataflow]
    graph: FlowGraph
    transactions: Mapping[str, Transaction]  # all of the program, those of nodes with them
    workers: Workers

    def running(self, parts: Parts) -> Flows:
        """These dataflows over the parts of an engine."""
        from headgate.dataflow.running import Flows  # which imports what is declared

        return Flows(
            self, parts.memory, parts.guard, parts.lock, parts.batches, parts.declared,
            is_weak=parts.is_weak,
        )  # fmt: skip

    def is_logged(self, commit: Commit) -> bool:
        """Whether the input of an epoch came to a dataflow."""
        return is_logged(commit)

    def describe(self) -> dict[str, Any]:
        """The dataflows as the manifest has them."""
        return {
            name: {"nodes": [one.name for one in flow.nodes], "nests": [*map(list, flow.nests)],
                   "streams": {one.name: one.schema.ddl for one in flow.graph.streams.values()},
                   "graph": flow.described}
            for name, flow in self.flows.items()
        }  # fmt: skip


def declare(
    given: Any, tables: Mapping[str, Table], transactions: Mapping[str, Transaction]
) -> Declared:
    """Check the dataflows of a program against its tables and against each other."""
    flows: dict[str, Dataflow] = {}
    items = [given] if isinstance(given, Dataflow) else given
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise DeclarationError(f"dataflows= takes a list of hg.Dataflow(...), not {shown(given)}")
    for flow in items:
        if not isinstance(flow, Dataflow):
            raise DeclarationError(f"dataflows= holds {shown(flow)}; make one with hg.Dataflow")
        if flow.name in flows:
            raise DeclarationError(f"two dataflows are called {flow.name!r}; rename one")
        flows[flow.name] = flow
    nodes = [node for flow in flows.values() for node in flow.nodes]
    nests = [[flow.graph.node(name) for name in nest] for flow in flows.values()
             for nest in flow.nests]  # fmt: skip
    known = dict(transactions)
    for node in nodes:
        _check_tables(node, tables)
        _add(node, known)
    graph = FlowGraph(nodes, nests, "the dataflows of this engine")
    _check_names(graph, nodes, tables, known)
    return Declared(flows, graph, known, _workers(flows.values(), graph))


def _workers(flows: Iterable[Dataflow], graph: FlowGraph) -> Workers:
    """The workers that dataflows are to have; those of one engine share them."""
    said = {flow.name: flow.workers for flow in flows if flow.workers is not None}
    if len(set(said.values())) > 1:
        names = ", ".join(said)
        raise DeclarationError(
            f"the dataflows {names} have other workers= each; those of one engine share them: give "
            "all of them the same hg.Workers(...)"
        )
    found = next(iter(said.values()), Workers())
    for name, _ in found.pins:
        if name not in graph.by_name:
            among = not_among(name, graph.by_name, "nodes")
            raise DeclarationError(f"hg.Workers: pins has {name!r}; {among}")
    return found


def _check_tables(node: Node, tables: Mapping[str, Table]) -> None:
    # A procedure's rows expire as others do: by the events that move the time of their table.
    words = ("history",) if isinstance(node.step, Procedure) else ("history", "expires")
    for table in node.written:
        kept = [word for word in words if getattr(table, word) is not None]
        if kept:
            raise DeclarationError(
                f"node {node.name!r} writes the table {table.name!r}, which has {kept[0]}=: that "
                f"is not there for dataflows yet; write it by engine.run, or leave {kept[0]}= out"
            )
    for table in node.tables if isinstance(node.step, Procedure) else ():
        known = tables.get(table.name)
        if known is None:
            raise DeclarationError(
                f"procedure {node.name!r} declares the table {table.name!r}, which is not among "
                "the tables of this engine; add it to tables=[...]"
            )
        if known != table:
            raise DeclarationError(
                f"procedure {node.name!r} declares another table {table.name!r} than the engine is "
                f"opened with: {difference(table, known)}; define it again, after the table"
            )


def _add(node: Node, known: dict[str, Transaction]) -> None:
    if isinstance(node.step, Transaction) and known.setdefault(node.name, node.step) != node.step:
        raise DeclarationError(
            f"two transactions are called {node.name!r}: one in transactions=, one in a dataflow"
        )


def _check_names(
    graph: FlowGraph,
    nodes: Sequence[Node],
    tables: Mapping[str, Table],
    transactions: Mapping[str, Transaction],
) -> None:
    names = [node.name for node in nodes]
    for name in {*names, *graph.streams}:
        if name in tables:
            raise DeclarationError(f"a table and a stream or node are both called {name!r}")
        if names.count(name) > 1 or (name in graph.streams and name in {*names, *transactions}):
            raise DeclarationError(
                f"two things of the dataflows are called {name!r}: streams, nodes and transactions "
                "are known by one name each; rename one"
            )
        if name in transactions and not isinstance(graph.node(name).step, Transaction):
            raise DeclarationError(f"a transaction and a procedure are both called {name!r}")


def is_logged(commit: Commit) -> bool:
    """Whether the input of an epoch came to a dataflow."""
    given = commit.input
    return given is not None and LOGGED in (given.schema.metadata or {})
