"""When the bytes of an append are on disk: one strategy for each ``durability``.

SyncInWrite   "sync": a write is on disk when it returns, so that what is published is durable
WriteBehind   "interval": a thread flushes soon after an append; "os": the system decides when. With both, a
              thread flushes each sealed segment
(shared)      ``shared.durability.SyncAfterTurn``: "sync", of a log that several processes write to
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from kstore.engine.change.flush import Flush
from kstore.engine.ends import Ends
from kstore.engine.files import LogFiles
from kstore.errors import StorageError, SyncFailedError, ThreadStartError
from kstore.segments.tail import SegmentTail
from kstore.types import AppendInfo

logger = logging.getLogger(__name__)


class HasResult(Protocol):
    """An append, as far as a strategy knows it."""

    result: AppendInfo | None


class DurabilityStrategy:
    """Everything except ``make_durable`` and ``withdraw`` needs the turn.

    ``note_written`` and ``make_durable`` are the two ends of a sync after the turn: only ``SyncAfterTurn`` has one, and
    something to withdraw between them. They are empty for the others, so that an append is the same steps with each
    durability.
    """

    # Whether an append waits for the disk, and whether each write is on disk when it returns.
    is_sync: bool
    syncs_writes: bool

    def note_written(self) -> None:
        """Called after appends were written, or found to be repetitions; ``make_durable`` follows, after the turn."""

    def make_durable(self) -> None:
        """Returns when everything written is as durable as promised. Raises: SyncFailedError."""

    def withdraw(self, appends: Sequence[HasResult]) -> None:
        """Takes back the results of ``appends``, which were not made durable, if that may lose them."""

    def rolled(self, sealed: SegmentTail | None, base_offset: int, *, was_flushed: bool) -> None:
        """Called when a segment begins at ``base_offset``, after ``sealed``. ``was_flushed``: all below was on disk."""
        raise NotImplementedError


class SyncInWrite(DurabilityStrategy):
    """A write is on disk when it returns."""

    is_sync = syncs_writes = True

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    def rolled(self, sealed: SegmentTail | None, base_offset: int, *, was_flushed: bool) -> None:
        raise_recovery_point(self._files, base_offset)


class WriteBehind(DurabilityStrategy):
    """A write is in the page cache when it returns. ``is_prompt``: a thread flushes soon after it."""

    is_sync = syncs_writes = False

    def __init__(self, files: LogFiles, flush: Flush, *, is_prompt: bool) -> None:
        self._files = files
        self._flush = flush
        self.is_prompt: bool = is_prompt

    def flush_as_due(self, ends: Ends) -> None:
        """Flushes, or has it done soon, if that is due after an append that is published: the log ends at ``ends``."""
        files = self._files
        try:
            if ends.end_offset - ends.recovery_point >= files.flush_messages:
                self._flush.flush_in_turn()
            elif self.is_prompt:
                self._flush.soon()
        except SyncFailedError:
            raise
        except (StorageError, MemoryError) as error:
            # The append is in the log: an error would let its caller write it again. The next one flushes, too.
            if self.is_prompt:
                with suppress(ThreadStartError):
                    self._flush.flusher.note()
            reason = str(error) or repr(error)
            logger.warning("%s: a flush failed, and is tried again: %s", files.context.directory, reason)

    def rolled(self, sealed: SegmentTail | None, base_offset: int, *, was_flushed: bool) -> None:
        files = self._files
        if was_flushed:
            files.publish(files.ends._replace(recovery_point=min(base_offset, files.ends.end_offset)))
        if sealed is not None:
            self._flush.sealed_soon(sealed)


def raise_recovery_point(files: LogFiles, base_offset: int) -> None:
    """Stores that everything below ``base_offset`` is on disk, because a roll has synced it."""
    # During an append the log ends where the append began, until it is published.
    files.change(files.ends._replace(recovery_point=min(base_offset, files.ends.end_offset)))
