"""The life of a log whose writers are processes of their own, recorded; run by ``shared_power_lives``.

    python -m tests.crash.shared_processes DIRECTORY NAME DURABILITY VARIANT

Every operation of every process is done and recorded under one lock, so that the recorded order is the real one. A
writer that dies is really killed, with its locks and its turn. Prints a pickled ``Lived``: what was done and what was
promised.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.types import Durability
from tests.crash.power_cut_lives import PATH, LogLife, Promise
from tests.crash.power_cuts import ROOT
from tests.support.fakes.fake_fs import CHANGES, Operation, WatchedFs
from tests.support.lives.shared_parts import drop_tail, others_of, turn_of

Result = TypeVar("Result")

# The directory that stands for ``ROOT``, and what was done in it.
DISK, RECORDED, GATE = "disk", "operations", "gate"
PAUSED = b"paused"


class Lived(NamedTuple):
    """The result of a life; see ``LogLife``."""

    operations: list[Operation]
    tried: list[tuple[int, int, bytes]]
    promises: list[tuple[int, Promise]]
    holes: dict[int, int]
    gone: list[tuple[int, int]]
    has_groups: bool


class ProcessFs(WatchedFs):
    """One process's view of the disk; its changes are recorded with those of the other processes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(SYSTEM_FS)
        self._disk = str(directory / DISK)
        self._gate = os.open(directory / GATE, os.O_RDWR | os.O_CREAT)
        self._recorded = os.open(directory / RECORDED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._is_within = False

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind not in CHANGES | {"store"} or self._is_within:
            return action()
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        self._is_within = True
        try:
            result = action()
            self._record(operation, result)
            return result
        finally:
            self._is_within = False
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def _record(self, operation: Operation, result: object) -> None:
        if operation.kind == "create":
            operation = replace(operation, inode=cast(int, result))
        mtime_ns = 0
        path = Path(operation.path)
        if operation.inode and path.exists():
            stat = path.stat()
            mtime_ns = stat.st_mtime_ns if stat.st_ino == operation.inode else 0
        operation = replace(
            operation, path=self._in_root(operation.path), target=self._in_root(operation.target), mtime_ns=mtime_ns
        )
        data = pickle.dumps(operation)
        os.write(self._recorded, len(data).to_bytes(4, "big") + data)

    def _in_root(self, path: str) -> str:
        return f"{ROOT}{path.removeprefix(self._disk)}" if path.startswith(self._disk) else path


# --- a writer ---------------------------------------------------------------------------------------------------------


class Writer:
    """In a child: the log, and the commands for it."""

    def __init__(self, log: Log, fs: ProcessFs, commands: int, told: int) -> None:
        self.log = log
        self.fs = fs
        self.commands = commands
        self.told = told

    def append(self, values: list[bytes]) -> int:
        return self.log.append_many(values).first_offset

    def group(self, values: list[bytes], counts: Sequence[int]) -> int:
        rest = iter(values)
        batches = [build_batch([Record(at, 0, value=next(rest)) for at in range(count)]) for count in counts]
        return self.log.append_batches(b"".join(batches)).first_offset

    def append_late(self, values: list[bytes]) -> int:
        """Writes them and releases its turn, and waits before it syncs them."""
        durability: Any = writer_of(self.log).appends._durability
        sync = durability.make_durable

        def late() -> None:
            os.write(self.told, PAUSED)
            os.read(self.commands, 1)
            sync()

        durability.make_durable = late
        try:
            return self.append(values)
        finally:
            durability.make_durable = sync

    def end(self) -> int:
        return self.log.end_offset

    def close_tail(self) -> None:
        """Like a process with too many open files."""
        drop_tail(self.log)

    def start_at(self, offset: int) -> None:
        writer_of(self.log).truncate_fully_and_start_at(offset)

    def die(self, left: bytes, *, changing: bool) -> None:
        """Is killed in its turn, after writing ``left`` at the end of the file."""
        turn_of(self.log).lock.__enter__()
        if changing:
            others_of(self.log).announce_change()
        if left:
            path = writer_of(self.log).segments.last.path(LOG_SUFFIX)
            self.fs.open(path, write=True).write_all([left], SYSTEM_FS.stat(path).size)
        os.kill(os.getpid(), signal.SIGKILL)


def serve(directory: Path, durability: Durability, settings: dict[str, Any], commands: int, told: int) -> None:
    fs = ProcessFs(directory)
    log = Log(directory / DISK / PATH.relative_to(ROOT), shared=True, durability=durability, fs=fs, **settings)
    writer = Writer(log, fs, commands, told)
    os.write(told, pickle.dumps(None))
    name = ""
    while name != "close":
        name, arguments, options = pickle.loads(os.read(commands, 1 << 20))
        own = getattr(writer, name, None)
        os.write(told, pickle.dumps((own or getattr(log, name))(*arguments, **options)))


class RemoteLog:
    """A writer in a process of its own, as a life sees it."""

    def __init__(self, directory: Path, durability: Durability, settings: dict[str, Any]) -> None:
        commands, self._tell = os.pipe()
        self._hear, told = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._tell)
            os.close(self._hear)
            try:
                serve(directory, durability, settings, commands, told)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(commands)
        os.close(told)
        self._heard()

    def ask(self, name: str, *arguments: object, **options: object) -> Any:
        self.begin(name, *arguments, **options)
        return self._heard()

    def begin(self, name: str, *arguments: object, **options: object) -> None:
        os.write(self._tell, pickle.dumps((name, arguments, options)))

    def _heard(self) -> Any:
        answer = os.read(self._hear, 1 << 20)
        assert answer, "the writer has died"
        return pickle.loads(answer)

    def ask_late(self, meanwhile: Callable[[], object], values: list[bytes]) -> int:
        self.begin("append_late", values)
        assert os.read(self._hear, len(PAUSED)) == PAUSED
        meanwhile()
        os.write(self._tell, b"!")
        return cast(int, self._heard())

    def end(self, status: int) -> None:
        os.close(self._tell)
        os.close(self._hear)
        found = os.waitpid(self.pid, 0)[1]
        assert found == status, f"a writer ended with status {found}, expected {status}"

    @property
    def end_offset(self) -> int:
        return cast(int, self.ask("end"))

    def roll(self) -> None:
        self.ask("roll")


# --- lives ------------------------------------------------------------------------------------------------------------


class ProcessesLife(LogLife):
    """``open`` starts one more process that writes to the log."""

    def __init__(self, directory: Path, durability: Durability, variant: int = 0) -> None:
        super().__init__(durability, variant)
        self._directory = directory
        (directory / DISK).mkdir()
        (directory / RECORDED).touch()
        self._recorded = (directory / RECORDED).open("rb")
        self._done: list[Operation] = []

    @property
    def operations(self) -> Sequence[Operation]:
        """What all processes have done so far; none is working now."""
        while size := self._recorded.read(4):
            self._done.append(pickle.loads(self._recorded.read(int.from_bytes(size, "big"))))
        return self._done

    @property
    def now(self) -> int:
        return len(self.operations)

    def open(self) -> RemoteLog:  # type: ignore[override]
        return RemoteLog(self._directory, self.durability, self.settings)

    def append(self, log: RemoteLog, count: int = 3, size: int = 60) -> None:  # type: ignore[override]
        number, values = self._values(count, size)
        self._appended(number, log.ask("append", values), values)

    def group(self, log: RemoteLog, *counts: int, size: int = 60) -> None:  # type: ignore[override]
        self.has_groups = True
        number, values = self._values(sum(counts), size)
        self._appended(number, log.ask("group", values, counts), values)

    def race(self, log: RemoteLog, meanwhile: Callable[[], object]) -> None:
        """``log`` appends; between the end of its turn and its sync, the others do ``meanwhile``."""
        number, values = self._values(3, 60)
        self._appended(number, log.ask_late(meanwhile, values), values)

    def _values(self, count: int, size: int) -> tuple[int, list[bytes]]:
        number = self.now
        return number, [b"%d-%d-" % (each, number) + b"x" * (size + self.variant) for each in range(count)]

    def _appended(self, number: int, first: int, values: list[bytes]) -> None:
        self.tried += [(number, offset, value) for offset, value in enumerate(values, start=first)]
        if self.durability == "sync":
            durable = max(first + len(values), self.promises[-1][1].durable)
            self.promises_now(durable=durable)

    def flush(self, log: RemoteLog) -> None:  # type: ignore[override]
        log.ask("flush")
        self.promises_now(durable=log.end_offset)

    def close(self, log: RemoteLog) -> None:  # type: ignore[override]
        end = log.end_offset
        log.ask("close")
        log.end(0)
        self.promises_now(durable=end)

    def delete(self, log: RemoteLog, before: int) -> None:  # type: ignore[override]
        self.promises_now(deleted=before)
        log.ask("delete_records", before)
        self.promises_now(start=before)

    def truncate(self, log: RemoteLog, offset: int) -> None:  # type: ignore[override]
        batch = offset - offset % 3
        self.promises_now(durable=min(batch, self.promises[-1][1].durable))
        self.holes.update(dict.fromkeys(range(batch, offset), self.now))
        log.ask("truncate_to", offset)
        self.gone.append((self.now, batch))

    def start_at(self, log: RemoteLog, offset: int) -> None:  # type: ignore[override]
        end = log.end_offset
        self.promises_now(durable=0, deleted=offset)
        self.holes.update(dict.fromkeys(range(end, offset), self.now))
        log.ask("start_at", offset)
        self.gone.append((self.now, 0))
        self.promises_now(durable=offset, start=offset)

    def die(self, log: RemoteLog, left: bytes, *, changing: bool) -> None:
        """The process of ``log`` is killed in its turn, after writing ``left`` at the end of the file."""
        log.begin("die", left, changing=changing)
        log.end(signal.SIGKILL)


def beside(life: ProcessesLife) -> None:
    """Two append in turn over several segments; one leaves and returns, and the other closes last."""
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


def changed(life: ProcessesLife) -> None:
    """One deletes and cuts what the other has written, and the other continues after it."""
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


def dying(life: ProcessesLife) -> None:
    """One by one they die in their turns, and a survivor recovers the log and continues."""
    rest = life.open()
    for number, left in enumerate((b"half a batch", b"", b"x" * 700)):
        other = life.open()
        life.append(other)
        life.append(rest)
        life.append(other)
        life.die(other, left, changing=number != 0)
        life.append(rest)
    life.close(rest)


def joining(life: ProcessesLife) -> None:
    """Three join one after another, close their tails and continue, and the one that recovered the log dies."""
    one = life.open()
    life.append(one)
    two = life.open()
    life.append(two)
    one.ask("close_tail")
    life.append(two, size=120)
    life.append(one)
    three = life.open()
    life.die(two, b"half", changing=True)
    life.append(three)
    one.ask("close_tail")
    life.append(one)
    life.die(three, b"", changing=False)
    four = life.open()
    life.append(four)
    life.flush(four)
    life.close(one)
    life.append(four)
    life.close(four)


def grouped(life: ProcessesLife) -> None:
    """Both write several batches at once, one before the other has synced, and over a roll."""
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


def racing(life: ProcessesLife) -> None:
    """One appends after what another has written but not synced yet, and its own append is durable."""
    one, two = life.open(), life.open()
    life.append(one)
    life.append(two)

    def roll() -> None:
        two.roll()
        life.append(two)

    def die() -> None:
        life.die(life.open(), b"half a batch", changing=False)
        life.append(two)

    # An append too large for the segment, a requested roll, and a recovery.
    life.race(one, lambda: life.append(two, size=260))
    life.race(one, roll)
    life.race(one, die)
    life.close(two)
    life.close(one)


LIVES: dict[str, Callable[[ProcessesLife], None]] = {
    "beside": beside,
    "changed": changed,
    "dying": dying,
    "joining": joining,
    "grouped": grouped,
}
# For writers that sync after their turn.
RACES: dict[str, Callable[[ProcessesLife], None]] = {"racing": racing}


def main() -> None:
    directory, name, durability, variant = sys.argv[1:]
    logging.disable()
    life = ProcessesLife(Path(directory), cast(Durability, durability), int(variant))
    (LIVES | RACES)[name](life)
    lived = Lived(list(life.operations), life.tried, life.promises, life.holes, life.gone, life.has_groups)
    sys.stdout.buffer.write(pickle.dumps(tuple(lived)))


if __name__ == "__main__":
    main()
