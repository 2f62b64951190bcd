"""Several processes create the same thing at the same instant, and some are killed; run by ``test_shared_creation``.

    python -m tests.crash.shared_creation DIRECTORY KIND ROUNDS SEED

Each round starts eight processes on a path that does not exist. In every other round some of them die of SIGKILL before
one of their first operations that change a file, or in the middle of a write. All others must succeed, and what was
acknowledged must exist. Prints, after each round, how many processes were killed.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import kstore
from kstore.errors import TopicExistsError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.store import Store
from tests.crash.killed_life import KillingFs
from tests.support.harness.evidence import Crashed, Lost, Wrong

PROCESSES = 8
# How many die in a round with kills, and the last operation at which each may die.
KILLS, OPERATIONS = 3, {"log": 16, "topic": 25, "queue": 40, "group": 40}
FAILED = 1


def create_log(path: Path, fs: FileSystem, name: bytes) -> None:
    with kstore.Log(path, shared=True, fs=fs) as log:
        log.append(name)


def create_topic(path: Path, fs: FileSystem, name: bytes) -> None:
    with Store(path, shared=True, fs=fs) as store:
        with suppress(TopicExistsError):
            store.create_topic("orders", partitions=2)
        store.log("orders", 1).append(name)


def create_queue(path: Path, fs: FileSystem, name: bytes) -> None:
    with Store(path, shared=True, fs=fs) as store:
        store.queue("jobs").put(name)


def create_group(path: Path, fs: FileSystem, name: bytes) -> None:
    """Commits, so that ``__consumer_offsets`` is created."""
    with Store(path, shared=True, fs=fs) as store:
        store.consumer_offsets.commit("billing", {TopicPartition("orders", int(name)): int(name) + 1})


def values_of_log(path: Path) -> list[bytes]:
    with kstore.Log(path) as log:
        return [record.value or b"" for record in log.read()]


def values_of_topic(path: Path) -> list[bytes]:
    with Store(path) as store:
        if store.topics() != ["orders"]:
            raise Wrong(f"topics {store.topics()}, expected orders")
        return [record.value or b"" for record in store.log("orders", 1).read()]


def values_of_queue(path: Path) -> list[bytes]:
    with Store(path) as store:
        return [job.value or b"" for job in store.queue("jobs").get_many(100, block=False)]


def values_of_group(path: Path) -> list[bytes]:
    with Store(path) as store:
        committed = store.consumer_offsets.committed("billing")
        return [b"%d" % owner.partition for owner in committed]


KINDS: dict[str, tuple[Callable[[Path, FileSystem, bytes], None], Callable[[Path], list[bytes]]]] = {
    "log": (create_log, values_of_log),
    "topic": (create_topic, values_of_topic),
    "queue": (create_queue, values_of_queue),
    "group": (create_group, values_of_group),
}


def start(
    create: Callable[[Path, FileSystem, bytes], None], path: Path, fs: FileSystem, name: bytes, gate: mmap.mmap
) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        while not gate[0]:  # they start closer together than the system would wake them
            os.sched_yield()
        create(path, fs, name)
    except BaseException:
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)


def play(root: Path, kind: str, number: int, generator: random.Random) -> int:
    """One round; returns the number of killed processes."""
    create, values_of = KINDS[kind]
    path = root / str(number) / "made" / "here"
    (root / str(number)).mkdir()
    doomed = generator.sample(range(PROCESSES), KILLS) if number % 2 else []
    gate = mmap.mmap(-1, 1)
    pids = []
    for each in range(PROCESSES):
        # The first surely dies: every process changes files that many times.
        at = generator.randrange(1, 4 if [each] == doomed[:1] else OPERATIONS[kind])
        half = generator.random() < 0.5
        fs = KillingFs(at, half=half) if each in doomed else SYSTEM_FS
        pids.append(start(create, path, fs, b"%d" % each, gate))
    gate[0] = 1
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    gate.close()
    killed = [status == signal.SIGKILL for status in statuses]
    for each, status in enumerate(statuses):
        if status and not (killed[each] and each in doomed):
            raise Crashed(f"{kind}, round {number}: process {each} ended with status {status}")
    found = Counter(values_of(path))
    for each, died in enumerate(killed):
        count = found.pop(b"%d" % each, 0)
        if not died and not count:
            raise Lost(f"{kind}, round {number}: an acknowledged write of process {each} is not there")
        if count > 1:
            raise Wrong(f"{kind}, round {number}: the write of process {each} is there {count} times")
    if found:
        raise Wrong(f"{kind}, round {number}: never written: {found}")
    shutil.rmtree(root / str(number))
    return sum(killed)


def main() -> None:
    root, kind, rounds, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    logging.disable()
    generator = random.Random(seed)
    killed = 0
    for number in range(rounds):
        killed += play(root, kind, number, generator)
        print(killed, flush=True)


if __name__ == "__main__":
    main()
