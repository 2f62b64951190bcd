"""The producer's memory: its accounts, the order of waiting threads, and that no memory is lost."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from kstore.errors import BufferExhaustedError, ClosedError, RecordTooLargeError
from kstore.producer import buffer_pool
from kstore.producer._accumulate import ProducerBatch
from kstore.producer.buffer_pool import BufferPool
from kstore.record._codec import BatchBuffer, OpenBatch
from tests.crash.interrupted_life import InterruptAfterCode
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.alarm import alarm
from tests.support.harness.evidence import Hung, Lost, Wrong

KIB = 1024
# Only a hang takes this long.
PATIENCE_SECONDS = 300.0


def small_pool(buffers: int = 5) -> BufferPool:
    return BufferPool(buffers * KIB, KIB)


class Waiter:
    """A thread that allocates, and the outcome."""

    def __init__(self, pool: BufferPool, size: int, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        self.got: BatchBuffer | None = None
        self.error: BaseException | None = None
        self._pool = pool
        self._asked = (size, timeout_seconds)
        self._thread = threading.Thread(target=self._run)
        before = pool.waiting_count
        self._thread.start()
        until(lambda: pool.waiting_count == before + 1 or not self._thread.is_alive())

    def _run(self) -> None:
        try:
            self.got = self._pool.allocate(*self._asked)
        except BaseException as error:
            self.error = error

    def join(self) -> Waiter:
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            raise Hung("a thread still waits for memory")
        return self


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Hung("the condition did not become true")
        time.sleep(0.0005)


# --- accounts ---------------------------------------------------------------------------------------------------------


def test_buffers_of_both_kinds_are_counted() -> None:
    pool = BufferPool(64 * KIB, KIB)
    pooled = pool.allocate(KIB, 0)
    assert (pooled.size, pooled.capacity >= KIB, pool.available, pool.free_count) == (0, True, 63 * KIB, 0)
    pooled.extend(b"x" * KIB)
    pool.deallocate(pooled)
    assert (pool.available, pool.free_count) == (64 * KIB, 1)
    again = pool.allocate(KIB, 0)
    assert again is pooled
    assert again.size == 0
    pool.deallocate(again, KIB)
    large = pool.allocate(2 * KIB, 0)
    assert (large.capacity >= 2 * KIB, pool.available, pool.free_count) == (True, 62 * KIB, 1)
    pool.deallocate(large, 2 * KIB)
    assert (pool.available, pool.free_count) == (64 * KIB, 1)


def test_memory_is_made_when_it_is_first_needed_and_then_used_again() -> None:
    pool = small_pool()
    assert pool.free_count == 0
    for _ in range(100):
        pool.deallocate(pool.allocate(KIB, 0))
    assert pool.free_count == 1


def test_free_buffers_are_dropped_for_a_large_request() -> None:
    pool = small_pool()
    for buffer in [pool.allocate(KIB, 0) for _ in range(5)]:
        pool.deallocate(buffer)
    assert pool.free_count == 5
    large = pool.allocate(3 * KIB + 1, 0)
    assert (pool.available, pool.free_count) == (2 * KIB - 1, 1)
    pool.deallocate(large)
    assert pool.available == 5 * KIB


def test_nothing_given_back_is_nothing() -> None:
    pool = small_pool()
    pool.deallocate(None)
    assert pool.available == 5 * KIB


def test_more_than_there_is_in_all_is_refused_at_once() -> None:
    pool = small_pool()
    pool.deallocate(pool.allocate(5 * KIB, 0))
    with pytest.raises(RecordTooLargeError, match=r"a buffer of 5121 bytes is over the limit of 5120 .*buffer_memory"):
        pool.allocate(5 * KIB + 1, 60)
    assert (pool.available, pool.waiting_count) == (5 * KIB, 0)


def test_sizes_beyond_32_bits_are_counted_right() -> None:
    total = 2**40
    pool = BufferPool(total, 2**31)
    held = pool.allocate(16 * KIB, 0)
    assert pool.available == total - 16 * KIB
    pool.deallocate(held)
    assert pool.available == total


def test_a_buffer_that_grew_is_not_kept() -> None:
    pool = BufferPool(64 * KIB, 16 * KIB)
    buffer = pool.allocate(16 * KIB, 0)
    buffer.reserve(16 * KIB)
    assert buffer.capacity == 16 * KIB
    buffer.reserve(16 * KIB + 1)
    pool.deallocate(buffer)
    assert (pool.available, pool.free_count) == (64 * KIB, 0)


def test_a_buffer_given_back_twice_is_refused() -> None:
    pool = small_pool()
    buffer = pool.allocate(KIB, 0)
    pool.deallocate(buffer)
    for stranger in (buffer, BatchBuffer(KIB)):
        with pytest.raises(ValueError, match="has not lent, or that was given back already"):
            pool.deallocate(stranger)
    assert (pool.available, pool.free_count) == (5 * KIB, 1)


def test_a_buffer_given_back_as_another_size_is_refused() -> None:
    pool = small_pool()
    buffer = pool.allocate(KIB, 0)
    with pytest.raises(ValueError, match="a buffer of 2048 bytes given back, expected the 1024"):
        pool.deallocate(buffer, 2 * KIB)
    assert pool.available == 4 * KIB
    pool.deallocate(buffer, KIB)
    assert pool.available == 5 * KIB


def test_a_buffer_with_an_open_batch_stays_lent() -> None:
    pool = small_pool()
    buffer = pool.allocate(KIB, 0)
    batch = OpenBatch(buffer, KIB)
    with pytest.raises(BufferError):
        pool.deallocate(buffer)
    assert pool.available == 4 * KIB
    batch.abort()
    pool.deallocate(buffer)
    assert (pool.available, pool.free_count) == (5 * KIB, 1)


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_request_that_waits_gets_what_another_thread_gives_back() -> None:
    pool = small_pool()
    held = pool.allocate(5 * KIB, 0)
    waiter = Waiter(pool, KIB)
    assert pool.waiting_count == 1
    pool.deallocate(held)
    assert waiter.join().got is not None
    assert (pool.available, pool.waiting_count) == (4 * KIB, 0)
    assert pool.wait_ns_total > 0


def test_a_request_in_vain_says_its_five_numbers() -> None:
    pool = BufferPool(2 * KIB, KIB)
    held = pool.allocate(KIB, 0)
    started = time.monotonic()
    with pytest.raises(BufferExhaustedError) as caught:
        pool.allocate(2 * KIB, 0.01)
    waited = time.monotonic() - started
    assert 0.01 <= waited < PATIENCE_SECONDS
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert (error.wanted, error.waited_ms, error.total_bytes, error.available, error.poolable_bytes) == (
        2 * KIB, 10, 2 * KIB, KIB, KIB,
    )  # fmt: skip
    for number in ("2048 bytes", "10 ms", "2048 (buffer_memory)", "1024 are free", "1024 (batch_size)"):
        assert number in str(error)
    assert (pool.exhausted_total, pool.waiting_count, pool.available) == (1, 0, KIB)
    pool.deallocate(held)
    assert pool.available == 2 * KIB


@pytest.mark.parametrize("timeout_seconds", [0.0, -1.0])
def test_without_time_a_request_fails_at_once(timeout_seconds: float) -> None:
    pool = small_pool(1)
    held = pool.allocate(KIB, 0)
    with pytest.raises(BufferExhaustedError):
        pool.allocate(KIB, timeout_seconds)
    pool.deallocate(held)


def test_a_request_may_wait_for_ever() -> None:
    pool = small_pool(1)
    held = pool.allocate(KIB, 0)
    waiter = Waiter(pool, KIB, timeout_seconds=2.0**63 / 1000)
    pool.deallocate(held)
    assert waiter.join().got is held


def test_what_comes_in_parts_is_enough_only_when_all_is_there() -> None:
    """Three buffers come back one by one while a request for all of them waits."""
    pool = small_pool(3)
    held = [pool.allocate(KIB, 0) for _ in range(3)]
    waiter = Waiter(pool, 3 * KIB)
    for number, buffer in enumerate(held):
        assert (pool.waiting_count, pool.available) == (1, number * KIB)
        pool.deallocate(buffer)
    assert waiter.join().got is not None
    assert (pool.available, pool.free_count) == (0, 0)


def test_an_abandoned_request_leaves_all_memory_to_the_others() -> None:
    pool = small_pool(3)
    held = [pool.allocate(KIB, 0) for _ in range(3)]
    in_vain = Waiter(pool, 3 * KIB, timeout_seconds=0.01)
    pool.deallocate(held[0])
    behind = Waiter(pool, KIB)
    assert isinstance(in_vain.join().error, BufferExhaustedError)
    # The next request waited after the first, and continues although no memory was returned.
    assert behind.join().got is not None
    assert (pool.available, pool.waiting_count) == (0, 0)


def test_requests_are_served_in_turn_and_newcomers_last() -> None:
    pool = small_pool(2)
    held = [pool.allocate(KIB, 0) for _ in range(2)]
    large = Waiter(pool, 2 * KIB)
    small = Waiter(pool, KIB)
    pool.deallocate(held[0])
    # There is memory for this request, but two others came first.
    with pytest.raises(BufferExhaustedError):
        pool.allocate(KIB, 0)
    assert (large.got, small.got) == (None, None)
    pool.deallocate(held[1])
    assert large.join().got is not None
    assert (small.got, pool.waiting_count) == (None, 1)
    pool.deallocate(large.got)
    assert small.join().got is not None


def test_a_thread_about_to_wait_calls_back_first() -> None:
    """Then any thread that can writes: a producer out of memory must not also wait for its linger."""
    asked: list[int] = []
    pool = BufferPool(KIB, KIB, on_wait=lambda: asked.append(pool.waiting_count))
    held = pool.allocate(KIB, 0)
    assert asked == []
    with pytest.raises(BufferExhaustedError):
        pool.allocate(KIB, 0)
    assert asked == [1]
    pool.deallocate(held)


# --- closing ----------------------------------------------------------------------------------------------------------


def test_a_closed_pool_lends_nothing_and_takes_back() -> None:
    pool = small_pool()
    held = pool.allocate(KIB, 0)
    pool.close()
    pool.close()
    with pytest.raises(ClosedError):
        pool.allocate(KIB, 60)
    pool.deallocate(held, KIB)
    assert pool.available == 5 * KIB


def test_closing_releases_all_waiting_threads() -> None:
    pool = small_pool(1)
    held = pool.allocate(KIB, 0)
    waiters = [Waiter(pool, KIB) for _ in range(2)]
    pool.close()
    assert all(isinstance(waiter.join().error, ClosedError) for waiter in waiters)
    pool.deallocate(held)
    assert (pool.available, pool.waiting_count) == (KIB, 0)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_ctrl_c_ends_a_wait() -> None:
    pool = small_pool(1)
    held = pool.allocate(KIB, 0)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: pool.waiting_count == 1)
        # The lock may not be requested yet; until then the signal waits as well.
        signal.pthread_kill(main, signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(KIB, PATIENCE_SECONDS)
    other.join()
    assert (pool.available, pool.waiting_count) == (0, 0)
    pool.deallocate(held)
    assert pool.available == KIB


def test_two_interrupted_waits_lose_nothing() -> None:
    """One is interrupted while it waits in the queue; the other has its memory already."""
    served = threading.Event()

    def interrupt() -> None:
        if pool.waiting_count == 2:
            pool.deallocate(held)
            served.set()
        raise KeyboardInterrupt

    pool = BufferPool(KIB, KIB, on_wait=lambda: blocked() if pool.waiting_count == 1 else interrupt())

    def blocked() -> None:
        until(served.is_set)
        raise KeyboardInterrupt

    held = pool.allocate(KIB, 0)
    waiters = [Waiter(pool, KIB) for _ in range(2)]
    assert all(isinstance(waiter.join().error, KeyboardInterrupt) for waiter in waiters)
    assert (pool.available, pool.waiting_count) == (KIB, 0)
    pool.deallocate(pool.allocate(KIB, 0))


def test_a_clock_that_fails_costs_no_memory() -> None:
    class BrokenClock(ManualClock):
        def monotonic(self) -> float:
            raise OverflowError("no time")

    pool = BufferPool(2 * KIB, KIB, BrokenClock())
    held = pool.allocate(KIB, 0)
    with pytest.raises(OverflowError, match="no time"):
        pool.allocate(2 * KIB, 1)
    assert (pool.available, pool.waiting_count) == (KIB, 0)
    pool.deallocate(held)
    assert pool.available == 2 * KIB


def test_real_memory_that_is_not_there_is_given_back_to_the_accounts() -> None:
    pool = BufferPool(2**62, KIB)
    with pytest.raises(MemoryError):
        pool.allocate(2**60, 0)
    assert pool.available == 2**62


def test_real_memory_that_is_not_there_lets_the_next_one_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = small_pool(2)
    held = pool.allocate(2 * KIB, 0)

    def refuse_large(capacity: int = 0) -> BatchBuffer:
        if capacity > KIB:
            raise MemoryError("no memory")
        return BatchBuffer(capacity)

    monkeypatch.setattr(buffer_pool, "BatchBuffer", refuse_large)
    large = Waiter(pool, 2 * KIB)
    small = Waiter(pool, KIB)
    pool.deallocate(held)
    assert isinstance(large.join().error, MemoryError)
    assert small.join().got is not None
    assert pool.available == KIB


def request_and_give_back(pool: BufferPool, size: int) -> None:
    """Takes and returns a free or a new buffer, or waits in vain; free ones come first, as in a send."""
    try:
        buffer = pool.take_free(size)
        if buffer is None:
            buffer = pool.allocate(size, 0.001)
        pool.deallocate(buffer)
    except BufferExhaustedError:
        assert size == 4 * KIB


@pytest.mark.parametrize("size", [KIB, 2 * KIB, 4 * KIB])
def test_an_interrupt_of_a_request_loses_nothing(size: int, tried: Callable[[str, int], None]) -> None:
    for number in count(1):
        pool = small_pool()
        held = pool.allocate(2 * KIB, 0)
        pool.deallocate(pool.allocate(KIB, 0))  # one is free
        with InterruptAfterCode(number) as interrupted:
            try:
                request_and_give_back(pool, size)
            except KeyboardInterrupt:
                pass
        if pool.available != 3 * KIB or pool.waiting_count:
            raise Lost(f"{interrupted.place}: {pool.available} bytes are free of {3 * KIB}, {pool.waiting_count} wait")
        pool.deallocate(held)
        pool.deallocate(pool.allocate(5 * KIB, 0))
        if not interrupted.struck:
            break
    assert number > (10 if size == 4 * KIB else 2)  # most of it is compiled
    tried("faults", number - 1)


def test_an_interrupt_of_a_thread_that_returns_memory_leaves_no_thread_waiting(
    monkeypatch: pytest.MonkeyPatch, tried: Callable[[str, int], None]
) -> None:
    monkeypatch.setattr(buffer_pool, "LOOK_AGAIN_SECONDS", 0.002)
    for number in count(1):
        pool = small_pool(1)
        held = [pool.allocate(KIB, 0)]
        waiter = Waiter(pool, KIB)
        with InterruptAfterCode(number) as interrupted:
            try:
                pool.deallocate(held.pop())
            except KeyboardInterrupt:
                pass
        try:
            assert waiter.join().got is not None
            pool.deallocate(waiter.got)
        except Exception as error:
            error.add_note(f"interrupted at {interrupted.place}")
            raise
        assert (pool.available, pool.waiting_count) == (KIB, 0)
        if not interrupted.struck:
            break
    assert number > 10
    tried("faults", number - 1)


def test_an_interrupt_leaves_no_call_for_freed_memory_out(
    tried: Callable[[str, int], None],
) -> None:
    for number in count(1):
        pool = small_pool(2)
        held = [pool.allocate(KIB, 0) for _ in range(2)]
        told: set[int] = set()
        for one in range(3):
            pool.when_freed(partial(told.add, one))
        with InterruptAfterCode(number) as interrupted:
            try:
                pool.deallocate(held[0])
            except KeyboardInterrupt:
                pass
        pool.deallocate(held[1])
        assert told == {0, 1, 2}, interrupted.place
        if not interrupted.struck:
            break
    assert number > 3
    tried("faults", number - 1)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_signals_at_any_time_cost_no_memory() -> None:
    """Real requests, as fast as they are served."""
    pool = small_pool()
    asked = came = 0

    def interrupt() -> None:
        nonlocal came
        if came < asked:
            came += 1
            raise KeyboardInterrupt

    with alarm(interrupt):
        # Repeatedly: this thread, which never waits, may not notice a signal that another thread received.
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        for asked in range(1, 201):
            try:
                # An interrupt that is raised in a finalizer, during a garbage collection, is lost.
                while True:  # not "while came < asked": CPython 3.13 leaves its jump out of the handler (gh-130279)
                    if came == asked:
                        break
                    request_and_give_back(pool, KIB)
            except KeyboardInterrupt:
                pass
            assert came == asked
            assert (pool.available, pool.waiting_count) == (5 * KIB, 0)


def test_a_buffer_that_is_dropped_is_given_back() -> None:
    pool = small_pool()
    buffer = pool.allocate(KIB, 0)
    batch = ProducerBatch("orders", 0, buffer, KIB, 0.0, pool_size=KIB)
    del buffer
    batch.append(b"v")
    batch.close()
    assert pool.available == 4 * KIB
    batch.take_buffer()
    assert (pool.available, batch.record_count) == (5 * KIB, 1)


# --- many threads -----------------------------------------------------------------------------------------------------


def stress(seed: int, rounds: int) -> None:
    """Ten threads, five buffers of 1 KiB: no two threads share a buffer, none is lost, no thread waits forever."""
    pool = small_pool()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        try:
            for _ in range(rounds):
                size = KIB if draw.random() < 0.5 else draw.randrange(1, 5 * KIB)
                buffer = pool.allocate(size, PATIENCE_SECONDS)
                mark = bytes([number]) * 8
                buffer.extend(mark)
                if draw.random() < 0.1:
                    time.sleep(0)
                if bytes(buffer) != mark:
                    raise Wrong("two threads had one buffer")
                pool.deallocate(buffer)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert (pool.available, pool.waiting_count) == (5 * KIB, 0)


def test_many_threads_share_little_memory(seed: int) -> None:
    stress(seed, 500)


@pytest.mark.soak
def test_many_threads_share_little_memory_for_long(seed: int) -> None:
    stress(seed, 50_000)
