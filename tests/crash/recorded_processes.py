"""The life of a log whose calls are recorded below the C library; run by ``recorded_lives``.

    python -m tests.crash.recorded_processes DIRECTORY RECORDING NAME DURABILITY VARIANT

The log's file system is the real one, so compiled code writes through its descriptors, as in a user's program. Prints a
pickled ``Lived`` without operations: what was tried and promised, by the number of calls recorded until then.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from kstore.log import Log
from kstore.types import Durability
from tests.crash.power_cut_lives import LogLife
from tests.crash.shared_processes import Lived


class RealLife(LogLife):
    """A life on the system's disk."""

    def __init__(self, directory: Path, recording: Path, durability: Durability, variant: int) -> None:
        super().__init__(durability, variant)
        self.directory = directory
        self.is_shared = False
        self._recording = recording

    @property
    def now(self) -> int:
        return self._recording.read_bytes().count(b"\n")

    def open(self) -> Log:
        return Log(self.directory / "log", durability=self.durability, shared=self.is_shared, **self.settings)

    def one(self, log: Log, size: int = 60) -> None:
        """One record, with one call."""
        number, offset = self.now, log.end_offset
        value = b"%d-%d-" % (offset, number) + b"x" * (size + self.variant)
        self.tried.append((number, offset, value))
        log.append(value)
        if self.durability == "sync":
            self.promises_now(durable=offset + 1)


def singles(life: RealLife) -> None:
    """Single records of every size, with rolls, a flush, and a close in between."""
    log = life.open()
    for size in (60, 1, 250, 60, 120, 20, 60, 500):
        life.one(log, size)
    life.flush(log)
    for size in (60, 60, 400, 90):
        life.one(log, size)
    log = life.reopened(log)
    life.one(log)
    log.roll()
    for size in (60, 300, 1):
        life.one(log, size)
    life.close(log)


def placed(life: RealLife) -> None:
    """Runs of several records and of several batches, which are written where they are to stand."""
    life.settings["max_message_bytes"] = 600
    log = life.open()
    for size in (60, 1, 150, 20):
        life.append(log, size=size)
    life.group(log, 3, 2, 1)
    life.append(log, 12)
    life.flush(log)
    life.group(log, 1, 1, size=200)
    life.append(log, 9, size=100)
    log = life.reopened(log)
    life.append(log)
    life.group(log, 2, 2, size=90)
    life.close(log)


def shared(life: RealLife) -> None:
    """Two members of one log append in turn: single records and runs."""
    life.is_shared = True
    one, two = life.open(), life.open()
    for size in (60, 1, 250, 60, 120):
        life.one(one, size)
        life.one(two, size)
        life.append(one, size=size)
    life.flush(two)
    life.append(two)
    life.close(one)
    life.one(two)
    one = life.open()
    life.one(one)
    life.append(two, 6, size=100)
    life.one(one)
    life.close(two)
    life.close(one)


LIVES: dict[str, Callable[[RealLife], None]] = {"singles": singles, "placed": placed, "shared": shared}


def main() -> None:
    directory, recording, name, durability, variant = sys.argv[1:]
    life = RealLife(Path(directory), Path(recording), cast(Durability, durability), int(variant))
    LIVES[name](life)
    lived = Lived([], life.tried, life.promises, life.holes, life.gone, life.has_groups)
    sys.stdout.buffer.write(pickle.dumps(lived))


if __name__ == "__main__":
    main()
