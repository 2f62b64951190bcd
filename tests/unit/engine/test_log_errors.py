"""What can go wrong around a log, and what its user sees: a typed error, its message, and a whole log."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.errors import (
    ClosedError,
    DiskFullError,
    FileMissingError,
    ForkedError,
    InvalidOffsetError,
    KstoreError,
    LockedError,
    LogNotFoundError,
    NotALogError,
    PoisonedError,
    ReadOnlyError,
    StorageError,
    SyncFailedError,
)
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.types import RECORD_OFFSET_MAX, Durability
from tests.support.fakes.fake_fs import FailingFs, Fault, Operation, Result, WatchedFs

WRITES = frozenset({"pwrite", "write_all", "write_and_sync"})
SYNCS = frozenset({"fdatasync", "fsync"})


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


def failing(path: Path, *faults: Fault, **options: Any) -> tuple[Log, FailingFs]:
    """A log with two records whose file operations fail from now on."""
    fs = FailingFs(SYSTEM_FS)
    log = Log(path, fs=fs, **options)
    log.append_many([b"one", b"two"])
    fs.faults.extend(faults)
    return log, fs


# --- what is not a log ------------------------------------------------------------------------------------------------


def test_reading_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError, match="there is no log") as caught:
        Log(tmp_path / "missing", read_only=True)
    assert isinstance(caught.value, FileNotFoundError)
    assert not (tmp_path / "missing").exists()


class MadeMeanwhileFs(WatchedFs):
    """Another process makes the log just after this one has found nothing there."""

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        try:
            return super().perform(operation, action)
        except FileMissingError:
            if operation.kind == "stat":
                Log(operation.path).close()
            raise


def test_reading_a_log_that_another_process_is_making(tmp_path: Path) -> None:
    with Log(tmp_path / "log", read_only=True, fs=MadeMeanwhileFs()) as view:
        assert view.end_offset == 0


def test_a_link_that_leads_nowhere_is_no_missing_log(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileMissingError) as caught:
        Log(tmp_path / "log", read_only=True)
    assert not isinstance(caught.value, LogNotFoundError)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_directory_of_other_things_is_no_log_and_is_left_alone(read_only: bool, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotALogError, match="not a log") as caught:
        Log(tmp_path, read_only=read_only)
    assert isinstance(caught.value, NotADirectoryError)
    assert {path.name for path in tmp_path.iterdir()} <= {"notes.txt", ".lock"}
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_is_no_log(read_only: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotALogError, match="not a directory"):
        Log(tmp_path / "file", read_only=read_only)


def test_an_empty_directory_becomes_a_log(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        assert log.append(b"x") == 0


def test_an_empty_directory_cannot_be_read_as_a_log(tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match="no segment"):
        Log(tmp_path, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_symbolic_link_in_place_of_a_segment_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"x")
    path = next((tmp_path / "log").glob("*.log"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        Log(tmp_path / "log")


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("one writer")
def test_a_second_writer_is_refused_at_once(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        with pytest.raises(LockedError) as caught:
            Log(tmp_path / "log")
        assert isinstance(caught.value, BlockingIOError)
        log.append(b"x")
    Log(tmp_path / "log").close()


@pytest.mark.promise("one writer")
def test_a_writer_in_another_process_is_named(tmp_path: Path) -> None:
    program = (
        f"import kstore, sys; log = kstore.Log({str(tmp_path / 'log')!r}); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LockedError, match=str(other.pid)):
            Log(tmp_path / "log")
        with Log(tmp_path / "log", read_only=True) as log:
            assert log.end_offset == 0
        other.stdin.close()


@pytest.mark.promise("one writer")
def test_a_store_that_a_broker_holds_is_locked(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockedError):
            Log(tmp_path / "orders-0")
    Log(tmp_path / "orders-0").close()


# --- handles ----------------------------------------------------------------------------------------------------------


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(b"x")
    log.close()
    log.close()
    assert log.closed
    for use in (log.flush, log.read, log.verify, lambda: log.append(b"y"), lambda: log.end_offset):
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert issubclass(ClosedError, ValueError)


def test_a_close_that_fails_ends_every_follower(tmp_path: Path) -> None:
    log, fs = failing(tmp_path / "log", durability="os")
    ended = threading.Event()

    def follow() -> None:
        writer_of(log).wait_beyond(2, 60)
        ended.set()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    while not log.metrics()["followers"]:
        pass
    fs.faults.append(Fault(1, errno=errno.EIO, kinds=SYNCS))
    with pytest.raises(SyncFailedError):
        log.close()
    assert ended.wait(300)
    follower.join()


def test_a_log_open_for_reading_refuses_every_write(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"x")
    with Log(tmp_path / "log", read_only=True) as log:
        for write in (
            lambda: log.append(b"y"),
            log.flush,
            log.roll,
            lambda: log.truncate_to(0),
            lambda: log.delete_records(1),
            lambda: writer_of(log).truncate_fully_and_start_at(0),
            lambda: log.append_batches(b""),
        ):
            with pytest.raises(ReadOnlyError):
                write()
        assert values(log) == [b"x"]


def test_an_unclosed_log_warns_and_loses_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(b"x")
    with pytest.warns(ResourceWarning, match="unclosed"):
        del log
    gc.collect()
    with Log(tmp_path / "log") as log:
        assert not log.recovery.clean
        assert values(log) == [b"x"]


def test_an_open_that_fails_at_its_last_step_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("kstore.log.LogReads", mock.Mock(side_effect=MemoryError))
        # The kept exception would keep a lock that nothing else releases.
        with pytest.raises(MemoryError) as kept:
            Log(tmp_path / "log")
    Log(tmp_path / "log").close()
    assert kept.type is MemoryError


@pytest.mark.promise("fork")
def test_the_child_of_a_fork_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"parent")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                log.append(b"child")
            except ForkedError as error:
                code = 0 if "parent" in str(error) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert log.append(b"again") == 1
    with Log(tmp_path / "log") as log:
        assert values(log) == [b"parent", b"again"]


def test_a_read_only_file_system_is_read_and_not_written(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"x")
    fs = FailingFs(SYSTEM_FS, Fault(1, errno=errno.EROFS, sticky=True))
    with pytest.raises(ReadOnlyError):
        Log(tmp_path / "other", fs=fs)
    with Log(tmp_path / "log", read_only=True, fs=fs) as log:
        assert values(log) == [b"x"]


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG"])
@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("written", [0, 50], ids=["nothing", "a-part"])
def test_an_append_on_a_full_disk_fails_whole(name: str, durability: Any, written: int, tmp_path: Path) -> None:
    fault = Fault(1, errno=getattr(errno, name), kinds=WRITES, suffix=".log", written=written)
    log, fs = failing(tmp_path / "log", fault, durability=durability)
    with pytest.raises(DiskFullError) as caught:
        log.append_many([b"three", b"four"])
    assert caught.value.errno == getattr(errno, name)
    assert values(log) == [b"one", b"two"]
    fs.faults.clear()
    assert log.append(b"space again") == 2
    log.check()
    log.close()
    with Log(tmp_path / "log") as log:
        assert values(log) == [b"one", b"two", b"space again"]


@pytest.mark.promise("sync fails")
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_failed_sync_poisons_the_log(durability: Any, tmp_path: Path) -> None:
    log, fs = failing(tmp_path / "log", durability=durability)
    log.flush()
    if durability == "sync":
        fs.faults.append(Fault(1, errno=errno.EIO, kinds=frozenset({"write_and_sync"}), written=None))
        with pytest.raises(SyncFailedError):
            log.append(b"unknown")
    else:
        log.append(b"unknown")
        fs.faults.append(Fault(1, errno=errno.EIO, kinds=SYNCS, suffix=".log"))
        with pytest.raises(SyncFailedError):
            log.flush()
    assert values(log) == [b"one", b"two"]
    assert log.high_watermark == 2
    for write in (lambda: log.append(b"more"), log.flush, lambda: log.truncate_to(0)):
        with pytest.raises(PoisonedError, match="reopen the log"):
            write()
    count = len(fs.failures)
    log.close()
    assert len(fs.failures) == count, "a second sync"
    with Log(tmp_path / "log") as log:
        assert not log.recovery.clean
        assert values(log)[:2] == [b"one", b"two"]
        log.append(b"recovered")


def test_a_write_that_cannot_be_cut_back_poisons_the_log(tmp_path: Path) -> None:
    log, _ = failing(
        tmp_path / "log",
        Fault(1, errno=errno.ENOSPC, kinds=WRITES, suffix=".log", written=20),
        Fault(1, errno=errno.EIO, kinds=frozenset({"truncate"}), suffix=".log"),
    )
    with pytest.raises(KstoreError):
        log.append(b"torn")
    with pytest.raises(PoisonedError):
        log.append(b"more")
    assert values(log) == [b"one", b"two"]
    log.close()
    with Log(tmp_path / "log") as log:
        assert values(log) == [b"one", b"two"]


def test_an_index_that_cannot_be_written_never_fails_an_append(tmp_path: Path) -> None:
    log, fs = failing(
        tmp_path / "log", Fault(1, errno=errno.ENOSPC, sticky=True, suffix="index"), index_interval_bytes=0
    )
    for number in range(20):
        log.append(b"%d" % number)
    assert len(values(log)) == 22
    assert next(log.read(15)).offset == 15
    fs.faults.clear()
    log.close()
    with Log(tmp_path / "log") as log:
        assert next(log.read(15)).offset == 15
        log.append(b"x")
        log.check()


@pytest.mark.parametrize("written", [0, 30, None], ids=["before", "within", "behind"])
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_an_interrupted_append_is_whole_or_absent(durability: Any, written: int | None, tmp_path: Path) -> None:
    fault = Fault(1, kinds=WRITES, suffix=".log", written=written, raising=KeyboardInterrupt())
    log, _ = failing(tmp_path / "log", fault, durability=durability)
    with pytest.raises(KeyboardInterrupt):
        log.append_many([b"three", b"four"])
    assert values(log) == [b"one", b"two"]
    assert log.append(b"three") == 2
    log.check()
    log.close()


def test_a_roll_without_room_fails_the_append_and_the_old_segment_goes_on(tmp_path: Path) -> None:
    log, fs = failing(
        tmp_path / "log", Fault(1, errno=errno.ENOSPC, kinds=frozenset({"create"}), suffix=".log"), segment_bytes=1024
    )
    with pytest.raises(DiskFullError):
        log.append(b"x" * 900)
    assert fs.failures
    assert log.append(b"small") == 2
    assert log.append(b"x" * 900) == 3
    log.check()
    log.close()


LIMITED = """
import resource, sys, kstore
log = kstore.Log(sys.argv[1], durability=sys.argv[2], segment_bytes=10_000_000)
log.append(b"before")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
appended = 1
try:
    while True:
        log.append_many([b"%d" % appended * 20] * 7)
        appended += 7
except kstore.errors.DiskFullError as error:
    print(type(error).__name__, error.errno, appended, log.end_offset, sum(1 for _ in log.read()))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(b"room again")
log.check()
log.close()
"""


@pytest.mark.promise("disk full")
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_real_file_size_limit_is_met_and_lifted(durability: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "log"), durability]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    name, number, appended, end, count = done.stdout.split()
    assert (name, int(number)) == ("DiskFullError", errno.EFBIG)
    assert int(appended) == int(end) == int(count)
    with Log(tmp_path / "log") as log:
        assert log.recovery.clean
        assert len(values(log)) == int(count) + 1


@pytest.mark.parametrize("durability", ["interval", "os"])
@pytest.mark.parametrize("is_single", [True, False])
def test_an_append_whose_flush_finds_no_space_is_in_the_log_and_returns(
    tmp_path: Path, durability: Durability, is_single: bool, caplog: pytest.LogCaptureFixture
) -> None:
    no_space = Fault(1, errno.ENOSPC, kinds=WRITES, suffix="kstore.state")
    options: dict[str, Any] = {"durability": durability, "flush_messages": 3, "flush_ms": "1d"}
    log, _ = failing(tmp_path / "log", no_space, **options)
    with log:
        assert (log.append(b"three") if is_single else log.append_many([b"three"]).first_offset) == 2
        assert no_space.seen == 1
        assert "a flush failed" in caplog.text
        assert [log.append(b"more") for _ in range(3)] == [3, 4, 5]
        assert values(log) == [b"one", b"two", b"three", b"more", b"more", b"more"]
        assert writer_of(log).ends.recovery_point == 6


# --- the last offsets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_log_that_ends_with_the_greatest_offset_takes_no_more(tmp_path: Path, durability: Durability) -> None:
    """Foreign batches may bring it there. A record after them could not be read."""
    with Log(tmp_path / "log", durability=durability) as log:
        writer = writer_of(log)
        with pytest.raises(InvalidOffsetError, match="expected 0 to"):
            writer.truncate_fully_and_start_at(RECORD_OFFSET_MAX + 1)
        writer.truncate_fully_and_start_at(RECORD_OFFSET_MAX - 2)
        assert log.append(b"a") == RECORD_OFFSET_MAX - 2
        with pytest.raises(InvalidOffsetError, match="the last offset"):
            log.append_many([b"b", b"c", b"d"])
        assert log.append_many([b"b", b"c"]).last_offset == RECORD_OFFSET_MAX
        with pytest.raises(InvalidOffsetError, match="the last offset"):
            log.append(b"d")
        assert writer.roll() == RECORD_OFFSET_MAX - 2  # no segment can begin after it
        log.check()
    with Log(tmp_path / "log", durability=durability) as log:
        assert values(log) == [b"a", b"b", b"c"]
        assert log.recovery.clean
        with pytest.raises(InvalidOffsetError, match="the last offset"):
            log.append(b"d")
