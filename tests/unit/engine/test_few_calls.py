"""The arrays in which few calls run are kept, and no run meets another in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headgate.engine.calls.answers import Answers, AnswerShape
from headgate.engine.results import as_results, with_epoch
from headgate.state.strings import StringPool
from headgate.state.types import Column, ColumnType
from tests.unit.engine.test_calls import contents, move, open_store


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
