"""A writer is killed before every file operation of its life, and in the middle of every write."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.types import Durability
from tests.crash.log_life import DURABILITIES, SETTINGS, Life
from tests.crash.programs import last_line
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.support.fakes.fake_fs import WRITES
from tests.support.harness.evidence import shuffled
from tests.support.harness.selection import tries

# How many kills one case of ``make test`` tries; all of them are in ``make soak``.
SAMPLE = tries(15, quick=3)
# Kills between two checks, to limit the number of directories.
CHUNK = 100

KILLED = [
    pytest.param(durability, scenario, marks=pytest.mark.promise(f"killed: {durability}", "whole or absent"))
    for durability in DURABILITIES
    for scenario in SCENARIOS
]


def killed_life(*arguments: str) -> str:
    return last_line("-m", "tests.crash.killed_life", *arguments)


def deaths(directory: Path, scenario: str, durability: Durability) -> list[str]:
    """Every operation that changes something, as arguments of ``killed_life``; each write again, cut in half."""
    kinds = killed_life(str(directory), scenario, durability).split()
    numbered = list(enumerate(kinds, start=1))
    return [str(number) for number, _ in numbered] + [f"{number}:half" for number, kind in numbered if kind in WRITES]


def assert_survived(directory: Path, scenario: Scenario, durability: Durability) -> None:
    """Brings the model to the end of the life, and compares the log with it."""
    count = (directory / "done").stat().st_size
    model = scenario.prepare(directory / "again" / "log", durability)
    life = Life(directory / "log", SYSTEM_FS, durability, model)
    for step in scenario.steps[: max(count - 1, 0)]:
        step.begin(life)
        step.done(life)
    if 0 < count <= len(scenario.steps):
        scenario.steps[count - 1].begin(life)
    if life.path.exists() and any(life.path.glob("*.log")):
        with Log(life.path, read_only=True, **SETTINGS) as view:
            for record in view.read(on_corrupt="skip"):
                assert record.value not in model.gone
    life.assert_survived()


def kill_and_look(directory: Path, scenario: str, durability: Durability, where: Sequence[str]) -> None:
    for at in range(0, len(where), CHUNK):
        chunk = where[at : at + CHUNK]
        killed_life(str(directory), scenario, durability, *chunk)
        for death in chunk:
            (directory / death / "again").mkdir()
            try:
                assert_survived(directory / death, SCENARIOS[scenario], durability)
            except AssertionError as error:
                error.add_note(f"killed at {death}")
                raise
            shutil.rmtree(directory / death)


@pytest.mark.parametrize(("durability", "scenario"), KILLED)
@pytest.mark.sampled(2)
def test_a_killed_writer_loses_nothing_acknowledged(
    durability: Durability, scenario: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    every = deaths(directory, scenario, durability)
    chosen = [every[number] for number in shuffled(range(len(every)), seed, SAMPLE)]
    kill_and_look(directory, scenario, durability, chosen)
    tried("kills", len(chosen))


@pytest.mark.soak
@pytest.mark.parametrize(("durability", "scenario"), KILLED)
def test_wherever_a_writer_is_killed_nothing_acknowledged_is_lost(
    durability: Durability, scenario: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    every = deaths(directory, scenario, durability)
    kill_and_look(directory, scenario, durability, every)
    tried("kills", len(every))
