"""The report of a run as Markdown, at most 120 columns wide: the summary, the machine, the lines, and the tables."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from tools.bench.measure import Line

WIDTH = 120

RERUN = """\
`make bench` prints this page (15 minutes on an idle machine, which it should be), and `python -m tools.bench --write
BENCHMARKS.md` writes it. `python -m tools.bench NAME...` runs some of it; `--list` names them.
`make bench-broker` measures beside a live Kafka broker, `python -m tools.bench.broker --door` a door beside one."""

WORDS = """\
kstore is ahead if records come in batches: many in one append, many in one read, bulk calls of a queue, columns
for Arrow. There the work for each record is compiled, a batch costs one write, and a read returns records without a
copy of their bytes by Python. It is also ahead if several callers wait for the disk at once, because they share a
sync.

It is behind in four places. A lookup of one record reads and checks a whole batch, where a tree of lmdb, RocksDB or
LevelDB reads one page and checks nothing: it takes four to eight times as long. A record that is appended alone carries
a batch header of 61 bytes with its own CRC: kstore appends it about as fast as the fastest of these stores, but it
takes a third to a half more space, and each reader pays for the header again. Sends that wait for a sync leave the disk
idle for a quarter to three fifths of the time. Four processes that take single items of one queue, or sync each take,
reach half of what SQLite reaches. Hand over many records at a time if you can."""

HOW = """\
Values of 100 bytes, in the page cache. A figure and those beside it are measured in turn, round by round, so that a
slow spell of the machine hits both: the figure is the median of the rounds, a limit of the machine the upper
quartile, since a stalled limit would flatter. Each line begins with the ratio of the two; "asked" is the
project's own aim. The code is in `tools/bench/`."""

PRODUCERS = """\
Producers that send one by one, to delivery with `acks=1`, and readers that follow them at the same time; values of
100 bytes, in the page cache, nothing synced. Each producer has its own log, and each log one reader, which gets
a `Record` for each record, its CRC checked. As threads: one process, one store, a partition for each producer. As
processes: each producer has its own store, since a log has one writer, and each reader is a process that opens that
store for reading only. The rates are those of all producers, and of all readers, together; MB are of values."""

COMPARISON = """\
The same values, in the same order; a check confirms that all of them come back. Synced: an append is on disk when it
returns. Not synced: nothing is. Each store is used in its fastest documented way (`executemany` in one
transaction; `putmulti` with `append`; a write batch; an iterator over all; a lookup that sees the newest records).
kstore checks a CRC with every read, RocksDB and LevelDB one of each block that they read from disk; SQLite, lmdb and
the plain file check nothing. The plain file has no offsets and survives no torn write: it shows the speed of the
least code. On disk: blocks, after closing."""

QUEUES = """\
Each item is put, leased and acknowledged, by one thread. By hand: what an application would write itself, in 20
lines, over two tables of lmdb or one of SQLite with `RETURNING`; no redelivery after a lease expired, no delays, no
dead letters. huey and diskcache have no lease: a got item is gone. fsync: a put and an ack are on disk when they
return."""

TABLES = {
    "producers": ("Producers beside readers", PRODUCERS),
    "comparison": ("Beside other stores", COMPARISON),
    "queues": ("Beside other queues", QUEUES),
}


def report(
    machine: Sequence[tuple[str, str]], sections: Mapping[str, Sequence[Line]], tables: Mapping[str, str]
) -> str:
    """The page. ``sections`` has lines by heading, ``tables`` those of ``TABLES``; empty ones are omitted."""
    parts = ["# Benchmarks", RERUN, "## In words", WORDS]
    parts += ["## The machine", "\n".join(f"- {what}: {which}" for what, which in machine)]
    lines = [line for section in sections.values() for line in section]
    if lines:
        parts += ["## Beside the machine's own limit", HOW, _reached(lines)]
    for heading, section in sections.items():
        if section:
            parts += [f"### {heading}", "\n".join(map(_item, section))]
    for name, table in tables.items():
        heading, text = TABLES[name]
        parts += [f"## {heading}", text, table]
    return "\n\n".join(parts) + "\n"


def _item(line: Line) -> str:
    asked = {True: f"; asked: {line.asked}", False: f"; **asked: {line.asked}, not reached**", None: ""}[line.reached]
    beside = "" if line.limit == "-" else f", beside {line.limit}"
    text = f"- `{line.ratio:>5}` {line.name}: **{line.figure}**{beside}{asked}"
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _reached(lines: Sequence[Line]) -> str:
    asked = [line.reached for line in lines if line.reached is not None]
    return f"Of {len(asked)} numbers that are asked, this run reached {sum(asked)}."
