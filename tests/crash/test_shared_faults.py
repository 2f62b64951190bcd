"""One of two writers of a log meets a fault at each file operation or an interrupt at each line: the other goes on."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import KstoreError
from kstore.types import Durability
from tests.crash.programs import count_of
from tests.crash.shared_pair import STEPS, Pair
from tests.support.fakes.fake_fs import CHANGES, READS, FailingFs, Fault
from tests.support.harness.evidence import Untyped
from tests.support.harness.selection import tries

ROOT = Path(__file__).parents[2]
DURABILITIES: tuple[Durability, ...] = ("sync", "os")
# The distance between operations, and between lines, in ``make test``.
STRIDE_OPERATIONS, STRIDE_LINES = tries(3, quick=7), tries(37, quick=149)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's"),
    pytest.mark.usefixtures("abandons_logs"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
CASES = pytest.mark.parametrize(
    ("durability", "name"), [(durability, name) for durability in DURABILITIES for name in STEPS]
)


def fail_all(directory: Path, durability: Durability, name: str, first: int, stride: int) -> int:
    """Fails every ``stride``-th operation of the step from ``first`` on; returns how many."""
    number = first
    while True:
        path = directory / str(number)
        fs = FailingFs()
        pair = Pair(path, durability, fs)
        pair.begin()
        pair.prepare(name)
        fault = Fault(
            number, errno.ENOSPC if number % 2 else errno.EIO, written=lambda size: size // 2, kinds=CHANGES | READS
        )
        fs.faults.append(fault)
        try:
            STEPS[name](pair)
        except KstoreError:
            pass
        except Exception as error:
            raise Untyped(f"operation {number}: {error!r}") from error
        fs.faults.clear()
        if not fs.failures:
            pair.one.close()
            pair.two.close()
            return (number - first) // stride
        try:
            pair.go_on()
            pair.end()
        except Exception as error:
            error.add_note(f"operation {number}, {fs.failures}")
            raise
        shutil.rmtree(path)
        number += stride


def interrupt_all(directory: Path, durability: Durability, name: str, first: int, stride: int) -> int:
    return count_of("shared_interrupted_life", directory, durability, name, first, stride)


@CASES
@pytest.mark.sampled(2)
def test_a_failed_operation_of_one_writer_keeps_the_other_from_nothing(
    durability: Durability, name: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", fail_all(directory, durability, name, 1 + seed % STRIDE_OPERATIONS, STRIDE_OPERATIONS))


@CASES
@pytest.mark.sampled(1)
def test_an_interrupt_of_one_writer_keeps_the_other_from_nothing(
    durability: Durability, name: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", interrupt_all(directory, durability, name, 1 + seed % STRIDE_LINES, STRIDE_LINES))


@pytest.mark.soak
@CASES
def test_any_failed_operation_of_one_writer_keeps_the_other_from_nothing(
    durability: Durability, name: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("faults", fail_all(directory, durability, name, 1, 1))


@pytest.mark.soak
@CASES
def test_an_interrupt_at_any_line_of_one_writer_keeps_the_other_from_nothing(
    durability: Durability, name: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("faults", interrupt_all(directory, durability, name, 1, 1))
