"""Tells who has a turn that is waited for too long: a process that is stopped in its turn stops all other writers.

A wait for a file lock has no limit, so a thread looks after those that wait. It runs only while turns are contended.
"""

from __future__ import annotations

import _thread
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident

logger = logging.getLogger(__name__)

WARN_SECONDS = 5.0
# How often the thread looks. It ends when it has found no wait for two looks.
LOOKS_PER_WARNING = 5
# The fields of a line "lock:" of /proc/<process>/fdinfo: its number, kind, ADVISORY, WRITE, -1, device:inode, and the
# first and last byte.
LOCK_FIELDS = 8

# What each waiting thread waits for: since when, which file, whether another process has it now.
_waits: dict[int, tuple[float, str, Callable[[], bool]]] = {}
# Held by the thread that looks. It is never waited for: a finalizer may wait for a turn anywhere.
_is_watched = _thread.allocate_lock()


def _forget() -> None:
    global _is_watched
    _waits.clear()
    _is_watched = _thread.allocate_lock()  # the thread that held it is the parent's


os.register_at_fork(after_in_child=_forget)


def watched(take: Callable[[], object], path: str, is_taken: Callable[[], bool]) -> None:
    """Calls ``take``, which waits for the turn of the lock file at ``path``.

    After ``WARN_SECONDS`` the log says, once, which process has the turn, if ``is_taken`` says that another one does.
    """
    me = get_ident()
    try:
        _waits[me] = (time.monotonic(), path, is_taken)
        if _is_watched.acquire(False):
            try:
                _thread.start_new_thread(_watch, ())
            except BaseException as error:
                _is_watched.release()
                if not isinstance(error, RuntimeError):
                    raise
                # No thread can be started, so the wait is not logged.
        take()
    finally:
        _waits.pop(me, None)


def _watch() -> None:
    told: dict[int, float] = {}
    idle_count = 0
    try:
        while idle_count < 2:
            time.sleep(WARN_SECONDS / LOOKS_PER_WARNING)
            now = time.monotonic()
            waits = _waits.copy()
            idle_count = 0 if waits else idle_count + 1
            for thread, (since, path, is_taken) in waits.items():
                if now - since >= WARN_SECONDS and told.get(thread) != since:
                    told[thread] = since
                    _tell(path, is_taken)
    finally:
        _is_watched.release()


def _tell(path: str, is_taken: Callable[[], bool]) -> None:
    try:
        if is_taken():
            holders = " and ".join(map(_described, holders_of(path))) or "a process that cannot be seen from here"
            text = "%s: this process has waited for its turn for more than %g seconds: %s has it, and no process writes"
            logger.warning(text, os.path.dirname(path), WARN_SECONDS, holders)
    except Exception:
        logger.debug("%s: who has the turn is unknown", path, exc_info=True)


def holders_of(path: str, byte: int = 2) -> list[int]:
    """The processes, of those that this one may look at, that hold an exclusive lock on ``byte`` of a file."""
    inode = str(os.stat(path).st_ino)
    found = []
    for process in _names("/proc"):
        if not process.isdigit():
            continue
        for descriptor in _names(f"/proc/{process}/fdinfo"):
            with suppress(OSError), open(f"/proc/{process}/fdinfo/{descriptor}", encoding="ascii") as file:
                if any(_is_lock(line, inode, str(byte)) for line in file):
                    found.append(int(process))
                    break
    return found


def _is_lock(line: str, inode: str, byte: str) -> bool:
    fields = line.removeprefix("lock:").split()
    return (
        line.startswith("lock:")
        and len(fields) == LOCK_FIELDS
        and fields[3] == "WRITE"
        and fields[5].rpartition(":")[2] == inode
        and fields[6:] == [byte, byte]
    )


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []  # the process has ended, or is another user's


def _described(process: int) -> str:
    with suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        if file.read().rpartition(")")[2].split()[:1] == ["T"]:
            return f"process {process}, which is stopped,"
    return f"process {process}"
