"""The lock that lets one writer into a directory: kstore's or a broker's, never both.

The file ``.lock`` is locked in two ways, because neither excludes everybody:

- an *open file description* lock (Linux), which excludes Java's ``FileChannel.tryLock``, so a broker, where ``flock``
  does not. A plain POSIX lock would too, but it goes with the first descriptor of the file that the process closes;
- ``flock``, which excludes other programs, and everybody on systems without the former (where it excludes Java too).

A registry of this process's locks gives a clear message and guards the moments in which a fork would copy a descriptor
that nobody knows of. The system drops both locks when the process dies, so a lock is never stale; what the file says
of its holder (``kstore <kind> <process id>``) is for people and decides nothing. A fork shares the locks: the child
only closes its copies, since unlocking would unlock the parent's.

Writers that share a directory divide the bytes of ``.lock`` among them, each with an open file description's locks:

    byte 0   read-locked by each of them while it is open; whoever wants the file for itself locks all of it
    byte 1   read-locked by those that are open and in order: who finds none of them recovers
    byte 2   locked while one changes anything: the short lock

The file stays when it is unlocked. A broker removes its own, so whoever has locked a file looks again whether it is
still the one in the directory.
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
from functools import partial
from types import TracebackType
from typing import NamedTuple

from kstore.errors import ClosedError, ForkedError, LockedError, PathLike, StorageError
from kstore.files.descriptors import relieved
from kstore.files.fs import REFUSED_ERRNOS, storage_error
from kstore.files.mounts import foreign_type
from kstore.files.paths import LOCK

__all__ = ["DirectoryLock", "LockShare", "is_in_registry", "probe_lock"]

OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

HOLDER = re.compile(rb"kstore ([a-z-]{1,32}) ([1-9][0-9]{0,9})\n")
HOLDER_SIZE_MAX = 64
SOMEBODY = "a broker or another program"

MEMBERS, LIVE, TURN = ((os.SEEK_SET, byte, 1, 0) for byte in range(3))

TAKEN_ERRNOS = frozenset({errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK})
# What a probe meets where there is no lock file; with any other error, as too many open files, nothing is known.
NO_FILE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})

# struct flock of Linux with 64-bit offsets, in the machine's own layout: type, whence, start, length, process id.
# Start 0 and length 0 are the whole file, as Java locks it. An open file description's lock wants process id 0.
FLOCK = struct.Struct("@hhqqi0q")
WHOLE_FILE = (os.SEEK_SET, 0, 0, 0)
assert FLOCK.size == 32

# Linux has them; elsewhere flock stands alone.
OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
OFD_SETLKW: int | None = getattr(fcntl, "F_OFD_SETLKW", None)
OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None)

# A probe of another process holds a shared flock for some microseconds; to find the file so is not to be too late.
PROBE_RETRIES = 5
PROBE_WAIT_SECONDS = 0.002

# A broker that stops removes the file that was just opened; more than a few times in a row is no accident.
REPLACED_RETRIES = 10


class DirectoryLock:
    """The right to write in a directory, from construction to ``release()``. Thread-safe."""

    __slots__ = ("__weakref__", "_fd", "_id", "_is_given_up", "_pid", "_shared", "_shares", "directory")

    def __init__(self, directory: PathLike, *, kind: str = "log", mode: int = 0o600, shared: bool = False) -> None:
        """Takes the lock of ``directory``, whose ``.lock`` is created with ``mode`` where it is missing.

        ``kind`` is a word for people: what holds it. ``shared`` lets in others that share it, and nobody else.

        Raises: LockedError, at once and naming the holder; ReadOnlyError, FileMissingError, StorageError, also where
        the system, or the file system, has no locks that can be shared.
        """
        self._fd = -1
        self._shared = shared
        self._is_given_up = False
        # The ``id`` of each share that was not released; guarded by ``_mutex``.
        self._shares: set[int] = set()
        self._pid = os.getpid()
        self.directory = directory
        path = os.path.join(directory, LOCK)
        try:
            # Outside the registry, whose lock every other lock needs: what closes files may wait for the disk.
            relieved(partial(self._take, path, kind, mode))
        except BaseException:
            self.release()  # at once: whoever keeps the exception keeps this object
            raise

    def _take(self, path: str, kind: str, mode: int) -> None:
        with _mutex:
            self._fd, self._id = _lock_file(path, mode, shared=self._shared)
            _held.setdefault(self._id, []).append(_Held(self._fd, self._shared, weakref.ref(self)))
            _write_holder(self._fd, f"kstore {kind} {self._pid}\n".encode("ascii"))

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if self._fd >= 0:  # else it may not even be whole
            self._shares.clear()  # a live share would refer to this lock
            self.release()

    @property
    def held(self) -> bool:
        return self._fd >= 0 and not self._is_given_up

    def share(self) -> LockShare:
        """One more claim on the lock: the directory stays locked until this one is released, too.

        Raises: ClosedError where the lock was released.
        """
        with _mutex:
            if not self.held:
                raise ClosedError(f"the lock of {os.fspath(self.directory)} was released")
            share = LockShare(self)
            self._shares.add(id(share))
            return share

    def _release_share(self, share: LockShare) -> None:
        with _mutex:
            self._shares.discard(id(share))
            if self._is_given_up:
                self.release()

    def release(self) -> None:
        """Gives the directory up, or leaves it to the last share; a second call, or one in a forked child, does
        nothing."""
        self._is_given_up = True
        if self._fd < 0:
            return
        with _mutex:
            fd = self._fd
            if fd < 0 or self._shares:
                return
            others = [held for held in _held.pop(self._id, ()) if held.fd != fd]
            if others:
                _held[self._id] = others
            # Unlocked by name, not only closed: a child that is just about to exec another program has a copy of the
            # descriptor, and the lock would live on with it. Only the owner may: elsewhere it is the parent's lock.
            if self._pid == os.getpid():
                if not self._shared:
                    _write_holder(fd, b"")  # of those who share it the others may go on
                _unlock(fd)
            # Only now: an interrupt before this leaves what a second call can do.
            self._fd = -1
            os.close(fd)

    # --- shared ---------------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Waits for the short lock, which one of those who share the directory has at a time. Raises: StorageError."""
        assert OFD_SETLKW is not None
        self._fcntl(OFD_SETLKW, _TURN_LOCK)

    def end_turn(self) -> None:
        """Lets the next one have the short lock. Raises: StorageError."""
        assert OFD_SETLK is not None
        self._fcntl(OFD_SETLK, _TURN_UNLOCK)

    def go_live(self) -> None:
        """From now on, and while the process lives, others find the directory in order. Raises: StorageError."""
        assert OFD_SETLK is not None
        self._fcntl(OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, *LIVE))

    def others_live(self) -> bool:
        """Whether somebody else has the directory open, and in order. Raises: StorageError."""
        assert OFD_GETLK is not None
        kind, *_ = FLOCK.unpack(self._fcntl(OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, *LIVE)))
        return bool(kind != fcntl.F_UNLCK)

    def _fcntl(self, command: int, request: bytes) -> bytes:
        try:
            return fcntl.fcntl(self._fd, command, request)
        except (OSError, ValueError) as error:
            code = getattr(error, "errno", None) or errno.EBADF
            raise StorageError(code, f"lock: {error}", os.path.join(self.directory, LOCK)) from error

    def check(self) -> None:
        """Raises: ForkedError in a child of the process that took the lock; StorageError when the file in the
        directory is no longer the locked one, so that somebody else may hold that."""
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
        """Gives the claim up; a second call, or one in a forked child, does nothing."""
        self._lock._release_share(self)


_TURN_LOCK = FLOCK.pack(fcntl.F_WRLCK, *TURN)
_TURN_UNLOCK = FLOCK.pack(fcntl.F_UNLCK, *TURN)


def probe_lock(directory: PathLike, *, shared: bool = False) -> None:
    """Looks whether somebody holds the lock of ``directory``, without creating or keeping anything.

    ``shared``: those who share it do not count.
    A ``.lock`` that is missing, or that may not be opened, is held by nobody who could be found.

    Raises: LockedError; StorageError where it cannot be found out, as without a free descriptor.
    """
    relieved(partial(_probe, os.path.join(directory, LOCK), shared=shared))


def _probe(path: str, *, shared: bool) -> None:
    with _mutex:
        fd = _open_to_probe(path)
        if fd is None:
            return
        try:
            _check_not_ours(fd, path, shared=shared)
            # Asking takes nothing, so it disturbs nobody; flock cannot be asked, only tried, and a shared one lets
            # other probes through.
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


# Of one file there are several only where all of them share it.
_held: dict[_FileId, list[_Held]] = {}

# Held over every step between opening a lock file and knowing of it, and over a fork.
# Reentrant: a garbage collection inside may release a lock that nobody released.
_mutex = threading.RLock()
_is_mine = threading.Condition(_mutex)


def is_in_registry() -> bool:
    """Whether this thread is inside the registry: then a finalizer asks, which a garbage collection runs there.

    It may take and release locks, but not wait for another thread, which may need the registry too.
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
            # Somebody else closed it, in the parent; the others must be closed all the same.
            pass
        owner = held.owner()
        if owner is not None:
            owner._forget()
    _held.clear()
    # The thread that forked is the child's only one, and holds it.
    _mutex.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _lock_file(path: str, mode: int, *, shared: bool) -> tuple[int, _FileId]:
    """Opens and locks the file that has the name ``path`` when the locks are there."""
    if shared:
        _check_shareable(path)
    for _ in range(REPLACED_RETRIES):
        try:
            fd = os.open(path, OPEN_FLAGS | os.O_RDWR | os.O_CREAT, mode)
        except OSError as error:
            raise storage_error(error, path, writing=True) from error
        try:
            file_id = _check_not_ours(fd, path, shared=shared)
            if not _try_ofd(fd, shared=shared) or not _try_flock_past_probes(fd, shared=shared):
                raise _locked(fd, path)
            if _file_id(path) == file_id:
                return fd, file_id
        except BaseException as error:
            # Whatever it was, MemoryError and KeyboardInterrupt too: a descriptor left open would keep the lock.
            os.close(fd)
            if isinstance(error, OSError) and not isinstance(error, LockedError):
                raise storage_error(error, path, writing=True) from error
            raise
        os.close(fd)
    raise StorageError(errno.EAGAIN, f"replaced by another file {REPLACED_RETRIES} times while it was locked", path)


def _check_shareable(path: str) -> None:
    """Raises: StorageError where locks, or memory that is mapped, need not be everybody's."""
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
        # The close that follows unlocks too.
        pass


def _ofd_holder(fd: int, *, shared: bool = False) -> int | None:
    """The process whose lock stands in the way of an open file description's, None if nobody's does.

    -1, or 0, where the system does not tell: an open file description belongs to no process.
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
    """Who holds the lock, as far as can be known; the file's own word only where it can be kstore's."""
    try:
        pid = _ofd_holder(fd)
        match = HOLDER.fullmatch(os.pread(fd, HOLDER_SIZE_MAX, 0))
    except OSError:
        return SOMEBODY
    if pid is not None and pid > 0:
        return f"process {pid} ({SOMEBODY})"
    # Nobody but kstore takes an open file description's lock; a lone flock may be anybody's, beside a word left behind.
    if match is None or (pid is None and OFD_GETLK is not None):
        return SOMEBODY
    return f"kstore ({match[1].decode('ascii')}), process {int(match[2])}"


def _write_holder(fd: int, text: bytes) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    except OSError:
        # A full disk is no reason not to lock: the text is for people.
        pass
