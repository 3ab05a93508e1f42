"""Texts that kernels look into and make: the oracle's, by every scheme, on several threads."""

from __future__ import annotations

import enum
import operator
import random
import types
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.compiling.texts import TEXT_BUILTINS, TEXT_OPERATORS
from headgate.engine import memory
from headgate.execution import program
from headgate.kernels import building
from headgate.parallel.scheme import KINDS
from headgate.state.characters import TextWindow
from headgate.state.strings import StringPool
from headgate.testing import SerialOracle, difference, results_difference
from tests.property.test_wide import WAYS
from tests.unit.state.test_characters import EDGES, twins

SCHEMES = [name for name in KINDS if name != "nolock"]  # it is wrong by design
SCHEMES += ["strata-operation-lazy", "depth-chain-eager", "ready-operation-eager"]
notes = hg.Table(
    "notes",
    "name string, note string DEFAULT 'n', last string, n bigint",
    key="name",
    check="length(note) <= 60 and note not like 'zz%' and last <= '\U0010ffff'",
)


def shorter(one, other):
    return one if len(one) < len(other) else other


def written(event, row=notes.at("name", create=True), other=notes.at("other", create=True),
            out=hg.output("both string, is_first boolean, n bigint")):  # fmt: skip
    if event.text in row.note and len(event.text) > 2:
        return hg.abort(f"known: {event.text}/{row.last}, {row.n} times")
    row.note += "," + event.text
    row.last = max(row.last, other.note, shorter(event.text, "m"))
    if other.note.startswith(row.note) or other.note.endswith((event.text, "n")):
        other.last = row.note + event.name
    other.n += len(row.note)
    out.both = min(row.note, other.note) + "\x00" + event.text
    out.is_first = row.note < other.note
    out.n = 100 // event.by


EVENT = "name string, other string, text string, by bigint"
write = hg.transaction(event=EVENT)(written)


def events_of(seed: int, count: int, zeros: float = 0.0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    texts = [text for text in EDGES if len(text) < 100] + ["aba", "zz", "other text", "n"]
    return [
        {
            "name": draw.choice(texts),
            "other": draw.choice(texts),
            "text": draw.choice([*texts, f"text {draw.random()}"]),
            "by": 0 if draw.random() < zeros else 3,
        }
        for _ in range(count)
    ]


def compared(form: Any, batches: list[list[dict[str, Any]]], **options: Any) -> list[str | None]:
    """The differences between an engine and the oracle, batch by batch and at the end."""
    oracle = SerialOracle([notes])
    with hg.open(None, tables=[notes], transactions=[form]) as engine:
        found = [
            results_difference(engine.run(form, batch, **options), oracle.run(form, batch))
            for batch in batches
        ]
        return [*found, difference(engine, oracle)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_scheme" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("long")
        metafunc.parametrize("any_scheme", SCHEMES if is_long else WAYS)


@pytest.mark.parametrize("zeros", [0.0, 0.02])
def test_every_scheme_gives_the_oracles_texts(any_scheme: str, zeros: float) -> None:
    scheme = any_scheme
    batches = [events_of(seed, 120, zeros) for seed in range(3)]
    for threads in (1, 2, 4) if scheme not in ("serial", "lock", "timestamp") else (1,):
        assert compared(write, batches, scheme=scheme, threads=threads) == [None] * 4


def test_the_batches_have_texts_that_are_made_aborts_checks_and_errors() -> None:
    with hg.open(None, tables=[notes], transactions=[write]) as engine:
        results = [engine.run(write, events_of(seed, 120, 0.02)) for seed in range(3)]
    reasons = set(pa.concat_tables(results).column("reason").to_pylist())
    starts = {str(reason).split(":")[0] for reason in reasons}
    assert {"known", "check failed", "error", "None"} <= starts


def test_calls_runs_and_plain_functions_share_the_texts_that_were_made() -> None:
    plain = hg.transaction(event=EVENT, compiled=False, name="plain")(written)
    oracle = SerialOracle([notes])
    with hg.open(None, tables=[notes], transactions=[write, plain]) as engine:
        for seed in range(4):
            events = events_of(seed, 20)
            one, other = (plain, write) if seed % 2 else (write, plain)
            assert results_difference(engine.run(one, events), oracle.run(one, events)) is None
            for event in events[:5]:
                (expected,) = oracle.run(other, [event])
                assert results_difference([dict(engine.call(other, **event))], [expected]) is None
        assert difference(engine, oracle) is None


odd = hg.Table("odd", "startswith bigint, label string", key="startswith")
other_module = types.ModuleType("other_module")
other_module.startswith = lambda number: number % 2 == 0  # type: ignore[attr-defined]


def every(*texts):
    found = ""
    for text in texts:
        found = found + text
    return found


def between(text, least, most):
    return least <= text < most


def gathered(
    event,
    row=odd.at("startswith"),
    out=hg.output("all string, n bigint, is_between boolean, start bigint"),
):
    total = ""
    for place, part in enumerate(event.parts):
        if part > total or place == len(event.parts) - 1:
            total += part
    for part, number in zip(event.parts, event.numbers, strict=False):
        total = max(total, part) + ("odd" if number % 2 else "even")
    out.all = every(total, "|", row.label)
    out.n = len(total) + len(event.parts)
    out.is_between = between(total, most="o", least="e") and "b" in total and event.numbers[0] > 1
    out.start = row.startswith
    row.label = every(row.label, total) if other_module.startswith(len(total)) else total


def test_texts_go_through_loops_other_functions_keywords_and_columns_named_as_methods() -> None:
    form = hg.transaction(event="startswith bigint, parts array<string>, numbers array<int>")(
        gathered
    )
    draw = random.Random(1)
    texts = [text for text in EDGES if len(text) < 100]
    events = [
        {
            "startswith": draw.randrange(4),
            "parts": [draw.choice(texts) for _ in range(draw.randrange(5))],
            "numbers": [draw.randrange(5) for _ in range(draw.randrange(5))],
        }
        for _ in range(200)
    ]
    oracle = SerialOracle([odd])
    with hg.open(None, tables=[odd], transactions=[form]) as engine:
        rows = [{"startswith": number, "label": ""} for number in range(3)]
        for target in (engine, oracle):
            target.load(odd, rows)
        assert results_difference(engine.run(form, events), oracle.run(form, events)) is None
        assert difference(engine, oracle) is None


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


def coloured(event, row=notes.at("name", create=True)):
    row.note = Colour.RED.name + event.text
    row.last = Colour.BLUE.name if len(event.text) > 1 else "none"


def doubled(event, row=notes.at("name", create=True)):
    text, sides = event.text, ""
    for _ in range(event.by):
        text = text + text
        sides = f"{text}|"
    if event.by == 23:
        return hg.abort(f"{sides}{text}")
    row.n = len(text)


def test_a_text_that_grows_beyond_16_mib_aborts_its_event_in_every_form() -> None:
    """One event that doubles a text for ever must not stop the engine or take its memory."""
    texts = [("ab", 22), ("ab", 23), ("ab", 24), ("é", 60), ("", 60), ("a" * (17 << 20), 0)]
    events = [
        {"name": str(place), "other": "", "text": text, "by": by}
        for place, (text, by) in enumerate(texts)
    ]
    limit = "error: ValueError: a function makes no text of more than 16 MiB"
    for form in (
        hg.transaction(event=EVENT, compiled=is_compiled) for is_compiled in (True, False)
    ):
        double = form(doubled)
        oracle = SerialOracle([notes], [double])
        wanted = oracle.run(double, events)
        with hg.open(None, tables=[notes], transactions=[double]) as engine:
            assert results_difference(engine.run(double, events), wanted) is None
            assert difference(engine, oracle) is None
        assert [one["reason"] for one in wanted] == [None, limit, limit, limit, None, None]


def test_the_name_of_an_enumeration_is_a_text_like_any_other() -> None:
    form = hg.transaction(event=EVENT)(coloured)
    assert compared(form, [events_of(1, 30)]) == [None] * 2


def lost(event, row=notes.at("name", create=True), out=hg.output("note string")):
    row.note += event.text
    row.last = row.note + row.last
    try:
        if event.by == 0:
            raise ValueError("inner")
        out.note = row.last + event.other
    except Exception:
        raise ValueError("outer")  # noqa: B904


def test_an_event_that_the_interpreter_takes_over_finds_the_texts_that_the_kernel_made() -> None:
    batches = [events_of(seed, 60, 0.2) for seed in range(3)]
    assert compared(hg.transaction(event=EVENT)(lost), batches) == [None] * 4


def joined(event, row=notes.at("name", create=True), out=hg.output("both string, is_same boolean")):
    row.note = event.text + event.other
    out.both = row.note
    out.is_same = row.note == row.last
    row.last = row.note


@pytest.mark.parametrize("is_turned", [False, True])
def test_made_texts_with_one_hash_stay_apart_whichever_came_first(is_turned: bool) -> None:
    pairs = [(text[:8], text[8:]) for text in twins()]
    if is_turned:
        pairs.reverse()
    events = [
        {"name": name, "other": last, "text": first, "by": 1}
        for name in ("one", "other")
        for first, last in [*pairs, *pairs[::-1]]
    ]
    form = hg.transaction(event=EVENT)(joined)
    assert compared(form, [events, events]) == [None] * 3
    batches = [[event] for event in events]
    assert compared(form, batches) == [None] * (len(events) + 1)


def test_texts_that_were_made_and_are_used_no_more_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "POOL_SLACK", 1000)
    form = hg.transaction(event=EVENT)(joined)
    with hg.open(None, tables=[notes], transactions=[form]) as engine:
        for batch in range(30):
            events = {
                "name": ["one"] * 500,
                "other": [str(number) for number in range(500)],
                "text": [f"{batch}:"] * 500,
                "by": [1] * 500,
            }
            found = engine.run(form, pa.table(events))
            assert found.column("both").to_pylist() == [f"{batch}:{n}" for n in range(500)]
            assert engine._memory.pool.count < 5000


# --- canaries -------------------------------------------------------------------------------------


# Nothing of these two is compiled, so they show in the kernel that all other tests have.


def _never_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StringPool, "_take_made", lambda self, newest: None)


def _never_shown(patch: pytest.MonkeyPatch) -> None:
    """What is interned later is in arrays that kernels do not see."""
    shown = TextWindow.show
    patch.setattr(
        TextWindow, "show", lambda self, arrays: None if self._past else shown(self, arrays)
    )


BESIDE_KERNELS = {
    "what kernels made is not taken over": _never_taken,
    "what the pool gets later is not shown": _never_shown,
}
IN_KERNELS = {
    "less is less or equal": (TEXT_OPERATORS, operator.lt, TEXT_OPERATORS[operator.le]),
    "a part is looked for the other way round": (
        TEXT_OPERATORS, operator.contains, TEXT_OPERATORS[operator.ge]
    ),
    "the least is the greatest": (TEXT_BUILTINS, min, TEXT_BUILTINS[max]),
}  # fmt: skip


def is_caught(form: Any, **options: Any) -> bool:
    many = {"name": [f"name {number}" for number in range(3000)], "other": ["a"] * 3000}
    table = pa.table({**many, "text": many["name"], "by": [1] * 3000})
    try:
        batches = [events_of(1, 100), table.to_pylist(), events_of(2, 100)]
        return any(compared(form, batches, **options))
    except (hg.InvariantError, RuntimeError):
        return True


@pytest.mark.parametrize("name", BESIDE_KERNELS)
def test_a_seeded_bug_beside_the_kernels_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BESIDE_KERNELS[name](monkeypatch)
    assert is_caught(write)


def brief(event, row=notes.at("name", create=True), other=notes.at("other", create=True),
          out=hg.output("both string, is_first boolean")):  # fmt: skip
    """As much of `written` as the seeded bugs are in: each of them has it compiled once more."""
    if event.text in row.note and len(event.text) > 2:
        return hg.abort(event.text)
    row.note += "," + event.text
    out.both = min(row.note, other.note)
    out.is_first = row.note < other.note


@pytest.mark.parametrize("name", IN_KERNELS)
def test_a_seeded_bug_in_a_kernel_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))  # what is compiled with the bug stays there
    monkeypatch.setattr(program, "build_kernel", building.build_kernel)
    table, place, other = IN_KERNELS[name]
    monkeypatch.setitem(table, place, other)  # type: ignore[arg-type]
    # The function is the same in the kernels of all schemes: one is compiled with the bug.
    assert is_caught(hg.transaction(event=EVENT)(brief), scheme="serial")


def test_without_a_seed_nothing_is_caught() -> None:
    assert not is_caught(write)
    assert not is_caught(hg.transaction(event=EVENT)(brief), scheme="serial")
