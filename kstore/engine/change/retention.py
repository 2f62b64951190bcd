"""Retention: deletes the oldest segments that a log's settings no longer cover."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kstore.config import NO_LIMIT, LogConfig
from kstore.engine.change.cuts import Cuts
from kstore.engine.change.roll import Rolls
from kstore.engine.files import LogFiles
from kstore.engine.turn import Turn
from kstore.errors import KstoreError
from kstore.rules.retain import SegmentAge, TrustedClock, deletable_count, needs_file_time
from kstore.types import NO_TIMESTAMP, RetentionResult

logger = logging.getLogger(__name__)


class Retention:
    """Applies retention to one log. Thread-safe; takes the turn itself."""

    def __init__(self, files: LogFiles, turn: Turn, rolls: Rolls, cuts: Cuts, clock: TrustedClock) -> None:
        """``clock`` rejects implausible jumps of the time."""
        self._files = files
        self._turn = turn
        self._rolls = rolls
        self._cuts = cuts
        self._trusted_clock = clock
        # All groups that retention waits for have passed this offset, as far as the store last saw.
        self.passed_by_groups = 0
        # How far the replicators that retention waits for have copied the log, by name. Replaced by one store.
        self.copied_to: Mapping[str, int] = MappingProxyType({})

    def hold(self, name: str, copied_to: int | None) -> None:
        """Deletes nothing from offset ``copied_to`` on; None: no longer waits for the replicator ``name``."""
        with self._turn.lock:
            others = {other: offset for other, offset in self.copied_to.items() if other != name}
            self.copied_to = others if copied_to is None else {**others, name: copied_to}

    def after_roll(self) -> None:
        """Applies retention after a roll, when the log may have become too large or too old. A failure is retried after
        the next one."""
        self._rolls.retention_due = False
        config = self._files.context.config
        if (config.retention_ms, config.retention_bytes) == (NO_LIMIT, NO_LIMIT):
            return
        try:
            self.apply()
        except KstoreError as error:
            logger.warning("%s: retention: %s", self._files.context.directory, error)

    def apply(self) -> RetentionResult:
        """See ``Log.apply_retention``."""
        files, clock = self._files, self._files.context.clock
        self._look_up_ages()
        with self._turn.lock, files.changing():
            files.remove_deleted()
            return self._retain(self._trusted_clock.now_ms(clock.now_ms(), clock.monotonic()))

    def _look_up_ages(self) -> None:
        """Looks up the ages that retention needs before it takes the lock: a lost index makes that slow."""
        config = self._files.context.config
        if config.retention_ms == NO_LIMIT:
            return
        now_ms = self._files.context.clock.now_ms()
        try:
            is_kept = False
            for age in self._ages(now_ms, with_times=True, repair=True):
                # Retention reads the age of the first segment that it keeps, and of the one after it.
                if is_kept:
                    return
                is_kept = now_ms - age.largest_timestamp <= config.retention_ms
        except (KstoreError, ValueError):
            pass  # unreadable or changing segments are met again under the lock

    def _retain(self, now_ms: int) -> RetentionResult:
        """Deletes the segments that ``rules.retain`` selects; the active one only after a roll."""
        files = self._files
        config, ends = files.context.config, files.ends
        segments = tuple(files.segments)
        count = deletable_count(
            self._ages(now_ms, with_times=config.retention_ms != NO_LIMIT),
            config,
            size=sum(segment.size for segment in segments) if config.retention_bytes != NO_LIMIT else 0,
            start_offset=ends.start_offset,
            high_watermark=ends.high_watermark,
            now_ms=now_ms,
            passed=min(self._waited_for(config), default=None),
        )
        gone = segments[:count]
        size = sum(segment.size for segment in gone)
        if gone:
            stop_offset = segments[count].base_offset if count < len(segments) else ends.end_offset
            if count == len(segments):
                if files.tail is None:
                    self._rolls.begin()
                self._rolls.roll_now()
            self._cuts.delete_before(max(stop_offset, files.ends.start_offset))
            begin = "%s: retention deleted %d segments, %d bytes; the log begins at offset %d"
            logger.info(begin, files.context.directory, count, size, files.ends.start_offset)
        files.counters.retained(count, size)
        return RetentionResult(count, size, files.ends.start_offset)

    def _waited_for(self, config: LogConfig) -> Iterator[int]:
        """The offsets of all that retention waits for."""
        if config.retention_groups:
            yield self.passed_by_groups
        yield from self.copied_to.values()

    def _ages(self, now_ms: int, *, with_times: bool, repair: bool = False) -> Iterator[SegmentAge]:
        """The segments as retention sees them, in order; their times only if requested."""
        files = self._files
        stops = [*files.segments.bases[1:], files.ends.end_offset]
        for segment, stop_offset in zip(files.segments, stops, strict=True):
            largest, mtime_ms, has_damage = NO_TIMESTAMP, 0, False
            if with_times:
                largest = segment.largest_timestamp(segment.known_size, repair=repair).timestamp
                has_damage = segment.has_damage
                if needs_file_time(largest, now_ms, has_damage=has_damage):
                    mtime_ms = segment.mtime_ms()
            yield SegmentAge(stop_offset, segment.size, largest, mtime_ms, has_damage=has_damage)
