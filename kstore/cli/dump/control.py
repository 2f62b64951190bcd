"""Describes a control record in Kafka's words."""

from __future__ import annotations

from typing import NamedTuple

from kstore.cli.decoders import json_text
from kstore.messages._wire import MessageReader
from kstore.messages.schema import Message, Value, load_messages
from kstore.record._codec import Record
from kstore.record.control import KEY, ControlRecordType, parse_control_type, parse_end_transaction_marker

# By type: the name in Kafka's tool, including the colon that only one has, and the message.
MESSAGES = {
    ControlRecordType.LEADER_CHANGE: ("LeaderChange:", "LeaderChangeMessage"),
    ControlRecordType.SNAPSHOT_HEADER: ("SnapshotHeader", "SnapshotHeaderRecord"),
    ControlRecordType.SNAPSHOT_FOOTER: ("SnapshotFooter", "SnapshotFooterRecord"),
    ControlRecordType.KRAFT_VERSION: ("KRaftVersion", "KRaftVersionRecord"),
    ControlRecordType.KRAFT_VOTERS: ("KRaftVoters", "VotersRecord"),
}


class ControlNote(NamedTuple):
    """A control record: its type, the text that Kafka's tool prints, and the same as data."""

    type: str
    text: str
    data: Value


def control_note(record: Record) -> ControlNote:
    """Raises CorruptDataError for a record without such contents."""
    kind = parse_control_type(record.key)
    if kind in MESSAGES:
        label, name = MESSAGES[kind]
        data = _read(load_messages("control")[name], record.value or b"")
        return ControlNote(kind.name, f"{label} {json_text(data)}", data)
    marker = parse_end_transaction_marker(record.key, record.value)
    if marker is not None:
        epoch = marker.coordinator_epoch
        text = f"endTxnMarker: {kind.name} coordinatorEpoch: {epoch}"
        return ControlNote(kind.name, text, {"coordinatorEpoch": epoch})
    number = KEY.unpack_from(record.key or b"")[1]
    return ControlNote(kind.name, f"controlType: {kind.name}({number})", {"type": number})


def _read(message: Message, value: bytes) -> Value:
    # The first field of each is its version.
    return message.read(MessageReader(value, text_errors="replace"), MessageReader(value).int16())
