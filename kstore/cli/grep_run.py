"""The work of ``kstore grep``: pieces of logs, searched by as many processes as there are cores, in order.

A process gets a piece and returns what to print of it. Only a few pieces are in progress at a time, so memory does not
grow with the logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from kstore.cli.extent import Extent
from kstore.cli.json_fields import log_fields
from kstore.cli.places import LogPlace, log_bytes, log_places, open_place
from kstore.cli.record_json import compact, record_fields
from kstore.cli.spread import BYTES_MIN, process_count, spread
from kstore.cli.terminal import escaped, escaped_bytes
from kstore.errors import OffsetOutOfRangeError
from kstore.log import Log
from kstore.record._codec import Record
from kstore.scan.visits import Advance, no_advance
from kstore.types import CorruptRange, IsolationLevel
from kstore.upkeep.search import Match, Pattern, Piece, pieces, search

# Pieces that are searched or wait for a process, for each process.
PIECES_AHEAD = 2
OPEN_LOGS_MAX = 8
# Searching takes about this many times longer if every record is decoded.
DECODING_FACTOR = 8


class Want(NamedTuple):
    """What to search for, and how to show it; ``escapes``: for a terminal."""

    pattern: Pattern
    extent: Extent
    isolation_level: IsolationLevel
    is_json: bool
    escapes: bool


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the command; ``jobs`` processes, by default one a processor if there is enough to search."""

    logs: list[LogPlace]
    want: Want
    with_lines: bool
    context: int
    max_count: int | None
    jobs: int | None


class Task(NamedTuple):
    """A piece of a log, for one process."""

    log: str
    piece: Piece
    want: Want
    with_lines: bool
    context: int
    max_count: int | None


@dataclass(slots=True)
class Found:
    """What was found in a piece: ``groups`` of lines, of which those with context are apart from each other."""

    count: int = 0
    groups: list[bytes] = field(default_factory=list)
    has_context: bool = False
    damage: list[CorruptRange] = field(default_factory=list)
    # Matches as (offset, where), if their lines are still to be read.
    matches: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)


@contextmanager
def searched(job: Job, advance: Advance) -> Iterator[Iterator[tuple[Task, Found]]]:
    """The results of ``job``, piece by piece in the order of the logs; no process remains at the end.

    ``advance`` is called with bytes that were searched, or need not be.
    """
    tasks, count = _tasks(job, advance), job.jobs or _process_count(job)
    try:
        with closing(spread(search_piece, tasks, count, ahead=PIECES_AHEAD * count)) as results:
            yield _limited(job, advance, results)
    finally:
        _opened.cache_clear()


def _process_count(job: Job) -> int:
    """One a processor, if starting them takes less time than they save."""
    # Without a text to search first every record is decoded.
    bytes_min = BYTES_MIN if job.want.pattern.texts() is not None else BYTES_MIN // DECODING_FACTOR
    return process_count(None, sum(map(log_bytes, job.logs)), bytes_min=bytes_min)


def _tasks(job: Job, advance: Advance) -> Iterator[Task]:
    for place in job.logs:
        with open_place(place) as log:
            found = _within(pieces(log, since_ms=job.want.extent.since_ms), job.want.extent, log)
        advance(max(log_bytes(place) - sum(piece.size for piece in found), 0))
        for piece in found:
            yield Task(place.text, piece, job.want, job.with_lines, job.context, job.max_count)


def _within(found: list[Piece], extent: Extent, log: Log) -> list[Piece]:
    """``found`` without the offsets that ``extent`` leaves out."""
    start, stop = extent.start_in(log), extent.stop
    cut = [
        piece._replace(
            start_offset=piece.start_offset if start is None else max(piece.start_offset, start),
            stop_offset=piece.stop_offset if stop is None else min(piece.stop_offset, stop),
        )
        for piece in found
    ]
    return [piece for piece in cut if piece.start_offset < piece.stop_offset]


def _limited(job: Job, advance: Advance, results: Iterator[tuple[Task, Found]]) -> Iterator[tuple[Task, Found]]:
    """The results up to ``max_count`` matches, with their lines."""
    rest = job.max_count
    context = _Context(job.want, job.context) if job.context else None
    for task, found in results:
        if rest is not None:
            if found.count > rest:
                found.count = rest
                del found.groups[rest:], found.matches[rest:]
            rest -= found.count
        advance(task.piece.size)
        yield task, (found if context is None else context.of(task.log, found))
        if rest == 0:
            break
    if context is not None and (last := context.end()).groups:
        yield task, last


def _open(path: str) -> Log:
    # A log does not outlive a fork.
    return _opened(path, os.getpid())


@lru_cache(OPEN_LOGS_MAX)
def _opened(path: str, process_id: int) -> Log:
    return open_place(*log_places(path))


def search_piece(task: Task, advance: Advance = no_advance) -> Found:
    """Searches one piece, in any process; reports no progress. Raises: KstoreError."""
    log, piece = _open(task.log), task.piece
    try:
        return _search_piece(task, log, piece)
    except OffsetOutOfRangeError:
        start = max(log.start_offset, piece.start_offset)
        if start == piece.start_offset:
            raise
        # Retention has deleted records since the pieces were made.
        return _search_piece(task, log, piece._replace(start_offset=start)) if start < piece.stop_offset else Found()


def _search_piece(task: Task, log: Log, piece: Piece) -> Found:
    want, found = task.want, Found()
    lines: list[bytes] = []
    matches = search(
        log,
        want.pattern,
        piece,
        since_ms=want.extent.since_ms,
        until_ms=want.extent.until_ms,
        isolation_level=want.isolation_level,
    )
    for item in matches:
        if not isinstance(item, Match):
            found.damage.append(item)
            continue
        found.count += 1
        if task.context:
            found.matches.append((item.record.offset, item.where))
        elif task.with_lines:
            lines.append(_line(want, task.log, item.record, item.where))
        if found.count == task.max_count:
            break
    # With a limit they may have to be cut.
    found.groups = lines if task.max_count is not None else [b"".join(lines)] if lines else []
    return found


class _Context:
    """Adds the neighbours of matches; groups that touch are joined, over the borders of pieces too."""

    def __init__(self, want: Want, size: int) -> None:
        self._want = want
        self._size = size
        self._log = ""
        self._start = 0
        self._stop = -1
        self._matches: dict[int, tuple[str, ...]] = {}

    def of(self, log: str, found: Found) -> Found:
        """``found`` with the groups that are complete."""
        groups = []
        for offset, where in found.matches:
            if log != self._log or offset - self._size > self._stop:
                groups += self._group()
                self._log, self._start = log, offset - self._size
            self._stop = offset + self._size + 1
            self._matches[offset] = where
        return Found(found.count, groups, has_context=True, damage=found.damage)

    def end(self) -> Found:
        """The last group."""
        return Found(groups=self._group(), has_context=True)

    def _group(self) -> list[bytes]:
        if not self._matches:
            return []
        log = _open(self._log)
        start = max(self._start, log.start_offset)
        stop = max(start, min(self._stop, log.high_watermark))
        records = log.read(start, stop, isolation_level=self._want.isolation_level, on_corrupt="skip")
        lines = [
            _line(self._want, self._log, record, self._matches.get(record.offset))
            for record in records
            if isinstance(record, Record)
        ]
        self._matches = {}
        return [b"".join(lines)]


def _line(want: Want, log: str, record: Record, where: tuple[str, ...] | None) -> bytes:
    """The line of a record; ``where`` is None for one of the context."""
    if want.is_json:
        text = compact({**_log_fields(log), **record_fields(record), "matched": list(where or ())})
        return f"{escaped(text) if want.escapes else text}\n".encode("utf-8", "surrogateescape")
    shown = escaped_bytes if want.escapes else bytes
    mark = b"-" if where is None else b":"
    parts = [_name(log, want.escapes), b"%d" % record.offset]
    if where and "key" in where:
        parts.append(b"key=" + shown(record.key or b""))
    for name, value in record.headers if where else ():
        if where and f"header {name}" in where:
            parts.append(b"header " + shown(f"{name}=".encode("utf-8", "surrogatepass") + (value or b"")))
    return mark.join([*parts, shown(record.value or b"")]) + b"\n"


_log_fields = lru_cache(OPEN_LOGS_MAX)(log_fields)


@lru_cache(OPEN_LOGS_MAX)
def _name(log: str, escapes: bool) -> bytes:
    name = os.fsencode(log)
    return escaped_bytes(name) if escapes else name
