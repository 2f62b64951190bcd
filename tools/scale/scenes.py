"""What the operations are tried against: each scene has ``count`` of one thing, and names what users do beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import kstore
from kstore.upkeep.verify import verify_log

Work = Callable[[], object]
VALUE = b"v" * 100
# The least that holds ten records of a hundred bytes.
SEGMENT_BYTES = 1_200


class Scene(NamedTuple):
    """``make`` gives the operations on a path where there are ``counts[i]`` of ``things``, closed afterwards."""

    things: str
    counts: tuple[int, int, int]
    make: Callable[[Path, int], Any]


def _log_works(log: kstore.Log, path: Path) -> dict[str, Work]:
    middle = (log.start_offset + log.end_offset) // 2
    found = log.get(middle)
    time_ms = 0 if found is None else found.timestamp

    def reopened() -> None:
        log_of = kstore.Log(path, read_only=True)
        log_of.close()

    view = kstore.Log(path, read_only=True)
    return {
        "Log.append": lambda: log.append(VALUE),
        "Log.append_many of 10": lambda: log.append_many([VALUE] * 10),
        "Log.get": lambda: log.get(middle),
        "Log.read, first record": lambda: next(iter(log.read(middle))),
        "Log.tail(10)": lambda: list(log.tail(10)),
        "Log.offset_for_time, again": lambda: log.offset_for_time(time_ms),
        "Log.end_offset": lambda: log.end_offset,
        "Log.flush": log.flush,
        "Log.roll": lambda: (log.append(VALUE), log.roll()),
        "Log.truncate_to, the last record": lambda: log.truncate_to(log.end_offset - 1),
        "Log.delete_records, the first one": lambda: log.delete_records(log.start_offset + 1),
        "Log.apply_retention": log.apply_retention,
        "Log.metrics": log.metrics,
        "Log.producers": log.producers,
        "Log.last_stable_offset": lambda: log.last_stable_offset,
        "Log, read-only, open and close": reopened,
        "Log, read-only: end_offset": lambda: view.end_offset,
        "Log, read-only: get": lambda: view.get(middle),
        "Log.verify": lambda: verify_log(path),
    }


@contextmanager
def _records(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.Log(path, durability="os") as log:
        for _ in range(count // 100):
            log.append_many([VALUE] * 100)
        yield _log_works(log, path)


@contextmanager
def _segments(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.Log(path, durability="os", segment_bytes=SEGMENT_BYTES) as log:
        for _ in range(count):
            log.append_many([VALUE] * 10)
        yield _log_works(log, path)


@contextmanager
def _other_files(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.Log(path, durability="os") as log:
        log.append_many([VALUE] * 100)
        for number in range(count):
            (path / f"other-{number}").touch()
        yield _log_works(log, path)


def _store_works(store: kstore.Store) -> dict[str, Work]:
    producer = store.producer(linger_ms=0)
    consumer = store.consumer("orders", group="billing")
    names = iter(range(10**9))
    consumer.poll(max_records=100_000)
    consumer.commit()

    def send() -> None:
        producer.send("orders", VALUE, partition=0)
        producer.flush()

    def commit() -> None:
        store.log("orders", 0).append(VALUE)
        consumer.poll()
        consumer.commit()

    return {
        "Store.log": lambda: store.log("orders", 0),
        "Store.log(...).append": lambda: store.log("orders", 0).append(VALUE),
        "Store.topics": store.topics,
        "Store.create_topic": lambda: store.create_topic(f"new-{next(names)}"),
        "Store.metrics": store.metrics,
        "Store.apply_retention": store.apply_retention,
        "Producer.send and flush, one record": send,
        "Consumer.poll, nothing new": consumer.poll,
        "Consumer.poll, one record": lambda: (store.log("orders", 0).append(VALUE), consumer.poll()),
        "Consumer.commit, one partition": commit,
        "Consumer.lag": consumer.lag,
    }


@contextmanager
def _partitions(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic("orders", count)
        for number in range(count):
            store.log("orders", number).append(VALUE)
        yield _store_works(store)


@contextmanager
def _topics(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        for number in range(count):
            store.create_topic(f"topic-{number}")
        store.create_topic("orders")
        yield _store_works(store)


@contextmanager
def _groups(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic("orders")
        store.log("orders").append(VALUE)
        for number in range(count):
            with store.consumer("orders", group=f"group-{number}") as consumer:
                consumer.poll()
                consumer.commit()
        yield _store_works(store)


@contextmanager
def _members(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic("orders", 2 * count)
        members = [store.consumer("orders", group="billing") for _ in range(count)]
        for member in members:
            member.poll()
        yield {"Consumer.poll, nothing new, in a group": members[0].poll} | {
            name: work for name, work in _store_works(store).items() if name.startswith("Store.log(")
        }


@contextmanager
def _finished_transactions(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic("orders")
        with store.producer(transactional_id="one") as producer:
            producer.init_transactions()
            for number in range(count):
                producer.begin_transaction()
                producer.send("orders", VALUE)
                if number % 2:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
        yield _transaction_works(store) | _store_works(store)


@contextmanager
def _open_transactions(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic("orders")
        producers = [store.producer(transactional_id=f"open-{number}", linger_ms=0) for number in range(count)]
        for producer in producers:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", VALUE)
            producer.flush()
        yield _transaction_works(store) | _store_works(store)
        for producer in producers:
            producer.abort_transaction()


@contextmanager
def _producers(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic("orders")
        for _ in range(count):
            with store.producer(enable_idempotence=True) as producer:
                producer.send("orders", VALUE)
        yield _transaction_works(store) | _store_works(store)


def _transaction_works(store: kstore.Store) -> dict[str, Work]:
    producer = store.producer(transactional_id="mine", linger_ms=0)
    producer.init_transactions()
    log = store.log("orders")

    def transaction() -> None:
        producer.begin_transaction()
        producer.send("orders", VALUE)
        producer.commit_transaction()

    return {
        "a transaction of one record": transaction,
        "Log.last_stable_offset": lambda: log.last_stable_offset,
        "a committed read of the last record": lambda: next(
            iter(log.read(max(log.last_stable_offset - 2, 0), isolation_level="read_committed")), None
        ),
    }


def _queue_works(queue: Any) -> dict[str, Work]:
    return {
        "Queue.put": lambda: queue.put(VALUE),
        "Queue.get and ack": lambda: queue.get().ack(),
        "Queue.get_many(10) and ack": lambda: queue.ack_many(queue.get_many(10)),
        "Queue.qsize": queue.qsize,
        "Queue.stats": queue.stats,
        "Queue.peek": queue.peek,
        "Queue.leased": queue.leased,
    }


@contextmanager
def _queue(path: Path, count: int, take: Callable[[Any], object]) -> Iterator[Mapping[str, Work]]:
    """A queue from which ``take`` has taken ``count`` items, a hundred a call, and in which more wait."""
    with kstore.open(path, durability="os", background=False) as store:
        queue = store.queue("jobs")
        queue.put_many([VALUE] * (count + 1_000))
        for _ in range(count // 100):
            take(queue)
        yield _queue_works(queue)


@contextmanager
def _waiting_items(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path, durability="os", background=False) as store:
        queue = store.queue("jobs")
        queue.put_many([VALUE] * count)
        yield _queue_works(queue)


def _fail(queue: Any) -> None:
    for job in queue.get_many(100):
        job.fail()


@contextmanager
def _damaged_places(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.Log(path / "sound", durability="os") as log:
        for _ in range(2 * count):
            log.append_many([VALUE] * 10)
    shutil.copytree(path / "sound", path / "log")
    file = next((path / "log").glob("*.log"))
    data = bytearray(file.read_bytes())
    size = len(data) // (2 * count)
    for number in range(count):
        data[2 * number * size + size // 2] ^= 1
    file.write_bytes(data)
    log = kstore.Log(path / "log", read_only=True)
    end = log.end_offset
    yield {
        "Log, read-only: get": lambda: log.get(end - 1),
        "Log, read-only: end_offset": lambda: log.end_offset,
        "Log, read-only: tail(10)": lambda: list(log.tail(10)),
        "Log.verify": lambda: verify_log(path / "log"),
    }
    log.close()


@contextmanager
def _backups(path: Path, count: int) -> Iterator[Mapping[str, Work]]:
    with kstore.open(path / "data", durability="os", background=False) as store:
        store.create_topic("orders")
        log = store.log("orders")
        for _ in range(count):
            log.append(VALUE)
            store.backup(path / "target")

        def view() -> None:
            kstore.open(path / "target", read_only=True).close()

        yield {
            "Store.backup, one record more": lambda: (log.append(VALUE), store.backup(path / "target")),
            "Store, read-only, of the last backup": view,
        }


SCENES: tuple[Scene, ...] = (
    Scene("records", (10_000, 100_000, 1_000_000), _records),
    Scene("segments", (100, 1_000, 10_000), _segments),
    Scene("other files in a log's directory", (100, 1_000, 10_000), _other_files),
    Scene("partitions", (20, 200, 2_000), _partitions),
    Scene("topics", (20, 200, 2_000), _topics),
    Scene("groups", (10, 100, 1_000), _groups),
    Scene("members of a group", (2, 20, 200), _members),
    Scene("finished transactions", (100, 1_000, 10_000), _finished_transactions),
    Scene("open transactions", (5, 50, 500), _open_transactions),
    Scene("idempotent producers", (10, 100, 1_000), _producers),
    Scene("items that wait in a queue", (10_000, 100_000, 1_000_000), _waiting_items),
    Scene(
        "items that were acked",
        (10_000, 100_000, 1_000_000),
        partial(_queue, take=lambda queue: queue.ack_many(queue.get_many(100))),
    ),
    Scene("leases", (1_000, 10_000, 100_000), partial(_queue, take=lambda queue: queue.get_many(100))),
    Scene("dead letters", (100, 1_000, 10_000), partial(_queue, take=_fail)),
    Scene("damaged places", (10, 100, 1_000), _damaged_places),
    Scene("earlier backups", (5, 50, 500), _backups),
)
