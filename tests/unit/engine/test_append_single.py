"""``append`` of one plain record, which is compiled: what it takes, and what a failure at each of its steps leaves."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore import Log
from kstore.config import LogConfig
from kstore.engine.append import appends as append_module
from kstore.engine.append._path import SINGLE_BYTES_MAX
from kstore.engine.append.appends import Appends
from kstore.engine.change.durability import WriteBehind
from kstore.errors import (
    ClosedError,
    DiskFullError,
    ForkedError,
    InvalidRecordError,
    KstoreError,
    PoisonedError,
    ReadOnlyError,
    RecordTooLargeError,
    SyncFailedError,
)
from kstore.files import platform
from kstore.files.local import OsFile
from kstore.log import writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.segments._numbers import TailNumbers
from kstore.segments.tail import SegmentTail
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs
from tests.support.harness.size_limit import size_limit

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


NOW_MS = 1_700_000_000_000


def log_at(path: Path, **settings: Any) -> Log:
    return Log(path, clock=ManualClock(), **settings)


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".index", ".timeindex")}


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4000, 4030, 4096, 8192, 16_000])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_a_batch_made_at_once_is_that_of_the_builder(tmp_path: Path, size: int, key: bytes | None) -> None:
    value = (bytes(range(256)) * 64)[:size]
    with log_at(tmp_path / "log", durability="os") as log:
        log.append(b"")
        writer = writer_of(log)
        writer.files.epochs.assign(3, 1)
        start = writer.ends.position
        assert single(log, value, key) == (1, NOW_MS)
        data = (tmp_path / "log" / f"{0:020d}.log").read_bytes()[start:]
        assert data == build_batch([Record(1, NOW_MS, key=key, value=value)], base_offset=1, leader_epoch=3)


def single(log: Log, value: object, key: object = None) -> tuple[int, int] | None:
    """The short path alone."""
    return writer_of(log).appends.append_single(value, key)


def numbers_of(log: Log) -> TailNumbers:
    tail = writer_of(log).files.tail
    assert tail is not None
    return tail.numbers


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (bytes(17), {"segment_bytes": 69 + 84}),  # one byte more than the segment has room for
        (bytes(17), {"allocated": 69 + 84}),
        (b"", {"entry_room": 0}),
        (b"", {"segment_ms": 9}),  # the first record is 10 ms old
        (b"", {"first_timestamp": -1}),  # the first record has no time
    ],
)
def test_what_may_need_a_new_segment_is_left_to_a_decision(
    tmp_path: Path, value: bytes, changes: dict[str, Any]
) -> None:
    clock = ManualClock(NOW_MS)
    with Log(tmp_path / "log", durability="os", clock=clock) as log:
        log.append(b"v")
        clock.advance(10)
        numbers, before = numbers_of(log), writer_of(log).ends
        assert numbers.position == 69
        usual = {name: getattr(numbers, name) for name in changes}
        for name, changed in changes.items():
            setattr(numbers, name, changed)
        assert single(log, value) is None
        assert writer_of(log).ends is before
        assert numbers.position == 69
        if len(value) == 17:
            assert single(log, bytes(16)) == (1, NOW_MS + 10)
        for name, was in usual.items():
            setattr(numbers, name, was)
        assert single(log, value) is not None
        log.check()


def test_an_offset_too_far_an_idle_segment_and_a_time_before_1970_are_left_to_a_decision(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with Log(tmp_path / "log", durability="os", clock=clock) as log:
        log.append(b"v")
        log.append_batches(build_batch([Record(2**31 - 3, NOW_MS, value=b"v")]), assign_offsets=False)
        clock.advance(numbers_of(log).segment_ms + 1)
        assert single(log, b"v") is None
        clock.jump(-(NOW_MS + numbers_of(log).segment_ms + 2))
        assert single(log, b"v") is None
        clock.jump(1)
        assert single(log, b"v") == (2**31 - 2, 0)  # the clock was set back
        assert single(log, b"v") == (2**31 - 1, 0)
        assert single(log, b"v") is None
        assert log.append(b"v") == 2**31
        assert single(log, b"v") == (2**31 + 1, 0)
        log.check()


def test_a_roll_that_is_not_published_is_left_to_a_decision(tmp_path: Path) -> None:
    with log_at(tmp_path / "log", durability="os") as log:
        log.append(b"a")
        files = writer_of(log).files
        ends = files.ends
        files.publish(ends._replace(base_offset=1))
        assert single(log, b"b") is None
        files.publish(ends)
        assert single(log, b"b") == (1, NOW_MS)


def test_it_is_taken_where_the_record_is_plain(tmp_path: Path) -> None:
    with log_at(tmp_path / "log", durability="os") as log:
        assert single(log, b"a") is None  # nothing is open for appending yet
        log.append(b"a")
        assert single(log, b"b", b"key") == (1, NOW_MS)
        assert log.append(b"c", key=b"key", headers={}, timestamp=None) == 2
        for value, key in [(bytearray(b"b"), None), (None, None), (b"b", "key"), ("b", b"key")]:
            assert single(log, value, key) is None
        overhead = 61 + 11
        for size in (SINGLE_BYTES_MAX - overhead + 1, SINGLE_BYTES_MAX, 1 << 20):
            assert single(log, bytes(size)) is None
            assert single(log, b"", bytes(size)) is None
            assert single(log, bytes(size // 2), bytes(size - size // 2)) is None
        assert single(log, bytes(SINGLE_BYTES_MAX - overhead)) == (3, NOW_MS)
        assert log.end_offset == 4
        metrics = log.metrics()
        assert [metrics[name] for name in ("appends", "append_batches", "append_records")] == [4, 4, 4]
        assert metrics["append_bytes"] == (tmp_path / "log" / f"{0:020d}.log").stat().st_size
        writer_of(log).reconfigure(LogConfig(max_message_bytes=100))
        assert single(log, bytes(33)) is None
        assert single(log, bytes(32)) is not None
        writer_of(log).reconfigure(LogConfig(compression_type="lz4"))
        assert single(log, b"") is None


def test_it_is_not_taken_where_a_sync_follows_the_turn_nor_in_a_closed_log(tmp_path: Path) -> None:
    with log_at(tmp_path / "shared", shared=True) as log:
        log.append(b"a")
        assert single(log, b"b") is None
        assert log.append(b"b") == 1
    log = log_at(tmp_path / "os", durability="os")
    log.append(b"a")
    append, short = log.append, writer_of(log).appends.append_single
    log.close()
    assert short(b"b", None) is None
    for closed in (append, log.append):
        with pytest.raises(ClosedError):
            closed(b"b")
    with Log(tmp_path / "os", read_only=True) as view, pytest.raises(ReadOnlyError):
        view.append(b"b")


@pytest.mark.parametrize(("durability", "when_due"), [("interval", [2, 3, 4]), ("os", [3, 4])])
def test_a_flush_is_asked_for_when_it_is_due(
    durability: Durability, when_due: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    with log_at(tmp_path / "log", durability=durability, flush_messages=3, flush_ms=10**9) as log:
        log.append(b"a")
        monkeypatch.setattr(WriteBehind, "flush_as_due", lambda _, ends: asked.append(ends.end_offset))
        for value in (b"b", b"c", b"d"):
            assert single(log, value) is not None
        assert asked == when_due
        monkeypatch.undo()


def test_a_poisoned_log_does_not_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk")

    log = log_at(tmp_path / "log", durability="os")
    log.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(platform, "sync_data", fail)
        with pytest.raises(SyncFailedError):
            log.flush()
    before = files_of(tmp_path / "log")
    assert writer_of(log).appends.append_single(b"b", None) is None
    with pytest.raises(PoisonedError):
        log.append(b"b")
    assert files_of(tmp_path / "log") == before
    log.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_does_not_take_it(tmp_path: Path) -> None:
    with log_at(tmp_path / "log", durability="os") as log:
        log.append(b"a")
        short = writer_of(log).appends.append_single
        child = os.fork()
        if child == 0:
            try:
                refused = short(b"b", None) is None
                with pytest.raises(ForkedError):
                    log.append(b"b")
                os._exit(0 if refused else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert log.append(b"c") == 1
        log.check()


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

    with Log(tmp_path / "log", durability=durability, index_interval_bytes=1) as log:
        log.append(b"a")
        with monkeypatch.context() as patch:
            # In place of the index entry that each batch gets.
            patch.setattr(SegmentTail, "note", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"b")
        log.check()
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


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_an_interrupt_while_it_waits_for_the_lock_leaves_nothing(tmp_path: Path, shared: bool) -> None:
    main, is_taken, is_over = threading.get_ident(), threading.Event(), threading.Event()
    with Log(tmp_path / "log", durability="os", shared=shared) as log:
        log.append(b"a")
        lock = writer_of(log).turn.lock

        def hold() -> None:
            with lock:
                is_taken.set()
                signal.pthread_kill(main, signal.SIGINT)
                is_over.wait(300)

        def append_meanwhile() -> None:
            holder.start()
            is_taken.wait(300)
            log.append(b"b")

        holder = threading.Thread(target=hold)
        with pytest.raises(KeyboardInterrupt):
            append_meanwhile()
        is_over.set()
        holder.join()
        assert log.append(b"c") == 1
        log.check()
        assert [record.value for record in log.read()] == [b"a", b"c"]


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
            # CPython serves a signal at the start of a function: this is the first one after the compiled write.
            patch.setattr(Appends, "append_many", interrupted)
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


# --- memory that runs out after the write -----------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["interval", "os"])
@pytest.mark.parametrize("how", ["append", "append with headers", "append_many", "append_batches"])
@pytest.mark.parametrize("step", ["flush", "keep"])
def test_what_is_in_the_log_is_no_error_if_memory_runs_out_after_that(
    step: str, how: str, durability: Durability, tmp_path: Path
) -> None:
    """Its caller would write it again."""
    with Log(tmp_path / "log", durability=durability, flush_messages=1) as log:
        log.append(b"first")
        patched: Any = {
            "flush": (writer_of(log)._flush, "flush_in_turn"),
            "keep": (append_module, "keep_buffer"),
        }[step]
        with mock.patch.object(*patched, side_effect=MemoryError):
            if how == "append":
                assert log.append(b"x") == 1
            elif how == "append with headers":
                assert log.append(b"x", headers=[("h", b"1")]) == 1
            elif how == "append_many":
                assert log.append_many([b"x"]).first_offset == 1
            else:
                assert log.append_batches(build_batch([Record(0, 0, value=b"x")])).first_offset == 1
        assert log.append(b"last") == 2
        assert list(log.read_values()) == [b"first", b"x", b"last"]
        log.flush()
        assert writer_of(log).ends.recovery_point == 3
        log.check()
