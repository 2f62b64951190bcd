"""The lock that lets one writer into a directory: kstore's or a broker's, never both.

The file ``.lock`` is locked in two ways, because neither excludes every program:

- an *open file description* lock (Linux), which excludes Java's ``FileChannel.tryLock``, so a broker, unlike ``flock``.
  A plain POSIX lock would too, but closing any descriptor of the file in the process releases it;
- ``flock``, which excludes other programs, and all programs on systems without the former (there also Java).

A registry of this process's locks gives a clear message and guards the moments in which a fork would copy an
unregistered descriptor. The system drops both locks when the process dies, so a lock is never stale; the file's text
about its holder (``kstore <kind> <process id>``) is for people and decides nothing. A fork shares the locks: the child
only closes its copies, since unlocking would unlock the parent's.

Writers that share a directory divide the bytes of ``.lock`` among them, each with open file description locks:

    byte 0   read-locked by each of them while it is open; an exclusive writer locks the whole file
    byte 1   read-locked by those that are open and sound: a process that finds none of them recovers
    byte 2   locked while one changes anything: the short lock

The file stays when it is unlocked. A broker removes its own, so a process that has locked a file checks again that it
is still the one in the directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple

from kstore.errors import ClosedError, ForkedError, LockedError, PathLike, StorageError
from kstore.files._locks import block
from kstore.files.descriptors import relieved
from kstore.files.fs import REFUSED_ERRNOS, storage_error
from kstore.files.paths import LOCK
from kstore.files.platform import foreign_type
from kstore.files.turn_wait import watched

OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

HOLDER = re.compile(rb"kstore ([a-z-]{1,32}) ([1-9][0-9]{0,9})\n")
HOLDER_SIZE_MAX = 64
UNKNOWN_HOLDER = "a broker or another program"

MEMBERS, LIVE, TURN = ((os.SEEK_SET, byte, 1, 0) for byte in range(3))

TAKEN_ERRNOS = frozenset({errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK})
# Errors of a probe that mean "no lock file"; any other error, such as too many open files, leaves it unknown.
NO_FILE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})

# struct flock of Linux with 64-bit offsets, in the machine's own layout: type, whence, start, length, process id.
# Start 0 and length 0 are the whole file, as Java locks it. An open file description lock requires process id 0.
FLOCK = struct.Struct("@hhqqi0q")
WHOLE_FILE = (os.SEEK_SET, 0, 0, 0)
assert FLOCK.size == 32

# Linux has them; elsewhere only flock is used.
OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
OFD_SETLKW: int | None = getattr(fcntl, "F_OFD_SETLKW", None)
OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None)

# A probe of another process holds a shared flock for some microseconds; that must not count as a holder.
PROBE_RETRIES = 5
PROBE_WAIT_SECONDS = 0.002

# A stopping broker removes the file that was just opened; more than a few times in a row is not chance.
REPLACED_RETRIES = 10


class DirectoryLock:
    """The right to write in a directory, from construction to ``release()``. Thread-safe."""

    __slots__ = ("__weakref__", "_fd", "_id", "_is_given_up", "_pid", "_shared", "_shares", "directory")

    def __init__(self, directory: PathLike, *, kind: str = "log", mode: int = 0o600, shared: bool = False) -> None:
        """Takes the lock of ``directory``, whose ``.lock`` is created with ``mode`` if missing.

        ``kind`` describes the holder to people. ``shared`` admits only others that share it.

        Raises: LockedError, at once and naming the holder; ReadOnlyError, FileMissingError, StorageError, also if the
        system, or the file system, has no shareable locks.
        """
        self._fd = -1
        # The file that it has locked.
        self._id: _FileId | None = None
        self._shared = shared
        self._is_given_up = False
        # The ``id`` of each unreleased share; guarded by ``_mutex``.
        self._shares: set[int] = set()
        self._pid = os.getpid()
        self.directory: PathLike = directory
        path = os.path.join(directory, LOCK)
        try:
            # Outside the registry, whose lock every other lock needs: closing files may wait for the disk.
            relieved(self._take, path, kind, mode)
        except BaseException:
            self.release()  # at once: a stored exception keeps this object
            raise

    def _take(self, path: str, kind: str, mode: int) -> None:
        """Takes the lock of the file named ``path``, if it is free.

        At each step the object has what was taken, so that its release gives it back, whatever interrupts this.
        """
        if self._shared:
            _check_shareable(path)
        with _mutex:
            for _ in range(REPLACED_RETRIES):
                self._drop()
                try:
                    self._fd = os.open(path, OPEN_FLAGS | os.O_RDWR | os.O_CREAT, mode)
                    file_id = _check_not_ours(self._fd, path, shared=self._shared)
                    if not _try_ofd(self._fd, shared=self._shared) or not _try_flock_past_probes(
                        self._fd, shared=self._shared
                    ):
                        raise _locked(self._fd, path)
                except LockedError:
                    raise
                except OSError as error:
                    raise storage_error(error, path, writing=True) from error
                if _file_id(path) == file_id:
                    self._id = file_id
                    _held.setdefault(file_id, []).append(_Held(self._fd, self._shared, weakref.ref(self)))
                    _write_holder(self._fd, f"kstore {kind} {self._pid}\n".encode("ascii"))
                    return
        raise StorageError(errno.EAGAIN, f"replaced by another file {REPLACED_RETRIES} times while it was locked", path)

    def _drop(self) -> None:
        """Closes the descriptor, and with it ends any lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # else it may not be fully constructed
            self._shares.clear()  # a live share would refer to this lock
            self.release()

    @property
    def held(self) -> bool:
        return self._fd >= 0 and not self._is_given_up

    def share(self) -> LockShare:
        """Another claim on the lock: the directory stays locked until this one is released, too.

        Raises: ClosedError if the lock was released.
        """
        share = LockShare(self)
        try:
            with _mutex:
                if not self.held:
                    raise ClosedError(f"the lock of {os.fspath(self.directory)} was released")
                self._shares.add(id(share))
            return share
        except BaseException:
            share.release()  # at once: a stored exception keeps it
            raise

    def _release_share(self, share: LockShare) -> None:
        with _mutex:
            self._shares.discard(id(share))
            if self._is_given_up:
                self.release()

    def release(self) -> None:
        """Releases the directory, or leaves it to the last share; a second call, or one in a forked child, does
        nothing."""
        self._is_given_up = True
        try:
            self._let_go()
        except BaseException:
            self._let_go()  # what an interrupt has left to do
            raise

    def _let_go(self) -> None:
        if self._fd < 0:
            return
        with _mutex:
            fd = self._fd
            if fd < 0 or self._shares:
                return
            # Without an id it was never locked: the text names another holder.
            if self._id is not None:
                others = [held for held in _held.get(self._id, ()) if held.fd != fd]
                if others:
                    _held[self._id] = others
                else:
                    _held.pop(self._id, None)
                # Unlocked explicitly, not only closed: a child that is about to exec another program has a copy of the
                # descriptor, which would keep the lock. Only the owner may: elsewhere it is the parent's lock.
                if self._pid == os.getpid():
                    if not self._shared:
                        _write_holder(fd, b"")  # other sharing processes may continue
                    _unlock(fd)
            self._drop()

    # --- shared ---------------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Waits for the short lock, which one sharing process has at a time. A wait that is too long is logged.

        Raises: StorageError.
        """
        if not self.try_turn():
            watched(self._wait_for_turn, os.path.join(self.directory, LOCK), self._others_have_turn)

    def _wait_for_turn(self) -> None:
        assert OFD_SETLKW is not None
        self._fcntl(OFD_SETLKW, _TURN_LOCK)

    def _others_have_turn(self) -> bool:
        return self._others_hold(TURN)

    def try_turn(self) -> bool:
        """Takes the short lock, unless another process has it. Raises: StorageError."""
        assert OFD_SETLK is not None
        try:
            self._fcntl(OFD_SETLK, _TURN_LOCK)
        except StorageError as error:
            if error.errno in TAKEN_ERRNOS:
                return False
            raise
        return True

    def end_turn(self) -> None:
        """Releases the short lock. Raises: StorageError."""
        assert OFD_SETLK is not None
        self._fcntl(OFD_SETLK, _TURN_UNLOCK)

    def go_live(self) -> None:
        """Lets other processes find the directory sound while this process lives. Raises: StorageError."""
        assert OFD_SETLK is not None
        self._fcntl(OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, *LIVE))

    def others_live(self) -> bool:
        """Whether another process has the directory open and sound. Raises: StorageError."""
        return self._others_hold(LIVE)

    def _others_hold(self, byte: tuple[int, int, int, int]) -> bool:
        assert OFD_GETLK is not None
        kind, *_ = FLOCK.unpack(self._fcntl(OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, *byte)))
        return bool(kind != fcntl.F_UNLCK)

    def _fcntl(self, command: int, request: bytes) -> bytes:
        try:
            return fcntl.fcntl(self._fd, command, request)
        except (OSError, ValueError) as error:
            code = getattr(error, "errno", None) or errno.EBADF
            raise StorageError(code, f"lock: {error}", os.path.join(self.directory, LOCK)) from error

    def check(self) -> None:
        """Raises: ForkedError in a child of the process that took the lock; StorageError if the file in the directory
        is no longer the locked one, so that another process may hold it."""
        if self._pid != os.getpid():
            raise ForkedError(f"{os.fspath(self.directory)} was locked before this process was forked")
        path = os.path.join(self.directory, LOCK)
        if not self.held or _file_id(path) != self._id:
            raise StorageError(errno.ESTALE, "no longer the file that was locked", path)

    def _forget(self) -> None:
        """In a forked child: the descriptor has been closed."""
        self._fd = -1


class LockShare:
    """A claim on a ``DirectoryLock``, from ``DirectoryLock.share()`` to ``release()``. Thread-safe."""

    __slots__ = ("_lock",)

    def __init__(self, lock: DirectoryLock) -> None:
        self._lock = lock

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Releases the claim; a second call, or one in a forked child, does nothing."""
        try:
            self._lock._release_share(self)
        except BaseException:
            self._lock._release_share(self)  # what an interrupt has left to do
            raise


_TURN_LOCK = FLOCK.pack(fcntl.F_WRLCK, *TURN)
_TURN_UNLOCK = FLOCK.pack(fcntl.F_UNLCK, *TURN)


def probe_lock(directory: PathLike, *, shared: bool = False) -> None:
    """Checks whether a process holds the lock of ``directory``, without creating or keeping anything.

    ``shared``: those that share it do not count. A ``.lock`` that is missing, or that may not be opened, has no
    discoverable holder.

    Raises: LockedError; StorageError if it cannot be determined, as without a free descriptor.
    """
    relieved(_probe, os.path.join(directory, LOCK), shared=shared)


def _probe(path: str, *, shared: bool) -> None:
    with _mutex:
        fd = _open_to_probe(path)
        if fd is None:
            return
        try:
            _check_not_ours(fd, path, shared=shared)
            # A query takes nothing, so it disturbs no other process. flock has no query, only an attempt; a shared one
            # admits other probes.
            if _ofd_holder(fd, shared=shared) is not None or not _try_flock(fd, fcntl.LOCK_SH):
                raise _locked(fd, path)
            _unlock(fd)
        except OSError as error:
            if isinstance(error, LockedError):
                raise
        finally:
            os.close(fd)


_FileId = tuple[int, int]


class _Held(NamedTuple):
    """A descriptor with locks on it. It is closed in a forked child, whether or not its owner is still reachable."""

    fd: int
    shared: bool
    owner: weakref.ref[DirectoryLock]


# Several for one file only if all of them share it.
_held: dict[_FileId, list[_Held]] = {}

# Held from opening a lock file until it is registered, and over a fork.
# Reentrant: a garbage collection inside may release a forgotten lock.
_mutex = threading.RLock()
_is_mine = threading.Condition(_mutex)


def is_in_registry() -> bool:
    """Whether this thread is inside the registry: then a garbage collection there runs the finalizer that asks.

    It may take and release locks, but must not wait for another thread, which may need the registry too.
    """
    try:
        _is_mine.notify(0)
    except RuntimeError:
        return False
    return True


def _before_fork() -> None:
    _mutex.acquire()


def _after_fork_in_parent() -> None:
    _mutex.release()


def _after_fork_in_child() -> None:
    for held in (each for holders in _held.values() for each in holders):
        try:
            os.close(held.fd)
        except OSError:
            # Other code closed it, in the parent; the others must still be closed.
            pass
        owner = held.owner()
        if owner is not None:
            owner._forget()
    _held.clear()
    # The forking thread is the child's only one, and holds it.
    _mutex.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _check_shareable(path: str) -> None:
    """Raises: StorageError if locks, or mapped memory, may not be visible to every writer."""
    if OFD_SETLK is None:
        raise StorageError(errno.ENOTSUP, "this system lacks the locks that writers of one directory can share", path)
    if found := foreign_type(os.path.dirname(path)):
        raise StorageError(
            errno.ENOTSUP,
            f"a file system of type {found}, which others may write to past this machine's locks; to be shared it must"
            " be one of this machine's own",
            path,
        )


def _open_to_probe(path: str) -> int | None:
    for access in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, OPEN_FLAGS | access)
        except OSError as error:
            if error.errno in NO_FILE_ERRNOS:
                return None
            if error.errno not in REFUSED_ERRNOS:
                raise storage_error(error, path) from error
    return None


def _check_not_ours(fd: int, path: str, *, shared: bool) -> _FileId:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    file_id = (found.st_dev, found.st_ino)
    if any(not (shared and held.shared) for held in _held.get(file_id, ())):
        raise LockedError(errno.EAGAIN, f"locked by this process ({os.getpid()}) already", path)
    return file_id


def is_held_here(directory: PathLike) -> bool:
    """Whether this process has the lock of ``directory``."""
    with _mutex:
        return _file_id(os.path.join(directory, LOCK)) in _held


def _file_id(path: str) -> _FileId | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _try_ofd(fd: int, *, shared: bool) -> bool:
    if OFD_SETLK is None:
        return True
    wanted = (fcntl.F_RDLCK, *MEMBERS) if shared else (fcntl.F_WRLCK, *WHOLE_FILE)
    try:
        fcntl.fcntl(fd, OFD_SETLK, FLOCK.pack(*wanted))
    except OSError as error:
        if error.errno in TAKEN_ERRNOS:
            return False
        raise
    return True


def _try_flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN_ERRNOS:
            return False
        raise
    return True


def _try_flock_past_probes(fd: int, *, shared: bool) -> bool:
    for _ in range(PROBE_RETRIES):
        if _try_flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            return True
        time.sleep(PROBE_WAIT_SECONDS)
    return False


def _unlock(fd: int) -> None:
    try:
        if OFD_SETLK is not None:
            fcntl.fcntl(fd, OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, *WHOLE_FILE))
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        # The following close unlocks too.
        pass


def _ofd_holder(fd: int, *, shared: bool = False) -> int | None:
    """The process whose lock conflicts with an open file description lock, or None.

    -1, or 0, if the system does not say, because an open file description belongs to no process.
    """
    if OFD_GETLK is None:
        return None
    wanted = (fcntl.F_RDLCK, *MEMBERS) if shared else (fcntl.F_WRLCK, *WHOLE_FILE)
    answer = fcntl.fcntl(fd, OFD_GETLK, FLOCK.pack(*wanted))
    kind, _whence, _start, _size, pid = FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(pid)


def _locked(fd: int, path: str) -> LockedError:
    return LockedError(errno.EAGAIN, f"locked by {_describe_holder(fd)}", path)


def _describe_holder(fd: int) -> str:
    """The holder of the lock, as far as known; the file's own text only if it can be kstore's.

    The text was written when the lock was taken, so the time of the file is since when it is held.
    """
    try:
        pid = _ofd_holder(fd)
        since = _time_text(os.fstat(fd).st_mtime)
        match = HOLDER.fullmatch(os.pread(fd, HOLDER_SIZE_MAX, 0))
    except OSError:
        return UNKNOWN_HOLDER
    if pid is not None and pid > 0:
        return f"process {pid} ({UNKNOWN_HOLDER})"
    # Only kstore takes an open file description lock; a lone flock may be any program's, next to an old text.
    if match is None or (pid is None and OFD_GETLK is not None):
        return UNKNOWN_HOLDER
    return f"kstore ({match[1].decode('ascii')}), process {int(match[2])}, since {since}"


def _time_text(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} seconds after 1970"  # not a year of four digits


def _write_holder(fd: int, text: bytes) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    except OSError:
        # A full disk must not prevent the lock: the text is for people.
        pass


# --- a lock on any other file -----------------------------------------------------------------------------------------


@block
def file_locked(path: PathLike, *, shared: bool, mode: int = 0o600) -> Iterator[None]:
    """Waits for the lock of ``path``, exclusive or ``shared``, and holds it; also excludes other threads.

    The file is created with ``mode`` if missing. The system frees the lock when its holder dies. Raises: StorageError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, mode)
    except OSError as error:
        raise storage_error(error, path, writing=True) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            raise storage_error(error, path) from error
        try:
            yield
        finally:
            # Explicitly, not only by a close: a process forked in the meantime has a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
