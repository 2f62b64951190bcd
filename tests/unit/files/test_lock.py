"""The directory lock: which processes it keeps out, which it names, and what a fork does to it."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstore.errors import ForkedError, LockedError, ReadOnlyError, StorageError
from kstore.files import lock as lock_module
from kstore.files.lifetime import ForkGuard
from kstore.files.lock import DirectoryLock, probe_lock

# A later Python warns of a fork beside threads; these children make only system calls and leave with _exit.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

needs_ofd = pytest.mark.skipif(lock_module.OFD_SETLK is None, reason="only Linux has open file description locks")

FLOCK = struct.Struct("@hhqqi0q")


@contextmanager
def lock_file(directory: Path) -> Iterator[int]:
    """The ``.lock`` as another program opens it."""
    fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def take_flock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_posix(fd: int) -> None:
    """As Java's FileChannel.tryLock does."""
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_ofd(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def refused(take: Callable[[int], None], directory: Path) -> bool:
    with lock_file(directory) as fd:
        try:
            take(fd)
        except (BlockingIOError, PermissionError):
            return True
        return False


def in_child(action: Callable[[], object]) -> int:
    """Forks; the child does ``action`` and exits with 0, with 7 if it was refused, with 1 for anything else."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except LockedError:
            status = 7
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def waiting_child(before: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A forked child that did ``before`` and lives until the block ends."""
    ready_in, ready_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before()
            os.write(ready_out, b"x")
            signal.pause()
        finally:
            os._exit(0)
    try:
        os.close(ready_out)
        assert os.read(ready_in, 1) == b"x", "the child failed"
        yield pid
    finally:
        os.close(ready_in)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# --- taking and giving up ---------------------------------------------------------------------------------------------


def test_the_lock_file_is_private_and_names_its_holder(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, kind="store") as lock:
        assert lock.held
        lock.check()
        assert (tmp_path / ".lock").read_text() == f"kstore store {os.getpid()}\n"
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_released_lock_leaves_an_empty_file_and_can_be_taken_again(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    first.release()
    first.release()
    assert not first.held
    assert (tmp_path / ".lock").read_bytes() == b""
    with DirectoryLock(tmp_path) as second:
        assert second.held


def test_a_lock_goes_with_its_last_reference(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    assert lock.held
    del lock
    gc.collect()
    DirectoryLock(tmp_path).release()


def test_a_kept_error_does_not_keep_a_lock(tmp_path: Path) -> None:
    holder = DirectoryLock(tmp_path)
    with pytest.raises(LockedError) as caught:
        DirectoryLock(tmp_path)
    holder.release()
    DirectoryLock(tmp_path).release()
    assert caught.value.filename == str(tmp_path / ".lock")


def test_the_second_lock_of_a_process_is_refused_by_name(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(LockedError, match=rf"this process \({os.getpid()}\)") as caught:
        DirectoryLock(tmp_path)
    assert caught.value.errno == errno.EAGAIN
    assert isinstance(caught.value, BlockingIOError)


def test_the_same_directory_by_another_name_is_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with DirectoryLock(tmp_path / "a"), pytest.raises(LockedError):
        DirectoryLock(tmp_path / "b")


def test_two_directories_are_two_locks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with DirectoryLock(tmp_path), DirectoryLock(tmp_path / "a"):
        pass


# --- other programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "take", [take_flock, pytest.param(take_posix, marks=needs_ofd)], ids=["flock", "Java's tryLock"]
)
def test_a_held_directory_keeps_other_programs_out(tmp_path: Path, take: Callable[[int], None]) -> None:
    with DirectoryLock(tmp_path):
        assert refused(take, tmp_path)
    assert not refused(take, tmp_path)


@pytest.mark.parametrize(
    ("take", "named"),
    [
        (take_flock, "by a broker or another program"),
        pytest.param(take_posix, r"by process {pid} \(a broker or another program\)", marks=needs_ofd),
        pytest.param(take_ofd, "by a broker or another program", marks=needs_ofd),
    ],
    ids=["flock", "Java's tryLock", "open file description"],
)
def test_a_directory_that_another_program_holds_is_refused(
    tmp_path: Path, take: Callable[[int], None], named: str
) -> None:
    # In another process, because a process loses its POSIX locks when it closes the file anywhere.
    with waiting_child(lambda: take(os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT, 0o644))) as pid:
        for use in (DirectoryLock, probe_lock):
            with pytest.raises(LockedError, match=named.format(pid=pid)):
                use(tmp_path)
    DirectoryLock(tmp_path).release()


def test_a_word_left_by_a_dead_holder_is_not_taken_for_another_programs(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"kstore log 4711\n")
    with lock_file(tmp_path) as fd:
        take_flock(fd)
        with pytest.raises(LockedError, match="a broker or another program"):
            DirectoryLock(tmp_path)


@needs_ofd
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"kstore log 4711\n", r"kstore \(log\), process 4711"),
        (b"kstore log 4711\nand more", "a broker or another program"),
        (b"kstore \x1b[2J 4711\n", "a broker or another program"),
        (b"kstore log " + b"9" * 4000, "a broker or another program"),
        (b"\xff\xfe\0", "a broker or another program"),
    ],
    ids=["kstore", "more than one line", "control characters", "long", "binary"],
)
def test_what_the_file_says_of_its_holder_is_believed_only_to_the_letter(
    tmp_path: Path, content: bytes, named: str
) -> None:
    (tmp_path / ".lock").write_bytes(content)
    with lock_file(tmp_path) as fd:
        take_ofd(fd)
        with pytest.raises(LockedError, match=named):
            DirectoryLock(tmp_path)


@needs_ofd
def test_a_holder_is_named_whatever_time_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").write_bytes(b"kstore log 4711\n")
    real = os.fstat
    with lock_file(tmp_path) as fd:
        take_ofd(fd)
        for seconds, since in ((3 * 10**11, "300000000000 seconds after 1970"), (0, "1970-01-01 00:00:00 UTC")):
            # Not every file system can store such times.
            monkeypatch.setattr(os, "fstat", lambda fd, time=seconds: os.stat_result((*real(fd)[:8], time, 0)))
            with pytest.raises(LockedError, match=f"process 4711, since {since}"):
                DirectoryLock(tmp_path)


@needs_ofd
def test_another_process_of_kstore_is_named(tmp_path: Path) -> None:
    kept: list[DirectoryLock] = []
    with waiting_child(lambda: kept.append(DirectoryLock(tmp_path, kind="store"))) as pid:
        with pytest.raises(LockedError, match=rf"kstore \(store\), process {pid}, since 20..-..-.. ..:..:.. UTC"):
            DirectoryLock(tmp_path)
        with pytest.raises(LockedError, match=rf"kstore \(store\), process {pid}"):
            probe_lock(tmp_path)
    # Killed: the system dropped its lock, but the file still has its name.
    assert (tmp_path / ".lock").read_bytes() != b""
    with DirectoryLock(tmp_path):
        pass


def test_a_probe_in_the_middle_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_file(tmp_path) as fd:
        fcntl.flock(fd, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(fd, fcntl.LOCK_UN))
        DirectoryLock(tmp_path).release()


def test_a_lock_file_that_its_last_holder_removes_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = lock_module._try_flock_past_probes
    removed: list[int] = []

    def remove_once(fd: int, **how: bool) -> bool:
        # A broker stops between our open and our lock of its file.
        if not removed:
            (tmp_path / ".lock").unlink()
            removed.append(fd)
        return take(fd, **how)

    monkeypatch.setattr(lock_module, "_try_flock_past_probes", remove_once)
    with DirectoryLock(tmp_path):
        assert refused(take_flock, tmp_path), "the file that is there now is the locked one"


def test_a_lock_file_that_is_replaced_again_and_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(fd: int, **how: bool) -> bool:
        (tmp_path / ".lock").unlink()
        return True

    monkeypatch.setattr(lock_module, "_try_flock_past_probes", remove)
    with pytest.raises(StorageError, match="replaced"):
        DirectoryLock(tmp_path)


def test_a_lock_whose_file_was_taken_away_says_so(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path) as lock:
        (tmp_path / ".lock").unlink()
        with pytest.raises(StorageError, match="no longer the file"):
            lock.check()


# --- what is no lock file ---------------------------------------------------------------------------------------------


def test_a_missing_directory_is_typed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirectoryLock(tmp_path / "missing")


def test_a_link_in_place_of_the_lock_file_is_refused_and_its_target_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"content")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="symbolic link"):
        DirectoryLock(tmp_path)
    probe_lock(tmp_path)
    assert (tmp_path / "precious").read_bytes() == b"content"


def test_a_fifo_in_place_of_the_lock_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(StorageError, match="not a regular file"):
        DirectoryLock(tmp_path)
    probe_lock(tmp_path)


def test_a_directory_in_which_nothing_may_be_written_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, flags: int, mode: int = 0) -> int:
        raise OSError(errno.EROFS, "injected")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ReadOnlyError):
        DirectoryLock(tmp_path)


def test_a_file_system_that_cannot_lock_is_an_error_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "injected")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError) as caught:
        DirectoryLock(tmp_path)
    assert caught.value.errno == errno.ENOLCK
    assert not isinstance(caught.value, LockedError)


# --- probing ----------------------------------------------------------------------------------------------------------


def test_a_probe_creates_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    probe_lock(tmp_path)
    probe_lock(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".lock").write_bytes(b"")
    probe_lock(tmp_path)
    DirectoryLock(tmp_path).release()


def test_a_probe_sees_the_lock_of_its_own_process(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(LockedError, match="this process"):
        probe_lock(tmp_path)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS], ids=["no permission", "read-only file system"])
@pytest.mark.parametrize("readable", [True, False], ids=["readable", "not readable"])
def test_a_probe_makes_do_with_what_it_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, readable: bool
) -> None:
    open_file = os.open

    def refuse_writing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR or not readable:
            raise OSError(code, "injected")
        return open_file(path, flags, mode)

    with lock_file(tmp_path) as fd:
        monkeypatch.setattr(os, "open", refuse_writing)
        probe_lock(tmp_path)
        take_flock(fd)
        if readable:
            with pytest.raises(LockedError):
                probe_lock(tmp_path)
        else:
            probe_lock(tmp_path)


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_child_has_no_lock_and_cannot_take_its_parents(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path) as lock:

        def in_the_child() -> None:
            assert not lock.held
            with pytest.raises(ForkedError):
                lock.check()
            lock.release()
            DirectoryLock(tmp_path)

        assert in_child(in_the_child) == 7
        lock.check()
        assert in_child(lambda: DirectoryLock(tmp_path)) == 7, "the first child's release unlocked nothing"
        assert (tmp_path / ".lock").read_text() == f"kstore log {os.getpid()}\n"


def test_a_child_that_lives_on_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with waiting_child():
        lock.release()
        DirectoryLock(tmp_path).release()


def test_a_child_can_lock_another_directory(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with DirectoryLock(tmp_path):
        assert in_child(lambda: DirectoryLock(tmp_path / "other").release()) == 0


def test_a_copy_of_the_descriptor_in_a_starting_program_does_not_outlive_the_release(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    # As in a child between its fork and its exec, where no Python runs to close it.
    copy = os.dup(lock._fd)
    try:
        lock.release()
        DirectoryLock(tmp_path).release()
    finally:
        os.close(copy)


def test_a_fork_in_the_middle_of_locking_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()
    go_on = threading.Event()
    take = lock_module._try_flock_past_probes

    def slow(fd: int, **how: bool) -> bool:
        opened.set()
        assert go_on.wait(300)
        return take(fd, **how)

    monkeypatch.setattr(lock_module, "_try_flock_past_probes", slow)
    locks: list[DirectoryLock] = []
    thread = threading.Thread(target=lambda: locks.append(DirectoryLock(tmp_path)))
    thread.start()
    assert opened.wait(300)
    # The fork below must not copy an unregistered descriptor, so it waits until the lock is held.
    threading.Timer(0.01, go_on.set).start()
    with waiting_child():
        thread.join()
        monkeypatch.undo()
        locks[0].release()
        DirectoryLock(tmp_path).release()


def test_a_guard_tells_a_child_from_its_parent() -> None:
    guard = ForkGuard()
    guard.check("the log")

    def in_the_child() -> None:
        assert guard.forked
        with pytest.raises(ForkedError, match="the log was opened before"):
            guard.check("the log")
        ForkGuard().check("a log opened in the child")

    assert in_child(in_the_child) == 0
    assert not guard.forked
