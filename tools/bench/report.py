"""The report of a run as Markdown: the machine, the lines, the comparison, and what was not reached."""

from __future__ import annotations

from collections.abc import Sequence

from tools.bench.measure import Line, table

__all__ = ["report"]

RERUN = """\
`make bench` prints this page (10 minutes on an idle machine, which it should be), and
`python -m tools.bench --write BENCHMARKS.md` writes it. `python -m tools.bench NAME...` runs some of it; `--list` names
them."""

HOW = """\
Values of 100 bytes, in the page cache. A figure and what stands beside it are taken in turn, round by round, so that a
slow spell of the machine hits both: the figure is the median of the rounds, a limit of the machine the upper quartile,
since a limit that stalls would flatter. "asked" is the project's own aim. The code is in `tools/bench/`."""

PRODUCERS = """\
Producers that send one by one, to delivery with `acks=1`, and readers that follow them at the same time; values of 100
bytes, in the page cache, nothing synced. Each producer has a log of its own, and each log one reader, which gets a
`Record` for each record, its CRC checked. As threads: one process, one store, a partition for each producer. As
processes: each producer has its own store, for a log has one writer, and each reader is a process that opens that
store for reading only. The rates are those of all producers, and of all readers, together; MB are of values."""

COMPARISON = """\
The same values, in the same order; it is checked that all of them come back. Synced: an append is on disk when it
returns. Not synced: nothing is. Each store is used by the fastest of its documented ways (`executemany` in one
transaction; `putmulti` with `append`; an iterator over all; a lookup that sees the newest records). kstore checks a CRC
with every read; SQLite, lmdb and the plain file check nothing. The plain file has no offsets and survives no torn
write: it is what the least code gets. On disk: blocks, after closing.

kstore is made to append and to read on. It pays in two places: a lookup reads and checks a whole batch, and a record
that is appended alone carries a batch header of 61 bytes, which costs each reader as much as a batch does."""


def report(
    machine: Sequence[tuple[str, str]], lines: Sequence[Line], *, producers: str = "", comparison: str = ""
) -> str:
    """The page; empty parts are omitted."""
    parts = ["# Benchmarks", RERUN, "## The machine", "\n".join(f"- {what}: {which}" for what, which in machine)]
    if lines:
        parts += ["## Beside the machine's own limit", HOW, table(lines), _missed(lines)]
    if producers:
        parts += ["## Producers beside readers", PRODUCERS, producers]
    if comparison:
        parts += ["## Beside other stores", COMPARISON, comparison]
    return "\n\n".join(parts) + "\n"


def _missed(lines: Sequence[Line]) -> str:
    missed = [line for line in lines if line.reached is False]
    if not missed:
        return "All that is asked was reached in this run."
    said = "\n".join(f"- {line.name}: {line.figure}, asked {line.asked} ({line.limit})" for line in missed)
    return f"Not reached in this run:\n\n{said}"
