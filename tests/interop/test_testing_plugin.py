"""``kstore.testing`` with real clients, in a project of its own: what a user's tests do, and each fault on demand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

TESTS = """
import asyncio


def test_confluent_kafka(kafka_bootstrap, kafka_store):
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    producer.produce("orders", b"3 bolts", key=b"ann")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "packers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(30)
    assert (message.error(), message.key(), message.value()) == (None, b"ann", b"3 bolts")
    consumer.commit(message, asynchronous=False)
    consumer.close()
    [record] = kafka_store.log("orders").read()
    assert (record.key, record.value) == (b"ann", b"3 bolts")


def test_kafka_python(kafka_bootstrap):
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap)
    producer.send("orders", b"3 bolts").get(30)
    producer.close()
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=kafka_bootstrap, group_id="packers", auto_offset_reset="earliest"
    )
    assert next(iter(consumer)).value == b"3 bolts"
    consumer.close()


def test_aiokafka(kafka_bootstrap):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def send_and_receive():
        async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
            await producer.send_and_wait("orders", b"3 bolts")
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=kafka_bootstrap, group_id="packers", auto_offset_reset="earliest"
        ) as consumer:
            return (await consumer.getone()).value

    assert asyncio.run(asyncio.wait_for(send_and_receive(), 60)) == b"3 bolts"


def test_a_producer_asks_again_after_an_error(kafka_bootstrap, kafka_store, kafka_faults):
    from confluent_kafka import Producer

    kafka_store.create_topic("orders")
    kafka_faults.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", count=2)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "retry.backoff.ms": 10})
    producer.produce("orders", b"3 bolts")
    assert producer.flush(30) == 0
    assert len(list(kafka_store.log("orders").read())) == 1


def test_a_lost_answer_makes_no_second_record(kafka_bootstrap, kafka_store, kafka_faults):
    from confluent_kafka import Producer

    kafka_store.create_topic("orders")
    kafka_faults.lose_next_answer("Produce", count=2)
    producer = Producer(
        {"bootstrap.servers": kafka_bootstrap, "retry.backoff.ms": 10, "enable.idempotence": True}
    )
    producer.produce("orders", b"3 bolts")
    assert producer.flush(60) == 0
    assert len(list(kafka_store.log("orders").read())) == 1


def test_a_consumer_outlives_a_silent_partition(kafka_bootstrap, kafka_store, kafka_faults):
    from confluent_kafka import Consumer, TopicPartition

    kafka_store.create_topic("orders")
    kafka_store.log("orders").append(b"3 bolts")
    kafka_faults.stop_answering("Fetch", ("orders", 0))
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "packers"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert consumer.poll(0.5) is None
    kafka_faults.clear()
    assert consumer.poll(30).value() == b"3 bolts"
    consumer.close()
"""


def test_clients_of_three_libraries_use_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["kstore.testing"]\n', encoding="utf-8")
    (tmp_path / "test_clients.py").write_text(TESTS, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
