"""An access is a span: only those who judge ask for its form."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import headgate
from headgate.execution.spans import Spans

PACKAGE = Path(headgate.__file__).parent
# A new form of access touches these, after its declaration in state/table.py.
ASKS = {
    "testing/oracle.py",
    "testing/arrival.py",  # which of its events the oracle takes
}


def test_only_these_files_ask_for_the_form_of_an_access() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"(?<!self)\.form\b", path.read_text())
    }
    assert found == ASKS


def test_a_span_of_one_needs_no_offsets() -> None:
    one, many = Spans(3, 3, None), Spans(3, 4, np.array([0, 2, 2, 4]))
    assert [one.of(row) for row in range(3)] == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert [many.of(row) for row in range(3)] == [slice(0, 2), slice(2, 2), slice(2, 4)]
    assert (one.most, many.most) == (1, 2)
    assert (one.count(np.array([0, 2])), many.count(np.array([1, 2]))) == (2, 2)
    assert one.spread(np.array([7, 8, 9])).tolist() == [7, 8, 9]
    assert many.spread(np.array([7, 8, 9])).tolist() == [7, 7, 9, 9]
