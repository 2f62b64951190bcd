"""``append`` of one plain record, which takes a shorter path than ``append_many`` and must write the same."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.engine.group_commit import GroupCommit, Pending
from kstore.errors import DiskFullError, InvalidRecordError, KstoreError, RecordTooLargeError
from kstore.files.local import OsFile
from kstore.log import writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.segments._numbers import TailNumbers
from kstore.segments.tail import SegmentTail
from kstore.types import Durability
from tests.fake_clock import ManualClock
from tests.fake_fs import FailingFs, Fault, RecordingFs

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


def log_at(path: Path, **settings: Any) -> Log:
    return Log(path, clock=ManualClock(), **settings)


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".index", ".timeindex")}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"index_interval_bytes": 200, "segment_bytes": 3000},
        {"index_interval_bytes": 1, "segment_index_bytes": 120},
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "lz4"},
    ],
    ids=["plain", "small segments", "small indexes", "LogAppendTime", "lz4"],
)
def test_the_files_are_those_of_append_many(tmp_path: Path, settings: dict[str, Any], durability: Durability) -> None:
    records = [(b"x" * (7 * number % 300), None if number % 3 else b"key %d" % number) for number in range(100)]
    with log_at(tmp_path / "one", durability=durability, **settings) as log:
        assert [log.append(value, key=key) for value, key in records] == list(range(100))
    with log_at(tmp_path / "many", durability=durability, **settings) as log:
        for value, key in records:
            log.append_many([value], keys=[key])
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4000, 4030, 4096, 8192, 16_000])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_a_batch_made_at_once_is_that_of_the_builder(size: int, key: bytes | None) -> None:
    value, now_ms = bytes(range(256)) * 64, 1_700_000_000_000
    made = numbers(first_timestamp=now_ms).single(value[:size], key, 7, 3, now_ms, now_ms)
    assert made == build_batch([Record(7, now_ms, key=key, value=value[:size])], base_offset=7, leader_epoch=3)


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (938, {}),  # one byte more than the segment has room for
        (10, {"indexes_full": True}),
        (10, {"segment_ms": 9}),  # the first record is 10 ms old
        (10, {"first_timestamp": -1}),  # the first record has no time
    ],
)
def test_what_may_need_a_new_segment_is_left_to_a_decision(size: int, changes: dict[str, Any]) -> None:
    plain = numbers(segment_bytes=1100, position=100)
    assert plain.single(bytes(size - 10), None, 1, 0, 1010, 1010) is not None
    for name, value in changes.items():
        setattr(plain, name, value)
    assert plain.single(bytes(size), None, 1, 0, 1010, 1010) is None


def test_an_offset_too_far_an_idle_segment_and_a_time_before_1970_are_left_to_a_decision() -> None:
    plain = numbers()
    assert plain.single(b"v", None, 2**31 - 1, 0, 1000, 1000) is not None
    assert plain.single(b"v", None, 2**31, 0, 1000, 1000) is None
    assert plain.single(b"v", None, 1, 0, 1000, 1000 - plain.segment_ms - 1) is None
    assert plain.single(b"v", None, 1, 0, -1, 1000) is None
    assert plain.single(b"v", None, 1, 0, 0, 1000) is not None  # the clock was set back


def numbers(*, position: int = 0, **settings: Any) -> TailNumbers:
    made = TailNumbers(0, position)
    made.first_timestamp, made.segment_bytes, made.segment_ms = 1000, 1 << 30, 10_000
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def test_it_is_taken_where_the_record_is_plain(tmp_path: Path) -> None:
    with log_at(tmp_path / "log", durability="os") as log:
        assert writer_of(log).appends.append_single(b"a", None) is None  # nothing is open for appending yet
        log.append(b"a")
        assert writer_of(log).appends.append_single(b"b", b"key") == (1, 1_700_000_000_000)
        assert writer_of(log).appends.append_single(bytearray(b"b"), None) is None  # type: ignore[arg-type]
        assert writer_of(log).appends.append_single(None, None) is None
        assert writer_of(log).appends.append_single(bytes(1 << 20), None) is None
        assert log.end_offset == 2
        assert log.metrics()["append_records"] == 2


def test_what_cannot_be_appended_is_refused_as_ever(tmp_path: Path) -> None:
    with log_at(tmp_path / "log", durability="os", cleanup_policy="compact", max_message_bytes=1000) as log:
        log.append(b"a", key=b"k")
        with pytest.raises(InvalidRecordError):
            log.append(b"no key")
        with pytest.raises(RecordTooLargeError):
            log.append(bytes(1000), key=b"k")
        with pytest.raises(TypeError):
            log.append("text", key=b"k")  # type: ignore[arg-type]
        assert log.end_offset == 1


@pytest.mark.parametrize(("durability", "kind"), [("sync", "write_and_sync"), ("interval", "write_all")])
def test_it_is_on_disk_if_the_log_says_so(tmp_path: Path, durability: Durability, kind: str) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", durability=durability, fs=fs) as log:
        log.append(b"a")
        before = len(fs.operations)
        log.append(b"b")
        assert fs.operations[before].kind == kind


def test_a_failed_one_leaves_nothing_and_the_next_goes_on(tmp_path: Path) -> None:
    fs = FailingFs()
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        log.append(b"a")
        fs.faults.append(Fault(1, 28, written=10, kinds=frozenset({"write_all"})))
        with pytest.raises(DiskFullError):
            log.append(b"b")
        log.check()
        assert log.append(b"c") == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]
        assert log.metrics()["append_errors"] == {"DiskFullError": 1}


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_interrupt_after_the_write_leaves_nothing(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Log(tmp_path / "log", durability=durability) as log:
        log.append(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(writer_of(log).appends._durability, "publish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"b")
        assert log.append(b"c") == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]


def test_a_follower_is_woken(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"a")
        follower = iter(log.read(1, follow=True))
        found: list[bytes | None] = []
        thread = threading.Thread(target=lambda: found.append(next(follower).value))
        thread.start()
        while not log.metrics()["followers"]:
            pass
        log.append(b"b")
        thread.join(300)
        assert found == [b"b"]


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_threads_that_append_get_an_offset_each(tmp_path: Path, durability: Durability) -> None:
    with Log(tmp_path / "log", durability=durability) as log:
        given: list[tuple[int, bytes]] = []

        def work(name: int) -> None:
            given.extend((log.append(value), value) for value in [b"%d %d" % (name, at) for at in range(100)])

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(given) == [(record.offset, record.value) for record in log.read()]
        assert len(given) == 800


class Heard(Pending[str]):
    pass


def test_an_append_that_arrives_during_a_lone_commit_is_committed_after_it() -> None:
    groups: list[list[Heard]] = []

    def commit(group: Any) -> None:
        groups.append(list(group))
        for item in group:
            item.result = "done"

    group: GroupCommit[Heard] = GroupCommit(commit, ManualClock())
    others = [Heard() for _ in range(3)]
    threads = [threading.Thread(target=group.submit, args=(other,)) for other in others]

    def alone() -> str:
        for thread in threads:
            thread.start()
        while len(group._queue) < 3:
            pass
        assert group.alone(lambda: "me too") is None  # another thread commits
        assert not groups
        return "alone"

    assert group.alone(alone) == "alone"
    for thread in threads:
        thread.join(300)
    assert [other.result for other in others] == ["done"] * 3
    assert sum(map(len, groups)) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_lone_commit_that_fails_lets_the_next_one_lead(error: type[BaseException]) -> None:
    group: GroupCommit[Heard] = GroupCommit(lambda items: None, ManualClock())

    def fails() -> str:
        raise error

    with pytest.raises(error):
        group.alone(fails)
    assert group.alone(lambda: "again") == "again"


# --- the compiled write -----------------------------------------------------------------------------------------------


def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The writes that the file itself does from now on, not the compiled write."""
    found: list[bytes] = []
    write_all = OsFile.write_all

    def noted(file: OsFile, buffers: Any, position: int) -> None:
        found.extend(map(bytes, buffers))
        write_all(file, buffers, position)

    monkeypatch.setattr(OsFile, "write_all", noted)
    return found


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_without_a_sync_the_write_is_compiled(tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path / "log", durability="os", shared=shared) as log:
        log.append(b"a")
        log.append(b"b")
        found = written(monkeypatch)
        assert log.append(b"c") == 2
        assert found == []
        log.check()


def test_a_write_that_the_system_refuses_is_tried_by_the_file_and_says_why(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"a")
        tail = writer_of(log).files.tail
        assert tail is not None
        file: Any = tail.file
        fd, read_only = file._fd, os.open(file.path, os.O_RDONLY)
        try:
            file._fd = read_only
            with pytest.raises(KstoreError):
                log.append(b"b")
        finally:
            file._fd = fd
            os.close(read_only)
    with Log(tmp_path / "log", durability="os") as log:
        assert [record.value for record in log.read()] == [b"a"]
        assert log.append(b"c") == 1


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """Inside, no file of this process can grow beyond ``size``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_short_write_is_written_again_whole(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes=1 << 20) as log:
        log.append(b"a")
        size = (tmp_path / "log" / f"{0:020d}.log").stat().st_size
        with size_limit(size + 30), pytest.raises(KstoreError):
            log.append(b"too long for the limit")
        log.check()
        assert log.append(b"b") == 1
        assert [record.value for record in log.read()] == [b"a", b"b"]


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_an_interrupt_after_a_short_write_leaves_nothing(
    tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "log" / f"{0:020d}.log"
    with Log(tmp_path / "log", durability="os", shared=shared) as log:
        log.append(b"a")
        log.append(b"b")
        size = path.stat().st_size
        with monkeypatch.context() as patch, size_limit(size + 30):
            # CPython serves a signal at the start of a function.
            patch.setattr(SegmentTail, "write_single", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"too long for the limit")
        assert path.stat().st_size == size
        log.check()
        assert log.append(b"c") == 2
        log.roll()
        assert log.append(b"d") == 3
        assert [record.value for record in log.read()] == [b"a", b"b", b"c", b"d"]
        log.check()


def test_an_interrupt_between_the_write_and_its_index_entry_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Log(tmp_path / "log", durability="os", index_interval_bytes=1) as log:
        log.append(b"a")
        log.append(b"b")
        with monkeypatch.context() as patch:
            patch.setattr(SegmentTail, "_add_entry", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"c")
        assert log.append(b"d") == 2
        log.check()
        assert [record.value for record in log.read()] == [b"a", b"b", b"d"]
