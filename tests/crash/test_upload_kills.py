"""A process is killed while it sends four files at a time: its target is whole at its last manifest, and the next run
goes on. Nothing half-sent counts."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.errors import LogNotFoundError
from kstore.store import Store
from tests.crash.upload_processes import SCHEME, SETTINGS, use_objects
from tests.support.harness.evidence import Crashed, Lost, Wrong, shuffled

pytest.importorskip("fsspec")

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS, SEGMENTS = 5, 4
Tried = Callable[[str, int], None]


def prepare(path: Path) -> None:
    with Store(path, **SETTINGS) as store:
        store.create_topic("orders", PARTITIONS)
        for partition in range(PARTITIONS):
            log = store.log("orders", partition)
            for _ in range(SEGMENTS):
                log.append_many([b"%d" % at + b"x" * 500 for at in range(log.end_offset, log.end_offset + 25)])


def start(what: str, root: Path, kill_at: int, seed: int) -> subprocess.Popen[bytes]:
    arguments = [what, str(root / "store"), str(root / "target"), str(kill_at), str(seed)]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.crash.upload_processes", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[bytes], *, may_be_killed: bool) -> tuple[int, int] | None:
    """How many requests there were, and the last manifest's time; None if it was killed."""
    said, errors = process.communicate(timeout=300)
    if may_be_killed and process.returncode == -signal.SIGKILL:
        return None
    if process.returncode:
        raise Crashed(errors.decode()[-3000:])
    count, time_ms = map(int, said.split())
    return count, time_ms


def check(root: Path, made: set[int], *, may_lack: bool) -> set[int]:
    """The times of the manifests in the target, all of which are whole; ``may_lack``: old ones may be removed.

    Raises: Lost, Wrong.
    """
    target = f"{SCHEME}://{root / 'target'}"
    try:
        checked = kstore.check_backups(target)
    except LogNotFoundError:
        checked = []
    for one in checked:
        if not one.ok:
            raise Lost(f"the backup {one.time_ms}: {one.errors}")
    times = {one.time_ms for one in checked}
    if (max(made) if made else 0) > max(times, default=0) or (not may_lack and made - times):
        raise Lost(f"of the backups {made} only {times} are there")
    if times:
        shutil.rmtree(root / "new", ignore_errors=True)
        kstore.restore(target, root / "new")
        with Store(root / "store", read_only=True) as now, Store(root / "new", **SETTINGS) as new:
            for partition in range(PARTITIONS):
                log, copy = now.log("orders", partition), new.log("orders", partition)
                found = [record.value for record in copy.read()]
                expected = [record.value for record in log.read(stop=copy.end_offset)]
                if found != expected or len(found) < SEGMENTS * 25:
                    raise Wrong(f"partition {partition} has {len(found)} records, expected {len(expected)}")
    return times


def finish(what: str, root: Path, made: set[int], seed: int) -> set[int]:
    """The next run is not killed."""
    result = ended(start(what, root, 0, seed), may_be_killed=False)
    assert result is not None
    return check(root, made | {result[1]}, may_lack=what == "replicate")


def kill_at_requests(what: str, directory: Path, at_most: int | None, seed: int, tried: Tried) -> None:
    """Kills a process at each request, or at some of them."""
    use_objects()
    prepare(directory / "whole" / "store")
    result = ended(start(what, directory / "whole", 0, seed), may_be_killed=False)
    assert result is not None
    count = result[0]
    check(directory / "whole", {result[1]}, may_lack=True)
    assert count > 3 * PARTITIONS
    for number in shuffled(range(1, count + 1), seed, count if at_most is None else at_most):
        root = directory / f"at-{number}"
        prepare(root / "store")
        try:
            # Which request is which depends on the threads, and their number too.
            ended(start(what, root, number, seed), may_be_killed=True)
            made = check(root, set(), may_lack=True)
            finish(what, root, made, seed)
        except AssertionError as error:
            error.add_note(f"killed at request {number}")
            raise
        shutil.rmtree(root)
        tried("kills", 1)


@pytest.mark.long
@pytest.mark.parametrize("what", ["backup", "replicate"])
def test_a_kill_at_a_request_of_parallel_uploads(what: str, directory: Path, seed: int, tried: Tried) -> None:
    kill_at_requests(what, directory, 20, seed, tried)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["backup", "replicate"])
def test_a_kill_at_each_request_of_parallel_uploads(what: str, directory: Path, seed: int, tried: Tried) -> None:
    kill_at_requests(what, directory, None, seed, tried)


def kill_at_random(what: str, root: Path, count: int, seed: int, tried: Tried) -> None:
    use_objects()
    generator, made = random.Random(seed), set[int]()
    prepare(root / "store")
    began = time.monotonic()
    finish(what, root, made, seed)
    seconds = time.monotonic() - began
    for number in range(count):
        if what == "backup" and number % 3 == 0:
            shutil.rmtree(root / "target", ignore_errors=True)
            made = set()
        process = start(what, root, 0, generator.randrange(10**9))
        time.sleep(seconds * generator.uniform(0.3, 1.0))
        process.kill()
        ended(process, may_be_killed=True)
        with Store(root / "store", **SETTINGS):
            pass  # recovered
        made = check(root, made, may_lack=what == "replicate")
        tried("kills", 1)
    finish(what, root, made, seed)


@pytest.mark.long
@pytest.mark.parametrize("what", ["backup", "replicate"])
def test_a_kill_of_parallel_uploads_at_any_instant(what: str, directory: Path, seed: int, tried: Tried) -> None:
    kill_at_random(what, directory, 15, seed, tried)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["backup", "replicate"])
def test_many_kills_of_parallel_uploads_at_any_instant(what: str, directory: Path, seed: int, tried: Tried) -> None:
    kill_at_random(what, directory, 300, seed + 1, tried)


def test_an_object_that_is_half_there_is_found(directory: Path) -> None:
    use_objects()
    prepare(directory / "store")
    ended(start("backup", directory, 0, 1), may_be_killed=False)
    one = max((directory / "target" / "orders-0").iterdir(), key=lambda path: path.stat().st_size)
    one.write_bytes(one.read_bytes()[:-1])
    with pytest.raises(Lost):
        check(directory, set(), may_lack=True)
