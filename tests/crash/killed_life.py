"""A program that lives a log's life and is killed at one operation after another; run by ``test_killed_at``.

    python -m tests.crash.killed_life DIRECTORY SCENARIO DURABILITY [NUMBER[:half]...]

For each number (from 1) a child lives in ``DIRECTORY/NUMBER`` and dies of SIGKILL before the operation of that number
or, with ``:half``, after writing half of its bytes. ``DIRECTORY/NUMBER/done`` has a byte for each step that returned,
including the open. Prints a line for each death. Without numbers it lives once, and prints the kinds of all operations.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from kstore.files.local import SYSTEM_FS
from kstore.types import Durability
from tests.crash.log_life import Life, run
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.support.fakes.fake_fs import CHANGES, WRITES, Operation, RecordingFs, WatchedFs

Result = TypeVar("Result")

DEADLY = CHANGES | {"store"}


class KillingFs(WatchedFs):
    """Kills its process at the operation ``at``; with ``half``, after half of a write."""

    def __init__(self, at: int, *, half: bool) -> None:
        super().__init__(SYSTEM_FS)
        self._left = at
        self._half = half

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind in DEADLY:
            self._left -= 1
            if self._left == 0:
                if self._half and operation.kind in WRITES:
                    file = SYSTEM_FS.open(operation.path, write=True)
                    file.write_all([operation.data[: len(operation.data) // 2]], operation.position)
                os.kill(os.getpid(), signal.SIGKILL)
        return action()


def live(life: Life, scenario: Scenario, done: Callable[[], None]) -> None:
    life.open()
    done()
    for step in scenario.steps:
        run(life, step)
        done()
    life.close()
    done()


def live_and_die(directory: Path, scenario: Scenario, durability: Durability, number: int, *, half: bool) -> None:
    path = directory / "log"
    model = scenario.prepare(path, durability)
    acknowledged = os.open(directory / "done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    life = Life(path, KillingFs(number, half=half), durability, model)

    def done() -> None:
        os.write(acknowledged, b".")

    live(life, scenario, done)


def main() -> None:
    root, scenario, durability = Path(sys.argv[1]), SCENARIOS[sys.argv[2]], cast(Durability, sys.argv[3])
    logging.disable()
    if not sys.argv[4:]:
        recording = RecordingFs(SYSTEM_FS)
        path = root / "whole" / "log"
        path.parent.mkdir()
        life = Life(path, recording, durability, scenario.prepare(path, durability))
        live(life, scenario, lambda: None)
        print(*recording.kinds(of=DEADLY))
        return
    for argument in sys.argv[4:]:
        number, _, half = argument.partition(":")
        directory = root / argument
        directory.mkdir()
        child = os.fork()
        if child == 0:
            try:
                live_and_die(directory, scenario, durability, int(number), half=bool(half))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"at {argument}: status {status}, expected to be killed")
        print(argument, flush=True)


if __name__ == "__main__":
    main()
