"""Frames: the bytes of requests and responses, and hostile ones."""

from __future__ import annotations

import random

import pytest

from kstore.door.apis import APIS
from kstore.door.frames import Head, read_request, response_bytes, wire_of
from kstore.messages.primitives import MessageError


def test_a_request_of_a_fixed_version_is_read() -> None:
    data = bytes.fromhex("0003 0000 00000007 0003 61c3a9 00000001 0001 74")
    request = read_request(wire_of("Metadata"), data, elements_max=10)
    assert request.head == (3, 0, 7)
    assert request.client_id == "aé"
    assert request.body["topics"] == [
        {"topicId": bytes(16), "name": "t"},
    ]


def test_a_request_of_a_flexible_version_has_a_client_id_with_a_fixed_length_and_tagged_fields() -> None:
    data = bytes.fromhex("0012 0003 00000001 ffff 01 05 02 abcd 02 6b 02 31 00")
    request = read_request(wire_of("ApiVersions"), data, elements_max=10)
    assert request.client_id == ""
    assert request.body == {"clientSoftwareName": "k", "clientSoftwareVersion": "1", "clusterId": None, "nodeId": -1}


def test_a_response_of_api_versions_has_the_fixed_header_in_every_version() -> None:
    message = {"errorCode": 35, "apiKeys": [{"apiKey": 18, "minVersion": 0, "maxVersion": 4}]}
    fixed = "00000010 00000009 0023 00000001 0012 0000 0004"
    assert response_bytes(wire_of("ApiVersions"), Head(18, 0, 9), message) == bytes.fromhex(fixed)
    flexible = "00000013 00000009 0023 02 0012 0000 0004 00 00000000 00"
    assert response_bytes(wire_of("ApiVersions"), Head(18, 3, 9), message) == bytes.fromhex(flexible)


def test_a_flexible_response_has_a_header_with_tagged_fields() -> None:
    assert response_bytes(wire_of("Heartbeat"), Head(12, 4, 9), {}) == bytes.fromhex(
        "0000000c 00000009 00 00000000 0000 00"
    )


def test_bytes_after_a_request_are_left_alone_since_librdkafka_sends_some() -> None:
    data = bytes.fromhex("0003 0001 00000007 ffff ffffffff 00")
    assert read_request(wire_of("Metadata"), data, elements_max=10).body["topics"] is None


def test_a_request_that_ends_too_early_is_refused() -> None:
    for data in ("0003 0001 00000007 ffff ffffff", "0003 0001 00000007 ff", "0003 0001 00000007 0005 61"):
        with pytest.raises(MessageError, match="that remain"):
            read_request(wire_of("Metadata"), bytes.fromhex(data), elements_max=10)


def test_random_bytes_are_a_request_or_a_typed_error() -> None:
    rng = random.Random(5)
    outcomes = set()
    for _ in range(2000):
        api = rng.choice(APIS)
        version = rng.randint(api.lowest, api.highest)
        data = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + rng.randbytes(rng.randrange(40))
        try:
            read_request(api.wire, data, elements_max=1000)
            outcomes.add("read")
        except MessageError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
