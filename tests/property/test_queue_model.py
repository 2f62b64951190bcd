"""A queue against a plain model: random puts, gets, acks, nacks, waits, kills and reopenings."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kstore.errors import Empty, LeaseLostError
from kstore.queue import of_store, space
from kstore.queue.job import Job
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.memory_fs import MemoryFs, in_memory
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

ROOT = Path("/model")
LEASE_MS = 10_000
MAX_DELIVERIES = 4
# A segment takes about ten items.
PADDING = b"." * 1500
SEGMENT_BYTES = 1 << 14
JOURNAL_BYTES = 1500


class Item:
    """What is known of one item. A kill ends ``is_sure``: deliveries may then be forgotten."""

    def __init__(self, number: int, due_ms: int) -> None:
        self.number = number
        self.due_ms = due_ms
        self.deliveries = 0
        self.is_sure = True
        self.was_delayed = bool(due_ms)
        self.job: Job | None = None
        self.lease_end_ms = 0
        self.is_leased = False


class QueueMachine(RuleBasedStateMachine):
    """``waiting`` has the items that are neither acked nor dead letters, by number."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(in_memory())
        self.stack.enter_context(mock.patch.object(space, "SEGMENT_BYTES", JOURNAL_BYTES))
        self.stack.enter_context(mock.patch.object(space, "LOOK_COUNT", 1))
        self.stack.enter_context(mock.patch.object(of_store, "SEGMENT_BYTES", 8 * JOURNAL_BYTES))
        self.fs = MemoryFs(ROOT)
        self.clock = ManualClock()
        self.next = 0
        self.waiting: dict[int, Item] = {}
        self.dead: set[int] = set()
        # Delivered too many times, if this was not forgotten.
        self.maybe_dead: dict[int, Item] = {}

    @initialize(durability=st.sampled_from(["sync", "os"]))
    def begin(self, durability: Any) -> None:
        self.durability = durability
        self.store = self._opened()

    def _opened(self) -> Store:
        store = Store(ROOT / "s", fs=self.fs, clock=self.clock, background=False, durability=self.durability)
        self.queue = store.queue(
            "jobs", lease_seconds=LEASE_MS / 1000, max_deliveries=MAX_DELIVERIES, segment_bytes=SEGMENT_BYTES
        )
        self.last_fresh = -1
        return store

    # --- steps ------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 12), delay=st.sampled_from([0, 0, 0, 5, 30]))
    def put(self, count: int, delay: int) -> None:
        numbers = range(self.next, self.next + count)
        self.queue.put_many([b"%d" % number + PADDING for number in numbers], delay=delay)
        self.next += count
        due_ms = self.clock.now_ms() + delay * 1000 if delay else 0
        self.waiting.update({number: Item(number, due_ms) for number in numbers})

    def _expire(self) -> None:
        for item in list(self.waiting.values()):
            if item.is_leased and item.lease_end_ms <= self.clock.now_ms():
                item.is_leased = False
                self._returned(item)

    def _returned(self, item: Item) -> None:
        if item.deliveries >= MAX_DELIVERIES:
            del self.waiting[item.number]
            if item.is_sure:
                self.dead.add(item.number)
            else:
                self.maybe_dead[item.number] = item

    def _free(self) -> set[int]:
        now_ms = self.clock.now_ms()
        return {item.number for item in self.waiting.values() if not item.is_leased and item.due_ms <= now_ms}

    @rule(count=st.integers(1, 15))
    def get(self, count: int) -> None:
        self._expire()
        free = self._free()
        try:
            jobs = self.queue.get_many(count, block=False)
        except Empty:
            if free:
                raise Lost(f"items {sorted(free)} could be delivered, but were not") from None
            return
        if not min(count, len(free)) <= len(jobs) <= min(count, len(free) + len(self.maybe_dead)):
            raise Lost(f"{len(jobs)} items were delivered, expected {min(count, len(free))}")
        for job in jobs:
            assert job.value is not None
            number = int(job.value.rstrip(b"."))
            if number in self.maybe_dead:
                self.waiting[number] = self.maybe_dead.pop(number)
            elif number not in free:
                raise Wrong(f"item {number} was delivered")
            item = self.waiting[number]
            item.deliveries += 1
            if job.delivery_count != item.deliveries and (item.is_sure or job.delivery_count > item.deliveries):
                raise Wrong(f"item {number} has delivery count {job.delivery_count}, expected {item.deliveries}")
            item.deliveries = job.delivery_count
            item.job, item.is_leased, item.due_ms = job, True, 0
            item.lease_end_ms = self.clock.now_ms() + LEASE_MS
            if job.delivery_count == 1 and not item.was_delayed:
                if number < self.last_fresh:
                    raise Wrong(f"item {number} was delivered after {self.last_fresh}")
                self.last_fresh = number

    def _leased(self, data: st.DataObject) -> Item | None:
        self._expire()
        leased = sorted(item.number for item in self.waiting.values() if item.is_leased)
        return self.waiting[data.draw(st.sampled_from(leased))] if leased else None

    @rule(data=st.data(), count=st.integers(1, 15))
    def ack(self, data: st.DataObject, count: int) -> None:
        self._expire()
        leased = sorted(item.number for item in self.waiting.values() if item.is_leased)
        numbers = leased[:count] if data.draw(st.booleans()) else leased[::-2][:count]
        if numbers:
            self.queue.ack_many([job for number in numbers if (job := self.waiting[number].job) is not None])
            for number in numbers:
                del self.waiting[number]

    @rule(data=st.data(), delay=st.sampled_from([0, 7, 60]))
    def nack(self, data: st.DataObject, delay: int) -> None:
        item = self._leased(data)
        if item is not None:
            assert item.job is not None
            item.job.nack(delay)
            item.is_leased = False
            item.was_delayed = True
            item.due_ms = self.clock.now_ms() + delay * 1000 if delay else 0
            self._returned(item)
            with pytest.raises(LeaseLostError):
                item.job.ack()

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        item = self._leased(data)
        if item is not None:
            assert item.job is not None
            item.job.extend()
            item.lease_end_ms = self.clock.now_ms() + LEASE_MS

    @rule(ms=st.sampled_from([1, 4000, 9999, 10_000, 31_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def tidy(self) -> None:
        self.queue._space.tidy()

    # --- how it ends ------------------------------------------------------------------------------------------------

    def _all_back(self) -> None:
        for item in list(self.waiting.values()):
            item.is_sure &= not item.deliveries
            if item.is_leased:
                item.is_leased = False
                self._returned(item)

    @rule()
    def reopen(self) -> None:
        self._expire()
        self.store.close()
        self._all_back()
        self.store = self._opened()

    @rule()
    def kill(self) -> None:
        image = self.fs.image()
        self.store.close()  # on a disk that is no longer used
        self.fs = MemoryFs(ROOT, image)
        self._all_back()
        self.store = self._opened()

    @invariant()
    def fits_together(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check()

    @precondition(lambda self: hasattr(self, "store"))
    @rule()
    def count(self) -> None:
        self._expire()
        found = self.queue.stats()
        # An item that is not a dead letter yet is pending.
        expected = len(self.waiting)
        if not expected <= found.pending <= expected + len(self.dead) + len(self.maybe_dead):
            raise Wrong(f"{found}, expected {expected} pending")

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self._drain()
        finally:
            self.stack.close()

    def _drain(self) -> None:
        """All unacked items come out, and nothing else."""
        self.clock.advance(100_000)
        self._expire()
        found = []
        while True:
            try:
                jobs = self.queue.get_many(7, block=False)
            except Empty:
                break
            found += [int((job.value or b"").rstrip(b".")) for job in jobs]
            self.queue.ack_many(jobs)
        dead = {int((shown.value or b"").rstrip(b".")) for shown in self.queue.dead_letters.peek(10_000)}
        expected = set(self.waiting)
        if len(found) != len(set(found)):
            raise Wrong(f"delivered twice: {found}")
        if missing := expected - set(found) - dead:
            raise Lost(f"{missing} were not acked, but are gone")
        if wrong := set(found) - expected - set(self.maybe_dead):
            raise Wrong(f"{wrong} were acked or dead, but came again")
        if missing := (self.dead | set(self.maybe_dead)) - dead - set(found):
            raise Lost(f"dead letters {missing} are gone")
        assert self.queue.join(timeout=0)
        self.queue.check()
        self.store.close()


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_queue_does_what_a_plain_model_does() -> None:
    _run(tries(60, quick=8), 40)


@pytest.mark.soak
def test_a_queue_does_what_a_plain_model_does_for_long() -> None:
    _run(3000, 80)
