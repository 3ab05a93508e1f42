"""The tree of an ordered index against a sorted list: whatever is inserted, removed and asked."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.state import entries
from headgate.state import tree as trees
from headgate.state.compiled import numba
from headgate.state.ordered import sort_slots
from headgate.state.strings import StringPool

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

    def insert(self, entry: tuple[int, ...], slot: int) -> None:
        if entries.is_short_one(at(self.words), 1):
            self.words = trees.grown_tree(self.words, 2 * int(self.words[trees.ROOM]))
        key = np.array(entry, np.int64)
        entries.insert_one(at(self.words), at(key), slot)

    def remove(self, entry: tuple[int, ...]) -> int:
        key = np.array(entry, np.int64)
        return int(entries.remove_one(at(self.words), at(key)))

    def scan(self, low, high, count, limit=-1, descending=False):
        one, other, out = np.array(low, np.int64), np.array(high, np.int64), np.zeros(900, np.int64)
        asked = count, limit, int(descending), at(out), len(out)
        found = entries.scan_one(at(self.words), at(one), at(other), *asked)
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
            assert tree.remove(entry) == kept.pop(entry, -1)
    assert int(tree.words[trees.ENTRIES]) == len(kept)
    for asked in ranges:
        assert tree.scan(*asked) == expected(kept, *asked)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5000), st.randoms(use_true_random=False))
def test_a_tree_that_was_filled_at_once_goes_on_as_any_other(count, random):
    found = sorted({(random.randrange(3000), random.randrange(50)) for _ in range(count)})
    kept = {entry: slot for slot, entry in enumerate(found)}
    tree = Tree(2)
    tree.words = trees.empty_tree(2, entries.nodes_for(len(found)))
    held = np.array([[1, *entry, 0] for entry in kept], np.int64).reshape(-1)
    order = np.arange(len(found))
    leaves = entries.leaves_for(len(found))
    for begin in range(leaves):  # as threads share them
        given = at(tree.words), at(held), at(order), len(found), leaves
        entries.fill_leaves(*given, begin, begin + 1)
    entries.fill_above(at(tree.words), len(found), leaves)
    low, high = (-1, 0), (3000, 0)
    assert tree.scan((500, 7), (520, 3), 2) == expected(kept, (500, 7), (520, 3), 2, -1, False)
    for entry in random.sample(found, len(found) - len(found) // 20):
        assert tree.remove(entry) == kept.pop(entry)
    for number in range(300):
        entry = (random.randrange(3000), 100 + number)
        kept[entry] = number
        tree.insert(entry, number)
    for descending in (False, True):
        assert tree.scan(low, high, 1, 800, descending) == expected(
            kept, low, high, 1, 800, descending
        )


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
    for text in texts:
        tree.insert((codes[text],), codes[text])
    found = tree.scan((codes[low],), (codes[high],), 1)
    assert found == [codes[text] for text in sorted(texts) if low <= text <= high]


# --- hints ----------------------------------------------------------------------------------------


@numba.njit
def exchange_one(tree: int, words: int, hint: int, fresh: int, target: int, slot: int) -> int:
    return int(trees.exchange(tree, words, hint, fresh, target, slot))


@numba.njit
def insert_one_at(tree: int, leaf: int, words: int, slot: int) -> int:
    return int(trees.insert_at(tree, leaf, words, slot))


@numba.njit
def take_one_out(tree: int, words: int, hint: int) -> None:
    trees.take_out(tree, words, hint)


def any_hint(tree: Tree, random, leaf: int) -> int:
    """The leaf itself, another one, a node above leaves, one that is no more, or none."""
    if random.random() < 0.4:
        return leaf
    return random.randrange(-1, int(tree.words[trees.USED]))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.randoms(use_true_random=False))
def test_no_hint_has_to_be_right(count, random):
    """Entries come, move and go until leaves and nodes are given back and used anew."""
    tree, kept, leaves = Tree(2), {}, {}
    for slot in range(3 * count):
        room = trees.grown_tree(tree.words, 2 * int(tree.words[trees.ROOM]))
        tree.words = room if entries.is_short_one(at(tree.words), 1) else tree.words
        entry = random.randrange(60), random.randrange(60)
        is_growing = slot < count or (slot < 2 * count and random.random() < 0.3)
        old = random.choice(list(kept)) if kept and not is_growing else None
        words = np.array([old or (0, 0), entry], np.int64)
        one, other = at(words), at(words) + 16
        hint = any_hint(tree, random, leaves.get(old, -1))
        if old is not None and slot >= 2 * count:
            take_one_out(at(tree.words), one, hint)
            del kept[old], leaves[old]
        elif entry not in kept:
            target, moved = any_hint(tree, random, -1), kept.pop(old, slot)
            if old is None:
                leaves[entry] = insert_one_at(at(tree.words), target, other, slot)
            else:
                del leaves[old]
                leaves[entry] = exchange_one(at(tree.words), one, hint, other, target, moved)
            kept[entry] = moved
    assert int(tree.words[trees.ENTRIES]) == len(kept)
    assert tree.scan((0, 0), (60, 60), 2) == expected(kept, (0, 0), (60, 60), 2, -1, False)
