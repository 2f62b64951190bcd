"""What a program with a Python client library sees at SERVER: it prints a line for each step.

usage: python -m tests.interop.client_program LIBRARY SERVER

It makes a topic, writes to it, reads it with a group of one member and then of two, and cleans up.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from tests.interop.group_member import LIBRARIES, Read

TOPIC, GROUP, PARTITIONS, COUNT, FIRST_MS = "orders", "billing", 3, 30, 1_767_225_600_000
SECONDS_MAX = 60.0


class Message:
    """The record of this number that the program sends."""

    def __init__(self, number: int) -> None:
        self.key, self.value = b"key %d" % number, b"value %d" % number
        self.headers = [("number", b"%d" % number), ("none", None)]
        self.partition = number % PARTITIONS
        self.timestamp = FIRST_MS + 1000 * number


class Library(Protocol):
    """One client library; each method prints nothing and raises what the library raises."""

    # The compression of the two sends.
    codecs: tuple[str, str]

    def create(self) -> str:
        """Creates the topic; the name of the error, if one is answered."""

    def topics(self) -> list[str]: ...

    def partitions(self) -> list[int]: ...

    def send(self, messages: list[Message], codec: str) -> None: ...

    def ends(self) -> list[tuple[int, int]]:
        """The start and the end of each partition."""

    def offsets_at(self, timestamp: int) -> list[int]:
        """Of each partition, the first offset at or after a time, -1 if none."""

    def group(self) -> list[Any]:
        """What a description of the group has: its state, and the number of its members."""

    def committed(self) -> list[int]: ...

    def grow(self, count: int) -> None: ...

    def delete_group(self) -> bool:
        """Deletes the group; False if the library cannot."""

    def groups(self) -> list[str]: ...

    def delete(self) -> None: ...

    def close(self) -> None: ...


class Confluent:
    codecs = "zstd", "lz4"

    def __init__(self, server: str) -> None:
        import confluent_kafka
        import confluent_kafka.admin

        self._kafka: Any = confluent_kafka
        self._new: Any = confluent_kafka.admin
        self._server = {"bootstrap.servers": server}
        self._admin = self._new.AdminClient(self._server)
        self._consumer = self._kafka.Consumer({**self._server, "group.id": GROUP, "enable.auto.commit": False})

    def create(self) -> str:
        [made] = self._admin.create_topics([self._new.NewTopic(TOPIC, PARTITIONS, 1)]).values()
        try:
            made.result(SECONDS_MAX)
        except self._kafka.KafkaException as error:
            return str(error.args[0].name())
        return ""

    def topics(self) -> list[str]:
        return list(self._admin.list_topics(timeout=SECONDS_MAX).topics)

    def partitions(self) -> list[int]:
        return list(self._admin.list_topics(TOPIC, timeout=SECONDS_MAX).topics[TOPIC].partitions)

    def send(self, messages: list[Message], codec: str) -> None:
        producer = self._kafka.Producer({**self._server, "enable.idempotence": True, "compression.type": codec})
        for one in messages:
            producer.produce(
                TOPIC, one.value, one.key, partition=one.partition, timestamp=one.timestamp, headers=one.headers
            )
        assert producer.flush(SECONDS_MAX) == 0

    def _places(self, offset: int = -1001) -> list[Any]:
        return [self._kafka.TopicPartition(TOPIC, number, offset) for number in range(PARTITIONS)]

    def ends(self) -> list[tuple[int, int]]:
        return [self._consumer.get_watermark_offsets(place, SECONDS_MAX) for place in self._places()]

    def offsets_at(self, timestamp: int) -> list[int]:
        return [place.offset for place in self._consumer.offsets_for_times(self._places(timestamp), SECONDS_MAX)]

    def group(self) -> list[Any]:
        [described] = self._admin.describe_consumer_groups([GROUP]).values()
        found = described.result(SECONDS_MAX)
        return [found.state.name, found.partition_assignor, len(found.members)]

    def committed(self) -> list[int]:
        return [place.offset for place in self._consumer.committed(self._places(), SECONDS_MAX)]

    def grow(self, count: int) -> None:
        for done in self._admin.create_partitions([self._new.NewPartitions(TOPIC, count)]).values():
            done.result(SECONDS_MAX)

    def delete_group(self) -> bool:
        for done in self._admin.delete_consumer_groups([GROUP]).values():
            done.result(SECONDS_MAX)
        return True

    def groups(self) -> list[str]:
        return [group.group_id for group in self._admin.list_consumer_groups().result(SECONDS_MAX).valid]

    def delete(self) -> None:
        for done in self._admin.delete_topics([TOPIC]).values():
            done.result(SECONDS_MAX)

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    codecs = "gzip", ""

    def __init__(self, server: str) -> None:
        import kafka
        import kafka.admin
        import kafka.errors

        self._kafka: Any = kafka
        self._errors: Any = kafka.errors
        self._new: Any = kafka.admin
        self._server = server
        self._admin: Any = kafka.KafkaAdminClient(bootstrap_servers=server)
        self._consumer: Any = kafka.KafkaConsumer(bootstrap_servers=server, group_id=GROUP, enable_auto_commit=False)
        # Version 3 has other names.
        self._is_new = hasattr(self._admin, "list_groups")

    def create(self) -> str:
        try:
            self._admin.create_topics([self._new.NewTopic(TOPIC, PARTITIONS, 1)])
        except self._errors.KafkaError as error:
            return type(error).__name__
        return ""

    def topics(self) -> list[str]:
        return list(self._admin.list_topics())

    def partitions(self) -> list[int]:
        return sorted(self._fresh().partitions_for_topic(TOPIC) or ())

    def _fresh(self) -> Any:
        """Metadata that is not remembered."""
        self._consumer.close(autocommit=False)
        self._consumer = self._kafka.KafkaConsumer(
            bootstrap_servers=self._server, group_id=GROUP, enable_auto_commit=False
        )
        return self._consumer

    def send(self, messages: list[Message], codec: str) -> None:
        producer = self._kafka.KafkaProducer(bootstrap_servers=self._server, compression_type=codec or None, acks="all")
        sent = [
            producer.send(
                TOPIC, one.value, one.key, one.headers[:1], partition=one.partition, timestamp_ms=one.timestamp
            )
            for one in messages
        ]
        for each in sent:
            each.get(SECONDS_MAX)
        producer.close()

    def _places(self) -> list[Any]:
        return [self._kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]

    def ends(self) -> list[tuple[int, int]]:
        starts, ends = self._consumer.beginning_offsets(self._places()), self._consumer.end_offsets(self._places())
        return [(starts[place], ends[place]) for place in self._places()]

    def offsets_at(self, timestamp: int) -> list[int]:
        found = self._consumer.offsets_for_times(dict.fromkeys(self._places(), timestamp))
        return [-1 if found[place] is None else found[place].offset for place in self._places()]

    def group(self) -> list[Any]:
        if self._is_new:
            found = self._admin.describe_groups([GROUP])[GROUP]
            return [found["group_state"], found["protocol_data"], len(found["members"])]
        [found] = self._admin.describe_consumer_groups([GROUP])
        return [found.state, found.protocol, len(found.members)]

    def committed(self) -> list[int]:
        return [self._consumer.committed(place) for place in self._places()]

    def grow(self, count: int) -> None:
        self._admin.create_partitions({TOPIC: self._new.NewPartitions(count)})

    def delete_group(self) -> bool:
        delete = self._admin.delete_groups if self._is_new else self._admin.delete_consumer_groups
        delete([GROUP])
        return True

    def groups(self) -> list[str]:
        if self._is_new:
            return [group["group_id"] for group in self._admin.list_groups()]
        return [name for name, _ in self._admin.list_consumer_groups()]

    def delete(self) -> None:
        self._admin.delete_topics([TOPIC])

    def close(self) -> None:
        self._consumer.close(autocommit=False)
        self._admin.close()


class AioKafka:
    codecs = "gzip", ""

    def __init__(self, server: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = server

        async def start() -> tuple[Any, Any, Any, Any]:
            import aiokafka
            import aiokafka.admin

            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=server)
            await admin.start()
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=server, group_id=GROUP, enable_auto_commit=False)
            await consumer.start()
            return aiokafka, aiokafka.admin, admin, consumer

        self._kafka, self._new, self._admin, self._consumer = self._run(start())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)

    def create(self) -> str:
        import aiokafka.errors

        answer = self._run(self._admin.create_topics([self._new.NewTopic(TOPIC, PARTITIONS, 1)]))
        [(_, code, *_)] = answer.topic_errors
        return str(aiokafka.errors.for_code(code).__name__) if code else ""

    def topics(self) -> list[str]:
        return list(self._run(self._admin.list_topics()))

    def partitions(self) -> list[int]:
        [found] = self._run(self._admin.describe_topics([TOPIC]))
        return [each["partition"] for each in found["partitions"]]

    def send(self, messages: list[Message], codec: str) -> None:
        async def send() -> None:
            producer = self._kafka.AIOKafkaProducer(
                bootstrap_servers=self._server, compression_type=codec or None, enable_idempotence=True
            )
            await producer.start()
            try:
                for one in messages:
                    await producer.send(
                        TOPIC,
                        one.value,
                        one.key,
                        partition=one.partition,
                        timestamp_ms=one.timestamp,
                        headers=one.headers,
                    )
                await producer.flush()
            finally:
                await producer.stop()

        self._run(send())

    def _places(self) -> list[Any]:
        return [self._kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]

    def ends(self) -> list[tuple[int, int]]:
        starts = self._run(self._consumer.beginning_offsets(self._places()))
        ends = self._run(self._consumer.end_offsets(self._places()))
        return [(starts[place], ends[place]) for place in self._places()]

    def offsets_at(self, timestamp: int) -> list[int]:
        found = self._run(self._consumer.offsets_for_times(dict.fromkeys(self._places(), timestamp)))
        return [-1 if found[place] is None else found[place].offset for place in self._places()]

    def group(self) -> list[Any]:
        [answer] = self._run(self._admin.describe_consumer_groups([GROUP]))
        [(_, _, state, _, protocol, members, *_)] = answer.groups
        return [state, protocol, len(members)]

    def committed(self) -> list[int]:
        return [self._run(self._consumer.committed(place)) for place in self._places()]

    def grow(self, count: int) -> None:
        self._run(self._admin.create_partitions({TOPIC: self._new.NewPartitions(count)}))

    def delete_group(self) -> bool:
        return False

    def groups(self) -> list[str]:
        return [name for name, _ in self._run(self._admin.list_consumer_groups())]

    def delete(self) -> None:
        self._run(self._admin.delete_topics([TOPIC]))

    def close(self) -> None:
        self._run(self._consumer.stop())
        self._run(self._admin.close())


PROGRAMS: dict[str, Callable[[str], Library]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


class Member:
    """A member of the group, in a thread of its own: most libraries wait for a rebalance within a poll."""

    def __init__(self, library: str, server: str) -> None:
        self.owned_count = 0
        self.records: list[Read] = []
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(library, server))
        self._thread.start()

    def _run(self, library: str, server: str) -> None:
        try:
            member = LIBRARIES[library](server, GROUP, TOPIC, None)
            while not self._over.is_set():
                self.records += member.poll()
                self.owned_count = len(list(member.partitions()))
            member.close()
        except BaseException as failure:
            self._failure = failure

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        self._over.set()
        self._thread.join()
        self.check()


def until(what: str, is_so: Callable[[], bool], *members: Member) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        for member in members:
            member.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SECONDS_MAX:g} s: {what}")
        time.sleep(0.02)


def steps(name: str, server: str) -> Iterator[tuple[Any, ...]]:
    library = PROGRAMS[name](server)

    def topics() -> list[str]:
        return sorted(each for each in library.topics() if not each.startswith("__"))

    def send(first: int, codec: str) -> None:
        library.send([Message(number) for number in range(first, first + COUNT)], codec)

    yield "created", library.create()
    yield "created again", library.create()
    until("the topic is there", lambda: topics() == [TOPIC])
    yield "partitions", sorted(library.partitions())
    send(0, library.codecs[0])
    yield "ends", library.ends()
    yield "offsets at a time", library.offsets_at(FIRST_MS + 10_500), library.offsets_at(FIRST_MS + 10**9)

    one = Member(name, server)
    until("all is read", lambda: len(one.records) >= COUNT, one)
    yield "alone", one.owned_count
    two = Member(name, server)
    until(
        "both have a share",
        lambda: one.owned_count + two.owned_count == PARTITIONS and 0 < one.owned_count < PARTITIONS,
        one,
        two,
    )
    yield "shared", sorted([one.owned_count, two.owned_count])
    send(COUNT, library.codecs[1])
    until("all is read", lambda: len(one.records) + len(two.records) >= 2 * COUNT, one, two)
    yield "both have read", bool(one.records), bool(two.records)
    for record in sorted(one.records + two.records, key=lambda record: record[:2]):
        yield "read", *record
    yield "group", *library.group()
    two.leave()
    until("one has all", lambda: one.owned_count == PARTITIONS, one)
    yield "alone again", one.owned_count
    one.leave()
    until("no member is left", lambda: library.group()[-1] == 0)
    yield "left", *library.group()
    yield "committed", library.committed()

    library.grow(PARTITIONS + 1)
    until("it has grown", lambda: len(library.partitions()) == PARTITIONS + 1)
    yield "grown", sorted(library.partitions())
    yield "group is deleted", library.delete_group(), library.groups()
    library.delete()
    until("the topic is gone", lambda: not topics())
    yield "topics", topics()
    library.close()


def main(library: str, server: str) -> None:
    for step in steps(library, server):
        print(*step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
