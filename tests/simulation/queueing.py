"""The queue of a simulated life: an item comes until it is done, and never again."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kstore.errors import Empty
from kstore.queue.job import Job
from kstore.queue.queue import Queue
from tests.crash.numbered_items import number_of
from tests.crash.queue_life import PADDING
from tests.support.harness.evidence import Lost, Wrong

if TYPE_CHECKING:
    from tests.simulation.life import Life

NAME = "jobs"
LEASE_SECONDS = 30
DELAY_SECONDS_MAX = 3600
LONG_MS = 4 * 3_600_000


@dataclass
class Items:
    """By number: items that were certainly put, may have been put, are done, may be done."""

    put: set[int] = field(default_factory=set)
    may_be_put: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    may_be_done: set[int] = field(default_factory=set)
    held: list[Job] = field(default_factory=list)
    count: int = 0
    # When the last delay ends, by the wall clock.
    due_ms: int = 0

    def _queue(self, life: Life) -> Queue:
        return life.store.queue(NAME, lease_seconds=LEASE_SECONDS, max_deliveries=0, segment_bytes=1 << 14)

    def step(self, life: Life, generator: random.Random) -> None:
        queue = self._queue(life)
        self.due_ms = max(self.due_ms, life.clock.now_ms() + DELAY_SECONDS_MAX * 1000)
        match generator.randrange(7):
            case 0 | 1 | 2:
                self._put(queue, generator.choice((1, 1, 2, 5)), generator.choice((0, 0, 0, 60, DELAY_SECONDS_MAX)))
            case 3 | 4:
                self._ack(queue, self._get(queue, generator.choice((1, 2, 5, 9))))
            case 5:
                self.held += self._get(queue, 2)
            case _:
                for job in self._get(queue, 1):
                    job.nack(delay=generator.choice((0, 5)))
        queue._space.tidy()

    def _put(self, queue: Queue, count: int, delay: float) -> None:
        numbers = range(self.count, self.count + count)
        self.count += count
        self.may_be_put.update(numbers)
        queue.put_many([b"%d" % number + PADDING for number in numbers], delay=delay)
        self.may_be_put.difference_update(numbers)
        self.put.update(numbers)

    def _get(self, queue: Queue, count: int) -> list[Job]:
        jobs: list[Job] = []
        with suppress(Empty):
            jobs = queue.get_many(count, block=False)
        for job in jobs:
            number = number_of(job.value)
            if number in self.done:
                raise Wrong(f"item {number} was done, and came again")
            if number not in self.put | self.may_be_put:
                raise Wrong(f"item {number} was never put")
        return jobs

    def _ack(self, queue: Queue, jobs: list[Job]) -> None:
        numbers = {number_of(job.value) for job in jobs}
        self.may_be_done |= numbers
        queue.ack_many(jobs)
        self.may_be_done -= numbers
        self.done |= numbers

    def process_ended(self) -> None:
        self.held = []

    def drain(self, life: Life, generator: random.Random) -> None:
        """Takes everything, once every lease has expired."""
        queue = self._queue(life)
        # The clock may have been set back since an item was delayed.
        life.clock.advance(max(self.due_ms - life.clock.now_ms(), 0) + LONG_MS)
        found: list[int] = []
        while jobs := self._get(queue, 5):
            found += [number_of(job.value) for job in jobs]
            self._ack(queue, jobs)
        if len(found) != len(set(found)):
            raise Wrong(f"items came twice: {sorted(found)}")
        if missing := self.put - self.done - self.may_be_done:
            raise Lost(f"items {sorted(missing)} were put, and did not come")
        # Items that may have been put, or done, and did not come, never come.
        self.done |= self.may_be_done | self.may_be_put
        self.may_be_done.clear()
        self.may_be_put.clear()
