"""Nulls over HTTP: what is declared NULL may be null in events, rows and results, and says so."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import headgate as hg
from tests.web.conftest import serving

PROGRAM = """
import headgate as hg

COLUMNS = "id bigint, label string NULL, n int NULL, seen timestamp NULL"
OUT = "was int NULL, seen timestamp NULL"
parcels = hg.Table("parcels", COLUMNS, "id")


@hg.transaction(event=COLUMNS, compiled=False)
def stow(event, row=parcels.at("id", create=True), out=hg.output(OUT)):
    out.was = row.n
    out.seen = event.seen
    row.label = event.label
    row.n = event.n
    row.seen = event.seen


def make_engine():
    return hg.open(None, tables=[parcels], transactions=[stow])
"""


def test_null_is_sent_kept_answered_and_described(tmp_path: Path) -> None:
    (tmp_path / "parcels.py").write_text(PROGRAM)
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    with serving(f"{tmp_path / 'parcels.py'}:make_engine") as server:
        client = server.client()
        first = client.call("stow", id=1, label=None, n=None, seen=noon)
        assert (first.was, first.seen) == (None, noon)
        second = client.call("stow", id=1, label="x", n=3, seen=None)
        assert (second.was, second.seen) == (None, None)
        assert client.get("parcels", 1) == {"id": 1, "label": "x", "n": 3, "seen": None}
        assert client.sql("select label, seen from parcels").rows() == [("x", None)]
        assert client.call("stow", id=None, label=None, n=None, seen=None).reason == "null key: id"
        with pytest.raises(hg.InputError):
            client.call("stow", id=1, label=None)
        with server.http() as http:
            document = http.get("/openapi.json").json()
            answer = http.post(
                "/transactions/stow", json={"id": 2, "label": None, "n": 1, "seen": None}
            )
            assert answer.json()["seen"] is None
    rows = document["paths"]["/tables/parcels/row"]["get"]["responses"]["200"]["content"]
    properties = rows["application/json"]["schema"]["properties"]["row"]["properties"]
    assert {"type": "null"} in properties["label"]["anyOf"]
    assert "anyOf" not in properties["id"]
