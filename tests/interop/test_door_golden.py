"""Directories that brokers wrote, served read-only: clients read what Kafka's consumer read, and no file changes.

Also at damage: no damaged batch arrives at a client that checks nothing, and the log of the door says where it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from kstore import TopicPartition
from tests.golden.test_golden_damage import SOURCES, batch_bounds, lost_offsets, offsets_of, whole_records
from tests.support.harness.golden_data import golden_partitions, golden_root
from tools.interop.records import Consumed, Row, read_consumed

pytestmark = pytest.mark.interop

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
SECONDS_MAX = 60.0
NO_TIME = "NoTimestampType"
TIME_TYPES = {None: NO_TIME, 0: "CreateTime", 1: "LogAppendTime"}

Found = dict[TopicPartition, Consumed]
# Reads partitions to their ends, or to so many records of each as are wanted: server, isolation, wanted.
Reader = Callable[[str, str, Mapping[TopicPartition, int]], Found]


def with_confluent_kafka(server: str, isolation: str, wanted: Mapping[TopicPartition, int]) -> Found:
    library = pytest.importorskip("confluent_kafka")
    consumer = library.Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "check.crcs": False,
        }
    )
    places = {owner: library.TopicPartition(owner.topic, owner.partition) for owner in wanted}
    found: Found = {}
    for owner, place in places.items():
        begin, end = consumer.get_watermark_offsets(place, SECONDS_MAX)
        found[owner] = Consumed(begin, end, [])
        place.offset = begin
    consumer.assign(list(places.values()))
    deadline = time.monotonic() + SECONDS_MAX
    while any(len(found[owner].rows) < count for owner, count in wanted.items()) and time.monotonic() < deadline:
        for one in consumer.consume(5000, 0.2):
            if one.error() is None:
                found[TopicPartition(one.topic(), one.partition())].rows.append(_confluent_row(library, one))
    # What must not come would come now.
    assert not [one for one in consumer.consume(5000, 0.5) if one.error() is None]
    consumer.close()
    return found


def _confluent_row(library: Any, one: Any) -> Row:
    kind, when = one.timestamp()
    types = {
        library.TIMESTAMP_NOT_AVAILABLE: NO_TIME,
        library.TIMESTAMP_CREATE_TIME: "CreateTime",
        library.TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime",
    }
    epoch = one.leader_epoch()
    return Row(
        one.offset(),
        # Of format 0, it shows another value for the time that is not there.
        -1 if types[kind] == NO_TIME else when,
        types[kind],
        -1 if epoch is None else epoch,
        one.key(),
        one.value(),
        tuple(one.headers() or ()),
    )


def with_aiokafka(server: str, isolation: str, wanted: Mapping[TopicPartition, int]) -> Found:
    library = pytest.importorskip("aiokafka")

    async def read() -> Found:
        consumer = library.AIOKafkaConsumer(
            bootstrap_servers=server, isolation_level=isolation, auto_offset_reset="none", check_crcs=False
        )
        await consumer.start()
        try:
            places = {owner: library.TopicPartition(*owner) for owner in wanted}
            consumer.assign(list(places.values()))
            begins = await consumer.beginning_offsets(list(places.values()))
            ends = await consumer.end_offsets(list(places.values()))
            for place in places.values():
                consumer.seek(place, begins[place])
            found = {owner: Consumed(begins[place], ends[place], []) for owner, place in places.items()}
            deadline = time.monotonic() + SECONDS_MAX
            while any(len(found[owner].rows) < count for owner, count in wanted.items()):
                assert time.monotonic() < deadline, f"not within {SECONDS_MAX:g} s"
                for place, records in (await consumer.getmany(timeout_ms=200)).items():
                    found[TopicPartition(*place)].rows.extend(map(_aiokafka_row, records))
            assert not await consumer.getmany(timeout_ms=500)
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


def _aiokafka_row(one: Any) -> Row:
    kind = TIME_TYPES[one.timestamp_type]
    when = -1 if kind == NO_TIME else one.timestamp
    return Row(one.offset, when, kind, NO_EPOCH, one.key, one.value, tuple(one.headers))


# aiokafka does not show the epochs of records, and refuses lz4 of format 0.
NO_EPOCH = -2
UNREADABLE: dict[Reader, set[TopicPartition]] = {
    with_aiokafka: {TopicPartition("v0-lz4", 0), TopicPartition("upgraded", 0)}
}
READERS = [with_confluent_kafka, with_aiokafka]


class Served(NamedTuple):
    """A tree that the door at ``server`` serves."""

    tree: str
    server: str


def state_of(root: Path) -> dict[str, Any]:
    """The time of everything below ``root``, and the hash of each file."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None,
        )
        for path in [root, *sorted(root.rglob("*"))]
    }


@contextmanager
def served(tree: str) -> Iterator[Served]:
    """A door to a tree, of which nothing has changed at the end."""
    root = golden_root() / tree
    before = state_of(root)
    with kstore.open(root, read_only=True) as store, kstore.Door(store, port=0) as door:
        yield Served(tree, door.bootstrap_servers)
    assert state_of(root) == before


@pytest.fixture(scope="module", params=["clean", "crashed", "recovered", "old", "v1.1.1"])
def whole(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(request.param) as place:
        yield place


def expected_of(tree: str, isolation: str) -> Found:
    """What a consumer read at a broker, of each partition."""
    found = {}
    folder = golden_root() / f"{tree}.consumed"
    for path in folder.glob("*.jsonl"):
        name = path.name.removesuffix(".jsonl")
        if not name.endswith(f".{COMMITTED}"):
            committed = path.with_name(f"{name}.{COMMITTED}.jsonl")
            topic, _, number = name.rpartition("-")
            found[TopicPartition(topic, int(number))] = read_consumed(
                committed if isolation == COMMITTED and committed.exists() else path
            )
    return found


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
@pytest.mark.parametrize("read", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_client_reads_what_the_consumer_of_a_broker_read(whole: Served, read: Reader, isolation: str) -> None:
    expected = expected_of(whole.tree, isolation)
    for owner in UNREADABLE.get(read, ()):
        expected.pop(owner, None)
    found = read(whole.server, isolation, {owner: len(one.rows) for owner, one in expected.items()})
    assert found.keys() == expected.keys()
    for owner, consumed in expected.items():
        if read is with_aiokafka:
            consumed = consumed._replace(rows=[row._replace(leader_epoch=NO_EPOCH) for row in consumed.rows])
        assert found[owner] == consumed, owner


class Damage(NamedTuple):
    """What is left of a damaged partition until its first damaged batch, and the offset, file and position of that."""

    offsets: list[int]
    first: int = -1
    path: Path | None = None
    position: int = -1


def damage_of(partition: str) -> Damage:
    """By comparison with the whole one."""
    directory, whole = (
        golden_root() / "damaged" / partition,
        golden_root() / "clean" / SOURCES.get(partition, "rolled-0"),
    )
    records = whole_records(whole.name)
    offsets: list[int] = []
    for path in sorted(directory.glob("*.log")):
        original, here = (whole / path.name).read_bytes(), path.read_bytes()
        lost = lost_offsets(original, here)
        for start, _ in batch_bounds(original):
            batch = offsets_of(original, start)
            if lost.intersection(batch):
                return Damage(offsets, batch[0], path, start)
            offsets += [offset for offset in batch if offset in records]
    return Damage(offsets)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_client_that_checks_nothing_gets_no_damaged_batch(read: Reader, caplog: pytest.LogCaptureFixture) -> None:
    damages = {TopicPartition(name[:-2], 0): damage_of(name) for name in golden_partitions("damaged")}
    with served("damaged") as place:
        found = read(place.server, UNCOMMITTED, {owner: len(one.offsets) for owner, one in damages.items()})
    said = [record.getMessage() for record in caplog.records if "meets damage" in record.getMessage()]
    for owner, damage in damages.items():
        records = whole_records(SOURCES.get(f"{owner.topic}-0", "rolled-0"))
        assert [(row.offset, row.key, row.value) for row in found[owner].rows] == [
            (offset, records[offset].key, records[offset].value) for offset in damage.offsets
        ], owner
        lines = [line for line in said if line.startswith(f"{owner.topic}-0: ")]
        # Damage after the last whole batch is not part of a log.
        assert bool(lines) == (0 <= damage.first < found[owner].end), owner
        for line in lines:
            assert str(damage.path) in line
            assert f"at position {damage.position};" in line
