"""The start of a life, and its steps: from nothing, or from what a killed writer has left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kstore.files.local import SYSTEM_FS
from kstore.types import Durability
from tests.crash.log_life import STEPS, Life, Model, Step, append, run


@dataclass(frozen=True, slots=True)
class Scenario:
    """A directory to start with, what is known of it, and the steps after it was opened."""

    prepare: Callable[[Path, Durability], Model]
    steps: tuple[Step, ...]


def nothing_there(path: Path, durability: Durability) -> Model:
    return Model()


def killed(path: Path, durability: Durability) -> Model:
    """The state that a killed writer leaves: no clean mark, a torn batch at the end."""
    origin = path.with_name("origin")
    life = Life(origin, SYSTEM_FS, durability)
    life.open()
    for step in STEPS[:11]:
        run(life, step)
    shutil.copytree(origin, path)
    life.close()
    with sorted(path.glob("*.log"))[-1].open("ab") as file:
        file.write(bytes(7) + b"\x05" + bytes(3) + b"\x40" + b"torn" * 9)
    return life.model


def damaged(path: Path, durability: Durability) -> Model:
    """The same, with a flipped bit in the first batch of the last segment, before whole ones."""
    model = killed(path, durability)
    last = sorted(path.glob("*.log"))[-1]
    data = bytearray(last.read_bytes())
    data[100] ^= 1
    last.write_bytes(data)
    hit = next(batch for batch in model.certain if batch.first == int(last.stem))
    model.certain.remove(hit)
    model.holes.update(range(hit.first, hit.last + 1))
    return model


SCENARIOS = {
    "life": Scenario(nothing_there, STEPS),
    "torn": Scenario(killed, (append(), append())),
    "damaged": Scenario(damaged, (append(), append())),
}
