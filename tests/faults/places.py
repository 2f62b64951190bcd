"""A program that strikes lives between two of their file operations; run by ``test_faults``.

    python -m tests.faults.places "interrupt" LIFE,LIFE... COUNT SEED
    python -m tests.faults.places "refused allocation" LIFE,LIFE... COUNT SEED

COUNT times each life is lived; after one of its file operations, drawn by SEED, a KeyboardInterrupt comes at one of the
next places where CPython serves signals, or one of the next allocations is refused. Prints a line for each; the last
line is how many struck. It is a program because CPython 3.11 loses count of its stack when trace functions raise, and
because a refused allocation may end the interpreter.
"""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

from tests.crash import refusals
from tests.crash.interrupted_life import InterruptAfterCode
from tests.crash.memory_error_life import DISGUISES
from tests.faults.harness import EXPECTED, Harness
from tests.faults.lives import LIVES, Life, machine_in_memory
from tests.support.fakes.fake_fs import Operation, Result
from tests.support.harness.evidence import Untyped
from tests.support.harness.replaced import replaced


def after_operation(life: Life, at: int, then: Callable[[], None], stop: Callable[[], None]) -> Any:
    """Within the block, ``then`` is called after operation ``at`` of the life, and ``stop`` before each later one."""
    perform, seen = life.fs.perform, 0

    def counting(operation: Operation, action: Callable[[], Result]) -> Result:
        nonlocal seen
        if seen >= at:
            stop()
        result = perform(operation, action)
        seen += 1
        if seen == at:
            then()
        return result

    return replaced(life.fs, "perform", counting)


def interrupted(life: Life, at: int, number: int) -> BaseException | None:
    """Interrupts place ``number`` after operation ``at``; returns the error that ended the life."""
    interrupt = InterruptAfterCode(number)

    def begin() -> None:
        interrupt.__enter__()
        interrupt.join(sys._getframe())

    # The trace ends when it raises, or here.
    before = sys.gettrace()
    try:
        with after_operation(life, at, begin, lambda: None):
            life.live()
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
    return None


def refused(life: Life, at: int, number: int) -> BaseException | None:
    """Refuses allocation ``number`` after operation ``at``, but none of the disk's; returns what ended the life."""

    def act(begin: Callable[[], None]) -> None:
        with after_operation(life, at, begin, refusals.stop):
            life.live()

    return refusals.refused_later(act, number)


PLACES: dict[str, tuple[int, Callable[[Life, int, int], BaseException | None]]] = {
    "interrupt": (150, interrupted),
    "refused allocation": (60, refused),
}


def is_expected(error: BaseException, name: str) -> bool:
    if name == "interrupt":
        # CPython 3.11 raises this TypeError if a trace function raises below a compiled module.
        lost = isinstance(error, TypeError) and "'traceback' object is not callable" in str(error)
        return lost or isinstance(error, (*EXPECTED, KeyboardInterrupt))
    # A life that gives up failed calls has looked at its type.
    if isinstance(error, Untyped) and error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, (*EXPECTED, MemoryError, *DISGUISES))


def strike(harness: Harness, name: str, last: int, generator: random.Random) -> bool:
    """Whether the fault came, and the life noticed it."""
    number_max, act = PLACES[name]
    life, at, number = harness.new(), generator.randint(1, last), generator.randint(1, number_max)
    error = act(life, at, number)
    try:
        if error is not None and not is_expected(error, name):
            raise error if isinstance(error, AssertionError) else Untyped(repr(error)) from error
        harness.survive(life, (), generator)
    except AssertionError as verdict:
        raise type(verdict)(f"{verdict}; {name} at place {number} after operation {at}, ended by {error!r}") from error
    return error is not None


def main() -> None:
    name, which, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    logging.disable()
    warnings.simplefilter("ignore")
    struck = 0
    with machine_in_memory() as machine:
        for life in which.split(","):
            harness = Harness(LIVES[life], machine, seed)
            last = len(harness.whole().operations)
            generator = random.Random(f"{seed} {life} {name}")
            for _ in range(count):
                struck += strike(harness, name, last, generator)
                print(life, struck, flush=True)
    print(struck)


if __name__ == "__main__":
    main()
