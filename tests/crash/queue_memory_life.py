"""A program in which every allocation of a queue's calls fails once; run by ``test_memory_errors``.

    python -m tests.crash.queue_memory_life DIRECTORY CALL alone|shared

For n = 0, 1, 2...: the n-th allocation in the call is refused. The same queue, still open, must then deliver every
unfinished item, and no finished one. It ends when ten calls in a row met no refusal. Prints a line for each call; the
last line is the number of refusals.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path

import kstore
from kstore.errors import Empty, KstoreError
from kstore.queue.job import Job
from kstore.queue.queue import Queue, give_back
from kstore.types import Durability
from tests.crash.memory_error_life import DISGUISES, REFUSALS_MAX
from tests.crash.refusals import refused
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Untyped, Wrong

ITEMS = 12
LEASE_SECONDS = 30.0
DELAY_SECONDS = 5.0


class Life:
    """A queue, and the items that it must still deliver."""

    def __init__(self, path: Path, durability: Durability = "os", *, shared: bool = False) -> None:
        self.clock = ManualClock()
        self.store = kstore.Store(path, durability=durability, shared=shared, clock=self.clock)
        self.queue: Queue = self.store.queue("jobs", lease_seconds=LEASE_SECONDS, max_deliveries=0)
        self.alive: set[int] = set()
        self.doubtful: set[int] = set()
        self.number = count()

    def fill(self) -> None:
        while len(self.alive) < ITEMS:
            self.alive.add(self.queue.put(b"item %d" % next(self.number)))

    def leased(self, wanted: int) -> list[Job]:
        return self.queue.get_many(wanted, block=False)

    def pass_time(self) -> None:
        """Waits until all leases and delays are over."""
        self.clock.advance(int(1000 * (LEASE_SECONDS + DELAY_SECONDS)) + 1)

    def delivered(self) -> dict[int, Job]:
        found: dict[int, Job] = {}
        while True:
            try:
                jobs = self.leased(ITEMS)
            except Empty:
                return found
            for job in jobs:
                if job.offset in found:
                    raise Wrong(f"item {job.offset} was delivered twice at the same time")
                found[job.offset] = job

    def look(self) -> None:
        self.pass_time()
        found = self.delivered()
        if lost := self.alive - self.doubtful - found.keys():
            raise Lost(f"items {sorted(lost)} are no longer delivered")
        if done := found.keys() - self.alive:
            raise Wrong(f"items {sorted(done)} were done, and delivered again")
        self.alive &= found.keys()
        self.doubtful.clear()
        give_back(self.queue, list(found.values()))
        self.queue.check()


def get(life: Life) -> Callable[[], object]:
    return lambda: life.leased(ITEMS // 2)


def get_one(life: Life) -> Callable[[], object]:
    return lambda: life.queue.get(block=False)


def get_expired(life: Life) -> Callable[[], object]:
    life.leased(ITEMS)
    life.pass_time()
    return lambda: life.leased(ITEMS // 2)


def nack(life: Life) -> Callable[[], object]:
    (job,) = life.leased(1)
    return lambda: job.nack(DELAY_SECONDS)


def extend(life: Life) -> Callable[[], object]:
    first, second = life.leased(2)
    first.extend(LEASE_SECONDS - 1)

    def act() -> None:
        second.extend(LEASE_SECONDS - 2)
        first.extend(LEASE_SECONDS - 3)

    return act


def ack(life: Life) -> Callable[[], object]:
    jobs = life.leased(2)
    offsets = {job.offset for job in jobs}
    life.doubtful |= offsets

    def act() -> None:
        life.queue.ack_many(jobs)
        life.alive -= offsets
        life.doubtful -= offsets

    return act


def ack_one(life: Life) -> Callable[[], object]:
    (job,) = life.leased(1)
    life.doubtful.add(job.offset)

    def act() -> None:
        job.ack()
        life.alive.discard(job.offset)

    return act


def ack_noted(life: Life) -> Callable[[], object]:
    """The journal also gets a delivery whose lease has expired."""
    life.leased(1)
    life.pass_time()
    return ack(life)


def put(life: Life) -> Callable[[], object]:
    return putting(life, 1, lambda: life.queue.put(b"one"))


def put_many(life: Life) -> Callable[[], object]:
    return putting(life, 5, lambda: life.queue.put_many([b"%d" % number for number in range(5)], keys=[b"key"] * 5))


def putting(life: Life, item_count: int, act: Callable[[], int]) -> Callable[[], object]:
    end = life.queue.stats().end_offset
    offsets = set(range(end, end + item_count))
    life.alive |= offsets
    life.doubtful |= offsets

    def acting() -> None:
        act()
        life.doubtful -= offsets

    return acting


CALLS = {
    "ack one": ack_one,
    "ack noted": ack_noted,
    "put": put,
    "put many": put_many,
    "get": get,
    "get one": get_one,
    "get expired": get_expired,
    "nack": nack,
    "extend": extend,
    "ack": ack,
}


def refuse(life: Life, prepare: Callable[[Life], Callable[[], object]], number: int) -> bool:
    """Refuses allocation ``number`` in one call, and examines the result; returns whether the call met the refusal."""
    life.fill()
    act = prepare(life)
    error = refused(act, number)
    if error is not None and not isinstance(error, (MemoryError, KstoreError, *DISGUISES)):
        raise Untyped(repr(error)) from error
    life.look()
    return error is not None


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    life, prepare = Life(Path(sys.argv[1]), shared=sys.argv[3] == "shared"), CALLS[sys.argv[2]]
    refusal_count = quiet = 0
    for number in range(REFUSALS_MAX):
        met = refuse(life, prepare, number)
        print(number, flush=True)
        refusal_count += met
        # A harmless refusal may be swallowed; after ten calls without a refusal there are no more.
        quiet = 0 if met else quiet + 1
        if quiet == 10:
            break
    life.store.close()
    print(refusal_count)


if __name__ == "__main__":
    main()
