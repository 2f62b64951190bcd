"""The life of a consumer group, to be ended by any fault: members come and go, read, and commit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from kstore import TopicPartition
from kstore.consumer.consumer import Consumer
from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.store import Store
from tests.crash.power_cuts import ROOT
from tests.crash.transaction_life import opened
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Untyped, Wrong

GROUP = "billing"
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
RECORDS = 9
# One poll returns at most this many records, so that a commit is seldom at a partition's end.
RECORDS_PER_POLL = 4
# A member that polls forever without records hangs.
POLLS_MAX = 200

Offsets = dict[TopicPartition, int]


class Commit(NamedTuple):
    """A commit that began after that many operations, and had returned after ``ended``; None if it never did."""

    began: int
    offsets: Offsets


def value_of(owner: TopicPartition, offset: int) -> bytes:
    return b"%d:%d" % (owner.partition, offset)


def prepared() -> Image:
    """A cleanly closed store with a topic and its records, and one partition of committed offsets."""
    memory = MemoryFs(ROOT)
    with opened(memory, ManualClock()) as store:
        store.create_topic("orders", len(PARTITIONS))
        store.create_topic("__consumer_offsets", 1, cleanup_policy="compact")
        for owner in PARTITIONS:
            for offset in range(RECORDS):
                store.log(*owner).append(value_of(owner, offset))
    return memory.image()


class GroupLife:
    """A life, recorded (``RecordedLife``)."""

    def __init__(self) -> None:
        self.before = prepared()
        self.fs = MemoryRecording(MemoryFs(ROOT, self.before))
        self.clock = ManualClock()
        self.begun: list[Commit] = []
        # After how many operations how many of these commits had returned.
        self.returned: list[tuple[int, int]] = [(0, 0)]

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def _commit(self, member: Consumer) -> None:
        offsets = {owner: self._known(owner) for owner in PARTITIONS} | dict(member.positions())
        self.begun.append(Commit(len(self.operations), offsets))
        member.commit()
        self.returned.append((len(self.operations), len(self.begun)))
        self.clock.advance(7)

    def _known(self, owner: TopicPartition) -> int:
        return self.begun[-1].offsets[owner] if self.begun else 0

    def live(self) -> None:
        with opened(self.fs, self.clock) as store, self._member(store) as first:
            for _ in range(2):
                first.poll(timeout=0)
                self._commit(first)
            with self._member(store) as second:
                for _ in range(3):
                    for member in (first, second):
                        member.poll(timeout=0)
                        self._commit(member)
            first.poll(timeout=0)
            self._commit(first)
        with opened(self.fs, self.clock) as store, self._member(store) as last:
            last.poll(timeout=0)
            self._commit(last)

    def _member(self, store: Store) -> Consumer:
        return store.consumer("orders", group=GROUP, auto_offset_reset="earliest", max_poll_records=RECORDS_PER_POLL)

    # --- after the crash -----------------------------------------------------------------------------------------

    def promise(self, done: int) -> int:
        """How many commits had returned."""
        return self.returned[bisect_right(self.returned, done, key=lambda item: item[0]) - 1][1]

    def reopen(self, fs: FileSystem) -> None:
        opened(fs, self.clock).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        try:
            with opened(fs, self.clock) as store:
                committed = self._committed(store, begun, done)
                self._read_on(store, committed)
            with opened(fs, self.clock) as store:
                ends = dict.fromkeys(PARTITIONS, RECORDS)
                if (found := offsets_in(store)) != ends:
                    raise Lost(f"committed at the end: {found}, expected {ends}")
        except KstoreError as error:
            raise Lost(f"cannot be opened, read or continued: {error!r}") from error
        except (OSError, LookupError, ValueError) as error:
            raise Untyped(repr(error)) from error

    def _committed(self, store: Store, begun: int, done: int) -> Offsets:
        """What is committed: the last commit that returned, or one that began after it."""
        number = self.promise(done)
        before: Offsets = self.begun[number - 1].offsets if number else dict.fromkeys(PARTITIONS, 0)
        allowed = [before, *(one.offsets for one in self.begun[number:] if one.began < begun)]
        found = dict.fromkeys(PARTITIONS, 0) | offsets_in(store)
        if found not in allowed:
            verdict = Lost if any(found[owner] < before[owner] for owner in PARTITIONS) else Wrong
            raise verdict(f"committed are {found}, expected one of {allowed}")
        return found

    def _read_on(self, store: Store, committed: Offsets) -> None:
        """A new member gets every record from the committed offsets on, in order, and no other."""
        expected = {owner: list(range(start, RECORDS)) for owner, start in committed.items()}
        found: dict[TopicPartition, list[int]] = {owner: [] for owner in PARTITIONS}
        with self._member(store) as member:
            for _ in range(POLLS_MAX):
                if found == expected:
                    break
                for owner, records in member.poll(timeout=0).items():
                    for record in records:
                        if record.value != value_of(owner, record.offset):
                            raise Wrong(f"{owner} has {record.value!r} at {record.offset}")
                        found[owner].append(record.offset)
                self.clock.advance(1000)
            member.commit()
        if found != expected:
            raise Lost(f"read on from {committed}: {found}")


def offsets_in(store: Store) -> Offsets:
    return {owner: kept.offset for owner, kept in store.consumer_offsets.committed(GROUP).items()}
