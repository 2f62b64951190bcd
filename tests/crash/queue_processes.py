"""A process that puts items into a shared queue, or works on them, until it is killed.

usage: python -m tests.crash.queue_processes produce|work PATH DURABILITY SEED

It reports on standard output, a line each with its time, except for ``got``:

    put NUMBER       the item is confirmed
    got NUMBER       it was delivered by a get that started then
    acking NUMBER    it is about to be acked
    acked NUMBER     the ack has returned
    late NUMBER      the ack was refused: its lease had expired
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any, cast

import kstore
from kstore.types import Durability
from tests.crash.numbered_items import number_of

LEASE_SECONDS = 0.6
SETTINGS: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "max_deliveries": 0, "segment_bytes": 1 << 14}
OUT = 1


def _say(word: str, number: int, at_ns: int = 0) -> None:
    # One write of a short line: a kill leaves it whole or absent. All processes use the machine's clock.
    os.write(OUT, b"%s %d %d\n" % (word.encode(), number, at_ns or time.monotonic_ns()))


def produce(queue: kstore.Queue, generator: random.Random) -> None:
    while True:
        number = generator.randrange(10**15)
        queue.put(b"%d" % number + b"." * generator.choice([0, 50, 900]))
        _say("put", number)
        if generator.random() < 0.3:
            time.sleep(0.002)  # so that workers keep up


def work(queue: kstore.Queue, generator: random.Random) -> None:
    while True:
        began_ns = time.monotonic_ns()
        try:
            jobs = queue.get_many(generator.choice([1, 1, 5]), timeout=generator.choice([0, 0, 0.5]))
        except kstore.Empty:
            time.sleep(0.005)
            continue
        for job in jobs:
            _say("got", number_of(job.value), began_ns)
        for job in jobs:
            number = number_of(job.value)
            try:
                if generator.random() < 0.05:
                    job.nack()
                    continue
                _say("acking", number)
                job.ack()
            except kstore.LeaseLostError:
                _say("late", number)
                continue
            _say("acked", number)


def main() -> None:
    what, path, durability, seed = sys.argv[1:]
    generator = random.Random(int(seed))
    with kstore.open(path, shared=True, durability=cast(Durability, durability)) as store:
        queue = store.queue("jobs", **SETTINGS)
        (produce if what == "produce" else work)(queue, generator)


if __name__ == "__main__":
    main()
