"""Stores as the commands see them: opened to read, and what is said of one that was examined.

Reading needs no writer and disturbs none. `headgate verify` says what the examination found and
what the owner of the store can do next.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from headgate.cli.output import amount_of_bytes, numbers, say_note, visible
from headgate.durability import Report, StoreReader
from headgate.durability.format import MANIFEST_NAME
from headgate.errors import InputError
from headgate.query.answer import Answer
from headgate.query.sql import check_query
from headgate.query.store_tables import (
    checked_epoch,
    named_tables,
    query_store,
    tables_of,
    too_large_at,
)


def open_store(path: Path) -> StoreReader:
    """Open a store to read; InputError when there is none."""
    require_store(path)
    return StoreReader.open(path)


def require_store(path: Path) -> None:
    """InputError that says where there is a store, or how to make one, unless one is here."""
    if (path / MANIFEST_NAME).exists():
        return
    inside = sorted(found.parent for found in path.glob(f"*/{MANIFEST_NAME}"))
    if inside:
        advice = f"did you mean {inside[0]}?"
    elif path.exists():
        advice = "the folder holds no store; check the path"
    else:
        advice = "check the path, or make a store with hg.open(path, ...) or `headgate demo`"
    raise InputError(f"there is no store at {os.path.abspath(path)}: {advice}")


class By(StrEnum):
    """Who answers a query."""

    duckdb = "duckdb"
    spark = "spark"


def ask(path: Path, query: str, epoch: int | None, by: By | None) -> Answer:
    """What a query finds in a store, by DuckDB, or by Spark where its tables are large ones in
    shards; then standard error says why, so that the answer can go on in a pipe."""
    check_query(query, None)
    store = open_store(path)
    if by is None:
        at = checked_epoch(store, epoch)
        named = named_tables(store, query, epoch)
        tables = [name for name in tables_of(store, at) if name.lower() in named]
        why = too_large_at(store, tables, at)
        if why is not None:
            say_note(f"Spark SQL answers: {why}; --by duckdb reads them all the same")
            by = By.spark
    if by is By.spark:
        answer: Answer = import_module("headgate.spark.asking").ask_store(store, query, epoch)
        return answer
    return query_store(store, query, None, epoch)


def placed_columns(given: Iterable[str]) -> dict[str, str]:
    """What `--shard-by` says: by table, its columns."""
    found = {}
    for one in given:
        table, equals, columns = one.partition("=")
        if not (table and equals and columns):
            raise InputError(f"--shard-by {one}: it is table=column, such as accounts=bank")
        found[table] = columns
    return found


def changes_of(reader: StoreReader) -> dict[int, str]:
    """Epochs that changed the declarations of a store, and what each of them was, in words."""
    declared = reader.declared()
    found = {
        version["since"]: f"reshard to {version.get('shards') or 'one process'}"
        for version in (*reader.manifest.get("past", ()), declared)
        if "since" in version
    }
    return found | {
        one["epoch"]: f"migration {one['name']}" for one in declared.get("migrations", ())
    }


def nodes_ran(reader: StoreReader, epochs: Sequence[int]) -> dict[int, str]:
    """By epoch: which nodes of dataflows ran in it, and which of their batches, where the results
    say so; several executions may share an epoch."""
    flows = reader.declared().get("dataflows", {}).values()
    nodes = {name for flow in flows for name in flow["nodes"]}
    if not nodes or not epochs:
        return {}
    ran: dict[int, dict[str, list[int]]] = {}
    for epoch, results in reader.results(epochs[0], epochs[-1]):
        if "batch" not in results.schema.names:
            continue
        names = results.column("transaction").cast(pa.string()).to_pylist()
        for name, batch in zip(names, results.column("batch").to_pylist(), strict=True):
            if name in nodes and batch is not None:
                ran.setdefault(epoch, {}).setdefault(name, []).append(batch)
    return {
        epoch: "; ".join(f"{name}, {_batches(of_it)}" for name, of_it in found.items())
        for epoch, found in ran.items()
    }


def _batches(numbers: Sequence[int]) -> str:
    first, last = min(numbers), max(numbers)
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def show_report(console: Console, report: Report, store: str) -> None:
    """Print the findings, then the verdict; `store` is the path as the user wrote it."""
    for name, value in _facts(report):
        console.print(Text.assemble((f"{name:<10}", "dim"), visible(value)), soft_wrap=True)
    for damage in report.damages:
        console.print(
            Text.assemble((f"{'damaged':<10}", "bold red"), visible(damage)), soft_wrap=True
        )
    style = "green" if report.is_whole else "bold red"
    word = "whole" if report.is_whole else "DAMAGED"
    console.print(
        Text.assemble((f"{word}: ", style), visible(verdict(report, store))), soft_wrap=True
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    published = "not readable" if report.published is None else f"epoch {report.published}"
    log = (
        f"{report.segments} segment(s), {len(report.epochs):,} whole epochs, "
        f"{amount_of_bytes(report.log_bytes)}"
    )
    return [
        ("store", f"{report.path}, {report.tables} table(s)"),
        ("published", published),
        ("log", log),
        ("snapshots", f"at epoch {numbers(report.snapshots)}" if report.snapshots else "none"),
        *([("parts", f"{report.parts:,} whole")] if report.parts else []),
        ("tail", _tail(report)),
    ]


def _tail(report: Report) -> str:
    """What lies behind the published epoch; none of it was ever acknowledged."""
    parts = []
    if report.unpublished:
        parts.append(f"epoch {numbers(report.unpublished)} whole and not yet published")
    if report.torn is not None:
        name = os.path.basename(report.torn.file)
        parts.append(
            f"unfinished bytes in {name} from offset {report.torn.offset} on: being written now, "
            "or cut off when the store is next opened; no commit was acknowledged there"
        )
    return "; ".join(parts) or "nothing behind it"


def verdict(report: Report, store: str) -> str:
    """One sentence or two: what opening gives, what is lost, what can be read."""
    readable, last = report.readable, report.last_epoch
    is_here = readable[-1:] == [last]
    opens = is_here or last in report.partless
    if report.is_whole:
        return f"opening the store gives epoch {max([last, *report.unpublished])}, nothing is lost"
    said = []
    if report.lost:
        said.append(f"the changes and results of epoch {numbers(report.lost)} are lost")
    if report.is_mixed:
        said.append("the store is refused until the files that do not belong here are taken out")
        return "; ".join(said)
    if report.partless:
        said.append(f"parts with rows of epoch {numbers(report.partless)} are damaged or missing")
    if is_here:
        said.append(f"opening the store gives epoch {last}, the newest one")
    elif opens:
        said.append(
            f"opening the store gives epoch {last}, where what needs these rows fails: restore it "
            "from a backup"
        )
    else:
        said.append("opening the store to write is refused: restore it from a backup")
    if readable and readable != [0] and report.published is not None:
        said.append(f"the tables can be read at epoch {numbers(readable)}")
        example = f'headgate sql {store} --epoch {readable[-1]} "select ..."'
        said[-1] += "" if is_here else f", the newest with: {example}"
    elif not is_here:
        said.append("no epoch can be read")
    return "; ".join(said)
