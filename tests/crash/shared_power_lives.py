"""Lives of a log that two writers share, to be ended by power cuts; what is left is opened alone, and shared again."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

from kstore.files.fs import FileSystem
from kstore.files.paths import LOG_SUFFIX
from kstore.log import Log
from kstore.types import Durability
from tests.crash.power_cut_lives import PATH, SETTINGS, LogLife

__all__ = ["RACES", "SHARED_LIVES", "shared_lived"]


class SharedLife(LogLife):
    """``open`` opens one more writer. Whoever opens what a power cut left is alone, and may share it, in turn."""

    def __init__(self, durability: Durability, variant: int = 0) -> None:
        super().__init__(durability, variant)
        self._opened = 0

    def open(self) -> Log:
        return Log(PATH, fs=self.fs, clock=self.clock, durability=self.durability, shared=True, **self.settings)

    def _open(self, fs: FileSystem) -> Log:
        self._opened += 1
        # Two openings look at each state: alone and shared, or the other way round, or both the same.
        shared = self._opened % 3 == 0 or self._opened % 4 == 1
        return Log(PATH, fs=fs, clock=self.clock, durability=self.durability, shared=shared, **SETTINGS)

    def die(self, log: Log, left: bytes, *, changing: bool) -> None:
        """The process of ``log`` is killed in its turn, when it has written ``left`` behind the end."""
        writer = log.writer
        writer._lock.__enter__()
        if changing:
            writer._begin_change()  # type: ignore[attr-defined]
        path = writer.segments.last.path(LOG_SUFFIX)
        if left:
            self.fs.open(path, write=True).write_all([left], self.memory.stat(path).size)
        writer._directory_lock.release()

    def race(self, log: Log, meanwhile: Callable[[], object]) -> None:
        """``log`` appends; it has given up its turn, and not synced yet, when the others do ``meanwhile``."""
        writer = log.writer
        sync = writer._make_durable  # type: ignore[attr-defined]

        def late() -> None:
            meanwhile()
            sync()

        with mock.patch.object(writer, "_make_durable", late):
            self.append(log)


def beside(life: SharedLife) -> None:
    """Two append in turn, over several segments; one goes and comes again, and the other one closes last."""
    one, two = life.open(), life.open()
    for size in (60, 1, 250, 60):
        life.append(one, size=size)
        life.append(two, size=size)
    life.flush(two)
    life.append(one)
    life.close(one)
    life.append(two)
    one = life.open()
    life.append(one)
    two.roll()
    life.append(one, 1)
    life.close(one)
    life.close(two)
    one = life.open()
    life.append(one)
    life.close(one)


def changed(life: SharedLife) -> None:
    """What the one has written the other one deletes and cuts, and the first one goes on behind it."""
    one, two = life.open(), life.open()
    for _ in range(5):
        life.append(one)
        life.append(two)
    life.delete(one, 8)
    life.append(two)
    life.truncate(two, 24)
    for _ in range(3):
        life.append(one)
    life.truncate(one, 28)
    life.append(two)
    life.start_at(one, 300)
    life.append(two)
    life.append(one)
    life.close(two)
    life.close(one)


def dying(life: SharedLife) -> None:
    """One after the other dies in its turn, and who is left recovers the log and goes on."""
    rest = life.open()
    for number, left in enumerate((b"half a batch", b"", b"x" * 700)):
        other = life.open()
        life.append(other)
        life.append(rest)
        life.append(other)
        life.die(other, left, changing=number != 0)
        life.append(rest)
    life.close(rest)


def grouped(life: SharedLife) -> None:
    """Both write several batches at once, the one before the other has synced, and over a roll."""
    life.settings["max_message_bytes"] = 600
    one, two = life.open(), life.open()
    life.group(one, 3, 2, 1)
    life.group(two, 1, 1, size=200)
    if life.durability == "sync":
        life.race(one, lambda: life.group(two, 2, 2, 2))
    life.append(one, 12)
    life.group(two, 2, 3, size=100)
    life.flush(one)
    life.append(two, 14)
    life.append(one, 9)
    life.close(one)
    life.group(two, 4, 1)
    life.close(two)


def racing(life: SharedLife) -> None:
    """What one has written, and not synced yet, another one leaves behind it, and what it appends then is durable."""
    one, two = life.open(), life.open()
    life.append(one)
    life.append(two)

    def roll() -> None:
        two.roll()
        life.append(two)

    def die() -> None:
        life.die(life.open(), b"half a batch", changing=False)
        life.append(two)

    # A segment that the append is too large for, a roll that was asked for, and a recovery.
    life.race(one, lambda: life.append(two, size=260))
    life.race(one, roll)
    life.race(one, die)
    life.close(two)
    life.close(one)


SHARED_LIVES: dict[str, Callable[[SharedLife], None]] = {
    "beside": beside,
    "changed": changed,
    "dying": dying,
    "grouped": grouped,
}
# Of writers that sync what they have written when their turn is over.
RACES: dict[str, Callable[[SharedLife], None]] = {"racing": racing}


def shared_lived(name: str, durability: Durability, variant: int = 0) -> SharedLife:
    """The life of this name, to its end."""
    life = SharedLife(durability, variant)
    (SHARED_LIVES | RACES)[name](life)
    return life
