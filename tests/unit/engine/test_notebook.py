"""How things look and what they can be handed to: reprs, HTML, and answers as rows and as Arrow."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas
import pyarrow as pa
import pytest

import headgate as hg
from headgate.query.answer import Answer
from headgate.state.display import CELL_CHARACTERS_MAX, COLUMNS_MAX, ROWS_MAX

notes = hg.Table(
    "notes", "id bigint, text string DEFAULT '<b>', n int DEFAULT 3", key="id", check="id < 1000"
)
EVIL = "<script>alert('&')</script>"


@hg.transaction(event="id bigint, text string", compiled=False)
def write(event, note=notes.at("id", create=True), out=hg.output("seen string")):
    note.text = event.text
    out.seen = event.text


@pytest.fixture(scope="module")
def engine() -> Iterator[hg.Engine]:
    with hg.open(None, tables=notes, transactions=write) as opened:
        rows = [{"id": number, "text": EVIL, "n": number} for number in range(50)]
        opened.load(notes, rows)
        yield opened


class Page(html.parser.HTMLParser):
    """The tags and the texts of a page, as a browser reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


# --- answers --------------------------------------------------------------------------------------


def test_an_answer_is_a_sequence_of_rows_with_its_epoch(engine: hg.Engine) -> None:
    answer = engine.sql("select id, n from notes order by id limit 3")
    assert list(answer) == answer.rows() == [(0, 0), (1, 1), (2, 2)]
    assert len(answer) == 3
    assert answer.columns == ["id", "n"]
    assert repr(answer) == "<answer of 3 rows at epoch 1: id, n>"


def test_an_answer_without_rows_or_with_columns_of_one_name(engine: hg.Engine) -> None:
    empty = engine.sql("select id from notes where id < 0")
    assert (list(empty), len(empty), repr(empty)) == ([], 0, "<answer of 0 rows at epoch 1: id>")
    assert empty  # it is an answer all the same
    twice = engine.sql("select 1 as a, 2 as a")
    assert list(twice) == [(1, 2)]
    assert "<td" in twice._repr_html_()


def test_a_long_answer_is_read_batch_by_batch() -> None:
    parts = [pa.table({"n": range(first, first + 10)}) for first in range(0, 100, 10)]
    assert list(Answer(pa.concat_tables(parts))) == [(number,) for number in range(100)]


def test_what_takes_an_arrow_stream_takes_an_answer(engine: hg.Engine) -> None:
    answer = engine.scan(notes, "id < 3", columns="id, n")
    wanted = pa.table({"id": pa.array([0, 1, 2]), "n": pa.array([0, 1, 2], pa.int32())})
    assert pa.table(answer).equals(wanted)
    assert pa.RecordBatchReader.from_stream(answer).read_all().equals(wanted)
    assert pa.schema(answer).equals(wanted.schema)
    narrow = pa.schema([("id", pa.int32()), ("n", pa.int32())])
    assert pa.table(answer, schema=narrow).schema == narrow  # the schema that is asked for
    assert duckdb.sql("select sum(n) from answer").fetchall() == [(3,)]
    assert isinstance(answer.pandas(), pandas.DataFrame)


def test_an_answer_can_be_loaded_and_run(engine: hg.Engine) -> None:
    with hg.open(None, tables=notes, transactions=write) as other:
        assert other.load(notes, engine.scan(notes)) == 50
        events = engine.sql("select id, 'again' as text from notes where id < 2")
        assert other.run(write, events).column("outcome").to_pylist() == ["committed"] * 2


# --- reprs ----------------------------------------------------------------------------------------


def test_reprs_are_short_and_say_what_matters(engine: hg.Engine) -> None:
    declared = "Table('notes', \"id bigint, text string DEFAULT '<b>', n int DEFAULT 3\", key='id'"
    assert repr(notes) == f"{declared}, check='id < 1000')"
    assert repr(write) == "<transaction write(id, text)>"
    assert repr(engine) == "<engine in memory at epoch 1: notes, write>"
    assert repr(engine.sink(write, order_by="id")) == "<sink of write in the order of id>"
    routed = engine.sink({"w": write}, route_by="kind")
    assert repr(routed) == "<sink of write by kind>"
    assert repr(hg.Retention(epochs=5)) == "Retention(snapshots=2, epochs=5, age_us=None)"


def test_a_result_shows_its_columns() -> None:
    with hg.open(None, tables=notes, transactions=write) as engine:
        done = engine.call(write, id=1, text="x" * 200)
        undone = engine.call(write, id=2000, text="y")
    assert re.fullmatch(
        r"Result\(epoch=1, position=0, transaction='write', outcome='committed', seen='x{78}…\)",
        repr(done),
    )
    assert "outcome='aborted', reason='check failed: notes: id < 1000'" in repr(undone)


def test_a_closed_engine_and_one_on_disk_say_so(tmp_path: Path) -> None:
    engine = hg.open(tmp_path / "bank", tables=notes)
    assert repr(engine) == f"<engine {tmp_path}/bank at epoch 0: notes>"
    engine.close()
    assert repr(engine) == f"<engine {tmp_path}/bank at epoch 0, stopped: it was closed: notes>"
    assert "stopped: it was closed" in engine._repr_html_()


def test_the_figures_of_a_graph_show_no_arrays() -> None:
    @hg.transaction(event="id bigint, text string")
    def set_text(event, note=notes.at("id", create=True)):
        note.text = event.text

    with hg.open(None, tables=notes, transactions=set_text) as engine:
        figures = engine.explain(set_text, [{"id": n % 3, "text": "a"} for n in range(9)])
    assert repr(figures).startswith("Figures(transactions=9, operations=9, rows=3")
    assert "array" not in repr(figures) and len(repr(figures)) < 400


def test_tables_that_differ_anywhere_have_other_reprs() -> None:
    """Compiled checks are known by it."""
    owners = hg.Table("owners", "id bigint", key="id")
    made = [
        hg.Table("t", "id bigint, n int", key="id"),
        hg.Table("u", "id bigint, n int", key="id"),
        hg.Table("t", "id bigint, n bigint", key="id"),
        hg.Table("t", "id bigint, n int DEFAULT 1", key="id"),
        hg.Table("t", "id bigint, n int", key="n"),
        hg.Table("t", "id bigint, n int", key="id, n"),
        hg.Table("t", "id bigint, n int", key="id", check="n > 0"),
        hg.Table("t", "id bigint, n int", key="id", unique=["n"]),
        hg.Table("t", "id bigint, n int", key="id", unique=["n", "id"]),
        hg.Table("t", "id bigint, n int", key="id", unique=[("n", "id")]),
        hg.Table("t", "id bigint, n bigint", key="id", references={"n": owners}),
    ]
    assert len({repr(table) for table in made}) == len(made)
    for table in made:
        assert eval(repr(table), {"Table": hg.Table}) == table


# --- HTML -----------------------------------------------------------------------------------------


def test_an_answer_renders_escaped_with_its_epoch_and_bounded_rows(engine: hg.Engine) -> None:
    page = Page(engine.sql("select id, text, null as gone from notes")._repr_html_())
    assert "script" not in page.tags
    assert EVIL in page.texts
    assert page.tags.count("tr") == ROWS_MAX + 1
    assert "50 rows at epoch 1, the first 20 of them" in page.texts
    assert "null" in page.texts


def test_a_wide_answer_and_a_long_text_are_cut() -> None:
    wide = Answer(pa.table({f"<{number}>": ["x" * 1000] for number in range(100)}))
    page = Page(wide._repr_html_())
    assert page.tags.count("th") == page.tags.count("td") == COLUMNS_MAX + 1
    assert max(map(len, page.texts)) <= CELL_CHARACTERS_MAX
    assert repr(wide).endswith("… (100 in all)>")


def test_a_table_renders_its_columns(engine: hg.Engine) -> None:
    page = Page(notes._repr_html_())
    assert "table notes; check id < 1000" in page.texts
    assert page.texts.count("<b>") == 1 and "b" not in page.tags
    assert {"id", "bigint", "yes", "text", "string", "n", "int", "3"} <= set(page.texts)


def test_an_engine_renders_its_tables_and_transactions(engine: hg.Engine) -> None:
    page = Page(engine._repr_html_())
    assert "engine in memory at epoch 1" in page.texts
    assert {"notes", "50", "write", "id bigint, text string"} <= set(page.texts)
