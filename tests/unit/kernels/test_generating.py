"""What is generated for one set of transactions, and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import headgate
import headgate as hg
from headgate.kernels import frame
from headgate.kernels.generating import Generator
from headgate.kernels.generating_look_ups import moving_indexes
from tests.unit.kernels.sample import SAMPLE, generated

KERNELS = Path(headgate.__file__).parent / "kernels"
WRITERS = {
    "generating.py",
    "generating_look_ups.py",
    "generating_units.py",
    "constraints.py",
}


def test_the_sample_is_what_is_generated() -> None:
    message = "the generated text has changed: see it, then python -m tests.unit.kernels.sample"
    assert SAMPLE.read_text() == generated(), message


def test_kernels_are_functions_but_for_what_is_generated() -> None:
    """Text with a compiled function in it stands in the generator alone."""
    found = {
        path.name
        for path in KERNELS.glob("*.py")
        if re.search(r'("""|\'\'\'|")@(njit|linked|templated|compiled_apart)', path.read_text())
    }
    assert found <= WRITERS


def test_every_word_that_a_kernel_names_is_at_its_place() -> None:
    places = {name.upper(): place for place, name in enumerate(frame.OF_BATCH)}
    named = {name: getattr(frame, name) for name in places if hasattr(frame, name)}
    assert len(named) > 60
    assert all(places[name] == place for name, place in named.items())


def test_only_who_may_move_a_row_within_an_index_notes_that() -> None:
    """Keeping an index in step costs nothing where only other columns change."""
    rows = hg.Table("rows", "id bigint, shelf int, n bigint", key="id", index="shelf")

    @hg.transaction(event="id bigint, shelf int")
    def count(event, row=rows.at("id")):
        row.n += 1

    @hg.transaction(event="id bigint, shelf int")
    def move(event, row=rows.at("id"), others=rows.where("shelf", mode="read")):
        row.shelf = event.shelf
        row.n += len(others)

    signatures = [count.signature, move.signature]
    text = Generator(signatures, [rows], moving=moving_indexes(signatures)).source()
    steps = re.split(r"^def (?=\w+\()", text, flags=re.MULTILINE)
    found = {step.split("(")[0] for step in steps if "note_moved(" in step or "is_full(" in step}
    assert found == {"step_1", "ranges_1"}
