"""Binding: what is made anew for each program, and what all programs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headgate.kernels import explorations, in_place
from headgate.kernels.binding import bind
from headgate.state.compiled import linked


def bound() -> Mapping[str, Any]:
    """What a program that is not kept is bound to."""
    return bind([in_place, explorations], {}, "kernel", None)


def test_a_part_that_needs_nothing_of_a_program_is_made_once() -> None:
    one, other = bound(), bound()
    for name in ("finish", "is_run", "is_over", "next_stratum", "is_free"):
        assert one[name] is other[name]


def test_what_calls_the_pieces_of_a_program_and_every_kernel_is_its_own() -> None:
    one, other = bound(), bound()
    for name in ("attempt", "collect", "strata", "depth", "ready"):
        assert one[name] is not other[name]


def test_a_part_is_made_anew_when_what_it_names_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """So seeded faults come into kernels that are built from then on, and go again with them."""
    before = bound()
    monkeypatch.setattr(in_place, "add", linked(lambda address, place, more: 0))
    seeded = bound()
    assert seeded["finish"] is not before["finish"] and seeded["is_run"] is before["is_run"]
    monkeypatch.undo()
    assert bound()["finish"] is before["finish"]
