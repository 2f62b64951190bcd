"""kstore beside a live Kafka broker on the same disk, and its clients: Kafka's own tools, confluent-kafka, aiokafka.

Run as ``python -m tools.bench.broker``; it needs a Java development kit and Maven. The start of a JVM, its first
records, and the time to join a group do not count. All are measured in turn, round by round; a figure is the median.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kstore
from tools.bench.door_lines import beside_a_broker
from tools.bench.logs import VALUE_SIZE, values
from tools.bench.machine import machine_words
from tools.bench.measure import MILLION, all_in_turn, percentile, rows_as_table, seconds_of
from tools.interop import java
from tools.interop.broker import Broker

TOPIC = "orders"
RECORDS = 2_000_000
# Until a JVM has compiled its code.
WARM_RECORDS = 500_000
BULK = 1_000
FLUSH_SECONDS = 120
# Unlike the tests' JVMs, these run long enough for the optimising compiler.
JVM_OPTIONS = ("-Xmx1g", "-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
PRODUCED = re.compile(r"([\d.]+) records/sec")
SECONDS_MAX = 300

Measure = Callable[[], float]


class Clients:
    """The clients of one running broker; each method returns records a second."""

    def __init__(self, broker: Broker, java_path: str, jars: Path) -> None:
        self._broker = broker
        self._tool = [java_path, *JVM_OPTIONS, "-cp", f"{jars}/*"]
        self._number = 0

    def _new_topic(self) -> str:
        self._number += 1
        name = f"{TOPIC}-{self._number}"
        self._broker.create_topics({name: {}})
        return name

    def _run(self, tool: str, *args: str) -> str:
        command = [*self._tool, f"org.apache.kafka.tools.{tool}", "--bootstrap-server", self._broker.server, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise java.ProgramError(
                f"{tool} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
            )
        return done.stdout

    def producer_performance(self) -> float:
        size = ("--record-size", str(VALUE_SIZE), "--num-records", str(RECORDS), "--warmup-records", str(WARM_RECORDS))
        how = ("--throughput", "-1", "--command-property", "acks=1")
        printed = self._run("ProducerPerformance", "--topic", self._new_topic(), *size, *how)
        return float(PRODUCED.findall(printed)[-1])

    def consumer_performance(self, topic: str) -> float:
        printed = self._run("ConsumerPerformance", "--topic", topic, "--num-records", str(RECORDS))
        head, row = ([cell.strip() for cell in line.split(",")] for line in printed.splitlines()[:2])
        found = dict(zip(head, row, strict=True))
        # Without the time until the group assigns it the partition.
        return float(found["fetch.nMsg.sec"])

    def confluent_sends(self) -> float:
        from confluent_kafka import Producer

        topic, batch = self._new_topic(), values()
        producer = Producer(
            {"bootstrap.servers": self._broker.server, "acks": 1, "queue.buffering.max.messages": 2 * RECORDS}
        )

        def work() -> None:
            for _ in range(RECORDS // BULK):
                for value in batch:
                    producer.produce(topic, value)
                producer.poll(0)
            left = producer.flush(FLUSH_SECONDS)
            assert not left, f"{left} records are not delivered"

        return RECORDS / seconds_of(work)

    def confluent_consumes(self, topic: str) -> float:
        from confluent_kafka import Consumer

        self._number += 1
        consumer = Consumer(
            {
                "bootstrap.servers": self._broker.server,
                "group.id": f"bench-{self._number}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        consumer.consume(1, FLUSH_SECONDS)  # the group has assigned it the partition
        count, started = 0, time.perf_counter()
        while count < RECORDS - BULK:  # it would wait for the last ones
            count += sum(len(message.value()) == VALUE_SIZE for message in consumer.consume(BULK, FLUSH_SECONDS))
        rate = count / (time.perf_counter() - started)
        consumer.close()
        return rate

    def aiokafka_sends(self) -> float:
        from aiokafka import AIOKafkaProducer

        topic, batch = self._new_topic(), values()
        count = RECORDS // 5  # a fifth of the speed

        async def work() -> float:
            producer = AIOKafkaProducer(bootstrap_servers=self._broker.server, acks=1)
            await producer.start()
            started = time.perf_counter()
            for _ in range(count // BULK):
                for value in batch:
                    await producer.send(topic, value)
            await producer.flush()
            rate = count / (time.perf_counter() - started)
            await producer.stop()
            return rate

        return asyncio.run(work())

    def aiokafka_consumes(self, topic: str) -> float:
        from aiokafka import AIOKafkaConsumer

        async def work() -> float:
            consumer: Any = AIOKafkaConsumer(
                topic, bootstrap_servers=self._broker.server, auto_offset_reset="earliest", group_id=None
            )
            await consumer.start()
            count, started = 0, time.perf_counter()
            while count < RECORDS // 5:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    count += len(records)
            rate = count / (time.perf_counter() - started)
            await consumer.stop()
            return rate

        return asyncio.run(work())


class Own:
    """kstore, below ``root``; each method returns records a second."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._number = 0

    def _sent(self, send: Callable[[kstore.Producer, Sequence[bytes]], object]) -> float:
        self._number += 1
        with kstore.open(self._root / f"own-{self._number}", durability="os") as store:
            store.create_topic(TOPIC)
            batch = values()
            with store.producer(acks="1") as producer:

                def work() -> None:
                    for _ in range(RECORDS // BULK):
                        send(producer, batch)
                    producer.flush()

                rate = RECORDS / seconds_of(work)
            assert store.log(TOPIC).end_offset == RECORDS
        return rate

    def sends(self) -> float:
        def send(producer: kstore.Producer, batch: Sequence[bytes]) -> None:
            for value in batch:
                producer.send(TOPIC, value)

        return self._sent(send)

    def sends_many(self) -> float:
        return self._sent(lambda producer, batch: producer.send_many(TOPIC, batch))

    def _read(self, path: Path, read: Callable[[kstore.Log], int]) -> float:
        with kstore.Log(path, read_only=True) as log:
            count = 0

            def work() -> None:
                nonlocal count
                count = read(log)

            rate = RECORDS / seconds_of(work)
            assert count == RECORDS, f"{count} records, expected {RECORDS}"
        return rate

    def records(self, path: Path) -> float:
        return self._read(path, lambda log: sum(1 for _ in log.read()))

    def values(self, path: Path) -> float:
        return self._read(path, lambda log: sum(1 for _ in log.read_values()))

    def arrow(self, path: Path) -> float:
        return self._read(path, lambda log: sum(batch.num_rows for batch in log.to_arrow_batches()))


def table(measures: dict[str, Measure], rounds: int, peer: str) -> str:
    """The median of each, and its multiple of ``peer``'s rate."""
    taken = all_in_turn(list(measures.values()), rounds=rounds)
    rates = {name: percentile(found, 0.5) for name, found in zip(measures, taken, strict=True)}
    rows = [(name, f"{rate / MILLION:.2f} M/s", f"{rate / rates[peer]:.1f}") for name, rate in rates.items()]
    return rows_as_table([("", "records", f"x {peer}"), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.broker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how many times each figure is measured (default: 3)")
    parser.add_argument("--door", action="store_true", help="only Java's tools, at kstore's door beside the broker")
    args = parser.parse_args()
    try:
        java_path, jars = java.find_java(), java.fetch_jars()
    except java.Unavailable as reason:
        sys.exit(f"no broker: {reason}")
    print(f"{RECORDS:,} records of {VALUE_SIZE} bytes, one partition, acks=1, nothing synced\n")
    with tempfile.TemporaryDirectory(prefix="kstore-bench-", dir=".") as directory:
        root = Path(directory)
        print("\n".join(f"- {what}: {which}" for what, which in machine_words(root)) + "\n", flush=True)
        if args.door:
            print(beside_a_broker(root, java_path, jars, rounds=args.rounds), flush=True)
            return
        broker, own = Broker(root, java_path, jars), Own(root)
        broker.jvm_options = JVM_OPTIONS
        broker.life_seconds_max = 3600
        with broker.running():
            clients = Clients(broker, java_path, jars)
            sends: dict[str, Measure] = {
                "ProducerPerformance": clients.producer_performance,
                "confluent-kafka": clients.confluent_sends,
                "aiokafka": clients.aiokafka_sends,
                "kstore send": own.sends,
                "kstore send_many": own.sends_many,
            }
            print(table(sends, args.rounds, "ProducerPerformance") + "\n", flush=True)
            # What ProducerPerformance wrote first, read by all.
            topic = f"{TOPIC}-1"
            path = broker.data / f"{topic}-0"
            reads: dict[str, Measure] = {
                "ConsumerPerformance": lambda: clients.consumer_performance(topic),
                "confluent-kafka": lambda: clients.confluent_consumes(topic),
                "aiokafka": lambda: clients.aiokafka_consumes(topic),
                "kstore records": lambda: own.records(path),
                "kstore values": lambda: own.values(path),
                "kstore Arrow": lambda: own.arrow(path),
            }
            print(table(reads, args.rounds, "ConsumerPerformance"), flush=True)


if __name__ == "__main__":
    main()
