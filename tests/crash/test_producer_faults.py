"""Every file operation of producers' lives fails, once or from then on: no acknowledged record is lost or doubled.

All errors are kstore's own, every record has a result, a transaction is whole or absent, and no call waits forever.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.types import Durability
from tests.crash.producer_life import ProducerLife, prepare
from tests.support.fakes.fake_fs import CHANGES, READS, WRITES, FailingFs, Fault, RecordingFs
from tests.support.harness.evidence import Lost, Untyped, shuffled
from tests.support.harness.selection import tries

EVERYTHING = CHANGES | READS
# How many operations fail in one case of ``make test``; in ``make soak`` all do.
SAMPLE = tries(6, quick=2)

pytestmark = [
    pytest.mark.usefixtures("abandons_logs"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

# An errno, and how much of a write gets into the file.
FAILURES: dict[str, tuple[int, int | Callable[[int], int] | None]] = {
    "EIO": (errno.EIO, 0),
    "ENOSPC": (errno.ENOSPC, 0),
    "half": (errno.ENOSPC, lambda size: size // 2),
    "all-but-the-sync": (errno.EIO, None),
}
CASES = pytest.mark.parametrize(
    ("durability", "name"), [(durability, name) for durability in ("sync", "interval", "os") for name in FAILURES]
)


def operations_of(directory: Path, durability: Durability) -> list[str]:
    """The kinds of operations that a life requests of the file system."""
    path = directory / "whole"
    prepare(path, durability)
    fs = RecordingFs()
    life = ProducerLife(path, fs, durability)
    life.live()
    life.check()
    if len(life.committed) != 2 or any(delivery.exception() for delivery in life.sent.values()):
        raise Lost("a life without faults")
    return [operation.kind for operation in fs.operations if operation.kind in EVERYTHING]


def try_faults(directory: Path, durability: Durability, name: str, count: int | None, seed: int) -> int:
    """Fails operations, ``count`` of them or all, each once and from then on; returns how many faults struck."""
    number_errno, written = FAILURES[name]
    kinds = EVERYTHING if written == 0 else WRITES
    operations = operations_of(directory, durability)
    numbers = [number for number, kind in enumerate(operations, start=1) if kind in kinds]
    struck = 0
    for number in numbers if count is None else shuffled(numbers, seed, count):
        kind = operations[number - 1]
        for lasting in (False, True):
            path = directory / f"{number}-{lasting}"
            prepare(path, durability)
            # A disk that refuses all changes can be read; one that cannot be read fails everything.
            struck_kinds = CHANGES if lasting and kind in CHANGES else EVERYTHING
            at = sum(one in struck_kinds for one in operations[:number])
            fs = FailingFs()
            fs.faults.append(Fault(at, number_errno, sticky=lasting, written=written, kinds=struck_kinds))
            life = ProducerLife(path, fs, durability)
            try:
                life.live()
                life.check()
            except (AssertionError, Exception) as error:
                error.add_note(f"operation {number}, {kind}, {lasting=}, {name}, {durability}")
                if isinstance(error, AssertionError):
                    raise
                raise Untyped(repr(error)) from error
            struck += bool(fs.failures)
            shutil.rmtree(path)
    return struck


@pytest.mark.promise("disk full", "sync fails", "whole or absent")
@CASES
@pytest.mark.sampled(2)
def test_an_operation_that_fails_under_producers_loses_nothing_acknowledged(
    durability: Durability, name: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", try_faults(directory, durability, name, SAMPLE, seed))


@pytest.mark.soak
@pytest.mark.promise("disk full", "sync fails", "whole or absent")
@CASES
def test_whatever_operation_fails_under_producers_nothing_acknowledged_is_lost(
    durability: Durability, name: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", try_faults(directory, durability, name, None, seed))
