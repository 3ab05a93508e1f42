"""What explain tells and draws of ranges: bounds, rows, and who before may move rows there."""

from __future__ import annotations

import datetime as dt
from xml.etree import ElementTree

import headgate as hg
from headgate.parallel.looks import LOOKS_MAX, Look, draw_looks, looks_height

SVG = "{http://www.w3.org/2000/svg}"
lots = hg.Table("lots", "id bigint, day date, n bigint", key="id", index="day")
START = dt.date(2026, 1, 1)


@hg.transaction(event="id bigint, day date, low bigint, high bigint")
def offer(
    event,
    same=lots.where("day", mode="read"),
    some=lots.between("low", "high"),
    lot=lots.at("id"),
):
    for one in some:
        one.n += len(same)
    lot.day = event.day


def test_explain_tells_and_draws_the_ranges_of_a_batch() -> None:
    with hg.open(None, tables=[lots], transactions=[offer]) as engine:
        days = [START + dt.timedelta(days=n % 2) for n in range(6)]
        engine.load(lots, [{"id": n, "day": day, "n": 0} for n, day in enumerate(days)])
        events = [
            {"id": 5, "day": START, "low": 1, "high": 3},
            {"id": 2, "day": START + dt.timedelta(days=1), "low": 4, "high": 3},
        ]
        figures = engine.explain(offer, events)
        assert list(map(str, figures.looks)) == [
            "0 same: index lots: day at 2026-01-01, 3 rows read",
            "0 some: index lots: key from 1 to 3, 3 rows read and written",
            "1 same: index lots: day at 2026-01-02, 3 rows read; 1 event before it may move rows "
            "there",
            "1 some: index lots: key from 4 to 3, 0 rows read and written",
        ]
        assert "looks=4" in repr(figures)
        drawn = [
            one for one in ElementTree.fromstring(figures.svg()).iter(f"{SVG}g")
            if one.get("class") == "look"
        ]  # fmt: skip
        titles = [(one.findtext(f"{SVG}title") or "") for one in drawn]
        assert sorted(titles) == sorted(map(str, figures.looks))
        bars = [bar for one in drawn for bar in one.iter(f"{SVG}rect")]
        dashed = [bar.get("stroke-dasharray") is not None for bar in bars]
        assert dashed == ["may move" in title for title in titles]


def test_many_ranges_are_counted_and_texts_of_strangers_escaped() -> None:
    many = [Look(0, "rows", "index t: a", ("<b>",), ("<c>",), 1, False, 0)] * (LOOKS_MAX + 5)
    text = "\n".join(draw_looks(many, 0.0, ["red"]))
    assert "and 5 ranges more" in text and "<b>" not in text
    assert looks_height(many) > LOOKS_MAX and looks_height([]) == 0
