"""The records of ``__consumer_offsets`` that hold committed offsets, as Kafka 4 writes them. No I/O here.

    key       int16 1 | string group | string topic | int32 partition
    value     int16 4 | int64 offset | int32 leader epoch | compact string metadata | int64 commit time ms | tagged

Without a value the offset is removed. Versions 0 to 4 of the value are read, and keys of type 0, which are the same.
Brokers from 4.2 on add the topic's id (tag 0), and ignore an offset of another id. kstore omits it, which matches any:
topics get their cluster's id when they are handed over, and offsets must still hold then.
"""

from __future__ import annotations

from typing import NamedTuple, NotRequired, TypedDict, cast

from kstore.errors import UnsupportedFormatError
from kstore.files.paths import TopicPartition
from kstore.messages._wire import MessageReader
from kstore.messages.primitives import INT16
from kstore.messages.schema import load_messages
from kstore.types import NO_TIMESTAMP

KEY_TYPES = (0, 1)
KEY_TYPE = 1
VERSION = 4
NO_LEADER_EPOCH = -1


class _Key(TypedDict):
    """The fields of an OffsetCommitKey."""

    group: str
    topic: str
    partition: int


class _Value(TypedDict):
    """The fields of an OffsetCommitValue that kstore uses."""

    offset: int
    leaderEpoch: NotRequired[int]
    metadata: str
    commitTimestamp: int


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record that the group reads. ``commit_timestamp`` is in ms."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH
    commit_timestamp: int = NO_TIMESTAMP


class GroupPartition(NamedTuple):
    """The key of a committed offset."""

    group: str
    owner: TopicPartition


def encode_offset_key(group: str, owner: TopicPartition) -> bytes:
    """Raises: ValueError for a group that cannot have such a key."""
    fields = _Key(group=group, topic=owner.topic, partition=owner.partition)
    return INT16.pack(KEY_TYPE) + load_messages("group")["OffsetCommitKey"].write(fields, 0)


def encode_offset_value(committed: OffsetAndMetadata) -> bytes:
    fields = _Value(
        offset=committed.offset,
        leaderEpoch=committed.leader_epoch,
        metadata=committed.metadata,
        commitTimestamp=committed.commit_timestamp,
    )
    return INT16.pack(VERSION) + load_messages("group")["OffsetCommitValue"].write(fields, VERSION)


def decode_offset_key(key: bytes) -> GroupPartition | None:
    """The group and partition of the offset; None for a record of another type: a group's metadata and members.

    Raises: CorruptRecordError.
    """
    reader = MessageReader(key)
    if reader.int16() not in KEY_TYPES:
        return None
    fields = cast(_Key, load_messages("group")["OffsetCommitKey"].read(reader, 0))
    return GroupPartition(fields["group"], TopicPartition(fields["topic"], fields["partition"]))


def decode_offset_value(value: bytes) -> OffsetAndMetadata:
    """Raises: CorruptRecordError; UnsupportedFormatError for a later version."""
    reader = MessageReader(value)
    version = reader.int16()
    if not 0 <= version <= VERSION:
        raise UnsupportedFormatError(f"a committed offset of version {version}, expected 0 to {VERSION}")
    fields = cast(_Value, load_messages("group")["OffsetCommitValue"].read(reader, version))
    leader_epoch = fields.get("leaderEpoch", NO_LEADER_EPOCH)
    return OffsetAndMetadata(fields["offset"], fields["metadata"], leader_epoch, fields["commitTimestamp"])
