"""Flowing: streams of dataflows as far as a transaction that takes or gives one must know them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from headgate.errors import DeclarationError
from headgate.state.schema import Schema
from headgate.state.types import Column


@runtime_checkable
class DeclaredStream(Protocol):
    """A stream of a dataflow, as `hg.Stream` declares it."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def order_by(self) -> tuple[str, ...]: ...


def given_streams(
    given: Any, taken: DeclaredStream | None, columns: Iterable[Column], where: str
) -> tuple[DeclaredStream, ...]:
    """The streams that a transaction gives, each column of which is one of these."""
    found = () if given is None else (given,) if isinstance(given, DeclaredStream) else tuple(given)
    known = {column.name: column for column in columns}
    for stream in found:
        if taken is None or not isinstance(stream, DeclaredStream):
            raise DeclarationError(
                f"{where}: output= names the stream that its events flow on to, in a dataflow: "
                "give it event=stream, and hg.output(...) for columns of its results"
            )
        for column in stream.schema:
            _check_column(column, known.get(column.name), stream.name, where)
    return found


def _check_column(column: Column, source: Column | None, stream: str, where: str) -> None:
    if source is None or source.type != column.type:
        told = "has no such column" if source is None else f"has it as a {source.type}"
        raise DeclarationError(
            f"{where}: stream {stream!r} has a column {column.ddl!r}, and the transaction {told}: "
            "name it in hg.output(...) or in the event"
        )
    if source.nullable and not column.nullable:
        raise DeclarationError(
            f"{where}: column {column.name!r} may be null here, and not in stream {stream!r}: "
            "declare it NULL there"
        )
