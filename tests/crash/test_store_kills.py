"""A store is killed at any instant while topics come and go and its tasks work: nothing is half there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.store_life import Model, check_store
from tests.crash.test_kill_loop import Zygote
from tests.support.harness.selection import tries

KILLS = tries(12, quick=6)
KILLS_LONG = 600
ROUNDS = 6  # kills in one directory
# From the start of the process: it is killed while it opens, or after about ten steps.
SECONDS_TO_LIVE = (0.0005, 0.15)

Tried = Callable[[str, int], None]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("tests.crash.killed_stores")
    yield made
    made.close()


def _heard(model: Model, said: list[list[str]]) -> None:
    for word, *rest in said:
        if word == "step":
            kind, name, partition, number = rest
            model.pending = (kind, "" if name == "-" else name, int(partition), int(number))
        elif word == "done":
            model.done()


def _kill(count: int, root: Path, zygote: Zygote, tried: Tried, seed: int) -> None:
    generator = random.Random(seed)
    low, high = SECONDS_TO_LIVE
    path, model = root, Model()
    for number in range(count):
        if number % ROUNDS == 0:
            path, model = root / f"store-{number}", Model()
        seconds = low * (high / low) ** generator.random()
        _heard(model, zygote.killed_after(seconds, path, "-", generator.randrange(10**9)))
        tried("kills", 1)
        if path.exists():
            model = check_store(path, model)


@pytest.mark.promise("killed: sync")
def test_topics_are_wholly_there_or_not_at_all_after_every_kill(
    tmp_path: Path, zygote: Zygote, tried: Tried, seed: int
) -> None:
    _kill(KILLS, tmp_path, zygote, tried, seed)


@pytest.mark.soak
@pytest.mark.promise("killed: sync")
def test_topics_are_wholly_there_or_not_at_all_after_many_kills(
    tmp_path: Path, zygote: Zygote, tried: Tried, seed: int
) -> None:
    _kill(KILLS_LONG, tmp_path, zygote, tried, seed + 1)
