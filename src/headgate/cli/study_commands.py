"""The commands that study: `simulate`, `design` and `calibrate`, each over the part that does it.

Invariant: nothing that a user has is changed by them but a file of costs and pages of drawings.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.errors import InputError

BATCH_EVENTS, CLUSTER_EVENTS = 10_240, 500_000


def add_to(app: typer.Typer) -> None:
    """Make them commands of this application."""
    for command in (simulate, design, calibrate):
        app.command()(command)


def extra(module: str, extra: str) -> Any:
    """A part that needs packages which are not installed with every Headgate."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "headgate":
            raise
        raise InputError(
            f"this needs the package {error.name}: install it with pip install 'headgate[{extra}]'"
        ) from None


App = Annotated[
    str | None,
    typer.Argument(
        metavar="APP", help="An engine: package.module:engine, bank.py:engine.", show_default=False
    ),
]
Events = Annotated[
    Path | None,
    typer.Argument(
        metavar="EVENTS", help="A Parquet, Arrow, CSV or JSON file.", show_default=False
    ),
]
Chosen = Annotated[
    str | None, typer.Option(help="Which one the events run; not needed where there is one.")
]
Order = Annotated[list[str] | None, typer.Option(help="The columns of the serial order.")]
Column = Annotated[str | None, typer.Option(help="The column that tells transactions apart.")]
Route = Annotated[
    list[str] | None, typer.Option(help="value=transaction, for each value of that column.")
]
Cost = Annotated[
    float | None, typer.Option(min=0.1, help="Of one operation; measured, if not given.")
]
Batch = Annotated[
    int | None,
    typer.Option(
        min=1, help="So many of the events; else 10,240, of a cluster 500,000.", show_default=False
    ),
]
Nodes = Annotated[
    str | None, typer.Option(help="Of a cluster, as 1,2,4,...,64: shards instead of threads.")
]
Cross = Annotated[str, typer.Option(help="With --nodes: shares of events over shards.")]
Skew = Annotated[str, typer.Option(help="With --nodes: Zipf exponents of rows.")]
Costs = Annotated[str, typer.Option(help="With --nodes: of one operation.")]
NodeCores = Annotated[int, typer.Option(min=1, help="With --nodes: of each.")]


def simulate(
    target: App = None,
    events: Events = None,
    transaction: Chosen = None,
    order_by: Order = None,
    route_by: Column = None,
    route: Route = None,
    cost_ns: Cost = None,
    batch_events: Batch = None,
    cores: Annotated[int, typer.Option(min=1, max=1024, help="The most cores.")] = 64,
    out: Annotated[Path, typer.Option(help="The page with the curves.")] = Path("simulation.html"),
    nodes: Nodes = None,
    cross: Cross = "0,0.01,0.2",
    skew: Skew = "0,1",
    cost_us: Costs = "0.1,5,50",
    node_cores: NodeCores = 1,
) -> None:
    """How fast a batch would run on 1 to 64 cores, by every strategy; or on so many nodes.

    The batch is planned and measured in a copy of the engine's rows in memory, then replayed on
    virtual cores with the costs that [bold]headgate calibrate[/bold] has measured here.

    With [bold]--nodes[/bold] an epoch is laid out over the nodes of a cluster instead, by what jobs
    and shuffles were measured to cost: drawn transfers, by their share over several shards, their
    skew and their cost, or the events of an engine, as its tables are declared.

    [bold]Examples[/bold]

        headgate simulate bank.py:engine transfers.parquet --order-by ts
        headgate simulate bank.py:engine events.csv --route-by kind --route t=transfer
        headgate simulate --nodes 1,2,4,...,64 --cross 0,0.2 --cost-us 10
        headgate simulate bank.py:engine transfers.parquet --nodes 1,2,4,...,64
    """
    from headgate.cli.cluster_studies import ClusterRequest, run_cluster_simulation
    from headgate.cli.studies import Request, run_simulation

    if target is None and nodes is None:
        raise InputError("give APP and EVENTS, or the sizes of a cluster: --nodes 1,2,4,...,64")
    count = batch_events or (BATCH_EVENTS if nodes is None else CLUSTER_EVENTS)
    request = None
    if target is not None:
        if events is None:
            raise InputError(f"which events does {target} run? Give a file of them behind it")
        request = Request(
            target, events, transaction, route_by, route or (), order_by or (), count, cost_ns
        )
    if nodes is not None:
        wanted = ClusterRequest.parsed(nodes, cross, skew, cost_us, node_cores, count)
        run_cluster_simulation(wanted, request, out)
    elif request is not None:
        run_simulation(request, cores, out)


def design(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE_OR_APP",
            help="A store's folder, or an engine: package.module:engine, bank.py:engine.",
            show_default=False,
        ),
    ],
    trace: Annotated[
        list[str] | None,
        typer.Option(
            help="Events: a file or folder, NAME=PATH, or a folder with one for each transaction; "
            "without it the results that the store has recorded.",
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(help="With a store: the program that has its transactions, as bank.py."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=256, help="That are to share the work.")] = 4,
    order_by: Order = None,
    batch_events: Annotated[int, typer.Option(min=1, help="Of an epoch.")] = 100_000,
    max_events: Annotated[int, typer.Option(min=1, help="So many of the trace.")] = 500_000,
    weights: Annotated[
        str, typer.Option(help="Of rows that are apart, of queues between workers, of uneven load.")
    ] = "2,1,3",
    out: Annotated[Path, typer.Option(help="The page with the drawing.")] = Path("design.html"),
) -> None:
    """How to declare tables for shards: by which columns, what to replicate, how many.

    From a sample of events it builds the graph of events and the rows that they name, and judges
    what can be declared by the shares of rows that are apart and by the load, beside what METIS
    reaches with rows placed one by one. Nodes of dataflows are dealt out to workers.

    [bold]Examples[/bold]

        headgate design bank.py:engine --trace transfers.parquet --nodes 4
        headgate design bank --program bank.py --trace deposit=in.csv --trace transfer=moves/
    """
    extra("pymetis", "design")
    from headgate.cli.designs import DesignRequest, parse_weights, run_design

    request = DesignRequest(
        target, program, trace or (), nodes, order_by or (), batch_events, max_events,
        parse_weights(weights),
    )  # fmt: skip
    run_design(request, out)


def calibrate(
    seconds: Annotated[
        float, typer.Option(min=0.0, help="How long each of a dozen batches is tried.")
    ] = 0.5,
) -> None:
    """Measure what planning, threads and aborts cost here, for the decision of each batch.

    It takes some seconds and wants an idle machine. Engines that start later use the costs.

    [bold]Examples[/bold]

        headgate calibrate
    """
    from headgate.cli.studies import run_calibration

    run_calibration(seconds)
