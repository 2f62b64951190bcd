"""The turn to change a log: one thread at a time, and one process at a time if several share the log."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from kstore.files._locks import OwnedLock
from kstore.files.log_lock import WriteLock
from kstore.files.watch import DirectoryWatch


class TurnLock(Protocol):
    """``with`` takes and releases it; so do the methods, which are those of a ``threading.Lock``. A thread that has it
    does not wait for itself: ReentrantCallError."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Turn:
    """Thread-safe. ``with turn.lock:`` takes the turn. In a shared log it first reads what other processes did.

    What only a shared log has to do is empty here: each caller would otherwise ask whether the log is shared.
    """

    lock: TurnLock
    # Signals what other processes append, for followers; None if no other process may append.
    watch: DirectoryWatch | None = None

    def refresh(self) -> None:
        """Reads what other processes have appended; called without the turn."""

    def notice(self) -> None:
        """``refresh``, for what other processes told of: that compares a few bytes."""

    def read_producers_ahead(self) -> None:
        """Reads the producers' batches of other processes before a turn needs them; called without the turn."""

    def is_last(self) -> bool:
        """Whether no other process has the log open. Needs the turn."""
        return True

    def leave(self) -> None:
        """Ends the last turn of a log that is being closed."""

    def close_alone(self) -> bool:
        """Whether this thread may close a log although it could not get the turn of the processes."""
        return False

    def release(self) -> None:
        """Releases the directory and everything that the turn has open."""
        raise NotImplementedError


class Alone(Turn):
    """The turn of a log with one writing process: a lock of its threads."""

    def __init__(self, directory_lock: WriteLock) -> None:
        self.lock: OwnedLock = OwnedLock()
        self._directory_lock = directory_lock

    def release(self) -> None:
        self._directory_lock.release()
