"""Several writers of one log in processes of their own: all they append is there, and a killed one does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.log import Log
from kstore.types import Durability
from tests.crash.log_life import DURABILITIES
from tests.crash.programs import count_of
from tests.support.harness.evidence import Crashed, Lost, Wrong
from tests.support.harness.selection import tries

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")

# On an idle machine: a few seconds, and a few minutes.
KILLS, KILLS_LONG = tries(100, quick=25), 3_000

WRITER = """
import sys
from kstore.log import Log
path, durability, mark, count = sys.argv[1], sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
with Log(path, shared=True, durability=durability, segment_bytes=1 << 20) as log:
    print("open", flush=True)
    sys.stdin.readline()
    at = 0
    while at < count:
        size = min((1, 10, 1000, 300)[at % 4], count - at)
        log.append_many([mark + b"%d" % number for number in range(at, at + size)])
        at += size
"""


def deaths(directory: Path, durability: Durability, how: str, first: int, step: int) -> int:
    return count_of("shared_life", directory, durability, how, first, step)


@pytest.mark.parametrize("how", ["alone", "beside"])
@pytest.mark.parametrize(
    "durability", [pytest.param(each, marks=pytest.mark.promise(f"killed: {each}")) for each in DURABILITIES]
)
@pytest.mark.sampled(2)
def test_a_writer_killed_in_its_turn(
    durability: Durability, how: str, directory: Path, tried: Callable[[str, int], None], seed: int
) -> None:
    count = deaths(directory, durability, how, seed % 12, 12)
    assert count > 5
    tried("kills", count)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["alone", "beside"])
@pytest.mark.parametrize(
    "durability", [pytest.param(each, marks=pytest.mark.promise(f"killed: {each}")) for each in DURABILITIES]
)
def test_a_writer_killed_at_every_operation(
    durability: Durability, how: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("kills", deaths(directory, durability, how, 0, 1))


def write_together(path: Path, durability: Durability, count: int) -> None:
    """Two processes append ``count`` records each, while this one follows; all must be there, once and in order."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), durability, mark, str(count)],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for mark in "ab"
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
    with Log(path, read_only=True) as view:
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"\n")
            writer.stdin.flush()
        seen: Counter[bytes] = Counter()
        # Half a batch would be damage, which raises.
        for offset, record in enumerate(view.read(stop=2 * count, follow=True, timeout=300)):
            value = record.value or b""
            mark = value[:1]
            if record.offset != offset or value != mark + b"%d" % seen[mark]:
                raise Wrong(f"offset {record.offset}, expected {offset}: {value!r}, expected number {seen[mark]}")
            seen[mark] += 1
    for writer in writers:
        writer.communicate(timeout=300)
        if writer.returncode:
            raise Crashed(f"a writer ended with status {writer.returncode}")
    if seen != {b"a": count, b"b": count}:
        raise Lost(f"{seen}, expected {count} of each")
    with Log(path) as log:
        assert log.recovery.clean
        assert log.end_offset == 2 * count
        assert log.verify().clean
        log.check()


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.sampled(1)
def test_two_writers_and_a_follower(durability: Durability, tmp_path: Path) -> None:
    write_together(tmp_path / "log", durability, 20_000)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
def test_two_writers_and_a_million_records(durability: Durability, tmp_path: Path) -> None:
    write_together(tmp_path / "log", durability, 500_000)


def kills(path: Path, durability: Durability, writers: int, count: int, seed: int) -> tuple[int, int]:
    """How many writers were killed, and how many records were read."""
    arguments = [str(path), durability, str(writers), str(count), str(seed)]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.crash.killed_sharers", *arguments],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if ended.returncode:
        kind = Lost if "Lost" in ended.stderr else Wrong if "Wrong" in ended.stderr else Crashed
        raise kind(ended.stderr)
    killed, read = map(int, ended.stdout.split())
    return killed, read


RANDOM_KILLS = pytest.mark.parametrize(
    ("durability", "writers"),
    [
        pytest.param(durability, writers, marks=pytest.mark.promise(f"killed: {durability}"))
        for durability, writers in (("sync", 2), ("os", 3))
    ],
)


@RANDOM_KILLS
@pytest.mark.sampled(1)
def test_writers_killed_at_any_instant(
    durability: Durability, writers: int, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    killed, read = kills(tmp_path / "log", durability, writers, KILLS, seed)
    tried("kills", killed)
    tried("reads", read)


@pytest.mark.soak
@RANDOM_KILLS
def test_writers_killed_at_any_instant_for_minutes(
    durability: Durability, writers: int, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    killed, read = kills(tmp_path / "log", durability, writers, KILLS_LONG, seed + 1)
    tried("kills", killed)
    tried("reads", read)
