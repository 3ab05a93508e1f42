"""A program that moves money for ever through an engine, made to be killed: it says each epoch.

Which batch comes next is told by the epoch alone, so that a program started again goes on where the
last one was acknowledged, and any number of kills must end in the state of an undisturbed run.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from headgate.engine import straight_path

ACCOUNTS = 50
TOTAL = ACCOUNTS * 100

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")


@hg.transaction(event="ts bigint, src bigint, dst bigint, amount bigint")
def transfer(event, src=accounts.at("src"), dst=accounts.at("dst")):
    src.balance -= event.amount
    dst.balance += event.amount


def make_batch(epoch: int) -> pa.Table:
    """The events that make this epoch; some of them overdraw and abort.

    Of three batches one is not in order, and the others are worked in sections.
    """
    random = np.random.default_rng(epoch)
    return pa.table(
        {
            "ts": np.arange(200) if epoch % 3 else random.permutation(200),
            "src": random.integers(0, ACCOUNTS, 200),
            "dst": random.integers(0, ACCOUNTS, 200),
            "amount": random.integers(0, 90, 200),
        }
    )


def open_bank(path: str | None, **options: Any) -> hg.Engine:
    engine = hg.open(path, tables=[accounts], transactions=[transfer], **options)
    engine.load(accounts, [{"id": number, "balance": 100} for number in range(ACCOUNTS)])
    return engine


def balances(engine: hg.Engine) -> list[tuple[int, int]]:
    rows = engine.sql("select id, balance from accounts order by id").rows()
    return [(int(key), int(balance)) for key, balance in rows]


def main(path: str, last_epoch: int, recovery: str) -> None:
    straight_path.SECTION_EVENTS = 64
    with open_bank(path, recovery=recovery) as engine:
        print(engine.epoch, flush=True)
        while engine.epoch < last_epoch:
            engine.run(transfer, make_batch(engine.epoch + 1), order_by="ts")
            print(engine.epoch, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
