"""Three writers and a reader of one log: whatever operation a writer is killed at, the reader sees all that the others
append, and every index is the one that is built from its segment alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.types import Durability
from tests.crash.shared_trio import WRITERS
from tests.evidence import VERDICTS, Crashed, verdict_of

ROOT = Path(__file__).parents[2]
# In ``make test`` only so many operations apart.
STRIDE = 13

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")
EACH = pytest.mark.parametrize(
    ("durability", "victim"),
    [
        pytest.param(durability, victim, marks=pytest.mark.promise(f"killed: {durability}"))
        for durability in ("sync", "os")
        for victim in range(WRITERS)
    ],
)


def deaths(directory: Path, durability: Durability, victim: int, first: int, step: int) -> int:
    command = [sys.executable, "-W", "ignore", "-m", "tests.crash.shared_trio", str(directory), durability]
    ended = subprocess.run(
        [*command, str(victim), str(first), str(step)], cwd=ROOT, capture_output=True, text=True, timeout=1800
    )
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.startswith("tests.evidence.")]
        raise VERDICTS.get(verdict_of(said[-1] if said else ""), Crashed)(ended.stderr)
    return int(ended.stdout)


@EACH
@pytest.mark.long
def test_what_is_appended_beside_a_killed_writer_is_seen_and_indexed(
    durability: Durability, victim: int, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    count = deaths(directory, durability, victim, seed % STRIDE, STRIDE)
    assert count > 5
    tried("kills", count)


@pytest.mark.soak
@EACH
def test_what_is_appended_beside_a_writer_killed_at_any_operation_is_seen_and_indexed(
    durability: Durability, victim: int, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("kills", deaths(directory, durability, victim, 0, 1))
