"""A member of a group, with one of the client libraries: ``group_member.py LIBRARY SERVER GROUP TOPIC [INSTANCE]``.

It prints a line for each change of its partitions (``has 0 1``) and for each record (``read 0 17``), commits after each
poll, and leaves when its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

POLL_MS, FIRST_POLL_MS, HEARTBEAT_MS = 200, 2000, 200


class Read(NamedTuple):
    """What a member sees of a record; ``timestamp`` in ms."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


class Member(Protocol):
    def poll(self) -> list[Read]:
        """New records, which are then committed."""

    def partitions(self) -> Iterable[int]: ...

    def close(self) -> None: ...


def read_of(found: Any) -> list[Read]:
    """What kafka-python's poll returned, or aiokafka's."""
    return [
        Read(one.partition, one.offset, one.key, one.value, list(one.headers), one.timestamp)
        for part in found.values()
        for one in part
    ]


class KafkaPython:
    def __init__(self, server: str, group: str, topic: str, instance: str | None) -> None:
        from kafka import KafkaConsumer

        more = {} if instance is None else {"group_instance_id": instance}
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=server,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **more,
        )
        # kafka-python 3.0 forgets an assignment, and sends no heartbeats, if a poll ends while it joins again because
        # the topic's partitions have become known: so they are known before, and its first poll is long. What it knows
        # of a topic that it does not subscribe to yet does not count.
        self._consumer.subscribe([topic])
        self._consumer.partitions_for_topic(topic)

    def poll(self) -> list[Read]:
        from kafka.errors import KafkaError

        found = self._consumer.poll(POLL_MS if self._consumer.assignment() else FIRST_POLL_MS)
        records = read_of(found)
        if records:
            try:
                self._consumer.commit()
            except KafkaError:
                return []  # a rebalance came first: whoever gets the partition reads them again
        return records

    def partitions(self) -> Iterable[int]:
        return (owner.partition for owner in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class Confluent:
    def __init__(self, server: str, group: str, topic: str, instance: str | None) -> None:
        from confluent_kafka import Consumer

        more = {} if instance is None else {"group.instance.id": instance}
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": server,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                **more,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[Read]:
        from confluent_kafka import KafkaException

        found = self._consumer.consume(100, POLL_MS / 1000)
        records = [
            Read(one.partition(), one.offset(), one.key(), one.value(), one.headers() or [], one.timestamp()[1])
            for one in found
            if one.error() is None
        ]
        if records:
            try:
                self._consumer.commit(asynchronous=False)
            except KafkaException:
                return []
        return records

    def partitions(self) -> Iterable[int]:
        return (owner.partition for owner in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


class AioKafka:
    def __init__(self, server: str, group: str, topic: str, instance: str | None) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

        async def start() -> Any:
            from aiokafka import AIOKafkaConsumer

            more = {} if instance is None else {"group_instance_id": instance}
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=server,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=10_000,
                heartbeat_interval_ms=HEARTBEAT_MS,
                **more,
            )
            await consumer.start()
            return consumer

        self._consumer = self._run(start())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def poll(self) -> list[Read]:
        from aiokafka.errors import KafkaError

        found = self._run(self._consumer.getmany(timeout_ms=POLL_MS))
        records = read_of(found)
        if records:
            try:
                self._run(self._consumer.commit())
            except KafkaError:
                return []
        return records

    def partitions(self) -> Iterable[int]:
        return (owner.partition for owner in self._consumer.assignment())

    def close(self) -> None:
        self._run(self._consumer.stop())


LIBRARIES: dict[str, Callable[[str, str, str, str | None], Member]] = {
    "kafka-python": KafkaPython,
    "confluent-kafka": Confluent,
    "aiokafka": AioKafka,
}


def main(library: str, server: str, group: str, topic: str, instance: str | None = None) -> None:
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    member = LIBRARIES[library](server, group, topic, instance)
    had: list[int] = []
    while not over.is_set():
        records = member.poll()
        if (has := sorted(member.partitions())) != had:
            had = has
            print("has", *has, flush=True)
        for record in records:
            print("read", record.partition, record.offset, flush=True)
    member.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
