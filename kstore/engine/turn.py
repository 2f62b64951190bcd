"""Whose turn it is to change a log: one thread's at a time, and one process's at a time where several share it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from kstore.engine.files import LogFiles
from kstore.files.log_lock import WriteLock
from kstore.files.watch import DirectoryWatch

__all__ = ["Alone", "Turn", "changing"]


class Turn(Protocol):
    """Thread-safe. ``with turn.lock:`` is a turn; a turn of a shared log begins with what other processes did."""

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    @property
    def watch(self) -> DirectoryWatch | None:
        """How a follower hears of what other processes append; None if no other process may."""
        ...

    def refresh(self) -> None:
        """Takes in what other processes have appended; called without the turn."""
        ...

    def read_producers_ahead(self) -> None:
        """Reads what the producers of other processes have written; called without the turn."""
        ...

    def is_last(self) -> bool:
        """Whether no other process has the log open. Needs the turn."""
        ...

    def leave(self) -> None:
        """Ends the last turn of a log that is being closed."""
        ...

    def close_alone(self) -> bool:
        """Whether this thread may let go of a log without the turn of the processes, which it could not get."""
        ...

    def release(self) -> None:
        """Gives up the directory, and all that the turn has open."""
        ...


class Alone:
    """The turn of a log that one process writes to: a lock of its threads."""

    watch = None

    def __init__(self, directory_lock: WriteLock) -> None:
        self.lock = threading.Lock()
        self._directory_lock = directory_lock

    def refresh(self) -> None:
        """Nothing to look for: what is published is all there is."""

    def read_producers_ahead(self) -> None:
        """Nothing to read: every append comes from this process."""

    def is_last(self) -> bool:
        return True

    def leave(self) -> None:
        """No other process waits."""

    def close_alone(self) -> bool:
        return False

    def release(self) -> None:
        self._directory_lock.release()


@contextmanager
def changing(turn: Turn, files: LogFiles) -> Iterator[None]:
    """A turn, for what changes the files of a log that takes writes."""
    with turn.lock, files.poisoned_by_syncs():
        files.ensure_writable()
        yield
