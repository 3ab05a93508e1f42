"""`./run bench NAME`: run one benchmark, or list them."""

from __future__ import annotations

import argparse
import importlib
import inspect

BENCHMARKS = {
    "ledger": "transfers through the engine beside the bare loop, durable, on Spark",
    "start": "from an empty and from a full compile cache to the first committed batch",
    "durability": "sync, group and none; snapshots beside the stream; reopening",
    "queries": "readers beside the stream, isolation, and the bank beside its peers, with a report",
    "server": "calls over HTTP beside a bare echo of the same server",
    "schemes": "every scheme over the papers' applications, sweeps and phases, with a report",
    "access": "keys computed from rows beside virtual operations; then ranges and windows",
    "cores": "cheap transfers on virtual cores, by plans of all threads, checked on two",
    "dataflow": "what a node costs a batch; weak beside strong; the leaderboard beside PostgreSQL",
    "latency": "how long a batch is on its way through a dataflow, by how workers run it",
    "ranges": "ranges beside point reads, and what it costs to keep an index",
    "cluster": "shards on two executors beside the driver's engine and a bare shuffle",
    "simulate": "every strategy on virtual cores, checked against one and two threads",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    lines = "\n".join(f"  {name:10} {what}" for name, what in BENCHMARKS.items())
    parser.epilog = f"benchmarks:\n{lines}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", nargs="?", default="ledger", choices=BENCHMARKS)
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    parser.add_argument("--out", metavar="FOLDER", help="for the report, where there is one")
    chosen = parser.parse_args()
    main = importlib.import_module(f"bench.{chosen.name}").main
    places = {} if chosen.out is None else {"out": chosen.out}
    if places and "out" not in inspect.signature(main).parameters:
        parser.error(f"--out: the benchmark {chosen.name!r} writes no report")
    main(quick=chosen.quick, **places)


if __name__ == "__main__":
    main()
