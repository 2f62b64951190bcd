"""Decodes records whose value is one framed message: __cluster_metadata and __remote_log_metadata.

A frame is three unsigned varints, frame version (1), the message's key, the message's version, then the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kstore.cli.decoders import Decoded
from kstore.cli.decoders.java_text import java_bool
from kstore.messages.primitives import MessageError, Reader
from kstore.messages.schema import Message, Value, load_messages
from kstore.record._codec import Record

FRAME_VERSION = 1

SEGMENT_STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
DELETE_STATES = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")

Fields = Mapping[str, object]


class FramedDecoder:
    """The decoder for values that are framed messages of one schema file; ``error`` starts its error messages."""

    def __init__(self, schema: str, error: str, present: Callable[[Message, int, dict[str, Value]], Value]) -> None:
        self._messages = {message.key: message for message in load_messages(schema).values()}
        self._error = error
        self._present = present

    def __call__(self, record: Record) -> Decoded:
        try:
            return Decoded(None, self._decode(record.value))
        except MessageError as error:
            return Decoded(None, f"{self._error} {record.offset}, skipping. {error.reason}")

    def _decode(self, value: bytes | None) -> Value:
        if value is None:
            raise MessageError("no value")
        reader = Reader(value, text_errors="replace")
        frame_version, key, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
        if frame_version != FRAME_VERSION:
            raise MessageError(f"frame version {frame_version}, expected {FRAME_VERSION}")
        if key not in self._messages:
            raise MessageError(f"unknown record type {key}")
        message = self._messages[key]
        fields = message.read(reader, version)
        if reader.remaining:
            raise MessageError(f"{reader.remaining} bytes after the record")
        return self._present(message, version, fields)


def cluster_metadata_decoder() -> FramedDecoder:
    """The decoder for __cluster_metadata."""
    return FramedDecoder("metadata", "Error at", _present_metadata)


def remote_log_metadata_decoder() -> FramedDecoder:
    """The decoder for __remote_log_metadata."""
    return FramedDecoder("remote", "Error at offset", lambda message, _, fields: REMOTE_TEXTS[message.name](fields))


def _present_metadata(message: Message, version: int, fields: dict[str, Value]) -> Value:
    # PartitionChangeRecord -> PARTITION_CHANGE_RECORD
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.name).upper()
    return {"type": name, "version": version, "data": fields}


def _segment_text(fields: Fields) -> str:
    _check_offsets(fields)
    return (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={_segment_id(fields['remoteLogSegmentId'])}, "
        f"startOffset={fields['startOffset']}, endOffset={fields['endOffset']}, brokerId={fields['brokerId']}, "
        f"maxTimestampMs={fields['maxTimestampMs']}, eventTimestampMs={fields['eventTimestampMs']}, "
        f"{_segment_body(fields)}}}"
    )


def _segment_snapshot_text(fields: Fields) -> str:
    # Kafka's class omits the broker and the time of the event.
    return (
        f"RemoteLogSegmentMetadataSnapshot{{segmentId={fields['segmentId']}, "
        f"startOffset={fields['startOffset']}, endOffset={fields['endOffset']}, "
        f"maxTimestampMs={fields['maxTimestampMs']}, {_segment_body(fields)}}}"
    )


def _segment_body(fields: Fields) -> str:
    return (
        f"segmentLeaderEpochs={_epochs(fields['segmentLeaderEpochs'])}, "
        f"segmentSizeInBytes={fields['segmentSizeInBytes']}, customMetadata={_custom(fields['customMetadata'])}, "
        f"state={_state(SEGMENT_STATES, fields['remoteLogSegmentState'])}, "
        f"txnIdxEmpty={java_bool(bool(fields.get('txnIndexEmpty', False)))}"
    )


def _segment_update_text(fields: Fields) -> str:
    return (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={_segment_id(fields['remoteLogSegmentId'])}, "
        f"customMetadata={_custom(fields['customMetadata'])}, "
        f"state={_state(SEGMENT_STATES, fields['remoteLogSegmentState'])}, "
        f"eventTimestampMs={fields['eventTimestampMs']}, brokerId={fields['brokerId']}}}"
    )


def _delete_text(fields: Fields) -> str:
    return (
        f"RemotePartitionDeleteMetadata{{topicPartition={_topic_partition(fields['topicIdPartition'])}, "
        f"state={_state(DELETE_STATES, fields['remotePartitionDeleteState'])}, "
        f"eventTimestampMs={fields['eventTimestampMs']}, brokerId={fields['brokerId']}}}"
    )


REMOTE_TEXTS: dict[str, Callable[[Fields], str]] = {
    "RemoteLogSegmentMetadataRecord": _segment_text,
    "RemoteLogSegmentMetadataUpdateRecord": _segment_update_text,
    "RemotePartitionDeleteMetadataRecord": _delete_text,
    "RemoteLogSegmentMetadataSnapshotRecord": _segment_snapshot_text,
}


def _check_offsets(fields: Fields) -> None:
    """Kafka refuses to create a segment with other offsets."""
    start, end = fields["startOffset"], fields["endOffset"]
    assert isinstance(start, int)
    assert isinstance(end, int)
    if not 0 <= start <= end:
        raise MessageError(f"a segment of offsets {start} to {end}, expected 0 or more, rising")


def _segment_id(value: object) -> str:
    assert isinstance(value, dict)
    return f"RemoteLogSegmentId{{topicIdPartition={_topic_partition(value['topicIdPartition'])}, id={value['id']}}}"


def _topic_partition(value: object) -> str:
    assert isinstance(value, dict)
    return f"{value['id']}:{value['name']}-{value['partition']}"


def _epochs(value: object) -> str:
    assert isinstance(value, list)
    if not value:
        raise MessageError("a segment without leader epochs")
    offsets: dict[int, object] = {}
    for epoch in value:
        assert isinstance(epoch, dict)
        assert isinstance(epoch["leaderEpoch"], int)
        offsets[epoch["leaderEpoch"]] = epoch["offset"]
    return "{" + ", ".join(f"{epoch}={offsets[epoch]}" for epoch in sorted(offsets)) + "}"


def _custom(value: object) -> str:
    return f"Optional[CustomMetadata{{{len(value)} bytes}}]" if isinstance(value, bytes) else "Optional.empty"


def _state(names: tuple[str, ...], value: object) -> str:
    assert isinstance(value, int)
    if not 0 <= value < len(names):
        raise MessageError(f"state {value}, expected 0 to {len(names) - 1}")
    return names[value]
