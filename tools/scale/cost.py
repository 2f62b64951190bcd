"""The steps and the time of one call, and how they grow.

Steps are calls of functions, Python's and compiled ones, in the calling thread: they do not depend on the machine. What
compiled code does inside one call shows in the time beside them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tools.scale.scenes import Scene, Work

TRIES = 5
# Up to this factor at 100 times as much, an operation counts as independent of it: a step of a search, or noise.
FLAT_STEPS, FLAT_TIME = 1.5, 3.0
LINEAR = 160


class Cost(NamedTuple):
    """Of one call: the steps, and the processor time of this thread in us."""

    steps: float
    us: float


def cost_of(work: Work) -> Cost:
    """The medians over some calls, after one that is not counted."""
    work()
    steps, times = [], []
    for _ in range(TRIES):
        started = time.thread_time_ns()
        work()
        times.append((time.thread_time_ns() - started) / 1e3)
    for _ in range(TRIES):
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        steps.append(count)
    return Cost(statistics.median(steps), statistics.median(times))


def costs_of(scene: Scene, root: Path, counts: Iterable[int]) -> dict[str, list[Cost]]:
    """For each operation its cost at each of the ``counts``."""
    costs: dict[str, list[Cost]] = {}
    for count in counts:
        with tempfile.TemporaryDirectory(dir=root) as path, scene.make(Path(path) / "at", count) as works:
            for name, work in works.items():
                costs.setdefault(name, []).append(cost_of(work))
    return costs


def growth_of(costs: list[Cost]) -> str:
    """In one word how the cost grows over a factor of 100."""
    first, last = costs[0], costs[-1]
    steps, us = last.steps / max(first.steps, 1), last.us / max(first.us, 1)
    if steps <= FLAT_STEPS and us <= FLAT_TIME:
        return "flat"
    grown = max(steps, us)
    return "below linear" if grown < LINEAR / 2 else "linear" if grown <= LINEAR else "**above linear**"
