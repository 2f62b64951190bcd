"""A program in which a producer's call is interrupted at one line after another; run by ``test_producer_interrupts``.

    python -m tests.crash.interrupted_producer DIRECTORY ERROR CALL FIRST STEP BETWEEN

Like ``interrupted_life``, with KeyboardInterrupt or MemoryError. At the end every record that was sent has its result;
what arrived is in the log, once and in order; no callback is forgotten, and no memory is lost. Prints a line for each
interrupt; the last line is their number.
"""

from __future__ import annotations

import logging
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kstore.errors import KstoreError
from kstore.producer._accumulate import Delivery
from kstore.producer.accumulator import BatchQueue
from kstore.producer.records import RecordMetadata
from kstore.store import Store
from tests.crash.interrupted_life import INTERRUPTS, LINES_MAX
from tests.support.harness.evidence import Hung, Lost, Untyped, Wrong
from tests.support.lives.producer_helpers import Unthreaded

ROUNDS_MAX = 60
BUFFER_MEMORY = 8192
BATCH_SIZE = 1024
PARTITIONS = 2


@dataclass
class Life:
    """One producer, whose rounds the test runs; ``sent`` are its deliveries by value."""

    one: Unthreaded
    sent: dict[bytes, Delivery] = field(default_factory=dict)
    told: dict[bytes, int] = field(default_factory=dict)
    number: int = 0

    def send(self, partition: int = 0, size: int = 300) -> Delivery:
        self.number += 1
        value = b"%06d" % self.number + b"v" * size

        def tell(metadata: RecordMetadata, error: Exception | None) -> None:
            self.told[value] = self.told.get(value, 0) + 1

        self.told[value] = 0
        on_delivery = tell if self.number % 2 else None
        delivery = self.one.producer.send("orders", value, partition=partition, on_delivery=on_delivery)
        self.sent[value] = delivery
        return delivery

    def queue(self, partition: int = 0) -> BatchQueue:
        return self.one.producer._metadata.topics["orders"].queue(partition)

    def settle(self) -> None:
        """Continues until everything has a result."""
        accumulator = self.one.producer._outbox.accumulator
        for _ in range(ROUNDS_MAX):
            self.one.round()
            self.one.clock.advance(100)
            if not accumulator.incomplete:
                return
        raise Hung(f"{len(accumulator.incomplete)} batches have no result")

    def hold(self) -> None:
        """Checks the log, callbacks and memory against the results."""
        with Store(self.one.store.path, background=False) as store:
            found = [
                [bytes(value or b"") for value in store.log("orders", partition).read_values()]
                for partition in range(PARTITIONS)
            ]
        everything = [value for values in found for value in values]
        if len(set(everything)) != len(everything) or any(values != sorted(values) for values in found):
            raise Wrong(f"twice, or out of order: {[[value[:6] for value in values] for values in found]}")
        for value, delivery in self.sent.items():
            if not delivery.done():
                raise Hung(f"{value[:6]!r} has no result")
            if delivery.exception() is None and found[delivery.partition][delivery.offset :][:1] != [value]:
                raise Lost(f"{value[:6]!r} was delivered as {delivery!r}")
            if self.told[value] != (int(value[:6]) % 2):
                raise Wrong(f"the callback of {value[:6]!r} was called {self.told[value]} times")
        pool = self.one.producer._outbox.pool
        if pool.available != BUFFER_MEMORY or pool.waiting_count:
            raise Lost(f"{pool.available} of {BUFFER_MEMORY} bytes are there, {pool.waiting_count} wait")


def full_batches(life: Life) -> None:
    for _ in range(8):
        life.send()


def many_batches(life: Life) -> None:
    """More batches than a log remembers of a producer."""
    for _ in range(20):
        life.send()


def too_large_for_the_log(life: Life) -> None:
    for _ in range(3):
        life.send()
    life.one.store.alter_topic("orders", max_message_bytes=500)


def all_memory(life: Life) -> None:
    """Several partitions have batches, and no memory is left for another."""
    while life.one.producer._outbox.pool.available >= BATCH_SIZE:
        life.send(life.number // 3 % 2)


def write(life: Life) -> None:
    life.queue().is_urgent = True
    life.one.producer._outbox.sender.write_here(life.queue())


def send_into_no_memory(life: Life) -> None:
    # In place of the thread, which does not exist here: a send that waits for memory writes.
    life.one.producer._outbox.is_threaded = True
    life.send(0, 900)


def flush(life: Life) -> None:
    life.one.producer.flush()


def wait_for_result(life: Life) -> None:
    life.one.producer._outbox.is_threaded = True
    life.one.producer._outbox.hurry(life.sent[max(life.sent)]._batch())


def give_up(life: Life) -> None:
    life.one.producer._outbox.sender.abandon(KstoreError("for the test"))


def send_many(life: Life) -> None:
    first, life.number = life.number + 1, life.number + 10
    life.one.producer.send_many("orders", [b"%06d" % number + b"m" * 300 for number in range(first, first + 10)])


# The preparation, and the interrupted call.
CALLS: dict[str, tuple[Callable[[Life], None], Callable[[Life], Any]]] = {
    "send": (lambda life: None, lambda life: life.send()),
    "send-into-another-batch": (full_batches, lambda life: life.send(0, 900)),
    "send-without-memory": (all_memory, send_into_no_memory),
    "send-many": (full_batches, send_many),
    "write": (full_batches, write),
    "write-many": (many_batches, write),
    "write-many-plain": (many_batches, write),
    "write-split": (too_large_for_the_log, write),
    "result": (full_batches, wait_for_result),
    "abandon": (full_batches, give_up),
}


def interrupt(path: Path, error: type[BaseException], name: str, number: int, codec: str, between: str) -> bool:
    """A life whose call is interrupted at line ``number``, and which continues; returns whether that line exists."""
    before, act = CALLS[name]
    one = Unthreaded(
        path,
        partitions=PARTITIONS,
        linger_ms=0,
        batch_size=BATCH_SIZE,
        buffer_memory=BUFFER_MEMORY,
        compression_type=codec,
        delivery_timeout_ms=3000,
        enable_idempotence="plain" not in name,
    )
    life = Life(one)
    life.send()
    life.settle()
    before(life)
    with INTERRUPTS[between](number, error) as interrupted:
        try:
            act(life)
        except (error, KstoreError):
            pass
        except TypeError as mangled:
            # CPython 3.11 raises this if a trace function raises below a compiled module.
            if "'traceback' object is not callable" not in str(mangled):
                raise
    one.producer._outbox.is_threaded = False
    try:
        for partition in range(PARTITIONS):
            life.send(partition)
        life.settle()
        one.producer._outbox.failures.take()
        one.producer.close()
        try:
            one.store.close()
        except KstoreError:
            pass  # the log is poisoned: an interrupt came while its records were published
        life.hold()
    except Exception as failed:
        failed.add_note(f"interrupted at {interrupted.place}")
        raise
    return interrupted.struck


def main() -> None:
    directory, error_name, name, first, step, between = Path(sys.argv[1]), *sys.argv[2:]
    error = {"KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError}[error_name]
    logging.disable()
    warnings.simplefilter("ignore")
    for number in range(int(first), LINES_MAX, int(step)):
        path = directory / str(number)
        try:
            if not interrupt(path, error, name, number, ("none", "lz4")[number % 2], between):
                assert number > 10
                print((number - int(first)) // int(step))
                return
        except AssertionError as failed:
            failed.add_note(f"interrupted at line {number}")
            raise
        except Exception as unknown:
            raise Untyped(f"interrupted at line {number}: {unknown!r}") from unknown
        shutil.rmtree(path)
        print(number, flush=True)
    raise Hung(f"{name} has more than {LINES_MAX} lines")


if __name__ == "__main__":
    main()
