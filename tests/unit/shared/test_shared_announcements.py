"""What a writer of a shared log changes, and that it announces each change to the others first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.clock import SYSTEM_CLOCK
from kstore.errors import DiskFullError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.state.shared_slot import CHANGING, POSITION, TAIL_KNOWN, SharedState
from kstore.types import Durability
from tests.support.fakes.fake_fs import CHANGES, SYNCS, WRITES, Operation, RecordingFs, WatchedFs
from tests.support.fakes.general_path import GeneralPath
from tests.support.lives.log_cases import killed
from tests.support.lives.shared_parts import DURABILITIES, Result, fails, others_of, shared, turn_of, values

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> Durability:
    return request.param  # type: ignore[no-any-return]


# --- what an append changes, and what is announced first --------------------------------------------------------------


def lengthy(path: Path, durability: Durability = "os", *, fs: FileSystem = SYSTEM_FS) -> Log:
    """A writer whose segment has many batches after its last index entry."""
    return Log(path, shared=True, durability=durability, fs=fs, index_interval_bytes=2000)


def changed(fs: RecordingFs) -> set[tuple[str, str]]:
    """The operations that change a file, and the file of each."""
    kinds = CHANGES - SYNCS - {"map", "allocate"} | {"store"}
    return {(each.kind, Path(each.path).suffix) for each in fs.operations if each.kind in kinds}


@pytest.mark.parametrize("how", ["joins", "closed its idle tail"])
def test_a_writer_that_knows_the_tail_changes_nothing_but_the_log(
    how: str, tmp_path: Path, durability: Durability
) -> None:
    fs = RecordingFs()
    with lengthy(tmp_path / "log", durability) as one:
        for number in range(100):
            one.append(b"%d" % number * 30)
        with lengthy(tmp_path / "log", durability, fs=fs) as two:
            if how != "joins":
                two.append(b"x")
                writer_of(two).files.drop_tail()
            fs.operations.clear()
            two.append(b"y")
            assert changed(fs) == {("write_all", ".log"), ("store", ".state")}
            read = sum(operation.size for operation in fs.operations if operation.kind == "pread")
            assert read < 100
        assert values(one)[-1] == b"y"
        one.check()


def test_what_another_process_tells_is_news_until_it_is_taken_in(tmp_path: Path) -> None:
    with shared(tmp_path / "log", "os") as one, shared(tmp_path / "log", "os") as other:
        one.append(b"a")
        assert [turn_of(log).lock.has_news() for log in (one, other)] == [False, True]
        writer_of(other).notice()
        assert [turn_of(log).lock.has_news() for log in (one, other)] == [False, False]
        lock = turn_of(one).lock
    assert lock.has_news() is None


def test_a_tail_that_recovery_left_open_is_announced(tmp_path: Path, durability: Durability) -> None:
    with lengthy(tmp_path / "log", durability) as log:
        for number in range(10):
            log.append(b"%d" % number)
        copy = killed(log, tmp_path / "killed")
    fs = RecordingFs()
    with lengthy(copy, durability) as one, lengthy(copy, durability, fs=fs) as two:
        assert not one.recovery.clean
        fs.operations.clear()
        two.append(b"y")
        assert changed(fs) == {("write_all", ".log"), ("store", ".state")}
        one.append(b"z")
        one.check()


def told(path: Path) -> SharedState:
    with (path / "kstore.state").open("rb") as file:
        file.seek(POSITION)
        state = SharedState.decode(file.read(132))
    assert state is not None
    return state


class AnnouncedFs(WatchedFs):
    """Notes each change of a file that nothing would reveal if the process died after it."""

    def __init__(self, path: Path) -> None:
        super().__init__(SYSTEM_FS)
        self.path = path
        self.is_watched = False
        self.announced = 0
        self.silent: list[str] = []

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if self.is_watched and operation.kind in CHANGES - SYNCS - {"map", "allocate"} and self.is_silent(operation):
            self.silent.append(f"{operation.kind} of {Path(operation.path).name} at {operation.position}")
        return action()

    def is_silent(self, operation: Operation) -> bool:
        state = told(self.path)
        if state.flags & CHANGING:
            self.announced += 1
            return False
        log_path = self.path / f"{state.base_offset:020d}.log"
        is_longer = log_path.stat().st_size > state.position
        if operation.path == str(log_path):
            # The file is then longer, or as long as before.
            return operation.position < state.position and not (operation.kind == "truncate" and is_longer)
        return not (operation.kind in WRITES and operation.path.endswith("index") and is_longer)


def keeps_epoch(log: Log) -> None:
    data = bytearray(build_batch([Record(0, 1, key=None, value=b"v")]))
    data[:8] = log.end_offset.to_bytes(8, "big")
    data[12:16] = (7).to_bytes(4, "big")
    log.append_batches(bytes(data), assign_offsets=False)


def forget_tail(log: Log) -> None:
    """Makes the record say nothing about the active segment."""
    others = others_of(log)
    with turn_of(log).lock:
        others.seen = others.seen._replace(flags=others.seen.flags & ~TAIL_KNOWN)


def is_undone(log: Log) -> None:
    """An append that fails after it is written and indexed."""

    def fail() -> None:
        raise DiskFullError(28, "full")

    appends = writer_of(log).appends
    with mock.patch.object(appends, "path", GeneralPath(appends.path, fail)):
        for _ in range(4):
            with pytest.raises(DiskFullError):
                log.append_many([b"u" * 90])


def retains(log: Log) -> None:
    writer = writer_of(log)
    writer.reconfigure(replace(writer.context.config, retention_bytes=1500))
    assert log.apply_retention().segment_count


STEPS: dict[str, tuple[Callable[[Log], object], bool]] = {
    "append": (lambda log: log.append(b"x" * 90), False),
    "an append that rolls": (lambda log: log.append_many([b"x" * 90] * 30), True),
    "an append with its own epoch": (keeps_epoch, True),
    "an append that fails": (fails, True),
    "an append that is undone": (is_undone, True),
    "roll": (lambda log: log.roll(), True),
    "flush": (lambda log: log.flush(), True),
    "refresh": (lambda log: log.refresh(), False),
    "delete": (lambda log: log.delete_records(9), True),
    "truncate": (lambda log: log.truncate_to(30), True),
    "start at an offset": (lambda log: writer_of(log).truncate_fully_and_start_at(500), True),
    "retention": (retains, True),
    "idle roll": (lambda log: writer_of(log).roll_if_idle(), False),
    "close": (lambda log: log.close(), False),
}


@pytest.mark.parametrize("tail", ["open", "known", "not known"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.sampled(36)
def test_what_changes_a_file_is_announced_first(step: str, tail: str, tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "log"
    settings: dict[str, Any] = {
        "segment_bytes": 1024, "index_interval_bytes": 200, "max_message_bytes": 700, "flush_ms": 10**9
    }  # fmt: skip
    fs = AnnouncedFs(path)
    one = Log(path, shared=True, durability=durability, fs=fs, **settings)
    two = shared(path, durability, **settings)
    first_ms = SYSTEM_CLOCK.now_ms() - 1000
    for number in range(42):
        # The last record has the latest time and no index entry: a tail unknown to the record is rebuilt.
        (one, two)[number % 2].append(b"%d" % number * 30, timestamp=first_ms + number)
    one.refresh()
    if tail != "open":
        writer_of(one).files.drop_tail()
    if tail == "not known":
        forget_tail(one)
    fs.is_watched = True
    action, changes = STEPS[step]
    action(one)
    fs.is_watched = False
    assert not fs.silent
    assert fs.announced or not changes
    assert two.append(b"two") == two.end_offset - 1
    assert one.closed or one.append(b"one") == two.end_offset - 1
    for log in (one, two):
        if not log.closed:
            log.check()
            log.close()
    with Log(path, durability=durability, **settings) as log:
        assert log.recovery.clean
        log.check()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    ("damage", "who"),
    [("cut", "goes on"), ("zeros", "goes on"), ("cut", "joins"), ("zeros", "joins"), ("gone", "joins")],
)
def test_an_index_that_lost_entries_is_rebuilt(
    damage: str, who: str, suffix: str, tmp_path: Path, durability: Durability
) -> None:
    path = tmp_path / "log"
    one, two = shared(path, durability, index_interval_bytes=200), shared(path, durability, index_interval_bytes=200)
    for number in range(10):
        one.append(b"%d" % number * 60, timestamp=number)
    two.append(b"two" * 60, timestamp=10)
    one.append_many([b"x" * 60] * 5, timestamps=list(range(20, 25)))
    [index] = path.glob("*" + suffix)
    good = index.read_bytes()
    if damage == "gone":
        index.unlink()
    elif damage == "cut":
        os.truncate(index, len(good) // 2 + 1)
    elif suffix == ".index":
        index.write_bytes(bytes(len(good)))
    if who == "joins":
        two.refresh()
        writer_of(two).files.drop_tail()
    assert two.append(b"y", timestamp=30) == 16
    assert one.append(b"z", timestamp=31) == 17
    one.close()
    two.close()
    with Log(path, durability=durability) as log:
        assert [record.offset for record in log.read()] == list(range(18))
        log.check()
        assert log.verify().clean
    assert index.read_bytes()[: len(good)] == good


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("tail", ["known", "not known"])
def test_the_rebuild_of_an_index_is_announced_first(
    tail: str, suffix: str, tmp_path: Path, durability: Durability
) -> None:
    """A writer killed in it leaves at most a hole of zeros: the next writer must know that it has to look."""
    path = tmp_path / "log"
    fs = AnnouncedFs(path)
    one = Log(path, shared=True, durability=durability, fs=fs, index_interval_bytes=200)
    two = shared(path, durability, index_interval_bytes=200)
    for number in range(20):
        two.append(b"%d" % number * 60, timestamp=number)
    one.refresh()
    writer_of(one).files.drop_tail()
    if tail == "not known":
        forget_tail(one)
    [index] = path.glob("*" + suffix)
    good = index.read_bytes()
    os.truncate(index, len(good) // 2 + 1)
    fs.is_watched = True
    assert one.append(b"x", timestamp=30) == 20
    fs.is_watched = False
    assert not fs.silent
    assert fs.announced
    assert two.append(b"y", timestamp=31) == 21
    one.close()
    two.close()
    assert index.read_bytes()[: len(good)] == good
