"""The characters behind codes, as compiled code asks for them, against Python's own texts."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.state import characters
from headgate.state.compiled import kernel_of
from headgate.state.strings import StringPool, text_code

EDGES = [
    "", "a", "ab", "abc", "b", "\x00", "a\x00", "a\x00b", "e\u0301", "\u00e9", "\u007f", "\u0080",
    "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff", "\U0001f600", "exactly8", "x" * 5000,
]  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(EDGES), st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)


def asked(texts: int, left: int, right: int) -> tuple[int, int, bool, bool, bool]:
    return (
        characters.compare_texts(texts, left, right),
        characters.length_of(texts, left),
        characters.contains(texts, left, right),
        characters.starts_with(texts, left, right),
        characters.ends_with(texts, left, right),
    )


def joined(texts: int, left: int, right: int) -> int:
    return int(characters.join(texts, left, right))


ask, join = kernel_of(asked, False), kernel_of(joined, False)


def codes_of(pool: StringPool, *texts: str) -> list[int]:
    return [int(code) for code in pool.intern(pa.array(texts, pa.string()))]


def agrees(pool: StringPool, left: str, right: str) -> bool:
    one, other = codes_of(pool, left, right)
    order, *found = ask(pool.reach(), one, other)
    expected = len(left), right in left, left.startswith(right), left.endswith(right)
    return tuple(found) == expected and (order < 0, order == 0) == (left < right, left == right)


@pytest.mark.parametrize("left", EDGES)
def test_edge_texts_are_as_in_python(left: str) -> None:
    pool = StringPool()
    assert [right for right in EDGES if not agrees(pool, left, right)] == []


@given(left=TEXTS, right=TEXTS)
def test_any_texts_are_as_in_python(left: str, right: str) -> None:
    assert agrees(StringPool(), left, right)


@given(left=TEXTS, right=TEXTS, is_known=st.booleans())
def test_a_text_that_is_made_has_the_code_of_the_same_text_from_elsewhere(
    left: str, right: str, is_known: bool
) -> None:
    pool = StringPool()
    one, other = codes_of(pool, left, right)
    before = codes_of(pool, left + right) if is_known else []
    made = int(join(pool.reach(), one, other))
    assert before in ([], [made])
    assert codes_of(pool, left + right) == [made] and pool.text(made) == left + right
    pool.settle()
    assert pool.text(made) == left + right and codes_of(pool, left + right) == [made]


def test_a_made_text_is_made_of_others_and_asked_before_the_pool_has_it() -> None:
    pool = StringPool()
    one, other = codes_of(pool, "ab", "cd")
    texts, known = pool.reach(), pool.count
    both = join(texts, one, other)
    order, length, *found = ask(texts, join(texts, both, one), both)
    assert (order > 0, length, *found) == (True, 6, True, True, False)
    assert pool.count == known


def twins() -> tuple[str, str]:
    """Two texts with one hash: the second half of one undoes what its first half changed."""

    def after(word: int) -> int:
        value = 0x51ED270B9F2D6C3B ^ (16 * 0x9E3779B97F4A7C15 % 2**64)
        value = (value ^ word) * 0x9E3779B97F4A7C15 % 2**64
        return value ^ (value >> 29)

    first = int.from_bytes(b"00000000", "little")
    for number in range(100_000):
        other = int.from_bytes(f"{number:08}".encode(), "little")
        rest = after(first) ^ after(other) ^ int.from_bytes(b"11111111", "little")
        if other != first and not rest & 0x8080808080808080:
            return "0" * 8 + "1" * 8, f"{number:08}" + rest.to_bytes(8, "little").decode()
    raise AssertionError("no twins")


@pytest.mark.parametrize("is_first_made", [True, False])
def test_texts_with_one_hash_are_told_apart_also_when_one_is_made(is_first_made: bool) -> None:
    first, second = twins()
    assert text_code(first) == text_code(second)
    pool = StringPool()
    halves = codes_of(pool, first[:8], first[8:], second[:8], second[8:])
    texts = pool.reach()
    one = int(join(texts, *halves[:2])) if is_first_made else codes_of(pool, first)[0]
    other = int(join(texts, *halves[2:]))
    assert one != other and join(texts, *halves[2:]) == other
    pool.compact([])  # neither may be forgotten: a code could then come to mean another text
    assert [pool.text(one), pool.text(other)] == [first, second]
    assert codes_of(pool, second, first) == [other, one]


def test_threads_that_make_the_same_texts_get_the_same_codes() -> None:
    pool = StringPool()
    parts = codes_of(pool, *(f"part {number};" for number in range(40)))
    texts, found = pool.reach(), [dict[tuple[int, int], int]() for _ in range(4)]

    def work(mine: dict[tuple[int, int], int]) -> None:
        for one in parts:
            for other in parts:
                mine[one, other] = int(join(texts, one, other))

    join(texts, parts[0], parts[0])  # it is compiled now
    threads = [threading.Thread(target=work, args=[mine]) for mine in found]
    for thread in threads:
        thread.start()
    extra = [codes_of(pool, f"part {number};part 0;") for number in range(40)]
    for thread in threads:
        thread.join()
    assert all(mine == found[0] for mine in found)
    assert extra == [[found[0][one, parts[0]]] for one in parts]
    made = np.array(list(found[0].values()))
    expected = [pool.text(one) + pool.text(other) for one, other in found[0]]
    assert pool.texts(made).to_pylist() == expected


def test_what_is_made_and_not_used_is_forgotten() -> None:
    pool = StringPool()
    one, other = codes_of(pool, "one", "other")
    kept = join(pool.reach(), one, other)
    for number in range(100_000):
        join(pool.reach(), kept, codes_of(pool, str(number % 100))[0])
    pool.compact([np.array([kept])])
    assert pool.count == 3 and pool.text(int(kept)) == "oneother"  # with those of booleans


def test_a_code_without_a_text_is_a_bug_that_says_so() -> None:
    pool: Any = StringPool()
    with pytest.raises(RuntimeError, match="please report it"):
        ask(pool.reach(), 12345, 0)
