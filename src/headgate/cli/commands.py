"""The commands of `headgate`, each a few lines over the part that does the work.

Invariant: a HeadgateError ends a command with one clear message and exit code 1, no traceback.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from headgate import durability
from headgate.cli import output, stores
from headgate.durability import CommitInfo
from headgate.durability.format import VERSION as STORE_FORMAT
from headgate.errors import HeadgateError

UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class _Commands(TyperGroup):
    """The group of commands; what Headgate refuses is a message here, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadgateError as error:
            say_error(str(error))
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # Whoever read our output has enough, as in `headgate sql ... | head`.
            sys.stderr.close()
            raise typer.Exit(0) from None


def say_error(message: str) -> None:
    """One line on standard error; what DuckDB draws below its messages is left out."""
    lines = message.partition("\n\nLINE ")[0].split("\n")
    message = " ".join(line.strip() for line in lines if line.strip())
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("[bold red]error:[/bold red]", end=" ")
    console.print(message, markup=False)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Store = Annotated[
    Path, typer.Argument(metavar="STORE", help="The folder of the store.", show_default=False)
]

Target = Annotated[
    Path, typer.Argument(metavar="TO", help="The folder of the copy.", show_default=False)
]


def _show_version(wanted: bool) -> None:
    if wanted:
        # By name: the package's front door is above every layer, and its version is there.
        version = import_module("headgate").__version__
        typer.echo(f"headgate {version} (store format {STORE_FORMAT})")
        raise typer.Exit


@app.callback()
def headgate(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """ACID transactions over streams: the demo, and a look into stores.

    All but the demo only read. They work beside a running writer.
    """


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option(help="Where its events, its store and its checkpoint go.")
    ] = Path("demo-data"),
    events: Annotated[int, typer.Option(min=1000, help="How many events.")] = 500_000,
    files: Annotated[
        int, typer.Option(min=2, help="In how many files they come: one micro-batch each.")
    ] = 12,
) -> None:
    """Streaming Ledger on a real Spark query, interrupted and started again. Needs Java 17.

    [bold]Examples[/bold]

        headgate demo
        headgate demo --folder somewhere --events 100000
    """
    from headgate.cli.demo import run_demo

    run_demo(Console(highlight=False), folder, events, files)


@app.command()
def sql(
    store: Store,
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="One SELECT, in DuckDB's SQL.", show_default=False),
    ],
    epoch: Annotated[
        int | None, typer.Option(help="The tables as they were at this epoch.", show_default=False)
    ] = None,
    form: Annotated[
        output.Format, typer.Option("--format", help="How the answer is written.")
    ] = output.Format.table,
) -> None:
    """Query a store's tables at one epoch, the newest by default.

    The name [bold]results[/bold] stands for the results of all transactions up to that epoch.

    [bold]Examples[/bold]

        headgate sql bank "select sum(balance) from accounts"
        headgate sql bank --epoch 12 "select * from accounts where id = 7"
        headgate sql bank "select reason, count(*) from results group by reason"
        headgate sql bank --format csv "select * from accounts" > accounts.csv
    """
    output.write(stores.query(stores.open_store(store), query, epoch).arrow(), form)


@app.command()
def tables(store: Store) -> None:
    """List a store's tables and streams of results.

    [bold]Examples[/bold]

        headgate tables bank
    """
    found = stores.open_store(store)
    epoch = found.last_epoch()
    sides = {"table": "left", "columns": "left", "key": "left", "check": "left", "rows": "right"}
    grid = output.make_grid(f"Tables at epoch {epoch}", sides)
    for name, declared in stores.tables_of(found).items():
        key = declared["key"]
        rows = found.table(name, epoch, columns=key).num_rows
        check = declared.get("check") or ""
        grid.add_row(name, declared["columns"], ", ".join(key), check, f"{rows:,}")
    console = output.make_console()
    console.print(grid)
    streams = output.make_grid("Results", {"transaction": "left", "columns": "left"})
    for name, declared in found.manifest.get("streams", {}).items():
        streams.add_row(name, declared["results"])
    if streams.row_count:
        console.print(streams)


@app.command()
def log(
    store: Store,
    last: Annotated[int, typer.Option(min=1, help="How many epochs, the newest ones.")] = 20,
) -> None:
    """List the epochs of a store: when, from where, rows changed, results and bytes.

    [bold]Examples[/bold]

        headgate log bank
        headgate log bank --last 100
    """
    found = stores.open_store(store)
    sides = {"epoch": "right", "time (UTC)": "left", "source": "left", "rows changed": "left"}
    grid = output.make_grid(None, {**sides, "results": "right", "bytes": "right"})
    for info in deque(found.commits(), maxlen=last):
        changed = ", ".join(f"{table} {count:,}" for table, count in info.rows.items() if count)
        columns = (_time(info.time_us), _source(info), changed, f"{info.result_rows:,}")
        grid.add_row(str(info.epoch), *columns, f"{info.bytes:,}")
    output.make_console().print(grid)


def _time(time_us: int) -> str:
    moment = datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _source(info: CommitInfo) -> str:
    """Who brought the epoch: a query's micro-batch, or a call to the engine."""
    if info.source is None:
        return "run or call" if info.result_rows else "load"
    query, batch = info.source
    short = UUID.sub(lambda found: found[1], query)
    return f"query {short}, batch {batch}"


@app.command()
def verify(store: Store) -> None:
    """Check every byte of a store's log and snapshots; exit code 1 when some are damaged.

    Nothing is changed and no lock is taken. It says what is lost and what can be read.

    [bold]Examples[/bold]

        headgate verify bank
    """
    from headgate.cli.verdict import show

    stores.require_store(store)
    report = durability.verify(store)
    show(output.make_console(), report, str(store))
    if not report.is_whole:
        raise typer.Exit(1)


@app.command()
def backup(store: Store, to: Target) -> None:
    """Copy a store consistently, also while a program writes to it.

    [bold]Examples[/bold]

        headgate backup bank bank-copy
    """
    stores.require_store(store)
    _say_copied(durability.backup(store, to))


@app.command()
def restore(
    store: Store,
    epoch: Annotated[int, typer.Option(help="The epoch that the new store ends with.")],
    to: Annotated[Path, typer.Option(help="The folder of the new store.")],
) -> None:
    """Make a new store from a past epoch; the old one is left as it is.

    [bold]Examples[/bold]

        headgate restore bank --epoch 12 --to bank-12
    """
    stores.require_store(store)
    _say_copied(durability.restore(store, epoch, to))


def _say_copied(copied: durability.Copied) -> None:
    output.make_console().print(
        f"{copied.path}: epochs {copied.first_epoch} to {copied.last_epoch}, "
        f"{output.amount_of_bytes(copied.log_bytes)} of log"
    )
