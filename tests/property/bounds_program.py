"""Runs the serial kernel and those of threads once, and says how many words lay outside arrays."""

from __future__ import annotations

from typing import Any

import headgate as hg
from headgate.compiling import bounds
from headgate.kernels import pointers
from headgate.state.compiled import kernel_of

purses = hg.Table("purses", "id bigint, coins bigint", key="id", check="coins >= 0")


@hg.transaction(event="src bigint, dst bigint, coins bigint")
def give(event, src=purses.at("src"), dst=purses.at("dst"), out=hg.output("left bigint")):
    if event.coins > 6:
        return hg.abort("too many")
    src.coins -= event.coins
    dst.coins += event.coins
    out.left = src.coins


def given(scheme: str) -> tuple[Any, Any]:
    with hg.open(None, tables=[purses], transactions=[give]) as engine:
        engine.load(purses, [{"id": number, "coins": 9} for number in range(6)])
        events = [{"src": n % 6, "dst": n * 5 % 7, "coins": n % 8} for n in range(40)]
        results = engine.run(give, events, scheme=scheme, threads=2)
        return results.to_pylist(), engine.sql("select * from purses order by id").rows()


def main() -> None:
    expected = given("serial")
    names = ("shares", "strata", "ready-operation-lazy", "lock", "timestamp")
    wrong = [name for name in names if given(name) != expected]
    before = bounds.violations()
    kernel_of(lambda address: pointers.get_word(address, 0), False)(1 << 40)
    print("on", bounds.IS_ON, "outside", before, "noticed", bounds.violations() - before)
    print("wrong", wrong)


if __name__ == "__main__":
    main()
