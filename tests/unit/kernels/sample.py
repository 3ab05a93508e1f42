"""The sample: the text that is generated for the README's transfer, to be read and kept current.

usage: python -m tests.unit.kernels.sample      writes sample_kernel.txt anew
"""

from __future__ import annotations

from pathlib import Path

import headgate as hg
from headgate.kernels.generating import Generator

SAMPLE = Path(__file__).with_name("sample_kernel.txt")

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double")
def transfer(
    event, src=accounts.at("src"), dst=accounts.at("dst"), out=hg.output("src_balance double")
):
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.src_balance = src.balance


def generated() -> str:
    """The text as it is generated now."""
    return Generator([transfer.signature]).source()


if __name__ == "__main__":
    SAMPLE.write_text(generated())
