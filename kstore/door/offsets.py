"""ListOffsets and OffsetForLeaderEpoch: which offsets a log begins and ends at, and which a time or an epoch means."""

from __future__ import annotations

from collections import Counter

from kstore.door import errors
from kstore.door.call import Call, Message
from kstore.door.errors import code_of
from kstore.door.served import READ_COMMITTED, READ_UNCOMMITTED, Part, epoch_error, part_of
from kstore.engine.read.times import record_for_time
from kstore.errors import KstoreError
from kstore.state.leader_epoch import UNDEFINED_EPOCH, end_offset_for, epoch_at
from kstore.types import NO_OFFSET, NO_TIMESTAMP

# What a client may ask for in the place of a time, and from which version on. EARLIEST_LOCAL is EARLIEST here: nothing
# is elsewhere.
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
SINCE_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8}


def list_offsets(call: Call) -> Message:
    """Answers ListOffsets: for each partition one offset, with its time and its leader epoch."""
    return {
        "topics": [{"name": topic["name"], "partitions": _listed_all(call, topic)} for topic in call.body["topics"]]
    }


def _listed_all(call: Call, topic: Message) -> list[Message]:
    """An answer for each partition. One that is given twice is refused, with one answer, as by a broker."""
    counts = Counter(asked["partitionIndex"] for asked in topic["partitions"])
    return [
        _listed(call, topic, asked)
        if counts[number] == 1
        else {"partitionIndex": number, "errorCode": errors.INVALID_REQUEST}
        for number, asked in {asked["partitionIndex"]: asked for asked in topic["partitions"]}.items()
    ]


def _listed(call: Call, topic: Message, asked: Message) -> Message:
    answer: Message = {"partitionIndex": asked["partitionIndex"]}
    try:
        return answer | _offset(call, topic, asked, call.body["isolationLevel"])
    except KstoreError as error:
        return answer | {"errorCode": code_of(error)}


def _offset(call: Call, topic: Message, asked: Message, level: int) -> Message:
    when = asked["timestamp"]
    if when < 0 and call.version < SINCE_VERSION.get(when, call.version + 1):
        return {"errorCode": errors.UNSUPPORTED_VERSION}
    if level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return {"errorCode": errors.UNKNOWN_SERVER_ERROR}
    part = part_of(call.door, topic["name"], asked["partitionIndex"])
    if error := epoch_error(part, asked["currentLeaderEpoch"]):
        return {"errorCode": error}
    ends = part.ends()
    if when in (EARLIEST, EARLIEST_LOCAL):
        return _found(part, ends.start_offset)
    bound = part.reads.read_bound(committed=level == READ_COMMITTED)
    if when == LATEST:
        return {"offset": bound.high_watermark, "leaderEpoch": part.epochs()[-1].epoch}
    found = record_for_time(part.source, part.reads.times, "max_timestamp" if when == MAX_TIMESTAMP else when)
    if found is None or found.offset >= bound.high_watermark:
        return {"offset": NO_OFFSET, "timestamp": NO_TIMESTAMP, "leaderEpoch": UNDEFINED_EPOCH}
    return _found(part, found.offset, found.timestamp)


def _found(part: Part, offset: int, timestamp: int = NO_TIMESTAMP) -> Message:
    return {"offset": offset, "timestamp": timestamp, "leaderEpoch": epoch_at(part.epochs(), offset)}


def offsets_for_leader_epochs(call: Call) -> Message:
    """Answers OffsetForLeaderEpoch: where an epoch that a client has seen ends in this log (KIP-320)."""
    return {
        "topics": [
            {"topic": topic["topic"], "partitions": [_epoch_end(call, topic, asked) for asked in topic["partitions"]]}
            for topic in call.body["topics"]
        ]
    }


def _epoch_end(call: Call, topic: Message, asked: Message) -> Message:
    answer: Message = {"partition": asked["partition"]}
    try:
        part = part_of(call.door, topic["topic"], asked["partition"])
        if error := epoch_error(part, asked["currentLeaderEpoch"]):
            return answer | {"errorCode": error}
        found = end_offset_for(part.epochs(), asked["leaderEpoch"], part.ends().end_offset)
    except KstoreError as error:
        return answer | {"errorCode": code_of(error)}
    return answer | {"leaderEpoch": found.epoch, "endOffset": found.start_offset}
