"""Client libraries at a door: what one makes and sends, all read; also from a store that is only read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore

pytestmark = pytest.mark.interop

TOPIC, PARTITIONS, COUNT = "orders", 3, 300
SECONDS_MAX = 60.0
VALUES = [b"value %d" % number for number in range(COUNT)]


def with_confluent_kafka(server: str) -> list[bytes]:
    library = pytest.importorskip("confluent_kafka")
    consumer = library.Consumer({"bootstrap.servers": server, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([library.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < COUNT and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(COUNT, 0.5) if not message.error()]
    consumer.close()
    return found


def with_kafka_python(server: str) -> list[bytes]:
    library = pytest.importorskip("kafka")
    consumer = library.KafkaConsumer(
        bootstrap_servers=server, group_id=None, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([library.TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < COUNT and time.monotonic() < deadline:
        found += [record.value for some in consumer.poll(500).values() for record in some]
    consumer.close()
    return found


def with_aiokafka(server: str) -> list[bytes]:
    library = pytest.importorskip("aiokafka")

    async def read() -> list[bytes]:
        consumer = library.AIOKafkaConsumer(bootstrap_servers=server, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([library.TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
            found: list[bytes] = []
            deadline = time.monotonic() + SECONDS_MAX
            while len(found) < COUNT and time.monotonic() < deadline:
                found += [record.value for some in (await consumer.getmany(timeout_ms=500)).values() for record in some]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


@pytest.mark.parametrize("read", [with_confluent_kafka, with_kafka_python, with_aiokafka])
@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.filterwarnings("ignore")
def test_each_library_reads_what_librdkafka_has_created_and_sent(
    read: Callable[[str], list[bytes]], read_only: bool, tmp_path: Path
) -> None:
    library = pytest.importorskip("confluent_kafka")
    admin_module = pytest.importorskip("confluent_kafka.admin")
    with kstore.open(tmp_path, durability="os") as store, kstore.Door(store, port=0) as door:
        server = {"bootstrap.servers": door.bootstrap_servers}
        admin = admin_module.AdminClient(server)
        for made in admin.create_topics([admin_module.NewTopic(TOPIC, PARTITIONS, 3)]).values():
            made.result(SECONDS_MAX)
        producer = library.Producer({**server, "enable.idempotence": True, "compression.type": "zstd"})
        for value in VALUES:
            producer.produce(TOPIC, value, key=value)
        assert producer.flush(SECONDS_MAX) == 0
        del producer, admin
        if not read_only:
            assert sorted(read(door.bootstrap_servers)) == sorted(VALUES)
    if read_only:
        before = sorted(tmp_path.rglob("*"))
        with kstore.open(tmp_path, read_only=True) as store, kstore.Door(store, port=0) as door:
            assert sorted(read(door.bootstrap_servers)) == sorted(VALUES)
        assert sorted(tmp_path.rglob("*")) == before
