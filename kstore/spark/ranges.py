"""Which offsets a query reads of each partition, out of what the logs hold; and when records of them are lost.

Nothing is read here. Rules and texts are those of Spark's own Kafka source: bounds must name every partition, missing
data is an error or, with ``failOnDataLoss`` false, a warning, and new partitions start at their first record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from kstore.errors import ConfigError, DataLossError, TopicNotFoundError
from kstore.files.fs import FileStat
from kstore.files.paths import TopicPartition
from kstore.setting_rules import shown
from kstore.spark.option_values import shown_partitions
from kstore.spark.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    AtTimes,
    Bound,
    Earliest,
    Latest,
    NoMatch,
    ReadOptions,
    Topics,
)
from kstore.spark.places import LogPlace

logger = logging.getLogger(__name__)

# Where each partition's reading starts, or ends (exclusive): the offset of the next record.
Offsets = dict[TopicPartition, int]
# The first offset at or after a time in ms; None if there is none.
OffsetForTime = Callable[[LogPlace, int], int | None]
WhichEnd = Literal["start", "end"]

DATA_LOSS = (
    "Some data may have been lost because they are not available any more; either the data was aged out or the topic "
    "may have been deleted before all the data in the topic was processed. "
)
FAILING = (
    "If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false. "
)
GOING_ON = 'If you want your streaming query to fail on such cases, set the source option "failOnDataLoss" to "true". '


class Held(NamedTuple):
    """What a log holds: ``start_offset`` to ``end_offset`` (exclusive) can be read.

    For committed reads ``end_offset`` is the last stable offset, else the ``high_watermark``. ``topic_id`` is as
    ``topic_id_at`` returns it; as long as ``topic_file`` is the stat of its file, it is the same.
    """

    place: LogPlace
    start_offset: int
    end_offset: int
    high_watermark: int
    topic_id: str | None = None
    topic_file: FileStat | None = None

    @property
    def owner(self) -> TopicPartition:
        return self.place.owner


class OffsetRange(NamedTuple):
    """Offsets ``start`` to ``stop`` (exclusive) of one log."""

    place: LogPlace
    start: int
    stop: int


class Start(NamedTuple):
    """Where a new query starts; ``at_end`` are the partitions that start at the present end of their log."""

    offsets: Offsets
    at_end: frozenset[TopicPartition] = frozenset()


def chosen(places: Iterable[LogPlace], topics: Topics, *, must_exist: bool = True) -> list[LogPlace]:
    """The selected places. Raises: TopicNotFoundError if a topic requested by name does not exist."""
    found = [place for place in places if topics.wants(place.owner)]
    if must_exist:
        missing = set(topics.subscribe) - {place.topic for place in found}
        if missing:
            raise TopicNotFoundError(f"there is no topic {', '.join(sorted(missing))}, which option subscribe names")
        absent = set(topics.assign) - {place.owner for place in found}
        if absent:
            raise TopicNotFoundError(f"there are no partitions {shown_partitions(absent)}, which option assign names")
    return found


# --- a batch query ----------------------------------------------------------------------------------------------------


def batch_ranges(options: ReadOptions, held: Iterable[Held], offset_for_time: OffsetForTime) -> list[OffsetRange]:
    """What a batch query reads, by topic and partition; empty ranges are left out.

    Raises: ConfigError for bounds that do not fit the partitions, or each other; DataLossError.
    """
    logs = sorted(held)
    owners = {log.owner for log in logs}
    starting, ending = options.starting, options.ending
    _check_names_all(starting, owners, "start")
    _check_names_all(ending, owners, "end")
    ranges = []
    for log in logs:
        start, is_given, _ = _start(log, starting, offset_for_time)
        stop = _stop(log, ending, offset_for_time)
        if start > stop:
            if is_given:
                raise ConfigError(_start_above_end(log, start, stop))
            _lost(options, f"The end offset {stop} for {log.owner} is below the first existing one, {start}.")
        found = _within(log, start, stop, options)
        if found is not None:
            ranges.append(found)
    return ranges


class _Begin(NamedTuple):
    """Where reading starts, perhaps outside of what exists.

    ``is_given``: the user chose it, by an offset or a time. ``is_end``: it is the log's present end.
    """

    offset: int
    is_given: bool = False
    is_end: bool = False


def _start(log: Held, bound: Bound, offset_for_time: OffsetForTime) -> _Begin:
    match bound:
        case Earliest():
            return _Begin(log.start_offset)
        case Latest():
            return _Begin(log.end_offset, is_end=True)
        case AtOffsets(offsets):
            offset = offsets[log.owner]
            if offset == EARLIEST_OFFSET:
                return _Begin(log.start_offset)
            if offset == LATEST_OFFSET:
                return _Begin(log.end_offset, is_end=True)
            return _Begin(offset, is_given=True)
        case AtTime(timestamp_ms, no_match):
            return _start_at(log, timestamp_ms, no_match, offset_for_time)
        case AtTimes(timestamps_ms, no_match):
            return _start_at(log, timestamps_ms[log.owner], no_match, offset_for_time)


def _start_at(log: Held, timestamp_ms: int, no_match: NoMatch, offset_for_time: OffsetForTime) -> _Begin:
    if timestamp_ms == LATEST_OFFSET:
        return _Begin(log.end_offset, is_end=True)
    found = _offset_at(log, timestamp_ms, offset_for_time)
    if found is not None:
        return _Begin(found, is_given=True)
    if no_match == "error":
        raise ConfigError(
            f"No offset matched from request of topic-partition {log.owner} and timestamp {timestamp_ms}. "
            "Set startingOffsetsByTimestampStrategy to latest to begin at the end there."
        )
    return _Begin(log.end_offset, is_given=True, is_end=True)


def _stop(log: Held, bound: Bound, offset_for_time: OffsetForTime) -> int:
    match bound:
        case Earliest():
            return log.start_offset
        case Latest():
            return log.end_offset
        case AtOffsets(offsets):
            offset = offsets[log.owner]
            return {EARLIEST_OFFSET: log.start_offset, LATEST_OFFSET: log.end_offset}.get(offset, offset)
        case AtTime(timestamp_ms, _):
            found = _offset_at(log, timestamp_ms, offset_for_time)
        case AtTimes(timestamps_ms, _):
            found = _offset_at(log, timestamps_ms[log.owner], offset_for_time)
    return log.end_offset if found is None else found


def _offset_at(log: Held, timestamp_ms: int, offset_for_time: OffsetForTime) -> int | None:
    # As in place of an offset: Spark's Kafka source passes them to the broker, which knows them (ListOffsets).
    if timestamp_ms in (LATEST_OFFSET, EARLIEST_OFFSET):
        return log.start_offset if timestamp_ms == EARLIEST_OFFSET else None
    found = offset_for_time(log.place, timestamp_ms)
    return None if found is None or found >= log.end_offset else found


def _check_names_all(bound: Bound, owners: set[TopicPartition], which: WhichEnd) -> None:
    """Checks that offsets or times name every partition that is read, and no other."""
    match bound:
        case AtOffsets(offsets) if offsets.keys() != owners:
            raise ConfigError(
                f"Partitions specified for Kafka {which} offsets don't match what are assigned. Maybe topic partitions "
                "are created or deleted while the query is running. Use -1 for latest, -2 for earliest. "
                f"Specified: {shown_partitions(offsets)} Assigned: {shown_partitions(owners)}"
            )
        case AtTimes(timestamps_ms) if timestamps_ms.keys() != owners:
            raise ConfigError(
                f"Partitions specified for Kafka timestamp based {which} offsets don't match what are assigned. Maybe "
                "topic partitions are created or deleted while the query is running, or you didn't specify all the "
                f"partitions. Specified: {shown_partitions(timestamps_ms)} Assigned: {shown_partitions(owners)}"
            )


def _start_above_end(log: Held, start: int, stop: int) -> str:
    return (
        f"The resolved start offset {start} is greater than the resolved end offset {stop} for topic "
        f"{log.place.topic} partition {log.place.partition}. The log holds {log.start_offset} to {log.end_offset} "
        "(exclusive). Maybe one of them is set to an offset and the other one to a timestamp or to latest."
    )


# --- a stream ---------------------------------------------------------------------------------------------------------


def resolve_start(options: ReadOptions, held: Iterable[Held], offset_for_time: OffsetForTime) -> Start:
    """Where a new stream starts.

    Raises: ConfigError for a bound that does not fit the partitions, DataLossError.
    """
    logs = sorted(held)
    _check_names_all(options.starting, {log.owner for log in logs}, "start")
    offsets: Offsets = {}
    at_end = set()
    for log in logs:
        start, is_given, is_end = _start(log, options.starting, offset_for_time)
        if is_given and start < log.start_offset:
            _lost(options, f"Starting offset for {log.owner} was {start} but consumer reset to {log.start_offset}.")
            start = log.start_offset
        if start > log.high_watermark:
            _lost(options, _offset_changed(log.owner, start, log.end_offset))
            start = log.end_offset
        offsets[log.owner] = start
        if is_end:
            at_end.add(log.owner)
    return Start(offsets, frozenset(at_end))


def latest_offsets(start: Offsets, held: Iterable[Held], options: ReadOptions) -> Offsets:
    """How far the stream, now at ``start``, can read: never below that, unless a log has lost its end.

    Raises: DataLossError.
    """
    found: Offsets = {}
    for log in sorted(held):
        at = start.get(log.owner, log.start_offset)
        if at > log.high_watermark:
            _lost(options, _offset_changed(log.owner, at, log.end_offset))
            found[log.owner] = log.end_offset
        else:
            # A reader of uncommitted records may already be beyond the last stable offset.
            found[log.owner] = max(log.end_offset, at)
    return found


def stream_ranges(start: Offsets, end: Offsets, held: Iterable[Held], options: ReadOptions) -> list[OffsetRange]:
    """What a micro-batch from ``start`` to ``end`` reads; empty ranges are left out.

    A partition's ``start`` may be above its ``end``, or it may have no end at all: a query whose first batch failed
    asks again for its start and gets a later one, while the batch keeps its end.

    Raises: DataLossError.
    """
    logs = {log.owner: log for log in held}
    deleted = start.keys() - end.keys() - logs.keys()
    if deleted:
        _lost(options, f"Partitions {shown_partitions(deleted)} have been deleted.")
    vanished = end.keys() - logs.keys()
    if vanished:
        _lost(options, _not_found(vanished - start.keys(), vanished & start.keys()))
    ranges = []
    for owner in sorted(end.keys() & logs.keys()):
        log, first = logs[owner], start.get(owner)
        if first is None:
            first = log.start_offset
            if first > 0:
                _lost(options, f"Added partition {owner} starts from {first} instead of 0.")
        found = _within(log, first, end[owner], options)
        if found is not None:
            ranges.append(found)
    return ranges


def check_topics(known: dict[TopicPartition, str], held: Iterable[Held], options: ReadOptions) -> None:
    """Compares the topics of a running stream with those that it has ``known``, and adds new ones to them.

    Raises: DataLossError for a topic that was deleted and created again: its offsets mean other records.
    """
    for log in sorted(held):
        if log.topic_id:
            before = known.get(log.owner, log.topic_id)
            known[log.owner] = log.topic_id
            if before != log.topic_id:
                _lost(options, f"Partition {log.owner}: {recreated(before, log.topic_id)}.")


def recreated(before: str, now: str) -> str:
    """How a topic is described whose id has changed from ``before`` to ``now``."""
    return f"the topic was deleted and created again: its id was {before} and is {now or 'unknown'} now"


def _not_found(new: set[TopicPartition], known: set[TopicPartition]) -> str:
    reasons = []
    if new:
        reasons.append(
            f"Cannot find initial offsets for partitions {shown_partitions(new)}. They may have been deleted."
        )
    if known:
        reasons.append(f"Partitions {shown_partitions(known)} have been deleted.")
    return " ".join(reasons)


# --- what is lost -----------------------------------------------------------------------------------------------------


def _within(log: Held, start: int, stop: int, options: ReadOptions) -> OffsetRange | None:
    """The existing part of ``start`` to ``stop``; None if it is empty. Raises: DataLossError."""
    if start >= stop:
        return None
    if start < log.start_offset:
        _lost(options, _could_not_read(log, start, min(stop, log.start_offset)))
    if stop > log.end_offset:
        _lost(options, _could_not_read(log, max(start, log.end_offset), stop))
    start, stop = max(start, log.start_offset), min(stop, log.end_offset)
    return OffsetRange(log.place, start, stop) if start < stop else None


def _could_not_read(log: Held, start: int, stop: int) -> str:
    return (
        f"Could not read records in offset [{start}, {stop}) for topic partition {log.owner}: "
        f"it holds [{log.start_offset}, {log.end_offset})."
    )


def _offset_changed(owner: TopicPartition, before: int, now: int) -> str:
    return (
        f"Partition {owner} offset was changed from {before} to {now}. This could either be a user error that the "
        "start offset is set too high and this is the first batch, or the kafka topic-partition is broken, and some "
        "data may have been missed."
    )


def _lost(options: ReadOptions, reason: str) -> None:
    """Raises: DataLossError, unless the user wants to continue."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{DATA_LOSS}{FAILING}Reason: {reason}")
    logger.warning("%s%sReason: %s", DATA_LOSS, GOING_ON, reason)


# --- as Spark stores them ---------------------------------------------------------------------------------------------


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """In the form of Kafka's source, ``{"orders": {"0": 23}}``: what Spark writes to a query's checkpoint."""
    found: dict[str, dict[str, int]] = {}
    for owner, offset in sorted(offsets.items()):
        found.setdefault(owner.topic, {})[str(owner.partition)] = offset
    return found


def from_json(offsets: Any) -> Offsets:
    """The inverse of ``to_json``, for what Spark passes back. Raises: ConfigError for anything else."""
    found: Offsets = {}
    try:
        for topic, of_topic in offsets.items():
            for partition, offset in of_topic.items():
                found[TopicPartition(topic, int(partition))] = offset + 0
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f'the checkpoint holds {shown(offsets)}, expected offsets like {{"topicA":{{"0":23,"1":42}}}}: '
            "it is another source's"
        ) from None
    return found
