"""The commands of `headgate`, each a few lines over the part that does the work.

Invariant: a HeadgateError ends a command with one clear message and exit code 1, no traceback.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from headgate import durability
from headgate.cli import output, stores, study_commands
from headgate.cli.study_commands import extra
from headgate.durability import CommitInfo
from headgate.durability.format import VERSION as STORE_FORMAT
from headgate.durability.manifest import version_at
from headgate.durability.reader import stored_names
from headgate.errors import HeadgateError
from headgate.query.store_tables import read_table, tables_of

UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class _Commands(TyperGroup):
    """The group of commands; what Headgate refuses is a message here, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadgateError as error:
            output.say_error(str(error))
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # Whoever read our output has enough, as in `headgate sql ... | head`.
            sys.stderr.close()
            raise typer.Exit(0) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

study_commands.add_to(app)

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

    All but the demo, migrate and reshard only read. They work beside a running writer.
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
        str | None,
        typer.Argument(
            metavar="[QUERY]",
            help="One SELECT, in DuckDB's SQL; without it a shell opens.",
            show_default=False,
        ),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(help="The tables as they were at this epoch.", show_default=False)
    ] = None,
    form: Annotated[
        output.Format, typer.Option("--format", help="How the answer is written.")
    ] = output.Format.table,
    by: Annotated[
        stores.By | None,
        typer.Option(help="Who answers; by default Spark of large tables in shards, else DuckDB."),
    ] = None,
) -> None:
    """Query a store's tables at one epoch, the newest by default; without a query in a shell.

    The name [bold]results[/bold] stands for the results of all transactions up to that epoch.

    [bold]Examples[/bold]

        headgate sql bank
        headgate sql bank "select sum(balance) from accounts"
        headgate sql bank --epoch 12 "select * from accounts where id = 7"
        headgate sql bank "select reason, count(*) from results group by reason"
        headgate sql bank --format csv "select * from accounts" > accounts.csv
        headgate sql bank --by spark "select count(*) from accounts"
    """
    if query is None:
        stores.require_store(store)
        extra("prompt_toolkit", "shell")
        import_module("headgate.cli.shell").run(store, form, epoch)
        return
    output.write(stores.ask(store, query, epoch, by).arrow(), form)


@app.command()
def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE_OR_APP",
            help="A store's folder, or an engine: package.module:engine, bank.py:engine.",
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(help="Tokens, one on a line, maybe with the time each expires."),
    ] = None,
    no_token: Annotated[bool, typer.Option("--no-token", help="Take everyone.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that clients may call the server by; * for any."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may ask: https://example.org.")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20,
    query_seconds: Annotated[float, typer.Option(help="How long a query may take.")] = 30.0,
    query_memory: Annotated[int, typer.Option(min=1, help="MiB that a query may take.")] = 1024,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of an answer.")] = 100_000,
) -> None:
    """Serve an engine, or a store that another process writes, over HTTP.

    A token is made and shown once, unless a file has them. A store is only read; an engine also
    runs its transactions. The document of all addresses is at /openapi.json.

    [bold]Examples[/bold]

        headgate serve bank --port 8000
        headgate serve bank.py:engine --token-file tokens.txt
    """
    server = extra("headgate.web.server", "serve")
    limits = import_module("headgate.web.limits").Limits(
        body_bytes_max=max_body,
        query_seconds_max=query_seconds,
        query_memory_bytes=query_memory << 20,
        rows_max=max_rows,
    )
    hosts, origins = tuple(allow_host or ()), tuple(allow_origin or ())
    settings = server.Settings(host, port, token_file, not no_token, limits, hosts, origins)
    server.serve(import_module("headgate.web.target").open_target(target), settings, typer.echo)


@app.command()
def tables(store: Store) -> None:
    """List a store's tables and streams of results.

    [bold]Examples[/bold]

        headgate tables bank
    """
    found = stores.open_store(store)
    epoch = found.last_epoch()
    declarations = tables_of(found, epoch)
    sides = {"table": "left", "columns": "left", "key": "left", "check": "left"}
    is_bound = any(map(_constraints, declarations.values()))
    sides |= {"declares": "left"} if is_bound else {}
    grid = output.make_grid(f"Tables at epoch {epoch}", {**sides, "rows": "right"})
    for name, declared in declarations.items():
        key = declared["key"]
        rows = read_table(found, name, epoch, columns=key).num_rows
        words = [name, declared["columns"], ", ".join(key), declared.get("check") or ""]
        words += [_constraints(declared)] if is_bound else []
        grid.add_row(*words, f"{rows:,}")
    console = output.make_console()
    console.print(grid)
    streams = output.make_grid("Results", {"transaction": "left", "columns": "left"})
    for name, declared in found.declared(epoch).get("streams", {}).items():
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
    commits = deque(found.commits(), maxlen=last)
    changes = stores.changes_of(found)
    ran = stores.nodes_ran(found, [info.epoch for info in commits])
    for info in commits:
        names = stored_names(version_at(found.manifest, info.epoch))
        rows = {name: count for name, count in info.rows.items() if not name.startswith("__")}
        named = {names.get(name, name): count for name, count in rows.items() if count}
        changed = ", ".join(f"{table} {count:,}" for table, count in named.items())
        source = changes.get(info.epoch) or _source(info, ran.get(info.epoch))
        columns = (_time(info.time_us), source, changed, f"{info.result_rows:,}")
        grid.add_row(str(info.epoch), *columns, f"{info.bytes:,}")
    output.make_console().print(grid)


def _constraints(declared: Mapping[str, Any]) -> str:
    """What a table promises over several rows, and what is kept beside them, in a few words."""
    found = [f"unique ({', '.join(columns)})" for columns in declared.get("unique", ())]
    for columns, parent in declared.get("references", ()):
        found.append(f"({', '.join(columns)}) references {parent}")
    found += [f"index ({', '.join(columns)})" for columns in declared.get("index", ())]
    found += [f"{word} {declared[word]}" for word in ("history", "expires") if declared.get(word)]
    return "; ".join(found)


def _time(time_us: int) -> str:
    moment = datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _source(info: CommitInfo, ran: str | None) -> str:
    """Who brought the epoch: a query's micro-batch, nodes of a dataflow, a call to the engine."""
    if info.origin is None:
        is_load = info.rows and not info.result_rows
        named = "load" if is_load else "run, call or flush"
    else:
        query, batch = info.origin
        if query.startswith("dataflow "):  # and its nodes
            return f"dataflow {ran}" if ran else f"{query}, batch {batch}"
        short = UUID.sub(lambda found: found[1], query)
        named = f"query {short}, batch {batch}"
    return f"{named}; dataflow {ran}" if ran else named


@app.command()
def verify(store: Store) -> None:
    """Check every byte of a store's log and snapshots; exit code 1 when some are damaged.

    Nothing is changed and no lock is taken. It says what is lost and what can be read.

    [bold]Examples[/bold]

        headgate verify bank
    """
    stores.require_store(store)
    report = durability.verify(store)
    stores.show_report(output.make_console(), report, str(store))
    if not report.is_whole:
        raise typer.Exit(1)


@app.command()
def migrate(
    store: Store,
    migrations: Annotated[
        str,
        typer.Argument(
            metavar="MIGRATIONS",
            help="A list of hg.Migration: package.module:migrations, bank.py:migrations.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would happen; nothing is touched.")
    ] = False,
) -> None:
    """Change the declarations of a store by migrations it has not seen, each as one epoch.

    Rows are tested first, and those that break a new check or constraint are named. A dry run
    works beside a running writer; to apply them, stop it.

    [bold]Examples[/bold]

        headgate migrate bank changes.py:migrations --dry-run
        headgate migrate bank changes.py:migrations
    """
    from headgate.cli.migration import run_migration

    stores.require_store(store)
    run_migration(store, migrations, dry_run)


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


@app.command()
def reshard(
    store: Store,
    shards: Annotated[
        int, typer.Option(min=0, help="How many; 0 for one process.", show_default=False)
    ],
    to: Annotated[
        Path | None,
        typer.Option(help="Change a copy in this new folder, and leave the store as it is."),
    ] = None,
    shard_by: Annotated[
        list[str] | None, typer.Option(help="table=column, for columns of its key: c or c,d.")
    ] = None,
    replicate: Annotated[
        list[str] | None, typer.Option(help="A table that every shard has all rows of.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would happen; nothing is touched.")
    ] = False,
) -> None:
    """Put a store's rows into another number of shards, or back into one process, as one epoch.

    All epochs before it stay as they are. Stop the program that writes first.

    [bold]Examples[/bold]

        headgate reshard bank --shards 16 --dry-run
        headgate reshard bank --shards 16 --shard-by accounts=bank --replicate rates
        headgate reshard bank --shards 0
    """
    stores.require_store(store)
    change = import_module("headgate.shards.resharding").reshard
    placed = stores.placed_columns(shard_by or ())
    given = {"to": to, "shard_by": placed, "replicate": replicate or (), "dry_run": dry_run}
    found = change(store, shards, **given)
    output.make_console().print(str(found), markup=False, highlight=False, soft_wrap=True)


def _say_copied(copied: durability.Copied) -> None:
    output.make_console().print(
        f"{copied.path}: epochs {copied.first_epoch} to {copied.last_epoch}, "
        f"{output.amount_of_bytes(copied.log_bytes)} of log"
    )
