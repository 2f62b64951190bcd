"""A queue counts only items, although its log also holds markers, aborted items and open transactions."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.engine.read.reader import open_reader
from kstore.errors import ClosedError, Empty, Full
from kstore.queue.offsets import BLOCK_SIZE, OffsetSet
from kstore.queue.queue import Queue, core_of
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store(tmp_path / "store", clock=clock, background=False, durability="os") as opened:
        yield opened


class _Undone(Exception):
    """Aborts a transaction."""


def transact(store: Store, *values: bytes, commit: bool = True) -> None:
    """Puts ``values`` into the queue "jobs" in one transaction."""
    with store.producer(transactional_id="t") as producer:
        try:
            with producer.transaction():
                for value in values:
                    producer.send("jobs", value)
                producer.flush()
                if not commit:
                    raise _Undone
        except _Undone:
            pass


def counted(queue: Queue) -> tuple[int, bool, int]:
    queue.check()
    return queue.qsize(), queue.empty(), queue.stats().pending


def drained(queue: Queue) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        try:
            jobs = queue.get_many(3, block=False)
        except Empty:
            return found
        found += [job.value for job in jobs]
        queue.ack_many(jobs)


def test_an_aborted_transaction_leaves_a_queue_empty(store: Store) -> None:
    queue = store.queue("jobs")
    transact(store, b"a", b"b", commit=False)
    assert counted(queue) == (0, True, 0)
    assert queue.join(timeout=0)
    with pytest.raises(Empty):
        queue.get_nowait()
    assert counted(queue) == (0, True, 0)


def test_markers_take_no_room(store: Store) -> None:
    queue = store.queue("jobs", maxsize=2)
    transact(store, b"a")
    transact(store, b"b", b"c", commit=False)
    assert not queue.full()
    transact(store, b"d")
    assert counted(queue) == (2, False, 2)
    assert queue.full()
    with pytest.raises(Full, match="holds 2 waiting items"):
        queue.put_nowait(b"e")
    queue.get_nowait().ack()
    assert not queue.full()
    queue.put_nowait(b"e")
    assert drained(queue) == [b"d", b"e"]
    assert counted(queue) == (0, True, 0)


def test_the_items_of_an_open_transaction_do_not_count_until_it_is_committed(store: Store) -> None:
    queue = store.queue("jobs")
    queue.put(b"a")
    producer = store.producer(transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("jobs", b"b")
    producer.flush()
    queue.put(b"c")
    assert counted(queue) == (1, False, 1)  # "c" is not delivered before the transaction ends
    producer.commit_transaction()
    assert counted(queue) == (3, False, 3)
    producer.close()
    assert drained(queue) == [b"a", b"b", b"c"]


def test_items_count_whatever_was_read_and_however_often_one_asks(store: Store, tmp_path: Path) -> None:
    """Counts fit a model that knows every item, after every step of a random life."""
    queue = store.queue("jobs")
    random_ = random.Random(7)
    waiting: list[bytes] = []
    leased: list[kstore.Job] = []
    for number in range(100):
        kind = random_.randrange(6)
        values = [b"%d-%d" % (number, at) for at in range(random_.randrange(1, 4))]
        if kind == 0:
            queue.put_many(values)
            waiting += values
        elif kind in (1, 2):
            commit = random_.random() < 0.6
            transact(store, *values, commit=commit)
            waiting += values * commit
        elif kind == 3 and waiting:
            jobs = queue.get_many(random_.randrange(1, 4))
            assert [job.value for job in jobs] == waiting[: len(jobs)]
            del waiting[: len(jobs)]
            leased += jobs
        elif kind == 4 and leased:
            queue.ack_many([leased.pop(random_.randrange(len(leased)))])
        elif kind == 5 and number % 10 == 0:
            queue.check()
            continue  # not every time
        assert counted(queue) == (len(waiting), not waiting, len(waiting) + len(leased)), number
    queue.ack_many(leased)
    assert drained(queue) == waiting
    assert queue.join(timeout=0)


def test_counting_goes_on_where_it_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is read once for counting, however many batches and requests there are."""
    monkeypatch.setattr("kstore.queue.core.COUNTED_BATCHES", 3)
    queue = store.queue("jobs")
    transact(store, b"a", commit=False)
    for _ in range(10):
        queue.put(b"x")
    assert queue.qsize() == 10
    counted_end = core_of(queue).items.high_watermark
    reads: list[int] = []

    def noted(log: object, decode: object, start: int, *rest: object) -> object:
        reads.append(start)
        return open_reader(log, decode, start, *rest)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr("kstore.queue.core.open_reader", noted)
    assert queue.qsize() == 10
    queue.put(b"y")
    assert queue.qsize() == 11
    assert reads == [counted_end]


def test_an_item_whose_lease_is_over_waits_again(store: Store, clock: ManualClock) -> None:
    queue = store.queue("jobs", lease_seconds=10, maxsize=2)
    queue.put_many([b"a", b"b"])
    first = queue.get_nowait()
    second = queue.get(lease_seconds=60)
    assert counted(queue) == (0, True, 2)
    clock.advance(11_000)
    assert counted(queue) == (1, False, 2)
    assert queue.get_nowait().value == first.value
    second.ack()
    assert counted(queue) == (0, True, 1)


def test_what_cannot_be_read_does_not_wait(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "store"
    with Store(path, clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs", maxsize=2)
        queue.put(b"lost")
        queue.put(b"kept")
    log = path / "jobs-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[data.index(b"lost")] ^= 1
    log.write_bytes(data)
    with Store(path, clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs", maxsize=2)
        assert drained(queue) == [b"kept"]
        assert counted(queue) == (0, True, 1)
        assert queue.stats().damaged == 1
        queue.put_many([b"a", b"b"], block=False)


def test_a_queue_reopened_after_transactions_counts_as_before(tmp_path: Path, clock: ManualClock) -> None:
    for _ in range(3):
        with Store(tmp_path / "store", clock=clock, background=False, durability="os") as store:
            queue = store.queue("jobs")
            before = queue.qsize()
            transact(store, b"a", b"b")
            transact(store, b"c", commit=False)
            assert counted(queue)[0] == before + 2
            queue.get_nowait().ack()
            assert counted(queue)[0] == before + 1


def test_a_closed_queue_counts_nothing(store: Store) -> None:
    queue = store.queue("jobs")
    transact(store, b"a")
    queue.close()
    for ask in (queue.qsize, queue.empty, queue.stats):
        with pytest.raises(ClosedError):
            ask()


SHARER = """
import sys
import kstore
from kstore.errors import Empty, Full
with kstore.open(sys.argv[1], durability="os", shared=True) as store:
    queue = store.queue("jobs", maxsize=4)
    for line in sys.stdin:
        try:
            print(eval(line), flush=True)
        except (Empty, Full) as error:
            print(type(error).__name__, flush=True)
"""


@pytest.mark.long
def test_processes_that_share_a_queue_count_the_same(tmp_path: Path) -> None:
    """Even one that never takes an item, and so learns of markers only by counting."""
    with Store(tmp_path / "store", background=False, durability="os") as store:
        store.queue("jobs")
        transact(store, b"a", b"b")
        transact(store, b"c", commit=False)
        transact(store, b"d")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARER, tmp_path / "store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]

    def say(number: int, what: str) -> str:
        stdin, stdout = processes[number].stdin, processes[number].stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(what + "\n")
        stdin.flush()
        return stdout.readline().strip()

    ask = "(queue.qsize(), queue.full(), queue.stats().pending)"
    try:
        assert say(0, ask) == say(1, ask) == "(3, False, 3)"
        for left in (3, 2, 1):
            assert say(0, ask) == say(1, ask) == f"({left}, False, {left})"
            assert say(1, "queue.get_nowait().ack()") == "None"
        assert say(0, ask) == say(1, ask) == "(0, False, 0)"
        assert say(0, "queue.put_many([b'.'] * 4, block=False) >= 0") == "True"
        assert say(1, "queue.put_nowait(b'.')") == "Full"
        assert say(1, "queue.get_nowait().value") == "b'.'"
        assert say(0, ask) == say(1, ask) == "(3, False, 4)"
    finally:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_a_set_of_offsets_is_a_set(seed: int) -> None:
    random_ = random.Random(seed)
    found, expected = OffsetSet(), set[int]()
    base = random_.choice([0, BLOCK_SIZE - 5, 2**40])

    def some() -> int:
        return base + random_.randrange(3 * BLOCK_SIZE)

    steps: list[Callable[[], None]] = []

    def add() -> None:
        first, count = some(), random_.choice([0, 1, 7, 2 * BLOCK_SIZE])
        found.add_range(first, first + count)
        expected.update(range(first, first + count))

    def discard() -> None:
        offset = some()
        found.discard(offset)
        expected.discard(offset)

    def keep() -> None:
        start = some() - BLOCK_SIZE
        found.keep_from(start)
        expected.difference_update([offset for offset in expected if offset < start])

    steps += [add, add, discard, discard, discard, keep]
    for _ in range(200):
        random_.choice(steps)()
        assert len(found) == len(expected)
        probe = some()
        assert (probe in found) == (probe in expected)
    assert all(offset in found for offset in expected)
