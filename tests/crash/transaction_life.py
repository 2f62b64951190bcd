"""The life of a store with transactions over three partitions, to be ended by power cuts, kills and failing disks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kstore.errors import InvalidTransactionStateError, KstoreError, PoisonedError
from kstore.files.fs import FileSystem
from kstore.files.paths import TopicPartition
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.store import Store, coordinator_of
from tests.crash.power_cuts import ROOT
from tests.crash.repeated import repeated
from tests.support.fakes.crash_states import Disk, Image, everything
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Untyped, Wrong

PATH = ROOT / "store"
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
GROUP = "billing"
RECORD_COUNT = 2
# One thread, and no background work.
SETTINGS: dict[str, Any] = {"background": False, "recovery_threads": 1, "segment_bytes": 1024, "flush_ms": 10**9}


def opened(fs: FileSystem, clock: ManualClock) -> Store:
    return Store(PATH, fs=fs, clock=clock, **SETTINGS)


def prepared_image() -> Image:
    """A cleanly closed store with its topics. Two partitions of offsets are enough, and quick to make."""
    fs = MemoryRecording(MemoryFs(ROOT))
    with opened(fs, ManualClock()) as store:
        store.create_topic("orders", len(PARTITIONS))
        store.create_topic("__consumer_offsets", 2, cleanup_policy="compact")
    disk = Disk(ROOT, image={})
    for operation in fs.operations:
        disk.apply(operation)
    return disk.image(everything)


class Promise(NamedTuple):
    """What had returned: committed and aborted transactions, and the last assigned producer id."""

    committed: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()
    last_id: int = -1
    last_epoch: int = -1


class Session:
    """A producer's transactions in an open store, each with a number in its records and offsets."""

    def __init__(self, store: Store, transactional_id: str, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self.transactional_id = transactional_id
        self.producer = (-1, -1)
        self._sequences: dict[tuple[TopicPartition, tuple[int, int]], int] = {}

    def init(self) -> None:
        self.producer = coordinator_of(self._store).init_producer_id(self.transactional_id)

    def add(self) -> None:
        coordinator_of(self._store).add_partitions(self.transactional_id, *self.producer, PARTITIONS)

    def write(self, number: int, owner: TopicPartition) -> None:
        """May be repeated after a failure: the log knows the sequence."""
        place = (owner, self.producer)
        sequence = self._sequences.get(place, 0)
        now_ms = self._clock.now_ms()
        records = [Record(at, now_ms, value=value) for at, value in enumerate(values_of(number, owner))]
        data = build_batch(
            records,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
            is_transactional=True,
        )
        self._store.log(*owner).append_batches(data)
        self._sequences[place] = sequence + RECORD_COUNT

    def offsets(self, number: int) -> None:
        offsets = {PARTITIONS[0]: number, PARTITIONS[1]: number}
        coordinator_of(self._store).add_offsets(self.transactional_id, *self.producer, GROUP, offsets)

    def end(self, *, commit: bool) -> None:
        self.producer = coordinator_of(self._store).end(self.transactional_id, *self.producer, commit=commit)

    def begin(self, number: int, *, offsets: bool) -> None:
        for step in self.steps(number, offsets=offsets):
            step()

    def steps(self, number: int, *, offsets: bool) -> list[Callable[[], None]]:
        """What begins a transaction; each step may be repeated if it fails."""
        writes = [partial(self.write, number, owner) for owner in PARTITIONS]
        return [self.add, *writes, *([partial(self.offsets, number)] if offsets else [])]


def values_of(number: int, owner: TopicPartition) -> list[bytes]:
    return [b"%d-%d-%d" % (number, owner.partition, at) for at in range(RECORD_COUNT)]


# After a failed commit, these producers request an abort of theirs.
ABORTED_INSTEAD = (4, 7)


class TransactionLife:
    """A life, recorded (``RecordedLife``). A step that fails is repeated, in the same process."""

    def __init__(self) -> None:
        self.before = prepared_image()
        self.fs = MemoryRecording(MemoryFs(ROOT, self.before))
        self.clock = ManualClock()
        # Each with the number of preceding operations.
        self.promises: list[tuple[int, Promise]] = [(0, Promise())]
        # By transaction: when its commit started, and whether it has offsets.
        self.commits: dict[int, int] = {}
        self.with_offsets: set[int] = set()

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    @property
    def now(self) -> int:
        return len(self.fs.operations)

    def _promises_now(self, **changes: Any) -> None:
        self.promises.append((self.now, self.promises[-1][1]._replace(**changes)))

    def _repeated(self, step: Callable[[], object]) -> None:
        # Fails twice only if nothing can be written until the log is reopened.
        repeated(self.fs, step, may_fail=(PoisonedError,))

    def _init(self, session: Session) -> None:
        self._repeated(session.init)
        producer_id, epoch = session.producer
        self._promises_now(last_id=max(producer_id, self.promises[-1][1].last_id), last_epoch=epoch)

    def _begin(self, session: Session, number: int, *, offsets: bool = False) -> None:
        for step in session.steps(number, offsets=offsets):
            self._repeated(step)
        if offsets:
            self.with_offsets.add(number)
        self.clock.advance(7)

    def _end(self, session: Session, number: int, *, commit: bool) -> None:
        before = self.promises[-1][1]
        if commit:
            self.commits[number] = self.now
            commit = self._commit(session, abort_instead=number in ABORTED_INSTEAD)
        else:
            self._repeated(lambda: session.end(commit=False))
        if commit:
            self._promises_now(committed=(*before.committed, number))
        else:
            self._promises_now(aborted=(*before.aborted, number))

    def _commit(self, session: Session, *, abort_instead: bool) -> bool:
        """Whether it committed. With ``abort_instead`` a commit that fails is followed by an abort, if it may be."""
        is_aborting = False

        def end() -> None:
            nonlocal is_aborting
            try:
                session.end(commit=not is_aborting)
            except InvalidTransactionStateError:
                if not is_aborting:
                    raise
                # The commit was decided.
                is_aborting = False
                session.end(commit=True)
            except KstoreError:
                is_aborting = abort_instead
                raise

        self._repeated(end)
        return not is_aborting

    def live(self) -> None:
        with opened(self.fs, self.clock) as store:
            first, second = Session(store, "first", self.clock), Session(store, "second", self.clock)
            self._init(first)
            self._begin(first, 1)
            self._end(first, 1, commit=True)
            self._begin(first, 2, offsets=True)
            self._end(first, 2, commit=False)
            self._init(second)
            self._begin(first, 3, offsets=True)
            self._begin(second, 4)
            self._end(first, 3, commit=True)
            self._end(second, 4, commit=True)
            self._begin(first, 5)
            before = self.promises[-1][1]
            # Fences the producer, and aborts its transaction.
            self._init(first)
            self._promises_now(aborted=(*before.aborted, 5))
            self._begin(first, 6, offsets=True)
        # Transaction 6 was aborted when the store closed.
        with opened(self.fs, self.clock) as store:
            second = Session(store, "second", self.clock)
            self._init(second)
            self._begin(second, 7, offsets=True)
            self._end(second, 7, commit=True)

    # --- after the crash -----------------------------------------------------------------------------------------

    def promise(self, done: int) -> Promise:
        return self.promises[bisect_right(self.promises, done, key=lambda item: item[0]) - 1][1]

    def reopen(self, fs: FileSystem) -> None:
        opened(fs, self.clock).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        promised = self.promise(done)
        may_commit = {number for number, at in self.commits.items() if at < begun}

        def check() -> None:
            with opened(fs, self.clock) as store:
                found = hold(store, may_commit, self.with_offsets)
                if missing := set(promised.committed) - found:
                    raise Lost(f"committed, but not there: {missing}; there are {found}")
                if wrong := set(promised.aborted) & found:
                    raise Wrong(f"aborted, but there: {wrong}")
                self._go_on(store, promised)
            with opened(fs, self.clock) as store:
                hold(store, may_commit | {99}, self.with_offsets | {99}, found | {99})

        typed(check)

    def _go_on(self, store: Store, promised: Promise) -> None:
        """Producers replace the earlier ones, and continue."""
        made, _ = coordinator_of(store).init_producer_id(None)
        if made <= promised.last_id:
            raise Wrong(f"producer id {made} was assigned after {promised.last_id}")
        session = Session(store, "first", self.clock)
        session.init()
        session.begin(99, offsets=True)
        session.end(commit=True)


def typed(action: Callable[[], None]) -> None:
    """Turns errors into verdicts."""
    try:
        action()
    except KstoreError as error:
        raise Lost(f"cannot be opened, read or continued: {error!r}") from error
    except (OSError, LookupError, ValueError) as error:
        raise Untyped(repr(error)) from error


def hold(store: Store, may_commit: set[int], with_offsets: set[int], expected: set[int] | None = None) -> set[int]:
    """The transactions that committed readers see: each whole, in every partition, and none open."""
    seen: dict[int, int] = {}
    for owner in PARTITIONS:
        log = store.log(*owner)
        if log.last_stable_offset != log.end_offset or log.transactions():
            raise Wrong(f"{owner}: a transaction stays open: {log.transactions()}")
        there = [record.value for record in log.read(isolation_level="read_committed")]
        for number in sorted({int((value or b"").split(b"-")[0]) for value in there}):
            parts = [value for value in there if (value or b"").startswith(b"%d-" % number)]
            if parts != values_of(number, owner):
                raise Wrong(f"{owner} has {parts} of transaction {number}")
            seen[number] = seen.get(number, 0) + 1
    if torn := {number for number, count in seen.items() if count < len(PARTITIONS)}:
        raise Wrong(f"transactions {torn} are in some partitions only: {seen}")
    found = set(seen)
    if unasked := found - may_commit:
        raise Wrong(f"transactions {unasked} were never committed")
    if expected is not None and found != expected:
        raise Wrong(f"there are {found}, expected {expected}")
    committed = coordinator_of(store).committed(GROUP)
    last = max(found & with_offsets, default=None)
    offsets = {} if last is None else {PARTITIONS[0]: last, PARTITIONS[1]: last}
    if {owner: kept.offset for owner, kept in committed.items()} != offsets:
        raise Wrong(f"committed offsets {committed}, expected {offsets}")
    if coordinator_of(store).unstable(GROUP):
        raise Wrong("an offset waits for a transaction")
    return found
