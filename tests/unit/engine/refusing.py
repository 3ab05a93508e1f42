"""The tables of the tests of messages, and the one sentence of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
stock = hg.Table("stock", "sku string, house int, count bigint", key="sku, house")


def refusal(kind: type[hg.HeadgateError], attempt: Callable[[], Any]) -> str:
    """What the attempt is told, which must be refused by an error of just this class."""
    with pytest.raises(hg.HeadgateError) as refused:
        attempt()
    assert type(refused.value) is kind
    return str(refused.value)
