"""What is generated for one set of transactions, and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import headgate
from headgate.kernels import frame
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
        if re.search(r'("""|\'\'\'|")@(njit|linked|templated)', path.read_text())
    }
    assert found <= WRITERS


def test_every_word_that_a_kernel_names_is_at_its_place() -> None:
    places = {name.upper(): place for place, name in enumerate(frame.OF_BATCH)}
    named = {name: getattr(frame, name) for name in places if hasattr(frame, name)}
    assert len(named) > 60
    assert all(places[name] == place for name, place in named.items())
