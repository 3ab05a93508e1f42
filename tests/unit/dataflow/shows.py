"""The voters' show, small: what tests of dataflows declare, open and look at."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

import headgate as hg
from headgate.testing import SimulatedClock, SimulatedDisk

PATH = "/show"
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)

contestants = hg.Table("contestants", "id int, name string", key="id")
voters = hg.Table("voters", "phone bigint, calls int DEFAULT 1", key="phone", check="calls <= 3")
tallies = hg.Table("tallies", "contestant int, votes bigint DEFAULT 0", key="contestant")
TABLES = [contestants, voters, tallies]
COLUMNS = "ts timestamp, phone bigint, contestant int"

votes = hg.Stream("votes", COLUMNS, order_by="ts", batch="2 rows")
valid = hg.Stream("valid", COLUMNS)
trending = hg.Stream("trending", "contestant int, votes bigint")


@hg.procedure(votes, output=valid, reads=[contestants], writes=[voters])
def validate(batch: pa.Table, tx: hg.Tx) -> Any:
    if 666 in batch.column("phone").to_pylist():
        return hg.abort("a bad phone")
    fresh = tx.sql(
        "select b.* from batch b join contestants c on b.contestant = c.id "
        "where b.phone not in (select phone from voters) order by b.ts"
    )
    tx.insert(voters, fresh.select(["phone"]))
    return fresh


@hg.transaction(event=valid, compiled=False)
def count(event: Any, tally: Any = tallies.at("contestant", create=True)) -> None:
    tally.votes += 1


@hg.procedure(valid.window("3 rows", slide="1 row"), output=trending)
def trend(batch: pa.Table, tx: hg.Tx) -> Any:
    return tx.sql(
        "select contestant, count(*) as votes from batch group by contestant "
        "order by votes desc, contestant limit 2"
    )


def show(nest: Any = ((validate, count),)) -> hg.Dataflow:
    return hg.Dataflow("show", [validate, count, trend], nest=nest)


def vote(second: int, phone: int, contestant: int = 1) -> dict[str, Any]:
    at = NOON + datetime.timedelta(seconds=second)
    return {"ts": at, "phone": phone, "contestant": contestant}


class Stage:
    """An engine on a simulated disk, which can be closed, killed and opened again."""

    def __init__(self, flow: hg.Dataflow | None = None, path: str | None = PATH, **said: Any):
        self.flow, self.path, self.said = flow or show(), path, said
        self.disk = SimulatedDisk()
        self.engine = self.open()
        rows = [{"id": number, "name": f"contestant {number}"} for number in (1, 2, 3)]
        self.engine.load(contestants, rows)

    def open(self) -> hg.Engine:
        on = {} if self.path is None else {"disk": self.disk, "clock": SimulatedClock()}
        said: Any = {"tables": TABLES, "dataflows": [self.flow], **on, **self.said}
        return hg.open(self.path, **said)

    def again(self, how: str = "close", flow: hg.Dataflow | None = None) -> hg.Engine:
        self.flow = flow or self.flow
        if how == "close":
            self.engine.close()
        else:
            self.disk = self.disk.after_kill()
        self.engine = self.open()
        return self.engine

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.engine.sql(query).rows()

    def tallies(self) -> dict[int, int]:
        return dict(self.rows("select contestant, votes from tallies"))

    def phones(self) -> list[int]:
        return [phone for (phone,) in self.rows("select phone from voters order by 1")]

    def executions(self) -> list[tuple[Any, ...]]:
        """What was recorded of nodes: epoch, node, batch, outcome and reason."""
        return self.rows(
            "select distinct epoch, transaction, batch, outcome, reason from results "
            "where transaction in ('validate', 'count', 'trend') order by epoch, batch, transaction"
        )
