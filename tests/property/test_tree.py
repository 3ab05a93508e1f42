"""The tree of an ordered index against a sorted list: whatever is inserted, removed and asked."""

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.state import entries, entry_looks, ordered, slot_order
from headgate.state import tree as trees
from headgate.state.compiled import numba
from headgate.state.layout import HEADER_ALIVE
from headgate.state.ordered import OrderedIndex
from headgate.state.rows import TableRows, put_nulls
from headgate.state.slot_order import sort_slots
from headgate.state.strings import StringPool

SLOTS = 20_000  # more than any tree here has
small = st.integers(-40, 40)
pairs = st.tuples(small, st.integers(-3, 3))
steps = st.lists(st.tuples(st.sampled_from("iiir"), pairs), max_size=400)
ranges = st.lists(
    st.tuples(pairs, pairs, st.integers(1, 2), st.integers(-1, 9), st.booleans()), max_size=8
)


class Tree:
    """A tree with what Python needs to ask it."""

    def __init__(self, width: int, texts: int = 0, reach: int = 0) -> None:
        self.words = trees.empty_tree(width, 8, texts, reach)
        self.leaves = np.zeros(SLOTS, np.int32)
        self.words[trees.LEAVES] = at(self.leaves)

    def insert(self, entry: tuple[int, ...], slot: int) -> None:
        if entries.is_short_one(at(self.words), 1):
            self.words = trees.grown_tree(self.words, 2 * int(self.words[trees.ROOM]))
        key = np.array(entry, np.int64)
        entries.insert_one(at(self.words), at(key), slot)

    def remove(self, slot: int) -> bool:
        return bool(entries.remove_one(at(self.words), slot))

    def scan(self, low, high, count, limit=-1, descending=False):
        one, other, out = np.array(low, np.int64), np.array(high, np.int64), np.zeros(900, np.int64)
        asked = count, limit, int(descending), at(out), len(out)
        found = entry_looks.scan_one(at(self.words), at(one), at(other), *asked)
        return out[:found].tolist()


def at(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def expected(kept, low, high, count, limit, descending):
    inside = [one for one in sorted(kept) if low[:count] <= one[:count] <= high[:count]]
    slots = [kept[one] for one in (reversed(inside) if descending else inside)]
    return slots if limit < 0 else slots[:limit]


@settings(max_examples=150, deadline=None)
@given(steps, ranges)
def test_a_tree_finds_what_a_sorted_list_does(steps, ranges):
    tree, kept = Tree(2), {}
    for number, (step, entry) in enumerate(steps):
        if step == "i" and entry not in kept:
            kept[entry] = number
            tree.insert(entry, number)
        elif step == "r":
            slot = kept.pop(entry, number)
            assert tree.remove(slot) == (slot != number)
    assert int(tree.words[trees.ENTRIES]) == len(kept)
    for asked in ranges:
        assert tree.scan(*asked) == expected(kept, *asked)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([4, 2**31 - 1, 2**63 - 1]).flatmap(
        lambda most: st.lists(st.integers(-most, most), max_size=80)
    )
)
def test_slots_are_sorted_by_a_column_and_stay_in_order_where_it_is_equal(values):
    column = np.array(values, np.int64)
    order, _ = sort_slots(column, np.arange(len(column)), np.empty(len(column), np.int64))
    assert order.tolist() == np.argsort(column, kind="stable").tolist()


@settings(max_examples=50, deadline=None)
@given(st.sets(st.text(max_size=6), max_size=60), st.text(max_size=4), st.text(max_size=4))
def test_texts_are_in_the_order_of_their_code_points(texts, low, high):
    pool = StringPool()
    tree = Tree(1, texts=1, reach=pool.reach())
    codes = {text: int(pool.intern(pa.array([text]))[0]) for text in {*texts, low, high}}
    slots = {text: slot for slot, text in enumerate(texts)}
    for text, slot in slots.items():
        tree.insert((codes[text],), slot)
    found = tree.scan((codes[low],), (codes[high],), 1)
    assert found == [slots[text] for text in sorted(texts) if low <= text <= high]


# --- hints ----------------------------------------------------------------------------------------


@numba.njit
def exchange_one(tree: int, slot: int, fresh: int) -> bool:
    leaf = trees.leaf_with(tree, slot)
    place = trees.place_of(trees.node_at(tree, leaf), slot)
    return bool(trees.exchange(tree, leaf, place, fresh))


@numba.njit
def insert_one_at(tree: int, leaf: int, words: int, slot: int) -> None:
    trees.insert_at(tree, leaf, words, slot)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.randoms(use_true_random=False))
def test_any_leaf_may_be_named_for_what_comes_in(count, random):
    """Entries come, move and go until leaves and nodes are given back and used anew."""
    tree, kept = Tree(2), {}
    for slot in range(3 * count):
        room = trees.grown_tree(tree.words, 2 * int(tree.words[trees.ROOM]))
        tree.words = room if entries.is_short_one(at(tree.words), 1) else tree.words
        entry = random.randrange(60), random.randrange(60)
        is_growing = slot < count or (slot < 2 * count and random.random() < 0.3)
        old = random.choice(list(kept)) if kept and not is_growing else None
        words, leaf = np.array(entry, np.int64), random.randrange(-1, int(tree.words[trees.USED]))
        if old is not None and slot >= 2 * count:
            assert tree.remove(kept.pop(old))
        elif entry not in kept:
            moved = kept.pop(old, slot)
            if old is None or not exchange_one(at(tree.words), moved, at(words)):
                assert tree.remove(moved) == (old is not None)
                insert_one_at(at(tree.words), leaf, at(words), moved)
            kept[entry] = moved
    assert int(tree.words[trees.ENTRIES]) == len(kept)
    assert tree.scan((0, 0), (60, 60), 2) == expected(kept, (0, 0), (60, 60), 2, -1, False)


# --- frozen leaves --------------------------------------------------------------------------------

TOYS = hg.Table(
    "toys", "id bigint, shelf int, n bigint NULL, name string", key="id",
    index=[("shelf", "n"), "n", "name"],
)  # fmt: skip
NAMES = ["", "a", "ab", "b", "ä", "\U0001f600"]
NUMBERS = [None, 1, 2, -(2**60), 2**60]


@numba.njit
def look_one(tree, waiting, low, high, count, limit, descending, out, room):
    found = entry_looks.look(tree, waiting, low, high, count, limit, descending, out, room)
    return int(found)


class Toys:
    """Rows with an index, changed as a batch changes them."""

    def __init__(self, count: int, spread: int, random: Random, column: str = "shelf") -> None:
        self.random, self.spread, self.column = random, spread, column
        self.rows = TableRows(TOYS, StringPool())
        self.names = dict(zip(NAMES, self.rows.pool.intern(pa.array(NAMES)).tolist(), strict=True))
        given = {"id": random.sample(range(3 * count), count)}
        for name in ("shelf", "n", "name"):
            given[name] = [self.value(name) for _ in range(count)]
        self.rows.load(pa.table(given, TOYS.schema.arrow), 1)
        self.index = OrderedIndex(self.rows, next(i for i in TOYS.index if i.columns[0] == column))
        self.dead: set[int] = set()

    def value(self, column: str) -> Any:
        if column == "shelf":
            return self.random.randrange(self.spread)
        return self.random.choice(NAMES if column == "name" else NUMBERS)

    def change(self) -> int:
        """Another value, the same one again, gone, or there again; returns the slot."""
        slot = self.random.randrange(self.rows.count)
        if self.random.random() < 0.2:
            self.rows.words[slot, 0] ^= HEADER_ALIVE
            self.dead ^= {slot}
        elif self.column == "n":
            field, value = self.rows.layout.field("n"), self.value("n")
            put_nulls(self.rows.words, np.array([slot]), field, np.array([value is None]))
            self.rows.records["n"][slot] = value or 0
        else:
            value = self.value(self.column)
            code = self.names[value] if self.column == "name" else value
            self.rows.records[self.column][slot] = code
        return slot

    def wanted(self, low: Any, high: Any) -> list[int]:
        """The slots of the rows from one value to another, by looking at all of them."""
        alive = [slot for slot in range(self.rows.count) if slot not in self.dead]
        found = []
        for slot, row in zip(alive, self.rows.arrow(np.array(alive, int)).to_pylist(), strict=True):
            first = row[self.column]
            if first is not None and low <= first <= high:
                number = (row["n"] is None, row["n"] or 0) if self.column == "shelf" else ()
                found.append((first, number, row["id"], slot))
        return [one[-1] for one in sorted(found)]

    def bound(self, value: Any) -> list[int]:
        if self.column == "n":
            return [0, value]
        return [self.names[value] if self.column == "name" else value]

    def look(self, low: Any, high: Any, limit: int, descending: bool) -> list[int]:
        """As a kernel looks, which has too little room at first."""
        bounds, room = np.array([self.bound(low), self.bound(high)], np.int64), 1
        while True:
            out = np.zeros(room, np.int64)
            at_low, count = at(bounds), bounds.shape[1]
            asked = at_low, at_low + 8 * count, count, limit, int(descending), at(out), room
            found = look_one(at(self.index.bind()), at(self.index.waiting), *asked)
            if 0 <= found <= room:
                return out[:found].tolist()
            self.index.relieve(0)
            room = max(found, room)

    def is_right(self, *, waits: bool = False) -> bool:
        """Whether a look finds what it should, in both directions."""
        given = self.value(self.column), self.value(self.column)
        low, high = (1 if value is None else value for value in given)
        wanted, most = self.wanted(low, high), self.random.choice([-1, 1, 7])
        last = wanted[::-1] if most < 0 else wanted[::-1][:most]
        if waits:
            found = self.look(low, high, -1, False)
            return found == wanted and self.look(low, high, most, True) == last
        low, high = self.bound(low), self.bound(high)
        found = self.index.scan(low, high).tolist()
        return (
            found == wanted and self.index.scan(low, high, most, descending=True).tolist() == last
        )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3000),
    st.sampled_from([3, 1000, 2**31 - 1]),
    st.sampled_from([1, 9, 400]),
    st.randoms(use_true_random=False),
)
def test_rows_may_change_before_their_leaves_are_looked_at(count, spread, most, random):
    toys = Toys(count, spread, random)
    toys.index.ready()
    for _ in range(12):
        changed = [toys.change() for _ in range(random.randrange(most))]
        if random.random() < 0.5:
            toys.index.note(np.array(changed, np.int64))
            toys.index.ready()
        else:
            toys.index.bring_all(np.array(changed, np.int64))
        assert toys.is_right()
    assert toys.index.tree[trees.ENTRIES] == toys.rows.count - len(toys.dead)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 1500),
    st.sampled_from(["shelf", "n", "name"]),
    st.sampled_from([2, 12, 300]),
    st.sampled_from([8, 4096]),
    st.randoms(use_true_random=False),
)
def test_a_look_finds_rows_that_wait_wherever_they_belong(count, column, most, room, random):
    """They are brought forward now and then: one by one, or with the tree made anew; a row comes
    and goes more than once before that, and all may wait, or have gone."""
    toys = Toys(count, 40, random, column)
    toys.index.waiting = entries.waiting_in(room)
    toys.index.ready()
    for _ in range(10):
        changed = [toys.change() for _ in range(random.randrange(most))]
        toys.index._note_waiting(np.array(changed, np.int64))
        assert toys.is_right(waits=True)
        if random.random() < 0.2:
            toys.index.waiting[entries.WAITING_SPENT] = 1 << 40  # the next look brings all forward
        if random.random() < 0.1:
            toys.index._rebuild()
        if random.random() < 0.1:
            toys.index.ready()
            assert toys.is_right()
    assert toys.is_right(waits=True)


def test_a_leaf_that_is_looked_at_leaves_out_what_has_changed(monkeypatch):
    """A row of a frozen leaf changes: it must not be found where its entry was."""

    def found() -> bool:
        toys = Toys(60, 1000, Random(5))
        toys.index.ready()
        slot = toys.wanted(0, 500)[3]
        toys.rows.records["shelf"][slot] = 900
        toys.index._note_waiting(np.array([slot], np.int64))
        return toys.look(0, 1000, -1, False) == toys.wanted(0, 1000)

    assert found()
    monkeypatch.setattr(OrderedIndex, "_note_waiting", lambda self, slots: None)
    assert not found(), "a row that nobody noted would be seen"


def test_what_a_batch_may_call_is_compiled_before_it():
    """Else its first run would seem as dear as compiling, and be shared among threads."""

    def compiled() -> int:
        found = [one for module in (entries, slot_order) for one in vars(module).values()]
        return sum(len(one.overloads) for one in found if hasattr(one, "overloads"))

    columns = [(9, "shelf"), (2**31 - 1, "shelf"), (9, "n"), (9, "name")]
    made = [Toys(300, spread, Random(2), column) for spread, column in columns]
    ordered.load_kernels.__wrapped__()
    before = compiled()
    for toys in made:
        toys.index._rebuild()
        toys.index.make_room()
        changed = [toys.change() for _ in range(40)]
        toys.index.bring_all(np.array(changed, np.int64))
        toys.index.relieve(1)
        assert toys.is_right()
    assert compiled() == before
