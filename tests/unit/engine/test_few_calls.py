"""The arrays in which few calls run are kept, and no run meets another in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headgate as hg
from headgate.engine.calls.answers import Answers, AnswerShape
from headgate.engine.calls.calling import Call
from headgate.engine.results import as_results, with_epoch
from headgate.state.strings import StringPool
from headgate.state.types import Column, ColumnType
from tests.unit.engine.test_calls import PROGRAM, contents, move, open_store


def test_a_call_of_a_signal_handler_does_not_meet_the_one_that_it_interrupts() -> None:
    with open_store(None) as engine:
        engine.call(move, src=0, dst=1, amount=0)
        terms, *_ = engine.calls._known[move]
        scheduler, nested = engine._batches._few_calls(terms)._scheduler, list[Any]()
        run = scheduler.run

        def interrupted(*given: Any) -> None:
            scheduler.run = run
            nested.append(engine.call(move, src=2, dst=3, amount=1))
            run(*given)

        scheduler.run = interrupted
        assert engine.call(move, src=0, dst=1, amount=5).left == 15
        assert nested[0].left == 19
        assert [row["balance"] for row in contents(engine)] == [15, 25, 19, 21]


@pytest.mark.parametrize("kind", ["timestamp", "date"])
@pytest.mark.parametrize("outcome", [0, 1])
def test_a_time_that_python_has_not_is_shown_as_arrow_shows_it(kind: str, outcome: int) -> None:
    shape = AnswerShape("f", [Column("at", ColumnType(kind))], StringPool())
    stored = np.array([2**62]) if kind == "timestamp" else np.array([2**30], np.int32)
    answers = Answers(shape, 1, [outcome], ["no" if outcome else None], [stored])
    if outcome:
        assert answers.results() == as_results(with_epoch(answers.batch(), 1))
        return
    with pytest.raises((OverflowError, ValueError)) as expected:
        as_results(with_epoch(answers.batch(), 1))
    with pytest.raises(type(expected.value), match=str(expected.value)):
        answers.results()


def test_the_results_of_calls_alone_and_together_are_in_the_log(tmp_path: Path) -> None:
    """What is the same in all of them is written without a look, for one and for several."""
    with open_store(tmp_path / "bank", durability="none") as engine:
        for count in (1, 3, 2, 1, 70):
            engine.call_all([Call(move, {"src": 0, "dst": 1, "amount": 0})] * count)
    with hg.open(tmp_path / "bank", **PROGRAM) as again:
        found = again.sql(
            'select epoch, position, transaction, outcome, reason, "left" from results '
            "where transaction = 'move' order by epoch, position"
        )
        places = [row[:2] for row in found.rows()]
        assert {row[2:] for row in found.rows()} == {("move", "committed", None, 20)}
    assert places == [(2 + epoch, place) for epoch, count in enumerate((1, 3, 2, 1, 70))
                      for place in range(count)]  # fmt: skip
