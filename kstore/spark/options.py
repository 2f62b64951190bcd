"""The options of a read, checked, as plain values that can be pickled.

The names, defaults, precedence and errors are those of Spark's own Kafka source, plus kstore's own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, cast, get_args

from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition
from kstore.record.columns import HeaderKeys
from kstore.spark.option_values import (
    Options,
    check_names,
    shown_partitions,
    to_bool,
    to_choice,
    to_columns,
    to_duration_ms,
    to_int,
    to_offsets,
    to_partitions,
    to_paths,
    to_pattern,
    to_size,
    to_timestamp_ms,
    to_timestamps,
    to_topics,
)
from kstore.types import INT32_MAX, IsolationLevel

logger = logging.getLogger(__name__)

# In place of an offset, as in Kafka's protocol.
LATEST_OFFSET = -1
EARLIEST_OFFSET = -2

MIB = 1 << 20
# Beyond 10,000 records nothing gets faster; the size of a record batch bounds a task's memory.
BATCH_ROWS = 20_000
BATCH_BYTES = 8 * MIB
# A task costs 30 to 40 ms, so a partition is not small.
MAX_PARTITION_BYTES = 128 * MIB
# Requests to a store at once while a query is planned: object stores answer each in 10 to 100 ms.
PLAN_REQUESTS, PLAN_REQUESTS_MAX = 32, 256
MAX_TRIGGER_DELAY_MS = 15 * 60_000

NoMatch = Literal["error", "latest"]
# What becomes of timestamps that Spark cannot hold (``spark/timestamps``).
OutOfRange = Literal["clamp", "null", "error"]


# --- where reading starts and ends ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first existing offset."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of what can be read."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, or EARLIEST_OFFSET or LATEST_OFFSET in its place."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """In all partitions the first offset at or after a time; ``no_match`` decides if a start finds none."""

    timestamp_ms: int
    no_match: NoMatch = "error"


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Like ``AtTime``, with a time for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]
    no_match: NoMatch = "error"


Bound = Earliest | Latest | AtOffsets | AtTime | AtTimes
EARLIEST = Earliest()
LATEST = Latest()


# --- which topics -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics, or partitions, to read: all of them unless one of the fields selects some."""

    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: tuple[TopicPartition, ...] = ()

    def wants(self, owner: TopicPartition) -> bool:
        if self.subscribe:
            return owner.topic in self.subscribe
        if self.pattern is not None:
            # As Spark's Kafka source does: anchor the pattern with ^ and $ for whole names.
            return re.search(self.pattern, owner.topic) is not None
        return not self.assign or owner in self.assign

    @property
    def named(self) -> tuple[str, ...]:
        """The topics named explicitly: these must exist, and may be internal ones."""
        return self.subscribe or tuple(sorted({owner.topic for owner in self.assign}))


# --- all of it --------------------------------------------------------------------------------------------------------

# Every option of a read, as users write it. A batch ignores the options of streams; see ``parse``.
NAMES = (
    "path",
    "paths",
    "storage_options",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "headerKeys",
    "columns",
    "isolationLevel",
    "checkCrcs",
    "timestampOutOfRange",
    "batchRows",
    "batchBytes",
    "maxPartitionBytes",
    "taskPerPartition",
    "planRequests",
    "filterPushdown",
    "pruneWhere",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
# The one option for a broker's client with a meaning here: isolationLevel, as Kafka spells it.
KAFKA_ISOLATION = "kafka.isolation.level"
STRATEGIES = ("subscribe", "subscribePattern", "assign")
BATCH_ONLY = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
    "endingTimestamp": "ending timestamp not valid in streaming queries",
    "pruneWhere": "only a batch query may skip what a condition excludes",
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. ``starting`` and ``ending`` have Spark's precedence applied; None is "no limit".

    ``isolation_is_default``: the user did not choose. ``ignored``: the given options that only a broker needs.
    """

    paths: tuple[str, ...]
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    topics: Topics = Topics()
    starting: Bound = EARLIEST
    ending: Bound = LATEST
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    header_keys: HeaderKeys = "string"
    columns: tuple[str, ...] | None = None
    isolation_level: IsolationLevel = "read_committed"
    isolation_is_default: bool = True
    check_crcs: bool = True
    timestamp_out_of_range: OutOfRange | None = None
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    max_partition_bytes: int = MAX_PARTITION_BYTES
    task_per_partition: bool = False
    plan_requests: int = PLAN_REQUESTS
    filter_pushdown: bool = False
    prune_where: str = ""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    max_bytes_per_trigger: int | None = None
    ignored: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None) -> Self:
        """Parses and checks all options; the keys ignore case.

        With ``streaming`` None, which kind of read it is is not known yet: what is wrong in only one kind passes.

        Raises: ConfigError for an unknown option, an invalid value, and options that contradict each other.
        """
        given = Options(options)
        if LOCATION in given:
            raise ConfigError(f"kstore's logs cannot be a table: {NO_TABLE}")
        of_broker = check_names(given.names(), NAMES, whose="the kstore source")
        starting = _bound(given, "starting", LATEST if streaming else EARLIEST)
        ending = _bound(given, "ending", LATEST)
        if streaming:
            _check_stream(given)
        elif streaming is not None:
            _check_batch(given, starting, ending)
        rate = {name: given.get(option, to_int, None) for name, option in RATES.items()}
        least, most = rate["min_offsets_per_trigger"], rate["max_offsets_per_trigger"]
        if least is not None and most is not None and least > most:
            raise ConfigError(
                f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
            )
        isolation_option = "isolationLevel" if "isolationLevel" in given else KAFKA_ISOLATION
        isolation_level = given.get(isolation_option, to_choice(("read_committed", "read_uncommitted")), None)
        return cls(
            paths=_paths(given),
            storage_options=given.storage_options(),
            topics=_topics(given),
            starting=starting,
            ending=ending,
            fail_on_data_loss=given.get("failOnDataLoss", to_bool, True),
            min_partitions=given.get("minPartitions", partial(to_int, most=INT32_MAX), None),
            max_records_per_partition=given.get("maxRecordsPerPartition", to_int, None),
            include_headers=given.get("includeHeaders", to_bool, False),
            header_keys=cast(HeaderKeys, given.get("headerKeys", to_choice(get_args(HeaderKeys)), "string")),
            columns=given.get("columns", to_columns, None),
            isolation_level=cast(IsolationLevel, isolation_level or "read_committed"),
            isolation_is_default=isolation_level is None,
            check_crcs=given.get("checkCrcs", to_bool, True),
            timestamp_out_of_range=cast(
                "OutOfRange | None", given.get("timestampOutOfRange", to_choice(get_args(OutOfRange)), None)
            ),
            batch_rows=given.get("batchRows", partial(to_int, most=INT32_MAX), BATCH_ROWS),
            batch_bytes=given.get("batchBytes", partial(to_size, most=INT32_MAX), BATCH_BYTES),
            max_partition_bytes=given.get("maxPartitionBytes", to_size, MAX_PARTITION_BYTES),
            task_per_partition=given.get("taskPerPartition", to_bool, False),
            plan_requests=given.get("planRequests", partial(to_int, most=PLAN_REQUESTS_MAX), PLAN_REQUESTS),
            filter_pushdown=given.get("filterPushdown", to_bool, False),
            prune_where=given.text("pruneWhere") or "",
            max_trigger_delay_ms=given.get("maxTriggerDelay", to_duration_ms, MAX_TRIGGER_DELAY_MS),
            max_bytes_per_trigger=given.get("maxBytesPerTrigger", to_size, None),
            ignored=tuple(name for name in of_broker if name != KAFKA_ISOLATION),
            **rate,
        )


# What Spark calls the path of a table when it creates one. It passes no options when it reads the table.
LOCATION = "location"
NO_TABLE = (
    "Spark does not pass a table's path and options to a source in Python. Instead of CREATE TABLE ... USING kstore, "
    "write CREATE TEMPORARY VIEW name USING kstore OPTIONS (path '/the/directory')"
)

RATES = {"max_offsets_per_trigger": "maxOffsetsPerTrigger", "min_offsets_per_trigger": "minOffsetsPerTrigger"}


def _paths(given: Options) -> tuple[str, ...]:
    path = given.text("path")
    paths: tuple[str, ...] = given.get("paths", to_paths, ())
    if path is not None and paths:
        raise ConfigError("path and paths are both set, expected one of them")
    if path is not None and path.strip():
        return (path,)
    if not paths:
        raise ConfigError(
            'there is no path: give the directory, or several, to load(), or set the option "path". A table cannot '
            f"have one: {NO_TABLE}"
        )
    return paths


def _topics(given: Options) -> Topics:
    set_ones = [name for name in STRATEGIES if name in given]
    if len(set_ones) > 1:
        raise ConfigError(
            "Only one of the following options can be specified for kstore source: "
            f"{', '.join(STRATEGIES)}. See the docs for more details. Found {', '.join(set_ones)}"
        )
    return Topics(
        subscribe=given.get("subscribe", to_topics, ()),
        pattern=given.get("subscribePattern", to_pattern, None),
        assign=given.get("assign", to_partitions, ()),
    )


def _bound(given: Options, which: Literal["starting", "ending"], default: Bound) -> Bound:
    """One end of what is read. The time for all overrides the times, and these override the offsets."""
    no_match = cast(NoMatch, given.get("startingOffsetsByTimestampStrategy", to_choice(("error", "latest")), "error"))
    for_all, by_partition, offsets = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    if for_all in given:
        return AtTime(given.get(for_all, to_timestamp_ms, 0), no_match)
    if by_partition in given:
        return AtTimes(given.get(by_partition, to_timestamps, {}), no_match)
    text = given.text(offsets)
    if text is None:
        return default
    named: dict[str, Bound] = {"earliest": EARLIEST, "latest": LATEST}
    return named.get(text.strip().lower()) or AtOffsets(to_offsets(offsets, text))


def _check_stream(given: Options) -> None:
    for name, refusal in BATCH_ONLY.items():
        if name in given:
            raise ConfigError(f"{refusal} ({name})")


def _check_batch(given: Options, starting: Bound, ending: Bound) -> None:
    if starting == LATEST:
        raise ConfigError("starting offset can't be latest for batch queries on kstore (startingOffsets)")
    if ending == EARLIEST:
        raise ConfigError("ending offset can't be earliest for batch queries on kstore (endingOffsets)")
    for owner, offset in sorted(starting.offsets.items()) if isinstance(starting, AtOffsets) else ():
        if offset == LATEST_OFFSET:
            raise ConfigError(f"startingOffsets for {owner} can't be latest for batch queries on kstore")
    for owner, offset in sorted(ending.offsets.items()) if isinstance(ending, AtOffsets) else ():
        if offset == EARLIEST_OFFSET:
            raise ConfigError(
                f"ending offset for {owner} can't be earliest for batch queries on kstore (endingOffsets)"
            )
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _check_order("offset", starting.offsets, ending.offsets)
    if isinstance(starting, AtTimes) and isinstance(ending, AtTimes):
        _check_order("timestamp", starting.timestamps_ms, ending.timestamps_ms)
    for name in STREAM_ONLY:
        if name in given:
            logger.warning("%s option ignored in batch queries", name)


def _check_order(what: str, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    if starts.keys() != ends.keys():
        raise ConfigError(
            "The specified start offset and end offset should have the same topic-partitions. Topic-partitions for "
            f"start offset: {shown_partitions(starts)}, topic-partitions for end offset: {shown_partitions(ends)}."
        )
    for owner, start in sorted(starts.items()):
        # Negative values mean earliest and latest.
        if start > ends[owner] >= 0:
            raise ConfigError(
                f"The specified start {what} {start} is greater than the end {what} {ends[owner]} "
                f"for topic {owner.topic} partition {owner.partition}."
            )
