"""Waits for a directory to change without polling: Linux reports changes by inotify; elsewhere ``arm`` says no.

All watches of a process share one thread, which sleeps in a read of an inotify descriptor. A watch fires once
and is removed: without waiters, a busy writer costs its readers nothing. So arm it, then look at the directory, and
only then wait: changes after the arming are reported::

    watch = DirectoryWatch(directory)
    while True:
        is_notified = watch.arm()
        ...look; stop if the awaited change is there...
        watch.wait(1.0 if is_notified else 0.05)

The first watch of a directory makes the kernel visit all names in it that it has in memory, which takes milliseconds
where there are tens of thousands, and since Linux 6.10 a second one does not. So while a directory is followed,
a second inotify descriptor, which is never read, holds a watch there for rare events.

Changes through mapped memory are not reported, nor what another machine does to a network file system, so a waiter
looks from time to time in any case.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kstore.errors import PathLike, ThreadStartError
from kstore.files._locks import Attempt, block
from kstore.files.platform import foreign_type
from kstore.files.threads import Bell, start_thread

logger = logging.getLogger(__name__)

# linux/inotify.h
IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF = 0x400, 0x800
IN_Q_OVERFLOW = 0x4000
IN_ONLYDIR, IN_ONESHOT = 0x01000000, 0x80000000
MASK = (
    IN_MODIFY | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
    | IN_ONLYDIR | IN_ONESHOT
)  # fmt: skip
IN_CLOEXEC = os.O_CLOEXEC
# watch descriptor, mask, cookie, size of the name that follows
EVENT = struct.Struct("@iIII")
READ_BYTES = 64 * 1024
# Not for lack of a directory: then nothing can be watched anywhere.
NO_WATCH_ERRNOS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class DirectoryWatch:
    """Reports changes in one directory. One thread waits at a time; any thread may ``close`` it."""

    __slots__ = ("__weakref__", "_changed", "_closed", "_held", "_hub", "_number", "_path")

    def __init__(self, directory: PathLike, changed: Bell | None = None) -> None:
        """``changed``: the event that it sets, and clears when it is armed; several watches may share it."""
        # The number of the system's watch while it may still fire, and its hub, which guards it.
        self._number: int | None = None
        self._hub: _Hub | None = None
        # The number of the watch that the hub holds for as long as this one exists; -1 if it has none.
        self._held: int | None = None
        self._closed = False
        self._changed = Bell() if changed is None else changed
        self._path = os.fsencode(directory)

    def arm(self) -> bool:
        """From now on the next change ends a ``wait``. False if changes cannot be reported: then the caller must
        poll."""
        if self._closed:
            return False
        hub = _hub()
        if hub is None:
            return False
        if self._number is not None and self._hub is hub and not self._changed.is_set():
            return True
        self._changed.clear()
        return hub.add(self) and not self._closed

    @property
    def is_armed(self) -> bool:
        """Whether it has not fired since ``arm``."""
        return self._number is not None

    def wait(self, seconds: float | None) -> bool:
        """Returns True at the next change, or at one since ``arm``, and when it is closed; False after ``seconds``."""
        return self._changed.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Ends every wait, and the watch with it."""
        self._closed = True
        self._changed.set()
        self._forget()

    def __del__(self) -> None:
        # It wakes no thread: a waiter holds the watch, and a shared event has reported nothing.
        self._closed = True
        self._forget()

    def _forget(self) -> None:
        hub, number, held = self._hub, self._number, self._held
        self._number = self._held = None
        if hub is not None and hub is _the_hub and (number is not None or held is not None):
            hub.forget(number, held)


class _Calls(NamedTuple):
    """The functions of the C library."""

    add: Callable[[int, bytes, int], int]
    remove: Callable[[int, int], int]
    last_errno: Callable[[], int]


class _Hub:
    """The inotify descriptors of the process, and the watches that wait for the one that is read."""

    def __init__(self, calls: _Calls, fd: int, holding_fd: int) -> None:
        self._calls = calls
        self.fd = fd
        # Never read. Its watches only make those of ``fd`` cheap.
        self.holding_fd = holding_fd
        # Held over every call that changes the watches: an event is processed only when its owner is known.
        # Reentrant: a garbage collection inside may arm a watch.
        self.mutex = threading.RLock()
        self._is_busy = False  # guarded by the mutex
        self._waiting: dict[int, weakref.WeakSet[DirectoryWatch]] = {}
        # How many watches each number of ``holding_fd`` is held for.
        self._held: dict[int, int] = {}
        # The numbers, of both descriptors, of closed or collected watches, until no thread is inside.
        self._forgotten: deque[tuple[int | None, int | None]] = deque()
        self._warned = False
        start_thread(self._run, name="kstore-watch")

    @block
    def _alone(self) -> Iterator[None]:
        with self.mutex:
            was_busy, self._is_busy = self._is_busy, True
            try:
                yield
            finally:
                self._is_busy = was_busy
        if self._forgotten:
            self._sweep()

    def add(self, watch: DirectoryWatch) -> bool:
        with self._alone():
            if watch._hub is not self and foreign_type(os.fsdecode(watch._path)):
                return False
            # The same number again if the directory is watched already.
            number = self._calls.add(self.fd, watch._path, MASK)
            if number < 0:
                self._warn(self._calls.last_errno(), watch._path)
                return False
            self._waiting.setdefault(number, weakref.WeakSet()).add(watch)
            if watch._held is None or watch._hub is not self:
                self._hold(watch)
            # Last: after an interrupt the watch must not seem armed if nothing would signal it.
            watch._number, watch._hub = number, self
            return True

    def _hold(self, watch: DirectoryWatch) -> None:
        held = self._calls.add(self.holding_fd, watch._path, IN_ATTRIB | IN_ONLYDIR)
        if held >= 0:
            self._held[held] = self._held.get(held, 0) + 1
        watch._held = held

    def forget(self, number: int | None, held: int | None) -> None:
        """A watch with these numbers is gone. Waits for nothing: a garbage collection may call it in any thread."""
        self._forgotten.append((number, held))
        self._sweep()

    def _sweep(self) -> None:
        """Ends the system's watches that no watch uses any more; a thread inside does it when it leaves."""
        with Attempt(self.mutex) as is_mine:
            if not is_mine or self._is_busy:
                return
            self._is_busy = True
            try:
                while self._forgotten:
                    number, held = self._forgotten.popleft()
                    if number is not None:
                        self._end(number)
                    if held is not None:
                        self._release(held)
            finally:
                self._is_busy = False

    def _end(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        for watch in [watch for watch in waiting if watch._number != number]:
            waiting.discard(watch)
        if not waiting:
            del self._waiting[number]
            self._calls.remove(self.fd, number)

    def _release(self, held: int) -> None:
        count = self._held.pop(held, 0)
        if count > 1:
            self._held[held] = count - 1
        elif count == 1:
            self._calls.remove(self.holding_fd, held)

    def _warn(self, code: int, path: bytes) -> None:
        if code in NO_WATCH_ERRNOS and not self._warned:
            self._warned = True
            logger.warning("%s: changes are polled, not reported: inotify: %s", os.fsdecode(path), os.strerror(code))

    def _run(self) -> None:
        while True:
            try:
                data = os.read(self.fd, READ_BYTES)
            except OSError as error:
                logger.warning("inotify ended: %s", error)
                data = b""
            if not data:
                self.tell(None)
                return
            at = 0
            while at + EVENT.size <= len(data):
                number, mask, _, name_size = EVENT.unpack_from(data, at)
                at += EVENT.size + name_size
                # Whatever it is, even that the watch is gone: the waiter looks, and arms again.
                self.tell(None if mask & IN_Q_OVERFLOW else number)

    def tell(self, number: int | None) -> None:
        """Wakes the waiter for ``number``; None: all."""
        with self._alone():
            if number is None:
                told = [watch for waiting in list(self._waiting.values()) for watch in waiting]
                self._waiting.clear()
            else:
                told = list(self._waiting.pop(number, ()))
            for watch in told:
                watch._number = None
                watch._changed.set()


# Reentrant: a garbage collection inside may arm a watch.
_start_mutex = threading.RLock()
_is_starting = False
_the_hub: _Hub | None = None
_is_unavailable = sys.platform != "linux"


def _hub() -> _Hub | None:
    """The hub of this process, created on first use; None if there can be none."""
    global _the_hub, _is_unavailable, _is_starting
    hub = _the_hub
    if hub is not None or _is_unavailable:
        return hub
    with _start_mutex:
        if _the_hub is None and not _is_unavailable and not _is_starting:
            _is_starting = True
            try:
                _the_hub = _start()
            except (OSError, ThreadStartError, AttributeError) as error:
                # No inotify, no instance left for this user, no thread: it is not tried again.
                _is_unavailable = True
                logger.warning("changes in directories are polled, not reported: %s", error)
            finally:
                _is_starting = False
        return _the_hub


def _start() -> _Hub:
    import ctypes  # takes longer than the whole module

    library = ctypes.CDLL(None, use_errno=True)
    init, add, remove = library.inotify_init1, library.inotify_add_watch, library.inotify_rm_watch
    init.argtypes = (ctypes.c_int,)
    add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
    remove.argtypes = (ctypes.c_int, ctypes.c_int)
    fds: list[int] = []
    try:
        for _ in range(2):
            fd = init(IN_CLOEXEC)
            if fd < 0:
                raise OSError(ctypes.get_errno(), f"inotify: {os.strerror(ctypes.get_errno())}")
            fds.append(fd)
        return _Hub(_Calls(add, remove, ctypes.get_errno), *fds)
    except (OSError, ThreadStartError):
        # There is no thread. After an interrupt there may be one, and its number could then belong to another file.
        for fd in fds:
            os.close(fd)
        raise


def _after_fork_in_child() -> None:
    """The child has no reader thread, and the events belong to the parent."""
    global _the_hub, _start_mutex, _is_starting
    hub, _the_hub = _the_hub, None
    _start_mutex, _is_starting = threading.RLock(), False
    if hub is not None:
        os.close(hub.fd)
        os.close(hub.holding_fd)


os.register_at_fork(after_in_child=_after_fork_in_child)
