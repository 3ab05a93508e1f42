"""Errors: one tree, one class per action, and they cross processes."""

from __future__ import annotations

import copy
import pickle

import pytest

import headgate as hg
from headgate import errors

ALL = [
    found
    for found in vars(errors).values()
    if isinstance(found, type)
    and issubclass(found, Exception)
    and found.__module__ == errors.__name__
]
PARENTS = {
    hg.InputError: (hg.HeadgateError, ValueError),
    hg.DeclarationError: (hg.HeadgateError, ValueError),
    hg.StoreError: (hg.HeadgateError,),
    hg.LockedError: (hg.StoreError,),
    hg.FormatError: (hg.StoreError,),
    hg.DamageError: (hg.HeadgateError,),
    hg.InvariantError: (hg.HeadgateError,),
}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_and_copying(kind: type[hg.HeadgateError]) -> None:
    error = kind("table 't': something is wrong; mend it")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.args == error.args


@pytest.mark.parametrize("kind", PARENTS, ids=lambda kind: kind.__name__)
def test_an_error_is_caught_by_what_the_tree_says(kind: type[Exception]) -> None:
    assert kind.__bases__ == PARENTS[kind]  # type: ignore[index]


def test_every_error_is_public_and_in_the_tree_of_the_docstring() -> None:
    for kind in ALL:
        assert getattr(hg, kind.__name__) is kind
        assert kind.__name__ in str(errors.__doc__)
        assert kind.__doc__


def test_a_broken_invariant_asks_for_a_report() -> None:
    with pytest.raises(hg.InvariantError, match=r"slot 5 is twice.*bug in Headgate, please report"):
        errors.check_invariant(False, "slot 5 is twice")
    errors.check_invariant(True, "never seen")


def test_a_raised_error_of_an_engine_pickles_as_it_is() -> None:
    with pytest.raises(hg.InputError) as raised:
        hg.open(None).sql("select * from nowhere")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
