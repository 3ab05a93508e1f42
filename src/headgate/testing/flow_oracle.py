"""The oracle of dataflows: one thread, one batch after another, each through the graph in order.

It follows the definition of a correct schedule and nothing else: every node takes its batches one
after another, a batch comes to a node after it has left all nodes before it, nested nodes run one
right after the other, and whatever aborts has not been, but for the rows that it took, which are in
its windows. State is dicts; an abort puts copies back.
It shares declarations with the engine, and no code. `Schedule` judges an order of executions that
was recorded, whoever made it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from headgate.compiling.actions import Abort
from headgate.dataflow.nodes import Dataflow, Node
from headgate.dataflow.partitions import Partition
from headgate.dataflow.procedures import INSERTED, Procedure, Trigger
from headgate.dataflow.streams import Stream, Window, stream_of
from headgate.errors import DeclarationError
from headgate.state.table import Table
from headgate.testing.oracle import SerialOracle, judged_row
from headgate.testing.records import broken_promise
from headgate.testing.window_rows import aggregated
from headgate.transactions import Transaction

Rows = list[dict[str, Any]]


class NodeRan(NamedTuple):
    """A node that took a batch, or was told that it would not come."""

    node: str
    batch: int
    outcome: str
    reason: str | None


class _Refused(Exception):
    """What a node did cannot stay; its words are the reason."""


class OracleTx:
    """What a procedure gets beside its batch: its tables as dicts, and SQL over them."""

    def __init__(
        self,
        serial: SerialOracle,
        batches: Mapping[str, pa.Table],
        triggers: Sequence[Trigger] = (),
        part: Partition | None = None,
    ) -> None:
        self._serial, self._batches, self._triggers = serial, batches, triggers
        self._part = part

    def sql(self, query: str, parameters: Any = None) -> pa.Table:
        """Run a query over the batch and all tables."""
        with duckdb.connect(":memory:") as connection:
            for name in self._serial.declared:
                connection.register(name, self.rows(name))
            for name, batch in self._batches.items():
                connection.register(name, batch)
            return connection.sql(query, params=parameters).to_arrow_table()

    def rows(self, table: Table | str) -> pa.Table:
        """The rows of a table."""
        name = table if isinstance(table, str) else table.name
        rows = self._serial.table(name)
        if self._part is not None and name in self._part.tables:
            rows = own_rows(self._part, rows)
        return pa.Table.from_pylist(rows, self._serial.declared[name].schema.arrow)

    def insert(self, table: Table, rows: Any) -> int:
        """Add rows."""
        for row in self._rows(rows):
            if self._key(table, row) in self._serial.rows[table.name]:
                raise _Refused(f"duplicate key: {table.name}")
            self._put(table, row)
        self._fire(table, [self._key(table, row) for row in self._rows(rows)])
        return len(self._rows(rows))

    def upsert(self, table: Table, rows: Any) -> int:
        """Change rows, or add them."""
        added, given = [], self._rows(rows)
        for row in given:
            there = self._serial.rows[table.name].get(self._key(table, row))
            added += [self._key(table, row)] if there is None else []
            self._put(table, {**({} if there is None else there.values), **row})
        self._fire(table, added)
        return len(given)

    def _fire(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> None:
        """Rows were added: what they start runs."""
        found = [self._serial.rows[table.name][key].values for key in keys]
        for trigger in self._triggers if found else ():
            if trigger.table.name == table.name:
                rows = pa.Table.from_pylist(found, table.schema.arrow)
                tx = OracleTx(self._serial, {INSERTED: rows}, self._triggers)
                answer = trigger.function(rows, tx)
                if isinstance(answer, Abort):
                    raise _Refused(answer.reason)

    def update(self, table: Table, rows: Any) -> int:
        """Change rows that are there."""
        for row in self._rows(rows):
            if self._key(table, row) not in self._serial.rows[table.name]:
                raise _Refused(f"missing key: {table.name}")
        return self.upsert(table, rows)

    def delete(self, table: Table, rows: Any) -> int:
        """Remove rows."""
        keys = [self._key(table, row) for row in self._rows(rows)]
        found = [self._serial.rows[table.name].pop(key, None) for key in keys]
        return sum(one is not None for one in found)

    def _rows(self, rows: Any) -> Rows:
        given = self.sql(rows) if isinstance(rows, str) else rows
        found: Rows = given.to_pylist() if isinstance(given, pa.Table) else list(given)
        if self._part is not None and len(own_rows(self._part, found)) < len(found):
            raise _Refused("a row of another partition")
        return found

    def _key(self, table: Table, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in table.key)

    def _put(self, table: Table, row: Mapping[str, Any]) -> None:
        try:
            self._serial.rows[table.name][self._key(table, row)] = judged_row(table, row)
        except ValueError:
            text = "" if table.check is None else table.check.text
            raise _Refused(f"check failed: {table.name}: {text}") from None


def own_rows(part: Partition, rows: Iterable[dict[str, Any]]) -> Rows:
    """The rows with the keys of a partition."""
    return [row for row in rows if part.has(row[part.column])]


@dataclass
class _Queue:
    """A stream: its whole batches from 1 on, None for one that was aborted, and its open rows."""

    batches: list[Rows | None] = field(default_factory=list)
    waiting: Rows = field(default_factory=list)


class FlowOracle:
    """The judge of one dataflow over its tables."""

    def __init__(self, tables: Iterable[Table], flow: Dataflow) -> None:
        steps = [node.step for node in flow.nodes]
        transactions = [step for step in steps if isinstance(step, Transaction)]
        self.serial: SerialOracle = SerialOracle(tables, transactions)
        self.flow: Dataflow = flow
        self.executions: list[NodeRan] = []
        self.given: list[tuple[str, int, dict[str, Any]]] = []  # rows of streams: stream, batch
        self._queues: dict[str, _Queue] = {}
        self._windows: dict[str, Rows] = {node.name: [] for node in flow.nodes}
        # Of windows that are joined with others, by node and stream: all rows that ever came.
        self._came: dict[tuple[str, str], Rows] = {}
        self._done: dict[str, int] = dict.fromkeys(self._windows, 0)
        _check_rows_alone(flow)
        for node in flow.nodes:
            for stream in (*node.streams, *node.gives):
                self._queues.setdefault(stream.name, _Queue())

    def push(self, stream: Stream, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows come in at a source."""
        queue = self._queues[stream.name]
        sorted_rows = sorted(rows, key=lambda row: [row[name] for name in stream.order_by])
        queue.waiting += [dict(row) for row in sorted_rows]
        if stream.batch is None and rows:
            self.flush(stream)
        size = None if stream.batch is None else stream.batch.rows
        while size is not None and len(queue.waiting) >= size:
            batch, queue.waiting = queue.waiting[:size], queue.waiting[size:]
            queue.batches.append(batch)
        self._run_all()

    def flush(self, stream: Stream) -> None:
        """The open batch of a source is whole."""
        queue = self._queues[stream.name]
        if queue.waiting:
            queue.batches.append(queue.waiting)
            queue.waiting = []
        self._run_all()

    def call(self, transaction: Transaction, **columns: Any) -> dict[str, Any]:
        """One OLTP transaction, between executions."""
        return self.serial.call(transaction, **columns)

    # --- the schedule -------------------------------------------------------------------------

    def _run_all(self) -> None:
        last = max(len(queue.batches) for queue in self._queues.values())
        for batch in range(1, last + 1):
            left = self._groups()
            while left:
                ready = [group for group in left if self._is_ready(group, batch)]
                if not ready:
                    break
                self._run(ready[0], batch)
                left.remove(ready[0])

    def _groups(self) -> list[list[Node]]:
        nested = {name: nest for nest in self.flow.nests for name in nest}
        found: dict[tuple[str, ...], list[Node]] = {}
        for node in self.flow.nodes:
            found.setdefault(tuple(nested.get(node.name, (node.name,))), []).append(node)
        return list(found.values())

    def _is_ready(self, group: list[Node], batch: int) -> bool:
        own = {stream.name for node in group for stream in node.gives}
        needed = {one.name for node in group for one in node.streams} - own
        is_next = all(self._done[node.name] == batch - 1 for node in group)
        return is_next and all(len(self._queues[name].batches) >= batch for name in needed)

    def _run(self, group: list[Node], batch: int) -> None:
        own = {stream.name for node in group for stream in node.gives}
        outer = [one.name for node in group for one in node.streams if one.name not in own]
        if any(self._queues[name].batches[batch - 1] is None for name in outer):
            self._move_windows(group, batch)
            self._give_up(group, batch, None, "")
            return
        for tries in range(1 + max(_retries(node) for node in group)):
            before = copy.deepcopy((self.serial.rows, self._windows, self._came, self._queues))
            noted = len(self.executions), len(self.given)
            culprit = None
            try:
                for culprit in group:
                    self._run_node(culprit, batch)
                return
            except _Refused as error:
                self.serial.rows, self._windows, self._came, self._queues = before
                del self.executions[noted[0] :], self.given[noted[1] :]
                if culprit is None or tries >= _retries(culprit):
                    self._move_windows(group, batch)
                    self._give_up(group, batch, culprit, str(error))
                    return

    def _move_windows(self, group: list[Node], batch: int) -> None:
        """What came to a group that aborts is in its windows, and what it made whole is behind."""
        own = {stream.name for node in group for stream in node.gives}
        for node in group:
            for taken in node.takes:
                name = stream_of(taken).name
                if isinstance(taken, Window) and name not in own:
                    rows = self._queues[name].batches[batch - 1] or []
                    if len(node.takes) > 1:
                        self._came.setdefault((node.name, name), []).extend(rows)
                    else:
                        self._slides(node.name, taken, rows)

    def _give_up(self, group: list[Node], batch: int, culprit: Node | None, reason: str) -> None:
        for node in group:
            told = reason if node is culprit else None
            self.executions.append(NodeRan(node.name, batch, "aborted", told))
            self._done[node.name] = batch
            # Of a partition that aborts the others go on, and what comes behind has what they gave.
            is_part = node is culprit and _part(node) is not None
            for stream in node.gives:
                self._queues[stream.name].batches.append([] if is_part else None)

    def _run_node(self, node: Node, batch: int) -> None:
        taken = [self._queues[stream.name].batches[batch - 1] or [] for stream in node.streams]
        given: dict[str, Rows] = {stream.name: [] for stream in node.gives}
        part = _part(node)
        taken = taken if part is None else [own_rows(part, rows) for rows in taken]
        if any(taken):
            self.executions.append(NodeRan(node.name, batch, "committed", None))
            if isinstance(node.step, Procedure):
                self._run_procedure(node, node.step, taken, given)
            else:
                self._run_transaction(node, node.step, taken[0], given)
        self._done[node.name] = batch
        for name, rows in given.items():
            self._queues[name].batches.append(rows)
            self.given += [(name, batch, row) for row in rows]

    def _run_procedure(
        self, node: Node, procedure: Procedure, taken: list[Rows], given: dict[str, Rows]
    ) -> None:
        calls = [taken]
        if len(node.takes) > 1:
            calls = self._joined(node, taken)
        elif isinstance(node.takes[0], Window):
            calls = [[one] for one in self._slides(node.name, node.takes[0], taken[0])]
        for rows in calls:
            batches = [
                pa.Table.from_pylist(one, stream.schema.arrow)
                for one, stream in zip(rows, node.streams, strict=True)
            ]
            named = dict(zip((one.name for one in node.streams), batches, strict=True))
            said = {**named, "batch": batches[0]}
            arguments: list[pa.Table] = []
            for window, batch, mine in zip(node.takes, batches, rows, strict=True):
                if not isinstance(window, Window) or window.aggregates is None:
                    arguments.append(batch)
                    continue
                name = f"{window.stream.name}_" if len(node.takes) > 1 else ""
                try:
                    kept = said[f"{name}aggregates"] = aggregated(window.aggregates, mine)
                except OverflowError as error:
                    raise _Refused(str(error)) from None
                arguments += [batch, kept] if procedure.has_rows else [kept]
            tx = OracleTx(self.serial, said, self.flow.triggers, procedure.partition)
            try:
                answer = procedure.function(*arguments, tx)
            except _Refused:
                raise
            except Exception as error:
                raise _Refused(f"error: {type(error).__name__}: {error}") from error
            if isinstance(answer, Abort):
                raise _Refused(answer.reason)
            for stream in node.gives:
                mine = answer if len(node.gives) == 1 or answer is None else answer[stream.name]
                found = [] if mine is None else mine
                given[stream.name] += found.to_pylist() if isinstance(found, pa.Table) else found
        broken = broken_promise(procedure.writes, self.serial.declared, self.serial.rows)
        if broken is not None:
            raise _Refused(broken)

    def _joined(self, node: Node, taken: list[Rows]) -> list[list[Rows]]:
        """What a procedure is called with that takes windows beside one another or beside streams:
        at the nth slide of each, or where there are streams, once for their rows."""
        whole: dict[int, list[list[Rows]]] = {}  # by place: after each of its slides the content
        for place, (window, rows) in enumerate(zip(node.takes, taken, strict=True)):
            if isinstance(window, Window):
                came = self._came.setdefault((node.name, window.stream.name), [])
                before = _contents(window, came)
                came += rows
                after = _contents(window, came)
                whole[place] = [before[-1:], *([one] for one in after[len(before) :])]
        if len(whole) < len(taken):
            streams = [rows for place, rows in enumerate(taken) if place not in whole]
            return [[(*whole[place][-1], [])[0] if place in whole else rows
                     for place, rows in enumerate(taken)]] if any(streams) else []  # fmt: skip
        steps = range(1, max(map(len, whole.values())))
        calls = [[slides[min(step, len(slides) - 1)] for slides in whole.values()]
                 for step in steps]  # fmt: skip
        return [[one[0] for one in call] for call in calls if all(call)]

    def _slides(self, name: str, window: Window, rows: Rows) -> list[Rows]:
        """The whole windows that these rows complete; of rows, which is what it judges."""
        size, slide = window.size.rows or 1, window.slide.rows or 1
        self._windows[name] += rows
        found = []
        while len(self._windows[name]) >= size:
            found.append(self._windows[name][:size])
            self._windows[name] = self._windows[name][slide:]
        return found

    def _run_transaction(
        self, node: Node, transaction: Transaction, rows: Rows, given: dict[str, Rows]
    ) -> None:
        results = self.serial.run(transaction, rows)
        for row, result in zip(rows, results, strict=True):
            if result["outcome"] == "committed":
                for stream in node.gives:
                    both = {**row, **{k: v for k, v in result.items() if k in stream.schema}}
                    given[stream.name].append({name: both[name] for name in stream.schema.names})


def _contents(window: Window, came: Rows) -> list[Rows]:
    """All contents that a window of rows has had when it was whole."""
    size, slide = window.size.rows or 1, window.slide.rows or 1
    return [came[first : first + size] for first in range(0, len(came) - size + 1, slide)]


def _check_rows_alone(flow: Dataflow) -> None:
    """Refuse what the oracle does not judge, instead of judging it wrongly."""
    for node in flow.nodes:
        for taken in node.takes:
            stream = stream_of(taken)
            lengths = {f"stream {stream.name!r}": stream.batch}
            if isinstance(taken, Window):
                lengths[f"the window of {node.name!r}"] = taken.size
            for what, length in lengths.items():
                if length is not None and length.rows is None:
                    raise DeclarationError(
                        f"FlowOracle judges batches and windows of rows, and {what} is of time "
                        f"({length.text!r}): declare it by rows in the test, or compare what the "
                        "engine recorded with a computation of your own"
                    )


def _part(node: Node) -> Partition | None:
    return node.step.partition if isinstance(node.step, Procedure) else None


def _retries(node: Node) -> int:
    return node.step.retries if isinstance(node.step, Procedure) else 0


# --- a recorded schedule --------------------------------------------------------------------------


class Executed(NamedTuple):
    """A node's turn as it was recorded: in which epoch, and where in it."""

    epoch: int
    position: int
    node: str
    batch: int


def schedule_faults(
    flow: Dataflow, executed: Iterable[Executed], calls: Iterable[int] = ()
) -> list[str]:
    """What is wrong with an order of executions, in words; nothing, if it is a correct schedule.

    `calls` are the epochs of OLTP transactions.
    """
    order = sorted(set(executed), key=lambda one: (one.epoch, one.position))
    found, last, seen = [], dict[str, int](), dict[tuple[str, int], Executed]()
    for one in order:
        if (one.node, one.batch) in seen:
            found.append(f"{one.node} runs batch {one.batch} twice")
        elif one.batch <= last.get(one.node, 0):
            found.append(f"{one.node} runs batch {one.batch} after batch {last[one.node]}")
        last[one.node] = max(one.batch, last.get(one.node, 0))
        seen.setdefault((one.node, one.batch), one)
    found += _out_of_dataflow_order(flow, seen)
    for nest in flow.nests:
        for batch in {batch for name, batch in seen if name in nest}:
            epochs = {seen[name, batch].epoch for name in nest if (name, batch) in seen}
            if len(epochs) > 1:
                found.append(f"the nest {' + '.join(nest)} is apart in batch {batch}")
            found += [f"a call inside {' + '.join(nest)}, batch {batch}" for one in calls
                      if min(epochs) <= one <= max(epochs)]  # fmt: skip
    return found


def _out_of_dataflow_order(flow: Dataflow, seen: Mapping[tuple[str, int], Executed]) -> list[str]:
    givers = {stream.name: node.name for node in flow.nodes for stream in node.gives}
    found = []
    for node in flow.nodes:
        for giver in [givers[one.name] for one in node.streams if one.name in givers]:
            for (name, batch), one in seen.items():
                before = seen.get((giver, batch))
                if name == node.name and before is not None and before[:2] > one[:2]:
                    found.append(f"{name} runs batch {batch} before {giver}")
    return found
