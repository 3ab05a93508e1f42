"""Ranges: whoever moves rows in, out of and within them, each event finds those as of its turn.

In steady shapes no transaction moves a row within an index, so every scheme can run them; in moving
ones they come, go and change their place event by event.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

import headgate as hg
from headgate.state import ordered, slot_order
from headgate.state import tree as trees
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import shapes
from tests.property.test_wide import PROMISED, WAYS, check

pytestmark = pytest.mark.timeout(900)  # on a busy machine compiling takes long
SEEDS = (3, 8)


@functools.cache
def shape_of(seed: int, ranges: str) -> shapes.Shape:
    return shapes.make_shape(seed, 2, 5, ranges=ranges)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_scheme" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("long")
        metafunc.parametrize("any_scheme", PROMISED if is_long else WAYS)
    if "blind_scheme" in metafunc.fixturenames:
        # That events with such ranges run one after another is seen before any scheme begins, by
        # one text for all; the kernels of units are compiled for nothing but to be asked.
        more = ("ready-chain-lazy",) if metafunc.config.getoption("long") else ()
        metafunc.parametrize("blind_scheme", ("auto", "shares", "lock", *more))


def test_a_scheme_finds_the_rows_of_steady_ranges(any_scheme: str) -> None:
    check(shape_of(3, "steady"), any_scheme, 2)


def test_steady_ranges_are_shared_by_threads() -> None:
    decisions = check(shape_of(3, "steady"), "shares", 2)
    assert not any("range" in one.why for one in decisions)


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_moving_ranges_have_the_rows_as_of_each_turn(seed: int, updates: bool) -> None:
    check(shape_of(seed, "moving"), "serial", 1, updates)


def test_a_scheme_that_cannot_see_to_moving_ranges_says_so(blind_scheme: str) -> None:
    decisions = check(shape_of(3, "moving"), blind_scheme, 2)
    assert {one.scheme for one in decisions} == {"serial"}
    assert any("range" in one.why for one in decisions) or blind_scheme == "auto"


# --- ranges of any length -------------------------------------------------------------------------

parcels = hg.Table("parcels", "id bigint, shelf int, n bigint", key="id", index="shelf")
EVENT = "ts bigint, id bigint, shelf int, other int"


@hg.transaction(event=EVENT)
def store(event, parcel=parcels.at("id", create=True)):
    parcel.shelf = event.shelf


@hg.transaction(event=EVENT)
def shift(event, all_=parcels.where("shelf"), out=hg.output("moved bigint, last bigint")):
    for parcel in all_:
        parcel.shelf = event.other
        parcel.n += 1
        out.last = parcel.id
    out.moved = len(all_)
    if event.ts % 5 == 0:
        return hg.abort("not today")


@hg.transaction(event=EVENT)
def clear(event, all_=parcels.where("shelf", limit=40), out=hg.output("gone bigint")):
    for parcel in all_:
        hg.delete(parcel)
    out.gone = len(all_)
    if event.ts % 7 == 0:
        raise ValueError("stuck")


ROUTES = {"store": store, "shift": shift, "clear": clear}
KINDS = ("store", "store", "shift", "shift", "clear")


def events(seed: int, count: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {"ts": ts, "id": draw.randrange(9000), "shelf": draw.randrange(4),
         "other": draw.randrange(4), "kind": draw.choice(KINDS)}
        for ts in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("updates", [False, True])
def test_ranges_grow_beyond_the_room_that_there_was(updates: bool) -> None:
    """Thousands of rows go from one value to another: slots, copies and trees run out of room."""
    rows = [{"id": key, "shelf": key % 4, "n": 0} for key in range(6000)]
    oracle = SerialOracle([parcels], list(ROUTES.values()))
    oracle.load(parcels, rows)
    with hg.open(None, tables=[parcels], transactions=list(ROUTES.values())) as engine:
        engine.load(parcels, rows)
        for seed in range(2):
            given, options = events(seed, 25), {"route_by": "kind", "updates": updates}
            wanted = oracle.run(ROUTES, given, **options)
            assert results_difference(engine.run(ROUTES, given, **options), wanted) is None
        assert difference(engine, oracle) is None


@pytest.mark.parametrize("interpreted", ["store", "shift", "clear"])
def test_functions_in_plain_python_keep_the_indexes_too(interpreted: str) -> None:
    routes = dict(ROUTES)
    plain = ROUTES[interpreted].signature.function
    routes[interpreted] = hg.transaction(event=EVENT, compiled=False)(plain)
    oracle = SerialOracle([parcels], list(routes.values()))
    with hg.open(None, tables=[parcels], transactions=list(routes.values())) as engine:
        for seed in range(3):
            given = events(seed, 60)
            wanted = oracle.run(routes, given, route_by="kind")
            assert results_difference(engine.run(routes, given, route_by="kind"), wanted) is None
        assert difference(engine, oracle) is None


def test_calls_find_what_the_calls_before_them_moved() -> None:
    oracle = SerialOracle([parcels], list(ROUTES.values()))
    with hg.open(None, tables=[parcels], transactions=list(ROUTES.values())) as engine:
        for event in events(4, 80):
            kind = event.pop("kind")
            found, wanted = (judge.call(ROUTES[kind], **event) for judge in (engine, oracle))
            assert dict(found) == {**wanted}
        assert difference(engine, oracle) is None


def test_explain_counts_the_rows_that_ranges_would_name_now() -> None:
    with hg.open(None, tables=[parcels], transactions=list(ROUTES.values())) as engine:
        engine.load(parcels, [{"id": key, "shelf": key % 4, "n": 0} for key in range(40)])
        given = [{**one, "kind": "shift", "shelf": 9 if one["ts"] else 2} for one in events(1, 6)]
        figures = engine.stream(ROUTES, route_by="kind").explain(given)
        assert (figures.transactions, figures.operations) == (6, 10)
        assert engine.sql("select count(*) from parcels where shelf = 2").rows() == [(10,)]


# --- beside texts that are made, and keys that are computed ---------------------------------------

names = hg.Table("names", "id bigint, name string, n bigint", key="id", index="name")
links = hg.Table("links", "id bigint, next bigint", key="id")
NAMED = "id bigint, name string, low string, high string"


@hg.transaction(event=NAMED)
def lengthen(event, row=names.at("id", create=True)):
    row.name = row.name + event.name
    if len(row.name) > 6:
        row.name = ""


@hg.transaction(event=NAMED)
def gather(event, some=names.between("low", "high", index="name"), out=hg.output("all string")):
    for one in some:
        out.all = out.all + one.name + "|"
        one.n += 1
        one.name = one.name + "z"


@hg.transaction(event=NAMED)
def follow(
    event, link=links.at("id", create=True), row=names.at(lambda link: link.next, create=True)
):
    link.next = event.id + 1
    row.n += 1
    row.name = event.low


def test_ranges_find_rows_by_texts_and_keys_that_the_batch_itself_made() -> None:
    routes = {"lengthen": lengthen, "gather": gather, "follow": follow}
    oracle, draw = SerialOracle([names, links], list(routes.values())), random.Random(3)
    with hg.open(None, tables=[names, links], transactions=list(routes.values())) as engine:
        for _ in range(4):
            given = [
                {"id": draw.randrange(12), "name": draw.choice(("a", "b", "é", "zz", "")),
                 "low": draw.choice(("", "a", "b")), "high": draw.choice(("b", "zzz", "é")),
                 "kind": draw.choice(("lengthen", "lengthen", "gather", "follow"))}
                for _ in range(80)
            ]  # fmt: skip
            wanted = oracle.run(routes, given, route_by="kind")
            assert results_difference(engine.run(routes, given, route_by="kind"), wanted) is None
        assert difference(engine, oracle) is None


# --- entries that wait until somebody looks -------------------------------------------------------

walkers = hg.Table("walkers", "id bigint, n bigint", key="id", index=["n"])


@hg.transaction(event="kind string, id bigint, by bigint")
def walk(event, row=walkers.at("id", create=True)):
    row.n += event.by
    if row.n % 50 == 49:
        return hg.abort("not there")
    if row.n % 50 == 48:
        hg.delete(row)


@hg.transaction(event="kind string, id bigint, by bigint")
def meet(
    event,
    near=walkers.between("by", "id", index="n", descending=True, limit=40),
    out=hg.output("seen bigint"),
):
    for row in near:
        out.seen = (31 * out.seen + row.id) % 1000003
    if len(near) > 20:
        near[0].n += 1


@pytest.mark.parametrize("room", [4, 4096])
def test_entries_that_wait_are_brought_forward_before_anybody_looks(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small steps stay in their leaf of the tree, large ones leave it, and the rows that changed
    are more than there is room for, or not; a batch without looks leaves all to the next one."""
    monkeypatch.setattr(ordered, "WAITING_MIN", room)
    monkeypatch.setattr(ordered, "WAITING_MAX", room)
    draw, known = random.Random(room), {"walk": walk, "meet": meet}
    oracle = SerialOracle([walkers], list(known.values()))
    with hg.open(None, tables=[walkers], transactions=list(known.values())) as engine:
        for share in (0.3, 0.0, 0.05, 0.6):
            given = [
                {
                    "kind": "meet" if draw.random() < share else "walk",
                    "id": draw.randrange(300),
                    "by": draw.choice([1, 1, -1, 2, 3, -60, 90]),
                }
                for _ in range(1200)
            ]
            wanted = oracle.run(known, given, route_by="kind")
            found = engine.run(known, given, route_by="kind")
            assert results_difference(found, wanted) is None
        assert difference(engine, oracle) is None


def test_a_tree_is_made_anew_while_a_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most rows wait when there is no more room, and some aborted just before or after that."""
    monkeypatch.setattr(ordered, "WAITING_MIN", 9000)
    draw, known, made = random.Random(2), {"walk": walk, "meet": meet}, []
    rows = [{"id": key, "n": key % 400} for key in range(12_000)]
    oracle = SerialOracle([walkers], list(known.values()))
    oracle.load(walkers, rows)
    rebuild, relieve = ordered.OrderedIndex._rebuild, ordered.OrderedIndex.relieve

    def relieved(self: Any, changes: int) -> None:
        with monkeypatch.context() as patch:
            noted = lambda self: made.append(changes) or rebuild(self)  # noqa: E731
            patch.setattr(ordered.OrderedIndex, "_rebuild", noted)
            relieve(self, changes)

    monkeypatch.setattr(ordered.OrderedIndex, "relieve", relieved)
    with hg.open(None, tables=[walkers], transactions=list(known.values())) as engine:
        engine.load(walkers, rows)
        for every in (4000, 300):
            ids = draw.sample(range(12_000), 12_000)
            given = [{"kind": "walk", "id": one, "by": draw.choice([1, 2, -60])} for one in ids]
            for place in range(every - 1, 12_000, every):
                at = draw.randrange(400)
                given[place] = {"kind": "meet", "id": at + 1, "by": at}
            wanted = oracle.run(known, given, route_by="kind")
            assert results_difference(engine.run(known, given, route_by="kind"), wanted) is None
        assert difference(engine, oracle) is None
    assert made, "the tree was made anew"


# --- opening again --------------------------------------------------------------------------------


def test_a_store_that_is_opened_again_has_its_indexes(tmp_path: Any) -> None:
    oracle = SerialOracle([parcels], list(ROUTES.values()))
    for seed in range(3):
        given = events(seed, 60)
        wanted = oracle.run(ROUTES, given, route_by="kind")
        with hg.open(tmp_path / "store", tables=[parcels], transactions=list(ROUTES.values())) as e:
            assert results_difference(e.run(ROUTES, given, route_by="kind"), wanted) is None
            assert difference(e, oracle) is None


def test_an_index_may_be_declared_and_dropped_from_one_opening_to_the_next(tmp_path: Any) -> None:
    bare = hg.Table("parcels", "id bigint, shelf int, n bigint", key="id")
    with hg.open(tmp_path / "store", tables=[bare]) as engine:
        engine.load(bare, [{"id": key, "shelf": key % 3, "n": key} for key in range(20)])
    with hg.open(tmp_path / "store", tables=[parcels], transactions=[shift]) as engine:
        assert engine.call(shift, ts=1, id=0, shelf=2, other=9).moved == 6
    with hg.open(tmp_path / "store", tables=[bare]) as engine:
        assert engine.sql("select count(*) from parcels where shelf = 9").arrow()[0][0].as_py() == 6
    with hg.open(tmp_path / "store", tables=[parcels], transactions=[shift]) as engine:
        assert engine.call(shift, ts=1, id=0, shelf=9, other=1).moved == 6


# --- reading by an index --------------------------------------------------------------------------


def test_a_scan_by_an_index_gives_what_one_without_gives() -> None:
    bare = hg.Table("parcels", "id bigint, shelf int, n bigint", key="id")
    with (
        hg.open(None, tables=[parcels], transactions=list(ROUTES.values())) as engine,
        hg.open(None, tables=[bare]) as other,
    ):
        for seed in range(4):
            engine.run(ROUTES, events(seed, 60), route_by="kind")
            for shelf in range(4):
                found = engine.scan("parcels", where={"shelf": shelf, "n": 0}, columns="id, n")
                wanted = engine.scan("parcels", f"shelf = {shelf} and n = 0", columns="id, n")
                assert found.arrow().equals(wanted.arrow()), shelf
                assert found.epoch == wanted.epoch
            assert engine.scan("parcels", where={"id": 5}).rows() == [
                row for row in engine.scan("parcels").rows() if row[0] == 5
            ]
        for wrong in ("1", 2**40, 1.0, None):
            found = _answer(engine, wrong)
            assert found == _answer(other, wrong) or isinstance(found, list)


def _answer(engine: hg.Engine, shelf: Any) -> Any:
    try:
        return engine.scan("parcels", where={"shelf": shelf}).rows()
    except hg.HeadgateError as error:
        return str(error)


def test_an_index_that_threads_make_together_is_that_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"id": key * 7 % 1009, "shelf": key * key % 37, "n": 0} for key in range(1000)]
    monkeypatch.setattr(slot_order.os, "cpu_count", lambda: 4)
    found = []
    for least in (len(rows) + 1, 1):
        monkeypatch.setattr(ordered, "SHARED_MIN", least)
        with hg.open(None, tables=[parcels], transactions=[]) as engine:
            engine.load(parcels, rows)
            made = ordered.ordered_index(engine._memory.rows["parcels"], parcels.index[0]).ready()
            nodes = made.tree[trees.HEADER_WORDS :].tolist()
            found.append((nodes, made.leaves.tolist()))
            slots = made.scan([0], [40])
            assert slots.tolist() == sorted(
                range(1000), key=lambda n: (rows[n]["shelf"], rows[n]["id"])
            )
    assert found[0] == found[1]


# --- declarations that cannot be ------------------------------------------------------------------

tools = hg.Table("tools", "id bigint, kind string, x double", key="id", index=["kind", ("x", "id")])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hg.Table("a", "id int, b int", key="id", index=["c"]), "no column 'c'"),
        (lambda: hg.Table("a", "id int", key="id", index=3), "index is a list of columns"),
        (lambda: hg.Table("a", "id int", key="id", index=[("id", "id")]), "named twice"),
        (lambda: tools.where("x", "kind"), "no index begins with x, kind"),
        (lambda: tools.where(), "name a column"),
        (lambda: tools.where("what"), "no column 'what'"),
        (lambda: tools.where("a", index="x"), "no index (x)"),
        (lambda: tools.where("kind", mode="create"), "mode is 'write' or 'read'"),
        (lambda: tools.where("kind", limit=0), "limit is a whole number from 1 to"),
        (lambda: tools.where("kind", limit=1 << 70), "limit is a whole number from 1 to"),
        (lambda: tools.between("a", ("b", "c")), "as many columns as each other"),
        (lambda: tools.between(("a", "b"), ("c", "d")), "at most the 1 of index tools: key"),
        (lambda: tools.between((), ()), "a bound is an event column or several"),
        (lambda: tools.where(lambda a: a), "name columns of the event"),
        (lambda: tools.where(kind=lambda a: a.x), "tools.each(function); here, name columns"),
        (lambda: tools.between("a", lambda a: a), "between('a', key(a)): a function computes"),
    ],
)
def test_what_cannot_be_an_index_or_a_range_is_refused(make: Any, words: str) -> None:
    with pytest.raises(hg.DeclarationError) as refused:
        make()
    assert words in str(refused.value)


def test_columns_may_be_named_in_one_text_as_those_of_a_key_are() -> None:
    one = tools.between(("low", "a"), ("high", "b"), index=("x", "id"))
    assert tools.between("low, a", "high , b", index="x, id") == one


def test_a_bound_of_another_type_is_refused_where_it_is_declared() -> None:
    with pytest.raises(hg.DeclarationError, match="event column 'low' is a bigint"):

        @hg.transaction(event="low bigint, high bigint")
        def look(event, some=tools.between("low", "high", index=("x", "id"))):
            pass


def test_a_range_of_which_low_is_beyond_high_has_no_rows() -> None:
    @hg.transaction(event="low bigint, high bigint", compiled=False)
    def look(event, some=tools.between("low", "high"), out=hg.output("n bigint")):
        out.n = len(some)

    with hg.open(None, tables=[tools], transactions=[look]) as engine:
        engine.load(tools, [{"id": key, "kind": "a", "x": 0.5} for key in range(9)])
        assert [engine.call(look, low=low, high=5).n for low in (5, 4, 6, 7)] == [1, 2, 0, 0]


# --- columns that may be null ---------------------------------------------------------------------

notes = hg.Table(
    "notes",
    "id bigint, tag string NULL, rank bigint NULL",
    key="id",
    index=["tag", "rank", ("rank", "tag")],
)
LAST = 2**63 - 1


def retag_of(compiled: bool) -> Any:
    @hg.transaction(event="id bigint, tag string, low bigint, high bigint", compiled=compiled)
    def retag(
        event,
        same=notes.where("tag"),
        ranked=notes.between("low", "high", index="rank", mode="read"),
        both=notes.between(("low", "tag"), ("high", "tag"), index=("rank", "tag"), mode="read"),
        note=notes.at("id", create=True),
        out=hg.output("same bigint, ranked bigint, both bigint, was string NULL"),
    ):
        out.same, out.was = len(same), note.tag
        for one in ranked:
            out.ranked = (out.ranked * 3 + one.id) % 1009
        for one in both:
            out.both = (out.both * 5 + one.id) % 1009
        for one in same:
            one.rank = None if one.id % 2 else event.high
        note.tag = None if event.id % 3 == 0 else event.tag
        note.rank = None if event.id % 4 == 0 else event.low

    return retag


def _noted(seed: int, count: int = 60) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    bounds = (-LAST - 1, -3, 0, 2, 5, LAST)
    return [
        {"id": draw.randrange(9), "tag": draw.choice("ab"), "low": draw.choice(bounds),
         "high": draw.choice(bounds)}
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_without_a_value_stand_behind_all_values_of_an_index(compiled: bool) -> None:
    retag, oracle = retag_of(compiled), SerialOracle([notes])
    with hg.open(None, tables=[notes], transactions=[retag]) as engine:
        for seed in range(3):
            expected = oracle.run(retag, _noted(seed))
            assert results_difference(engine.run(retag, _noted(seed)), expected) is None
            assert difference(engine, oracle) is None
        for where in ({"tag": "a"}, {"tag": None}, {"rank": LAST}, {"rank": None, "tag": "b"}):
            found = {row["id"] for row in engine.scan(notes, where=where).dicts()}
            all_rows = engine.scan(notes).dicts()
            assert found == {
                row["id"] for row in all_rows if all(row[key] == where[key] for key in where)
            }
