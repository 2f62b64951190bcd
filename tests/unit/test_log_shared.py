"""Several writers of one log, here in one process, which makes no difference to their locks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import crc32c
import pytest

from kstore.clock import SYSTEM_CLOCK
from kstore.engine.others import Others
from kstore.engine.producers import LogProducers
from kstore.errors import (
    ClosedError,
    ConfigError,
    CorruptBatchError,
    DiskFullError,
    KstoreError,
    LockedError,
    PoisonedError,
    SharedLogError,
    StorageError,
    SyncFailedError,
    UnsupportedFormatError,
)
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import DirectoryLock
from kstore.files.paths import LOCK
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.segments.tail import SegmentTail
from kstore.shared import catch_up as log_catch_up
from kstore.shared import turn as log_turn
from kstore.shared.turn import LEFT_FOR_THE_TURN
from kstore.state.producer_state import ProducerState
from kstore.state.shared_slot import CHANGING, POSITION, TAIL_KNOWN, SharedState
from kstore.types import Durability
from tests.fake_fs import CHANGES, SYNCS, WRITES, FailingFs, Fault, Operation, RecordingFs, WatchedFs
from tests.log_cases import data, fenced, killed, state_of, tail_lost
from tests.shared_parts import others_of, turn_of
from tests.version_one import version_one_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")

Result = TypeVar("Result")

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


def shared(path: Path, durability: Durability = "sync", **settings: Any) -> Log:
    return Log(path, shared=True, durability=durability, **settings)


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> Durability:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def pair(tmp_path: Path, durability: Durability) -> Iterator[tuple[Log, Log]]:
    with (
        shared(tmp_path / "log", durability, segment_bytes=1024) as one,
        shared(tmp_path / "log", durability, segment_bytes=1024) as two,
    ):
        yield one, two


# --- append ---------------------------------------------------------------------------------------------------------


def test_each_writer_continues_after_the_others(pair: tuple[Log, Log], tmp_path: Path) -> None:
    expected: list[bytes | None] = []
    with Log(tmp_path / "log", read_only=True) as view:
        for number in range(60):
            log = pair[number * number % 3 % 2]
            expected.append(b"%d" % number * 9)
            assert log.append(expected[-1]) == number
            for each in (*pair, view):
                assert (each.high_watermark, each.end_offset) == (number + 1, number + 1)
        for each in (*pair, view):
            assert values(each) == expected
            each.check()
    assert len(list((tmp_path / "log").glob("*.log"))) > 3


def test_the_last_one_to_close_leaves_the_log_in_order(pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    one.append(b"a")
    two.append(b"b")
    one.append(b"c")
    one.close()
    assert two.append(b"d") == 3
    two.close()
    with Log(tmp_path / "log") as log:
        assert log.recovery.clean
        assert values(log) == [b"a", b"b", b"c", b"d"]
        log.check()
        assert log.verify().clean


def test_one_that_never_wrote_may_be_the_last(tmp_path: Path, durability: Durability) -> None:
    one, two = shared(tmp_path / "log", durability), shared(tmp_path / "log", durability)
    one.append_many([b"x" * 100] * 200)
    one.close()
    two.close()
    with Log(tmp_path / "log") as log:
        assert log.recovery.clean
        assert log.end_offset == 200
        log.check()


def test_a_clean_log_stays_clean_without_writes(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"a")
    shared(tmp_path / "log").close()
    with Log(tmp_path / "log") as log:
        assert log.recovery.clean
        assert values(log) == [b"a"]


def test_threads_of_several_writers_get_dense_offsets(pair: tuple[Log, Log]) -> None:
    offsets: list[int] = []

    def work(log: Log, number: int) -> None:
        offsets.extend(log.append(b"%d" % number) for _ in range(25))

    threads = [threading.Thread(target=work, args=(pair[number % 2], number)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(150))
    assert [record.offset for record in pair[0].read()] == list(range(150))


def test_a_follower_in_one_writer_gets_what_another_appends(pair: tuple[Log, Log]) -> None:
    one, two = pair
    reader = one.read(follow=True, timeout=300)
    for number in range(10):
        appending = threading.Timer(0.01, two.append, args=(b"%d" % number,))
        appending.start()
        assert next(reader).value == b"%d" % number
        appending.join()


def test_an_append_is_announced_through_memory(tmp_path: Path, durability: Durability) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", shared=True, durability=durability, fs=fs) as log:
        log.append(b"a")
        fs.operations.clear()
        log.append(b"b")
        asked = {(operation.kind, Path(operation.path).name) for operation in fs.operations}
    assert {kind for kind, name in asked if name == "kstore.state"} == {"store"}
    assert {kind for kind, name in asked if name != "kstore.state"} <= {"write_all", "fdatasync"}


def test_a_reader_woken_by_a_write_waits_until_the_end_is_announced(
    pair: tuple[Log, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    one.append(b"a")
    two.refresh()
    found: list[int] = []

    def look() -> None:
        two.refresh()
        found.append(two.writer.ends.end_offset)

    looking = threading.Thread(target=look)
    others = others_of(one)
    store = others.store

    def late(now: SharedState) -> None:
        if not looking.ident:
            looking.start()
            looking.join(0.1)
        store(now)

    monkeypatch.setattr(others, "store", late)
    one.append(b"b")
    looking.join()
    assert found == [2]


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
                two.writer.files.drop_tail()
            fs.operations.clear()
            two.append(b"y")
            assert changed(fs) == {("write_all", ".log"), ("store", ".state")}
            read = sum(operation.size for operation in fs.operations if operation.kind == "pread")
            assert read < 100
        assert values(one)[-1] == b"y"
        one.check()


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
            # It is longer then, or again as long as it was.
            return operation.position < state.position and not (operation.kind == "truncate" and is_longer)
        return not (operation.kind in WRITES and operation.path.endswith("index") and is_longer)


def keeps_epoch(log: Log) -> None:
    data = bytearray(build_batch([Record(0, 1, key=None, value=b"v")]))
    data[:8] = log.end_offset.to_bytes(8, "big")
    data[12:16] = (7).to_bytes(4, "big")
    log.append_batches(bytes(data), assign_offsets=False)


def fails(log: Log) -> None:
    """An append of two batches that rolls, and then meets a full disk."""
    fs = log.writer.context.fs
    before, count = SegmentTail.write, 0

    def write(self: SegmentTail, *arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise DiskFullError(28, "full", str(fs))
        before(self, *arguments, **options)

    with mock.patch.object(SegmentTail, "write", write), pytest.raises(DiskFullError):
        log.append_many([b"f" * 300] * 12)
    assert count == 2


def forget_tail(log: Log) -> None:
    """Makes the record describe nothing of the active segment."""
    others = others_of(log)
    with turn_of(log).lock:
        others.seen = others.seen._replace(flags=others.seen.flags & ~TAIL_KNOWN)


def is_undone(log: Log) -> None:
    """An append that is written and indexed when it fails."""
    with mock.patch.object(log.writer.appends._durability, "publish", side_effect=DiskFullError(28, "full")):
        for _ in range(4):
            with pytest.raises(DiskFullError):
                log.append(b"u" * 90)


def retains(log: Log) -> None:
    writer = log.writer
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
    "start anew": (lambda log: log.writer.truncate_fully_and_start_at(500), True),
    "retention": (retains, True),
    "idle roll": (lambda log: log.writer.roll_if_idle(), False),
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
        # The last one has no index entry, and is the latest: a tail that the record does not describe is rebuilt.
        (one, two)[number % 2].append(b"%d" % number * 30, timestamp=first_ms + number)
    one.refresh()
    if tail != "open":
        one.writer.files.drop_tail()
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
        two.writer.files.drop_tail()
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
    """A writer killed in it leaves a hole of zeros, or less: the next writer must know that it has to look."""
    path = tmp_path / "log"
    fs = AnnouncedFs(path)
    one = Log(path, shared=True, durability=durability, fs=fs, index_interval_bytes=200)
    two = shared(path, durability, index_interval_bytes=200)
    for number in range(20):
        two.append(b"%d" % number * 60, timestamp=number)
    one.refresh()
    one.writer.files.drop_tail()
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


# --- what else changes a log ----------------------------------------------------------------------------------------


def test_truncation_deletion_and_a_fresh_start_reach_all_processes(pair: tuple[Log, Log]) -> None:
    one, two = pair
    for number in range(20):
        pair[number % 2].append(b"%d" % number * 100)
    assert two.delete_records(15) == 15
    one.refresh()
    assert one.start_offset == 15
    one.truncate_to(18)
    assert two.end_offset == 18
    assert two.append(b"behind") == 18
    assert values(one)[-1] == b"behind"
    two.writer.truncate_fully_and_start_at(100)
    assert one.append(b"fresh") == 100
    assert values(one) == values(two) == [b"fresh"]
    for log in pair:
        log.refresh()
        log.check()


def test_retention_by_one_is_seen_by_the_other(tmp_path: Path) -> None:
    with (
        shared(tmp_path / "log", retention_bytes=3000, segment_bytes=1024) as one,
        shared(tmp_path / "log", segment_bytes=1024) as two,
    ):
        for _ in range(40):
            one.append(b"x" * 200)
            two.append(b"y" * 200)
        assert one.start_offset > 0
        two.refresh()
        assert two.start_offset == one.start_offset
        assert [record.offset for record in two.read()] == list(range(one.start_offset, 80))


def test_flush_takes_in_what_others_wrote(tmp_path: Path) -> None:
    with shared(tmp_path / "log", "os") as one, shared(tmp_path / "log", "os") as two:
        one.append(b"a")
        two.flush()
        assert two.metrics()["recovery_point"] == 1
        one.append(b"b")
        assert one.metrics()["recovery_point"] == 1


def test_sequences_of_producers_are_checked_over_all_writers(pair: tuple[Log, Log]) -> None:
    one, two = pair

    def batch(sequence: int) -> bytes:
        return bytes(build_batch([Record(0, 1, key=None, value=b"v")], producer_id=7, producer_epoch=0,
                                 base_sequence=sequence))  # fmt: skip

    assert one.append_batches(batch(0)).first_offset == 0
    assert two.append_batches(batch(1)).first_offset == 1
    again = one.append_batches(batch(1))
    assert (again.is_duplicate, again.first_offset) == (True, 1)
    with pytest.raises(KstoreError):
        one.append_batches(batch(5))


def of_producer(sequence: int) -> bytes:
    now_ms = SYSTEM_CLOCK.now_ms()  # old ones are forgotten
    return bytes(build_batch([Record(0, now_ms, key=None, value=b"v")], producer_id=7, producer_epoch=0,
                             base_sequence=sequence))  # fmt: skip


class TurnFs(WatchedFs):
    """Counts the bytes that a writer reads from segments in its turns."""

    def __init__(self) -> None:
        super().__init__(SYSTEM_FS)
        self.others: Others | None = None
        self.in_turns = self.in_all = 0

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind == "pread" and operation.path.endswith(".log"):
            self.in_all += operation.size
            self.in_turns += operation.size if self.others is not None and self.others.has_turn else 0
        return action()


@pytest.mark.parametrize("how", ["append", "known producers", "expired ones", "stable offset"])
def test_what_producers_have_written_is_read_before_the_turn(how: str, tmp_path: Path) -> None:
    fs = TurnFs()
    with shared(tmp_path / "log", "os") as one, shared(tmp_path / "log", "os", fs=fs) as two:
        one.append_batches(of_producer(0))
        for _ in range(2 * LEFT_FOR_THE_TURN):
            one.append(b"x" * 30)
        one.append_batches(of_producer(1))
        fs.others = others_of(two)
        fs.in_turns = fs.in_all = 0
        if how == "append":
            assert two.append_batches(of_producer(1)).is_duplicate
            with pytest.raises(KstoreError):
                two.append_batches(of_producer(3))
        elif how == "known producers":
            assert [producer.last_sequence for producer in two.producers()] == [1]
        elif how == "expired ones":
            two.writer.expire_producers()
        else:
            assert two.last_stable_offset == one.end_offset
        assert fs.in_all > 100_000 > 10_000 > fs.in_turns
        assert two.append_batches(of_producer(2)).first_offset == 2 * LEFT_FOR_THE_TURN + 2


@pytest.mark.parametrize("change", ["append", "cut", "deletion", "roll", "all of it"])
def test_what_others_change_while_producers_are_read_is_known(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_turn, "LEFT_FOR_THE_TURN", 5)
    settings: dict[str, Any] = {"segment_bytes": 1024, "file_delete_delay_ms": 0}
    with shared(tmp_path / "log", **settings) as one, shared(tmp_path / "log", **settings) as two:
        for _ in range(30):
            one.append(b"x" * 60)
        one.append_batches(of_producer(0))
        cut = one.append_batches(of_producer(1)).first_offset
        changes: dict[str, Callable[[], object]] = {
            "append": lambda: one.append_batches(of_producer(2)),
            "cut": lambda: one.truncate_to(cut),
            "deletion": lambda: one.delete_records(20),
            "roll": lambda: one.roll(),
            "all of it": lambda: one.writer.truncate_fully_and_start_at(100),
        }
        up_to, count = LogProducers.up_to, 0

        def late(self: LogProducers, end: int, position: int) -> ProducerState:
            nonlocal count
            count += 1
            if count == 1:
                changes[change]()
            return up_to(self, end, position)

        monkeypatch.setattr(LogProducers, "up_to", late)
        two.refresh()
        sequence = {"append": 3, "cut": 1, "all of it": 0}.get(change, 2)
        assert [producer.last_sequence for producer in two.producers()] == ([sequence - 1] if sequence else [])
        assert two.append_batches(of_producer(sequence)).first_offset == one.end_offset - 1
        for log in (one, two):
            log.check()


def test_what_is_not_sound_yet_is_refused(pair: tuple[Log, Log]) -> None:
    one, _ = pair
    with pytest.raises(SharedLogError):
        one.compact()
    data = build_batch(
        [Record(0, 1, key=None, value=b"v")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    with pytest.raises(SharedLogError):
        one.append_batches(bytes(data))
    assert one.end_offset == 0


# --- locks ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("one writer")
def test_writers_that_share_and_writers_that_do_not_keep_each_other_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with shared(path):
        with pytest.raises(LockedError):
            Log(path)
        with pytest.raises(LockedError):
            DirectoryLock(path, kind="store")
        with shared(path), Log(path, read_only=True):
            pass
    with Log(path), pytest.raises(LockedError):
        shared(path)
    # A store, or a broker, that has the directory above.
    with DirectoryLock(tmp_path, kind="store"), pytest.raises(LockedError):
        shared(path)
    with DirectoryLock(tmp_path, kind="store", shared=True):
        with pytest.raises(LockedError):
            Log(path)
        shared(path).close()
    Log(path).close()


@pytest.mark.promise("one writer")
@pytest.mark.parametrize(("mine", "theirs"), [(True, False), (False, True), (False, False), (True, True)])
@pytest.mark.sampled(2)
def test_the_same_in_another_process(mine: bool, theirs: bool, tmp_path: Path) -> None:
    program = (
        "import sys, kstore\n"
        "try:\n"
        f"    kstore.Log(sys.argv[1], shared={theirs}).close()\n"
        "except kstore.LockedError as error:\n"
        "    print(error)\n"
    )
    with Log(tmp_path / "log", shared=mine):
        command = [sys.executable, "-c", program, str(tmp_path / "log")]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert ("locked by kstore" in said) == (not (mine and theirs))


def test_all_of_them_have_one_durability(tmp_path: Path) -> None:
    with shared(tmp_path / "log", "os"), pytest.raises(ConfigError):
        shared(tmp_path / "log", "sync")
    with pytest.raises(ConfigError):
        Log(tmp_path / "log", shared=True, read_only=True)


# --- members with another version of the format ----------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name != LOCK}


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("version", [0, 3])
def test_a_process_that_finds_members_with_another_version_changes_nothing(
    version: int, is_whole: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    with shared(path) as one, shared(path) as two:
        one.append(b"a")
        state_file = path / "kstore.state"
        good = state_file.read_bytes()
        slot = bytearray(good[POSITION : POSITION + 128])
        slot[4:6] = version.to_bytes(2, "big")
        crc = crc32c.crc32c(bytes(slot)) if is_whole else 0
        with state_file.open("r+b") as file:
            file.seek(POSITION)
            file.write(slot + crc.to_bytes(4, "big"))
        before = contents(path)
        for _ in range(2):
            with pytest.raises(LockedError, match=rf"use version {max(version, 1)} .* expected 2"):
                shared(path)
            with pytest.raises(LockedError, match=rf"use version {max(version, 1)} .* expected 2"):
                two.append(b"b")
        assert contents(path) == before
        with state_file.open("r+b") as file:
            file.seek(POSITION)
            file.write(good[POSITION : POSITION + 132])
        assert two.append(b"b") == 1
        shared(path).close()


def test_members_that_use_version_one_are_found_by_the_state(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with shared(path) as log:
        log.append(b"a")
        copy = killed(log, tmp_path / "old")
        state = log.writer.files.state_file.current
        assert state is not None
    (copy / "kstore.state").write_bytes(version_one_file(state))  # and no record of the end yet
    before = contents(copy)
    with DirectoryLock(copy, shared=True) as member:
        member.go_live()
        with pytest.raises(LockedError, match=r"use version 1 .* expected 2"):
            shared(copy)
        assert contents(copy) == before
    with shared(copy) as log:  # all of them are gone
        assert values(log) == [b"a"]
    with (copy / "kstore.state").open("r+b") as file:
        at = 2048 + 1024 * (state_of(copy).generation % 2)
        file.seek(at)
        later = bytearray(file.read(1024))
        later[4:6] = (9).to_bytes(2, "big")
        size = int.from_bytes(later[6:8], "big")
        later[size - 4 : size] = crc32c.crc32c(bytes(later[: size - 4])).to_bytes(4, "big")
        file.seek(at)
        file.write(later)
    before = contents(copy)
    with DirectoryLock(copy, shared=True) as member:
        member.go_live()
        with pytest.raises(LockedError, match=r"use version 9 .* expected 2"):
            shared(copy)
    with pytest.raises(UnsupportedFormatError):
        shared(copy)
    assert contents(copy) == before


# --- a writer that dies in its turn ---------------------------------------------------------------------------------


def test_what_a_dead_writer_left_half_written_is_cut(pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    one.append(b"a")
    with next((tmp_path / "log").glob("*.log")).open("ab") as file:
        file.write(b"torn")
    assert two.append(b"b") == 1
    assert one.append(b"c") == 2
    assert values(one) == values(two) == [b"a", b"b", b"c"]


def test_whole_batches_that_were_not_announced_are_kept(pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    one.append(b"a")
    log_file = next((tmp_path / "log").glob("*.log"))
    data = bytearray(build_batch([Record(0, 1, key=None, value=b"b")]))
    data[:8] = (1).to_bytes(8, "big")
    log_file.write_bytes(log_file.read_bytes() + data + data[:30])
    assert two.append(b"c") == 2
    assert one.append(b"d") == 3
    assert values(one) == values(two) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("how", ["torn", "changing", "zero"])
def test_a_record_that_cannot_be_believed_means_recovery(how: str, pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    for number in range(30):
        pair[number % 2].append(b"%d" % number * 30)
    state_file = tmp_path / "log" / "kstore.state"
    with state_file.open("r+b") as file:
        file.seek(POSITION)
        state = SharedState.decode(file.read(132))
        assert state is not None
        data = state._replace(flags=state.flags | 1).encode()
        file.seek(POSITION)
        file.write({"torn": data[:50] + bytes(82), "changing": data, "zero": bytes(132)}[how])
    # What a roll that was not brought to its end leaves.
    (tmp_path / "log" / f"{30:020d}.log").write_bytes(b"half a batch")
    assert two.append(b"thirty") == 30
    assert one.append(b"thirty-one") == 31
    with shared(tmp_path / "log", two.writer.files.durability, segment_bytes=1024) as three:
        assert three.append(b"thirty-two") == 32
        for log in (one, two, three):
            assert [record.offset for record in log.read()] == list(range(33))
            log.check()


def test_a_recovery_that_failed_is_done_again(
    pair: tuple[Log, Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    one.append(b"a")
    assert two.end_offset == 1
    # One dies in a roll, after the new file is made.
    turn, others = turn_of(one), others_of(one)
    turn._directory_lock.take_turn()
    others.has_turn = True
    others.announce_change()
    (tmp_path / "log" / f"{1:020d}.log").touch()
    turn._end_turn()
    with monkeypatch.context() as patched:

        def fails(*_: object, **__: object) -> None:
            raise StorageError(5, "not now")

        patched.setattr(log_catch_up, "load", fails)
        with pytest.raises(StorageError, match="not now"):
            two.append(b"b")
    assert two.append(b"b") == 1
    with shared(tmp_path / "log", two.writer.files.durability, segment_bytes=1024) as three:
        assert three.append(b"c") == 2
        assert values(three) == [b"a", b"b", b"c"]
        three.check()


def test_a_recovery_in_a_turn_has_no_index_rebuilt_that_needs_a_turn_itself(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with shared(path) as one, shared(path) as two:
        for number in range(10):
            one.append_batches(data(number, size=1000, leader_epoch=3), assign_offsets=False)
        one.roll()
        one.flush()
        assert two.end_offset == 10
        # One dies in a change; all epochs are read from the log again, and a sealed segment has no index.
        (path / "leader-epoch-checkpoint").unlink()
        (path / f"{0:020d}.index").unlink()
        turn, others, rescuer = turn_of(one), others_of(one), two.writer
        turn._directory_lock.take_turn()
        others.has_turn = True
        others.announce_change()
        turn._end_turn()
        in_turns = []

        def write_indexes(*_: object) -> bool:
            in_turns.append(turn_of(two).lock.is_mine)
            return False

        with mock.patch.object(rescuer, "write_indexes", write_indexes):
            assert two.append(b"ten") == 10
        assert in_turns == []
        assert rescuer.files.leader_epoch == 3
        assert one.append(b"eleven") == 11


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_fails_one_append_and_no_other(tmp_path: Path, durability: Durability) -> None:
    fs = FailingFs()
    with (
        Log(tmp_path / "log", shared=True, durability=durability, fs=fs) as one,
        shared(tmp_path / "log", durability) as two,
    ):
        one.append(b"a")
        fs.faults.append(Fault(1, errno=28, written=7, kinds=frozenset({"write_all"}), suffix=".log"))
        with pytest.raises(DiskFullError):
            one.append(b"b")
        assert two.append(b"c") == 1
        assert one.append(b"d") == 2
        assert values(two) == [b"a", b"c", b"d"]


@pytest.mark.parametrize("how", ["others' segments", "the turn"])
def test_a_close_that_fails_lets_go_of_the_log_all_the_same(
    how: str, tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = shared(tmp_path / "log", durability), shared(tmp_path / "log", durability)
    two.append(b"a")
    one.append(b"b")
    one.roll()

    def fails(*_: object, **__: object) -> None:
        raise StorageError(24, "too many open files")

    with monkeypatch.context() as patched:
        if how == "the turn":
            patched.setattr(DirectoryLock, "take_turn", fails)
        else:
            patched.setattr(log_catch_up, "listed", fails)
        with pytest.raises(StorageError, match="too many open files"):
            two.close()
    two.close()
    with pytest.raises(ClosedError):
        two.append(b"c")
    assert one.append(b"c") == 2
    one.close()
    with Log(tmp_path / "log", durability=durability) as alone:
        assert values(alone) == [b"a", b"b", b"c"]
        alone.check()


def test_the_last_one_to_close_may_fail_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = shared(tmp_path / "log", "os")
    log.append(b"a")

    def fails(*_: object) -> None:
        raise StorageError(37, "no locks available")

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryLock, "take_turn", fails)
        with pytest.raises(StorageError, match="no locks"):
            log.close()
    with Log(tmp_path / "log", durability="os") as alone:
        assert values(alone) == [b"a"]
        assert alone.append(b"b") == 1


@pytest.mark.promise("sync fails")
def test_a_failed_sync_poisons_the_log_for_all_processes(tmp_path: Path) -> None:
    fs = FailingFs()
    one, two = Log(tmp_path / "log", shared=True, fs=fs), shared(tmp_path / "log")
    one.append(b"a")
    fs.faults.append(Fault(1, kinds=frozenset({"fdatasync"}), suffix=".log"))
    with pytest.raises(SyncFailedError):
        one.append(b"b")
    with pytest.raises(PoisonedError):
        one.append(b"c")
    with pytest.raises(PoisonedError):
        two.append(b"c")
    assert (one.high_watermark, two.high_watermark) == (1, 1)
    with pytest.raises(PoisonedError):
        shared(tmp_path / "log")
    one.close()
    two.close()
    with shared(tmp_path / "log") as log:
        assert values(log)[0] == b"a"


# --- losses -----------------------------------------------------------------------------------------------------------


def test_what_one_writer_accepts_the_others_pass_over(tmp_path: Path) -> None:
    path = fenced(tmp_path / "log")
    with shared(path) as one, shared(path) as two:
        reader = two.read(0)
        assert [next(reader).offset for _ in range(4)] == [0, 1, 2, 3]
        one.accept_loss(4, 4)
        assert [record.offset for record in reader] == [5, 6, 7, 8, 9]
        assert two.fetch(4).losses.accepted == ((4, 4),)
        two.append(b"10")
        one.roll()
        two.flush()
        assert state_of(path).accepted == ((4, 4),)
        two.delete_records(5)
        assert one.append(b"11") == 11
        one.flush()
        assert state_of(path).accepted == ()


def test_a_loss_is_known_to_every_writer(tmp_path: Path) -> None:
    path = tail_lost(tmp_path / "log")
    with shared(path) as one, shared(path) as two:
        for log in (one, two):
            assert log.end_offset == 11
            with pytest.raises(CorruptBatchError):
                list(log.read(8))
        assert two.append(b"11") == 11
        for log in (one, two):
            assert [record.offset for record in log.read(8, on_corrupt="skip")] == [8, 11]
            with pytest.raises(CorruptBatchError):
                list(log.read(8))
        one.truncate_to(10)
        assert two.append(b"10") == 10
        assert state_of(path).lost == ((9, 9),)
