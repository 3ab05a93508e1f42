"""The drawing shows every unit and every edge once, by kind, and is XML whatever the labels are."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InputError
from headgate.parallel.figures import UNITS_MAX, draw
from headgate.parallel.precedence import PD, TD, Precedence
from tests.unit.parallel.units import Unit, linked

SVG = "{http://www.w3.org/2000/svg}"
ROWS = 5
parts = st.tuples(st.integers(0, ROWS - 1), st.lists(st.integers(0, ROWS - 1), max_size=2))
transactions = st.lists(
    st.lists(parts, min_size=1, max_size=3, unique_by=lambda unit: unit[0]), max_size=8
)
# Two transfers and a reader: the second takes from the row that the first has given to.
TRANSFERS: list[list[Unit]] = [[(0, []), (1, [0])], [(1, []), (2, [1])], [(None, [2])]]


def edges_of(text: str) -> Counter[tuple[str, int, int]]:
    """How often each edge stands in the picture: kind, from, to."""
    found: Counter[tuple[str, int, int]] = Counter()
    for path in ElementTree.fromstring(text).iter(f"{SVG}path"):
        word, _, kind = path.get("class", "").partition(" ")
        if word == "edge":
            found[kind, int(path.get("data-from", "")), int(path.get("data-to", ""))] += 1
    return found


def units_in(text: str) -> list[ElementTree.Element]:
    return [
        group for group in ElementTree.fromstring(text).iter(f"{SVG}g")
        if group.get("class") == "unit"
    ]  # fmt: skip


def expected_edges(graph: Precedence) -> Counter[tuple[str, int, int]]:
    found: Counter[tuple[str, int, int]] = Counter()
    for unit in range(graph.units.count):
        for edge in range(graph.before_starts[unit], graph.before_starts[unit + 1]):
            kind = {TD: "td", PD: "pd"}[int(graph.kinds[edge])]
            found[kind, int(graph.before[edge]), unit] += 1
        if unit and graph.units.transaction_of[unit] == graph.units.transaction_of[unit - 1]:
            found["ld", unit - 1, unit] += 1
    return found


@given(transactions)
def test_every_unit_and_every_edge_is_drawn_once_by_its_kind(
    given: list[list[Unit]],
) -> None:
    graph = linked(given, ROWS)
    text = draw(graph)
    assert [int(unit.get("data-unit", "")) for unit in units_in(text)] == list(
        range(graph.units.count)
    )
    assert edges_of(text) == expected_edges(graph)
    assert draw(graph) == text


def test_the_legend_counts_what_is_drawn() -> None:
    graph = linked(TRANSFERS, 3)
    text = draw(graph)
    kinds = Counter(kind for kind, _, _ in edges_of(text))
    assert kinds == {"td": 1, "pd": 2, "ld": 2}
    legend = ["TD 1", "PD 2", "LD 2", "5 units of 3 transactions in 3 strata"]
    words = [node.text for node in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert set(legend) <= set(words)


def test_a_unit_stands_right_of_all_it_waits_for_and_has_its_transactions_colour() -> None:
    graph = linked(TRANSFERS, 3)
    boxes = [unit.find(f"{SVG}rect") for unit in units_in(draw(graph))]
    left = [float(box.get("x", "")) for box in boxes if box is not None]
    for unit in range(graph.units.count):
        for edge in range(graph.before_starts[unit], graph.before_starts[unit + 1]):
            assert left[graph.before[edge]] < left[unit]
    colours = [box.get("fill") for box in boxes if box is not None]
    assert colours[0] == colours[1] != colours[2] == colours[3] != colours[4]


@given(st.text())
def test_any_label_is_escaped_and_shown(label: str) -> None:
    unit = units_in(draw(linked([[(0, [])]], 1), [label]))[0]
    title = unit.find(f"{SVG}title")
    assert title is not None and title.text is not None
    assert title.text.endswith(", transaction 0")


def test_markup_in_a_label_stays_text() -> None:
    label = '<a & "b">'
    unit = units_in(draw(linked([[(0, [])]], 1), [label]))[0]
    text = unit.find(f"{SVG}text")
    assert text is not None and text.text == label and len(text) == 0


def test_units_are_named_by_transaction_and_part_when_no_label_is_given() -> None:
    texts = [unit.find(f"{SVG}text") for unit in units_in(draw(linked(TRANSFERS, 3)))]
    assert [text.text for text in texts if text is not None] == [
        "t0.0", "t0.1", "t1.0", "t1.1", "t2",
    ]  # fmt: skip


def test_a_graph_too_large_to_read_is_refused_with_its_number() -> None:
    most = linked([[(0, [])]] * UNITS_MAX, 1)
    assert len(units_in(draw(most))) == UNITS_MAX
    with pytest.raises(InputError, match=f"{UNITS_MAX + 1} units"):
        draw(linked([[(0, [])]] * (UNITS_MAX + 1), 1))


def test_a_wrong_number_of_labels_is_refused() -> None:
    with pytest.raises(InputError, match="1 labels were given for 5 units"):
        draw(linked(TRANSFERS, 3), ["one"])


def test_an_empty_batch_is_an_empty_picture() -> None:
    assert units_in(draw(linked([], 0))) == []
