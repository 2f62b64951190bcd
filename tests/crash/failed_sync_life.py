"""A program in which the sync of an append fails, and another error comes while that is handled; run by
``test_failed_syncs``.

    python -m tests.crash.failed_sync_life DIRECTORY CALL ERROR

For n = 1, 2...: a call on a new log writes its bytes, their sync fails, and the n-th place of the call where CPython
serves signals is interrupted or, if ERROR is "memory", its n-th allocation is refused. Whatever the call then raises,
the outcome of the sync is unknown: the log is poisoned. Prints a line for each try; the last line is how many of them
came after the failure.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kstore import Log
from kstore.errors import KstoreError, PoisonedError
from kstore.log import writer_of
from tests.crash.interrupted_life import InterruptAfterCode
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Hung, Wrong

# A call with more places does not end.
PLACES_MAX = 5_000

CALLS: dict[str, Callable[[Log], object]] = {
    "append": lambda log: log.append(b"second"),
    "append_many": lambda log: log.append_many([b"second", b"third"]),
}


class FailingSync:
    """The system's ``pwritev``, whose sync fails: the bytes are in the file, and an error comes."""

    def __init__(self) -> None:
        self.pwritev: Callable[..., int] = os.pwritev
        self.has_failed = False
        # Called before the error comes.
        self.then: Callable[[], None] = lambda: None

    def write(self, *arguments: Any) -> int:
        self.pwritev(*arguments)
        self.has_failed = True
        self.then()
        raise OSError(errno.EIO, "a failed sync")


def interrupted(call: Callable[[], object], number: int, _: FailingSync) -> bool:
    """Interrupts place ``number`` of a call; returns whether it has that place."""
    with InterruptAfterCode(number) as interrupt:
        try:
            call()
        except (KeyboardInterrupt, KstoreError):
            pass
        except TypeError as error:
            # CPython 3.11 raises this if a trace function raises below a compiled module.
            if "'traceback' object is not callable" not in str(error):
                raise
    return interrupt.struck


def refused(call: Callable[[], object], number: int, failing: FailingSync) -> bool:
    """Refuses an allocation after the sync has failed; returns whether the call makes it."""
    from tests.crash import refusals

    def act(begin: Callable[[], None]) -> None:
        failing.then = begin
        call()

    error = refusals.refused_later(act, number)
    return not isinstance(error, KstoreError) or isinstance(error.__context__, MemoryError)


ERRORS = {"interrupt": interrupted, "memory": refused}


def strike(path: Path, act: Callable[[Log], object], error: str, number: int) -> tuple[bool, bool]:
    """Returns whether the call has place ``number``, and whether the sync failed."""
    log = Log(path, clock=ManualClock())
    log.append(b"first")
    tail = writer_of(log).files.tail
    assert tail is not None
    # Compiled code writes into allocated blocks; this leaves the write to the file.
    tail.numbers.allocated = tail.numbers.position
    failing = FailingSync()
    os.pwritev = failing.write
    try:
        has_struck = ERRORS[error](lambda: act(log), number, failing)
    finally:
        os.pwritev = failing.pwritev
    if failing.has_failed:
        try:
            log.append(b"after")
        except PoisonedError:
            pass
        else:
            raise Wrong("the log accepts an append after a sync of unknown outcome")
        if [record.value for record in log.read()] != [b"first"]:
            raise Wrong("reads reach what may not be on disk")
    log.close()
    with Log(path) as log:
        found = [record.value for record in log.read()]
        if found not in ([b"first"], [b"first", b"second"], [b"first", b"second", b"third"]) and failing.has_failed:
            raise Wrong(f"recovery finds {found}")
        log.check()
    return has_struck, failing.has_failed


def main() -> None:
    logging.disable()
    directory, act, error = Path(sys.argv[1]), CALLS[sys.argv[2]], sys.argv[3]
    tried = quiet = 0
    for number in range(1, PLACES_MAX):
        path = directory / str(number)
        try:
            has_struck, has_failed = strike(path, act, error, number)
        except Wrong as wrong:
            wrong.add_note(f"place {number}")
            raise Wrong(f"{wrong}, place {number}") from wrong
        shutil.rmtree(path)
        print(number, flush=True)
        tried += has_struck and has_failed
        # A harmless refusal may be swallowed; after ten calls without a refusal there are no more.
        quiet = 0 if has_struck else quiet + 1
        if quiet == 10:
            print(tried)
            return
    raise Hung(f"more than {PLACES_MAX} places")


if __name__ == "__main__":
    main()
