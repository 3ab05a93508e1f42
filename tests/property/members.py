"""Members of the family: a transaction in both forms, and the list of them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import headgate as hg


@dataclass(frozen=True)
class Member:
    """One transaction in both forms, with the tables it needs."""

    compiled: Any
    interpreted: Any
    order_by: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.compiled.name)

    @property
    def tables(self) -> tuple[hg.Table, ...]:
        return tuple(self.compiled.signature.tables)

    def form(self, compiled: bool) -> Any:
        return self.compiled if compiled else self.interpreted


FAMILY: dict[str, Member] = {}


def member(event: str, *order_by: str) -> Callable[[Callable[..., Any]], Member]:
    """Declare the function in both forms and add it to the family."""

    def declare(function: Callable[..., Any]) -> Member:
        both = [hg.transaction(event=event, compiled=form)(function) for form in (True, False)]
        FAMILY[function.__name__] = Member(both[0], both[1], order_by)
        return FAMILY[function.__name__]

    return declare
