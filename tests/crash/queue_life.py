"""The life of a queue, to be ended by power cuts and kills, with what was promised at each moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from kstore.errors import Empty, KstoreError
from kstore.files.fs import FileSystem
from kstore.queue import of_store, space
from kstore.queue.queue import Queue, core_of
from kstore.store import Store
from kstore.types import Durability
from tests.crash.numbered_items import number_of
from tests.crash.power_cuts import ROOT
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Untyped, Wrong
from tests.support.harness.replaced import replaced

PATH = ROOT / "store"
SETTINGS: dict[str, Any] = {"background": False, "recovery_threads": 1, "flush_ms": 10**9}
PADDING = b"." * 1500
LEASE_SECONDS = 10
MAX_DELIVERIES = 3


def small() -> ExitStack:
    """Inside, a queue rewrites its journal and maintains its space all the time."""
    stack = ExitStack()
    for module, name, value in (
        (space, "SEGMENT_BYTES", 1500),
        (space, "LOOK_COUNT", 1),
        (of_store, "SEGMENT_BYTES", 1500),
    ):
        stack.enter_context(replaced(module, name, value))
    return stack


class Promise(NamedTuple):
    """What had returned: the items that were put and those that are done; of both, what is certainly on disk."""

    put: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    put_for_sure: frozenset[int] = frozenset()
    done_for_sure: frozenset[int] = frozenset()


class QueueLife:
    """A life, recorded (``RecordedLife``)."""

    def __init__(self, durability: Durability) -> None:
        self.before: Image = {}
        self.durability = durability
        self.fs = MemoryRecording(MemoryFs(ROOT))
        self.clock = ManualClock()
        # Each with the number of preceding operations.
        self.promises: list[tuple[int, Promise]] = [(0, Promise())]
        # When a process started to mark an item as done, or may have put it.
        self.may_be_done: dict[int, int] = {}
        self.next = 0

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    @property
    def now(self) -> int:
        return len(self.fs.operations)

    def _is_shared(self, fs: FileSystem) -> bool:
        return False

    def _open(self, fs: FileSystem) -> tuple[Store, Queue]:
        shared = self._is_shared(fs)
        store = Store(PATH, fs=fs, clock=self.clock, durability=self.durability, shared=shared, **SETTINGS)
        queue = store.queue("jobs", lease_seconds=LEASE_SECONDS, max_deliveries=MAX_DELIVERIES, segment_bytes=1 << 14)
        return store, queue

    # --- live -------------------------------------------------------------------------------------------------------

    def _put(self, queue: Queue, count: int, delay: float = 0) -> None:
        numbers = range(self.next, self.next + count)
        self.next += count
        queue.put_many([b"%d" % number + PADDING for number in numbers], delay=delay)
        self._promise(put=self.promises[-1][1].put.union(numbers))

    def _ack(self, queue: Queue, count: int) -> None:
        jobs = queue.get_many(count, block=False)
        numbers = [number_of(job.value) for job in jobs]
        for number in numbers:
            self.may_be_done.setdefault(number, self.now)
        queue.ack_many(jobs)
        self._promise(done=self.promises[-1][1].done.union(numbers))

    def _promise(self, **changes: frozenset[int]) -> None:
        promised = self.promises[-1][1]._replace(**changes)
        if self.durability == "sync":
            promised = promised._replace(put_for_sure=promised.put, done_for_sure=promised.done)
        self.promises.append((self.now, promised))

    def _tick(self, queue: Queue, *, items: bool = False, journal: bool = False) -> None:
        """Syncs one of the two logs, as happens from time to time."""
        if self.durability != "interval":
            return
        promised = self.promises[-1][1]
        if items:
            core_of(queue).items.flush()
            self._promise(put_for_sure=promised.put)
        if journal:
            queue._core.journal.log.flush()
            self._promise(done_for_sure=promised.done)

    def _closed(self) -> None:
        """The last process closed the store."""
        promised = self.promises[-1][1]
        self._promise(put_for_sure=promised.put, done_for_sure=promised.done)

    def live(self) -> None:
        store, queue = self._open(self.fs)
        with store:
            self._put(queue, 1)
            self._ack(queue, 1)
            self._put(queue, 8)
            self._put(queue, 2, delay=3600)  # they will keep their segment
            held = queue.get_many(2, block=False)
            self._ack(queue, 3)
            held[0].nack(delay=5)
            self._put(queue, 25)
            self._ack(queue, 9)
            self._tick(queue, journal=True)
            queue._space.tidy()
            self.clock.advance(LEASE_SECONDS * 1000)  # the other's lease expires
            for _ in range(3):
                self._ack(queue, 6)
                self._tick(queue, items=True)
                queue._space.tidy()
            self._put(queue, 3)
            self._die_off(queue)
        self._closed()
        store, queue = self._open(self.fs)
        with store:
            self._ack(queue, 2)
            self._put(queue, 12)
            self._ack(queue, 4)
            self._tick(queue, journal=True)

    def _die_off(self, queue: Queue) -> None:
        """One item is nacked until it is a dead letter."""
        for _ in range(MAX_DELIVERIES):
            job = queue.get(block=False)
            job.nack()

    # --- after the crash -----------------------------------------------------------------------------------------

    def promise(self, done: int) -> Promise:
        return self.promises[bisect_right(self.promises, done, key=lambda item: item[0]) - 1][1]

    def reopen(self, fs: FileSystem) -> None:
        self._open(fs)[0].close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        promised = self.promise(done)
        may_be_done = {number for number, at in self.may_be_done.items() if at < begun}
        try:
            self._hold(fs, promised, may_be_done)
        except KstoreError as error:
            raise Lost(f"cannot be opened, read or continued: {error!r}") from error
        except (OSError, LookupError, ValueError) as error:
            raise Untyped(repr(error)) from error

    def _hold(self, fs: FileSystem, promised: Promise, may_be_done: set[int]) -> None:
        now = self.clock.now_ms()
        self.clock.advance(2 * 3_600_000)
        store, queue = self._open(fs)
        with store:
            # A continuing process must not be mistaken for a finished one.
            queue.put(b"999" + PADDING)
            found = drained(queue)
            queue.check()
            dead = [number_of(shown.value) for shown in queue.dead_letters.peek(1000)]
            assert queue.join(timeout=0)
        self.clock._now_ms = now
        if 999 not in found:
            raise Lost("the item put after the crash is not there")
        if len(found) != len(set(found)):
            raise Wrong(f"items came twice: {sorted(found)}")
        if again := promised.done_for_sure & set(found):
            raise Wrong(f"items {sorted(again)} were done, and came again")
        missing = promised.put - set(found) - set(dead) - may_be_done
        if gone := missing & promised.put_for_sure:
            raise Lost(f"items {sorted(gone)} were put, and are gone")
        # Only a suffix of the put items may be gone.
        kept = set(found) - {999}
        if missing and kept and min(missing) < max(kept):
            raise Lost(f"items {sorted(missing)} are gone, but {max(kept)} is there")
        store, queue = self._open(fs)
        with store:
            if left := drained(queue):
                raise Wrong(f"items {left} were done before the store was closed, and came again")


class RewritingLife(QueueLife):
    """A life in which the journal is rewritten and loses its old events once all of them are on disk."""

    rewriting = range(0)

    def live(self) -> None:
        store, queue = self._open(self.fs)
        with store:
            self._put(queue, 15)
            held = queue.get(block=False)  # no item is removed
            for _ in range(12):
                self._ack(queue, 1)
            self._tick(queue, items=True, journal=True)
            journal = queue._core.journal.log
            journal.roll()
            began = self.now
            queue._space.rewrite()
            self.rewriting = range(began, self.now)
            assert journal.start_offset > 0
            held.nack()


class SharedQueueLife(QueueLife):
    """For two processes that share the queue. States are opened alone and shared in turn."""

    def __init__(self, durability: Durability) -> None:
        super().__init__(durability)
        self._opened = 0

    def _is_shared(self, fs: FileSystem) -> bool:
        self._opened += 1
        return fs is self.fs or self._opened % 3 == 0

    def live(self) -> None:
        store, one = self._open(self.fs)
        beside, other = self._open(self.fs)
        with beside:
            with store:
                self._put(one, 1)
                self._ack(other, 1)
                self._put(other, 8)
                self._put(one, 2, delay=3600)
                held = one.get_many(2, block=False)
                self._ack(other, 3)
                held[0].nack(delay=5)
                self._put(other, 40)
                self._ack(one, 9)
                self._tick(one, journal=True)
                other._space.tidy()
                self.clock.advance(LEASE_SECONDS * 1000)
                for _ in range(2):
                    self._ack(other, 6)
                    self._tick(one, items=True)
                    one._space.tidy()
                    self._ack(one, 2)
                    other._space.rewrite()
                self._put(one, 3)
            self._die_off(other)
            self._ack(other, 2)
            other._space.tidy()
            self._put(other, 12)
            self._ack(other, 4)


def drained(queue: Queue) -> list[int]:
    found: list[int] = []
    while True:
        try:
            jobs = queue.get_many(5, block=False)
        except Empty:
            return found
        found += [number_of(job.value) for job in jobs]
        queue.ack_many(jobs)
