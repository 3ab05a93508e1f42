"""A user's program with types: `mypy --strict` finds nothing in it, and it runs."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import Future
from typing import Any

import headgate as hg

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def fee(event: hg.Event) -> float:
    """What a transfer costs: a plain function that compiles along."""
    return float(event.amount) * 0.01


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double")
def transfer(
    event: hg.Event,
    src: hg.Row = accounts.at("src"),
    dst: hg.Row = accounts.at("dst"),
    out: hg.Output = hg.output("left double"),
) -> None:
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount + fee(event)
    dst.balance += event.amount
    out.left = src.balance


@hg.transaction(event="ids array<bigint>, id bigint")
def close(
    event: hg.Event, rows: hg.Rows = accounts.each("ids"), row: hg.Row = accounts.at("id")
) -> None:
    for one in rows:
        one.balance = 0.0
    if len(rows) > 1:
        rows[1].balance = 1.0
    hg.delete(row)


def names(transactions: list[hg.Transaction]) -> list[str]:
    return [transaction.name for transaction in transactions]


def main() -> list[Any]:
    """Every public way in, with the types it gives back."""
    keep = hg.Retention(epochs=10)
    with hg.open(None, [accounts], [transfer, close], retain=keep) as engine:
        loaded: int = engine.load(accounts, [{"id": n, "balance": 10.0} for n in range(4)])
        event: dict[str, Any] = {"ts": NOON, "src": 1, "dst": 2, "amount": 1.0}
        result: hg.Result = engine.call(transfer, **event)
        promise: Future[hg.Result] = engine.submit("transfer", **event)
        again: hg.Result = engine.call_once("k", transfer, **event)
        done: bool = result.committed and promise.result().committed and again.committed
        engine.run({"t": transfer, "u": "transfer"}, [{**event, "kind": "t"}], route_by="kind")
        engine.call(close, ids=[0, 3], id=2)
        answer: hg.Answer = engine.sql("select id, balance from accounts order by id")
        rows: list[tuple[Any, ...]] = [row for row in answer]
        row: dict[str, Any] | None = engine.get(accounts, 0)
        epoch: int | None = answer.epoch
        try:
            engine.call("transfr", **event)
        except hg.errors.InputError as error:
            print(error)
        seen = hg.testing.History
        print(names([transfer, close]), loaded, done, row, epoch, len(answer), seen.__name__)
    return rows


if __name__ == "__main__":
    main()
