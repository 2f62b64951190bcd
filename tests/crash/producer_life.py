"""The life of producers whose file operations fail: sends to two partitions, rolls, transactions, close."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.producer._accumulate import Delivery
from kstore.producer.producer import Producer
from kstore.store import Store, coordinator_of
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, WatchedFs
from tests.support.harness.evidence import Hung, Lost, Untyped, Wrong
from tests.support.lives.producer_helpers import producer_of

TOPICS: dict[str, dict[str, Any]] = {"orders": {}, "moves": {}}
PARTITIONS = 2
GROUP = "billing"
# The topic of the committed offsets. It is not in this store, where an open would limit them to the log's end.
ELSEWHERE = TopicPartition("elsewhere", 0)
SETTINGS: dict[str, Any] = {"background": False, "recovery_threads": 1, "segment_bytes": 1024, "flush_ms": 10**9}
PRODUCER: dict[str, Any] = {
    "linger_ms": 0,
    "batch_size": 300,
    "buffer_memory": 2000,
    "max_block_ms": 0,
    "delivery_timeout_ms": 3000,
}
# A life reads the clock a few thousand times.
LOOKS_MAX = 200_000
TRANSACTION_COUNT = 4
TRIES = 3


class PassingClock(ManualClock):
    """Time passes whenever the clock is read; an endless loop is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        if self._looks > LOOKS_MAX:
            raise Hung("a call waits forever")
        self.advance(1)
        return super().monotonic()


def prepare(path: Path, durability: Durability, fs: FileSystem = SYSTEM_FS) -> None:
    """A store with its topics, cleanly closed."""
    with Store(path, durability=durability, clock=ManualClock(), fs=fs, **SETTINGS) as store:
        for topic, settings in TOPICS.items():
            store.create_topic(topic, PARTITIONS, **settings)
        store.create_topic("__consumer_offsets", 1, cleanup_policy="compact")


class Known(NamedTuple):
    """What has returned: acknowledged records by value, and transactions by number."""

    acknowledged: frozenset[bytes] = frozenset()
    committed: frozenset[int] = frozenset()
    aborted: frozenset[int] = frozenset()


class ProducerLife:
    """One life with two producers in a prepared store."""

    def __init__(self, path: Path, fs: WatchedFs, durability: Durability) -> None:
        self.path = path
        self.fs = fs
        self.durability = durability
        self.sent: dict[bytes, Delivery] = {}
        # The certain transactions, by number; those in neither set exist completely or not at all.
        self.committed: set[int] = set()
        self.aborted: set[int] = set()

    # --- to live ----------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """The whole life; failed calls are given up. Raises: Untyped, Hung."""
        store = self._opened()
        try:
            if store is not None:
                self._work(store)
        finally:
            if store is not None:
                self._typed(store.close)

    def _opened(self) -> Store | None:
        made: list[Store] = []
        self._typed(
            lambda: made.append(
                Store(self.path, durability=self.durability, fs=self.fs, clock=PassingClock(), **SETTINGS)
            )
        )
        return made[0] if made else None

    def _work(self, store: Store) -> None:
        sender = producer_of(store, is_threaded=False, **PRODUCER)
        mover = producer_of(store, is_threaded=False, transactional_id="mover", **PRODUCER)
        for number in range(TRANSACTION_COUNT):
            self._send(sender, number)
            self._move(mover, number)
        for producer in (mover, sender):
            self._typed(producer.close)

    def _send(self, producer: Producer, round_number: int) -> None:
        for number in range(12):
            value = b"%03d-%03d" % (round_number, number) + b"v" * 70
            made: list[Delivery] = []
            self._typed(
                lambda made=made, value=value, number=number: made.append(  # type: ignore[misc]
                    producer.send("orders", value, partition=number % PARTITIONS)
                )
            )
            if made:
                self.sent[value] = made[0]
        self._typed(producer.flush)

    def _move(self, producer: Producer, number: int) -> None:
        """A transaction with offsets; every other one is aborted. A failed one is aborted, with retries."""
        commits = number % 2 == 0

        def begin() -> None:
            producer.init_transactions()
            producer.begin_transaction()

        def work() -> None:
            for partition in range(PARTITIONS):
                producer.send("moves", b"%d" % number, partition=partition)
            producer.send_offsets({ELSEWHERE: number}, GROUP)
            if not commits:
                producer.flush()

        if self._typed(begin) and self._typed(work) and commits:
            for _ in range(TRIES):
                if self._typed(producer.commit_transaction):
                    self.committed.add(number)
                    return
            return  # unknown
        if not commits:
            self.aborted.add(number)
        for _ in range(TRIES):
            if self._typed(producer.abort_transaction):
                self.aborted.add(number)
                return

    def _typed(self, action: Callable[[], object]) -> bool:
        """Whether ``action`` returned. Raises: Untyped for an error that is not kstore's own, and Hung."""
        try:
            action()
        except (KstoreError, TimeoutError):
            return False
        except AssertionError:
            raise
        except Exception as error:
            raise Untyped(repr(error)) from error
        return True

    # --- after the crash -----------------------------------------------------------------------------------------

    def known(self) -> Known:
        """What has returned by now."""
        acknowledged = frozenset(value for value, one in self.sent.items() if one.done() and one.exception() is None)
        return Known(acknowledged, frozenset(self.committed), frozenset(self.aborted))

    def check(self) -> None:
        """Opens the store again, on a working disk. Raises: the verdicts."""
        if isinstance(self.fs, FailingFs):
            self.fs.faults.clear()
            self.fs.forget_syncs()
        self.check_results()
        self.check_disk(SYSTEM_FS, self.known())

    def check_results(self) -> None:
        """Every record has a result. Raises: Hung, Untyped."""
        for value, delivery in self.sent.items():
            if not delivery.done():
                raise Hung(f"{value[:7]!r} has no result")
            error = delivery.exception()
            if error is not None and not isinstance(error, KstoreError):
                raise Untyped(f"{value[:7]!r} failed with {error!r}") from error

    def check_disk(self, fs: FileSystem, known: Known) -> None:
        """Opens the store on ``fs``: it has all that is ``known``. Raises: the verdicts."""
        try:
            with Store(self.path, durability=self.durability, clock=ManualClock(), fs=fs, **SETTINGS) as store:
                self._check_sent(store, known)
                self._check_moved(store, known)
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error

    def _check_sent(self, store: Store, known: Known) -> None:
        for partition in range(PARTITIONS):
            found = {record.offset: bytes(record.value or b"") for record in store.log("orders", partition).read()}
            values = list(found.values())
            if values != sorted(set(values)):
                raise Wrong(f"twice, or out of order in {partition}: {[value[:7] for value in values]}")
            if unknown := set(values) - set(self.sent):
                raise Wrong(f"never sent: {unknown}")
            for value, delivery in self.sent.items():
                is_here = delivery.partition == partition and value in known.acknowledged
                if is_here and found.get(delivery.offset) != value:
                    raise Lost(f"{delivery!r} has {found.get(delivery.offset)!r}, expected {value[:7]!r}")

    def _check_moved(self, store: Store, known: Known) -> None:
        seen: list[list[int]] = []
        for partition in range(PARTITIONS):
            log = store.log("moves", partition)
            seen.append([int(record.value or b"") for record in log.read(isolation_level="read_committed")])
            if log.transactions():
                raise Wrong(f"open in {partition}: {log.transactions()}")
        if seen[0] != seen[1] or len(set(seen[0])) != len(seen[0]):
            raise Wrong(f"transactions in part, or twice: {seen}")
        if lost := known.committed - set(seen[0]):
            raise Lost(f"transactions {lost} were committed, and only {seen[0]} exist")
        if wrong := known.aborted & set(seen[0]):
            raise Wrong(f"transactions {wrong} were aborted")
        kept = coordinator_of(store).committed(GROUP).get(ELSEWHERE)
        expected = seen[0][-1] if seen[0] else None
        if (None if kept is None else kept.offset) != expected:
            raise Wrong(f"offset {kept}, expected {expected}")
