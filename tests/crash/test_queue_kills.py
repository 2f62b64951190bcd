"""Producers and workers of one queue, each a process, are killed at any instant: nothing is lost or comes back.

An item whose put returned was acked, its worker was killed in the ack, or it is still there. An item whose ack returned
is not delivered to a later get. ``KSTORE_SOAK_QUEUE_SECONDS`` says how long a soak test runs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore.types import Durability
from tests.crash.numbered_items import number_of
from tests.crash.queue_processes import SETTINGS
from tests.support.harness.evidence import Crashed, Hung, Lost, Wrong
from tests.support.harness.selection import tries

ROOT = Path(__file__).resolve().parents[2]
SECONDS = tries(8, quick=1)
SOAK_SECONDS = float(os.environ.get("KSTORE_SOAK_QUEUE_SECONDS", 600))
PROCESS_COUNT = 4
ACKS_MIN = 200
# They hang if they make no progress for this long, even on a busy machine.
STALL_SECONDS = 300.0

Tried = Callable[[str, int], None]


@dataclass(slots=True)
class Heard:
    """What the processes reported: which items were put, when a delivered one was requested, when an ack returned.

    ``doubtful``: the worker was killed in the ack, and the queue may have recorded it.
    """

    put: set[int] = field(default_factory=set)
    got: dict[int, int] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)

    def hear(self, text: str) -> None:
        """Adds all reports of one process."""
        acking: int | None = None
        for line in text.splitlines():
            word, number_text, when_text = line.split()
            number, when = int(number_text), int(when_text)
            if word == "put":
                self.put.add(number)
            elif word == "got":
                self.got[number] = max(when, self.got.get(number, 0))
            elif word == "acking":
                acking = number
            else:
                acking = None
                if word == "acked":
                    # The first ack: any later delivery is wrong.
                    self.acked[number] = min(when, self.acked.get(number, when))
        if acking is not None:
            self.doubtful.add(acking)


class Running(NamedTuple):
    """A process, its work, and where it reports."""

    what: str
    process: subprocess.Popen[bytes]
    out: Path

    @property
    def is_up(self) -> bool:
        return self.out.stat().st_size > 0


def _start(what: str, path: Path, out: Path, durability: Durability, seed: int) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.queue_processes", what, str(path), durability, str(seed)],
            stdout=file,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    process.send_signal(number)
    _, said = process.communicate(timeout=STALL_SECONDS)
    if process.returncode != -number:
        raise Crashed(said.decode()[-2000:])


class Progress:
    """Raises: Hung after a long time without reports."""

    def __init__(self) -> None:
        self._size, self._since = -1, time.monotonic()

    def see(self, outs: Sequence[Path]) -> None:
        size = sum(out.stat().st_size for out in outs if out.exists())
        if size != self._size:
            self._size, self._since = size, time.monotonic()
        elif time.monotonic() > self._since + STALL_SECONDS:
            raise Hung(f"nothing was done for {STALL_SECONDS} s")


def _run(seconds: float, root: Path, durability: Durability, tried: Tried, seed: int) -> None:
    generator = random.Random(seed)
    path = root / "store"
    outs: list[Path] = []
    running: list[Running] = []

    def begin(what: str) -> None:
        outs.append(root / f"out-{len(outs)}")
        process = _start(what, path, outs[-1], durability, generator.randrange(10**9))
        running.append(Running(what, process, outs[-1]))

    with kstore.open(path, durability=durability) as store:
        store.queue("jobs", **SETTINGS)
    try:
        for what in ("produce", "work"):
            for _ in range(PROCESS_COUNT):
                begin(what)
        # On a busy machine they start late, and so does the first ack.
        progress = Progress()
        while not any(one.is_up for one in running if one.what == "work"):
            progress.see(outs)
            time.sleep(0.05)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends or sum(out.read_text().count("acked") for out in outs) < ACKS_MIN:
            progress.see(outs)
            time.sleep(generator.uniform(0.1, 0.8))
            killed = generator.choice(running)
            if not killed.is_up and generator.random() < 0.75:
                continue  # some are killed before they start work, but not so many that nothing is done
            running.remove(killed)
            _end(killed.process, signal.SIGKILL)
            tried("kills", 1)
            begin(killed.what)
    finally:
        for one in running:
            if one.process.poll() is None:
                os.kill(one.process.pid, signal.SIGKILL)
        errors = [one.process.communicate()[1].decode() for one in running]
    if failed := [said for said in errors if "Traceback" in said]:
        raise Crashed(failed[0][-2000:])
    heard = Heard()
    for out in outs:
        heard.hear(out.read_text())
    _hold(path, heard)


def _hold(path: Path, heard: Heard) -> None:
    if again := [number for number, when in heard.acked.items() if heard.got.get(number, 0) > when]:
        raise Wrong(f"{len(again)} of {len(heard.acked)} items were delivered after their ack")
    left: set[int] = set()
    with kstore.open(path, durability="os") as store:
        queue = store.queue("jobs", **{**SETTINGS, "lease_seconds": 600})
        queue.check()
        while queue.stats().pending:
            try:
                jobs = queue.get_many(1000, timeout=1.5)  # leases of the dead are over by then
            except kstore.Empty:
                break
            left |= {number_of(job.value) for job in jobs}
            queue.ack_many(jobs)
    if acked := left & heard.acked.keys():
        raise Wrong(f"{len(acked)} of {len(heard.acked)} acked items were still there")
    # A worker killed in its ack had the item, and the queue may have the ack.
    if lost := heard.put - left - heard.acked.keys() - heard.doubtful:
        raise Lost(f"{len(lost)} of {len(heard.put)} items that were put were never processed")
    counts = len(heard.put), len(heard.acked), len(left), len(heard.doubtful)
    print("{:,} items were put, {:,} acked, {:,} left, {} in doubt".format(*counts))


def test_what_a_killed_process_was_about_is_in_doubt() -> None:
    heard = Heard()
    heard.hear("got 1 1\nacking 1 2\nacked 1 3\ngot 2 4\nacking 2 5\nlate 2 6\n")
    assert (heard.acked, heard.doubtful) == ({1: 3}, set())
    heard.hear("put 3 7\nacking 3 8\n")
    assert (heard.put, heard.got, heard.doubtful) == ({3}, {1: 1, 2: 4}, {3})


@pytest.mark.promise("killed: os")
def test_a_queue_of_eight_processes_survives_kills(directory: Path, tried: Tried, seed: int) -> None:
    _run(SECONDS, directory, "os", tried, seed)


@pytest.mark.soak
@pytest.mark.promise("killed: os")
def test_a_queue_of_eight_processes_survives_kills_for_long(directory: Path, tried: Tried, seed: int) -> None:
    _run(SOAK_SECONDS, directory, "os", tried, seed + 1)


@pytest.mark.soak
@pytest.mark.promise("killed: sync")
def test_a_queue_on_disk_of_eight_processes_survives_kills_for_long(directory: Path, tried: Tried, seed: int) -> None:
    _run(SOAK_SECONDS, directory, "sync", tried, seed + 2)
