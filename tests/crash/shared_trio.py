"""Three writers of one log, each in a process of its own, and a reader; one writer is killed at one file operation
after another; run by ``test_shared_trio``.

    python -m tests.crash.shared_trio DIRECTORY DURABILITY VICTIM FIRST STEP

The writers take their steps one at a time, in the order of ``SCRIPT``. The victim, 0 to 2, dies of SIGKILL before its
n-th operation that changes something (of number 2n - 2), or in the middle of it if it is a write (2n - 1). The others
continue. After every append the reader must see exactly what was acknowledged, and at the end every index must equal
one built from its segment alone. Ends with the first victim that survives; prints a line for each death; the last line
is their number.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from kstore.log import Log
from kstore.types import Durability
from tests.crash.killed_life import KillingFs
from tests.support.harness.evidence import Crashed, Lost, Wrong
from tests.support.lives.shared_parts import drop_tail

SETTINGS: dict[str, Any] = {
    "segment_bytes": 2048, "index_interval_bytes": 150, "max_message_bytes": 400, "flush_ms": 10**9,
    "file_delete_delay_ms": 0,
}  # fmt: skip
WRITERS = 3
# Deletions start below it.
DELETED = 4


# With the offset of the last acknowledged append.
Action = Callable[[Log, int], object]
ACTIONS: dict[str, Action] = {
    "roll": lambda log, _: log.roll(),
    "flush": lambda log, _: log.flush(),
    "delete": lambda log, _: log.delete_records(DELETED),
    "cut": lambda log, last: log.truncate_to(last),
    "idle": lambda log, _: drop_tail(log),
    "refresh": lambda log, _: log.refresh(),
    "close": lambda log, _: log.close(),
}
# The steps of each writer. Numbers are appends of that many records, more than four of them in several batches.
SCRIPT: Sequence[tuple[int, str]] = [
    (0, "open"), (0, "1"), (0, "3"), (0, "1"),
    (1, "open"), (1, "1"), (0, "1"), (1, "2"),
    (2, "open"), (0, "1"), (2, "1"), (1, "1"),
    (2, "12"), (0, "1"), (1, "1"), (2, "1"),
    (1, "idle"), (0, "1"), (1, "1"), (2, "idle"), (2, "9"),
    (0, "flush"), (1, "1"), (2, "refresh"), (1, "delete"), (0, "idle"), (0, "delete"), (2, "1"),
    (1, "roll"), (0, "1"), (2, "1"), (1, "9"), (0, "flush"),
    (2, "cut"), (0, "1"), (1, "1"),
    (0, "close"), (2, "1"), (0, "open"), (1, "1"), (0, "1"), (2, "roll"), (0, "2"), (1, "1"),
]  # fmt: skip


def values_of(writer: int, number: int, count: int) -> list[bytes]:
    return [b"%d-%d-%d-" % (writer, number, each) + b"x" * (20 + 7 * each) for each in range(count)]


def live(path: Path, durability: Durability, writer: int, commands: int, told: int, fs: KillingFs) -> None:
    """In a child: executes commands, and answers with the offset of an append."""
    log: Log | None = None
    while command := os.read(commands, 64):
        number, what, last = command.decode().split()
        answer = -1
        if what == "open":
            log = Log(path, shared=True, durability=durability, fs=fs, **SETTINGS)
        elif log is None:
            raise AssertionError(f"{what} before the open")
        elif what in ACTIONS:
            ACTIONS[what](log, int(last))
        else:
            answer = log.append_many(values_of(writer, int(number), int(what))).first_offset
        os.write(told, b"%d\n" % answer)


class Trio:
    """The writers, and what is known of their log."""

    def __init__(self, path: Path, durability: Durability, victim: int, number: int) -> None:
        self.path = path
        self.durability = durability
        self.number = number
        self.acknowledged: dict[int, bytes] = {}
        # What the victim was about to append, cut or delete when it died.
        self.doubtful: list[bytes] = []
        self.doubted = ""
        self.reader: Log | None = None
        self.start = self.last = 0
        self.cut_base = -1
        self._pipes: dict[int, tuple[int, int]] = {}
        self._pids: dict[int, int] = {}
        for writer in range(WRITERS):
            at = number // 2 + 1 if writer == victim else sys.maxsize
            self._start(writer, KillingFs(at, half=number % 2 == 1))

    def _start(self, writer: int, fs: KillingFs) -> None:
        commands, tell = os.pipe()
        hear, told = os.pipe()
        pid = os.fork()
        if not pid:
            for pipe in (tell, hear, *(each for pipes in self._pipes.values() for each in pipes)):
                os.close(pipe)
            try:
                live(self.path, self.durability, writer, commands, told, fs)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(commands)
        os.close(told)
        self._pipes[writer], self._pids[writer] = (tell, hear), pid

    @property
    def living(self) -> list[int]:
        return list(self._pids)

    def run(self) -> bool:
        """Whether the victim died."""
        closed: set[int] = set()
        for number, (writer, what) in enumerate(SCRIPT):
            if writer in self._pids:
                self.step(writer, number, what)
                (closed.add if what == "close" else closed.discard)(writer)
        # Each survivor continues, and the last one closes the log cleanly, unless it dies in the close.
        for turn in range(2):
            for writer in self.living:
                self.step(writer, len(SCRIPT) + turn, "1")
        last = self.living[-1]
        for writer in self.living:
            self.step(writer, 0, "close")
        died, closed_in_order = len(self._pids) < WRITERS, last in self._pids
        for writer in self.living:
            self.end(writer, killed=False)
        assert self.reader is not None
        self.look(self.reader)
        self.reader.close()
        self.hold(closed_in_order=closed_in_order)
        return died

    def step(self, writer: int, number: int, what: str) -> None:
        tell, hear = self._pipes[writer]
        os.write(tell, b"%d %s %d" % (number, what.encode(), self.last))
        answer = os.read(hear, 64)
        values = values_of(writer, number, int(what)) if what.isdigit() else []
        if not answer:
            self.end(writer, killed=True)
            self.doubtful, self.doubted = values, what
            return
        if self.reader is None:
            self.reader = Log(self.path, read_only=True, **SETTINGS)
        offset = int(answer)
        if what == "delete":
            self.start = DELETED
        if what == "cut" or self.doubted == "cut":
            bases = [int(file.name[:20]) for file in self.path.glob("*.log")]
            self.cut_base = max(base for base in bases if base <= self.last)
        if what == "cut":
            self.acknowledged = {at: value for at, value in self.acknowledged.items() if at < self.last}
        if not values:
            return
        if self.doubted == "cut" and offset == self.last:
            self.acknowledged = {at: value for at, value in self.acknowledged.items() if at < offset}  # it took effect
        self.last = offset
        if any(at >= offset for at in self.acknowledged):
            raise Wrong(f"number {self.number}: offset {offset} was given out twice")
        self.acknowledged.update(enumerate(values, offset))
        self.watch(offset + len(values))

    def watch(self, end: int) -> None:
        """The reader sees everything that was acknowledged, and nothing more."""
        reader = self.reader
        assert reader is not None
        if (reader.high_watermark, reader.end_offset) != (end, end):
            seen = f"the reader is at {reader.high_watermark} of {reader.end_offset}"
            raise Lost(f"number {self.number}: {seen}, but offset {end - 1} is acknowledged")

    def end(self, writer: int, *, killed: bool) -> None:
        for pipe in self._pipes.pop(writer):
            os.close(pipe)
        _, status = os.waitpid(self._pids.pop(writer), 0)
        if status != (signal.SIGKILL if killed else 0):
            raise Crashed(f"number {self.number}: writer {writer} ended with status {status}")

    def look(self, log: Log) -> None:
        found = {record.offset: record.value or b"" for record in log.read()}
        if list(found) != list(range(log.start_offset, log.end_offset)):
            raise Wrong(f"number {self.number}: offsets {list(found)} of {log.start_offset} to {log.end_offset}")
        starts = {self.start, DELETED} if self.doubted == "delete" else {self.start}
        if log.start_offset not in starts:
            raise Wrong(f"number {self.number}: starts at {log.start_offset}, expected one of {starts}")
        for offset, value in self.acknowledged.items():
            if offset >= log.start_offset and found.pop(offset, None) != value:
                raise Lost(f"number {self.number}: offset {offset} was acknowledged with {value!r}")
        rest = list(found.values())
        if rest != self.doubtful[: len(rest)]:
            raise Wrong(f"number {self.number}: never written, or without its beginning: {found}")

    def hold(self, *, closed_in_order: bool) -> None:
        """Each index equals one built from its segment alone."""
        copy = self.path.parent / "copy"
        copy.mkdir()
        for file in self.path.glob("*.log"):
            shutil.copy(file, copy)
        with Log(self.path, durability=self.durability, **SETTINGS) as log:
            if closed_in_order and not log.recovery.clean:
                raise Wrong(f"number {self.number}: not clean after the last close: {log.recovery}")
            self.look(log)
            log.check()
            if not log.verify().clean:
                raise Wrong(f"number {self.number}: damage")
        Log(copy, durability=self.durability, **SETTINGS).close()
        for built in sorted(copy.glob("*.*index")):
            kept = self.path / built.name
            if int(built.name[:20]) == self.cut_base:
                continue  # a cut may leave one time entry more than a fresh build
            if kept.read_bytes() != built.read_bytes():
                raise Wrong(
                    f"number {self.number}: {built.name} has {kept.read_bytes()!r}, expected {built.read_bytes()!r}"
                )


def main() -> None:
    root, durability, victim = Path(sys.argv[1]), cast(Durability, sys.argv[2]), int(sys.argv[3])
    first, step = int(sys.argv[4]), int(sys.argv[5])
    logging.disable()
    number, deaths = first, 0
    while True:
        path = root / str(number) / "log"
        path.parent.mkdir()
        if not Trio(path, durability, victim, number).run():
            break
        deaths += 1
        print(deaths, flush=True)
        shutil.rmtree(path.parent)
        number += step
    print(deaths)


if __name__ == "__main__":
    main()
