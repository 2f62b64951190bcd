"""Every file operation of a queue's life fails once: no item that was put is lost, none that is done comes back."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import Empty, KstoreError
from kstore.files.local import SYSTEM_FS
from kstore.queue.queue import Queue
from kstore.store import Store
from tests.crash.numbered_items import number_of
from tests.crash.queue_life import small
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, READS, FailingFs, Fault, RecordingFs
from tests.support.harness.evidence import Lost, Untyped, Wrong, shuffled
from tests.support.harness.selection import tries

EVERYTHING = CHANGES | READS
SAMPLE = tries(15, quick=5)
PADDING = b"." * 900

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


class FaultyLife:
    """Puts and works; after a failure it opens the store again, and continues."""

    def __init__(self, path: Path, fs: FailingFs) -> None:
        self.path = path
        self.fs = fs
        self.clock = ManualClock()
        self.put: set[int] = set()
        self.doubtful: set[int] = set()
        self.done: set[int] = set()
        self.next = 0
        self.store: Store | None = None

    def _queue(self) -> Queue:
        if self.store is None:
            self.store = Store(self.path, background=False, fs=self.fs, clock=self.clock)
        return self.store.queue("jobs", max_deliveries=3, segment_bytes=1 << 14)

    def _put(self, count: int, delay: int = 0) -> None:
        numbers = range(self.next, self.next + count)
        self.next += count
        self.doubtful.update(numbers)
        self._queue().put_many([b"%d" % number + PADDING for number in numbers], delay=delay)
        self.put.update(numbers)

    def _work(self, count: int) -> None:
        try:
            jobs = self._queue().get_many(count, block=False)
        except Empty:
            return
        numbers = {number_of(job.value) for job in jobs}
        if again := numbers & self.done:
            raise Wrong(f"items {again} were done, and came again")
        self.put -= numbers  # from here on they may be done
        self.doubtful |= numbers
        self._queue().ack_many(jobs)
        self.done |= numbers

    def _nack(self) -> None:
        try:
            self._queue().get(block=False).nack(delay=1)
        except Empty:
            pass
        self.clock.advance(1000)

    def live(self) -> None:
        steps: list[Callable[[], object]] = [lambda: self._put(1), lambda: self._put(1, 3600), lambda: self._work(1)]
        for _ in range(4):
            steps += [lambda: self._put(12), self._nack, lambda: self._work(9), self._nack, self._nack]
        steps += [lambda: self._work(30), lambda: self._put(3)]
        for step in steps:
            try:
                step()
            except (Empty, KstoreError):
                self._give_up()
            except (Lost, Wrong):
                raise
            except Exception as error:
                raise Untyped(repr(error)) from error
        self._give_up()

    def _give_up(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            try:
                store.close()
            except KstoreError:
                pass
        self.fs.forget_syncs()

    def hold(self) -> None:
        self.clock.advance(10_000_000)
        queue = self._queue()
        found: list[int] = []
        while True:
            try:
                jobs = queue.get_many(20, block=False)
            except Empty:
                break
            found += [number_of(job.value) for job in jobs]
            queue.ack_many(jobs)
        queue.check()
        dead = {number_of(shown.value) for shown in queue.dead_letters.peek(1000)}
        self._give_up()
        if len(found) != len(set(found)):
            raise Wrong(f"items came twice: {sorted(found)}")
        if again := self.done & set(found):
            raise Wrong(f"items {again} were done, and came again")
        if lost := self.put - set(found) - dead:
            raise Lost(f"items {lost} were put, and are gone")


def _try_all(directory: Path, number: int, sample: int | None, tried: Callable[[str, int], None], seed: int) -> None:
    with small():
        counted = RecordingFs()
        life = FaultyLife(directory / "counted", FailingFs(counted))
        life.live()
        assert life.done
        assert life.put
        total = len(counted.kinds(of=EVERYTHING))
        for at in shuffled(range(1, total + 1), seed + number, sample or total):
            path = directory / "store"
            fs = FailingFs(SYSTEM_FS, Fault(at, errno=number, kinds=EVERYTHING))
            life = FaultyLife(path, fs)
            life.live()
            fs.faults.clear()
            life.hold()
            tried("faults", 1)
            shutil.rmtree(path, ignore_errors=True)


ERRORS = pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])


@ERRORS
@pytest.mark.promise("disk full", "sync fails")
@pytest.mark.sampled(1)
def test_a_queue_survives_the_failure_of_any_operation(
    number: int, directory: Path, tried: Callable[[str, int], None], seed: int
) -> None:
    _try_all(directory, number, SAMPLE, tried, seed)


@pytest.mark.soak
@ERRORS
@pytest.mark.promise("disk full", "sync fails")
def test_a_queue_survives_the_failure_of_every_operation(
    number: int, directory: Path, tried: Callable[[str, int], None], seed: int
) -> None:
    _try_all(directory, number, None, tried, seed)
