"""Unique columns and references: compiled, interpreted and mixed, they judge as the oracle does.

Few keys and few values, so that most transactions meet a constraint: about half of them break one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import headgate as hg
from headgate.execution import keeper, program
from headgate.execution.keeper import Keeper
from headgate.kernels import building, constraints
from headgate.kernels.generating import Generator
from headgate.state import integrity
from headgate.testing import (
    SerialOracle,
    SimulatedClock,
    SimulatedDisk,
    difference,
    results_difference,
)
from tests.property.making import examples
from tests.property.seeding import with_bug

pytestmark = pytest.mark.timeout(900)  # on a busy machine compiling takes long

regions = hg.Table(
    "regions", "area int, code string, size int, name string", key="area, code", unique=["name"]
)
shops = hg.Table(
    "shops",
    "id bigint, area int, code string, label string, boss bigint, open boolean",
    key="id",
    check="label <> 'bad'",
    unique=["label", ("boss", "open", "area")],
    references={("area", "code"): regions, "boss": "shops"},
)
TABLES = [regions, shops]


def open_shop(event, shop=shops.at("id", create=True)):
    shop.area = event.area
    shop.code = event.code
    shop.label = event.label
    shop.boss = event.boss
    shop.open = event.id > event.boss


def close_shops(event, gone=shops.each("ids")):
    for shop in gone:
        hg.delete(shop)


def swap(event, one=shops.at("id"), other=shops.at("boss")):
    label = one.label
    one.label = other.label
    other.label = label


def same_label(event, one=shops.at("id"), other=shops.at("boss")):
    one.label = event.label
    other.label = event.label


def found_region(event, region=regions.at("area", "code", create=True)):
    region.name = event.label
    region.size += 1
    if event.label == "no":
        return hg.abort("no name")


def drop_region(event, region=regions.at("area", "code"), gone=shops.each("ids")):
    hg.delete(region)
    for shop in gone:
        hg.delete(shop)


def move_shops(event, moved=shops.each("ids"), seen=shops.at("boss", mode="read")):
    for shop in moved:
        shop.area = event.area
        shop.code = event.code
        shop.boss = seen.id
    if event.area == 2:
        raise ValueError("nobody moves there")


def renew(event, shop=shops.at("id", create=True), boss=shops.at("boss")):
    hg.delete(shop)
    boss.label = event.label
    boss.boss = event.id


EVENT = "ts bigint, id bigint, boss bigint, area int, code string, label string, ids array<bigint>"
FUNCTIONS: list[Callable[..., Any]] = [
    open_shop, close_shops, swap, same_label, found_region, drop_region, move_shops, renew,
]  # fmt: skip
INTERPRETED = {one.__name__: hg.transaction(event=EVENT, compiled=False)(one) for one in FUNCTIONS}
# Not all of them are compiled: that takes long, and a batch may have both.
FEW = {one.__name__: hg.transaction(event=EVENT)(one) for one in (open_shop, swap, drop_region)}
COMPILED = {**INTERPRETED, **FEW}
LABELS = ("a", "b", "c", "no", "bad", "")

IDS = st.integers(0, 4)
EVENTS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from((*COMPILED, "open_shop", "open_shop", "found_region")),
        "ts": st.integers(0, 3),
        "id": IDS,
        "boss": IDS,
        "area": st.integers(0, 2),
        "code": st.sampled_from(("x", "y")),
        "label": st.sampled_from(LABELS),
        "ids": st.lists(IDS, max_size=3),
    }
)
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=25), min_size=1, max_size=4)
LOADED_REGIONS = [
    {"area": area, "code": code, "size": area, "name": f"{area}{code}"}
    for area in range(2)
    for code in "xy"
]
LOADED_SHOPS = [
    {"id": number, "area": 0, "code": "x", "label": f"{number}", "boss": number, "open": False}
    for number in range(3)
]


def filled(target: Any) -> Any:
    target.load(regions, LOADED_REGIONS)
    target.load(shops, LOADED_SHOPS)
    return target


def shows_a_difference(forms: Any, batches: Any, where: Any = None) -> bool:
    """Whether the engine differs from the oracle; with a disk, it is opened anew for each batch."""
    oracle = filled(SerialOracle(TABLES, INTERPRETED.values()))

    def opened() -> hg.Engine:
        if where is None:
            return hg.open(None, tables=TABLES, transactions=forms.values())
        clock = SimulatedClock()
        return hg.open("s", tables=TABLES, transactions=forms.values(), disk=where, clock=clock)

    engine = filled(opened())
    for events in batches:
        found = engine.run(forms, events, route_by="kind", order_by="ts")
        expected = oracle.run(INTERPRETED, events, route_by="kind", order_by="ts")
        if results_difference(found, expected) is not None:
            return True
        if where is not None:
            engine.close()
            engine = opened()
    return difference(engine, oracle) is not None


@pytest.mark.parametrize("forms", [COMPILED, INTERPRETED], ids=["compiled", "plain"])
@examples(100)
@given(batches=BATCHES)
def test_the_engine_judges_as_the_oracle_does(forms: Any, batches: Any) -> None:
    assert not shows_a_difference(forms, batches)


@examples(25)
@given(batches=BATCHES)
def test_what_is_kept_beside_the_rows_comes_back_after_recovery(batches: Any) -> None:
    assert not shows_a_difference(COMPILED, batches, SimulatedDisk())


@examples(50)
@given(batches=BATCHES)
def test_what_is_kept_beside_the_rows_says_what_the_rows_say(batches: Any) -> None:
    with filled(hg.open(None, tables=TABLES, transactions=COMPILED.values())) as engine:
        for events in batches:
            engine.run(COMPILED, events, route_by="kind", order_by="ts")
        rows = engine._memory.rows
        for table in TABLES:
            for unique in table.unique:
                kept = integrity.unique_entries(rows[table.name], unique)
                rows[table.name].refills += 1
                anew = integrity.unique_entries(rows[table.name], unique)
                assert sorted(kept[kept != 0]) == sorted(anew[anew != 0])
            for reference in table.references:
                kept = integrity.child_counts(rows, reference)
                rows[reference.parent].refills += 1
                anew = integrity.child_counts(rows, reference)
                size = min(len(kept), len(anew))
                assert kept[:size].tolist() == anew[:size].tolist()
                assert not kept[size:].any()
                assert not anew[size:].any()


def test_the_events_meet_every_constraint() -> None:
    seen: set[str] = set()

    def sees(batches: Any) -> bool:
        oracle = filled(SerialOracle(TABLES, INTERPRETED.values()))
        for events in batches:
            for result in oracle.run(INTERPRETED, events, route_by="kind", order_by="ts"):
                seen.add(result["reason"] or "")
        return {"", *(one.reason for table in TABLES for one in table.unique)} | {
            one.reason for table in TABLES for one in table.references
        } <= seen

    find(BATCHES, sees, settings=settings(SEARCH, max_examples=500))


# --- canaries -------------------------------------------------------------------------------------

SEARCH = settings(
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


Seed = Callable[[pytest.MonkeyPatch], None]


def in_text(old: str, new: str) -> Seed:
    """A bug in the lines that are generated for every transaction."""

    def seed(patch: pytest.MonkeyPatch) -> None:
        original = Generator.source

        def source(self: Generator) -> str:
            found = original(self)
            assert old in found, f"the kernel's source has no {old!r} to break"
            return found.replace(old, new)

        patch.setattr(Generator, "source", source)

    return seed


def in_function(name: str, old: str, new: str) -> Seed:
    """A bug in a function that all kernels with constraints share."""

    def seed(patch: pytest.MonkeyPatch) -> None:
        shared = {**constraints.SHARED, name: with_bug(constraints, name, old, new)}
        patch.setattr(constraints, "SHARED", shared)

    return seed


def without(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A change of the index that does nothing."""
    return lambda patch: patch.setattr(keeper, name, lambda entries, mask, value, slot: None)


def children_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    counts = integrity.child_counts
    patch.setattr(keeper, "child_counts", lambda *given: counts(*given) * 0)


def keeper_forgets_to_go_back(patch: pytest.MonkeyPatch) -> None:
    move = Keeper._move

    def once(self: Keeper, name: str, slot: int, old: Any, new: Any) -> None:
        if self.tables[name].words[slot].tobytes() == new.tobytes():
            move(self, name, slot, old, new)

    patch.setattr(Keeper, "_move", once)


# The compiled ones take a while each, so they have only the transaction that shows their bug; the
# plain ones show that the oracle sees the rest.
OPENING, DROPPING = ({name: FEW[name]} for name in ("open_shop", "drop_region"))
CANARIES: dict[str, tuple[Any, Seed]] = {
    "the index is not undone": (OPENING, in_text("if unmarks(", "if False and unmarks(")),
    "a row named twice is counted twice": (
        DROPPING,
        in_function("marks", "if header & HEADER_EXCHANGED or", "if"),
    ),
    "the index is not undone, plain": (INTERPRETED, keeper_forgets_to_go_back),
    "a removed entry stays, plain": (INTERPRETED, without("leave")),
    "a new entry is forgotten, plain": (INTERPRETED, without("enter")),
    "children are not counted, plain": (INTERPRETED, children_are_not_counted),
}


def of_kinds(batches: Any, forms: Any) -> Any:
    """The same batches, each event of a kind that the program has."""
    names = list(forms)
    kinds = {kind: names[place % len(names)] for place, kind in enumerate(COMPILED)}
    return [[{**event, "kind": kinds[event["kind"]]} for event in events] for events in batches]


def is_caught(name: str) -> bool:
    forms, seed = CANARIES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "build_kernel", building.build_kernel)  # not those without the bug
        seed(patch)
        try:
            find(
                BATCHES,
                lambda batches: shows_a_difference(forms, of_kinds(batches, forms)),
                settings=settings(SEARCH, max_examples=300),
            )
        except NoSuchExample:
            return False
        return True


@pytest.mark.parametrize("name", CANARIES)
def test_a_seeded_bug_is_caught(name: str) -> None:
    assert is_caught(name)
