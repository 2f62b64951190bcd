"""Kafka's messages by their schemas: bytes that are read and written back, and hostile ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from kstore.messages.primitives import STRING_BYTES_MAX, MessageError, Reader, Writer
from kstore.messages.schema import Message, load_messages
from tests.interop.decoder_logs import encode_random

SCHEMAS = ("consumer", "control", "group", "metadata", "remote", "share", "transaction")
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
        values = message.read(Reader(data), version)
        written = message.write(values, version)
        assert message.read(Reader(written), version) == values
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
            message.read(Reader(bytes(data)), version)
        except MessageError:
            pass
    tried("fuzz inputs", 20)


def test_bytes_after_a_tagged_field_are_damage() -> None:
    message = load_messages("transaction")["TransactionLogValue"]
    head = struct.pack(">qhib", 1, 1, 1, 0) + b"\0" + struct.pack(">qq", 2, 3)
    assert message.read(Reader(head + b"\x01\x02\x02\0\x01"), 1)["clientTransactionVersion"] == 1
    with pytest.raises(MessageError, match="clientTransactionVersion: 1 bytes more than the field takes"):
        message.read(Reader(head + b"\x01\x02\x03\0\x01\0"), 1)


def test_text_that_is_not_utf_8_is_refused_or_shown_with_replacements() -> None:
    message = load_messages("group")["GroupMetadataKey"]
    data = struct.pack(">h", 3) + b"a\xffb"
    with pytest.raises(MessageError, match="UTF-8"):
        message.read(Reader(data), 0)
    assert message.read(Reader(data, text_errors="replace"), 0) == {"group": "a\ufffdb"}


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
    writer = Writer()
    writer.uvarint(value)
    assert Reader(bytes(writer.data)).uvarint() == value


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 5, b"\xff" * 9], ids=["none", "one", "five", "nine"])
def test_a_varint_that_does_not_end_is_damage(data: bytes) -> None:
    with pytest.raises(MessageError, match=r"the 0 bytes that remain|more than 5 bytes"):
        Reader(data).uvarint()
