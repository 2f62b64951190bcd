"""A process with producers is killed at any instant, again and again in one store: all it was told is true.

Every record that was reported as done is at its offset; none is there twice, or out of order, although batches were
retried; a transaction is in all its partitions or in none, with its offsets, and a committed one is there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kstore.store import Store, coordinator_of
from kstore.types import Durability
from tests.crash.killed_producers import ELSEWHERE, GROUP, PARTITION_COUNT, SETTINGS, told_of
from tests.crash.test_kill_loop import Zygote
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

KILLS = tries(34, quick=8)  # of each durability
KILLS_LONG = 334
ROUNDS = 12  # kills in one store
# From the start of the process, or of its work: it is killed while it opens, or after a few hundred records.
SECONDS_TO_LIVE = (0.001, 0.2)

Tried = Callable[[str, int], None]
Transaction = tuple[int, int]  # a life and a number


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("tests.crash.killed_producers")
    yield made
    made.close()


@dataclass(slots=True)
class Told:
    """The reports of the processes of one store."""

    # By partition and offset: life, thread and number.
    done: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    committed: set[Transaction] = field(default_factory=set)
    aborted: set[Transaction] = field(default_factory=set)
    pending: set[Transaction] = field(default_factory=set)

    def hear(self, line: list[str]) -> None:
        word, life, *rest = line
        match word:
            case "done":
                thread, partition, *records = rest
                for number, _, offset in (record.partition(":") for record in records):
                    self.done[int(partition), int(offset)] = (int(life), int(thread), int(number))
            case "commit":
                self.pending.add((int(life), int(rest[0])))
            case "committed":
                self.committed.add((int(life), int(rest[0])))
            case "abort":
                self.aborted.add((int(life), int(rest[0])))
            case _:
                raise Wrong(" ".join(line))

    def hold(self, store: Store) -> int:
        """Compares the store with the reports; returns the number of records."""
        return sum(self._hold_sent(store, number) for number in range(PARTITION_COUNT)) + self._hold_moved(store)

    def _hold_sent(self, store: Store, partition: int) -> int:
        found: dict[int, tuple[int, int, int]] = {}
        last: dict[tuple[int, int], int] = {}
        for record in store.log("orders", partition).read():
            life, thread, number = found[record.offset] = told_of(record.value)
            before = last.get((life, thread), -1)
            if number <= before:
                raise Wrong(f"{life} {thread} {number} behind {before} at {partition}-{record.offset}")
            last[life, thread] = number
        for (at, offset), told in self.done.items():
            if at == partition and found.get(offset) != told:
                verdict = Lost if offset not in found else Wrong
                raise verdict(f"{told} was done at {partition}-{offset}, which holds {found.get(offset)}")
        return len(found)

    def _hold_moved(self, store: Store) -> int:
        counts: list[dict[Transaction, int]] = []
        for partition in range(PARTITION_COUNT):
            log = store.log("moves", partition)
            if log.transactions():
                raise Wrong(f"open in {partition}: {log.transactions()}")
            seen: dict[Transaction, int] = {}
            for record in log.read(isolation_level="read_committed"):
                life, _, number = told_of(record.value)
                seen[life, number] = seen.get((life, number), 0) + 1
            counts.append(seen)
        if any(list(seen.items()) != list(counts[0].items()) for seen in counts):
            raise Wrong(f"transactions in some partitions only, or in another order: {counts}")
        if lost := self.committed - counts[0].keys():
            raise Lost(f"transactions {sorted(lost)} were committed")
        if never := counts[0].keys() - self.committed - self.pending:
            raise Wrong(f"transactions {sorted(never)} were not committed, {never & self.aborted} even aborted")
        committed = coordinator_of(store).committed(GROUP).get(ELSEWHERE)
        expected = next(reversed(counts[0]), None)
        told = None if committed is None else divmod(committed.offset, 1_000_000)
        if told != expected:
            raise Wrong(f"offsets of {told}, records of {expected}")
        return sum(sum(seen.values()) for seen in counts)


def _kill(count: int, durability: Durability, root: Path, zygote: Zygote, tried: Tried, seed: int) -> None:
    generator = random.Random(f"{seed} {durability}")
    low, high = SECONDS_TO_LIVE
    path, told, read_count = root, Told(), 0
    for number in range(count):
        if number % ROUNDS == 0:
            path, told = root / f"store-{number}", Told()
        seconds = low * (high / low) ** generator.random()
        life = generator.randrange(1, 10**9)
        for line in zygote.killed_after(seconds, path, durability, life):
            told.hear(line)
        tried("kills", 1)
        # Every other time the next process must finish what the last one left.
        if path.exists() and generator.random() < 0.5:
            with Store(path, durability=durability, background=False, **SETTINGS) as store:
                if set(store.topics()) == {"orders", "moves"}:
                    read_count += told.hold(store)
    tried("reads", read_count)


DURABILITIES = [
    pytest.param(name, marks=pytest.mark.promise(f"killed: {name}", f"returns: {name}"))
    for name in ("sync", "interval", "os")
]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.sampled(1)
def test_acknowledgements_are_true_after_every_kill(
    durability: Durability, tmp_path: Path, zygote: Zygote, tried: Tried, seed: int
) -> None:
    _kill(KILLS, durability, tmp_path, zygote, tried, seed)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
def test_acknowledgements_are_true_after_a_thousand_kills(
    durability: Durability, tmp_path: Path, zygote: Zygote, tried: Tried, seed: int
) -> None:
    _kill(KILLS_LONG, durability, tmp_path, zygote, tried, seed + 1)
