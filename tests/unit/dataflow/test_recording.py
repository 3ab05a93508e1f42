"""What an epoch recorded: in the log, piece by piece, the same as in a query."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.dataflow import recording
from headgate.dataflow.recording import Recorded, RecordedEpoch, SameColumns
from headgate.durability.plain_batches import PlainBatch

KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "n": (pa.int64(), st.integers(-5, 5)),
    "text": (pa.string(), st.sampled_from(["", "a", "ab"])),
    "flag": (pa.bool_(), st.booleans()),
    "amount": (pa.decimal128(9, 2), st.integers(0, 3).map(decimal.Decimal)),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 2), max_size=2)),
}
NAMES = st.sampled_from(["votes", "count", "trend"])
REASONS = st.one_of(st.none(), st.sampled_from(["has voted", "late"]))


@st.composite
def parts(draw: Any, columns: list[str]) -> Recorded:
    count = draw(st.integers(1, 8))

    def each(values: Any) -> list[Any]:
        found: list[Any] = draw(st.lists(values, min_size=count, max_size=count))
        return found

    reason: Any = draw(REASONS)
    if draw(st.booleans()):
        reason = pa.array(each(REASONS), pa.string())
        reason = reason.dictionary_encode() if draw(st.booleans()) else reason
    batch = draw(st.one_of(st.none(), st.integers(1, 9), st.just("each")))
    numbers = np.sort(np.array(each(st.integers(1, 9)))) if batch == "each" else batch
    mine = draw(st.sets(st.sampled_from(columns))) if columns else set()
    own = {
        name: pa.array(each(st.one_of(st.none(), KINDS[name][1])), KINDS[name][0])
        for name in sorted(mine)
    }
    return Recorded(count, (draw(NAMES), "committed", reason), numbers, own)


def plain(batch: pa.RecordBatch) -> list[Any]:
    """Rows with their columns by name, whatever the words are coded as."""
    rows: list[Any] = batch.to_pylist()
    return [sorted(row.items()) for row in rows]


@given(st.data(), st.sampled_from([["n", "text", "flag", "amount"], ["n", "list"], []]))
def test_the_log_takes_what_a_query_finds(data: Any, columns: list[str]) -> None:
    found = data.draw(st.lists(parts(columns), min_size=1, max_size=5))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recording, "_LONG_ROWS", data.draw(st.integers(1, 4)))
        patched.setattr(recording, "PIECE_ROWS_MAX", data.draw(st.integers(4, 9)))
        epoch = RecordedEpoch(found, SameColumns())
        logged = epoch.logged()
        pieces = logged if isinstance(logged, tuple) else (logged,)
        read = [one.arrow() if isinstance(one, PlainBatch) else one for one in pieces]
        assert plain(pa.concat_batches(read)) == plain(epoch.batch())


def test_a_long_batch_takes_the_bytes_of_its_values(tmp_path: Path) -> None:
    rows = 20_000
    numbers = np.random.default_rng(3).integers(0, 1 << 60, rows)
    kept = hg.Table("kept", "k bigint, v bigint", key="k")

    def sizes(recorded: bool) -> int:
        source = hg.Stream("source", "k bigint", recorded=recorded)

        @hg.transaction(event=source)
        def keep(event: Any, row: Any = kept.at("k", create=True)) -> Any:
            return hg.abort("nothing is kept")

        path = tmp_path / f"{recorded}"
        with hg.open(str(path), tables=kept, dataflows=hg.Dataflow("flow", [keep])) as engine:
            engine.push(source, pa.table({"k": numbers}))
            names = engine.sql("select transaction, count(*) from results group by 1 order by 1")
            named = [("keep", rows), ("source", rows)]
            assert names.rows() == (named if recorded else named[:1])
            assert engine.sql("select max(k) from results").rows()[0][0] == (
                numbers.max() if recorded else None
            )
        return sum(one.stat().st_size for one in (path / "log").iterdir())

    assert rows * 8 < sizes(recorded=True) < rows * 9
    assert sizes(recorded=False) < rows


def test_recorded_is_true_or_false() -> None:
    with pytest.raises(hg.DeclarationError, match="recorded is True or False, not 'no'"):
        hg.Stream("votes", "k bigint", recorded="no")  # type: ignore[arg-type]
    assert repr(hg.Stream("votes", "k bigint", recorded=False)) == (
        "Stream('votes', 'k bigint', recorded=False)"
    )
