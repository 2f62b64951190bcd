"""The life of a stream's sink over three partitions, to be ended by power cuts, kills and failing disks.

It does what Spark does: two tasks stage a batch, one of them in two attempts at once, of which the driver takes one.
The batch is committed and, when the commit has returned, noted. After a crash the next process starts with the first
batch that is not noted, and stages it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kstore.files.fs import FileSystem
from kstore.spark import appending
from kstore.spark.commit import Writer, commit
from kstore.spark.staging import StagedFile, parse_name, staged_name
from kstore.spark.target import StoreTarget, plan_target
from kstore.spark.write_options import WriteOptions
from kstore.spark.writer import stage
from tests.crash.power_cuts import ROOT
from tests.crash.repeated import repeated
from tests.crash.transaction_life import PARTITIONS, PATH, opened, prepared_image, typed
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.replaced import replaced
from tests.support.lives.spark_sink import batch_of

OPTIONS = WriteOptions(str(PATH), topic="orders", lock_timeout_ms=0)
WRITER = Writer("query", "query")
BATCHES = 2
TASKS = 2
# A partition then takes several appends, so that some are between the first and the decision.
each_batch_alone = replaced(appending, "APPEND_BYTES", 1)


def values_of(batch_id: int, task: int) -> list[bytes]:
    """One for each partition."""
    return [b"%d-%d-%d" % (batch_id, task, owner.partition) for owner in PARTITIONS]


class Sink:
    """One driver and its tasks, on a file system."""

    def __init__(self, fs: FileSystem, clock: ManualClock) -> None:
        self._fs = fs
        self._clock = clock

    def target(self) -> StoreTarget:
        return plan_target(OPTIONS, fs=self._fs, clock=self._clock)

    def stage(self, batch_id: int) -> list[StagedFile]:
        target = self.target()
        staged: list[StagedFile] = []
        # The first attempt of the last task is slow; Spark starts another one, and takes what that has staged.
        for attempt, task in enumerate((*range(TASKS), TASKS - 1)):
            rows = batch_of(values_of(batch_id, task), partition=[owner.partition for owner in PARTITIONS])
            name = staged_name(WRITER.writer_id, batch_id, task, attempt)
            found = stage(
                iter([rows]), OPTIONS, ("value", "partition"), target, name, task, fs=self._fs, clock=self._clock
            )
            assert found is not None
            staged[task:] = [found]
        return staged

    def commit(self, batch_id: int, staged: Sequence[StagedFile]) -> None:
        commit(OPTIONS, WRITER, batch_id, staged, fs=self._fs, clock=self._clock, threads=1)

    def run(self, batch_id: int) -> None:
        self.commit(batch_id, self.stage(batch_id))


class SinkLife:
    """A life, recorded (``RecordedLife``)."""

    def __init__(self) -> None:
        self.before = prepared_image()
        self.fs = MemoryRecording(MemoryFs(ROOT, self.before))
        self.clock = ManualClock()
        # How many batches Spark had noted, and since which operation.
        self._noted: list[tuple[int, int]] = [(0, 0)]
        # By batch: when its commit started.
        self._begun: list[int] = []

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    @each_batch_alone
    def live(self) -> None:
        """A batch that fails is repeated, as Spark does."""
        sink = Sink(self.fs, self.clock)

        def run(batch_id: int) -> None:
            # Another driver: it reads the disk before it trusts anything.
            if isinstance(self.fs.inner, FailingFs):
                self.fs.inner.forget_syncs()
            staged = sink.stage(batch_id)
            if len(self._begun) == batch_id:
                self._begun.append(len(self.fs.operations))
            sink.commit(batch_id, staged)

        for batch_id in range(BATCHES):
            repeated(self.fs, lambda batch_id=batch_id: run(batch_id))  # type: ignore[misc]
            self._noted.append((len(self.fs.operations), batch_id + 1))
            self.clock.advance(7)

    def promise(self, done: int) -> int:
        return self._noted[bisect_right(self._noted, done, key=lambda item: item[0]) - 1][1]

    def reopen(self, fs: FileSystem) -> None:
        opened(fs, self.clock).close()

    @each_batch_alone
    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        noted = self.promise(done)
        asked = sum(at < begun for at in self._begun)

        def check() -> None:
            there = committed_batches(fs, self.clock)
            if there < noted:
                raise Lost(f"{there} batches are there, but {noted} were noted as committed")
            if there > asked:
                raise Wrong(f"{there} batches are there, but only {asked} were to be committed")
            sink = Sink(fs, self.clock)
            # A close that failed may leave staged files, until a commit sweeps them: Spark repeats the last batch.
            has_fault = begun > len(self.operations)
            for batch_id in range(min(noted, BATCHES - 1) if has_fault else noted, BATCHES):
                sink.run(batch_id)
            check_exactly_once(fs, self.clock)

        typed(check)


def committed_batches(fs: FileSystem, clock: ManualClock) -> int:
    """How many batches committed readers see: always the first ones, whole, in every partition, and none open."""
    counts = set()
    with opened(fs, clock) as store:
        for owner in PARTITIONS:
            log = store.log(*owner)
            if log.last_stable_offset != log.end_offset or log.transactions():
                raise Wrong(f"{owner}: a transaction stays open: {log.transactions()}")
            found = [record.value for record in log.read(isolation_level="read_committed")]
            count = len(found) // TASKS
            if found != [values_of(batch, task)[owner.partition] for batch in range(count) for task in range(TASKS)]:
                raise Wrong(f"{owner} has {found}")
            counts.add(count)
    if len(counts) > 1:
        raise Wrong(f"a batch is in some partitions only: {counts}")
    return counts.pop()


def check_exactly_once(fs: FileSystem, clock: ManualClock) -> None:
    """All batches exist, once, and no staged files are left."""
    if (found := committed_batches(fs, clock)) != BATCHES:
        raise Wrong(f"{found} batches, expected {BATCHES}")
    if left := [name for name in fs.list(PATH) if parse_name(name) is not None]:
        raise Wrong(f"staged files are left: {left}")
