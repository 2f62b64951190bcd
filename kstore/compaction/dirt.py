"""The cleanable part of a log: its segments as compaction sees them, measured before a pass."""

from __future__ import annotations

from kstore.engine.writer import Cleanable, LogWriter
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kstore.rules.compact import SegmentFacts, first_uncleanable, is_due, measure_dirt, start_of_dirt
from kstore.scan.visits import first_timestamp
from kstore.segment import LogSegment
from kstore.segments.places import START
from kstore.setting_rules import UNLIMITED
from kstore.state.compaction_state import remembered_dirt

# A read for one batch.
SHORT_CHUNK_BYTES = 1 << 14


class LogDirt:
    """The dirty part of a log, [``first_dirty``, ``uncleanable``), at the ``start`` of a pass. Not thread-safe."""

    def __init__(self, writer: LogWriter, start: Cleanable, *, whole: bool) -> None:
        """Raises: FileNotFoundError if a segment was deleted in the meantime; StorageError."""
        self._context = writer.context
        self._config = writer.context.config
        self.start = start
        self.now_ms = writer.context.clock.now_ms()
        # The pass removes them as it replaces them.
        self.segments = {segment.base_offset: segment for segment in start.segments}
        stops = [*list(self.segments)[1:], start.stop_offset]
        self.facts = [
            SegmentFacts(segment.base_offset, stop, segment.size)
            for segment, stop in zip(start.segments, stops, strict=len(start.segments) > 0)
        ]
        remembered = None if whole else remembered_dirt(self._context.fs, self._context.directory)
        self.first_dirty = start_of_dirt(remembered, start_offset=start.start_offset, end_offset=start.stop_offset)
        self.uncleanable = self._uncleanable()
        self.dirt = measure_dirt(self.facts, self.first_dirty, self.uncleanable)

    @property
    def is_due(self) -> bool:
        return is_due(self.dirt, self._config, self.now_ms)

    def _uncleanable(self) -> int:
        start, config = self.start, self._config
        self.facts = [self._timed(facts) if facts.stop_offset > self.first_dirty else facts for facts in self.facts]
        return first_uncleanable(
            self.facts,
            self.first_dirty,
            stable_offset=start.stable_offset,
            durable_offset=start.durable_offset,
            min_lag_ms=config.min_compaction_lag_ms,
            now_ms=self.now_ms,
        )

    def _timed(self, facts: SegmentFacts) -> SegmentFacts:
        """Adds the times of a dirty segment, if a setting needs them."""
        segment = self.segments[facts.base_offset]
        config = self._config
        if config.min_compaction_lag_ms:
            largest = segment.largest_timestamp(facts.size).timestamp
            facts = facts._replace(largest_timestamp=largest)
        if config.max_compaction_lag_ms < UNLIMITED:
            facts = facts._replace(first_timestamp=_first_timestamp(segment))
        return facts

    def sized(self, facts: SegmentFacts) -> SegmentFacts:
        """Adds the sizes that decide about groups. Raises: FileNotFoundError if the segment was deleted since."""
        fs = self._context.fs
        segment = self.segments[facts.base_offset]
        sizes = []
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            try:
                sizes.append(fs.stat(segment.path(suffix)).size)
            except FileNotFoundError:
                sizes.append(0)
        mtime_ms = fs.stat(segment.path(LOG_SUFFIX)).mtime_ns // 1_000_000
        return facts._replace(index_size=sizes[0], time_index_size=sizes[1], mtime_ms=mtime_ms)


def _first_timestamp(segment: LogSegment) -> int:
    """The greatest timestamp of the first batch, NO_TIMESTAMP in an empty segment (Kafka rolls by it)."""
    return first_timestamp(segment.walk_from(START, segment.size, chunk_bytes=SHORT_CHUNK_BYTES))


def look(
    writer: LogWriter, *, whole: bool = False, with_producers: bool = False, as_if_durable: bool = False
) -> LogDirt:
    """Measures a log's present state.

    ``whole``: what earlier passes have covered counts as dirty too; ``as_if_durable``: what is not on disk yet counts
    as cleanable too.

    Raises: FileNotFoundError if an expected file is missing; StorageError.
    """
    while True:
        start = writer.cleanable(with_producers=with_producers)
        if as_if_durable:
            start = start._replace(durable_offset=start.stop_offset)
        try:
            return LogDirt(writer, start, whole=whole)
        except FileNotFoundError:
            # The next measurement no longer includes the deleted segment.
            if not writer.compaction_stopped(start, start.segments):
                raise
