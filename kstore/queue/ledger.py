"""What became of a queue's items, as the journal tells it: the state, the lock that guards it, and the journal's end.

The lock is held while items are read and assigned, but not during an append, which may wait for the disk. Written
events are added to the state afterwards, so a snapshot of the state may lack what is being written: ``applied_end``
says how much of the journal the state contains. If several processes share the queue, each applies all events in the
order of the journal. Its own need not be read back if they come next.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice

from kstore.clock import Clock
from kstore.errors import CorruptFileError, OffsetOutOfRangeError
from kstore.files._locks import OwnedLock
from kstore.files.platform import boot_id
from kstore.log import Log
from kstore.queue.config import QueueConfig
from kstore.queue.events import BOOT, END, GAP, RETRY, ROWS_MAX, encode_events
from kstore.queue.job import Job
from kstore.queue.journal import Journal, row_values, snapshot_of
from kstore.queue.known import OF_SNAPSHOT
from kstore.queue.leases import Claim, Retry, numbers_of
from kstore.queue.state import QueueState
from kstore.record._codec import Record

logger = logging.getLogger(__name__)

# Journals are rewritten every few thousand events; a rewrite during this many reads in a row has another cause.
READS_MAX = 20


class Ledger:
    """``lock`` guards ``state`` and everything documented as needing it."""

    def __init__(
        self, name: str, items: Log, journal: Journal, config: QueueConfig, clock: Clock, *, is_shared: bool
    ) -> None:
        """Reads the journal. ``is_shared``: other processes may use the queue. Raises: StorageError."""
        self.name = name
        self.items = items
        self.journal = journal
        self.config = config
        self.clock = clock
        self.lock: OwnedLock = OwnedLock()
        self.state: QueueState[Record, Job] = QueueState(max_deliveries=config.max_deliveries, is_shared=is_shared)
        # The writes to the journal in progress: where it ended when each started.
        self._writing: dict[object, int] = {}
        self._end = 0
        self._load()
        if is_shared:
            self._note_boot()

    # --- open ---------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        state, start = self.state, self.items.start_offset
        self.read_on(None)
        end = self.items.high_watermark
        if start > 0 and not self._end:
            self._doubt()  # the journal does not belong to these items
        if state.known_end > end:
            # A power cut took items that were not on disk yet, or the topic was created again. Their offsets will be
            # given to other items: the journal must void its events about them before the first put.
            logger.warning("%s: the journal knows items to %d, the log ends at %d", self.name, state.known_end, end)
            self.journal.append(encode_events(END, [(end,)]))
            self.journal.flush()
            self.read_on(self._end)
            # A reader that misses this must not believe earlier events.
            self.journal.rewrite(*self.snapshot())
        state.raise_floor(start)
        self._void_claims()

    def _void_claims(self) -> None:
        """Records that the leases of dead processes are over, naming the owner of each: newer leases hold."""
        claims, retries = self.state.claims, self.state.retries
        rows = [
            (offset, claim.deliveries, retries.get(offset, Retry(0, 0)).due_ms, claim.owner)
            for offset, claim in claims.items()
            if self._is_void(claim)
        ]
        if rows:
            self.journal.append_all(row_values(RETRY, rows))
            self.read_on(self._end)

    def _is_void(self, claim: Claim) -> bool:
        """Whether the holder is certainly gone."""
        if not self.state.is_shared:
            return True  # no other process has the store open
        # If the system does not identify boots, a claim time that the clock has not reached is from an earlier boot.
        # A time that it has reached may be, too; such a claim is over when its lease would be.
        return claim.claimed_ms > int(self.clock.monotonic() * 1000)

    def _note_boot(self) -> None:
        """Records this boot of the machine, which ends all leases of earlier ones: its clock has started again."""
        boot = numbers_of(boot_id())
        if self.state.boot != boot:
            self.journal.append(encode_events(BOOT, [boot]))
            self.refresh()

    # --- read the journal ---------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Applies what other processes have written, in order with this one's own events. Needs the lock.

        Raises: StorageError.
        """
        if self.state.is_shared:
            end = self.journal.end
            if end > self._end and not self._takes_news(end):
                self.read_on(self._end)

    def _takes_news(self, end: int) -> bool:
        """``refresh`` in the plain case; False if it is another one, and ``read_on`` is needed."""
        values = self.journal.news(self._end, end)
        if values is None:
            return False
        try:
            for value in values:
                self.state.apply_record(value or b"")
        except CorruptFileError:
            return False
        self._end = end  # last, as in ``takes_in``
        return True

    def refresh_to(self, end: int) -> None:
        """``refresh``, but only up to the offset ``end`` of the journal. Needs the lock. Raises: StorageError."""
        if end > self._end:
            self.read_on(self._end, end)

    def read_on(self, start: int | None, stop: int | None = None) -> None:
        """Reads the journal from ``start``, or with None from where it is needed. Needs the lock. Raises:
        StorageError."""
        for _ in range(READS_MAX):
            try:
                self._replay(start, stop)
                return
            except OffsetOutOfRangeError:
                start = None  # another process has just rewritten it, and removed the part that was being read
        self._replay(start, stop)

    def _replay(self, start: int | None, stop: int | None) -> None:
        replayed = self.journal.replay(self.state, start, stop)
        self._end = replayed.end
        if self.state.is_shared:
            self.journal.note_end(self._end)
        if replayed.is_damaged:
            self._doubt()

    def _doubt(self) -> None:
        """Part of the journal is unreadable and may have made copies count: the existing copies now do."""
        row = (self.items.high_watermark,)
        logger.warning("%s: copies of items are delivered, even if they are done: the journal is damaged", self.name)
        self.journal.append(encode_events(GAP, [row]))
        self.journal.flush()
        self.read_on(self._end)

    # --- write the journal --------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes]) -> None:
        """Appends records to the journal of a shared queue, and applies it up to them. Needs the lock. Raises: as
        ``Journal.append``; then the next call that reads the journal applies what is in it."""
        end = self.journal.append_all(values)
        if not self.takes_in(values, end):
            self.refresh()

    def takes_in(self, values: Sequence[bytes], end: int) -> bool:
        """Applies records that this process has appended to the journal of a shared queue, where they end at ``end``,
        without reading them back. False, and nothing is done, if other records come before them. Needs the lock."""
        if not self.state.is_shared or self._end != end - len(values):
            return False
        for value in values:
            self.state.apply_record(value)
        # Last: what an interrupt or a MemoryError has left to do is applied when they are read back.
        self._end = end
        return True

    def begin_write(self, token: object) -> None:
        """Called before an append to the journal, with a new object for ``end_write``. Needs the lock."""
        self._writing[token] = self._end

    def is_writing(self, token: object) -> bool:
        """Whether a write with this token has begun and not ended. Needs the lock."""
        return token in self._writing

    def end_write(self, token: object, end: int = 0) -> None:
        """Called when what was appended, up to ``end``, is in the state. Needs the lock."""
        self._writing.pop(token, None)
        self.applied(end)

    def applied(self, end: int) -> None:
        """Called when everything appended here up to ``end`` is in the state; a shared queue still takes it in, in the
        order of all events. Needs the lock."""
        if end > self._end and not self.state.is_shared:
            self._end = end

    @property
    def applied_end(self) -> int:
        """The state contains everything in the journal below it. Needs the lock."""
        return self._end if self.state.is_shared else min(self._writing.values(), default=self._end)

    def snapshot(self) -> tuple[list[bytes], int]:
        """A substitute for the journal up to an offset, and that offset. Needs the lock."""
        end = self.applied_end
        return snapshot_of(self.state, end), end

    def notes(self) -> bytes:
        """Deliveries that are not yet in the journal, for the next record. Needs the lock."""
        unnoted = self.state.unnoted
        if not unnoted:
            return b""
        rows = [
            (offset, count, 0, owner or OF_SNAPSHOT) for offset, (count, owner) in islice(unnoted.items(), ROWS_MAX)
        ]
        for offset, *_ in rows:
            del unnoted[offset]
        return encode_events(RETRY, rows)
