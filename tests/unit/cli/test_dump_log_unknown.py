"""``kstore dump-log`` on records of Kafka's topics that a later release of Kafka wrote: no unknown part ends a dump."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator

import pytest

from kstore.cli.dump_log import RECORD_DECODERS
from kstore.messages.schema import Message, load_messages
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.interop.decoder_logs import COORDINATORS, DECODERS, encode_random, uvarint
from tests.support.lives.dump_helpers import BASE, Dump, record, write_log

TRIES = 5


def records_of(schema: str, seed: int, future: list[tuple[int, bytes]]) -> Iterator[Record]:
    """A record of each message and version; those of flexible versions have the tagged fields ``future`` too."""
    rng = random.Random(seed)
    messages = load_messages(schema)
    for message in messages.values():
        if schema in COORDINATORS and message.name.endswith("Key"):
            continue
        for version in range(message.versions.lowest, message.versions.highest + 1):
            body = encode_random(message, version, rng, future=future)
            yield framed(schema, messages, message, version, body, rng)


def framed(
    schema: str, messages: dict[str, Message], message: Message, version: int, body: bytes, rng: random.Random
) -> Record:
    if schema not in COORDINATORS:
        return record(0, b"\x01" + uvarint(message.key) + uvarint(version) + body, None)
    key = next(other for other in messages.values() if other.key == message.key and other.name.endswith("Key"))
    return record(
        0, struct.pack(">h", version) + body, struct.pack(">h", message.key) + encode_random(key, 0, rng, future=[])
    )


@pytest.mark.parametrize("schema", DECODERS)
def test_unknown_tagged_fields_change_nothing_of_what_is_shown(schema: str) -> None:
    decode = RECORD_DECODERS[DECODERS[schema].removeprefix("--").replace("-", "_")]()
    seen = 0
    for seed in range(TRIES):
        chance = random.Random(seed)
        future = [(tag, chance.randbytes(chance.randrange(200))) for tag in (500, 70_000, 2**31)]
        pairs = zip(records_of(schema, seed, []), records_of(schema, seed, future), strict=True)
        for known, unknown in pairs:
            assert decode(unknown) == decode(known)
            seen += known.value != unknown.value
    assert seen


@pytest.mark.parametrize("schema", DECODERS)
def test_unknown_types_and_versions_do_not_end_the_dump(schema: str, dump: Dump) -> None:
    rng = random.Random(schema)
    messages = load_messages(schema)
    records = []
    for message in messages.values():
        body = encode_random(message, message.versions.highest, rng)
        for version in (message.versions.highest + 1, rng.randrange(100, 2**15)):
            records.append(framed(schema, messages, message, version, body, rng))
    for kind in (max(message.key for message in messages.values()) + 1, rng.randrange(100, 2**15)):
        junk = rng.randbytes(rng.randrange(50))
        is_keyed = schema in COORDINATORS
        records.append(
            record(0, junk, struct.pack(">h", kind) + junk)
            if is_keyed
            else record(0, b"\x01" + uvarint(kind) + b"\0" + junk, None)
        )
    records.append(next(records_of(schema, 1, [])))
    numbered = [record(at, found.value, found.key) for at, found in enumerate(records)]
    write_log(build_batch(numbered, base_offset=0))
    status, out, err = dump(DECODERS[schema], "--files", f"{BASE}.log")
    assert (status, err) == (0, "")
    assert [int(at) for at in re.findall(r"^\| offset: (\d+) ", out, re.MULTILINE)] == list(range(len(records)))
    told = len(re.findall(r"Error at |Unknown record type ", out))
    assert told == len(records) - 1, "each but the last is named as unreadable"
