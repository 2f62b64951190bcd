"""The stream source: where a query starts, how far each of its micro-batches goes, and what they read.

Spark stores the offsets in the form of Kafka's source: ``{"orders": {"0": 23}}``, the next offset of each partition.
One reader lives as long as the query and decides on offsets; another one, a copy without state, reads.

An end that was returned is never above what is durable and, for committed reads, decided: the high watermark and the
last stable offset. So a batch that is read again, after any crash, has the same records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.files.paths import TopicPartition
from kstore.spark.admission import TriggerDelay, limit_bytes, limit_offsets
from kstore.spark.holdings import Holdings
from kstore.spark.notes import note_ignored, note_isolation
from kstore.spark.options import ReadOptions
from kstore.spark.plan import Split
from kstore.spark.ranges import (
    Held,
    Offsets,
    Start,
    check_topics,
    from_json,
    latest_offsets,
    resolve_start,
    stream_ranges,
    to_json,
)
from kstore.spark.reader import read_split, splits_of
from kstore.spark.schema import arrow_schema
from kstore.spark.sentences import without_causes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as they grow. ``schema`` names the columns; ``check_columns`` has accepted them."""

    def __init__(self, options: ReadOptions, schema: StructType, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        """The state of the reader that decides on offsets."""
        options = self._options
        self._holdings = Holdings(options)
        self._start: Start | None = None
        # The topics that were seen, to notice if one is deleted and created again.
        self._topic_ids: dict[TopicPartition, str] = {}
        # Each note is for the whole query.
        self._has_planned = self._has_noted_isolation = False
        # What the first micro-batch must not read, until it is planned.
        self._pinned: frozenset[TopicPartition] = frozenset()
        # What existed when the query was told to read that and stop.
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._delay: TriggerDelay | None = None
        if options.min_offsets_per_trigger is not None:
            self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay_ms, self._clock)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_clock": self._clock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    # --- offsets --------------------------------------------------------------------------------------------------

    @without_causes()
    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Where a new query starts. Raises: ConfigError, TopicNotFoundError, DataLossError, StorageError."""
        # Spark asks twice, and must get the same answer.
        if self._start is None:
            held = self._holdings.look(must_exist=True)
            self._start = resolve_start(self._options, held, self._holdings.offset_for_time)
            self._pinned = self._start.at_end
        return to_json(self._start.offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark passes back to ``latestOffset``, unless its trigger wants everything.

        It can carry one limit; those set with it always apply.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @without_causes()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Where the micro-batch that starts at ``start`` ends; ``start`` if there is nothing, or not enough.

        Raises: DataLossError, StorageError.
        """
        starts = from_json(start)
        held = self._holdings.look()
        check_topics(self._topic_ids, held, self._options)
        self._latest = latest_offsets(starts, held, self._options)
        ends = dict(self._latest)
        if self._target is not None:
            ends = self._up_to_target(starts, ends)
        ends |= {owner: starts[owner] for owner in self._take_pinned(starts) & ends.keys()}
        if not isinstance(limit, ReadAllAvailable):
            ends = self._admit(starts, ends, held)
        return to_json(ends)

    def _take_pinned(self, starts: Offsets) -> frozenset[TopicPartition]:
        """What the first batch must not read, for a query that started at a log's end. Nothing on a second call.

        Until that batch is committed, nothing stores where it started: after a failure Spark asks for the start again,
        and gets a later one. So the batch ends where it starts, which is stored, and nothing between the two starts is
        lost. Spark asks for the end of another batch only when the first one is committed.
        """
        first, pinned, self._pinned = self._start, self._pinned, frozenset()
        return pinned if first is not None and starts == first.offsets else frozenset()

    def _up_to_target(self, starts: Offsets, ends: Offsets) -> Offsets:
        """No further than the initial target, and no less than where the query is. New partitions wait."""
        assert self._target is not None
        found = {}
        for owner, end in ends.items():
            target = self._target.get(owner)
            if target is not None:
                end = min(end, max(target, starts.get(owner, 0)))
            elif owner in starts:
                end = min(end, starts[owner])
            else:
                continue
            found[owner] = end
        return found

    def _admit(self, starts: Offsets, ends: Offsets, held: list[Held]) -> Offsets:
        options = self._options
        logs = {log.owner: log for log in held}
        # New partitions start at their first record.
        froms = {owner: starts.get(owner, logs[owner].start_offset) for owner in ends}
        # A query that stops at its target must not wait for more than that.
        if self._delay is not None and self._target is None and self._delay.holds_back(froms, ends):
            return starts
        if options.max_offsets_per_trigger is not None:
            ends = limit_offsets(options.max_offsets_per_trigger, froms, ends)
        if options.max_bytes_per_trigger is not None:

            def size(owner: TopicPartition, start: int, stop: int) -> int:
                return self._holdings.size_between(logs[owner].place, start, stop)

            ends = limit_bytes(options.max_bytes_per_trigger, froms, ends, size)
        return ends

    @without_causes()
    def prepareForTriggerAvailableNow(self) -> None:
        """From now on only what exists already is read."""
        self._target = {log.owner: log.end_offset for log in self._holdings.look()}

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """How far data was available when Spark last asked, whatever the limits."""
        return to_json(self._latest) if self._latest else None

    # --- reading ----------------------------------------------------------------------------------------------------

    @without_causes()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Split]:
        """The splits of a micro-batch; the same records on every call. Raises: DataLossError."""
        options, holdings = self._options, self._holdings
        held = holdings.look()
        check_topics(self._topic_ids, held, options)
        ranges = stream_ranges(from_json(start), from_json(end), held, options)
        splits = splits_of(options, holdings, held, ranges)
        if not self._has_planned:
            note_ignored(options.ignored)
        self._has_planned = True
        # An open transaction is nothing to note: what it holds back comes later.
        self._has_noted_isolation = self._has_noted_isolation or note_isolation(options, splits)
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._options, arrow_schema(self._schema))

    def stop(self) -> None:
        self._holdings.close()
