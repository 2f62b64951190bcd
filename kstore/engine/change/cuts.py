"""Removes records from a log: truncation from the end, deletion from the start, and the swap of a compacted segment.

Each first stores what lowers a promise, then acts, then publishes. Everything here needs the turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from kstore.engine.change.flush import Flush
from kstore.engine.change.roll import Rolls
from kstore.engine.ends import Ends
from kstore.engine.files import LogFiles
from kstore.engine.open.segment_end import segment_end
from kstore.engine.open.swap import begin_swap, complete_swap, discard, swapped_index_bytes
from kstore.files.paths import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, segment_name
from kstore.rules.losses import OffsetSpan
from kstore.segment import LogSegment
from kstore.state.compaction_state import KSTORE_COMPACTION, CompactionState, remembered_dirt, write_compaction_state
from kstore.state.log_state import LOST_MAX
from kstore.types import OFFSET_MAX


class Cuts:
    """Cuts one log."""

    def __init__(self, files: LogFiles, rolls: Rolls, flush: Flush) -> None:
        self._files = files
        self._rolls = rolls
        self._flush = flush

    # --- truncate -----------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Removes everything from ``offset`` on; a batch that holds it goes as a whole."""
        files = self._files
        if files.tail is None:
            self._rolls.begin()
        files.announce_change(cuts=True)
        self._flush.sync_before_cut()
        keep = files.segments.floor(offset)
        assert keep is not None
        found = keep.batch_at(offset, keep.size, repair=False)
        position = keep.size if found is None else found.position
        last = segment_end(keep, position)
        end_in_file = min(last.offset, offset)
        if last.position < position:
            # The log then ends with damage: its offsets extend as far as they can, and count as before.
            end_in_file = offset if found is None else min(found.base_offset, offset)
        self._lower_dirt(offset)
        # The known end is lowered first: a crash in between leaves more than requested, never less.
        # Lost offsets at the end of the remaining log are not assigned again.
        end_with_lost = files.losses.end_after(end_in_file, offset)
        lowered = files.ends.cut_to(offset, end_in_file, end_with_lost, keep.base_offset, position)
        files.store(lowered)
        try:
            files.publish(lowered, cuts=True)
            files.producers.truncate_to(end_in_file)
            files.epochs.truncate_from_end(offset)
            dropped = [segment for segment in files.segments.range(keep.base_offset, OFFSET_MAX) if segment is not keep]
            files.drop(reversed(dropped))
            files.tail = files.activate(keep)
            files.tail.truncate_to(offset, position)
            keep.forget_contents()
            files.producers.index_sizes.note(keep.base_offset, keep.files.truncate_transactions_to(offset))
            files.seal_before_append = False
            self._forget_losses(offset)
            if last.offset < offset:
                # A whole batch was removed, so the offsets of its first part are not assigned again; the name of the
                # next segment records that.
                self._rolls.roll_now(follows_gap=True)
                if not position:
                    self._remove_emptied(keep)
        except BaseException as error:
            files.poison(error)
            files.publish(files.ends, cuts=True)
            raise
        files.publish(files.ends._replace(durable_end=offset) if files.is_sync else files.ends, cuts=True)
        files.counters.truncations += 1

    def _remove_emptied(self, segment: LogSegment) -> None:
        """Removes the segment that a truncation has emptied, after a roll: a broker's search by time ends at one.

        The flush comes first. It puts the name of the next segment on disk, so that a crash loses no offset, and the
        recovery point there, so that the missing offsets before it are no damage.
        """
        files = self._files
        if files.segments.first is segment:
            # Nothing is left below, and a log starts at its first segment at the latest.
            end_offset = files.ends.end_offset
            files.publish(files.ends._replace(start_offset=end_offset, high_watermark=end_offset))
        self._flush.flush_in_turn()
        files.drop([segment])
        files.producers.delete_before(files.segments.first.base_offset)
        files.epochs.truncate_from_start(files.ends.start_offset)

    def start_at(self, offset: int) -> None:
        """Removes all records; the next one gets ``offset``."""
        files = self._files
        files.announce_change(cuts=True)
        self._lower_dirt(offset)
        lowered = Ends(offset, offset, offset, offset, offset, base_offset=offset, position=0)
        files.store(lowered)
        try:
            files.publish(lowered, cuts=True)
            dropped = list(files.segments)
            files.producers.index_sizes.drop(files.segments.bases)
            segment = LogSegment(files.context, offset, size=0)
            # In one step: readers never see a map without segments.
            files.segments.replace([segment])
            files.unflushed.clear()
            with files.state_file.renaming():
                for old in reversed(dropped):
                    old.delete()
                segment.create()
            files.context.fs.sync_dir(files.context.directory)
            files.tail = files.activate(segment)
            files.producers.truncate_to(-1)
            files.epochs.clear()
            self._forget_losses(offset)
        except BaseException as error:
            files.poison(error)
            raise
        files.seal_before_append = False
        files.publish(files.ends, cuts=True)
        files.counters.truncations += 1
        files.counters.segments_deleted += len(dropped)

    def _forget_losses(self, stop: int) -> None:
        """Drops the losses from ``stop`` on, which were just cut.

        Not before the cut: a crash then would leave a log that has lost them. But before an offset is assigned again:
        the acceptance must not cover new records.
        """
        files = self._files
        within = files.losses.within(files.ends.start_offset, stop)
        if within != files.losses:
            files.change(files.ends, within)

    # --- delete -------------------------------------------------------------------------------------------------------

    def delete_before(self, before: int) -> None:
        """Raises the start to ``before``, and removes the segments that are entirely below it."""
        files = self._files
        files.announce(moves_files=True)
        ends = files.ends
        recovery_point = max(ends.recovery_point, min(before, ends.durable_end))
        files.change(
            ends._replace(start_offset=before, recovery_point=recovery_point),
            files.losses.within(before, ends.end_offset),
        )
        if files.tail is None:
            self._rolls.begin()
        first = files.segments.floor(before)
        assert first is not None, "the start is in a segment"
        files.producers.secure(first.base_offset)
        delay_ms = files.context.config.file_delete_delay_ms
        if not files.is_sync:
            # The names of the remaining segments first: else a crash may leave a log that begins too late.
            files.context.fs.sync_dir(files.context.directory)
        # Oldest first, so that a crash leaves no hole; the rest below the start is removed at the next open.
        files.drop(files.segments.range(0, first.base_offset), delay_ms=delay_ms)
        files.producers.delete_before(files.segments.first.base_offset)
        files.epochs.truncate_from_start(before)

    # --- compact ------------------------------------------------------------------------------------------------------

    def swap(self, replaced: Sequence[LogSegment], first_dirty: int, unreadable: Sequence[OffsetSpan]) -> None:
        """Replaces ``replaced`` with the segment that was written as ``.cleaned``; it has the first one's base.

        ``unreadable`` are offsets of batches that were copied unchanged, since they cannot be read.

        Raises: StorageError. Before the commit of the new segment nothing has changed then; after it the log is
        poisoned, readable as before, and the next open completes the swap.
        """
        files = self._files
        fs, directory = files.context.fs, files.context.directory
        bases = [segment.base_offset for segment in replaced]
        base_offset = bases[0]
        # Tells a reader that meets the half-finished swap that it is not damage.
        files.count_swap()
        self.remember_dirt(first_dirty, bases)
        try:
            begin_swap(fs, directory, base_offset)
        except BaseException as error:
            if fs.exists(directory / segment_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)):
                files.poison(error)
            else:
                discard(fs, directory, base_offset, SWAP_SUFFIX)
                discard(fs, directory, base_offset, CLEANED_SUFFIX)
            raise
        # The swap is committed: reads now see the new segment.
        try:
            for segment in replaced:
                segment.retire()
            # The segment after the last replaced one begins there.
            following = files.segments.higher(bases[-1])
            stop_offset = following.base_offset if following is not None else files.ends.end_offset
            files.losses = files.losses.after_compaction(base_offset, stop_offset, LOST_MAX, kept=unreadable)
            files.producers.index_sizes.drop(bases)
            files.producers.index_sizes.note(base_offset, swapped_index_bytes(fs, directory, base_offset))
            # The new record tells readers in other processes that the names have changed. Nothing of the old segments
            # is removed yet: if this process dies, ``load`` can tell by the record's generation whether its sum
            # describes the old segments or the new one.
            files.store(files.ends)
            complete_swap(fs, directory, base_offset, bases)
            self._show_swapped(bases, "")
            files.counters.segments_compacted += len(bases)
        except BaseException as error:
            # First: a deletion of an old segment would remove the new one, which has its name and more records.
            files.poison(error)
            is_half_done = fs.exists(directory / segment_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX))
            self._show_swapped(bases, SWAP_SUFFIX if is_half_done else "")
            raise

    def _show_swapped(self, bases: Sequence[int], state: str) -> None:
        """Puts the new segment, whose files have ``state``, in the place of those at ``bases``."""
        files = self._files
        gone = set(bases)
        kept = [segment for segment in files.segments if segment.base_offset not in gone]
        files.segments.replace([*kept, LogSegment(files.context, bases[0], state=state)])

    def remember_dirt(self, first_dirty: int, swap: Sequence[int] = ()) -> None:
        """Records, durably, that everything below ``first_dirty`` is clean; ``swap`` names what is being replaced."""
        files = self._files
        path = files.context.directory / KSTORE_COMPACTION
        record = files.state_file.current if swap else None
        state = CompactionState(first_dirty, tuple(swap), -1 if record is None else record.generation)
        write_compaction_state(files.context.fs, path, state, mode=files.context.config.file_mode)

    def _lower_dirt(self, offset: int) -> None:
        """Lowers the clean offset to a cut: what replaces the records from ``offset`` on was never cleaned."""
        first_dirty = remembered_dirt(self._files.context.fs, self._files.context.directory)
        if first_dirty is not None and first_dirty > offset:
            self.remember_dirt(offset)
