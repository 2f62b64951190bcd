"""The same files dumped by Kafka's DumpLogSegments and by ``kstore dump-log``, to be compared byte by byte."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.interop import java

DUMP_SECONDS_MAX = 240

LOG_MODES = ((), ("--print-data-log",), ("--deep-iteration",), ("--print-data-log", "--skip-record-metadata"))
INDEX_MODES = ((), ("--verify-index-only",), ("--index-sanity-check",))
GAPS_HEADING = "Non-consecutive offsets in "
TIMES_HEADING = "Found timestamp mismatch in "
EMPTIED = re.compile(r"  Index timestamp: \d+, log timestamp: -1")
GAP = re.compile(r"  (-?\d+) is followed by (\d+)")
PLAIN_MODES: tuple[tuple[str, ...], ...] = ((),)
MODES_BY_SUFFIX: dict[str, tuple[tuple[str, ...], ...]] = {
    ".log": LOG_MODES,
    ".index": INDEX_MODES,
    ".timeindex": INDEX_MODES,
    ".txnindex": PLAIN_MODES,
    ".snapshot": PLAIN_MODES,
}


class Run(NamedTuple):
    """One run of a dump tool: a file, and the options besides ``--files``."""

    path: Path
    options: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.path.name, *self.options])

    @property
    def arguments(self) -> list[str]:
        return ["--files", str(self.path), *self.options]


class Printed(NamedTuple):
    """What a run printed on its two streams, and the exception that ended it ("" if none)."""

    out: bytes
    err: bytes
    threw: str


def runs_over(directory: Path) -> list[Run]:
    """Every run for the files of a partition directory, ordered by name."""
    files = sorted(path for path in directory.iterdir() if path.suffix in MODES_BY_SUFFIX)
    return [Run(path, options) for path in files for options in MODES_BY_SUFFIX[path.suffix]]


def kafka_dumps(java_path: str, jars: Path, runs: Sequence[Run], work: Path) -> dict[Run, Printed]:
    """Kafka's output for each run, all in one JVM; ``work`` is an empty folder for it. Raises: java.ProgramError.

    Kafka's tool may change what it dumps (it cuts a ragged index): give it copies.
    """
    targets = {run: work / str(number) for number, run in enumerate(runs)}
    lines = ("\t".join([str(target), *run.arguments]) for run, target in targets.items())
    java.run(java_path, jars, "Dump.java", lines, seconds=DUMP_SECONDS_MAX)
    return {run: _printed(target) for run, target in targets.items()}


def unexpected_reports(err: bytes, offsets: Sequence[int]) -> list[str]:
    """The lines of a standard error that report a fault in a log whose records have ``offsets`` (ascending).

    Omits true gaps in the offsets, and a defect of Kafka's tool: its deep iteration starts with "-1 is followed
    by N" in every segment whose first record is not offset 0.
    """
    lines = err.decode().splitlines()
    return [line for line in lines if not (_is_gap(line, offsets) or line.startswith(GAPS_HEADING))]


def without_emptied(reports: list[str]) -> list[str]:
    """Reports of a compacted log, except those of time index entries that lead to an emptied batch.

    Kafka's tool treats such a batch, whose header keeps a time, as one without a time, even in a broker's own logs.
    """
    lines = [line for line in reports if not EMPTIED.fullmatch(line)]
    return [] if all(line.startswith(TIMES_HEADING) for line in lines) else lines


def _is_gap(line: str, offsets: Sequence[int]) -> bool:
    match = GAP.fullmatch(line)
    if match is None:
        return False
    before, behind = int(match[1]), int(match[2])
    return before == -1 or (bisect_right(offsets, before) == bisect_left(offsets, behind) and before < behind)


def _printed(target: Path) -> Printed:
    threw = Path(f"{target}.threw")
    return Printed(
        Path(f"{target}.out").read_bytes(),
        Path(f"{target}.err").read_bytes(),
        threw.read_text(encoding="utf-8") if threw.exists() else "",
    )
