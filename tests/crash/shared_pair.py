"""Two writers of one log in one process, of which the first meets faults and interrupts, and what must hold then.

``one`` tries each step; whatever the outcome, ``two`` continues at once, and everything that was acknowledged to either
exists once, at the reported offset.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kstore.errors import PoisonedError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.types import Durability
from tests.support.harness.evidence import Hung, Lost, Wrong

SETTINGS: dict[str, Any] = {
    "segment_bytes": 1024, "index_interval_bytes": 100, "flush_ms": 10**9, "file_delete_delay_ms": 0
}  # fmt: skip
# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300


@contextmanager
def in_time() -> Iterator[None]:
    """Raises: Hung, if the block takes too long because a lock was never released. For the main thread."""

    def ring(*_: object) -> None:
        raise Hung(f"waited for more than {SECONDS_MAX} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Pair:
    """The writers, and what is known of their log."""

    def __init__(self, path: Path, durability: Durability, fs: FileSystem = SYSTEM_FS) -> None:
        self.path = path
        self.durability = durability
        self.acknowledged: dict[int, bytes] = {}
        self.doubtful: list[list[bytes]] = []
        self.start_min = self.start_max = 0
        self._serial = 0
        self.fs = fs
        self.one = self.open(fs)
        self.two = self.open(SYSTEM_FS)

    def open(self, fs: FileSystem) -> Log:
        return Log(self.path, fs=fs, durability=self.durability, shared=True, **SETTINGS)

    def append(self, log: Log, count: int = 1) -> None:
        self._serial += 1
        values = [b"%d-%d" % (self._serial, number) + b"x" * 90 for number in range(count)]
        self.doubtful.append(values)
        info = log.append_many(values)
        self.acknowledged.update(enumerate(values, info.first_offset))
        self.doubtful.remove(values)

    def begin(self) -> None:
        """Both have written, over several segments."""
        for _ in range(4):
            self.append(self.one)
            self.append(self.two, 3)
        self.append(self.one)

    def prepare(self, name: str) -> None:
        """``two`` does something that the step ``name`` must first catch up on; for "refresh" also a roll."""
        self.append(self.two, 8 if name == "refresh" else 1)

    def go_on(self) -> None:
        """``two`` appends and reads at once; on a poisoned log it reports that. Raises: Hung, and its errors."""
        with in_time():
            try:
                self.append(self.two)
            except PoisonedError:
                self.two.close()
                self.one.close()
                self.one, self.two = self.open(SYSTEM_FS), self.open(SYSTEM_FS)
                self.append(self.two)
            self.look(self.two)

    def end(self) -> None:
        """Both continue, close, and the log is opened alone."""
        with in_time():
            if self.one.closed:
                self.one = self.open(SYSTEM_FS)
            try:
                self.append(self.one)
            except PoisonedError:
                self.one.close()
                self.one = self.open(SYSTEM_FS)
                self.append(self.one)
            self.append(self.two)
            for log in (self.one, self.two):
                self.look(log)
                log.check()
            self.one.close()
            self.two.close()
            with Log(self.path, durability=self.durability, **SETTINGS) as log:
                if not log.recovery.clean:
                    raise Wrong(f"not clean after both closed: {log.recovery}")
                self.look(log)
                log.check()
                if not log.verify().clean:
                    raise Wrong("damage")

    def look(self, log: Log) -> None:
        """Compares what ``log`` reads with what is known. Raises: Lost, Wrong."""
        found = {record.offset: record.value for record in log.read()}
        start, end = log.start_offset, log.end_offset
        if list(found) != list(range(start, end)):
            raise Wrong(f"offsets {list(found)}, expected {start} to {end}")
        if not self.start_min <= start <= self.start_max:
            raise Wrong(f"starts at {start}, expected {self.start_min} to {self.start_max}")
        for offset, value in self.acknowledged.items():
            if offset >= start and found.get(offset) != value:
                raise Lost(f"offset {offset} has {found.get(offset)!r}, acknowledged was {value!r}")
        others = {offset: value for offset, value in found.items() if self.acknowledged.get(offset) != value}
        for values in self.doubtful:
            there = [offset for offset, value in others.items() if value in values]
            if there and [others.pop(offset) for offset in there] != values:
                raise Wrong(f"part of an append, at {there}")
        if others:
            raise Wrong(f"never written, or twice: {others}")


Step = Callable[[Pair], None]


def refresh(pair: Pair) -> None:
    """Catches up on the other writer's changes, including a roll."""
    pair.one.refresh()


def roll(pair: Pair) -> None:
    pair.one.roll()


def delete(pair: Pair) -> None:
    pair.start_max = 6
    pair.one.delete_records(6)
    pair.start_min = 6


STEPS: dict[str, Step] = {
    "append": lambda pair: pair.append(pair.one),
    "append_many": lambda pair: pair.append(pair.one, 8),  # into a new segment
    "roll": roll,
    "refresh": refresh,
    "flush": lambda pair: pair.one.flush(),
    "delete_records": delete,
    "close": lambda pair: pair.one.close(),
    "open": lambda pair: pair.open(pair.fs).close(),
}
