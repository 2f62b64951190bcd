"""The turn of a writer that shares its log: the lock of its threads and, inside it, that of the processes.

Byte 2 of ``.lock`` is held around each change, which begins by applying the changes of other processes (``CatchUp``)
and ends by announcing its own (``Others``).
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from threading import get_ident

from kstore.engine.files import LogFiles
from kstore.engine.others import Others
from kstore.engine.turn import Turn
from kstore.errors import StorageError
from kstore.files.lock import DirectoryLock
from kstore.files.watch import DirectoryWatch
from kstore.shared._turn import SharedTurnLock
from kstore.shared.catch_up import CatchUp
from kstore.shared.telling import tell
from kstore.state.shared_slot import SharedState

logger = logging.getLogger(__name__)

# At most this many offsets are left to be read in the turn for producers' batches. More are read before the turn, and
# again if other processes have appended as many since, at most this many times.
LEFT_FOR_THE_TURN = 1000
READS_AHEAD_MAX = 8
# How often a wait with a limit asks for the turn. Most turns are shorter.
POLL_SECONDS = 0.0002


class SharedTurn(Turn):
    """The turns of one process. Thread-safe, except for methods that need a lock."""

    def __init__(self, files: LogFiles, others: Others, catch_up: CatchUp, directory_lock: DirectoryLock) -> None:
        """The caller has the turn of the processes."""
        self.lock: SharedTurnLock = SharedTurnLock(self, files, others, directory_lock)
        self.watch: DirectoryWatch = DirectoryWatch(files.context.directory)
        self._files = files
        self._others = others
        self._catch_up = catch_up
        self._directory_lock = directory_lock
        # The thread that closes the log without the turn because it could not get it.
        self.closes_alone = 0

    # --- one turn -----------------------------------------------------------------------------------------------------

    def take_turn(self, timeout: float = -1.0) -> bool:
        """Waits for the turn, and catches up. Needs the lock of the threads. Raises: StorageError.

        False if ``timeout`` seconds were not enough; negative: there is no limit.
        """
        if self._files.closed is not None or self.closes_alone == get_ident():
            return True  # the log is no longer shared
        try:
            if not self._wait_for_turn(timeout):
                return False
            self._others.has_turn = True
            if self._files.poisoned is None:
                self._catch_up.catch_up()
        except BaseException:
            with suppress(StorageError):
                self._end_turn()
            raise
        return True

    def _wait_for_turn(self, timeout: float) -> bool:
        lock = self._directory_lock
        if timeout < 0:
            lock.take_turn()
            return True
        deadline = time.monotonic() + timeout
        # The system has no such wait with a limit.
        while not lock.try_turn():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def leave_turn(self) -> None:
        """Announces the changes, and lets the next process continue; does nothing without the turn."""
        if self._others.has_turn:
            try:
                tell(self._files, self._others)
            finally:
                self._end_turn()

    def _end_turn(self) -> None:
        self._directory_lock.end_turn()
        self._others.has_turn = False

    # --- between turns ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Applies the appends of other processes."""
        files = self._files
        if files.closed is None and files.poisoned is None and self._catch_up.is_due():
            with self.lock:
                pass

    def notice(self) -> None:
        """Applies what other processes have told of."""
        has_news = self.lock.has_news()
        if has_news is False:
            return
        files = self._files
        if (has_news or self._catch_up.is_told()) and files.closed is None and files.poisoned is None:
            with self.lock:
                pass

    def read_producers_ahead(self) -> None:
        """Reads producers' batches outside the turn, so that little is left to read in it: all other processes wait
        during a turn, and a process that joins may have the whole log to read."""
        files, others = self._files, self._others
        for _ in range(READS_AHEAD_MAX):
            data = others.slot.read()
            told = None if data == others.seen_data else SharedState.decode(data)
            end = files.ends.end_offset if told is None else told.end_offset
            if end - files.producers.known_to <= LEFT_FOR_THE_TURN:
                return
            with self.lock:
                if files.closed is not None or files.poisoned is not None:
                    return
                producers, ends, cut_count = files.producers, files.ends, files.cut_count
            ahead = producers.apart()
            try:
                ahead.up_to(ends.end_offset, ends.position)
            except StorageError as error:
                logger.debug("%s: producers are read again: %s", files.context.directory, error)
                continue  # segments were deleted or cut
            with self.lock:
                if files.producers is producers and files.cut_count == cut_count:
                    producers.adopt(ahead)

    # --- the last turn ------------------------------------------------------------------------------------------------

    def is_last(self) -> bool:
        """Whether no other process has the log open. Needs the turn."""
        return not self._directory_lock.others_live()

    def leave(self) -> None:
        """Announces the changes; the turn itself is released with the directory's lock."""
        try:
            if self._others.has_turn:
                tell(self._files, self._others)
        finally:
            self._others.has_turn = False

    def close_alone(self) -> bool:
        """From now on this thread takes no turn of the processes: the log closes although it could not get one. False,
        and nothing is done, in a handler that runs inside a change of its thread, which goes on."""
        if self.lock.is_mine:
            return False
        self.closes_alone = get_ident()
        return True

    def release(self) -> None:
        """Releases the directory, the record and the watch."""
        self._others.has_turn = False  # after an interrupt, ``leave`` must not tell anything without the lock
        self._directory_lock.release()
        self.watch.close()
        self._others.slot.close()
