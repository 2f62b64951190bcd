"""Writes a log through kstore, and keeps in plain Python what the log must then hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import kstore
from tools.interop.records import Row

FIRST_TIMESTAMP_MS = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]

WORDS = ("offset", "segment", "append", "größe", "日志", "batch", "record", "fetch", "flush", "page", "cache", "delta")
HEADER_NAMES = ("trace", "trace", "", "größe", "content-type", "日志")


class Content(NamedTuple):
    """Parallel sequences, one item for each record, as ``Log.append_many`` takes them."""

    values: list[bytes | None]
    keys: list[bytes | None]
    timestamps: list[int]
    headers: list[Headers]

    def part(self, start: int, stop: int) -> Content:
        here = slice(start, stop)
        return Content(self.values[here], self.keys[here], self.timestamps[here], self.headers[here])

    def followed_by(self, other: Content) -> Content:
        return Content(
            self.values + other.values,
            self.keys + other.keys,
            self.timestamps + other.timestamps,
            self.headers + other.headers,
        )


def content(count: int, seed: str, *, has_headers: bool = False) -> Content:
    """``count`` records of every kind: text, noise, empty and null, the same for the same seed."""
    rng = random.Random(seed)
    return Content(
        values=[_bytes(rng, 200) for _ in range(count)],
        keys=[_bytes(rng, 12) for _ in range(count)],
        timestamps=[FIRST_TIMESTAMP_MS + 10 * number for number in range(count)],
        headers=[_headers(rng) if has_headers else () for _ in range(count)],
    )


def _bytes(rng: random.Random, size_max: int) -> bytes | None:
    kind = rng.randrange(12)
    if kind == 0:
        return None
    if kind == 1:
        return b""
    if kind < 5:
        return rng.randbytes(rng.randrange(1, size_max))
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, 2 + size_max // 10))).encode()


def _headers(rng: random.Random) -> Headers:
    return tuple((rng.choice(HEADER_NAMES), _bytes(rng, 40)) for _ in range(rng.randrange(6)))


class Author:
    """One open ``Log``, and ``rows``: what a reader must find in it. A context manager that closes the log."""

    def __init__(self, directory: Path, rows: Sequence[Row] = (), *, leader_epoch: int = 0, **settings: Any) -> None:
        """Opens or creates the log. ``rows`` are its existing ones, ``leader_epoch`` that of its next ones."""
        # The page cache is enough here: only processes are killed.
        self.log = kstore.Log(directory, **{"durability": "os", **settings})
        self.rows = list(rows)
        self._leader_epoch = leader_epoch
        # First and last offset of each batch that was appended here.
        self._batches: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()

    def append(self, records: Content, *, batch_count: int = 1) -> None:
        """Appends ``records`` in this many batches, or one more."""
        step = max(1, len(records.values) // batch_count)
        for start in range(0, len(records.values), step):
            part = records.part(start, start + step)
            info = self.log.append_many(part.values, keys=part.keys, timestamps=part.timestamps, headers=part.headers)
            assert info.batch_count == 1
            self._batches.append((info.first_offset, info.last_offset))
            self._expect(part, info)

    def append_batches(self, buffer: bytes, records: Content, *, assign_offsets: bool = True) -> None:
        """Appends the foreign batches in ``buffer``, which hold ``records``."""
        self._expect(records, self.log.append_batches(buffer, assign_offsets=assign_offsets))

    def truncate_to(self, offset: int) -> None:
        """Truncates the log, which keeps only whole batches below ``offset`` and continues at ``offset``."""
        self.log.truncate_to(offset)
        assert self.log.end_offset == offset
        kept = min([offset, *(first for first, last in self._batches if first < offset <= last)])
        self.rows = [row for row in self.rows if row.offset < kept]
        self._batches = [(first, last) for first, last in self._batches if last < kept]

    def delete_records(self, before: int) -> None:
        """Moves the log's start."""
        self.log.delete_records(before)
        self.rows = [row for row in self.rows if row.offset >= before]

    def _expect(self, records: Content, info: kstore.AppendInfo) -> None:
        assert info.last_offset - info.first_offset + 1 == len(records.values)
        is_append_time = info.log_append_time >= 0
        timestamp_type = "LogAppendTime" if is_append_time else "CreateTime"
        for number, (value, key, timestamp, headers) in enumerate(zip(*records, strict=True)):
            when = info.log_append_time if is_append_time else timestamp
            offset = info.first_offset + number
            self.rows.append(Row(offset, when, timestamp_type, self._leader_epoch, key, value, headers))
