"""How functions are cut into operations, and which stay whole."""

from __future__ import annotations

from typing import Any

import pytest
from numba.core.compiler import run_frontend

import headgate as hg
from headgate.compiling.slicing import Cut, Slicing, slice_transaction

rows = hg.Table("rows", "id bigint, x bigint, y bigint", key="id")
notes = hg.Table("notes", "id bigint, n bigint", key="id")
EVENT = "a bigint, b bigint, c bigint, by bigint, ids array<bigint>"


def cut(function: Any) -> Slicing:
    return slice_transaction(hg.transaction(event=EVENT)(function).signature)


def shape(slicing: Slicing) -> dict[str, tuple[str, bool]]:
    """Written parameters -> (parameters read, whether it is the head)."""
    return {
        " ".join(sorted(one.writes)): (" ".join(sorted(one.reads)), one.is_head)
        for one in slicing.slices
    }


def test_a_transfer_needs_each_row_once() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b")):
        if a.x < event.by:
            return hg.abort("low")
        a.x -= event.by
        b.x += event.by

    assert shape(cut(f)) == {"a": ("a", True), "b": ("b", False)}


def test_a_value_of_another_row_is_a_parametric_dependency() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b"), c=notes.at("c", mode="read")):
        share = a.x // 2 + c.n
        b.x += share

    assert shape(cut(f)) == {"b": ("a b c", True)}


def test_a_row_written_before_it_is_read_brings_what_it_was_written_from() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b"), c=notes.at("c")):
        a.x = c.n
        b.x = a.x
        c.n += 1

    assert shape(cut(f)) == {"a": ("a c", True), "b": ("a b c", False), "c": ("c", False)}


def kept_calls(function: Any, writes: str) -> int:
    """How often a slice calls `costly`, which the function calls once for each row."""
    signature = hg.transaction(event=EVENT)(function).signature
    roles = {parameter.name: parameter.stands_for for parameter in signature.parameters}
    part = next(one for one in slice_transaction(signature).slices if one.writes == {writes})
    func_ir = run_frontend(signature.function)
    Cut(roles, part).apply(func_ir)
    text = "".join(str(line) for block in func_ir.blocks.values() for line in block.body)
    return text.count("global(costly")


def costly(value: int) -> int:
    return value * 3


def test_a_condition_on_a_row_does_not_bring_what_is_written_to_it_later() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b")):
        if a.x < event.by or b.x < event.by:
            return hg.abort("low")
        a.x = costly(a.x)
        b.x = costly(b.x)

    assert shape(cut(f)) == {"a": ("a b", True), "b": ("b", False)}
    assert kept_calls(f, "a") == 1
    assert kept_calls(f, "b") == 1


def test_a_condition_counts_for_what_it_decides_only() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b"), c=notes.at("c")):
        if a.x > 3:
            b.x += 1
        c.n += 1
        a.y += 1

    found = shape(cut(f))
    assert found["b"][0] == "a b"
    assert found["c"][0] == "c"
    assert found["a"][0] == "a"


def test_the_output_and_the_aborts_are_the_heads() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b"), out=hg.output("z bigint")):
        if b.x < 0:
            return hg.abort("b")
        a.x += 1
        b.x += 1
        out.z = b.x

    assert shape(cut(f)) == {"a": ("a", False), "b": ("b", True)}


def test_a_loop_over_rows_is_one_operation() -> None:
    def f(event, each=rows.each("ids"), c=notes.at("c")):
        for row in each:
            row.x += event.by
        c.n += len(each)

    assert shape(cut(f)) == {"each": ("each", True), "c": ("c", False)}


def test_rows_handed_to_a_function_are_read_and_written() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b"), c=notes.at("c")):
        level(a, b)
        c.n += 1

    assert shape(cut(f)) == {"a b": ("a b", True), "c": ("c", False)}


def level(one: Any, other: Any) -> None:
    one.x = other.x


def test_what_the_user_states_is_added() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b", reads="a")):
        if a.x < event.by:
            return hg.abort("low")
        a.x -= event.by
        b.x += event.by

    assert shape(cut(f))["b"] == ("a b", False)


def test_a_row_nobody_reads_must_still_be_there() -> None:
    def f(event, a=rows.at("a"), c=notes.at("c", mode="read")):
        a.x += 1

    assert shape(cut(f)) == {"a": ("a c", True)}


def test_code_without_effect_may_still_raise() -> None:
    def f(event, a=rows.at("a"), b=rows.at("b"), c=notes.at("c", mode="read")):
        unused = 1 // c.n  # noqa: F841
        a.x += 1
        b.x += 1

    heads = [one for one in cut(f).slices if one.is_head]
    assert "c" in heads[0].reads


def while_loop(event, a=rows.at("a"), b=rows.at("b")):
    while a.x < event.by:
        a.x += 1
    b.x += 1


def listed(event, a=rows.at("a"), b=rows.at("b")):
    found = [a.x, b.x]
    b.x = found[0]
    a.x = found[1]


def maybe(event, a=rows.at("a"), b=rows.at("b")):
    b.x += 1
    a.x += 1
    return hg.abort("no") if a.x > 3 else None


@pytest.mark.parametrize(
    ("function", "why", "hangs"),
    [(while_loop, "while", True), (listed, "build_list", False), (maybe, "abort or not", False)],
)
def test_what_stays_whole_says_why(function: Any, why: str, hangs: bool) -> None:
    found = cut(function)
    assert len(found.slices) == 1
    assert found.slices[0].writes == {"a", "b"}
    assert found.whole is not None
    assert why in found.whole
    assert found.may_hang is hangs
