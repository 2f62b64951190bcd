"""A simulated life: one store, from its creation through dozens of crashes, each over what the last one left.

    Life(seed).run()                 # all steps
    Life(seed, kept=[3, 4, 17]).run()    # only these: what shrinking left of a failing life

Everything follows from the seed; see tests/README.md.
"""

from __future__ import annotations

import gc
import random
import struct
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kstore.errors import KstoreError, StorageError
from kstore.files.descriptors import OPEN_TAILS
from kstore.store import Store, parts_of
from kstore.types import Durability
from tests.crash.interrupted_life import InterruptAfterCode
from tests.crash.queue_life import small
from tests.simulation.faults import ROOT, Ended, Fault, FaultKind, SimulatedFs, any_choice, flip_bit
from tests.simulation.model import Entry, Found, LogModel, TopicModel
from tests.simulation.queueing import NAME, Items
from tests.simulation.steps import STEPS, Step
from tests.simulation.transactions import TOPIC, Transactions
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.memory_fs import Machine, in_memory
from tests.support.harness.evidence import Lost, Untyped, Wrong
from tests.support.harness.replaced import replaced

PATH = ROOT / "store"
STEP_COUNT = 300
# This many consecutive processes may end while the store is being opened.
OPENS_MAX = 6
DAY_MS = 86_400_000
RETENTION_MS = 30 * DAY_MS
ALLOWANCE_MS = 60_000
FUTURE_MS = 3_600_000
SETTINGS: dict[str, Any] = {
    "background": False,
    "recovery_threads": 1,
    "segment_bytes": 4096,
    "index_interval_bytes": 128,
    "flush_ms": 10**9,
    "min_cleanable_dirty_ratio": 0.1,
    "initial_delay_ms": 0,
}
# The files that rot: those that are checked and those that are rebuilt.
ROTTING = (".log", ".index", ".timeindex")
ROTTING_TOO = (".snapshot", "leader-epoch-checkpoint", "partition.metadata", "kstore.state")
BATCH_HEADER_SIZE = 61
# A crash ends at most a few transactions.
MARKERS_MAX = 8
FIRST_TOPICS: dict[str, tuple[int, dict[str, Any]]] = {
    "orders": (2, {}),
    "events": (1, {"retention_ms": RETENTION_MS}),
    "table": (1, {"cleanup_policy": "compact"}),
    TOPIC: (2, {}),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a life. ``trace`` is a hash of every change that it made to its files."""

    seed: int
    durability: Durability
    step_count: int
    crash_count: int
    failure_count: int
    years: float
    trace: str


@dataclass
class Life:
    """One life. ``judged``: check it against the promises of another durability, to see that the check notices.

    ``harsh``: most faults but power cuts are an interrupt or a lack of memory, and bits rot in all files of a log.
    """

    seed: int
    kept: Iterable[int] | None = None
    step_count: int = STEP_COUNT
    durability: Durability | None = None
    judged: Durability | None = None
    harsh: bool = False
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = random.Random(f"life {self.seed}")
        drawn: Durability = generator.choice(("sync", "sync", "sync", "interval", "os"))
        self.durability = self.durability or drawn
        kinds, weights = list(STEPS), [weight for _, weight in STEPS.values()]
        self.plan = list(enumerate(generator.choices(kinds, weights, k=self.step_count)))
        if self.kept is not None:
            wanted = set(self.kept)
            self.plan = [step for step in self.plan if step[0] in wanted]
        self.clock = ManualClock()
        self.fs = SimulatedFs(self.clock)
        self.topics: dict[str, TopicModel] = {}
        self.serial = self.write_count = self.crash_count = self.failure_count = 0
        self.power_cut = False
        # This life can check the promises of transactions and queues only if everything is synced.
        self.has_all = self.durability == "sync"
        self.transactions = Transactions()
        self.items = Items()
        self.interrupt: InterruptAfterCode | None = None
        self._store: Store | None = None
        self._trust_clock()

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def new_log(self, name: str, *, compacted: bool = False) -> LogModel:
        made = LogModel(name, lossless=(self.judged or self.durability) == "sync", compacted=compacted)
        made.slack = MARKERS_MAX if name.startswith(TOPIC) else 0
        return made

    def new_entry(self, generator: random.Random) -> Entry:
        """A record unlike any other one of this life."""
        self.serial += 1
        return Entry(None, b"%d:" % self.serial + b"x" * generator.choice((0, 20, 60, 100, 200)))

    def count_markers(self, name: str, partition: int, model: LogModel) -> None:
        """Markers of transactions took offsets that the model does not know."""
        if model.slack:
            end = self.store.log(name, partition).end_offset
            if not model.end <= end <= model.end + model.slack:
                raise Wrong(f"{model.name} ends at {end}, expected {model.end} and a few markers")
            model.end = end

    # --- run --------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Lives. Raises: the verdicts, with a note of the step."""
        with _seeded(self.seed) as machine:
            self.machine = machine
            number, kind = -1, "create"
            try:
                self._create()
                for number, kind in self.plan:
                    self._step(number, kind)
                number, kind = self.step_count, "last look"
                last = random.Random(f"{self.seed}/last")
                self._crash(last)
                self.fs.fault = None
                if self.has_all:
                    self.items.drain(self, last)
                self.close()
                self.open()
                self.close()
            except AssertionError as error:
                error.add_note(f"seed {self.seed}, durability {self.durability}, step {number}: {kind}")
                raise
            finally:
                self._forget_store()
        self._forget_store()
        years = (self.clock.monotonic() - 1000) / (365.25 * 86_400)
        assert self.durability is not None
        return Outcome(
            self.seed, self.durability, len(self.plan), self.crash_count, self.failure_count, years, self.fs.trace
        )

    def _create(self) -> None:
        self._store = self._opened()
        if self.has_all:
            # Two partitions of offsets are enough, and quick to make.
            self.store.create_topic("__consumer_offsets", 2, cleanup_policy="compact")
            self.store.create_topic("__transaction_state", 2, cleanup_policy="compact")
        for name, (count, settings) in FIRST_TOPICS.items():
            self.store.create_topic(name, count, **settings)
            compacted = settings.get("cleanup_policy") == "compact"
            self.topics[name] = TopicModel(
                [self.new_log(f"{name}-{number}", compacted=compacted) for number in range(count)]
            )

    def _step(self, number: int, kind: str) -> None:
        generator = random.Random(f"{self.seed}/{number}")
        self.log.append(f"{number} {kind}")
        failures = self.fs.failure_count
        try:
            # Each roll also applies retention.
            self.expect_retention()
            self._act(STEPS[kind][0], generator)
        except Ended:
            self._crash(generator)
        except StorageError as error:
            self.log.append(f"  {error!r}")
            if not self.fs.failure_count:
                raise Untyped(f"failed without a fault: {error!r}") from error
            self._go_on(generator)
        except KstoreError as error:
            raise Lost(f"refused: {error!r}") from error
        except (OSError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise Untyped(repr(error)) from error
        except (KeyboardInterrupt, MemoryError) as error:
            if not self.fs.failure_count:
                raise
            self.log.append(f"  {error!r}")
            self._go_on(generator)
        else:
            if self.fs.failure_count > failures:
                self._go_on(generator)

    def _act(self, step: Step, generator: random.Random) -> None:
        interrupt = self.interrupt
        if interrupt is None:
            step(self, generator)
            return
        try:
            with interrupt:
                step(self, generator)
        finally:
            if interrupt.struck:
                self.interrupt = None
                self.fs.failure_count += 1
                self.log.append(f"  interrupted at {interrupt.place} in {interrupt.functions[:4]}")

    def _go_on(self, generator: random.Random) -> None:
        """An operation failed. After a failed sync, and sometimes without one, the process ends."""
        self.failure_count += 1
        self.fs.is_full = False
        if self._store is None or self.fs.failed_sync or generator.random() < 0.3:
            self._crash(generator)

    # --- processes --------------------------------------------------------------------------------------------------

    def _opened(self) -> Store:
        assert self.durability is not None
        self._trust_clock()
        return Store(PATH, fs=self.fs, clock=self.clock, durability=self.durability, **SETTINGS)

    def open(self) -> None:
        failures = self.fs.failure_count
        self._store = self._opened()
        if self.fs.failure_count > failures:
            # The store is open, but work may be left: the next process does it.
            self.fs.ended = "kill"
            raise Ended("kill")
        self._hold_all()

    def close(self) -> None:
        """Closes the store cleanly: then everything acknowledged is on disk."""
        store, self._store = self.store, None
        try:
            store.close()
        finally:
            parts_of(store).topics.life.closed = True
        for topic in self.topics.values():
            for model in topic.logs:
                model.flushed()

    def _forget_store(self) -> None:
        if self._store is not None:
            parts_of(self._store).topics.life.closed = True
            self._store = None
        self.items.process_ended()
        # The next process does not have the last one's open tails.
        OPEN_TAILS._tails.clear()

    def arm(self, kind: FaultKind, generator: random.Random) -> None:
        """Arms a fault, which strikes at once if the drawn wait is 0."""
        countdown = generator.choice((0, generator.randrange(6), generator.randrange(40), generator.randrange(150)))
        share, in_sync = generator.random(), generator.random() < 0.5
        if kind != "power" and self.harsh:
            drawn = generator.choice(("interrupt", "memory", None, None, kind))
            if drawn is None:
                self.interrupt = InterruptAfterCode(1 + int(10 ** generator.uniform(0, 4)))
                return
            kind = drawn
        self.fs.fault = Fault(kind, countdown, share, in_sync)
        if kind in ("power", "kill") and countdown == 0:
            self.fs.ended = kind
            raise Ended(kind)

    def _crash(self, generator: random.Random) -> None:
        """The process ends, and others open the store until one succeeds; some of them end as well."""
        self.interrupt = None
        for attempt in range(OPENS_MAX):
            self._end(generator)
            if attempt < OPENS_MAX - 1 and generator.random() < 0.3:
                kind: FaultKind = generator.choice(("power", "power", "kill", "fail"))
                self.fs.fault = Fault(kind, generator.randrange(60), generator.random(), generator.random() < 0.5)
            try:
                self._store = self._opened()
                self._hold_all(settled=not self.fs.failure_count)
            except Ended:
                self.log.append("  ended while the store was opened")
                continue
            except StorageError as error:
                if not self.fs.failure_count:
                    raise Lost(f"cannot be opened: {error!r}") from error
                self.log.append(f"  {error!r}")
                continue
            except KstoreError as error:
                raise Lost(f"cannot be opened or read: {error!r}") from error
            except (OSError, LookupError, ValueError, TypeError, AttributeError) as error:
                raise Untyped(repr(error)) from error
            if not self.fs.failure_count:
                self.fs.fault = None
                return
        raise AssertionError("the last process is not disturbed")

    def _end(self, generator: random.Random) -> None:
        """Ends this process, by the fault or by a kill or a power cut now."""
        self._forget_store()
        self.crash_count += 1
        lossy = any(not model.lossless for topic in self.topics.values() for model in topic.logs)
        ended = self.fs.ended or generator.choice(("power", "kill"))
        if ended == "power" or (self.fs.failed_sync and lossy):
            self.power_cut = True
            self.fs = self.fs.restarted(self.clock, any_choice(self.fs.disk, generator))
            self.machine.restart()
            self.log.append("  power cut")
            return
        failed_sync = self.fs.failed_sync
        self.fs = self.fs.next_process()
        if failed_sync:
            self.fs.drop_lost(any_choice(self.fs.disk, generator))
        self.log.append("  killed")

    def _trust_clock(self) -> None:
        self._trusted_ms, self._trusted_at = self.clock.now_ms(), self.clock.monotonic()

    def _passed_ms(self) -> int:
        return round((self.clock.monotonic() - self._trusted_at) * 1000)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def _hold_all(self, *, settled: bool = True) -> None:
        """Compares the store, just opened, with what must exist. What exists is certain from now on or, unless
        ``settled``, after the next open."""
        there = [name for name in self.store.topics() if not name.startswith(NAME)]
        for name in list(self.topics):
            topic = self.topics[name]
            if name not in there:
                if not topic.may_be_missing:
                    raise Lost(f"topic {name} is not there")
                if settled:
                    del self.topics[name]
                continue
            count = len(self.store.partitions(name))
            known = [*topic.logs, topic.growing] if topic.growing is not None else topic.logs
            if count not in (len(topic.logs), len(known)):
                raise Wrong(f"topic {name} has {count} partitions, expected {len(topic.logs)} to {len(known)}")
            if settled:
                topic.logs = [model for model in known[:count] if model is not None]
                topic.growing, topic.may_be_missing = None, False
        if unknown := set(there) - set(self.topics):
            raise Wrong(f"topics {sorted(unknown)} are there unexpectedly")
        for name in there:
            topic = self.topics[name]
            for number, model in enumerate(topic.logs):
                found = Found.of(self.store.log(name, number))
                model.hold(found, power_cut=self.power_cut or self.fs.failed_sync)
                if settled:
                    model.settle(found)
        if self.has_all and settled:
            self.transactions.hold(self, settled=True)
        if settled:
            self.power_cut = False

    def look_from_outside(self) -> None:
        """Another process opens the store for reading."""
        changes = self.fs.change_count
        with Store(PATH, read_only=True, fs=self.fs, clock=self.clock) as outside:
            for name, topic in self.topics.items():
                if topic.may_be_missing:
                    continue
                for number, model in enumerate(topic.logs):
                    log = outside.log(name, number)
                    readable = log.high_watermark
                    # On a full disk the writer may be unable to publish how far others may read.
                    if readable < model.durable and not self.fs.failure_count:
                        raise Lost(f"{model.name}: reads end at {readable}, but {model.durable} is durable")
                    model.hold(Found.of(log), power_cut=True, readable=readable)
        if self.fs.change_count != changes:
            raise Wrong("a reader changed files")

    def rot(self, generator: random.Random) -> None:
        """A bit rots in a file of a plain log while no process has the store open; all of it was synced."""
        self.close()
        image = self.fs.memory.image()
        owned = {f"{PATH.name}/{model.name}": model for name in self.topics for model in self.topics[name].logs}
        rotting = ROTTING + ROTTING_TOO if self.harsh else ROTTING
        paths = [
            path
            for path, stored in image.items()
            if stored is not None
            and stored.data
            and path.endswith(rotting)
            and (model := owned.get(path.rpartition("/")[0])) is not None
            and not model.compacted
            and not model.slack
        ]
        if paths:
            path = generator.choice(paths)
            stored = image[path]
            assert stored is not None
            data, at = flip_bit(stored.data, generator)
            if path.endswith(".log"):
                model = owned[path.rpartition("/")[0]]
                flips = model.flips.setdefault(path, {})
                for offset in offsets_at(before_rot(stored.data, flips), at):
                    model.rot(offset)
                now, before = flips.get(at, (-1, -1))
                flips[at] = (data[at], before if stored.data[at] == now else stored.data[at])
            self.fs.rot(stored.inode, data, at)
            self.log.append(f"  bit rot in byte {at} of {path}")
        self.open()

    def expect_retention(self) -> None:
        """Records older than the retention time may be deleted from now on.

        Records with a future time, and damaged ones, are as old as their file, which the model does not know: then all
        of them may go.
        """
        # A process that sees the clock jump ahead believes only a minute of it.
        now = min(self.clock.now_ms(), self._trusted_ms + self._passed_ms() + ALLOWANCE_MS)
        for model in self.topics["events"].logs:
            known = [batch for batch in (*model.certain, *model.doubtful) if batch.stop > model.start_min]
            batches = sorted(known, key=lambda batch: batch.first)
            if model.rotten or any(batch.time_ms > now + FUTURE_MS for batch in batches):
                model.start_max = max(model.start_max, model.end)
            for batch in batches:
                if batch.time_ms >= now - RETENTION_MS:
                    break
                model.start_max = max(model.start_max, min(batch.stop, model.end))


def before_rot(data: bytes, flips: Mapping[int, tuple[int, int]]) -> bytes:
    """``data`` without its ``flips``: rotted bytes do not tell where a batch ends or which offsets it has."""
    whole = bytearray(data)
    for at, (now, before) in flips.items():
        if at < len(whole) and whole[at] == now:
            whole[at] = before
    return bytes(whole)


def offsets_at(data: bytes, at: int) -> range:
    """The offsets of the batch that contains byte ``at`` of a ``.log``."""
    position = 0
    while position + BATCH_HEADER_SIZE <= len(data):
        first, size = struct.unpack_from(">qi", data, position)
        stop = position + 12 + size
        if position <= at < stop:
            (delta,) = struct.unpack_from(">i", data, position + 23)
            return range(first, first + delta + 1)
        if size < BATCH_HEADER_SIZE - 12:
            break
        position = stop
    return range(0)


@contextmanager
def _seeded(seed: int) -> Iterator[Machine]:
    """Inside, the seed decides whatever the store draws at random."""
    generator = random.Random(f"ids {seed}")
    state = random.getstate()
    random.seed(seed)

    def made() -> uuid.UUID:
        return uuid.UUID(int=generator.getrandbits(128), version=4)

    with ExitStack() as stack:
        # An ended process leaves objects open, as expected; the machine holds them last.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ResourceWarning)
        stack.callback(gc.collect)
        machine = stack.enter_context(in_memory(generator))
        stack.enter_context(small())
        stack.enter_context(replaced(uuid, "uuid4", made))
        stack.callback(random.setstate, state)
        yield machine
