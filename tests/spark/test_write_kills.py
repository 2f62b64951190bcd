"""A stream's driver is killed while it commits, before and behind it: each row is in the store once."""

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
from tests.evidence import Hung, Lost, Wrong
from tests.spark_sink import committed_values

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
ROWS_PER_FILE = 300
# A kill comes while one of so many batches of its driver is under way.
BATCHES_PER_KILL = 3
START_SECONDS = 240
BATCH_SECONDS = 120
# A commit takes less than this: some kills are before it, some within it, some behind it.
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


def staged_batches(store: Path) -> set[int]:
    found = (parse_name(each.name) for each in store.iterdir())
    return {name.batch_id for name in found if name is not None}


def kill_within_a_batch(driver: subprocess.Popen[bytes], directory: Path, chance: random.Random) -> None:
    """Waits until the driver has staged some batch or other of its own, and kills it a moment later."""
    wanted, delay = chance.randint(1, BATCHES_PER_KILL), chance.uniform(0, DELAY_SECONDS)
    # What the driver before has left is staged too.
    before = {each.name for each in (directory / "store").iterdir()}
    seen: set[int] = set()
    due = time.monotonic() + START_SECONDS
    while len(seen) < wanted:
        if driver.poll() is not None:
            raise Wrong(f"the driver ended by itself with {driver.returncode}: {said(directory)}")
        if time.monotonic() > due:
            os.killpg(driver.pid, signal.SIGKILL)
            raise Hung(f"no batch within {START_SECONDS} s: {said(directory)}")
        time.sleep(0.005)
        now = {each.name for each in (directory / "store").iterdir()} - before
        found = {name.batch_id for name in map(parse_name, now) if name is not None}
        if found - seen:
            due = time.monotonic() + BATCH_SECONDS
        seen |= found
    time.sleep(delay)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


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
    for _ in range(kills):
        kill_within_a_batch(start(directory), directory, chance)
        # A reader sees whole batches only, and none twice, also before anybody has cleaned up.
        check(store, count, is_complete=False)
        tried("kills", 1)
    driver = start(directory)
    try:
        driver.wait(START_SECONDS + BATCH_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        raise Hung(f"the last driver does not end: {said(directory)}") from None
    if driver.returncode:
        raise Wrong(f"the last driver ended with {driver.returncode}: {said(directory)}")
    check(store, count, is_complete=True)
    if left := staged_batches(store):
        raise Wrong(f"staged files of the batches {left} stay behind")


def check(store: Path, count: int, *, is_complete: bool) -> None:
    found = [value for values in committed_values(store).values() for value in values]
    if len(set(found)) != len(found):
        raise Wrong(f"{len(found)} rows, and only {len(set(found))} different ones")
    rows = dict.fromkeys(range(count), 0)
    for value in found:
        rows[int((value or b"").split(b"-")[0])] += 1
    if is_complete and set(rows.values()) != {ROWS_PER_FILE}:
        raise Lost(f"rows of each batch: {rows}")


def test_a_driver_that_is_killed_leaves_each_row_once(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    live(tmp_path, 3, seed, tried)


@pytest.mark.soak
def test_a_driver_that_is_killed_often_leaves_each_row_once(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    live(tmp_path, 20, seed, tried)
