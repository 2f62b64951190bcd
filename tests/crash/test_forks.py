"""More than one process: forks in the middle of appends, second writers, readers, and mapped files that shrink."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

from kstore.errors import LockedError
from kstore.log import Log
from tests.support.harness.evidence import Crashed, Hung, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.telling_values import hold_against, telling_value
from tests.support.lives.watching_reader import ReadingProcess

FORKS = tries(20, quick=3)
FORKS_LONG = 150
SHRINKS = tries(10, quick=2)
SHRINKS_LONG = 150
SECONDS_MAX = 100.0
SECONDS_MAX_LONG = 600.0

Tried = Callable[[str, int], None]

HOLDER = """
import sys, kstore
log = kstore.Log(sys.argv[1])
log.append(b"theirs")
print("open", flush=True)
sys.stdin.readline()
log.close()
"""


def _run(arguments: list[str], *, between: Callable[[], None] = lambda: None, seconds: float = SECONDS_MAX) -> str:
    """Runs a module, and ``between`` at its first line of output. Raises: Hung, Crashed, Wrong."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        watchdog = Timer(seconds, program.kill)
        watchdog.start()
        try:
            first = program.stdout.readline()
            if first:
                between()
            rest, errors = program.communicate("\n")
        finally:
            is_late = not watchdog.is_alive()
            watchdog.cancel()
            program.poll()
    if is_late:
        raise Hung(f"{arguments} did not end")
    if program.returncode < 0:
        raise Crashed(f"{arguments} died of signal {-program.returncode}: {errors}")
    if program.returncode:
        raise Wrong(errors)
    return first + rest


def _fork(path: Path, durability: str, forks: int, seconds: float, tried: Tried) -> None:
    def look() -> None:
        # The parent's lock holds after all those children have ended.
        with pytest.raises(LockedError):
            Log(path)

    said = _run(["tests.crash.forking_writer", str(path), durability, str(forks)], between=look, seconds=seconds)
    with Log(path) as log:
        if not log.recovery.clean:
            raise Wrong(f"not clean after the close: {log.recovery}")
    tried("reads", int(said.split()[-1]))


KILLED_BESIDE_ITS_CHILD = """
import os, signal, sys
import kstore
log = kstore.Log(sys.argv[1])
log.append(b"x")
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


@pytest.mark.promise("fork")
def test_a_child_that_outlives_its_killed_parent_holds_no_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", KILLED_BESIDE_ITS_CHILD, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        with pytest.raises(LockedError):
            Log(tmp_path / "log")
        parent.kill()
        parent.wait()
        with Log(tmp_path / "log") as log:  # the child still reads its input
            assert [record.value for record in log.read()] == [b"x"]
        parent.stdin.close()


@pytest.mark.promise("fork")
@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.sampled(1)
def test_a_fork_in_the_middle_of_appends_leaves_dead_handles_and_a_parent_that_goes_on(
    durability: str, tmp_path: Path, tried: Tried
) -> None:
    _fork(tmp_path / "log", durability, FORKS, SECONDS_MAX, tried)


@pytest.mark.soak
@pytest.mark.promise("fork")
@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_many_forks_in_the_middle_of_appends(durability: str, tmp_path: Path, tried: Tried) -> None:
    _fork(tmp_path / "log", durability, FORKS_LONG, SECONDS_MAX_LONG, tried)


# --- a second writer --------------------------------------------------------------------------------------------------


def _tree(path: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino)
        for file in path.rglob("*")
        if file.is_file()
    }


@pytest.mark.promise("one writer")
def test_a_second_writer_is_refused_and_a_reader_needs_no_lock_and_changes_no_byte(
    tmp_path: Path, tried: Tried
) -> None:
    path = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        before = _tree(tmp_path)
        for _ in range(20):
            with pytest.raises(LockedError, match=str(other.pid)):
                Log(path)
            with Log(path, read_only=True) as view:
                assert [record.value for record in view.read()] == [b"theirs"]
                assert view.offset_for_time("max_timestamp") == 0
                assert not view.verify().corrupt
        assert _tree(tmp_path) == before
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait(SECONDS_MAX) == 0
    with Log(path) as log:
        with pytest.raises(LockedError, match="this process"):
            Log(path)
        assert log.append(b"ours") == 1
    tried("reads", 20)


@pytest.mark.promise("one writer")
def test_a_reading_process_changes_no_byte_of_a_log_that_was_killed(tmp_path: Path, tried: Tried) -> None:
    path = tmp_path / "log"
    killed = (
        "import os, sys, kstore\n"
        "from tests.support.lives.telling_values import telling_value\n"
        "log = kstore.Log(sys.argv[1], segment_bytes=2048)\n"
        "for offset in range(50): log.append(telling_value(offset, 0, 100))\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", killed, str(path)], check=True, timeout=SECONDS_MAX)
    before = _tree(path)
    reader = ReadingProcess()
    try:
        reader.watch(path)
        with Log(path, read_only=True) as view:
            assert hold_against(view.read(), 0) == 50
        # The writer does nothing meanwhile; the answer comes after many reads.
        count = sum(reader.watch(path) for _ in range(100)) + reader.watch(None)
    finally:
        reader.close()
    assert _tree(path) == before
    with Log(path) as log:
        assert log.append(telling_value(50, 0)) == 50
    tried("reads", count + 50)


# --- mapped files that shrink -----------------------------------------------------------------------------------------


def _shrink(path: Path, steps: int, seconds: float, tried: Tried, seed: int) -> None:
    reader = ReadingProcess()
    try:
        reader.watch(path)
        said = _run(["tests.crash.shrinking_writer", str(path), str(steps), str(seed)], seconds=seconds)
        count = reader.watch(None)
    finally:
        reader.close()
    tried("reads", int(said) + count)


@pytest.mark.promise("bytes")
def test_no_reader_dies_of_a_mapped_file_that_shrinks(tmp_path: Path, tried: Tried, seed: int) -> None:
    _shrink(tmp_path / "log", SHRINKS, SECONDS_MAX, tried, seed)


@pytest.mark.soak
@pytest.mark.promise("bytes")
def test_no_reader_dies_of_mapped_files_that_shrink_for_long(tmp_path: Path, tried: Tried, seed: int) -> None:
    _shrink(tmp_path / "log", SHRINKS_LONG, SECONDS_MAX_LONG, tried, seed + 1)
