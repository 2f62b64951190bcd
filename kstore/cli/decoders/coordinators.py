"""Decodes the records of Kafka's coordinators: __consumer_offsets, __transaction_state, __share_group_state.

A key begins with an int16, the type of the record, a value with an int16, the version of its message.
"""

from __future__ import annotations

from kstore.cli.decoders import Decoded
from kstore.messages.primitives import MessageError, Reader
from kstore.messages.schema import Message, Value, load_messages
from kstore.record._codec import Record
from kstore.transactions.metadata import TransactionState

# Keys have one version only: their type says which message they are.
KEY_VERSION = 0
TOMBSTONE = "<DELETE>"
GROUP_METADATA = 2
STATE_NAMES: dict[object, str] = {int(state): str(state) for state in TransactionState}


class CoordinatorDecoder:
    """The decoder for one coordinator's records, whose schema file is ``schema``."""

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
        reader = Reader(key, text_errors="replace")
        key_type = reader.int16()
        if key_type not in self._keys:
            return Decoded(f"Unknown record type {key_type} at offset {offset}, skipping.", None)
        key_data = self._keys[key_type].read(reader, KEY_VERSION)
        decoded_key: Value = {"type": str(key_type), "data": key_data}
        if value is None:
            return Decoded(decoded_key, TOMBSTONE)
        reader = Reader(value, text_errors="replace")
        version = reader.int16()
        data = self._read_value(self._values[key_type], reader, version)
        return Decoded(decoded_key, {"version": str(version), "data": data})

    def _read_value(self, message: Message, reader: Reader, version: int) -> dict[str, Value]:
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

    def _read_value(self, message: Message, reader: Reader, version: int) -> dict[str, Value]:
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
    reader = Reader(data, text_errors="replace")
    return message.read(reader, reader.int16())


class TransactionLogDecoder(CoordinatorDecoder):
    """For __transaction_state: names the state, as Kafka's tool does from 4.4 on; another number stays, as text."""

    def __init__(self) -> None:
        super().__init__("transaction")

    def _read_value(self, message: Message, reader: Reader, version: int) -> dict[str, Value]:
        data = message.read(reader, version)
        data["transactionStatus"] = STATE_NAMES.get(data["transactionStatus"], str(data["transactionStatus"]))
        return data
