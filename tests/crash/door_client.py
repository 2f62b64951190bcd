"""A Kafka client of a door in a process of its own, with librdkafka: ``door_client.py WHAT SERVER JOURNAL NAME``.

    once, often     sends numbers to the topic of that name until its input ends; ``once`` is idempotent
    member          reads both topics as a member of a group, and commits after each poll, until its input ends

All append to one file, so its lines are in the order of events::

    A <topic> <number>                          the number was acknowledged
    ask <name>                                  the member asks for what was committed
    got <name> <topic> <partition> <offset>     where it starts to read there, after the ``ask``
    R <name> <topic> <partition> <offset>       a record was handed out
    C <name> <topic> <partition> <offset>       the commit of this offset has returned
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer

TOPICS = ("once", "often")
GROUP = "g"
SENDS_PER_SECOND = 100
PAUSE_SECONDS = 0.02
# Longer than any server is away: what a producer gives up would count as a failure.
SECONDS_MAX = 300
COMMON = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "socket.timeout.ms": 5_000,
    "log_level": 0,
}

Note = Callable[[str], None]


def has_ended() -> bool:
    """Whether the standard input has ended: the test asks for the end."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def send(topic: str, server: str, note: Note) -> None:
    """Numbers from 0 on, at a steady pace."""
    producer = Producer(
        {
            **COMMON,
            "bootstrap.servers": server,
            "enable.idempotence": topic == "once",
            "acks": "all",
            "linger.ms": 2,
            "batch.size": 8 << 10,  # below the size of a segment
            "retry.backoff.ms": 10,
            "message.send.max.retries": 1_000_000,
            "message.timeout.ms": SECONDS_MAX * 1000,
            "request.timeout.ms": 5_000,
        }
    )

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise SystemExit(f"{topic}: {error}")
        note(f"A {topic} {int(message.value())}\n")

    number = 0
    while not has_ended():
        for _ in range(round(SENDS_PER_SECOND * PAUSE_SECONDS)):
            producer.produce(topic, b"%d" % number, on_delivery=delivered)
            number += 1
        producer.poll(0)
        time.sleep(PAUSE_SECONDS)
    left = producer.flush(SECONDS_MAX)
    if left:
        raise SystemExit(f"{topic}: {left} records were not acknowledged within {SECONDS_MAX} s")
    print(number)


def read(server: str, name: str, note: Note) -> None:
    """What the group assigns, each from what ``committed`` answers when it is assigned."""
    consumer = Consumer(
        {
            **COMMON,
            "bootstrap.servers": server,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 100,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
    )

    is_closing = False

    def assigned(_: Any, owners: list[Any]) -> None:
        if is_closing:
            return  # every question of a consumer that is being closed fails at once
        note(f"ask {name}\n")
        found = retried(lambda: consumer.committed(owners, timeout=5))
        for owner in found:
            if owner.error is not None:
                raise SystemExit(f"{name}: {owner.error}")
            owner.offset = 0 if owner.offset == OFFSET_INVALID else owner.offset
        note("".join(f"got {name} {owner.topic} {owner.partition} {owner.offset}\n" for owner in found))
        consumer.assign(found)

    consumer.subscribe(list(TOPICS), on_assign=assigned)
    while not has_ended():
        found = [message for message in consumer.consume(50, 0.1) if message.error() is None]
        if not found:
            continue
        note("".join(f"R {name} {one.topic()} {one.partition()} {one.offset()}\n" for one in found))
        try:
            committed = consumer.commit(asynchronous=False)
        except KafkaException:
            continue  # the server was away, or a rebalance came first
        rows = [f"C {name} {one.topic} {one.partition} {one.offset}\n" for one in committed if one.offset >= 0]
        note("".join(rows))
    is_closing = True
    consumer.close()


def retried(ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline:
                raise


if __name__ == "__main__":
    what, server, journal, name = sys.argv[1:]
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def note(lines: str) -> None:
        os.write(fd, lines.encode())

    if what == "member":
        read(server, name, note)
    else:
        send(what, server, note)
