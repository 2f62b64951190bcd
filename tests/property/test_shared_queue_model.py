"""A queue that several processes share, against a plain model: the others must see whatever one does.

Each process is a store over the same files. Now and then all die at once, and the machine may restart. The journal is
rewritten, and items are moved, all the time.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest

from kstore.errors import Empty, LeaseLostError
from kstore.queue import of_store, space
from kstore.queue.job import Job
from kstore.queue.queue import Queue
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

LEASE_SECONDS = 10
PROCESS_COUNT = 3
# A segment takes about ten items.
PADDING = b"." * 1500
BOOTS = (b"the first boot..", b"the second boot.")


class Processes:
    """``waiting`` has the unacked items, with the earliest time of their delivery."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.life = 0
        self.next = 0
        self.waiting: dict[int, int] = {}
        self.done: set[int] = set()
        self.boot = BOOTS[0]
        self.held: dict[int, list[Job]] = {}
        self.stores: list[Store] = []
        self.queues: list[Queue] = []
        self._open_all()

    def _open(self) -> tuple[Store, Queue]:
        path = self.directory / str(self.life)
        with mock.patch("kstore.queue.ledger.boot_id", return_value=self.boot):
            store = Store(path, clock=self.clock, background=False, durability="os", shared=True)
            return store, store.queue("jobs", lease_seconds=LEASE_SECONDS, max_deliveries=0, segment_bytes=1 << 14)

    def _open_all(self) -> None:
        opened = [self._open() for _ in range(PROCESS_COUNT)]
        self.stores, self.queues = [store for store, _ in opened], [queue for _, queue in opened]
        self.held = {number: [] for number in range(PROCESS_COUNT)}

    # --- steps of one process ---------------------------------------------------------------------------------------

    def put(self, number: int) -> None:
        count = self.random.randint(1, 8)
        delay = self.random.choice([0, 0, 5, 60])
        numbers = range(self.next, self.next + count)
        self.next += count
        self.queues[number].put_many([b"%d" % item + PADDING for item in numbers], delay=delay)
        due_ms = self.clock.now_ms() + delay * 1000
        self.waiting.update(dict.fromkeys(numbers, due_ms))

    def get(self, number: int) -> None:
        try:
            jobs = self.queues[number].get_many(self.random.randint(1, 12), block=False)
        except Empty:
            return
        now_ms, now = self.clock.now_ms(), self.clock.monotonic()
        leased = {job.value for jobs in self.held.values() for job in jobs if job.is_open and job.deadline > now}
        for job in jobs:
            item = item_of(job)
            if item in self.done:
                raise Wrong(f"item {item} was acked, but is delivered")
            if job.value in leased:
                raise Wrong(f"item {item} is leased, but is delivered")
            if self.waiting[item] > now_ms:
                raise Wrong(f"item {item} is delivered {self.waiting[item] - now_ms} ms too early")
            self.waiting[item] = 0
        self.held[number] += jobs

    def _one_of(self, number: int) -> Job | None:
        held = self.held[number]
        return held.pop(self.random.randrange(len(held))) if held else None

    def ack(self, number: int) -> None:
        count = self.random.choice([1, 6])
        for job in [job for _ in range(count) if (job := self._one_of(number)) is not None]:
            try:
                job.ack()
            except LeaseLostError:
                if job.deadline > self.clock.monotonic():
                    raise Wrong(f"the lease of item {item_of(job)} was lost before its time") from None
                continue
            self.done.add(item_of(job))
            self.waiting.pop(item_of(job))

    def nack(self, number: int) -> None:
        job = self._one_of(number)
        delay = self.random.choice([0, 3, 30])
        if job is not None:
            try:
                job.nack(delay)
            except LeaseLostError:
                if job.deadline > self.clock.monotonic():
                    raise Wrong(f"the lease of item {item_of(job)} was lost before its time") from None
            else:
                self.waiting[item_of(job)] = self.clock.now_ms() + delay * 1000

    def extend(self, number: int) -> None:
        job = self._one_of(number)
        if job is not None:
            try:
                job.extend(self.random.choice([5, 20]))
            except LeaseLostError:
                return
            self.held[number].append(job)

    def tidy(self, number: int) -> None:
        self.queues[number]._space.tidy()

    def rewrite(self, number: int) -> None:
        self.queues[number]._space.rewrite()

    def reopen(self, number: int) -> None:
        self.stores[number].close()
        self.held[number] = []
        self.stores[number], self.queues[number] = self._open()

    def pass_time(self, _: int) -> None:
        self.clock.advance(self.random.choice([100, 2000, 9000]))

    def count(self, number: int) -> None:
        self.queues[number].check()
        assert self.queues[number].qsize() <= len(self.waiting)

    # --- events for all processes -----------------------------------------------------------------------------------

    def die(self) -> None:
        """All are killed; the machine may restart after that."""
        before, self.life = self.directory / str(self.life), self.life + 1
        shutil.copytree(before, self.directory / str(self.life))
        self.close()
        shutil.rmtree(before)
        if self.random.random() < 0.5:
            self.boot = BOOTS[self.boot == BOOTS[0]]
            # Its clock shows any time.
            self.clock._monotonic = self.random.choice([10.0, self.clock._monotonic, 10.0**6])
        self._open_all()

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def step(self) -> None:
        if self.random.random() < 0.01:
            self.die()
            return
        does: list[Callable[[int], None]] = [self.put, self.get, self.get, self.ack, self.ack, self.pass_time]
        does += [self.nack, self.extend, self.tidy, self.rewrite, self.count]
        if self.random.random() < 0.1:
            does.append(self.reopen)
        self.random.choice(does)(self.random.randrange(PROCESS_COUNT))

    def drain(self) -> None:
        """Every unacked item is delivered, and nothing else."""
        self.clock.advance(1_000_000)
        self.held = {number: [] for number in range(PROCESS_COUNT)}
        found: set[int] = set()
        while True:
            queue = self.random.choice(self.queues)
            try:
                jobs = queue.get_many(5, block=False)
            except Empty:
                break
            found |= {item_of(job) for job in jobs}
            queue.ack_many(jobs)
        if lost := self.waiting.keys() - found:
            raise Lost(f"items {sorted(lost)} were not acked, but are gone")
        if again := found - self.waiting.keys():
            raise Wrong(f"items {sorted(again)} were acked, but came again")
        for queue in self.queues:
            assert queue.stats().pending == 0
            queue.check()


def item_of(job: Job) -> int:
    return int((job.value or b"").rstrip(b"."))


@pytest.fixture
def small() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(space, "SEGMENT_BYTES", 1500))
        stack.enter_context(mock.patch.object(space, "LOOK_COUNT", 1))
        stack.enter_context(mock.patch.object(of_store, "SEGMENT_BYTES", 8 * 1500))
        yield


def _live(directory: Path, seed: int, step_count: int) -> None:
    processes = Processes(directory, seed)
    try:
        for _ in range(step_count):
            processes.step()
        processes.drain()
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        processes.close()


@pytest.mark.usefixtures("small")
def test_processes_that_share_a_queue_do_what_a_plain_model_does(directory: Path, seed: int) -> None:
    for number in range(tries(4, quick=1)):
        _live(directory / str(number), seed + number, 250)


@pytest.mark.soak
@pytest.mark.usefixtures("small")
def test_processes_that_share_a_queue_do_what_a_plain_model_does_for_long(directory: Path, seed: int) -> None:
    for number in range(500):
        _live(directory / str(number), seed + number, 500)
        shutil.rmtree(directory / str(number))


@pytest.mark.usefixtures("small")
def test_what_another_process_has_finished_does_not_wait_again(directory: Path) -> None:
    # A life in which an item was taken, could not be claimed, and was finished meanwhile.
    _live(directory, 20260261, 500)
