"""The other writers of a shared log, and the record through which all of them announce their changes.

Every change of a file in a turn is first announced in that record (``shared_slot``): if this process then dies, the
process with the next turn recovers the log. Only an append to the open tail needs no announcement: the ``.log`` grows
first, and its length shows that. At the end of a turn the record holds the end of the log (``shared.telling``).

A log that is open alone has no ``Others``.
"""

from __future__ import annotations

import logging

from kstore.errors import CorruptIndexError, FileMissingError
from kstore.files.paths import LOG_SUFFIX
from kstore.segment import LogSegment
from kstore.segments.tail import SegmentTail
from kstore.state.shared_slot import CHANGING, POISONED, TAIL_KNOWN, SharedSlot, SharedState

logger = logging.getLogger(__name__)

# A step larger than any number of changes that a process can miss.
LEAP = 1 << 32


class Others:
    """The record, and what this process last read or stored of it. Needs the turn, except for ``seen_data``."""

    def __init__(self, slot: SharedSlot, seen: SharedState | None) -> None:
        """``seen``: the content of the slot when the log was opened, if it was used for that; the caller has the
        turn."""
        self.slot = slot
        # The record as last read or stored, None if that was its bytes only, and its bytes.
        self._seen: SharedState | None = seen or SharedState()
        self.seen_data: bytes = self.seen.encode()
        self.has_turn = True
        # Whether this turn announced a change of files, and one that makes the other processes list the segments again.
        self.is_changing: bool = seen is None
        self._moves_files = seen is None
        # Whether this process tells nothing more: see ``give_up``.
        self.has_given_up: bool = False

    @property
    def seen(self) -> SharedState:
        """The record as last read or stored."""
        seen = self._seen
        if seen is None:
            # Not kept: a thread without the turn may be overtaken by one with it.
            seen = SharedState.decode(self.seen_data)
            assert seen is not None, "only whole records are stored"
        return seen

    @seen.setter
    def seen(self, seen: SharedState) -> None:
        self._seen = seen

    def announce(self, *, moves_files: bool = False) -> None:
        """Announces that files are about to change: if this process dies in this turn, the next one recovers the log.

        ``moves_files``: the other processes must list the segments again; the record tells them other changes.
        """
        if not self.has_turn or self.has_given_up:
            return  # closed without the turn, or given up: the record belongs to the other processes
        self.is_changing = True
        self._moves_files |= moves_files
        data = self.seen._replace(flags=self.seen.flags | CHANGING).encode()
        if data != self.seen_data:
            self.slot.store(data)
            self.seen_data = data

    def announce_change(self, *, cuts: bool = False) -> None:
        """Announces a change of the active segment, after which the record no longer describes the tail.

        ``cuts``: records of other processes may be removed.
        """
        seen = self.seen
        self.seen = seen._replace(flags=seen.flags & ~TAIL_KNOWN, cut_count=seen.cut_count + cuts)
        self.announce(moves_files=True)

    def give_up(self) -> None:
        """Leaves the record as if this process had died in a change: the next turn of another one recovers the log.

        From now on this process tells nothing. A second call does nothing.
        """
        if self.has_given_up:
            return
        data = self.slot.read()
        # The others may have gone on since this process last looked.
        self.seen, self.seen_data = SharedState.decode(data) or self.seen, data
        self.announce_change(cuts=True)
        self.has_given_up = True

    def warn_of_failed_sync(self) -> None:
        """Tells the other processes, after ``give_up``, that a sync has failed, so that they write no more either."""
        told = SharedState.decode(self.slot.read()) or self.seen
        if not told.flags & POISONED:
            self.slot.store(told._replace(flags=told.flags | POISONED).encode())

    def open_tail(self, active: LogSegment, position: int) -> SegmentTail:
        """Opens the ``active`` segment, in which the log ends at ``position``, for appending.

        If the record describes the tail, no file is changed and the amount read does not grow with the segment, because
        all other processes wait in that time. Otherwise the change is announced.
        """
        seen = self.seen
        tail = active.tail  # left open by recovery
        is_known = seen.flags & TAIL_KNOWN and seen.base_offset == active.base_offset
        if tail is None and is_known and seen.position == position:
            try:
                tail = active.join(seen.position, seen.known)
            except (CorruptIndexError, FileMissingError) as error:
                logger.warning("%s: the indexes of the active segment are rebuilt: %s", active.path(LOG_SUFFIX), error)
                self.announce_change()
                tail = active.rebuild()
        elif tail is None:
            self.announce_change()
            tail = active.activate()
        return tail

    @property
    def change_count(self) -> int:
        """Its value once this turn has ended: another one if segments came or went."""
        return self.seen.change_count + self._moves_files

    def store(self, now: SharedState) -> None:
        """Stores the record if anything has changed; this ends what was announced."""
        if self.is_changing or now != self.seen:
            data = now.encode()
            self.slot.store(data)
            self.seen, self.seen_data = now, data
            self.is_changing = self._moves_files = False

    def leap(self, now_ms: int) -> None:
        """Continues counting from a number that no process has reached, because the record's content may be lost."""
        told = SharedState.decode(self.slot.read()) or self.seen
        count = max(told.change_count, told.cut_count, self.seen.change_count, now_ms << 20) + LEAP
        self.seen = self.seen._replace(change_count=count, cut_count=count)
