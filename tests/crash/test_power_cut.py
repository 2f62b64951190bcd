"""Power cuts: at every file operation of a log's life, with none, all and some of what was not synced on the disk."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import KstoreError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.types import Durability
from tests.crash_states import Choice, Disk, all_but, another_boot, everything, nothing, only, some, write_state
from tests.evidence import Lost, Untyped, Wrong, shuffled
from tests.fake_clock import ManualClock
from tests.fake_fs import RecordingFs

SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64}
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


class Life:
    """A log's life, recorded, with marks for what was promised: "durable" up to an offset, "deleted" below one."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.fs = RecordingFs(SYSTEM_FS)
        self.path = path
        self.durability = durability
        # By the number of operations before it: an offset, and a value that was tried there.
        self.tried: list[tuple[int, int, bytes]] = []
        # A truncation into a batch takes all of it, and offsets are not given out twice.
        self.holes: dict[int, int] = {}
        # Truncations that had returned after so many operations: where they began.
        self.gone: list[tuple[int, int]] = []

    def open(self) -> Log:
        # No thread of its own: what is recorded is the same each time.
        return Log(self.path, fs=self.fs, clock=ManualClock(), durability=self.durability, flush_ms=10**9, **SETTINGS)

    def append(self, log: Log, count: int = 3) -> None:
        number, first = len(self.fs.operations), log.end_offset
        values = [b"%d-%d-" % (offset, number) + b"x" * 60 for offset in range(first, first + count)]
        self.tried += [(number, offset, value) for offset, value in enumerate(values, start=first)]
        log.append_many(values)
        if self.durability == "sync":
            self.fs.mark("durable", log.end_offset)

    def truncate_to(self, log: Log, offset: int) -> None:
        batch = offset - offset % 3
        self.fs.mark("durable", batch)
        self.holes.update(dict.fromkeys(range(batch, offset), len(self.fs.operations)))
        log.truncate_to(offset)
        # What was truncated stays gone.
        self.gone.append((len(self.fs.operations), batch))

    def live(self) -> None:
        self.fs.mark("durable", 0)
        self.fs.mark("deleted", 0)
        self.fs.mark("start", 0)
        with self.open() as log:
            for _ in range(7):
                self.append(log)
            log.flush()
            self.fs.mark("durable", log.end_offset)
            self.append(log)
            self.fs.mark("deleted", 6)
            log.delete_records(6)
            self.fs.mark("start", 6)
            self.append(log)
            self.truncate_to(log, log.end_offset - 4)
            self.append(log)
            end = log.end_offset
        self.fs.mark("durable", end)
        with self.open() as log:
            self.append(log)
            log.roll()
            self.append(log, 1)
            end = log.end_offset
        self.fs.mark("durable", end)


def crashes(life: Life, root: Path) -> Iterator[tuple[int, Disk, dict[str, int]]]:
    """The disk after each operation, with what was promised by then."""
    disk = Disk(root, is_empty=True)
    promised: dict[str, int] = {}
    for number, operation in enumerate(life.fs.operations):
        if operation.kind.startswith("mark "):
            promised[operation.kind.removeprefix("mark ")] = operation.position
        else:
            disk.apply(operation)
            yield number, disk, promised


def survive(path: Path, life: Life, number: int, promised: dict[str, int]) -> None:
    """Opens one state of the disk and holds it against what was promised."""
    ever = {
        (offset, value)
        for at, offset, value in life.tried
        if at <= number and not any(at < done <= number and offset >= first for done, first in life.gone)
    }
    holes = {offset for offset, at in life.holes.items() if at <= number}
    try:
        with Log(path, durability=life.durability, **SETTINGS) as log:
            found = {record.offset: record.value for record in log.read()}
            start, end = log.start_offset, log.end_offset
            if log.recovery.corrupt:
                raise Lost(f"fenced: {log.recovery.corrupt}")
            if start < promised["start"]:
                raise Wrong(f"deleted records are back: the log starts at {start}")
            missing = set(range(max(promised["deleted"], start), promised["durable"])) - set(found) - holes
            if missing:
                raise Lost(f"offsets {sorted(missing)} of {promised}; the log has {sorted(found)}")
            strange = [item for item in found.items() if item not in ever]
            if strange:
                raise Wrong(f"never written: {strange}")
            if list(found) != sorted(found) or not set(range(start, end)) - set(found) <= holes:
                raise Wrong(f"offsets {list(found)} in a log from {start} to {end}")
            log.check()
            if log.append(b"goes on") != end:
                raise Wrong("the next offset")
        with Log(path, durability=life.durability, **SETTINGS) as log:
            if not log.recovery.clean or log.end_offset != end + 1:
                raise Wrong(f"after a close: {log.recovery}")
    except KstoreError as error:
        raise Lost(f"cannot be opened or read: {error!r}") from error
    except (OSError, LookupError, ValueError) as error:
        raise Untyped(repr(error)) from error


def choices_for(disk: Disk, generator: random.Random, count: int) -> Iterator[Choice]:
    """The harshest disk, the kindest, and ``count`` others: one unit lost, one unit kept, any part of them."""
    yield nothing
    yield everything
    units = disk.unit_count()
    singles = shuffled(range(2 * units), generator.random(), count // 2)
    for number in singles:
        yield all_but(number // 2) if number % 2 else only(number // 2)
    for _ in range(count - len(singles)):
        yield some(generator)


def cut_power(tmp_path: Path, durability: Durability, states_per_stop: int, stops: int, seed: int) -> int:
    """Lives a life, cuts the power at ``stops`` of its operations, and counts the different states that were survived.

    A state is another one where what was promised is another.
    """
    root = fast_directory(tmp_path)
    life = Life(root / "log", durability)
    life.live()
    chosen = set(shuffled(range(len(life.fs.operations)), seed, stops))
    generator = random.Random(seed)
    seen: set[int] = set()
    shutil.rmtree(root / "log")
    try:
        with another_boot(root):
            for number, disk, promised in crashes(life, root):
                for choose in choices_for(disk, generator, states_per_stop) if number in chosen else ():
                    state = disk.state(choose)
                    known = hash((tuple(state.items()), tuple(promised.values())))
                    if known not in seen:
                        seen.add(known)
                        write_state(state, root / "state")
                        survive(root / "state" / "log", life, number, promised)
                        shutil.rmtree(root / "state")
    finally:
        shutil.rmtree(root)
    return len(seen)


def fast_directory(tmp_path: Path) -> Path:
    """A directory in memory where there is one: a sync of thousands of states would take the disk's time."""
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir():
        return tmp_path
    return Path(tempfile.mkdtemp(prefix="kstore-crash-", dir=shared_memory))


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "torn tail", "unclean open", "rebuilt")
def test_a_power_cut_loses_nothing_that_was_durable(
    durability: Durability, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    states = cut_power(tmp_path, durability, 12, 150, seed)
    assert states > 300
    tried("states", states)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "torn tail", "unclean open", "rebuilt")
def test_a_power_cut_loses_nothing_that_was_durable_many_times(
    durability: Durability, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("states", cut_power(tmp_path, durability, 150, 10**9, seed))
