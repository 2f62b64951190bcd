"""The engine without a library: inputs from seeds and a random generator, the same for the same seed."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tools.fuzz.findings import SECONDS_MAX, Finding, try_input
from tools.fuzz.targets import TARGETS, Target

FINDINGS_MAX = 10


class Outcome(NamedTuple):
    """How many inputs were tried, and what was found."""

    inputs: int
    findings: list[Finding]


def inputs(target: Target, rng: random.Random) -> Iterator[bytes]:
    """The seeds themselves, then mutations of them, without end."""
    pool = target.seeds()
    yield from pool
    while True:
        yield target.mutate(rng.choice(pool), rng, pool)


def run_seeded(
    name: str,
    *,
    seed: int,
    seconds: float | None = None,
    count: int | None = None,
    note: Callable[[bytes], object] = lambda data: None,
) -> Outcome:
    """Tries inputs for ``seconds``, or ``count`` of them; ``note`` receives each before it is tried."""
    target = TARGETS[name]
    rng = random.Random(seed ^ zlib.crc32(name.encode()))
    deadline = None if seconds is None else time.monotonic() + seconds
    tried = 0
    found: dict[str, Finding] = {}
    for data in inputs(target, rng):
        if tried == count or (deadline is not None and time.monotonic() >= deadline) or len(found) == FINDINGS_MAX:
            break
        note(data)
        tried += 1
        finding = try_input(name, target.run, data, SECONDS_MAX)
        if finding is not None:
            # The same place counts as the same finding.
            found.setdefault(finding.message.rpartition(" (")[2], finding)
    return Outcome(tried, list(found.values()))
