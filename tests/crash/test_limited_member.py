"""A process whose files may not grow beyond a size (RLIMIT_FSIZE; a quota is alike) fails alone: the other members of
the shared log go on, and new ones join."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kstore.log import Log
from kstore.types import Durability
from tests.crash.limited_member import SETTINGS
from tests.crash.power_cut_lives import DURABILITIES
from tests.support.harness.selection import tries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared logs are Linux's")

REPOSITORY = Path(__file__).parents[2]
# Below the size of ``kstore.state`` every change of it fails; above it, appends and indexes do.
SIZES = (0, 100, 1000, 3000, 4096)
ROUNDS = tries(6, quick=1)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.sampled(1, keep=("0-sync", "1000-interval", "4096-os"))
def test_a_member_that_cannot_write_stops_no_other(
    size: int, durability: Durability, tmp_path: Path, seed: int
) -> None:
    for number in range(ROUNDS):
        path = tmp_path / str(number)
        with Log(path, durability=durability, **SETTINGS) as log:
            log.append_many([b"mine"] * 5)
            command = [sys.executable, "-W", "ignore", "-m", "tests.crash.limited_member"]
            with subprocess.Popen(
                [*command, path, durability, str(size), str(seed + number)],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as limited:
                assert limited.stdin is not None
                assert limited.stdout is not None
                error, appended = json.loads(limited.stdout.readline())
                assert error, "nothing has failed"
                expected = {int(offset): value.encode() for offset, value in appended.items()}
                expected[log.append(b"after the failure")] = b"after the failure"
                with Log(path, durability=durability, **SETTINGS) as new:
                    expected[new.append(b"of a new member")] = b"of a new member"
                    held(new, expected)
                held(log, expected)
                limited.stdin.close()
                assert limited.wait(60) == 0
            expected[log.append(b"last")] = b"last"
            log.flush()
        with Log(path, durability=durability) as log:
            assert not log.verify().corrupt
            held(log, expected)


def held(log: Log, expected: dict[int, bytes]) -> None:
    found = {record.offset: record.value for record in log.read()}
    start = log.start_offset
    assert {offset: found.get(offset) for offset in expected if offset >= start} == {
        offset: value for offset, value in expected.items() if offset >= start
    }
