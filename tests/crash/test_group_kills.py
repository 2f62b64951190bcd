"""Members of a group in several processes, killed at any moment: every record is read, none again after its commit."""

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

import kstore
from kstore import TopicPartition
from tests.support.harness.evidence import Crashed, Hung, Lost, Wrong
from tests.support.harness.selection import tries

PARTITIONS = 4
WORKERS = 3
# They hang if they make no progress for this long, even on a busy machine.
STALL_SECONDS = 300


@pytest.mark.skipif(sys.platform != "linux", reason="writers share a store on Linux only")
@pytest.mark.parametrize(
    "kills", [pytest.param(tries(5, quick=2), id="some"), pytest.param(1_000, id="many", marks=pytest.mark.soak)]
)
@pytest.mark.promise("killed: os")
def test_killed_members_lose_nothing(tmp_path: Path, seed: int, kills: int, tried: Callable[[str, int], None]) -> None:
    """Every record is handed out, in order from the committed offsets; committed records are not handed out again."""
    path, journal = tmp_path / "store", tmp_path / "journal"
    journal.touch()
    draw = random.Random(seed)
    with kstore.open(path, shared=True, durability="os") as store:
        store.create_topic("t", partitions=PARTITIONS)
        store.consumer("t", group="g").close()  # makes the topic of offsets
        started = 0

        def start() -> subprocess.Popen[bytes]:
            nonlocal started
            started += 1
            arguments = [sys.executable, "-m", "tests.crash.group_worker", str(path), str(journal), str(started)]
            return subprocess.Popen(arguments, stderr=subprocess.PIPE)

        workers = [start() for _ in range(WORKERS)]
        ends = [0] * PARTITIONS
        killed = 0
        try:
            next_kill = time.monotonic() + 1
            while killed < kills:
                number = draw.randrange(PARTITIONS)
                ends[number] = store.log("t", number).append_many([b"x"] * draw.randrange(1, 20)).last_offset + 1
                time.sleep(0.005)
                if time.monotonic() >= next_kill:
                    at = draw.randrange(WORKERS)
                    ensure_alive(workers[at])
                    end(workers[at])
                    killed += 1
                    workers[at] = start()
                    next_kill = time.monotonic() + draw.uniform(0.1, 1)
            wanted = {TopicPartition("t", number): offset for number, offset in enumerate(ends) if offset}
            limit, before = time.monotonic() + STALL_SECONDS, -1
            while (there := {owner: committed(store, owner) for owner in wanted}) != wanted:
                for worker in workers:
                    ensure_alive(worker)
                if sum(there.values()) > before:
                    # They may be slow on a busy machine, as long as they make progress.
                    limit, before = time.monotonic() + STALL_SECONDS, sum(there.values())
                if time.monotonic() > limit:
                    raise Hung(f"{store.consumer_offsets.committed('g')}, expected {wanted}")
                time.sleep(0.05)
        finally:
            for worker in workers:
                end(worker)
    check(journal.read_text(), ends)
    tried("kills", killed)


def committed(store: kstore.Store, owner: TopicPartition) -> int:
    found = store.consumer_offsets.committed("g").get(owner)
    return -1 if found is None else found.offset


def ensure_alive(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is not None:
        assert worker.stderr is not None
        raise Crashed(worker.stderr.read().decode())


def end(worker: subprocess.Popen[bytes]) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert worker.stderr is not None
    worker.stderr.close()


def check(journal: str, ends: list[int]) -> None:
    handed_out: list[set[int]] = [set() for _ in ends]
    committed = [0] * len(ends)
    for line in journal.splitlines():
        what, number, offset = line.split()
        partition, at = int(number), int(offset)
        if what == "C":
            committed[partition] = max(committed[partition], at)
            continue
        if at < committed[partition]:
            raise Wrong(f"{line}: offsets below {committed[partition]} were committed")
        if at and at - 1 not in handed_out[partition]:
            raise Wrong(f"{line}: the record before it was never handed out")
        handed_out[partition].add(at)
    for partition, end_offset in enumerate(ends):
        missing = set(range(end_offset)) - handed_out[partition]
        if missing:
            raise Lost(f"partition {partition}: {sorted(missing)[:10]}")
