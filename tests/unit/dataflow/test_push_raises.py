"""An error of a wrong program says whether the rows of the push that it reaches were taken."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import SimulatedDisk

asked, passed = hg.Stream("asked_for", "k bigint"), hg.Stream("passed_on", "k bigint")
kept, other = hg.Table("kept", "k bigint", key="k"), hg.Table("other", "k bigint", key="k")
TAKEN = "are taken, and run when that is mended: do not hand them in again"


class Wrong:
    """A procedure that is wrong until it is mended."""

    def __init__(self, place: str) -> None:
        self.error: Any = None

        def give(batch: pa.Table, tx: hg.Tx) -> Any:
            if place == "first":
                self.fail(tx)
            return batch

        def keep(batch: pa.Table, tx: hg.Tx) -> None:
            if place == "second":
                self.fail(tx)
            tx.insert(kept, batch)

        first: Any = hg.procedure(asked, output=passed)(give)
        second: Any = hg.procedure(passed, writes=kept)(keep)
        self.said: Any = {"tables": [kept, other], "dataflows": hg.Dataflow("f", [first, second])}

    def fail(self, tx: hg.Tx) -> None:
        if self.error == "undeclared":
            tx.insert(other, [{"k": 1}])
        elif self.error is not None:
            raise self.error


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("place", ["first", "second"])
def test_rows_are_taken_while_a_batch_waits_for_its_program(place: str, recovery: Any) -> None:
    wrong, disk = Wrong(place), SimulatedDisk()
    engine = hg.open("/wrong", disk=disk, recovery=recovery, **wrong.said)
    wrong.error = "undeclared"
    for k in range(3):
        with pytest.raises(hg.DeclarationError, match=TAKEN) as raised:
            engine.push(asked, [{"k": k}])
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    wrong.error, disk = None, disk.after_kill()
    engine = hg.open("/wrong", disk=disk, recovery=recovery, **wrong.said)
    engine.push(asked, [{"k": 3}])
    assert engine.sql("select k from kept order by 1").rows() == [(k,) for k in range(4)]
    engine.close()


@pytest.mark.parametrize("place", ["first", "second"])
def test_an_interrupted_push_says_so_in_a_note(place: str) -> None:
    wrong = Wrong(place)
    with hg.open(None, **wrong.said) as engine:
        wrong.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt) as raised:
            engine.push(asked, [{"k": 1}])
        assert [TAKEN in one for one in raised.value.__notes__] == [True]
        wrong.error = None
        engine.push(asked, [{"k": 2}])
        assert engine.sql("select k from kept order by 1").rows() == [(1,), (2,)]


def test_rows_that_do_not_fit_are_told_as_they_were() -> None:
    with (
        hg.open(None, **Wrong("first").said) as engine,
        pytest.raises(hg.InputError, match=r"column 'k'") as raised,
    ):
        engine.push(asked, [{"z": 1}])
    assert "handed in" not in str(raised.value)
