"""Writers that share a log with rolls and retention, killed one after another at any instant; run by
``test_shared_kills``.

    python -m tests.crash.killed_sharers DIRECTORY DURABILITY WRITERS KILLS SEED

A writer reports the offset of each append that returned. A new one replaces each killed one, and now and then the log
is read meanwhile. Prints how many were killed, and how many records were compared with the reports. The first verdict
ends it.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kstore.errors import OffsetOutOfRangeError
from kstore.log import Log
from kstore.types import Durability
from tests.support.harness.evidence import Crashed, Lost, Wrong

SEGMENT_BYTES, RETENTION_BYTES = 4096, 200_000
SETTINGS: dict[str, Any] = {
    "segment_bytes": SEGMENT_BYTES, "retention_bytes": RETENTION_BYTES, "index_interval_bytes": 256, "flush_ms": 5,
    "file_delete_delay_ms": 200,
}  # fmt: skip
SECONDS_TO_LIVE = (0.002, 0.3)
LOOK_SHARE = 0.2
STATUS_FAILED = 7


def value_of(writer: int, serial: int, number: int) -> bytes:
    return b"%d-%d-%d-" % (writer, serial, number) + b"x" * (serial % 7 * 20)


def write(path: Path, durability: Durability, writer: int, seed: int, told: int) -> None:
    """In the child: appends until it is killed."""
    generator = random.Random(seed)
    log = Log(path, shared=True, durability=durability, **SETTINGS)
    serial = 0
    while True:
        match generator.randrange(60):
            case 0:
                log.roll()
            case 1:
                log.flush()
            case 2:
                log.apply_retention()
            case 3:
                log.close()
                log = Log(path, shared=True, durability=durability, **SETTINGS)
            case 4:
                log.refresh()
                with suppress(OffsetOutOfRangeError):  # the others may delete it at once
                    next(iter(log.read(log.start_offset)), None)
            case _:
                count = generator.choice((1, 1, 3, 20))
                first = log.append_many([value_of(writer, serial, number) for number in range(count)]).first_offset
                os.write(told, b"%d %d %d\n" % (serial, first, count))
                serial += 1


@dataclass(slots=True)
class Sharer:
    """A child, and the pipe on which it reports."""

    number: int
    pid: int
    pipe: int
    kill_at: float


@dataclass(slots=True)
class Scene:
    """The log and the reports: at each offset a value; for each writer the number of acknowledged appends."""

    path: Path
    durability: Durability
    generator: random.Random
    values: dict[int, bytes] = field(default_factory=dict)
    appends: dict[int, int] = field(default_factory=dict)
    started: int = 0
    killed: int = 0
    held: int = 0

    def start(self) -> Sharer:
        self.started += 1
        number, seed = self.started, self.generator.randrange(1 << 30)
        pipe, told = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(pipe)
            try:
                write(self.path, self.durability, number, seed, told)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(STATUS_FAILED)
        os.close(told)
        low, high = SECONDS_TO_LIVE
        return Sharer(number, pid, pipe, time.monotonic() + low * (high / low) ** self.generator.random())

    def kill(self, sharer: Sharer) -> None:
        os.kill(sharer.pid, signal.SIGKILL)
        self.hear(sharer)
        os.close(sharer.pipe)
        _, status = os.waitpid(sharer.pid, 0)
        if not os.WIFSIGNALED(status):
            raise Crashed(f"writer {sharer.number} ended by itself, with status {status}")
        self.killed += 1

    def hear(self, sharer: Sharer) -> None:
        """All its reports until it died; a pipe holds this many, and a writer with more waits."""
        while data := os.read(sharer.pipe, 1 << 20):
            self.take(sharer, data)

    def take(self, sharer: Sharer, data: bytes) -> None:
        for line in data.splitlines():
            serial, first, count = map(int, line.split())
            self.appends[sharer.number] = serial + 1
            for number in range(count):
                value = value_of(sharer.number, serial, number)
                if self.values.setdefault(first + number, value) != value:
                    raise Wrong(f"offset {first + number} was given to {self.values[first + number]!r} and {value!r}")

    def look(self, log: Log, *, all_killed: bool) -> None:
        """Compares the log with the reports; it may also hold the one append in which each writer was killed."""
        records = [(record.offset, record.value or b"") for record in log.read()]
        if not records:
            return
        first, last = records[0][0], records[-1][0]
        if [offset for offset, _ in records] != list(range(first, last + 1)):
            raise Wrong("the offsets are not dense")
        self.held += len(records)
        found = dict(records)
        if not all_killed:
            return
        if lost := [offset for offset in self.values if offset >= first and offset not in found]:
            raise Lost(f"offsets {lost[:5]} ... of {len(lost)}; the log has {first} to {last}")
        if wrong := [offset for offset, value in self.values.items() if offset >= first and found[offset] != value]:
            raise Wrong(f"offset {wrong[0]} has {found[wrong[0]]!r}, acknowledged was {self.values[wrong[0]]!r}")
        size = sum(len(value) for value in found.values())
        if first > log.start_offset or (first > 0 and size < RETENTION_BYTES // 3):
            raise Lost(f"the log starts at {first} with {size} bytes of values")
        for offset, value in records:
            if offset in self.values:
                continue
            writer, serial, _ = map(int, value.split(b"-")[:3])
            if serial != self.appends.get(writer, 0):
                raise Wrong(f"offset {offset} has {value!r}, and writer {writer} reported {self.appends.get(writer)}")
        self.values = {offset: value for offset, value in self.values.items() if offset >= first}


def run(scene: Scene, writers: int, kills: int) -> None:
    sharers: list[Sharer] = []
    try:
        while scene.killed < kills:
            while len(sharers) < writers:
                sharers.append(scene.start())
            sharer = min(sharers, key=lambda one: one.kill_at)
            time.sleep(max(sharer.kill_at - time.monotonic(), 0))
            sharers.remove(sharer)
            scene.kill(sharer)
            if scene.generator.random() < LOOK_SHARE and any(scene.path.glob("*.log")):
                with Log(scene.path, read_only=True) as view, suppress(OffsetOutOfRangeError):
                    scene.look(view, all_killed=False)
            if scene.killed % 25 == 0:
                # All die at the same time: the next writer recovers the log alone, or beside others.
                while sharers:
                    scene.kill(sharers.pop())
                with Log(scene.path, shared=scene.killed % 2 == 0, durability=scene.durability, **SETTINGS) as log:
                    scene.look(log, all_killed=True)
                    log.check()
    finally:
        for sharer in sharers:
            scene.kill(sharer)
    with Log(scene.path, durability=scene.durability, **SETTINGS) as log:
        scene.look(log, all_killed=True)
        log.check()
        if not log.verify().clean:
            raise Wrong("damage")


def main() -> None:
    path, durability, writers, kills, seed = sys.argv[1:]
    logging.disable()
    scene = Scene(Path(path), cast(Durability, durability), random.Random(seed))
    run(scene, int(writers), int(kills))
    print(scene.killed, scene.held)


if __name__ == "__main__":
    main()
