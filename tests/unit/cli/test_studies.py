"""`headgate simulate`: a user's events replayed, their engine untouched, refusals that say why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import headgate as hg
from headgate.cli import studies
from headgate.cli.commands import app
from headgate.cli.studies import (
    Request,
    choose_transaction,
    measured_units_ns,
    read_events,
    simulate_events,
)
from headgate.errors import InputError
from headgate.lab.simulation import STRATEGIES, draw_curves
from headgate.parallel import decision as calibration
from tests.unit.cli import payments
from tests.unit.cli.payments import deposit, open_payments, pay

APP = "tests.unit.cli.payments:open_payments"
COUNT = 200
ABORTED = 4  # of the events below; each asks for more than is there
REQUEST = Request(APP, Path("events.parquet"), "pay", None, (), ("ts",), 10_240, 5_000.0)


def make_events() -> pa.Table:
    amounts = [1e9 if number % 50 == 0 else 0.25 for number in range(COUNT)]
    return pa.table(
        {
            "ts": pa.array(range(COUNT), pa.timestamp("us", tz="UTC")),
            "src": [number % 50 for number in range(COUNT)],
            "dst": [(number * 7 + 1) % 50 for number in range(COUNT)],
            "amount": amounts,
        }
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv(calibration.VARIABLE, str(tmp_path / "none.json"))
    events = tmp_path / "events.parquet"
    pq.write_table(make_events(), events)

    def run(*words: object) -> Result:
        given = ["simulate", APP, str(events), "--out", str(tmp_path / "page.html")]
        return CliRunner().invoke(app, [*given, *(str(word) for word in words)])

    return run


def test_it_shows_every_strategy_and_writes_a_page_of_curves(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    found = run("--transaction", "pay", "--order-by", "ts", "--cores", 12)
    assert found.exit_code == 0, found.output
    assert "200 transactions, 400 operations of" in found.output
    assert f"{ABORTED} aborts" in found.output
    shown = [line.split() for line in found.output.splitlines()]
    lines = {words[0]: words[1:] for words in shown if words and words[0] in STRATEGIES}
    assert set(lines) == set(STRATEGIES)
    assert lines["serial"] == ["1.00"] * 5  # 1, 2, 4, 8 and the last, 12
    page = (tmp_path / "page.html").read_text()
    assert len(re.findall("<polyline", page)) == len(STRATEGIES)
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_dearer_operation_gains_more_from_cores(run: Callable[..., Result]) -> None:
    with open_payments() as engine:
        cheap, dear = (
            simulate_events(engine, make_events(), replace(REQUEST, cost_ns=cost), 4)
            for cost in (100.0, 1e6)
        )
    assert dear.speedups["ready"][-1] > 3 > 1 > cheap.speedups["ready"][-1]


def test_operations_take_as_long_as_they_were_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def seen(copy: Any, chosen: Any, events: Any, **options: Any) -> float:
        asked.append(measured_units_ns(copy, chosen, events, **options))
        return 1e12  # a thousand seconds

    monkeypatch.setattr(studies, "measured_units_ns", seen)
    with open_payments() as engine:
        given = simulate_events(engine, make_events(), REQUEST, 2)
        assert given.batch.unit_factor == 1.0 and not asked  # at a cost of the user's own
        found = simulate_events(engine, make_events(), replace(REQUEST, cost_ns=None), 2)
    assert len(asked) == 1 and asked[0] > 0
    assert found.batch.unit_factor > 1000


def test_the_engine_of_the_user_is_left_as_it_was(tmp_path: Path) -> None:
    with open_payments(tmp_path / "bank") as engine:
        epoch = engine.epoch
        found = simulate_events(engine, make_events(), REQUEST, 2)
        assert found.batch.aborts == ABORTED
        assert engine.epoch == epoch
        query = "select count(*), min(balance), max(balance) from accounts"
        assert engine.sql(query).rows() == [(50, payments.FIRST_BALANCE, payments.FIRST_BALANCE)]


def test_too_few_events_to_measure_ask_for_the_cost() -> None:
    few = make_events().slice(0, 3)
    with open_payments() as engine:
        with pytest.raises(InputError, match="give --cost-ns"):
            simulate_events(engine, few, replace(REQUEST, cost_ns=None), 2)
        assert simulate_events(engine, few, REQUEST, 2).operation_ns == 5_000.0


def test_a_page_has_a_line_for_each_strategy_with_a_point_for_each_number_of_cores() -> None:
    root = ElementTree.fromstring(draw_curves((1, 2, 4), {"ready": [1, 2, 3], "<&>": [1, 1, 1]}))
    lines = list(root.iter("polyline"))
    assert [len((line.get("points") or "").split()) for line in lines] == [3, 3]
    titles = [line.find("title") for line in lines]
    assert [title.text for title in titles if title is not None] == ["ready", "<&>"]


# ---------------------------------------------------------------- what the user names


def test_events_come_as_parquet_csv_or_json(tmp_path: Path) -> None:
    events = make_events()
    pq.write_table(events, tmp_path / "events.parquet")
    pyarrow.csv.write_csv(events, tmp_path / "events.csv")
    lines = events.to_pandas().to_json(orient="records", lines=True, date_format="iso")
    (tmp_path / "events.jsonl").write_text(lines)
    with open_payments() as engine:
        graphs = [
            simulate_events(engine, read_events(tmp_path / name), REQUEST, 2).batch.graph.edges
            for name in ("events.parquet", "events.csv", "events.jsonl")
        ]
    assert graphs[0] > 0
    assert len(set(graphs)) == 1


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.csv", None, "there is no file"),
        ("events.xml", b"", "events come in .parquet, .csv"),
        ("events.parquet", b"not parquet", "cannot be read"),
        ("events.json", b"{", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=why) as caught:
        read_events(tmp_path / name)
    assert name in str(caught.value)


def test_routes_are_the_names_of_transactions_unless_others_are_given() -> None:
    texts = pa.table({"kind": ["pay"]})
    numbers = pa.table({"kind": [0]})
    routed = replace(REQUEST, transaction=None, route_by="kind")
    with open_payments() as engine:
        assert choose_transaction(engine, texts, routed) == {"pay": pay, "deposit": deposit}
        given = replace(routed, routes=("0=deposit", "1=pay"))
        assert choose_transaction(engine, numbers, given) == {0: deposit, 1: pay}
        assert choose_transaction(engine, texts, REQUEST) is pay


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"transaction": None}, "which transaction.*pay, deposit"),
        ({"transaction": "play"}, "no transaction 'play'.*pay, deposit"),
        ({"route_by": "sort"}, "no column 'sort'"),
        ({"route_by": "kind", "routes": ("pay",)}, "value=transaction, not 'pay'"),
    ],
)
def test_what_is_not_there_is_refused(changes: dict[str, object], why: str) -> None:
    with open_payments() as engine, pytest.raises(InputError, match=why):
        choose_transaction(engine, pa.table({"kind": ["x"]}), replace(REQUEST, **changes))


def test_an_app_that_is_no_engine_is_one_line_on_the_screen(tmp_path: Path) -> None:
    events = tmp_path / "events.parquet"
    pq.write_table(make_events(), events)
    for target, why in [("nothing", "no engine"), (f"{APP}s", "names nothing")]:
        found = CliRunner().invoke(app, ["simulate", target, str(events)])
        assert found.exit_code == 1
        assert why in found.output


def test_the_copy_has_the_rows_and_the_transactions() -> None:
    with open_payments() as engine:
        engine.call(deposit, ts=make_events()["ts"][0].as_py(), dst=77, amount=5.0)
        with studies.copy_engine(engine) as copy:
            assert copy.path is None
            assert list(copy.transactions) == ["pay", "deposit"]
            query = "select * from accounts order by id"
            assert copy.sql(query).rows() == engine.sql(query).rows()
            assert isinstance(copy, hg.Engine)
