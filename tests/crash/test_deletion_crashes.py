"""Power cuts while topics are deleted: what groups and queues know of a topic goes with it, not sooner or later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import pytest

from kstore.errors import Empty, KstoreError
from kstore.files.fs import FileSystem
from kstore.files.paths import TopicPartition
from kstore.store import Store
from tests.crash.power_cut_lives import indexes_that_grow_early
from tests.crash.power_cuts import ROOT, cut_power
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import Machine, MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

PATH = ROOT / "store"
RECORDS = [b"0", b"1", b"2", b"3"]
COMMITTED = 3


def ids(store: Store) -> dict[str, UUID | None]:
    return {name: store.summary(name).topic_id for name in store.topics()}


class DeletionLife:
    """A topic with committed offsets, and a queue with acked items: deleted, and made again (``RecordedLife``)."""

    def __init__(self) -> None:
        self.fs = MemoryRecording(MemoryFs(ROOT))
        self.before: Image = {}
        self.clock = ManualClock()
        self.first: dict[str, UUID | None] = {}
        # How many operations had been done when everything was there, and when the deletions were.
        self.begun = self.deleted = 0

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def open(self, fs: FileSystem) -> Store:
        return Store(PATH, background=False, fs=fs, clock=self.clock)

    def live(self) -> None:
        with self.open(self.fs) as store:
            store.create_topic("orders")
            store.log("orders").append_many(RECORDS)
            with store.consumer("orders", group="g") as consumer:
                consumer.poll(1)
                consumer.commit({TopicPartition("orders", 0): COMMITTED})
            queue = store.queue("jobs")
            queue.put_many(RECORDS)
            queue.ack_many(queue.get_many(2))
            self.first = ids(store)
            self.begun = len(self.operations)
            store.delete_topic("orders")
            store.delete_topic("jobs")
            self.deleted = len(self.operations)
            store.create_topic("orders")
            store.log("orders").append_many(RECORDS)
            store.queue("jobs").put_many(RECORDS)

    # --- after the crash --------------------------------------------------------------------------------------------

    def promise(self, done: int) -> int:
        return (self.begun <= done) + (self.deleted <= done)

    def reopen(self, fs: FileSystem) -> None:
        self.open(fs).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        try:
            with self.open(fs) as store:
                self._survive(store, self.promise(done))
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error

    def _survive(self, store: Store, promised: int) -> None:
        now = ids(store)
        orders, jobs = (now.get(name) == self.first[name] for name in ("orders", "jobs"))
        if promised == 2 and (orders or jobs):
            raise Wrong(f"a topic is there that was deleted: {now}")
        committed = store.consumer_offsets.committed("g").get(TopicPartition("orders", 0))
        at = None if committed is None else committed.offset
        if promised and orders and at != COMMITTED:
            raise Lost(f"the topic is there, and its committed offset is {at}")
        if not orders and "orders" in now and at is not None and promised:
            raise Wrong(f"a new topic has the committed offset {at} of the one before it")
        if "jobs" not in now or not promised:
            return
        try:
            given = [job.value for job in store.queue("jobs").get_many(9, block=False)]
        except Empty:
            given = []
        if jobs and given != RECORDS[2:]:
            raise Lost(f"the queue is there, and gives {given}")
        if not jobs and given != RECORDS[: len(given)]:
            raise Wrong(f"a new queue gives {given}: another's acks count in it")


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine, indexes_that_grow_early():
        yield machine


@pytest.mark.promise("power cut: sync")
def test_a_power_cut_in_a_deletion_leaves_the_topic_with_all_that_belongs_to_it_or_nothing(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = DeletionLife()
    life.live()
    counts = cut_power(life, machine, count=tries(600, quick=60), seed=seed)
    tried("states", counts.states)
