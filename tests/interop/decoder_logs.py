"""Logs of random messages for the decoders of a dump, in the bytes that Kafka's generated serializers would write.

    python -m tests.interop.decoder_logs TARGET

makes TARGET/kafka44 and, with Kafka's own tool, TARGET/kafka44.dumped, which tools/pack_golden.py packs: the logs, and
dumps of the transactions' logs of older trees too.
"""

from __future__ import annotations

import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kstore.messages.primitives import NUMBERS
from kstore.messages.schema import Field, Message, load_messages
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.support.harness.golden_data import golden_root
from tools.interop import java
from tools.interop.dump import Run, kafka_dumps

COORDINATORS = {
    "group": "--offsets-decoder",
    "transaction": "--transaction-log-decoder",
    "share": "--share-group-state-decoder",
}
FRAMED = {"metadata": "--cluster-metadata-decoder", "remote": "--remote-log-metadata-decoder"}
# By schema: the tool's option.
DECODERS = COORDINATORS | FRAMED
BASE_TIMESTAMP = 1_700_000_000_000
MESSAGE_COUNT = 6
NAME, SEED = "kafka44", 4
TRANSACTIONS = "__transaction_state-0"
TRANSACTION_TREES = ("clean", "crashed", "recovered", "coordinators")

KeyValue = tuple[bytes | None, bytes | None]

TEXTS = ("", "a", "topic-name", 'say "it"\\', "tab\tline\nnul\0esc\x1b\x7f", "größe 索引 🚀", "x" * 200)
SMALL = 12


def write_log(schema: str, directory: Path, seed: int) -> Path:
    """A log of one batch with messages of every type and version in a schema, whole and broken."""
    rng = random.Random(seed)
    messages = load_messages(schema)
    pairs = list(_coordinator_pairs(messages, rng) if schema in COORDINATORS else _framed_pairs(messages, rng))
    records = [
        Record(offset, BASE_TIMESTAMP + offset, "CreateTime", key, value) for offset, (key, value) in enumerate(pairs)
    ]
    directory.mkdir(parents=True)
    path = directory / "00000000000000000000.log"
    path.write_bytes(build_batch(records, base_offset=0))
    return path


def write_snapshot(path: Path, seed: int) -> None:
    """A snapshot of the metadata log, as a controller writes it: header, voters, one record, footer."""
    rng = random.Random(seed)
    topic = load_messages("metadata")["TopicRecord"]
    value = b"\x01" + uvarint(topic.key) + b"\0" + encode_random(topic, 0, rng)
    batches = [
        _control_batch(0, [("SnapshotHeaderRecord", 3, 0), ("KRaftVersionRecord", 5, 0), ("VotersRecord", 6, 0)], rng),
        build_batch([Record(3, BASE_TIMESTAMP, "CreateTime", None, value)], base_offset=3, codec="gzip"),
        _control_batch(4, [("SnapshotFooterRecord", 4, 0)], rng),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(batches))


def write_control_log(path: Path, seed: int) -> None:
    """A log of control batches of every type, and of an unknown one."""
    rng = random.Random(seed)
    batches = [
        # Version 1 is omitted: Kafka's tool reads every version as 0.
        _control_batch(0, [("LeaderChangeMessage", 2, 0), ("LeaderChangeMessage", 2, 0)], rng),
        build_batch(
            [_marker(2, 0)], base_offset=2, is_control=True, is_transactional=True, producer_id=7, producer_epoch=1
        ),
        build_batch(
            [_marker(3, 1)], base_offset=3, is_control=True, is_transactional=True, producer_id=7, producer_epoch=1
        ),
        build_batch(
            [Record(4, BASE_TIMESTAMP, "CreateTime", struct.pack(">hh", 0, 77), b"?")], base_offset=4, is_control=True
        ),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(batches))


def _marker(offset: int, kind: int) -> Record:
    return Record(offset, BASE_TIMESTAMP, "CreateTime", struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 12))


def _control_batch(base_offset: int, messages: list[tuple[str, int, int]], rng: random.Random) -> bytes:
    """Messages by name, type and version; the version is also their first field."""
    records = []
    for offset, (name, kind, version) in enumerate(messages, base_offset):
        value = struct.pack(">h", version) + encode_random(load_messages("control")[name], version, rng)[2:]
        records.append(Record(offset, BASE_TIMESTAMP, "CreateTime", struct.pack(">hh", 0, kind), value))
    return build_batch(records, base_offset=base_offset, is_control=True)


def _coordinator_pairs(messages: dict[str, Message], rng: random.Random) -> Iterator[KeyValue]:
    keys = [message for name, message in messages.items() if name.endswith("Key")]
    values = {message.key: message for name, message in messages.items() if name.endswith("Value")}
    for message in keys:
        value = values[message.key]
        prefix = struct.pack(">h", message.key)
        newest = struct.pack(">h", value.versions.highest)
        for version in range(value.versions.lowest, value.versions.highest + 1):
            for _ in range(MESSAGE_COUNT):
                key = prefix + encode_random(message, 0, rng)
                yield key, struct.pack(">h", version) + encode_random(value, version, rng)
        yield prefix + encode_random(message, 0, rng), None
        yield prefix + encode_random(message, 0, rng), struct.pack(">h", 99)
        yield (
            prefix + encode_random(message, 0, rng) + b"more",
            newest + encode_random(value, value.versions.highest, rng) + b"more",
        )
        yield prefix + encode_random(message, 0, rng)[:-1], newest
        yield prefix + encode_random(message, 0, rng), newest
    yield struct.pack(">h", 77), b"of a type that nobody knows"
    yield b"\0", b""
    yield b"", b""


def _framed_pairs(messages: dict[str, Message], rng: random.Random) -> Iterator[KeyValue]:
    for message in messages.values():
        for version in range(message.versions.lowest, message.versions.highest + 1):
            head = b"\x01" + uvarint(message.key) + uvarint(version)
            for _ in range(MESSAGE_COUNT):
                yield None, head + encode_random(message, version, rng)
            yield None, head + encode_random(message, version, rng) + b"more"
            yield None, head + encode_random(message, version, rng)[:-1]
    yield from [(None, b"\0\0\0"), (None, b"\x02\0\0"), (None, b"\x01\x7f\0"), (None, b""), (None, None), (b"k", None)]


def encode_random(
    message: Message, version: int, rng: random.Random, future: Sequence[tuple[int, bytes]] | None = None
) -> bytes:
    """A message of ``version`` with random fields; nullable ones may be null, tagged ones are sometimes omitted.

    ``future`` are tagged fields that no schema knows; None: one, at times.
    """
    is_flexible = version in message.flexible
    if future is None:
        future = [(1000, b"from the future")] if is_flexible and rng.random() < 0.1 else []
    return _fields(message.fields, version, rng, is_flexible, future)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(
    fields: tuple[Field, ...],
    version: int,
    rng: random.Random,
    is_flexible: bool,
    future: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """``future`` are tagged fields that no schema knows."""
    there = [field for field in fields if version in field.versions]
    out = b"".join(_field(field, version, rng, is_flexible) for field in there if field.tag is None)
    if not is_flexible:
        return out
    known = [(field.tag, _field(field, version, rng, True)) for field in there if field.tag is not None]
    tagged = sorted([*(section for section in known if rng.random() < 0.7), *future])
    return out + uvarint(len(tagged)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tagged)


def _field(field: Field, version: int, rng: random.Random, is_flexible: bool) -> bytes:
    # An optional structure is omitted, not written as null.
    is_null = version in field.nullable and (field.tag is None or field.type != "struct") and rng.random() < 0.3
    if not field.is_array:
        return _value(field, version, rng, is_flexible, is_null)
    if is_null:
        return b"\0" if is_flexible else struct.pack(">i", -1)
    count = rng.randrange(3)
    head = uvarint(count + 1) if is_flexible else struct.pack(">i", count)
    return head + b"".join(_value(field, version, rng, is_flexible, None) for _ in range(count))


def _value(field: Field, version: int, rng: random.Random, is_flexible: bool, is_null: bool | None) -> bytes:
    """``is_null`` is None for an element of an array, which cannot be null."""
    if field.type == "float64":
        return struct.pack(">d", rng.choice([0.0, 1.5, 1e7, 1e-4, 123456.789, -2e300]))
    if field.type in NUMBERS:
        form = NUMBERS[field.type]
        number = rng.choice([0, 1, rng.randrange(SMALL), int.from_bytes(rng.randbytes(form.size), "big")])
        return number.to_bytes(form.size, "big")
    if field.type == "bool":
        return bytes([rng.randrange(2)])
    if field.type == "uuid":
        return rng.choice([bytes(16), rng.randbytes(16)])
    if field.type == "struct":
        if is_null:
            return b"\xff"
        presence = b"\x01" if version in field.nullable and is_null is not None else b""
        return presence + _fields(field.fields, version, rng, is_flexible)
    is_text = field.type == "string"
    if is_null:
        return b"\0" if is_flexible else (b"\xff\xff" if is_text else b"\xff\xff\xff\xff")
    data = rng.choice(TEXTS).encode() if is_text else rng.randbytes(rng.randrange(SMALL))
    head = uvarint(len(data) + 1) if is_flexible else struct.pack(">h" if is_text else ">i", len(data))
    return head + data


def write_all(target: Path, seed: int) -> list[Run]:
    """Writes all logs below ``target``; returns what to dump, with the options."""
    runs = []
    for schema, option in DECODERS.items():
        runs.append(Run(write_log(schema, target / f"{schema}-0", seed), (option,)))
    metadata = FRAMED["metadata"]
    for name in ("00000000000000000042-0000000007.checkpoint", "bootstrap.checkpoint"):
        write_snapshot(target / "snapshot-0" / name, seed)
        runs.append(Run(target / "snapshot-0" / name, (metadata,)))
    control = target / "control-0" / "00000000000000000000.log"
    write_control_log(control, seed)
    runs.append(Run(control, ("--print-data-log",)))
    return runs


def main(target: Path) -> None:
    runs = write_all(target / NAME, SEED)
    for tree in TRANSACTION_TREES:
        # The dumps name the log by its path below the golden trees.
        copy = Path(shutil.copytree(golden_root() / tree / TRANSACTIONS, target / tree / TRANSACTIONS))
        runs.append(Run(copy / "00000000000000000000.log", (COORDINATORS["transaction"],)))
    with tempfile.TemporaryDirectory() as work:
        jars = java.fetch_jars(kafka_release=java.NEWEST_KAFKA)
        for run, printed in kafka_dumps(java.find_java(), jars, runs, Path(work)).items():
            assert not printed.threw, printed.threw
            # As in the other trees, the file's name contains the option's.
            kind = run.options[0].removeprefix("--")
            dumped = target / f"{NAME}.dumped" / f"{run.path.relative_to(target)}.{kind}.txt"
            dumped.parent.mkdir(parents=True, exist_ok=True)
            dumped.write_bytes(printed.out.replace(f"{target}/".encode(), b""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
