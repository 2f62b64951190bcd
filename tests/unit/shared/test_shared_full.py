"""Shared logs: a process that may write no more leaves alone, and the others go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kstore.errors import DiskFullError, PoisonedError, SyncFailedError
from kstore.log import Log, writer_of
from kstore.shared.telling import is_alone_in
from kstore.state.shared_slot import POISONED, SharedState
from kstore.types import Durability
from tests.support.lives.shared_parts import DURABILITIES, others_of, shared, values

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")

# One process with a limit of file sizes: it prints the error of a step, and that of an append after it.
LIMITED = """
import resource, sys
from kstore import Log
from kstore.errors import KstoreError
from tests.support.lives.log_cases import data

log = Log(sys.argv[1], durability=sys.argv[2], shared=True, segment_bytes=30_000, index_interval_bytes=100)
for number in range(25):
    log.append(b"%d" % number * 500)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
steps = {
    "append": lambda: log.append(b"c" * 5000),
    "many": lambda: log.append_many([b"c" * 5000] * 3),
    "batches": lambda: log.append_batches(data(26, size=5000, leader_epoch=3), assign_offsets=False),
    "roll": lambda: [log.roll(), log.append(b"c" * 5000)],
    "truncate": lambda: log.truncate_to(10),
}
for step in (steps[sys.argv[3]], lambda: log.append(b"c" * 5000)):
    try:
        step()
        print("none", flush=True)
    except KstoreError as error:
        print(type(error).__name__, flush=True)
sys.stdin.readline()
log.close()
"""


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(
    ("step", "kept"), [("append", 26), ("many", 26), ("batches", 26), ("roll", 26), ("truncate", 10)]
)
@pytest.mark.sampled(5)
def test_a_limit_of_file_sizes_of_one_process_stops_no_other(
    step: str, kept: int, durability: Durability, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    with Log(path, durability=durability, shared=True, segment_bytes=30_000, index_interval_bytes=100) as log:
        log.append(b"first")
        limited = subprocess.Popen(
            [sys.executable, "-c", LIMITED, str(path), durability, step],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert limited.stdin is not None
        assert limited.stdout is not None
        try:
            assert limited.stdout.readline() == "DiskFullError\n"
            # Poisoned if the step could not be undone without space.
            assert limited.stdout.readline() in ("DiskFullError\n", "PoisonedError\n")
            end = log.append(b"after")
            with Log(path, durability=durability, shared=True, segment_bytes=30_000, index_interval_bytes=100) as other:
                assert other.append(b"joined") == end + 1
                found = values(other)
                assert found == values(log)
                other.check()
            expected = [b"first", *(b"%d" % number * 500 for number in range(25))]
            assert found[-2:] == [b"after", b"joined"]
            assert found[:-2] == expected[: len(found) - 2]
            assert len(found) - 2 >= kept
        finally:
            limited.stdin.close()
            limited.wait(timeout=60)
            limited.stdout.close()
        assert log.append(b"alone") == end + 2


def leave(log: Log) -> None:
    """Poisons the log as a full disk does in the middle of a change."""
    writer = writer_of(log)
    with writer.turn.lock:
        writer.files.announce_change()
        writer.files.poison(DiskFullError(28, "full"))


def test_a_process_that_left_changes_no_record_of_the_others(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as one, shared(tmp_path / "log") as two:
        one.append(b"a")
        leave(one)
        assert two.append(b"b") == 1
        told = others_of(two).slot.read()
        with pytest.raises(PoisonedError):
            one.append(b"c")
        writer_of(one).files.announce()
        with writer_of(one).turn.lock:
            pass
        one.close()
        assert others_of(two).slot.read() == told
        assert two.append(b"c") == 2


def test_a_sync_that_fails_after_its_process_left_stops_all(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as one, shared(tmp_path / "log") as two:
        one.append(b"a")
        leave(one)

        def fails() -> None:
            raise SyncFailedError(5, "broken")

        files = writer_of(one).files
        with pytest.raises(SyncFailedError):
            files.syncs.alone(fails)
        with writer_of(one).turn.lock:
            pass
        told = SharedState.decode(others_of(one).slot.read())
        assert told is not None
        assert told.flags & POISONED
        with pytest.raises(PoisonedError):
            shared(tmp_path / "log")  # although the change was not completed either
        with pytest.raises(PoisonedError):
            two.append(b"b")


def full_disk(while_handling: Exception | None = None) -> DiskFullError:
    """The error of a full disk, met while another one was handled."""
    cause = OSError(28, "full")
    cause.__context__ = while_handling
    error = DiskFullError(28, "full")
    error.__cause__ = error.__context__ = cause
    return error


def test_a_full_disk_that_was_met_after_a_failed_sync_concerns_all_processes() -> None:
    assert is_alone_in(full_disk())
    assert is_alone_in(full_disk(full_disk()))
    assert not is_alone_in(full_disk(SyncFailedError(5, "broken")))
    assert not is_alone_in(full_disk(full_disk(OSError(5, "broken"))))
    assert not is_alone_in(SyncFailedError(5, "broken"))
