"""The life of a store with backups and restores, to be ended by power cuts, kills and failing disks."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kstore.archive.target import BackupTarget
from kstore.backup.check import check_backups
from kstore.backup.restore import restore
from kstore.errors import KstoreError
from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import TopicPartition
from kstore.store import Store
from tests.crash.power_cuts import ROOT
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, FailingFs, Fault, Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Untyped, Wrong

STORE, BACKUPS = ROOT / "store", ROOT / "disk" / "backups"
# One thread, and no background work.
SETTINGS: dict[str, Any] = {
    "background": False,
    "recovery_threads": 1,
    "segment_bytes": 1024,
    "flush_ms": 10**9,
    "file_delete_delay_ms": 0,
}
# Long enough for a file to be settled: the next backup believes its time.
STEP_MS = 5_000
# One in this many states is backed up again, which takes longer than all other checks.
STATES_PER_BACKUP = 5


class Contents(NamedTuple):
    """What a store holds: each partition's start and committed values by offset, and a committed offset."""

    starts: dict[str, int]
    values: dict[tuple[str, int], bytes | None]
    committed: int | None


NOTHING = Contents({}, {}, None)


def opened(fs: FileSystem, clock: ManualClock, path: Path = STORE) -> Store:
    return Store(path, fs=fs, clock=clock, **SETTINGS)


def contents_of(store: Store) -> Contents:
    starts, values = {}, {}
    for number in store.partitions("orders"):
        log, name = store.log("orders", number), f"orders-{number}"
        starts[name] = log.start_offset
        values.update({(name, one.offset): one.value for one in log.read(isolation_level="read_committed")})
    return Contents(starts, values, store.consumer_offsets.offset_at("billing", TopicPartition("orders", 0)))


def append(store: Store, count: int) -> None:
    for number in range(count):
        log = store.log("orders", number % 2)
        log.append(b"%d" % log.end_offset + bytes(200))


@contextmanager
def transaction(store: Store) -> Iterator[None]:
    """A transaction in both partitions; it ends after the block."""
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(2):
            producer.send("orders", b"in a transaction", partition=number)
        producer.flush()
        yield
        producer.commit_transaction()


def change_kinds(image: Image) -> list[str]:
    """What the first backup of a store changes on the disk, in order."""
    fs = MemoryRecording(MemoryFs(ROOT, image))
    clock = ManualClock()
    clock.advance(STEP_MS)
    with opened(fs, clock) as store:
        before = len(fs.kinds(of=CHANGES))
        store.backup(BACKUPS)
        return fs.kinds(of=CHANGES)[before:]


def prepared() -> Image:
    """A store with its topics and records, closed cleanly."""
    memory, clock = MemoryFs(ROOT), ManualClock()
    with opened(memory, clock) as store:
        store.create_topic("orders", 2)
        for internal in ("__consumer_offsets", "__transaction_state"):
            store.create_topic(internal, 1, cleanup_policy="compact")
        append(store, 16)
        with transaction(store):
            pass
        store.consumer_offsets.commit("billing", {TopicPartition("orders", 0): 5})
    return memory.image()


class Backup(NamedTuple):
    """A backup that began after that many operations, and was complete after ``ended``."""

    began: int
    ended: int
    time_ms: int
    contents: Contents


class Restored(NamedTuple):
    """A restore to ``path`` that began after that many operations, and returned after ``ended``."""

    began: int
    ended: int
    path: Path
    contents: Contents


class BackupLife:
    """A life, recorded (``RecordedLife``): three backups with changes between them, and restores."""

    def __init__(self, before: Image, *, killed_at: int = 0) -> None:
        """``killed_at``: the first backup's process dies at its change of this number; another one continues."""
        self.before = before
        self.fs = MemoryRecording(MemoryFs(ROOT, before))
        self.operations: Sequence[Operation] = self.fs.operations
        self.clock = ManualClock()
        self.killed_at = killed_at
        self.backups: list[Backup] = []
        self.restores: list[Restored] = []
        # What the store held after that many operations; the first entry is from before the life.
        self.held: list[tuple[int, Contents]] = []
        self._tries = 0
        # The contents that restores gave, by manifest.
        self._restored: dict[bytes, Contents] = {}

    @property
    def now(self) -> int:
        return len(self.fs.operations)

    def live(self) -> None:
        try:
            self._live()
        except BaseException:
            self._note_what_is_left()
            raise

    def _note_what_is_left(self) -> None:
        """A fault has ended the life: what its last step did may be there, and what the closes after it did.

        Raises: Wrong for a backup that is of neither time.
        """
        left = MemoryFs(ROOT, self.fs.memory.image())
        if not self.held:
            with opened(MemoryFs(ROOT, self.before), self.clock) as store:
                self._held(store)
        before = self.held[-1][1]
        with opened(left, self.clock) as store:
            after = contents_of(store)
        self.held.append((sys.maxsize, after))
        known = {one.time_ms for one in self.backups}
        for time_ms in BackupTarget(BACKUPS, fs=left).names().keys() - known:
            contents = restored(left, self.clock, time_ms)
            if contents not in (before, after):
                raise Wrong(f"the backup {time_ms} has {contents}, expected {before} or {after}")
            self.backups.append(Backup(0, sys.maxsize, time_ms, contents))

    def _live(self) -> None:
        self.clock.advance(STEP_MS)
        if self.killed_at:
            self._kill_a_backup()
        with opened(self.fs, self.clock) as store:
            self._held(store)
            self._backup(store)
            self._change(store, lambda: append(store, 6))
            self._change(store, lambda: store.log("orders", 0).delete_records(6))
            self._change(store, lambda: store.run_task("retention"))
            self._change(store, lambda: store.run_task("removal"))
            self._change(store, lambda: self._transact(store))
            self._backup(store)
        for number in (0, len(self.backups) - 1):
            backup, path, began = self.backups[number], ROOT / f"restored{number}", self.now
            restore(BACKUPS, path, at_ms=backup.time_ms, fs=self.fs, clock=self.clock)
            self.restores.append(Restored(began, self.now, path, backup.contents))

    def _held(self, store: Store) -> None:
        self.held.append((self.now, contents_of(store)))

    def _change(self, store: Store, act: Callable[[], object]) -> None:
        act()
        self._held(store)
        self.clock.advance(STEP_MS)

    def _transact(self, store: Store) -> None:
        with transaction(store):
            self._backup(store)

    def _backup(self, store: Store) -> None:
        began, contents = self.now, contents_of(store)
        time_ms = self._back_up(store)
        self.backups.append(Backup(began, self.now, time_ms, contents))

    def _back_up(self, store: Store) -> int:
        return store.backup(BACKUPS).time_ms

    def _kill_a_backup(self) -> None:
        failing = FailingFs(self.fs)
        store = opened(failing, self.clock)
        failing.faults.append(Fault(self.killed_at, sticky=True, raising=KeyboardInterrupt()))
        with suppress(KeyboardInterrupt):
            self._back_up(store)

    # --- after the crash ----------------------------------------------------------------------------------------------

    def promise(self, done: int) -> tuple[int, int, int]:
        """How many backups and restores were complete, and how many changes were done."""
        return (
            sum(one.ended <= done for one in self.backups),
            sum(one.ended <= done for one in self.restores),
            sum(at <= done for at, _ in self.held),
        )

    def reopen(self, fs: FileSystem) -> None:
        opened(fs, self.clock).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        try:
            self._check_backups(fs, begun, done)
            self._check_restores(fs, begun, done)
            self._check_store(fs, done)
        except KstoreError as error:
            raise Lost(f"cannot be opened, read, backed up or restored: {error!r}") from error
        except (OSError, LookupError, ValueError) as error:
            raise Untyped(repr(error)) from error

    def _check_backups(self, fs: FileSystem, begun: int, done: int) -> None:
        """Each complete backup is there; one that only began is there completely, or not at all."""
        may = {one.time_ms: one for one in self.backups if one.began < begun}
        found = sound_backups(fs)
        names = BackupTarget(BACKUPS, fs=fs).names()
        for backup in self._kept([one for one in self.backups if one.ended <= done]):
            if backup.time_ms not in found:
                raise Lost(f"the backup {backup.time_ms} is not there")
        for time_ms in found:
            if time_ms not in may:
                raise Wrong(f"the backup {time_ms} is there")
            # The files of sound backups are what their manifests say, so one restore of each manifest is enough.
            key = read_file(fs, BACKUPS / names[time_ms])
            if key not in self._restored:
                self._restored[key] = restored(fs, self.clock, time_ms)
            if self._restored[key] != may[time_ms].contents:
                raise Wrong(f"the backup {time_ms} has {self._restored[key]}, expected {may[time_ms].contents}")

    def _kept(self, backups: list[Backup]) -> list[Backup]:
        """Which of these complete backups must be there."""
        return backups

    def _check_restores(self, fs: FileSystem, begun: int, done: int) -> None:
        for one in self.restores:
            if not fs.exists(one.path):
                if one.ended <= done:
                    raise Lost(f"{one.path} is not there")
            elif one.began >= begun:
                raise Wrong(f"{one.path} is there")
            elif (found := whole(fs, self.clock, one.path)) != one.contents:
                raise Wrong(f"{one.path} has {found}, expected {one.contents}")

    def _check_store(self, fs: FileSystem, done: int) -> None:
        """The store has lost nothing, and its next backup is whole."""
        number = max(sum(at <= done for at, _ in self.held) - 1, 0)
        before = self.held[number][1]
        after = self.held[number + 1][1] if number + 1 < len(self.held) else before
        with opened(fs, self.clock) as store:
            found = contents_of(store)
            for at, value in before.values.items():
                if at[1] >= after.starts[at[0]] and found.values.get(at) != value:
                    raise Lost(f"{at} is {found.values.get(at)!r}, expected {value!r}")
            extra = found.values.keys() - before.values.keys() - after.values.keys()
            if number + 1 < len(self.held) and self.held[number + 1][0] == sys.maxsize:
                # A power cut may bring back what an append had to take back, which was never acknowledged.
                ends = {
                    name: max((at for owner, at in after.values if owner == name), default=-1) for name in after.starts
                }
                extra = {(name, at) for name, at in extra if at <= ends[name]}
            if extra:
                raise Wrong(f"there are records at {extra}")
            append(store, 2)
            found = contents_of(store)
            self._tries += 1
            if self._tries % STATES_PER_BACKUP != 1:
                return
            self.clock.advance(STEP_MS)
            time_ms = self._back_up(store)
        sound_backups(fs)
        if (copied := restored(fs, self.clock, time_ms)) != found:
            raise Wrong(f"the next backup has {copied}, expected {found}")


def whole(fs: FileSystem, clock: ManualClock, path: Path) -> Contents:
    """The contents of a restored store, which opens without recovery."""
    with opened(fs, clock, path) as store:
        for topic in store.topics(internal=True):
            for number in store.partitions(topic):
                if not (found := store.log(topic, number).recovery).clean:
                    raise Wrong(f"{path}: {topic}-{number} is recovered: {found}")
        return contents_of(store)


def sound_backups(fs: FileSystem) -> list[int]:
    """The times of the backups. Raises: Lost if a file of one is missing or damaged."""
    checked = check_backups(BACKUPS, fs=fs) if BackupTarget(BACKUPS, fs=fs).names() else []
    for one in checked:
        if not one.ok:
            raise Lost(f"the backup {one.time_ms}: {one.errors}")
    return [one.time_ms for one in checked]


def restored(fs: FileSystem, clock: ManualClock, time_ms: int) -> Contents:
    """The contents that a restore of this backup gives."""
    path = ROOT / f"tried-{uuid.uuid4().hex}"
    restore(BACKUPS, path, at_ms=time_ms, fs=fs, clock=clock)
    return whole(fs, clock, path)
