"""Stores with producers that are to be killed: this process forks one for each request (see ``killed_writers``).

usage: python -m tests.crash.killed_producers, with one request a line on standard input: PATH DURABILITY SEED

Several threads send through one idempotent producer, on a disk that is full now and then, so that batches are retried;
one more thread runs transactions over all partitions, with offsets. The output, a line each:

    done LIFE THREAD PARTITION NUMBER:OFFSET...   these records were reported as done
    commit LIFE NUMBER, abort LIFE NUMBER         the transaction is about to end
    committed LIFE NUMBER                         the commit has returned
    failed MESSAGE, ended STATUS                  as in ``killed_writers``
"""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from kstore.errors import DiskFullError
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.producer.producer import Producer
from kstore.store import Store
from kstore.types import Durability
from tests.support.fakes.fake_fs import WRITES, FailingFs, Fault, Operation

Result = TypeVar("Result")

OUT = 1
PARTITION_COUNT = 3
SENDER_COUNT = 2
GROUP = "billing"
# The topic of the committed offsets. It is not in this store, where an open would limit them to the log's end.
ELSEWHERE = TopicPartition("elsewhere", 0)
SETTINGS: dict[str, Any] = {"segment_bytes": 16_384, "index_interval_bytes": 256, "flush_ms": 5, "flush_messages": 50}


def telling(life: int, thread: int, number: int, size: int = 0) -> bytes:
    body = b"%d:%d:%d:" % (life, thread, number)
    body += b"x" * (size - len(body))
    return b"%08x:" % crc32(body) + body


def told_of(value: bytes | None) -> tuple[int, int, int]:
    """The life, the thread and the number in a value. Raises: ValueError if it was changed."""
    checksum, _, body = (value or b"").partition(b":")
    if int(checksum, 16) != crc32(body):
        raise ValueError(f"{value!r:.80}")
    life, thread, number, _ = body.split(b":", 3)
    return int(life), int(thread), int(number)


def _say(text: str) -> None:
    # One write of a short line: a kill leaves it whole or absent.
    os.write(OUT, text.encode() + b"\n")


class UnreliableFs(FailingFs):
    """A disk that is full for one write in ``rarity``, once the store is open."""

    def __init__(self, generator: random.Random, rarity: int) -> None:
        super().__init__(SYSTEM_FS)
        self.rarity = 0
        self._later = rarity
        self._generator = generator

    def begin(self) -> None:
        self.rarity = self._later

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        is_data = operation.kind in WRITES and operation.path.endswith(".log") and "/__" not in operation.path
        if is_data and self.rarity and not self._generator.randrange(self.rarity):
            written = self._generator.choice([0, 1, len(operation.data) // 2])
            self.faults = [Fault(1, errno.ENOSPC, written=written, kinds=WRITES, suffix=operation.path)]
        return super().perform(operation, action)


def _opened(path: Path, durability: Durability, generator: random.Random) -> Store:
    fs = UnreliableFs(generator, generator.choice([3, 10, 100]))
    store = Store(path, durability=durability, fs=fs, background=False, **SETTINGS)
    topics: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("orders", PARTITION_COUNT, {}),
        ("moves", PARTITION_COUNT, {}),
        ("__consumer_offsets", 1, {"cleanup_policy": "compact"}),
    )
    for topic, count, settings in topics:
        store.create_topic(topic, count, exist_ok=True, **settings)
    fs.begin()
    return store


def _send(producer: Producer, life: int, thread: int, generator: random.Random) -> None:
    number = 0
    while True:
        partition = generator.randrange(PARTITION_COUNT)
        count = generator.choice([1, 3, 40])
        values = [telling(life, thread, number + at, generator.choice([0, 30, 400])) for at in range(count)]
        if generator.random() < 0.3:
            deliveries = list(producer.send_many("orders", values, partition=partition))
        else:
            deliveries = [producer.send("orders", value, partition=partition) for value in values]
        done = [f"{number + at}:{delivery.result().offset}" for at, delivery in enumerate(deliveries)]
        _say(f"done {life} {thread} {partition} {' '.join(done)}")
        number += count


def _move(producer: Producer, life: int, generator: random.Random) -> None:
    producer.init_transactions()
    number = 0
    while True:
        number += 1
        producer.begin_transaction()
        for _ in range(generator.choice([1, 1, 4])):
            for partition in range(PARTITION_COUNT):
                producer.send("moves", telling(life, 0, number), partition=partition)
        if generator.random() < 0.3:
            producer.flush()
        producer.send_offsets({ELSEWHERE: life * 1_000_000 + number}, GROUP)
        if generator.random() < 0.3:
            _say(f"abort {life} {number}")
            _until_there_is_room(producer.abort_transaction)
        else:
            _say(f"commit {life} {number}")
            _until_there_is_room(producer.commit_transaction)
            _say(f"committed {life} {number}")


def _until_there_is_room(end: Callable[[], None]) -> None:
    while True:
        try:
            return end()
        except DiskFullError:
            continue


def _live(path: Path, durability: Durability, life: int, opened: int) -> None:
    generator = random.Random(life)
    store = _opened(path, durability, generator)
    os.write(opened, b".")
    settings: dict[str, Any] = {
        "linger_ms": generator.choice([0, 1]),
        "batch_size": generator.choice([200, 2000]),
        "buffer_memory": 16_000,
        "retry_backoff_ms": 1,
        "compression_type": generator.choice(["none", "lz4"]),
    }
    sender = store.producer(**settings)
    mover = store.producer(transactional_id="mover", **settings)

    def run(work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except BaseException:
            _say("failed " + repr(traceback.format_exc()))
            os._exit(1)

    threads = [
        threading.Thread(target=run, args=(_send, sender, life, thread, random.Random(life + thread)))
        for thread in range(1, SENDER_COUNT + 1)
    ]
    threads.append(threading.Thread(target=run, args=(_move, mover, life, random.Random(-life))))
    for started in threads:
        started.start()
    for started in threads:
        started.join()


def main() -> None:
    """Serves requests until standard input ends. The time to the kill starts with the process, or with its work."""
    for line in sys.stdin:
        path, durability, seed = line.split()
        is_open, opened = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _live(Path(path), durability, int(seed), opened)  # type: ignore[arg-type]
            except BaseException:
                _say("failed " + repr(traceback.format_exc()))
            finally:
                os._exit(1)
        os.close(opened)
        if int(seed) % 4:
            os.read(is_open, 1)
        os.close(is_open)
        _say(f"started {pid}")
        _say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
