"""Runs the benchmarks and prints a page of their results.

Run as ``python -m tools.bench``; ``--help`` shows the options. It writes to the current directory, which should be on a
real disk.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.bench.aio_group_lines import aio_group
from tools.bench.aio_lines import aio, aio_loop
from tools.bench.append_lines import append_many, append_one, append_peers
from tools.bench.arrow_lines import arrow
from tools.bench.backup_lines import backup, backup_beside, replicator_beside
from tools.bench.compaction_lines import compaction, compaction_beside
from tools.bench.comparison import comparison
from tools.bench.consumer_lines import consumer
from tools.bench.durable_lines import durable, durable_grouped, durable_slow_disk
from tools.bench.growth_lines import growth, second_lookups
from tools.bench.lookup_lines import lookup
from tools.bench.machine import machine_words
from tools.bench.measure import Line, Run
from tools.bench.memory_lines import memory
from tools.bench.open_lines import recovery, segments
from tools.bench.process_lines import follow, shared
from tools.bench.producer_lines import producer_latency, producer_send
from tools.bench.producer_memory import producer_memory
from tools.bench.producer_peer_lines import producer_peers, producer_peers_synced
from tools.bench.producers_table import producers
from tools.bench.queue_lines import queue, queues
from tools.bench.read_lines import read, read_producers, read_small, read_values
from tools.bench.report import report
from tools.bench.shared_queue_lines import shared_queue
from tools.bench.spark_growth_lines import spark_growth
from tools.bench.spark_lines import spark
from tools.bench.spark_write_lines import spark_write
from tools.bench.store_lines import retention, store
from tools.bench.upkeep_lines import roll, upkeep

SECTIONS: dict[str, tuple[Callable[[Run], list[Line]], ...]] = {
    "Append": (append_many, append_one, append_peers, durable, durable_grouped, durable_slow_disk, roll),
    "Read": (read, read_values, read_small, read_producers, arrow, lookup),
    "Open, recover, check": (segments, recovery, upkeep, store, retention),
    "Back up": (backup, backup_beside, replicator_beside),
    "Compact": (compaction, compaction_beside),
    "Memory": (memory, producer_memory),
    "Produce": (producer_send, producer_latency, producer_peers, producer_peers_synced),
    "Consume": (consumer,),
    "Growth": (growth, second_lookups),
    "Queue": (queue, shared_queue),
    "asyncio": (aio, aio_loop, aio_group),
    "Several processes": (follow, shared),
    "Spark": (spark, spark_write, spark_growth),
}
LINES = {function.__name__: function for functions in SECTIONS.values() for function in functions}
TABLES: dict[str, Callable[[Run], str]] = {function.__name__: function for function in (producers, comparison, queues)}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the benchmarks to run; all by default")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument("--rounds", type=int, default=7, help="how many times each figure is measured (default: 7)")
    parser.add_argument(
        "--spark-gib", type=float, default=1.0, metavar="GIB", help="how large Spark's log grows (default: 1; try 10)"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page to FILE too")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in (*LINES, *TABLES)]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join((*LINES, *TABLES))}")
    return args


def main() -> None:
    args = parse_args()
    names = args.names or [*LINES, *TABLES]
    if args.list:
        sys.stdout.write("\n".join(names) + "\n")
        return
    lines: dict[str, list[Line]] = {}
    tables: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kstore-bench-", dir=".") as directory:
        run = Run(Path(directory), args.rounds, args.spark_gib)
        machine = machine_words(run.root)  # first: the load is that before the run
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            if name in TABLES:
                tables[name] = TABLES[name](run)
            else:
                lines[name] = LINES[name](run)
        sections = {
            heading: [line for function in functions for line in lines.get(function.__name__, ())]
            for heading, functions in SECTIONS.items()
        }
        page = report(machine, sections, tables)
    sys.stdout.write(page)
    if args.write is not None:
        args.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
