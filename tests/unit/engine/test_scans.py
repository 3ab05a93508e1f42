"""Scans by values: what is equal to what, and what is refused; and a query that is interrupted."""

from __future__ import annotations

import datetime
import decimal
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import headgate as hg

MIXED = hg.Table(
    "mixed",
    "id bigint, n bigint, d decimal(18,2), f double, e float, z string, b boolean, day date",
    key="id",
    index=["n", "d", "f", "e", "z"],
)
HALF = decimal.Decimal("0.5")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"n": 2.0**53}, [1]), ({"n": 2**53 + 1}, [2]), ({"n": decimal.Decimal(2**53)}, [1]),
        ({"n": np.int64(2**53)}, [1]), ({"n": 1.5}, []), ({"n": 10**400}, []),
        ({"n": float("nan")}, []), ({"f": 2**53}, [2]), ({"f": 2**53 + 1}, []),
        ({"f": 10**400}, []), ({"f": HALF}, [1]), ({"f": decimal.Decimal("sNaN")}, []),
        ({"d": 0.1}, [1]), ({"d": decimal.Decimal("0.100")}, [1]), ({"d": 2.0**53}, []),
        ({"d": 1e-300}, []), ({"e": 0.1}, [1]), ({"e": HALF}, [2]), ({"z": "5"}, [1]),
        ({"b": np.True_}, [1, 2]), ({"day": datetime.date(2024, 1, 1)}, [1, 2]),
    ],
    ids=str,
)  # fmt: skip
def test_a_scan_compares_values_and_not_what_they_would_be_as_another_type(
    where: Any, found: list[int]
) -> None:
    same = {"b": True, "day": datetime.date(2024, 1, 1)}
    rows = [
        {"id": 1, "n": 2**53, "d": decimal.Decimal("0.10"), "f": 0.5, "e": 0.1, "z": "5", **same},
        {"id": 2, "n": 2**53 + 1, "d": decimal.Decimal("9007199254740993.01"), "f": 2.0**53,
         "e": 0.5, "z": "05", **same},
    ]  # fmt: skip
    with hg.open(None, tables=[MIXED]) as engine:
        engine.load(MIXED, rows)
        assert [one for (one,) in engine.scan(MIXED, where=where, columns="id").rows()] == found


@pytest.mark.parametrize(
    "where", [{"z": 5}, {"z": b"5"}, {"n": "1"}, {"n": True}, {"b": 1}, {"f": "x"}], ids=str
)
def test_a_scan_refuses_a_value_of_another_type_whatever_the_rows_are(where: Any) -> None:
    with hg.open(None, tables=[MIXED]) as engine:
        (name,) = where
        with pytest.raises(hg.InputError, match=f"table 'mixed': the column '{name}' is of type"):
            engine.scan(MIXED, where=where)


def test_an_interrupt_of_a_query_comes_out_as_one() -> None:
    """DuckDB makes an error of its own of it, or does not look at it before the query has ended."""
    handler = signal.getsignal(signal.SIGINT)  # Spark has one, where it has run in this process
    long = "select sum(a.range * b.range % 7) from range(20000) a, range(20000) b"
    with hg.open(None, tables=[MIXED]) as engine:
        engine.sql("select count(*) from mixed")
        for _ in range(5):
            press = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                press.start()
                engine.sql(long)
            assert signal.getsignal(signal.SIGINT) is handler
        assert engine.sql("select count(*) from mixed").rows() == [(0,)]
