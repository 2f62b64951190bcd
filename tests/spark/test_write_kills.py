"""A stream's driver is killed while it commits, before and after it: each row is in the store once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.spark.staging import parse_name
from kstore.store import Store
from tests.support.harness.evidence import Hung, Lost, Wrong
from tests.support.lives.spark_sink import committed_values

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
ROWS_PER_FILE = 300
# A kill comes during one of this many batches of its driver.
BATCHES_PER_KILL = 3
WAIT_SECONDS = 360
# A commit takes less than this: some kills are before it, some within it, some after it.
DELAY_SECONDS = 0.6


def start(directory: Path) -> subprocess.Popen[bytes]:
    arguments = [str(directory / name) for name in ("source", "store", "checkpoint")]
    with (directory / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", *arguments],
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
            # The JVM is in its group and dies with it.
            start_new_session=True,
        )


def staged_since(store: Path, before: set[str]) -> set[int]:
    """The batches that have staged files beside those of ``before``."""
    found = (parse_name(each.name) for each in store.iterdir() if each.name not in before)
    return {name.batch_id for name in found if name is not None}


def kill_around_a_commit(driver: subprocess.Popen[bytes], directory: Path, chance: random.Random, behind: bool) -> None:
    """Kills the driver a moment after it has staged some batch; with ``behind``, after the sink's commit of the batch
    and before Spark notes it."""
    store, wanted = directory / "store", chance.randint(1, BATCHES_PER_KILL)
    # The last driver's leftovers are staged too.
    before = {each.name for each in store.iterdir()}
    seen: set[int] = set()

    def has_staged_enough() -> bool:
        seen.update(staged_since(store, before))
        return len(seen) >= wanted

    wait_until(driver, directory, has_staged_enough)
    if behind:
        last = max(seen)
        wait_until(driver, directory, lambda: last not in staged_since(store, before))
    else:
        time.sleep(chance.uniform(0, DELAY_SECONDS))
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def wait_until(driver: subprocess.Popen[bytes], directory: Path, is_so: Callable[[], bool]) -> None:
    due = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if driver.poll() is not None:
            raise Wrong(f"the driver ended by itself with {driver.returncode}: {said(directory)}")
        if time.monotonic() > due:
            os.killpg(driver.pid, signal.SIGKILL)
            raise Hung(f"not within {WAIT_SECONDS} s: {said(directory)}")
        time.sleep(0.002)


def said(directory: Path) -> str:
    return (directory / "driver.log").read_text(errors="replace")[-2000:]


def live(directory: Path, kills: int, seed: int, tried: Callable[[str, int], None]) -> None:
    chance = random.Random(seed)
    source, store = directory / "source", directory / "store"
    source.mkdir()
    count = BATCHES_PER_KILL * kills + 2
    for number in range(count):
        text = "".join(f"{number:03d}-{row:03d}\n" for row in range(ROWS_PER_FILE))
        (source / f"{number:03d}.txt").write_text(text)
    with Store(store, background=False) as made:
        made.create_topic("orders", 2)
    for number in range(kills):
        kill_around_a_commit(start(directory), directory, chance, behind=number % 2 == 1)
        # A reader sees only whole batches, and none twice, even before a cleanup.
        check(store, count, is_complete=False)
        tried("kills", 1)
    driver = start(directory)
    try:
        driver.wait(WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        raise Hung(f"the last driver does not end: {said(directory)}") from None
    if driver.returncode:
        raise Wrong(f"the last driver ended with {driver.returncode}: {said(directory)}")
    check(store, count, is_complete=True)
    if left := staged_since(store, set()):
        raise Wrong(f"staged files of the batches {left} are left")


def check(store: Path, count: int, *, is_complete: bool) -> None:
    found = [value for values in committed_values(store).values() for value in values]
    if len(set(found)) != len(found):
        raise Wrong(f"{len(found)} rows, but only {len(set(found))} different ones")
    rows = dict.fromkeys(range(count), 0)
    for value in found:
        rows[int((value or b"").split(b"-")[0])] += 1
    if is_complete and set(rows.values()) != {ROWS_PER_FILE}:
        raise Lost(f"rows of each batch: {rows}")


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_each_row_once(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    live(tmp_path, 2, seed, tried)


@pytest.mark.soak
def test_a_driver_that_is_killed_often_leaves_each_row_once(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    live(tmp_path, 20, seed, tried)
