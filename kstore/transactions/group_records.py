"""The records of ``__consumer_offsets`` that hold committed offsets, as Kafka 4 writes them. No I/O here.

    key       int16 1 | string group | string topic | int32 partition
    value     int16 4 | int64 offset | int32 leader epoch | compact string metadata | int64 commit time ms | tagged

No value: the offset is forgotten. Of the value, versions 0 to 4 are read, and keys of type 0, which were the same.
Brokers from 4.2 on add the topic's id (tag 0), and pass over an offset of another id. kstore leaves it out, which
stands for any: topics get their cluster's id when they are handed over, and offsets must hold then too.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kstore.errors import UnsupportedFormatError
from kstore.files.paths import TopicPartition
from kstore.transactions.wire import Reader, compact_string, string, tagged_fields
from kstore.types import NO_TIMESTAMP

__all__ = [
    "GroupPartition",
    "OffsetAndMetadata",
    "decode_offset_key",
    "decode_offset_value",
    "encode_offset_key",
    "encode_offset_value",
]

KEY_TYPES = (0, 1)
KEY_TYPE = 1
VERSION = 4
NO_LEADER_EPOCH = -1

KEY_HEAD = struct.Struct(">h")
PARTITION = struct.Struct(">i")
VALUE_HEAD = struct.Struct(">hqi")
TIME = struct.Struct(">q")


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record that the group reads. ``commit_timestamp`` is in ms."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH
    commit_timestamp: int = NO_TIMESTAMP


class GroupPartition(NamedTuple):
    """What a committed offset is kept under."""

    group: str
    owner: TopicPartition


def encode_offset_key(group: str, owner: TopicPartition) -> bytes:
    """Raises: ValueError for a group that has no such key."""
    return KEY_HEAD.pack(KEY_TYPE) + string(group) + string(owner.topic) + PARTITION.pack(owner.partition)


def encode_offset_value(committed: OffsetAndMetadata) -> bytes:
    return (
        VALUE_HEAD.pack(VERSION, committed.offset, committed.leader_epoch)
        + compact_string(committed.metadata)
        + TIME.pack(committed.commit_timestamp)
        + tagged_fields({})
    )


def decode_offset_key(key: bytes) -> GroupPartition | None:
    """Whose offset it is; None for a record of another type: what a group is, and who is in it.

    Raises: CorruptRecordError.
    """
    reader = Reader(key)
    if reader.int16() not in KEY_TYPES:
        return None
    group = reader.string()
    return GroupPartition(group, TopicPartition(reader.string(), reader.int32()))


def decode_offset_value(value: bytes) -> OffsetAndMetadata:
    """Raises: CorruptRecordError; UnsupportedFormatError for a later version."""
    reader = Reader(value)
    version = reader.int16()
    if not 0 <= version <= VERSION:
        raise UnsupportedFormatError(f"a committed offset of version {version}, expected 0 to {VERSION}")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.string(is_flexible=version >= 4)
    return OffsetAndMetadata(offset, metadata, leader_epoch, reader.int64())
