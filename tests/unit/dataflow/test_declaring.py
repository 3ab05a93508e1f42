"""What cannot be a dataflow is refused where it is written, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from tests.unit.dataflow.shows import TABLES, contestants, count, tallies, valid, validate, votes

other = hg.Table("other", "id int", key="id")
old = hg.Table("old", "id int, n int", key="id", history="3 versions")


def node(*takes: Any, name: str, **said: Any) -> Any:
    parameters = ", ".join(f"b{place}" for place in range(len(takes)))
    scope: dict[str, Any] = {}
    exec(f"def f({parameters}, tx): ...", scope)
    return hg.procedure(*takes, name=name, **said)(scope["f"])


def giving_its_order() -> Any:
    def pick(event, out=hg.output("n bigint")):
        out.n = event.n

    taken = stream("x", "n bigint", order_by="n")
    return hg.transaction(event=taken, compiled=False, output=stream("y", "n bigint"))(pick)


def old_node() -> Any:
    @hg.transaction(event=stream("x", "id int"), compiled=False)
    def change(event: Any, row: Any = old.at("id", create=True)) -> None:
        row.n += 1

    return change


def stream(name: str, schema: str = "n int", **said: Any) -> hg.Stream:
    return hg.Stream(name, schema, **said)


WRONG: list[tuple[Any, str]] = [
    (lambda: stream("no name"), "plain word"),
    (lambda: stream("results"), "means something else"),
    (lambda: stream("s", "epoch int"), "column of every result"),
    (lambda: stream("s", "batch int"), "column of every result"),
    (lambda: stream("s", "n int DEFAULT 1"), "defaults belong to tables"),
    (lambda: stream("s", order_by="m"), "no column 'm'"),
    (lambda: stream("s", "n int NULL", order_by="n"), "no place in an order"),
    (lambda: stream("s", batch="10"), "write '100 rows' or '1 second'"),
    (lambda: stream("s", batch="0 rows"), "at least 1 row"),
    (lambda: stream("s", batch="9007199254740993 rows"), "too long"),
    (lambda: stream("s").window("9223372036854775808 rows", "1 row"), "too long"),
    (lambda: stream("s").window("300 years", "1 second"), "neither a number"),
    (lambda: stream("s", batch="1 second"), "begin with a timestamp"),
    (lambda: stream("s").window("10 rows", slide="1 minute"), "both rows or both times"),
    (lambda: stream("s").window("10 rows", slide="20 rows"), "at most the size"),
    (lambda: stream("s").window("1 minute"), "begin with a timestamp"),
    (lambda: hg.procedure("votes"), "takes streams"),
    (lambda: hg.procedure(votes)(lambda batch: None), r"def <lambda>\(batch, tx\)"),
    (lambda: hg.procedure(votes, retries=-1)(lambda batch, tx: None), "retries"),
    (lambda: node(votes, votes, name="a"), "one stream twice"),
    (lambda: node(votes, name="a", writes=["voters"]), "is no Table"),
    (lambda: hg.Dataflow("f", []), "no nodes"),
    (lambda: hg.Dataflow("f", [print]), "is no node"),
    (lambda: hg.Dataflow("f", [validate, validate]), "two nodes are called 'validate'"),
    (lambda: hg.Dataflow("f", [validate], nest=[[count]]), "no node 'count'"),
    (lambda: hg.Dataflow("f", [validate], nest=[validate]), "list of lists"),
    (
        lambda: hg.Dataflow("f", [node(stream("x"), name="a", output=stream("x"))]),
        "in a circle, node by node: a -> a",
    ),
    (
        lambda: hg.Dataflow("f", [node(stream("x"), name="a", output=stream("y")),
                                  node(stream("y"), name="b", output=stream("x"))]),
        "in a circle.*a -> b -> a",
    ),
    (
        lambda: hg.Dataflow("f", [node(stream("x"), name="a", output=stream("y")),
                                  node(stream("y"), name="b", output=stream("z")),
                                  node(stream("z"), name="c")], nest=[["a", "c"]]),
        "in a circle, nest by nest",
    ),
    (
        lambda: hg.Dataflow("f", [node(stream("x"), name="a", output=stream("y")),
                                  node(stream("z"), name="b", output=stream("y"))]),
        "'a' and 'b' both give the stream 'y'",
    ),
    (
        lambda: hg.Dataflow("f", [node(stream("x"), name="a", output=stream("y")),
                                  node(stream("y", "n bigint"), name="b")]),
        "two streams are called 'y'",
    ),
    (
        lambda: hg.Dataflow("f", [node(stream("x"), name="a", output=stream("y", "n string"))]),
        "rename it in one of them",
    ),
    (
        lambda: hg.Dataflow("f", [node(stream("x"), name="a", output=stream("y", batch="2 rows"))]),
        "batch= is for sources",
    ),
    (lambda: hg.Dataflow("f", [node(stream("x"), name="x")]), "both called 'x'"),
    (lambda: hg.Dataflow("f", [giving_its_order()]), "rename the output"),
    (
        lambda: hg.open(None, dataflows=hg.Dataflow("f", [node(stream("x"), name="a",
                                                               reads=other)])),
        "table 'other', which is not among",
    ),
    (
        lambda: hg.open(None, tables=[other], dataflows=hg.Dataflow("f", [
            node(stream("x"), name="a", reads=hg.Table("other", "id bigint", key="id"))])),
        "another table 'other'",
    ),
    (
        lambda: hg.open(None, tables=[other], dataflows=hg.Dataflow("f", [
            node(stream("other"), name="a")])),
        "a table and a stream or node are both called 'other'",
    ),
    (lambda: node(stream("x"), name="a", writes=old), "keeps the versions"),
    (lambda: hg.open(None, tables=[old], dataflows=hg.Dataflow("f", [old_node()])), "has history="),
    (lambda: hg.open(None, dataflows="show"), "takes a list of hg.Dataflow"),
    (lambda: hg.open(None, tables=TABLES, dataflows=[hg.Dataflow("f", [validate])] * 2), "rename"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "why"), WRONG, ids=[why[:30] for _, why in WRONG])
def test_it_is_refused(wrong: Any, why: str) -> None:
    with pytest.raises(hg.DeclarationError, match=why):
        wrong()


def test_a_transaction_gives_columns_that_it_has() -> None:
    with pytest.raises(hg.DeclarationError, match="'total bigint', and the transaction has no"):

        @hg.transaction(event=valid, compiled=False, output=stream("t", "total bigint"))
        def one(event: Any, tally: Any = tallies.at("contestant")) -> None: ...

    with pytest.raises(hg.DeclarationError, match="give it event=stream"):

        @hg.transaction(event="id int", compiled=False, output=stream("t", "id int"))
        def two(event: Any, row: Any = contestants.at("id")) -> None: ...

    with pytest.raises(hg.DeclarationError, match="takes no stream"):

        @hg.transaction(event="id int", compiled=False)
        def three(event: Any, row: Any = contestants.at("id")) -> None: ...

        hg.Dataflow("f", [three])
