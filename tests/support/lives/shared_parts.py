"""The parts of a log that several processes write to, for tests that look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from kstore.engine.others import Others
from kstore.errors import DiskFullError
from kstore.log import Log, writer_of
from kstore.segments.tail import SegmentTail
from kstore.shared.turn import SharedTurn
from kstore.types import Durability
from tests.support.harness.replaced import replaced


def others_of(log: Log) -> Others:
    others = writer_of(log).files.others
    assert others is not None
    return others


def turn_of(log: Log) -> SharedTurn:
    turn = writer_of(log).turn
    assert isinstance(turn, SharedTurn)
    return turn


def drop_tail(log: Log) -> None:
    """Closes the tail's files, as a process with too many open files does; the next append opens them again."""
    with turn_of(log).lock:
        writer_of(log).files.drop_tail()


Result = TypeVar("Result")
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


def shared(path: Path, durability: Durability = "sync", **settings: Any) -> Log:
    return Log(path, shared=True, durability=durability, **settings)


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


def fails(log: Log) -> None:
    """An append of two batches that rolls, and then meets a full disk."""
    fs = writer_of(log).context.fs
    before, count = SegmentTail.write, 0

    def write(self: SegmentTail, *arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise DiskFullError(28, "full", str(fs))
        before(self, *arguments, **options)

    with replaced(SegmentTail, "write", write), suppress(DiskFullError):
        log.append_many([b"f" * 300] * 12)
        raise AssertionError("a full disk has taken it")
    assert count == 2


def two_writers(path: Path, durability: Durability) -> Iterator[tuple[Log, Log]]:
    with shared(path, durability, segment_bytes=1024) as one, shared(path, durability, segment_bytes=1024) as two:
        yield one, two
