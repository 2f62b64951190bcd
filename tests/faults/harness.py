"""Lives a life to its end, or until a fault, and checks what is left: the one place that strikes.

    with machine_in_memory() as machine:
        harness = Harness(LIVES["log"], machine, seed)
        harness.fail("full disk", count=20)

After a fault the process is over, as after an error that nothing catches: handles whose blocks end are closed, others
are dropped. Then the life's check opens the disk as the process has left it and, since a power cut may follow, as the
harshest and a random power cut leave it, and the harshest one soon after the fault. What had returned before must hold
in all of them.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePath

from kstore.errors import Empty, KstoreError
from kstore.files.paths import CLEANED_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX
from tests.crash.power_cuts import MOMENTS, ROOT, cut_power, kill_after
from tests.faults.lives import Life
from tests.support.fakes.crash_states import Disk, Image, nothing, some
from tests.support.fakes.fake_fs import CHANGES, READS, SYNCS, WRITES, FailingFs, Fault, Operation
from tests.support.fakes.memory_fs import Machine, MemoryFs
from tests.support.harness.evidence import Untyped, Wrong
from tests.support.harness.selection import is_quick

HINTS = tuple(suffix + state for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX) for state in ("", CLEANED_SUFFIX))
DIGITS = re.compile(r"\d+")
# Past the last operation of every life.
NEVER = 10**9
# If a life goes on after a fault, its power is cut at most so many operations later.
EARLY = (10, 60, 300)
NEED_ROOM = WRITES | {"create", "mkdir", "allocate"}
# What a program meets after a fault, and may pass on.
EXPECTED = (KstoreError, Empty, TimeoutError)


@dataclass(slots=True)
class Strike(Fault):
    """A fault that is over after ``lasting`` operations, and never strikes a file whose path ends with ``spared``."""

    lasting: int = 1
    spared: tuple[str, ...] = ()

    def strikes(self, operation: Operation) -> bool:
        if operation.path.endswith(self.spared):
            return False
        struck = Fault.strikes(self, operation)
        return struck and self.seen < self.at + self.lasting


class StruckFs(FailingFs):
    """Keeps each failed operation with its place among the life's, and the part of it that was done."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.fs.memory)
        self._life = life
        # How many operations were done before, the failed one, and whether it was a sync.
        self.struck: list[tuple[int, Operation, bool]] = []

    def _failure(self, fault: Fault, operation: Operation) -> BaseException:
        is_sync = operation.kind in SYNCS or (operation.kind == "write_and_sync" and fault.written is None)
        if is_sync and fault.raising is None:
            self.struck.append((len(self._life.operations), operation, True))
        return super()._failure(fault, operation)

    def _write_part(self, operation: Operation, size: int) -> None:
        if size and not (self.struck and self.struck[-1][1] is operation):
            part = Operation("write_all", operation.path, operation.inode, operation.position, 0, operation.data[:size])
            self.struck.append((len(self._life.operations), part, False))
        super()._write_part(operation, size)


def read_error(at: int, generator: random.Random) -> Fault:
    """An operation fails once, for some operations, or for good."""
    half: Callable[[int], int] = lambda size: size // 2  # noqa: E731
    written = generator.choice((0, half))
    number = generator.choice((errno.EIO, errno.EIO, errno.EROFS, errno.EMFILE))
    return Strike(at, number, True, written, CHANGES | READS, lasting=generator.choice((1, 1, 3, 10**9)))


def full_disk(at: int, generator: random.Random) -> Fault:
    """No room for some operations, or for good; a part of a write fits."""
    written = generator.choice((0, lambda size: size // 2))
    number = generator.choice((errno.ENOSPC, errno.EDQUOT))
    return Strike(at, number, True, written, NEED_ROOM, lasting=generator.choice((1, 4, 10**9)))


def failed_sync(at: int, generator: random.Random) -> Fault:
    """Not of an index that is a hint: that is only counted, and lookups bear what a power cut leaves of it."""
    lasting = generator.choice((1, 1, 10**9))
    return Strike(at, errno.EIO, True, None, SYNCS | {"write_and_sync"}, lasting=lasting, spared=HINTS)


def interrupt(at: int, generator: random.Random) -> Fault:
    return Fault(at, kinds=CHANGES | READS, raising=KeyboardInterrupt())


# Faults of a file operation, by their names in the table.
AT_OPERATIONS: dict[str, Callable[[int, random.Random], Fault]] = {
    "I/O error": read_error,
    "full disk": full_disk,
    "failed sync": failed_sync,
    "interrupt": interrupt,
}


def places(name: str, operations: Iterable[Operation]) -> list[Operation]:
    """Which of a life's operations this fault can strike."""
    fault = AT_OPERATIONS[name](NEVER, random.Random(0))
    found = []
    for operation in operations:
        before = fault.seen
        fault.strikes(operation)
        if fault.seen > before:
            found.append(operation)
    return found


def spread(operations: Sequence[Operation], seed: str, count: int) -> list[int]:
    """The indexes of ``count`` operations, or of all: from each kind of operation, topic and kind of file in turn.

    A life writes and syncs a log a hundred times for each rename; most bugs are at the rename.
    """
    generator = random.Random(seed)
    pools: dict[tuple[str, str], list[int]] = {}
    for at in generator.sample(range(len(operations)), len(operations)):
        one = operations[at]
        file = "/".join(PurePath(one.path).parts[-2:])
        pools.setdefault((one.kind, DIGITS.sub("", file)), []).append(at)
    turns = zip_longest(*generator.sample(list(pools.values()), len(pools)))
    return [at for turn in turns for at in turn if at is not None][:count]


class Harness:
    """One life, and every fault that can strike it."""

    def __init__(self, make: Callable[[int], Life], machine: Machine, seed: int) -> None:
        self._make = make
        self._machine = machine
        self._seed = seed

    def new(self) -> Life:
        self._machine.end_processes()
        return self._make(self._seed)

    def whole(self) -> Life:
        life = self.new()
        life.live()
        return life

    # --- faults that end the process -------------------------------------------------------------------------------

    def cut_power(self, count: int) -> int:
        """Returns how many states survived: in a quick run, of as many moments."""
        life = self.whole()
        only = None
        if is_quick():
            # The power is cut within a write that syncs, and after it.
            cut = [
                one
                for one in life.operations
                if one.kind in MOMENTS
                for _ in range(2 if one.kind == "write_and_sync" else 1)
            ]
            only = set(spread(cut, f"{self._seed} power cut", count))
        return cut_power(life, self._machine, count=count, seed=self._seed, only=only).states

    def kill(self, count: int) -> int:
        """Kills the process after this many of its changes; returns how many there were."""
        life = self.whole()
        changes = [number for number, one in enumerate(life.operations) if one.kind in MOMENTS]
        chosen = spread([life.operations[number] for number in changes], f"{self._seed} kill", count)
        return kill_after(life, {changes[at] for at in chosen})

    # --- faults that the process meets -----------------------------------------------------------------------------

    def fail(self, name: str, count: int) -> int:
        """Strikes this many operations with the fault ``name``, each in a life of its own; returns how many struck."""
        generator = random.Random(f"{self._seed} {name}")
        found = places(name, self.whole().operations)
        struck = 0
        for at in spread(found, f"{self._seed} {name} places", count):
            try:
                struck += self._strike(AT_OPERATIONS[name](at + 1, generator), generator)
            except AssertionError as error:
                error.add_note(f"{name} at operation {at + 1} of {len(found)}; seed {self._seed}")
                raise
        return struck

    def _strike(self, fault: Fault, generator: random.Random) -> bool:
        life = self.new()
        fs = life.fs.inner = StruckFs(life)
        fs.faults.append(fault)
        self.live(life)
        if not fs.failures:
            return False
        never_again = (".log", str(ROOT / "store"))
        # A log that is opened again syncs its files by fsync, and then reads what is on disk.
        kinds = SYNCS - {"fsync"}
        if again := [one for one in fs.second_syncs if one.kind in kinds and one.path.endswith(never_again)]:
            raise Wrong(f"synced again after a failure: {again}")
        try:
            self.survive(life, fs.struck, generator)
        except AssertionError as error:
            error.add_note(f"failed: {[(one.kind, one.path) for one in fs.failures[:5]]}")
            raise
        return True

    def live(self, life: Life) -> BaseException | None:
        """Lives until the end or an error, which it returns. Raises: Untyped for an error that is not kstore's."""
        try:
            life.live()
        except (*EXPECTED, KeyboardInterrupt, MemoryError) as error:
            return error
        except AssertionError:
            raise
        except Exception as error:
            raise Untyped(repr(error)) from error
        return None

    def survive(self, life: Life, struck: Iterable[tuple[int, Operation, bool]], generator: random.Random) -> None:
        """The life's check, on the disk as it is and after a power cut."""
        done = len(life.operations)
        self._machine.end_processes()
        life.survive(MemoryFs(ROOT, life.fs.memory.image()), done + 1, done)
        self._machine.restart()
        for begun, done, image in self._after_a_power_cut(life, list(struck), generator):
            try:
                life.survive(MemoryFs(ROOT, image), begun, done)
            except AssertionError as error:
                error.add_note(f"then the power was cut, after operation {done} of {len(life.operations)}")
                raise

    def _after_a_power_cut(
        self, life: Life, struck: list[tuple[int, Operation, bool]], generator: random.Random
    ) -> Iterator[tuple[int, int, Image]]:
        """Each disk with the operations that had begun, and those that were done."""
        disk, count = Disk(ROOT, image=life.before), len(life.operations)
        # A life that goes on after the fault may replace what the fault has spoiled: its power is cut before that too.
        early = struck[0][0] + generator.randint(1, generator.choice(EARLY)) if struck else count
        for number, operation in enumerate([*life.operations, None]):
            if number == early < count:
                yield number, number, disk.image(nothing)
            for at, failed, is_sync in struck:
                if at == number:
                    (disk.lose_sync if is_sync else disk.apply)(failed)
            if operation is not None:
                disk.apply(operation)
        yield count + 1, count, disk.image(nothing)
        yield count + 1, count, disk.image(some(generator, torn=True))
