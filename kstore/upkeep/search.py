"""Searching records: which of a log hold a text, a pattern, bytes, or a text in a field of their JSON.

Compiled code searches the bytes of batches, and only records that hold the text are decoded: the others cost a read
and a CRC. For a regular expression it searches a text that every match holds, if there is one. Compressed batches are
decompressed first. Nothing is written, and a writer may be at work.
"""

from __future__ import annotations

import json
import re
import warnings
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from kstore.engine.read.reader import open_reader
from kstore.engine.read.reads import looked_up
from kstore.errors import ConfigError
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.log import Log, reads_of
from kstore.record._codec import Record
from kstore.record._runs import Run, Texts
from kstore.record.batch import Batch, RecordBatch
from kstore.segment import LogSegment
from kstore.types import LOG_APPEND_TIME, CorruptRange, IsolationLevel

FIELDS = ("key", "value", "headers")
# A piece of this size takes tens of milliseconds, and its matches fit in memory.
PIECE_BYTES = 16 << 20
# A text of these characters that is not a number, and that a field contains, is in the JSON unescaped.
PLAIN = re.compile(rb"[A-Za-z0-9_-]*[A-DF-Za-df-z_][A-Za-z0-9_-]*", re.ASCII)
# The parts of a regular expression; ``plain`` stands for itself.
PART = re.compile(
    rb"\[\^?\]?(?:\\.|[^]\\])*\]"
    rb"|(?P<plain>\\[^A-Za-z0-9]|[^][\\^$.|?*+(){}])|\\x..|\\[0-9]+|\\."
    rb"|(?P<quantifier>[*?+]|\{[0-9]*,?[0-9]*\})|.",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What to search for.

    Attributes:
        text: the bytes to find, or a regular expression over bytes.
        is_regex: whether ``text`` is a regular expression.
        ignore_case: ASCII letters match either case.
        fields: where to look, some of FIELDS.
        json_field: look only in this field of values that are JSON, by its path: ``("user", "name")``.
        is_inverted: the records in which none of this holds the text.
    """

    text: bytes
    is_regex: bool = False
    ignore_case: bool = False
    fields: tuple[str, ...] = FIELDS
    json_field: tuple[str, ...] = ()
    is_inverted: bool = False

    def check(self) -> None:
        """Raises: ConfigError for a regular expression that cannot be compiled."""
        self.finder()

    def finder(self) -> Callable[[bytes], object]:
        """Returns something true for bytes that hold the pattern. Raises: ConfigError."""
        if not self.is_regex and not self.ignore_case:
            text = self.text
            return lambda data: text in data
        expression = self.text if self.is_regex else re.escape(self.text)
        try:
            with warnings.catch_warnings():
                # A warning of what a later Python may take for a set within a set.
                warnings.simplefilter("ignore", FutureWarning)
                return re.compile(expression, re.DOTALL | (re.IGNORECASE if self.ignore_case else 0)).search
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"the regular expression {self.text.decode('utf-8', 'replace')!r:.200}: {error}"
            ) from None

    def texts(self) -> Texts | None:
        """Texts of which a record that matches holds at least one, in the fields to search; None if none is known."""
        if self.is_inverted:
            return None
        text = required_text(self.text) if self.is_regex else self.text
        texts: tuple[bytes, ...] = (text,)
        if self.json_field:
            # JSON may write any character as an escape.
            texts = (text, b"\\") if PLAIN.fullmatch(text) else ()
        if not text or not texts:
            return None
        wanted = ("value",) if self.json_field else self.fields
        return Texts(texts, self.ignore_case, *(name in wanted for name in FIELDS))


def required_text(expression: bytes) -> bytes:
    """The longest text that is in everything that a regular expression matches, as far as is easily seen; may be empty.

    Groups and what is optional or repeated are left out. Alternatives and extensions (``(?``) are not examined.
    """
    if b"(?" in expression:
        return b""
    texts, depth = [b""], 0
    for match in PART.finditer(expression):
        part = match[0]
        if part == b"|" and not depth:
            return b""
        depth += (part == b"(") - (part == b")")
        if match["plain"] and not depth:
            texts[-1] += part[-1:]
            continue
        if match["quantifier"]:
            texts[-1] = texts[-1][:-1]  # the byte before it; after a group or a class the text is empty
        texts.append(b"")
    return max(texts, key=len)


class Match(NamedTuple):
    """A record, and where it matches: "key", "value", "header NAME"; nowhere if the pattern is inverted."""

    record: Record
    where: tuple[str, ...]


class Piece(NamedTuple):
    """Offsets of a log to search by themselves; ``stop_offset`` is exclusive. ``size``: about how many bytes."""

    start_offset: int
    stop_offset: int
    size: int = 0


def pieces(log: Log, *, since_ms: int | None = None, piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """The readable offsets of ``log`` in pieces of about ``piece_bytes``, in order.

    Segments without a record at or after ``since_ms`` are left out. Raises: StorageError.
    """
    return looked_up(reads_of(log).source, partial(_pieces, log, since_ms, piece_bytes))


def _pieces(log: Log, since_ms: int | None, piece_bytes: int) -> list[Piece]:
    bound = reads_of(log).read_bound(committed=False)
    found = []
    for segment in reads_of(log).source.segments.snapshot.segments:
        held = reads_of(log).segment_for(max(segment.base_offset, bound.start_offset))
        if held is None or held[0].base_offset != segment.base_offset:
            continue  # below the start, or removed
        stop = min(held[1], bound.high_watermark)
        if since_ms is not None and segment.largest_timestamp(bound.limit_of(segment)).timestamp < since_ms:
            continue
        start = max(segment.base_offset, bound.start_offset)
        borders = [at for at in _borders(segment, piece_bytes) if start < at < stop]
        ends = [pair for pair in pairwise([start, *borders, stop]) if pair[0] < pair[1]]
        found += [Piece(*pair, bound.limit_of(segment) // len(ends)) for pair in ends]
    return found


def _borders(segment: LogSegment, piece_bytes: int) -> list[int]:
    """Offsets that cut a segment about every ``piece_bytes``, as far as its index knows."""
    size = segment.size
    if size <= piece_bytes:
        return []
    try:
        index = segment.offset_index()
        slots = range(index.entry_count)
        found = []
        for position in range(piece_bytes, size, piece_bytes):
            slot = bisect_left(slots, position, key=lambda at: index.entry(at).position)
            if slot < len(slots):
                found.append(index.entry(slot).offset)
        return sorted(set(found))
    except INDEX_FAILURES:
        return []


def search(
    log: Log,
    pattern: Pattern,
    piece: Piece,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> Iterator[Match | CorruptRange]:
    """The records of ``piece`` that match, in order, and the damage that was met.

    Args:
        since_ms, until_ms: only records with a timestamp from the first to below the second.

    Raises: ConfigError for a pattern that is no regular expression, OffsetOutOfRangeError for offsets that have been
    deleted, StorageError.
    """
    searcher = _Searcher(pattern, since_ms, until_ms)
    return iter(
        open_reader(
            reads_of(log),
            searcher.of_batch,
            piece.start_offset,
            piece.stop_offset,
            isolation_level,
            "yield",
            decode_run=searcher.of_run,
        )
    )


class _Searcher:
    """Makes matches of batches and runs. For one thread."""

    def __init__(self, pattern: Pattern, since_ms: int | None, until_ms: int | None) -> None:
        self._find = pattern.finder()
        self._texts = pattern.texts()
        self._fields = pattern.fields
        self._json_field = pattern.json_field
        self._is_inverted = pattern.is_inverted
        self._since_ms = since_ms
        self._until_ms = until_ms

    def of_run(
        self, run: Run, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None
    ) -> Iterable[Match]:
        decode = run.records if self._texts is None else partial(self._texts.records_of_run, run)
        return self._matches(decode(first_offset, stop_offset, tally, aborted))

    def of_batch(self, batch: Batch, first_offset: int, stop_offset: int, limit: int) -> Iterable[Match]:
        if self._texts is None or not isinstance(batch, RecordBatch):
            return self._matches(batch.records(first_offset, stop_offset, limit))
        data, start, stop = batch.payload(limit)
        if not isinstance(data, bytes):
            data, start, stop = bytes(memoryview(data)[start:stop]), 0, stop - start
        header = batch.header
        return self._matches(
            self._texts.records_of_payload(
                data,
                start,
                stop,
                header.record_count,
                header.base_offset,
                header.base_timestamp,
                header.last_offset_delta,
                batch.timestamp_type == LOG_APPEND_TIME,
                header.max_timestamp,
                header.leader_epoch,
                first_offset,
                stop_offset,
            )
        )

    def _matches(self, records: Iterable[Record]) -> Iterator[Match]:
        since_ms, until_ms, where = self._since_ms, self._until_ms, self._where
        for record in records:
            found = where(record)
            if bool(found) is self._is_inverted:
                continue
            if since_ms is not None and record.timestamp < since_ms:
                continue
            if until_ms is not None and record.timestamp >= until_ms:
                continue
            yield Match(record, found)

    def _where(self, record: Record) -> tuple[str, ...]:
        if self._json_field:
            return ("value",) if self._matches_json(record.value) else ()
        find, fields = self._find, self._fields
        found: tuple[str, ...] = ()
        key, value = record.key, record.value
        if key is not None and "key" in fields and find(key):
            found = ("key",)
        if value is not None and "value" in fields and find(value):
            found += ("value",)
        if record.headers and "headers" in fields:
            for (name, data), (raw, _) in zip(record.headers, record.header_bytes, strict=True):
                if find(raw) or (data is not None and find(data)):
                    found += (f"header {name}",)
        return found

    def _matches_json(self, value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            found: Any = json.loads(value)
            for name in self._json_field:
                found = found[int(name)] if isinstance(found, list) else found[name]
        except (ValueError, LookupError, TypeError, RecursionError):
            return False
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        return bool(self._find(text.encode("utf-8", "surrogatepass")))
