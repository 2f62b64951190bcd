"""What the tests tried, counted: states, faults, flips, inputs, kills; and which promise each test is evidence for.

A test counts with the fixture ``tried``, names its promises with the marker ``promise``, takes its seed from the
fixture ``seed``, and fails with the verdict for the kind of failure::

    @pytest.mark.promise("killed: sync")
    def test_...(tried, seed):
        ...
        if offset not in found:
            raise Lost(f"offset {offset} was acknowledged")
        tried("kills", 1)

``conftest.py`` adds the counts up over all processes of a run and prints them; ``--promises`` writes the page.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

# What is counted, in the order in which it is printed.
KINDS = ("states", "faults", "flips", "truncations", "fuzz inputs", "kills", "reads")


class Lost(AssertionError):
    """Acknowledged data is missing."""


class Wrong(AssertionError):
    """Data that was never written is there, or is in another order, or has other bytes."""


class Hung(AssertionError):
    """Something made no progress."""


class Crashed(AssertionError):
    """A process died of what it should have survived."""


class Untyped(AssertionError):
    """An error that is not the package's own."""


VERDICTS: dict[str, type[AssertionError]] = {
    "lost": Lost,
    "wrong": Wrong,
    "hung": Hung,
    "crashed": Crashed,
    "untyped": Untyped,
}


@dataclass(slots=True)
class Tried:
    """What one test tried: how many of each kind, and the promises that it is evidence for."""

    test: str
    passed: bool
    counts: dict[str, int]
    promises: tuple[str, ...]


@dataclass(slots=True)
class Evidence:
    """What a whole run tried."""

    seed: int
    tests: list[Tried] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def totals(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for tried in self.tests:
            totals.update(tried.counts)
        return totals

    def lines(self) -> list[str]:
        """The counts, and how many failures of each kind there were."""
        totals = self.totals
        verdicts = ", ".join(f"{self.failures[name]} {name}" for name in VERDICTS)
        others = self.failures["other"]
        counted = ", ".join(f"{totals[kind]:,} {kind}" for kind in KINDS)
        return [
            f"tried: {counted} (seed {self.seed})",
            f"found: {verdicts}" + (f", {others} other failures" if others else ""),
        ]


def verdict_of(message: str) -> str:
    """The kind of failure in an exception's ``message``, which starts with its type's name."""
    kind = message.partition(":")[0].rpartition(".")[2].strip()
    return next((name for name, verdict in VERDICTS.items() if verdict.__name__ == kind), "other")


def shuffled(items: Iterable[int], seed: float, count: int) -> list[int]:
    """At most ``count`` of ``items``, chosen by ``seed``, in order."""
    pool = list(items)
    if len(pool) <= count:
        return pool
    return sorted(random.Random(seed).sample(pool, count))
