"""Outputs: the columns a transaction adds to its results."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.state.schema import Schema


@dataclass(frozen=True)
class Output:
    """The columns a transaction adds to its results."""

    schema: Schema
