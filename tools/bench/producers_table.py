"""Producers and readers that follow them, at the same time: 1, 2 and 3 of each, as threads and as processes.

Each producer has its own log, and each log one reader, which gets a Record for each record with its CRC checked. As
threads they all share one store: a topic with a partition for each producer. As processes each producer has its own
store, since a log has one writer; each reader opens that store for reading only.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import kstore
from tools.bench.logs import VALUE_SIZE, fresh
from tools.bench.measure import MILLION, Run, percentile, rows_as_table
from tools.bench.producers_child import READY, TOPIC, Span, follow, produce

# Where the package of these tools is imported from.
ROOT = Path(__file__).resolve().parents[2]
COUNTS = (1, 2, 3)
RECORDS_EACH = 400_000
ROUNDS_MAX = 3


class Rates(NamedTuple):
    """Records per second of all producers together, and of all readers together."""

    sent: float
    read: float


def producers(run: Run, records_each: int = RECORDS_EACH, counts: Sequence[int] = COUNTS) -> str:
    """The table; each figure is the median of some rounds."""
    rows = [("", "M records/s sent", "MB/s sent", "M records/s read", "MB/s read")]
    ways: tuple[tuple[str, Callable[[Run, int, int], Rates]], ...] = (
        ("threads", with_threads),
        ("processes", with_processes),
    )
    for what, measured in ways:
        for count in counts:
            taken = [measured(run, count, records_each) for _ in range(min(run.rounds, ROUNDS_MAX))]
            medians = [percentile([rates[which] for rates in taken], 0.5) for which in (0, 1)]
            name = f"{count} producer{'s'[: count > 1]} and {count} reader{'s'[: count > 1]}, {what}"
            rows.append((name, *_told(medians[0]), *_told(medians[1])))
    return rows_as_table(rows)


def _told(rate: float) -> tuple[str, str]:
    return f"{rate / MILLION:.2f}", f"{rate * VALUE_SIZE / MILLION:,.0f}"


def with_threads(run: Run, count: int, records_each: int) -> Rates:
    with fresh(run.root, "producers") as path, kstore.open(path, durability="os") as store:
        store.create_topic(TOPIC, count)
        barrier = threading.Barrier(2 * count)
        spans: dict[tuple[str, int], Span] = {}

        def note(what: str, number: int, work: Callable[[], Span]) -> None:
            spans[what, number] = work()

        threads = [
            threading.Thread(target=note, args=(what, number, work))
            for number in range(count)
            for what, work in (
                ("sent", partial(produce, store, number, records_each, barrier.wait)),
                ("read", partial(follow, store, number, records_each, barrier.wait)),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return _rates(spans, count * records_each)


def with_processes(run: Run, count: int, records_each: int) -> Rates:
    with fresh(run.root, "producers") as path:
        path.mkdir()
        for number in range(count):
            with kstore.open(path / str(number), durability="os") as store:
                store.create_topic(TOPIC, 1)
                store.log(TOPIC)
        children = {
            (what, number): _child(what, path / str(number), records_each)
            for number in range(count)
            for what in ("sent", "read")
        }
        for child in children.values():
            assert child.stdout is not None
            assert child.stdout.readline() == READY, "a process did not start"
        for child in children.values():
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        spans = {}
        for key, child in children.items():
            output, _ = child.communicate()
            assert child.returncode == 0, f"the process {key} failed"
            started, ended = map(float, output.split())
            spans[key] = Span(started, ended)
    return _rates(spans, count * records_each)


def _child(what: str, path: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.bench.producers_child", what, str(path.absolute()), str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _rates(spans: dict[tuple[str, int], Span], records: int) -> Rates:
    sent, read = (
        span_rate([span for (which, _), span in spans.items() if which == what], records) for what in ("sent", "read")
    )
    return Rates(sent, read)


def span_rate(spans: Sequence[Span], records: int) -> float:
    """Records a second from the first start to the last end."""
    return records / (max(span.ended for span in spans) - min(span.started for span in spans))
