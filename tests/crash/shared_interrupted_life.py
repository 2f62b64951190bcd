"""A program in which one of two writers of a log is interrupted at one line after another; run by
``test_shared_faults``.

    python -m tests.crash.shared_interrupted_life DIRECTORY DURABILITY STEP FIRST STRIDE

Each time the first writer is interrupted at line FIRST, FIRST + STRIDE, ... of what the step runs, and the second one
continues, until the step has no more lines. Prints a line for each interrupt; the last line is their number.
"""

from __future__ import annotations

import gc
import logging
import shutil
import sys
import warnings
from pathlib import Path
from typing import cast

from kstore.types import Durability
from tests.crash.interrupted_life import LINES_MAX, InterruptAt
from tests.crash.shared_pair import STEPS, Pair
from tests.support.harness.evidence import VERDICTS, Hung, Untyped


def interrupt(path: Path, durability: Durability, name: str, number: int) -> bool:
    """Whether the step had that many lines."""
    pair = Pair(path, durability)
    pair.begin()
    pair.prepare(name)
    place = ""
    with InterruptAt(number) as interrupted:
        try:
            STEPS[name](pair)
        except KeyboardInterrupt:
            pass
    try:
        place = f"interrupted at line {number}, {interrupted.place}"
        if name == "close":
            pair.one.close()
        # A log that no caller received is garbage-collected.
        gc.collect()
        pair.go_on()
        pair.end()
    except tuple(VERDICTS.values()) as error:
        raise type(error)(f"{error}; {place}") from error
    except Exception as error:
        raise Untyped(f"{error!r}; {place}") from error
    return interrupted.struck


def main() -> None:
    directory, durability, name, first, stride = Path(sys.argv[1]), *sys.argv[2:]
    logging.disable()
    warnings.simplefilter("ignore")
    for number in range(int(first), LINES_MAX, int(stride)):
        path = directory / str(number)
        if not interrupt(path, cast(Durability, durability), name, number):
            print((number - int(first)) // int(stride))
            return
        shutil.rmtree(path)
        print(number, flush=True)
    raise Hung(f"{name} has more than {LINES_MAX} lines")


if __name__ == "__main__":
    main()
