"""`headgate design` and `headgate simulate --nodes`: traces of any form, and refusals that help."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import headgate as hg
from headgate.cli import cluster_studies
from headgate.cli.cluster_studies import _counts, trace_loads
from headgate.cli.commands import app
from headgate.cli.designs import DesignRequest, declared_by, design, gathered
from headgate.errors import InputError
from headgate.lab.designing import PROPOSED, Weights, read_trace
from headgate.parallel import decision as calibration
from tests.unit.cli import shops
from tests.unit.dataflow import shows

APP, PROGRAM = "tests.unit.cli.shops:open_shops", "tests.unit.cli.shops"
REQUEST = DesignRequest(APP, None, (), 2, (), 100, 10_000, Weights())
COUNT = 120


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv(calibration.VARIABLE, str(tmp_path / "none.json"))
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A folder with the events of each transaction, each in another form."""
    folder = tmp_path / "trace"
    (folder / "sell").mkdir(parents=True)
    sales = shops.sales(COUNT)
    pq.write_table(sales.slice(0, 50), folder / "sell" / "part-0.parquet")
    pyarrow.feather.write_feather(sales.slice(50), folder / "sell" / "part-1.arrow")
    (folder / "sell" / "_SUCCESS").write_bytes(b"")
    pyarrow.csv.write_csv(shops.deliveries(COUNT), folder / "deliver.csv")
    return folder


def test_it_shows_what_to_declare_and_draws_it(
    run: Callable[..., Result], trace: Path, tmp_path: Path
) -> None:
    found = run("design", APP, "--trace", trace, "--nodes", 2)
    assert found.exit_code == 0, found.output
    assert "240 events of sell, deliver in 1 batch" in found.output
    assert re.search(r'stock +shard_by="shop" +by its key', found.output)
    assert re.search(r"prices +replicate=True +by its key", found.output)
    assert "open it with shards=8 for 2 nodes: 0.0% of the events" in found.output
    assert re.search(r"proposed +8 +0.0% +0.0%", found.output)
    assert re.search(r"as it is now +1 +0.0% +0.0% +2.00", found.output)
    page = (tmp_path / "design.html").read_text()
    drawings = [ElementTree.fromstring(one) for one in re.findall("<svg.*?</svg>", page, re.S)]
    assert len(drawings) == 2
    texts = "".join(drawings[0].itertext())
    assert 'shard_by="shop"' in texts and "120 events" in texts
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_store_is_designed_by_its_program_and_the_results_that_it_has(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    with shops.open_shops(tmp_path / "shops") as engine:
        engine.run(shops.sell, shops.sales(COUNT), carry="shop, item")
    found = run("design", "shops", "--program", PROGRAM, "--nodes", 4)
    assert found.exit_code == 0, found.output
    assert f"{COUNT} events of sell" in found.output
    bare = run("design", "shops")
    assert bare.exit_code == 1 and "--program bank.py" in " ".join(bare.output.split())


def test_results_that_do_not_hold_the_keys_are_no_trace(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    with shops.open_shops(tmp_path / "shops") as engine:
        engine.run(shops.sell, shops.sales(COUNT))
    found = run("design", "shops", "--program", PROGRAM)
    told = " ".join(found.output.split())
    assert found.exit_code == 1
    assert "the results of 'sell' hold no shop, item" in told and "carry=" in told
    memory = run("design", APP)
    assert memory.exit_code == 1 and "in memory" in memory.output


def test_a_trace_needs_only_what_names_rows(tmp_path: Path) -> None:
    few = shops.sales(COUNT).select(["shop", "item"])
    pq.write_table(few, tmp_path / "events.parquet")
    request = replace(REQUEST, trace=(f"sell={tmp_path / 'events.parquet'}",))
    declared = declared_by(request)
    assert gathered(declared, request)["sell"].column("n").to_pylist() == [0] * COUNT
    lacking = few.select(["shop"])
    pq.write_table(lacking, tmp_path / "events.parquet")
    with pytest.raises(InputError, match="item"):
        design(declared, request)


def test_what_leads_anywhere_is_told_and_left_out(tmp_path: Path) -> None:
    pq.write_table(shops.sales(COUNT), tmp_path / "sell.parquet")
    pq.write_table(shops.sales(5).select(["shop"]), tmp_path / "clear.parquet")
    request = replace(REQUEST, trace=(str(tmp_path),))
    found = design(declared_by(request), request)
    assert any("'clear' names rows of 'stock' by a range" in line for line in found.lines)
    assert found.proposal is not None and found.proposal.trace.names == ("sell",)


@pytest.mark.parametrize("words", [("design", APP), ("simulate", "--nodes", "1,2")])
def test_a_page_that_has_no_place_is_refused_before_anything_is_computed(
    run: Callable[..., Result], trace: Path, tmp_path: Path, words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cluster_studies, "drawn_cases", None)  # nobody comes so far
    more = ("--trace", trace) if words[0] == "design" else ()
    for out, why in ((tmp_path / "nowhere" / "x.html", "no folder"), (trace, "is a folder")):
        found = run(*words, *more, "--out", out)
        assert found.exit_code == 1 and why in " ".join(found.output.split()), found.output


def test_a_trace_without_events_and_one_of_nobody_say_so(
    run: Callable[..., Result], trace: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "sell.parquet"
    pq.write_table(shops.sales(1).slice(0, 0), empty)
    found = run("design", APP, "--trace", empty)
    assert found.exit_code == 1 and "the trace has no events" in found.output
    found = run("design", APP, "--trace", f"sel={trace / 'sell'}")
    assert found.exit_code == 1
    said = " ".join(found.output.split())
    assert "of no transaction 'sel'" in said and "did you mean 'sell'?" in said


def test_events_of_nobody_in_particular_are_refused(
    run: Callable[..., Result], trace: Path
) -> None:
    pq.write_table(shops.sales(3), trace.parent / "events.parquet")
    found = run("design", APP, "--trace", trace.parent / "events.parquet")
    assert found.exit_code == 1
    assert "--trace NAME=" in found.output and "sell" in found.output
    for words, why in (
        (("--trace", trace.parent / "none.csv"), "of which transaction"),
        (("--trace", f"sell={trace.parent}/none.csv"), "there is no file"),
        (("--trace", f"sell={trace.parent}/none"), "there is no file"),
        (("--trace", trace, "--weights", "2,1"), "three numbers"),
    ):
        found = run("design", APP, *words)
        assert found.exit_code == 1 and why in " ".join(found.output.split()), found.output


def test_nodes_of_a_dataflow_are_dealt_out_by_what_they_did(tmp_path: Path) -> None:
    votes = pa.Table.from_pylist([shows.vote(n, n, 1 + n % 2) for n in range(40)])
    pq.write_table(votes, tmp_path / "votes.parquet")
    request = replace(
        REQUEST, target="tests.unit.cli.shops:open_show", trace=(str(tmp_path / "votes.parquet"),)
    )
    found = design(declared_by(request), request)
    assert found.proposal is not None and found.flows is not None
    # What came to the transaction that is in no nest says where its rows are to be.
    assert list(found.proposal.trace.tables) == ["tallies"]
    assert found.proposal.trace.events == 40
    assert set(found.flows.verdicts[PROPOSED].workers) == {"validate", "count", "trend"}
    assert {(one, other) for one, other, _ in found.flows.queues} == {
        ("validate", "count"), ("validate", "trend"),
    }  # fmt: skip
    told = next(line for line in found.lines if line.startswith("the dataflow"))
    workers = eval(told.partition("workers=")[2], {"hg": hg})
    assert workers.count == 2 and len(workers.pins) == 3


# ---------------------------------------------------------------- simulate --nodes


def test_a_cluster_is_simulated_from_drawn_events(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    words = ("--cross", "0,0.2", "--skew", 0, "--cost-us", "0.1,50", "--batch-events", 2000)
    found = run("simulate", "--nodes", "1,2,4", *words)
    assert found.exit_code == 0, found.output
    assert len(re.findall("Zipf 0", found.output)) == 4
    assert "of a study with two executors" in " ".join(found.output.split())
    page = (tmp_path / "simulation.html").read_text()
    assert len(re.findall("<polyline", page)) == 4 * 4


def test_a_cluster_runs_the_events_of_an_engine_as_it_is_declared(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    sales = shops.sales(COUNT)
    pq.write_table(sales, tmp_path / "sell.parquet")
    words = ("--transaction", "sell", "--cost-ns", 5000, "--nodes", "1,2")
    found = run("simulate", APP, tmp_path / "sell.parquet", *words)
    assert found.exit_code == 0, found.output
    assert "15.00 µs an event" in found.output
    with shops.open_shops() as engine:
        trace = read_trace(engine.tables, engine.transactions, "sell", sales, COUNT, {})
    loads = trace_loads(trace, (1, 2))
    assert [len(one.at_home) for one in loads.values()] == [4, 8]
    assert all(one.home + one.travelling == COUNT for one in loads.values())
    assert loads[2].travelling > 0  # by its key, and prices are not replicated
    pq.write_table(sales.select(["shop"]), tmp_path / "clear.parquet")
    anywhere = run("simulate", APP, tmp_path / "clear.parquet", "--transaction", "clear",
                   "--nodes", 2)  # fmt: skip
    assert anywhere.exit_code == 1 and "may lead to rows of any shard" in anywhere.output


def test_numbers_of_nodes_go_on_as_they_began(run: Callable[..., Result]) -> None:
    assert _counts("1,2,4,...,64") == (1, 2, 4, 8, 16, 32, 64)
    assert _counts("1,3,...,50") == (1, 3, 9, 27, 50)
    for wrong in ("", "2,1", "0,1", "1,...,4", "1,2,...", "a", "1,1", "1,2,4,...,1000"):
        with pytest.raises(InputError, match="ascending numbers"):
            _counts(wrong)
    assert "--nodes 1,2,4" in " ".join(run("simulate").output.split())
