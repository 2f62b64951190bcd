"""The active segment: when and how a new one begins, and how a failed append restores the old one."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from kstore.engine.change.durability import DurabilityStrategy
from kstore.engine.change.flush import sync_indexes
from kstore.engine.ends import Ends
from kstore.engine.files import LogFiles
from kstore.errors import FileInTheWayError, SyncFailedError
from kstore.files.fs import replaced_failed_sync
from kstore.files.paths import LOG_SUFFIX
from kstore.rules.roll import idle_reason, roll_reason
from kstore.segment import LogSegment
from kstore.segments.tail import SegmentTail
from kstore.types import OFFSET_MAX, RECORD_OFFSET_MAX

if TYPE_CHECKING:
    from kstore.engine.append._path import Plan

logger = logging.getLogger(__name__)


class Rolls:
    """Rolls one log. Everything here needs the turn."""

    def __init__(self, files: LogFiles, durability: DurabilityStrategy) -> None:
        self._files = files
        self._durability = durability
        self._clock = files.context.clock
        # Set by a roll: retention may now delete the segment that was sealed.
        self.retention_due: bool = False

    # --- when ---------------------------------------------------------------------------------------------------------

    def is_due(self, tail: SegmentTail, plan: Plan, size: int, last_offset: int, max_timestamp: int) -> bool:
        """Whether a batch that the plan of an append does not take for certain goes into a new segment."""
        reason = roll_reason(
            self._files.context.config,
            position=plan.segment_end,
            size=size,
            base_offset=tail.base_offset,
            last_offset=last_offset,
            first_timestamp=plan.first_timestamp,
            max_timestamp=max_timestamp,
            created_ms=tail.created_ms,
            now_ms=self._clock.now_ms(),
            jitter_ms=tail.jitter_ms,
            indexes_full=plan.indexes_full,
        )
        return reason is not None

    def is_idle(self, tail: SegmentTail, now_ms: int) -> bool:
        """Whether ``tail`` had no append for ``segment_ms``."""
        reason = idle_reason(
            self._files.context.config,
            position=tail.position,
            first_timestamp=tail.first_timestamp,
            last_append_ms=self._files.last_append_ms,
            now_ms=now_ms,
            jitter_ms=tail.jitter_ms,
        )
        return reason is not None

    # --- roll ---------------------------------------------------------------------------------------------------------

    def begin(self) -> SegmentTail:
        """Opens the active segment for appending; from now on the log on disk counts as not closed cleanly."""
        files, others = self._files, self._files.others
        if others is None:
            # The record of a shared log has said so since the first process opened it.
            files.store(files.ends, if_changed=True)
        if files.seal_before_append:
            # Published at once, unlike a roll within an append: if the append fails, it must not go back to the segment
            # before, to which nothing may be appended.
            self.roll_now()
            assert files.tail is not None
            return files.tail
        files.admit()
        last = files.segments.last
        tail = last.activate() if others is None else others.open_tail(last, files.ends.position)
        files.check_end(tail)
        files.tail = tail
        return tail

    def roll_now(self, *, follows_gap: bool = False) -> int:
        """Rolls, outside an append; returns the active segment's base offset. ``follows_gap``: see ``roll``."""
        files = self._files
        tail = self.roll(files.ends.end_offset, follows_gap=follows_gap)
        ends = files.ends
        # With synced appends, a roll has synced everything below the new segment, including its indexes.
        recovery_point = max(ends.recovery_point, tail.base_offset) if files.is_sync else ends.recovery_point
        files.publish(
            ends._replace(recovery_point=recovery_point, base_offset=tail.base_offset, position=tail.position)
        )
        return tail.base_offset

    def roll(self, base_offset: int, *, follows_gap: bool = False) -> SegmentTail:
        """Seals the active segment and begins one at ``base_offset``, which is above everything in the log.

        The new file comes first: if there is no space for it, the old segment continues. So it does at the greatest
        offset, after which no record can come. ``follows_gap``: only the new name tells that the offsets before it were
        cut. It stays after a failure, which poisons the log: the record that says so may have reached the disk.
        """
        files = self._files
        files.announce_change()
        old = files.segments.last
        if (old.base_offset == base_offset and old.size == 0) or base_offset > RECORD_OFFSET_MAX:
            files.tail = files.activate(old)
            return files.tail
        new = LogSegment(files.context, base_offset)
        outer = sys.exception()
        try:
            return self._replace_active(old, new)
        except BaseException as error:
            if follows_gap or isinstance(error, SyncFailedError) or replaced_failed_sync(error, outer):
                files.poison(error)
            else:
                self._go_on_with(old, new)
            raise

    def _replace_active(self, old: LogSegment, new: LogSegment) -> SegmentTail:
        files = self._files
        base_offset, sealed = new.base_offset, old.tail
        if sealed is not None and files.is_sync and not self._durability.syncs_writes:
            # No later sync covers it once it is sealed.
            files.syncs.alone(sealed.file.fdatasync)
        was_flushed = files.ends.recovery_point >= base_offset
        if was_flushed:
            # If the process ends before the old segment's indexes are on disk, recovery must check them.
            files.change(files.ends._replace(recovery_point=old.base_offset))
        files.admit()
        if files.others is None:
            files.state_file.begin_rolls()
        try:
            tail = new.begin()
        except FileInTheWayError:
            with files.state_file.renaming():
                new.delete()  # these files belong to no segment, because the map does not have them
            tail = new.begin()
        if files.is_sync or was_flushed:
            # Until then a crash may lose the new file's name, and with it acknowledged records; and the recovery point
            # must not be in a segment that may be gone.
            files.context.fs.sync_dir(files.context.directory)
        # Indexes are hints, but below the recovery point nothing checks them. The flush of a sealed tail releases its
        # spare blocks, which takes longer than the rest of a roll; what a shared log seals is flushed by name.
        keep_spare = not files.is_sync and files.others is None
        old.seal(sync=files.is_sync or was_flushed, keep_spare=keep_spare)
        files.note_sealed(sealed)
        if (old.base_offset, old.size) == (files.ends.base_offset, files.ends.position):
            # During an append the producers are known only up to its start, which is below ``base_offset``.
            files.producers.snapshot(base_offset)
        if files.is_sync:
            indexes = files.producers.unsynced()
            files.syncs.alone(lambda: sync_indexes(files, indexes))
            files.producers.synced(indexes)
        files.segments.add(new)
        files.tail = tail
        self._durability.rolled(sealed, base_offset, was_flushed=was_flushed)
        files.seal_before_append = False
        if files.others is None:
            files.state_file.publish_roll(base_offset)
        self.retention_due = True
        files.counters.rolls += 1
        logger.debug("%s: segment %d begins", files.context.directory, base_offset)
        return tail

    def _go_on_with(self, old: LogSegment, new: LogSegment) -> None:
        """Makes ``old`` the active segment again after a failed roll; if that is impossible, the log is poisoned."""
        files = self._files
        try:
            files.segments.remove([new.base_offset])
            self._remove_new(new)
            files.unflushed = [tail for tail in files.unflushed if tail.base_offset != old.base_offset]
            old.forget()
            files.tail = None if files.seal_before_append else files.activate(old)
        except BaseException as failure:
            files.poison(failure)

    def _remove_new(self, segment: LogSegment) -> None:
        """Removes a segment that a failed step has begun, durably.

        The log goes on with the same offsets in the segment before it. If a power cut brought the removed file back,
        recovery would cut the records that were appended there since.
        """
        fs = self._files.context.fs
        # The ``.log`` is created first. Without it there is nothing to remove, and perhaps no descriptor for a sync.
        exists = fs.exists(segment.path(LOG_SUFFIX))
        with self._files.state_file.renaming():
            segment.delete()
        if exists:
            fs.sync_dir(self._files.context.directory)

    # --- undo ---------------------------------------------------------------------------------------------------------

    def undo(self, before: Ends) -> None:
        """Restores the files to ``before`` after a failed append, unless it was published, or its outcome is unknown.

        If that is impossible, the log is poisoned.
        """
        files = self._files
        if files.poisoned is not None or files.ends.extent != before.extent or files.tail is None:
            return
        try:
            if files.tail.base_offset != before.base_offset or files.tail.position != before.position:
                self._back_to(before)
            # An epoch that was to begin at the end stays for the next append.
            files.epochs.truncate_from_end(before.end_offset + 1)
        except BaseException as second:
            files.poison(second)

    def _back_to(self, before: Ends) -> None:
        """Removes the segments that a failed append has begun, and cuts the one in which it started."""
        files = self._files
        files.announce_change()
        for segment in reversed(files.segments.range(before.base_offset, OFFSET_MAX)):
            if segment.base_offset > before.base_offset:
                self._remove_new(segment)
                files.segments.remove([segment.base_offset])
        files.unflushed = [tail for tail in files.unflushed if tail.base_offset < before.base_offset]
        files.tail = files.activate(files.segments.last)
        files.tail.truncate_to(before.end_offset, before.position)
