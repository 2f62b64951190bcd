"""Cuts the power at every file operation of a recorded life, and opens what may then be on the disk.

    with in_memory() as machine:
        life = ...                              # something lived over a ``MemoryRecording``
        counts = cut_power(life, machine, count=5000, seed=1)

It tries a share of the possible disk states after each operation, and within each write that syncs: none, all, each
unit lost or kept, all subsets of a few units, sectors that are torn or filled with zeros, noise and stale bytes, and
random mixtures. Now and then the power fails again during the open.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from kstore.files.fs import FileSystem
from tests.support.fakes.crash_states import (
    Choice,
    Disk,
    Image,
    Torn,
    all_but,
    everything,
    nothing,
    one_is,
    only,
    some,
    subset,
)
from tests.support.fakes.fake_fs import CHANGES, Operation
from tests.support.fakes.memory_fs import Machine, MemoryFs, MemoryRecording
from tests.support.harness.evidence import shuffled
from tests.support.harness.selection import is_quick

ROOT = Path("/memory")
# An operation that changes nothing on the disk is not a moment of its own.
MOMENTS = CHANGES - {"allocate"} | {"store"}
# Up to this many unsynced units are tried in all their subsets.
SUBSET_UNITS_MAX = 12
# After this many states the power fails during an open too; and how many states of that are tried.
SOAK_STATES = int(os.environ.get("KSTORE_SOAK_STATES", 1_000_000))
RECOVERY_EVERY = 15
STATES_PER_RECOVERY = 4
# Draws repeat tried states more and more: this many draws for each new state are enough.
DRAWS_PER_STATE = 4
# At least this many random states of a moment are tried.
FEW = 8
FILLERS = ("", "zeros", "noise", "stale")


class RecordedLife(Protocol):
    """A recorded life: the state before it, its operations, and a check whether a disk has all of it."""

    @property
    def before(self) -> Image: ...
    @property
    def operations(self) -> Sequence[Operation]: ...

    def promise(self, done: int) -> object:
        """A value for what was promised after ``done`` operations: the same state is tried again if more is
        promised."""
        ...

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        """Opens the state of ``fs`` after that many operations, and compares it with the promise.

        Raises: the verdicts.
        """
        ...

    def reopen(self, fs: FileSystem) -> None:
        """Opens and closes the state of ``fs``."""
        ...


class Counts(NamedTuple):
    """How many states survived, and how many of them came from a power cut in a recovery."""

    states: int
    of_recoveries: int


class Moment(NamedTuple):
    """The disk when this many operations had started, and this many were done."""

    begun: int
    done: int
    disk: Disk


def moments(before: Image, operations: Iterable[Operation]) -> Iterator[Moment]:
    """After each operation that changes something, and within each write that syncs; the disk changes with them."""
    disk = Disk(ROOT, image=before)
    for number, operation in enumerate(operations):
        if operation.kind == "write_and_sync":
            with disk.within(operation):
                yield Moment(number + 1, number, disk)
        disk.apply(operation)
        if operation.kind in MOMENTS:
            yield Moment(number + 1, number + 1, disk)


def moment_count(operations: Iterable[Operation]) -> int:
    kinds = [operation.kind for operation in operations]
    return sum(kind in MOMENTS for kind in kinds) + kinds.count("write_and_sync")


def choices_for(disk: Disk, generator: random.Random, count: int) -> Iterator[Choice]:
    """The harshest disk, the kindest, and ``count`` others: one unit lost, one unit kept, any part of them."""
    yield nothing
    yield everything
    units = disk.unit_count()
    singles = shuffled(range(2 * units), generator.random(), count // 2)
    for number in singles:
        yield all_but(number // 2) if number % 2 else only(number // 2)
    for _ in range(count - len(singles)):
        yield some(generator)


def _choices(disk: Disk, generator: random.Random, count: int) -> Iterator[Choice]:
    """At least ``count`` choices if that many exist, the most telling ones first; then random ones without end."""
    units = disk.unit_count()
    yield nothing
    if not units:
        return
    if count < FEW:
        # Too few for an order: each moment draws its own.
        for _ in range(2 * count):
            yield _any_choice(units, generator)
    yield everything
    if units <= SUBSET_UNITS_MAX and 2**units <= count // 2:
        yield from map(subset, range(1, 2**units - 1))
    else:
        for number in shuffled(range(2 * units), generator.random(), count // 4):
            yield all_but(number // 2) if number % 2 else only(number // 2)
    for number in shuffled(range(units), generator.random(), count // 8 + 1):
        for filler in FILLERS[1:]:
            yield one_is(number, Torn(0.0, filler), others=generator.random() < 0.5)
        yield one_is(number, Torn(generator.random(), ""), others=generator.random() < 0.5)
    while True:
        yield some(generator, torn=generator.random() < 0.7)


def _any_choice(units: int, generator: random.Random) -> Choice:
    number, others = generator.randrange(units), generator.random() < 0.5
    match generator.randrange(5):
        case 0:
            return everything
        case 1 | 2:
            return one_is(number, not others, others=others)
        case 3:
            return one_is(number, Torn(generator.random(), generator.choice(FILLERS)), others=others)
        case _:
            return some(generator, torn=others)


def kill_after(life: RecordedLife, numbers: Collection[int] | None = None) -> int:
    """Kills all processes of the life after each of these changes of the disk (None: all); returns how many there
    were."""
    disk = Disk(ROOT, image=life.before)
    kills = 0
    for number, operation in enumerate(life.operations):
        disk.apply(operation)
        if operation.kind in CHANGES | {"store"} and (numbers is None or number in numbers):
            life.survive(MemoryFs(ROOT, disk.image(everything)), number + 1, number + 1)
            kills += 1
    return kills


def cut_power(
    life: RecordedLife, machine: Machine, *, count: int, seed: int, only: Collection[int] | None = None
) -> Counts:
    """Cuts the power until about ``count`` different states survived, or hardly any are left.

    States differ by the contents of files, or by what was promised. Every moment of the life has at least one, but a
    quick run whose ``count`` is less than that draws as many moments by the seed. ``only``: these moments, by number.
    """
    generator = random.Random(seed)
    machine.restart()
    seen: set[int] = set()
    of_recoveries, before = 0, -count
    # Some moments have few states: repeat, until those with many make up for them.
    while before < len(seen) < count and len(seen) - before > count // 100:
        before = len(seen)
        of_recoveries += _cut_everywhere(life, machine, count, seen, generator, f"seed {seed}", only)
    return Counts(len(seen), of_recoveries)


def _cut_everywhere(
    life: RecordedLife,
    machine: Machine,
    count: int,
    seen: set[int],
    generator: random.Random,
    seed: str,
    only: Collection[int] | None,
) -> int:
    """Goes through all moments once; returns how many of the survived states came from recoveries."""
    left = moment_count(life.operations)
    of_recoveries, tries = 0, 0
    for number, moment in enumerate(moments(life.before, life.operations)):
        if only is not None:
            is_left_out = number not in only
        else:
            is_left_out = is_quick() and generator.random() * left > count - len(seen)
        if is_left_out:
            left -= 1
            continue
        # The states that earlier moments could not supply are shared among the rest.
        stop = len(seen) + max((count - len(seen)) // left, 1)
        left -= 1
        for image in _new_images(moment.disk, stop, seen, life.promise(moment.done), generator):
            tries += 1
            try:
                life.survive(MemoryFs(ROOT, image), moment.begun, moment.done)
                if tries % RECOVERY_EVERY == 0:
                    of_recoveries += _cut_recovery(life, machine, moment, image, seen, generator)
            except AssertionError as error:
                operation = life.operations[moment.begun - 1]
                state = "power cut after" if moment.begun == moment.done else "power cut within"
                error.add_note(f"{state} operation {moment.begun}, {operation.kind} of {operation.path}; seed {seed}")
                raise
    return of_recoveries


def _new_images(disk: Disk, stop: int, seen: set[int], promised: object, generator: random.Random) -> Iterator[Image]:
    """Tries new states of the disk until ``stop`` were seen in total."""
    budget = stop - len(seen)
    for choose in islice(_choices(disk, generator, budget), 2 + budget * DRAWS_PER_STATE):
        if len(seen) >= stop:
            return
        image = disk.image(choose)
        if _is_new(image, promised, seen):
            yield image


def _is_new(image: Image, promised: object, seen: set[int]) -> bool:
    contents = tuple((path, None if stored is None else stored.data) for path, stored in image.items())
    known = hash((contents, promised))
    is_new = known not in seen
    seen.add(known)
    return is_new


def _cut_recovery(
    life: RecordedLife, machine: Machine, moment: Moment, image: Image, seen: set[int], generator: random.Random
) -> int:
    """Opens ``image``, cuts the power meanwhile, and counts the new survived states."""
    recording = MemoryRecording(MemoryFs(ROOT, image))
    life.reopen(recording)
    machine.restart()
    numbers = shuffled(range(moment_count(recording.operations)), generator.random(), STATES_PER_RECOVERY)
    count = 0
    for number, inner in enumerate(moments(image, recording.operations)):
        if number in numbers:
            again = inner.disk.image(generator.choice((nothing, everything, some(generator, torn=True))))
            if _is_new(again, (life.promise(moment.done), "again"), seen):
                life.survive(MemoryFs(ROOT, again), moment.begun, moment.done)
                count += 1
    return count


def fast_directory(tmp_path: Path) -> Path:
    """A directory in memory if possible: on disk, thousands of states would mostly wait for syncs."""
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir():
        return tmp_path
    return Path(tempfile.mkdtemp(prefix="kstore-crash-", dir=shared_memory))
