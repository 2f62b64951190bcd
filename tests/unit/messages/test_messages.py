"""Kafka's messages by their schemas: bytes that are read and written back, and hostile ones."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from kstore.messages._wire import MessageReader, MessageWriter
from kstore.messages.primitives import STRING_BYTES_MAX, MessageError, Uuid
from kstore.messages.schema import Message, load_messages
from tests.interop.decoder_logs import encode_random

SCHEMAS = ("consumer", "control", "group", "metadata", "remote", "share", "transaction", "wire")
VERSIONS = [
    pytest.param(message, version, id=f"{message.name}-{version}")
    for schema in SCHEMAS
    for message in load_messages(schema).values()
    for version in range(message.versions.lowest, message.versions.highest + 1)
]


@pytest.mark.parametrize(("message", "version"), VERSIONS)
@pytest.mark.sampled(24)
def test_a_message_of_every_type_and_version_is_written_as_it_was_read(message: Message, version: int) -> None:
    """The random bytes are another encoder's (tests/interop), whose logs Kafka's own tool has read."""
    rng = random.Random(version)
    for _ in range(50):
        data = encode_random(message, version, rng)
        values = message.read(MessageReader(data), version)
        written = message.write(values, version)
        assert message.read(MessageReader(written), version) == values
        # Left out: tagged fields with their defaults, and fields that no schema knows.
        assert written == data or len(written) < len(data)
        assert version in message.flexible or written == data


@pytest.mark.parametrize(("message", "version"), VERSIONS)
@pytest.mark.sampled(24)
def test_a_damaged_message_is_read_or_is_a_typed_error(
    message: Message, version: int, tried: Callable[[str, int], None]
) -> None:
    rng = random.Random(version)
    for _ in range(20):
        data = bytearray(encode_random(message, version, rng))
        if data and rng.random() < 0.7:
            data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            del data[rng.randrange(len(data) + 1) :]
        try:
            message.read(MessageReader(bytes(data)), version)
        except MessageError:
            pass
    tried("fuzz inputs", 20)


def test_bytes_after_a_tagged_field_are_damage() -> None:
    message = load_messages("transaction")["TransactionLogValue"]
    head = struct.pack(">qhib", 1, 1, 1, 0) + b"\0" + struct.pack(">qq", 2, 3)
    assert message.read(MessageReader(head + b"\x01\x02\x02\0\x01"), 1)["clientTransactionVersion"] == 1
    with pytest.raises(MessageError, match="clientTransactionVersion: 1 bytes more than the field takes"):
        message.read(MessageReader(head + b"\x01\x02\x03\0\x01\0"), 1)


def test_text_that_is_not_utf_8_is_refused_or_shown_with_replacements() -> None:
    message = load_messages("group")["GroupMetadataKey"]
    data = struct.pack(">h", 3) + b"a\xffb"
    with pytest.raises(MessageError, match="UTF-8"):
        message.read(MessageReader(data), 0)
    assert message.read(MessageReader(data, text_errors="replace"), 0) == {"group": "a\ufffdb"}


@pytest.mark.parametrize(
    ("values", "error", "reason"),
    [
        ({"group": "x" * (STRING_BYTES_MAX + 1)}, ValueError, "expected at most 32767"),
        ({"group": None}, ValueError, "group: None, expected a value"),
        ({"group": 7}, ValueError, "expected a str"),
        ({}, KeyError, "group"),
    ],
    ids=["long", "null", "number", "missing"],
)
def test_a_value_that_its_field_cannot_hold_is_not_written(
    values: dict[str, object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        load_messages("group")["GroupMetadataKey"].write(values, 0)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**31, 2**32 - 1])
def test_an_unsigned_varint_is_read_as_it_was_written(value: int) -> None:
    writer = MessageWriter()
    writer.uvarint(value)
    assert MessageReader(bytes(writer.data)).uvarint() == value


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 5, b"\xff" * 9], ids=["none", "one", "five", "nine"])
def test_a_varint_that_does_not_end_is_damage(data: bytes) -> None:
    with pytest.raises(MessageError, match=r"the 0 bytes that remain|more than 5 bytes"):
        MessageReader(data).uvarint()


def test_a_response_takes_the_defaults_of_missing_fields_in_every_version() -> None:
    message = load_messages("wire")["ProduceResponse"]
    partition = {"index": 3, "errorCode": 6}
    response = {"responses": [{"name": "orders", "partitionResponses": [partition]}]}
    for version in range(3, 12):
        read = message.read(MessageReader(message.write(response, version)), version)
        [topic] = cast(list[Any], read["responses"])
        [found] = topic["partitionResponses"]
        assert (found["index"], found["errorCode"], found["baseOffset"]) == (3, 6, 0)
        assert (found["logAppendTimeMs"], found["logStartOffset"]) == (-1, -1)
        assert (found["currentLeader"], read["throttleTimeMs"]) == ({"leaderId": -1, "leaderEpoch": -1}, 0)


def test_a_request_has_the_fields_of_all_versions_with_their_own_defaults() -> None:
    message = load_messages("wire")["FetchRequest"]
    data = message.write({"maxWaitMs": 7, "topics": [{"topic": "t", "partitions": [{"partition": 1}]}]}, 4)
    first, second = (message.read(MessageReader(data), 4) for _ in range(2))
    assert (first["sessionEpoch"], first["rackId"], first["clusterId"]) == (-1, "", None)
    assert first["replicaState"] == {"replicaId": -1, "replicaEpoch": -1}
    [topic] = cast(list[Any], first["topics"])
    assert topic["partitions"][0]["currentLeaderEpoch"] == -1
    # No default is shared between messages.
    cast(list[Any], first["forgottenTopicsData"]).append("changed")
    cast(dict[str, Any], first["replicaState"])["replicaId"] = 5
    assert second["forgottenTopicsData"] == []
    assert second["replicaState"] == {"replicaId": -1, "replicaEpoch": -1}


def test_a_tagged_structure_that_equals_its_default_is_omitted_however_it_is_given() -> None:
    message = load_messages("wire")["ProduceResponse"]

    def written(leader: dict[str, int] | None) -> bytes:
        partition: dict[str, object] = {"index": 0, "errorCode": 0}
        if leader is not None:
            partition["currentLeader"] = leader
        return message.write({"responses": [{"name": "t", "partitionResponses": [partition]}]}, 10)

    assert written({"leaderId": -1}) == written({"leaderId": -1, "leaderEpoch": -1}) == written(None)
    assert len(written({"leaderId": 0})) > len(written(None))


def test_other_objects_that_are_numbers_are_written_as_their_numbers() -> None:
    class Seven:
        def __index__(self) -> int:
            return 7

    message = load_messages("wire")["HeartbeatResponse"]
    numbers = {"throttleTimeMs": Seven(), "errorCode": True}
    assert message.write(numbers, 1) == message.write({"throttleTimeMs": 7, "errorCode": 1}, 1)


@pytest.mark.parametrize("value", [2**15, -(2**15) - 1, 2**63, 2**64, -(2**80), None, "7", 7.0])
def test_what_a_number_does_not_hold_is_refused_as_struct_refuses_it(value: object) -> None:
    with pytest.raises(struct.error) as expected:
        struct.pack(">h", value)
    with pytest.raises(struct.error, match=f"^{re.escape(str(expected.value))}$"):
        load_messages("wire")["HeartbeatResponse"].write({"errorCode": value}, 1)


def test_a_list_that_changes_while_it_is_written_is_written_up_to_its_end() -> None:
    class Sabotage:
        def __index__(self) -> int:
            numbers.clear()
            return 1

    numbers = [Sabotage(), *range(1000)]
    message = load_messages("wire")["MetadataResponse"]
    message.write({"topics": [{"partitions": [{"replicaNodes": numbers}]}]}, 12)
    assert numbers == []


def test_a_reader_holds_its_bytes_only_while_it_lives() -> None:
    message = load_messages("wire")["HeartbeatRequest"]
    buffer = bytearray(message.write({"groupId": "g", "memberId": "m"}, 4))
    reader = MessageReader(memoryview(buffer))
    with pytest.raises(BufferError):
        buffer.clear()
    assert message.read(reader, 4)["groupId"] == "g"
    del reader
    buffer[1:] = b""
    with pytest.raises(MessageError, match="a length of 1"):
        message.read(MessageReader(memoryview(buffer)), 4)
    buffer.clear()
    assert not buffer


@pytest.mark.parametrize("data", [None, "text", memoryview(b"abcd")[::2]], ids=["none", "text", "gaps"])
def test_a_reader_takes_only_bytes_that_lie_side_by_side(data: Any) -> None:
    with pytest.raises((TypeError, BufferError)):
        MessageReader(data)


def test_records_are_a_view_of_what_was_read() -> None:
    message = load_messages("wire")["ProduceRequest"]
    partition = {"index": 0, "records": memoryview(b"batch")}
    for version in (3, 9):
        data = message.write({"topicData": [{"name": "t", "partitionData": [partition]}]}, version)
        view = memoryview(data)
        [topic] = cast(list[Any], message.read(MessageReader(view), version)["topicData"])
        records = topic["partitionData"][0]["records"]
        assert isinstance(records, memoryview)
        assert records.obj is data
        assert bytes(records) == b"batch"
        assert type(topic["name"]) is str


def test_elements_are_counted_over_all_arrays_and_tagged_fields_of_a_message() -> None:
    message = load_messages("wire")["ListOffsetsRequest"]
    topics = [{"name": f"t{number}", "partitions": [{"partitionIndex": 0}] * 4} for number in range(5)]
    for version in (1, 8):
        data = message.write({"topics": topics}, version)
        message.read(MessageReader(data, elements_max=25), version)
        with pytest.raises(MessageError, match="4 elements, expected at most 3 more in this message"):
            message.read(MessageReader(data, elements_max=24), version)
    # Unknown tagged fields, of two bytes each.
    data = message.write({}, 8)[:-1] + b"\x64" + b"\x7f\x00" * 100
    message.read(MessageReader(data, elements_max=100), 8)
    with pytest.raises(MessageError, match="100 elements, expected at most 99"):
        message.read(MessageReader(data, elements_max=99), 8)


def test_elements_within_a_tagged_field_are_counted_too() -> None:
    message = load_messages("wire")["FetchResponse"]
    nodes = [{"nodeId": number, "host": "h", "port": 1} for number in range(10)]
    data = message.write({"nodeEndpoints": nodes, "responses": [{"topicId": Uuid(16)}]}, 16)
    message.read(MessageReader(data, elements_max=12), 16)
    with pytest.raises(MessageError, match="elements"):
        message.read(MessageReader(data, elements_max=11), 16)


def test_a_null_text_in_an_array_is_neither_read_nor_written() -> None:
    message = load_messages("wire")["DescribeGroupsRequest"]
    for version, data in ((0, "00000001 ffff"), (5, "02 00 00 00")):
        with pytest.raises(MessageError, match="groups: null among its elements"):
            message.read(MessageReader(bytes.fromhex(data)), version)
        with pytest.raises(ValueError, match="groups: None among its elements"):
            message.write({"groups": ["a", None]}, version)
