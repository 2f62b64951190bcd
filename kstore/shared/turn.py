"""The turn of a writer that shares its log: the short lock around a change, and the record that tells of it.

Byte 2 of ``.lock`` is held around each change, so that what the others did is taken in first (``catch_up``), and
what was done is told last, by one record in memory that all of them map (``shared_slot``).

Whatever changes a file in a turn is announced in that record first: if this process dies then, the next one recovers
the log. Only an append to the open tail needs no announcement: the ``.log`` grows first, and its length tells.
"""

from __future__ import annotations

from contextlib import suppress
from threading import RLock, get_ident

from kstore.engine.opening import Loaded
from kstore.engine.writer import LogWriter, StoreTies
from kstore.errors import StorageError
from kstore.files.lock import DirectoryLock
from kstore.state.shared_slot import CHANGING, POISONED, SEALED, TAIL_KNOWN, SharedSlot, SharedState, shared_state

__all__ = ["TurnTaker"]

# What the record says of the active segment where nothing is known of it.
NOTHING_KNOWN = SharedState().known


class TurnTaker(LogWriter):
    """A writer whose lock is the turn too. Thread-safe; every change happens in a turn."""

    # Its own: a share of a store's has no turns.
    _directory_lock: DirectoryLock

    def __init__(
        self, loaded: Loaded, lock: DirectoryLock, slot: SharedSlot, seen: SharedState | None, ties: StoreTies | None
    ) -> None:
        """``seen``: what the slot says, if ``loaded`` was made of that; the caller has the turn."""
        super().__init__(loaded, lock, ties)
        self._slot = slot
        # The record that was last read or stored, and its bytes.
        self._seen = seen or SharedState()
        self._seen_data = self._seen.encode()
        self._has_turn = True
        # Whether a change of files was announced in this turn, and one after which the others look for segments again.
        self._is_changing = self._moves_files = seen is None
        # The thread that closes it without the turn, which could not be had.
        self._closes_alone = 0
        self._turn = _Turn(self)
        self._lock = self._turn

    def _admit(self) -> None:
        """Its tail stays open: another process may go on where it ends."""

    def catch_up(self) -> None:
        """Takes in what other processes have done since the last turn. Needs the turn."""
        raise NotImplementedError

    def take_turn(self) -> None:
        """Waits for the turn, and catches up. Needs the lock of the threads. Raises: StorageError."""
        if self._closed is not None or self._closes_alone == get_ident():
            return  # there is nothing any more that is shared
        try:
            self._directory_lock.take_turn()
            self._has_turn = True
            if self._poisoned is None:
                self.catch_up()
        except BaseException:
            with suppress(StorageError):
                self._end_turn()
            raise

    def leave_turn(self) -> None:
        """Tells what was done, and lets the next one go on; does nothing without the turn."""
        if self._has_turn:
            try:
                self._tell()
            finally:
                self._end_turn()

    def _end_turn(self) -> None:
        self._directory_lock.end_turn()
        self._has_turn = False

    def _tell(self) -> None:
        """Stores the record, if anything has changed."""
        ends, before, tail = self.ends, self._seen, self._tail
        if tail is not None and tail.base_offset != ends.base_offset and self._poisoned is None:
            # An interrupt came between a roll and what is published of it.
            self.ends = ends = ends._replace(base_offset=tail.base_offset, position=tail.position)
        state, epoch = self._state_file.current, self.loaded.epochs.latest_epoch
        is_changing, moves_files = self._is_changing, self._moves_files
        flags = (POISONED if self._poisoned is not None else 0) | (SEALED if self._seal_before_append else 0)
        if tail is not None:
            flags |= TAIL_KNOWN
            known = tail.known
        elif (before.base_offset, before.position) == (ends.base_offset, ends.position):
            # It is as it was left, by others, or by this process before it closed an idle tail.
            flags |= before.flags & TAIL_KNOWN
            known = before.known
        else:
            known = NOTHING_KNOWN
        now = shared_state(
            (
                flags,
                before.change_count + moves_files,
                before.cut_count,
                0 if state is None else state.generation,
                -1 if epoch is None else epoch,
                ends.end_offset,
                ends.base_offset,
                ends.position,
                ends.durable_end,
                *known,
                self._last_append_ms,
            )
        )
        if is_changing or now != before:
            data = now.encode()
            self._slot.store(data)
            self._seen, self._seen_data = now, data
            self._is_changing = self._moves_files = False

    def _announce(self, *, moves_files: bool = False) -> None:
        """Says that files are about to change: if this process dies in this turn, the next one recovers the log.

        ``moves_files``: the others must look for segments again; what else is changed they learn from the record.
        """
        if not self._has_turn:
            return  # closed without the turn: the record is the others'
        self._is_changing = True
        self._moves_files |= moves_files
        data = self._seen._replace(flags=self._seen.flags | CHANGING).encode()
        if data != self._seen_data:
            self._slot.store(data)
            self._seen_data = data

    def _begin_change(self, *, cuts: bool = False) -> None:
        """Announces a change of the active segment: what was told of its tail does not hold from here on.

        ``cuts``: what others have appended may go.
        """
        seen = self._seen
        self._seen = seen._replace(flags=seen.flags & ~TAIL_KNOWN, cut_count=seen.cut_count + cuts)
        self._announce(moves_files=True)


class _Turn:
    """The log's lock: that of the threads, and in it the one of the processes.

    An exception that comes from outside (KeyboardInterrupt) may end either method anywhere: the turn is given back all
    the same, and at the latest when the same thread comes again.
    """

    def __init__(self, writer: TurnTaker) -> None:
        self._writer = writer
        # Reentrant only so that it can be told whose it is.
        self._mutex = RLock()
        self._owner = 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it."""
        return self._owner == get_ident()

    def __enter__(self) -> None:
        me = get_ident()
        if self._owner == me:
            self.__exit__()  # an interrupt came before it could be given back
        try:
            self._mutex.acquire()
            self._owner = me
            self._writer.take_turn()
        except BaseException:
            self._give_back()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._writer.leave_turn()
        except BaseException:
            self._writer.leave_turn()  # what an interrupt has left of it
            raise
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._owner == get_ident():
            self._owner = 0  # an interrupt may have come while another thread had it
        try:
            self._mutex.release()
        except RuntimeError:
            pass  # an interrupt came before it was taken
