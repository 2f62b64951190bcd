"""Decoders of record contents for ``kstore dump-log``: their interface, and one for each kind of record."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import NamedTuple, Protocol

from kstore.messages._wire import MessageReader
from kstore.messages.primitives import MessageError, Uuid
from kstore.messages.schema import Message, Value, load_messages
from kstore.record._codec import Record, java_string
from kstore.transactions.metadata import TransactionState


class Decoded(NamedTuple):
    """A record's key and value as text (str) or as JSON data; None if there is nothing to print."""

    key: Value
    value: Value


class Decoder(Protocol):
    """Turns a record into what is printed of it. Raises MessageError where Kafka's tool gives up."""

    def __call__(self, record: Record) -> Decoded: ...


# --- texts as Java and Jackson write them -----------------------------------------------------------------------------

# Jackson's escapes; it leaves everything beyond ASCII unchanged.
_JSON_ESCAPES = {code: f"\\u{code:04X}" for code in range(32)}
_JSON_ESCAPES |= {ord(char): f"\\{letter}" for char, letter in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)}


def java_bool(value: bool) -> str:
    return "true" if value else "false"


def java_double(value: float) -> str:
    """The text of Java's ``Double.toString``: plain from 0.001 to 10,000,000, else with an exponent."""
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    negative, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    # The text means text[0].text[1:] x 10^exponent.
    exponent = exponent + len(digits) - 1 if value else 0
    sign = "-" if negative else ""
    if not -3 <= exponent < 7:
        return f"{sign}{text[0]}.{text[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{text}"
    text = text.ljust(exponent + 2, "0")
    return f"{sign}{text[: exponent + 1]}.{text[exponent + 1 :]}"


def json_text(value: Value) -> str:
    """``value`` as Jackson's JSON: no spaces, bytes in base64, control characters escaped in capitals."""
    match value:
        case None:
            return "null"
        case bool():
            return java_bool(value)
        case int():
            return str(value)
        case float():
            return java_double(value) if math.isfinite(value) else _quoted(java_double(value))
        case str():
            return _quoted(value)
        case Uuid():
            return _quoted(str(value))
        case bytes() | memoryview():
            return _quoted(b64encode(value).decode())
        case list():
            return f"[{','.join([json_text(element) for element in value])}]"
        case _:
            return f"{{{','.join([f'{_quoted(name)}:{json_text(inner)}' for name, inner in value.items()])}}}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_JSON_ESCAPES)}"'


# --- single keys and values: the choices of --key-decoder-class and --value-decoder-class -----------------------------

# Where Kafka's decoders are, and where they were up to Kafka 3.
PACKAGES = ("org.apache.kafka.tools.api.", "kafka.serializer.")
DEFAULT_CLASS = "org.apache.kafka.tools.api.StringDecoder"


class PlainDecoder:
    """Decodes key and value separately."""

    def __init__(self, key: Callable[[bytes], Value], value: Callable[[bytes], Value]) -> None:
        self._key = key
        self._value = value

    @property
    def is_text(self) -> bool:
        """Whether keys and values are shown as the text that they are."""
        return self._key is java_string and self._value is java_string

    def __call__(self, record: Record) -> Decoded:
        """Raises MessageError for bytes that do not fit the chosen type."""
        key, value = record.key, record.value
        return Decoded(key=None if key is None else self._key(key), value=None if value is None else self._value(value))


def bytes_decoder(class_name: str) -> Callable[[bytes], Value] | None:
    """The decoder for a class by its full or short name, None for a class that kstore does not know."""
    for package in PACKAGES:
        class_name = class_name.removeprefix(package)
    return BYTES_DECODERS.get(class_name)


def _number(data: bytes, size: int) -> Value:
    """The number in the first bytes, as Kafka's decoders read it: what follows them is ignored."""
    if len(data) < size:
        raise MessageError(f"{len(data)} bytes, expected the {size} of the decoder's number")
    return int.from_bytes(data[:size], "big", signed=True)


BYTES_DECODERS: dict[str, Callable[[bytes], Value]] = {
    "StringDecoder": java_string,
    "LongDecoder": lambda data: _number(data, 8),
    "IntegerDecoder": lambda data: _number(data, 4),
    # Kafka prints the identity of a Java array here, which says nothing.
    "DefaultDecoder": bytes.hex,
}


# --- the records of Kafka's coordinators ------------------------------------------------------------------------------

# Keys have one version only: their type says which message they are.
KEY_VERSION = 0
TOMBSTONE = "<DELETE>"
GROUP_METADATA = 2
STATE_NAMES: dict[object, str] = {int(state): str(state) for state in TransactionState}


class CoordinatorDecoder:
    """The decoder for one coordinator's records, whose schema file is ``schema``.

    A key begins with an int16, the type of the record, a value with an int16, the version of its message.
    """

    def __init__(self, schema: str) -> None:
        messages = load_messages(schema).values()
        self._keys = {message.key: message for message in messages if message.name.endswith("Key")}
        self._values = {message.key: message for message in messages if message.name.endswith("Value")}

    def __call__(self, record: Record) -> Decoded:
        if record.key is None:
            raise MessageError(f"the record at offset {record.offset} has no key, which no coordinator writes")
        try:
            return self._decode(record.offset, record.key, record.value)
        except MessageError as error:
            return Decoded(f"Error at offset {record.offset}, skipping. {error.reason}", None)

    def _decode(self, offset: int, key: bytes, value: bytes | None) -> Decoded:
        reader = MessageReader(key, text_errors="replace")
        key_type = reader.int16()
        if key_type not in self._keys:
            return Decoded(f"Unknown record type {key_type} at offset {offset}, skipping.", None)
        key_data = self._keys[key_type].read(reader, KEY_VERSION)
        decoded_key: Value = {"type": str(key_type), "data": key_data}
        if value is None:
            return Decoded(decoded_key, TOMBSTONE)
        reader = MessageReader(value, text_errors="replace")
        version = reader.int16()
        data = self._read_value(self._values[key_type], reader, version)
        return Decoded(decoded_key, {"version": str(version), "data": data})

    def _read_value(self, message: Message, reader: MessageReader, version: int) -> dict[str, Value]:
        return message.read(reader, version)


class OffsetsDecoder(CoordinatorDecoder):
    """For __consumer_offsets: also decodes the data that members of a classic consumer group embed."""

    def __init__(self) -> None:
        super().__init__("group")
        messages = load_messages("consumer")
        self._embedded = {
            "subscription": messages["ConsumerProtocolSubscription"],
            "assignment": messages["ConsumerProtocolAssignment"],
        }

    def _read_value(self, message: Message, reader: MessageReader, version: int) -> dict[str, Value]:
        data = message.read(reader, version)
        members = data.get("members")
        if message.key == GROUP_METADATA and data["protocolType"] == "consumer" and isinstance(members, list):
            for member in members:
                assert isinstance(member, dict)
                for name, embedded in self._embedded.items():
                    member[name] = _read_embedded(embedded, member[name])
        return data


def _read_embedded(message: Message, data: Value) -> Value:
    assert isinstance(data, bytes)
    reader = MessageReader(data, text_errors="replace")
    return message.read(reader, reader.int16())


class TransactionLogDecoder(CoordinatorDecoder):
    """For __transaction_state: names the state, as Kafka's tool does from 4.4 on; another number stays, as text."""

    def __init__(self) -> None:
        super().__init__("transaction")

    def _read_value(self, message: Message, reader: MessageReader, version: int) -> dict[str, Value]:
        data = message.read(reader, version)
        data["transactionStatus"] = STATE_NAMES.get(data["transactionStatus"], str(data["transactionStatus"]))
        return data


# --- framed messages: __cluster_metadata and __remote_log_metadata ----------------------------------------------------

FRAME_VERSION = 1

SEGMENT_STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
DELETE_STATES = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")

Fields = Mapping[str, object]


class FramedDecoder:
    """The decoder for values that are framed messages of one schema file; ``error`` starts its error messages.

    A frame is three unsigned varints, frame version (1), the message's key, the message's version, then the message.
    """

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
        reader = MessageReader(value, text_errors="replace")
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
