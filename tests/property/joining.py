"""Joining: procedures of random flows that take windows beside one another, or beside streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import headgate as hg

KEPT = "count(*) as n, sum(v) as total, min(v) as low, max(v) as high, avg(v) as mean"
Body = Callable[[Sequence[pa.Table], hg.Tx], Any]


def of_arity(count: int, body: Body) -> Callable[..., Any]:
    """A function with so many parameters before its tx."""
    found: dict[int, Callable[..., Any]] = {
        2: lambda a, b, tx: body((a, b), tx),
        3: lambda a, b, c, tx: body((a, b, c), tx),
        4: lambda a, b, c, d, tx: body((a, b, c, d), tx),
        5: lambda a, b, c, d, e, tx: body((a, b, c, d, e), tx),
        6: lambda a, b, c, d, e, f, tx: body((a, b, c, d, e, f), tx),
    }
    return found[count]


def weighing(written: hg.Table, names: Sequence[str]) -> Body:
    """What says of every row where it stood, by its arguments and by SQL; it aborts at times."""
    question = " + ".join(f"(select count(*) from {name})" for name in names)

    def weigh(tables: Sequence[pa.Table], tx: hg.Tx) -> Any:
        asked = tx.sql(f"select {question} as n").column("n").to_pylist()[0]
        total = 17 * asked + sum(tx.rows(written).column("total").to_pylist())
        for place, table in enumerate(tables, 1):
            for nth, row in enumerate(table.to_pylist(), 1):
                total += place * nth * sum(int(16 * one) for one in row.values() if one is not None)
        tx.upsert(written, [{"k": -asked, "total": total % 80}])
        if total % 5 == 1:
            return hg.abort("a join that aborts")
        return [{"k": total % 4, "v": total % 41}]

    return weigh


@st.composite
def joined(
    draw: Any, streams: Sequence[hg.Stream], written: hg.Table, said: dict[str, Any],
    sizes: int = 5,
) -> hg.Procedure:  # fmt: skip
    """A procedure over these streams: one of them by a window at least, with aggregates or not."""
    kinds = [draw(st.sampled_from(["window", "window", "kept", "plain"])) for _ in streams]
    if "window" not in kinds and "kept" not in kinds:
        kinds[draw(st.integers(0, len(kinds) - 1))] = draw(st.sampled_from(["window", "kept"]))
    takes, names, kept = list[Any](), list[str](), 0
    for stream, kind in zip(streams, kinds, strict=True):
        names.append(stream.name)
        if kind == "plain":
            takes.append(stream)
            continue
        size = draw(st.integers(1, sizes))
        window: dict[str, Any] = {"size": f"{size} rows"}
        window["slide"] = f"{draw(st.integers(1, size))} rows"
        if kind == "kept":
            kept += 1
            names.append(f"{stream.name}_aggregates")
            window |= {"aggregate": KEPT, "by": draw(st.sampled_from(["k", None]))}
        takes.append(stream.window(**window))
    count = len(takes) + (kept if draw(st.booleans()) else 0)
    said = {**said, "retries": draw(st.sampled_from([0, 0, 1]))}
    found: hg.Procedure = hg.procedure(*takes, **said)(of_arity(count, weighing(written, names)))
    return found
