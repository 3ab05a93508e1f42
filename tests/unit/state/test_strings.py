"""The string pool against a dict: one code for one text, also when hashes collide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.state import strings
from headgate.state.strings import CODE_MASK, StringPool, text_code

TEXTS = st.one_of(
    st.sampled_from(["", "a", "b", "ab", "exactly8", "nine bytes", "ä", "\x00", "\x00\x00"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


def interned(pool: StringPool, texts: list[str | None]) -> list[int]:
    return [int(code) for code in pool.intern(pa.array(texts, pa.string()))]


@given(batches=st.lists(st.lists(TEXTS, max_size=20), max_size=5))
def test_a_code_stands_for_one_text_and_a_text_for_one_code(batches: list[list[str]]) -> None:
    pool, codes = StringPool(), dict[str, int]()
    for texts in batches:
        for text, code in zip(texts, interned(pool, texts), strict=True):
            assert codes.setdefault(text, code) == code
    assert len(set(codes.values())) == len(codes)
    back = pool.texts(np.array(list(codes.values()), np.int64))
    assert back.to_pylist() == list(codes) and back.type == pa.string()


@given(texts=st.lists(TEXTS, max_size=10))
def test_a_literals_code_is_known_without_the_pool(texts: list[str]) -> None:
    assert interned(StringPool(), texts) == [text_code(text) for text in texts]


def test_the_empty_text_and_null_are_code_zero() -> None:
    pool = StringPool()
    assert interned(pool, ["", None]) == [0, 0]
    assert pool.text(0) == ""


FORMS = {
    "large": lambda texts: pa.array(texts, pa.large_string()),
    "view": lambda texts: pa.array(texts, pa.string_view()),
    "dictionary": lambda texts: pa.array(texts).dictionary_encode(),
    "slice": lambda texts: pa.array(["x", "y", *texts, "z"])[2:-1],
    "dictionary with unused values": lambda texts: pa.DictionaryArray.from_arrays(
        pa.array([1, 2, None, 1]), ["unused", *texts[:2]]
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_arrow_form_of_texts_gives_the_same_codes(form: str) -> None:
    texts = ["red", "a longer text than eight", None, "red"]
    pool = StringPool()
    expected = interned(pool, texts)
    assert [int(code) for code in pool.intern(FORMS[form](texts))] == expected


def test_the_pool_grows_past_its_first_size() -> None:
    pool = StringPool()
    texts = [f"text number {number} with some length" for number in range(20_000)]
    codes = pool.intern(pa.array(texts))
    assert len(np.unique(codes)) == len(texts)
    assert pool.texts(codes).to_pylist() == texts


def test_an_unknown_code_is_a_bug_that_says_so() -> None:
    with pytest.raises(hg.InvariantError, match=r"no text for the code.*please report it"):
        StringPool().text(12345)


# --- compaction -----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    texts=st.lists(TEXTS, max_size=30),
    used=st.sets(st.integers(0, 29)),
    literals=st.lists(TEXTS, max_size=3),
    later=st.lists(TEXTS, max_size=10),
)
def test_compaction_keeps_what_is_used_and_all_literals(
    texts: list[str], used: set[int], literals: list[str], later: list[str]
) -> None:
    pool = StringPool()
    pool.add_literals(literals)
    codes = np.array(interned(pool, texts), np.int64)
    kept = codes[[place for place in used if place < len(texts)]]
    pool.compact([kept[::2], kept[1::2]])
    expected = [texts[place] for place in used if place < len(texts)]
    assert pool.texts(kept).to_pylist() == expected
    known = {*expected, *literals} - {""}
    assert pool.count == len(known)
    for text, code in zip(later, interned(pool, later), strict=True):
        assert code == text_code(text) and pool.text(code) == text
    assert [pool.text(text_code(literal)) for literal in literals] == literals


# --- collisions -----------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2, int(CODE_MASK)])
def colliding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text hashes to the parameter or, half of them, to the code after it."""

    def hashed(data: Any, start: int, end: int) -> np.int64:
        following = (int(data[start]) & 1) if request.param != int(CODE_MASK) else 0
        return np.int64(request.param + following)

    monkeypatch.setattr(strings, "hash_bytes", hashed)
    monkeypatch.setattr(strings, "_plain_hash", lambda data: int(hashed(data, 0, len(data))))
    # The compiled function has the true hash inside; its Python form takes the one above.
    monkeypatch.setattr(strings, "_intern", strings._intern.py_func)


@pytest.mark.usefixtures("colliding")
@settings(max_examples=40)
@given(
    batches=st.lists(st.lists(TEXTS, max_size=8), min_size=1, max_size=4),
    used=st.sets(st.integers(0, 7)),
)
def test_texts_with_one_hash_are_told_apart(batches: list[list[str]], used: set[int]) -> None:
    pool, codes = StringPool(), dict[str, int]()
    for texts in batches:
        found = interned(pool, texts)
        for text, code in zip(texts, found, strict=True):
            assert codes.setdefault(text, code) == code
        kept = np.array([found[place] for place in used if place < len(found)], np.int64)
        pool.compact([kept])
        # Codes of colliding texts are never given to another text, compacted or not.
        codes = {text: code for text, code in codes.items() if _is_known(pool, code)}
        assert [pool.text(code) for code in codes.values()] == list(codes)
    assert len(set(codes.values())) == len(codes)


def _is_known(pool: StringPool, code: int) -> bool:
    try:
        pool.text(code)
    except hg.InvariantError:
        return False
    return True


@pytest.mark.usefixtures("colliding")
def test_two_literals_with_one_hash_are_refused() -> None:
    pool = StringPool()
    with pytest.raises(hg.InvariantError, match="two literals share a hash: 'cc'"):
        pool.add_literals(["aa", "cc"])
