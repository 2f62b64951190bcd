"""Processes that share a store, some of which make backups of it, are killed at any instant.

Each complete backup is the whole store at one moment between its begin and its end: of each writer a prefix of what it
did, in all logs, its group and the queue together; and everything confirmed before the backup began.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore.files.paths import TopicPartition
from kstore.types import Durability
from tests.crash.shared_backup_processes import ORDERS, QUEUE, SETTINGS
from tests.support.harness.evidence import Crashed, Hung, Lost, Wrong

ROOT = Path(__file__).resolve().parents[2]
Tried = Callable[[str, int], None]
# How many processes are killed, and of how many backups in each place a restore is compared.
KILLS, KILLS_LONG = 20, 400
RESTORES, RESTORES_LONG = 4, 100
STALL_SECONDS = 300.0
WHAT = ("write", "write", "work", "backup", "backup")
PLACES = ("a", "b")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Running(NamedTuple):
    what: str
    name: str
    process: subprocess.Popen[bytes]
    out: Path

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.out.read_text().splitlines()]


def start(what: str, name: str, path: Path, durability: Durability) -> Running:
    out = path.parent / f"out-{time.monotonic_ns()}-{name}"
    command = [sys.executable, "-m", "tests.crash.shared_backup_processes", what, str(path), durability, name]
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, cwd=ROOT)
    return Running(what, name, process, out)


def kill(one: Running) -> None:
    one.process.send_signal(signal.SIGKILL)
    _, said = one.process.communicate(timeout=STALL_SECONDS)
    if one.process.returncode != -signal.SIGKILL:
        raise Crashed(said.decode()[-3000:])


def wait_until(is_so: Callable[[], bool], running: list[Running]) -> None:
    deadline = time.monotonic() + STALL_SECONDS
    while not is_so():
        for one in running:
            if one.process.poll() is not None:
                raise Crashed((one.process.communicate()[1] or b"").decode()[-3000:])
        if time.monotonic() > deadline:
            raise Hung("no progress")
        time.sleep(0.02)


def run(root: Path, durability: Durability, kills: int, restores: int, tried: Tried, seed: int) -> None:
    generator, path = random.Random(seed), root / "store"
    with kstore.open(path, durability=durability, **SETTINGS) as store:
        store.create_topic("orders", 2)
        store.create_topic("done")
        store.queue("jobs", **QUEUE)
    ended, running = list[Running](), list[Running]()

    def begin(what: str, name: str) -> None:
        running.append(start(what, name, path, durability))

    try:
        places = iter(PLACES)
        for number, what in enumerate(WHAT):
            begin(what, next(places) if what == "backup" else f"{what}{number}")
        for number in range(kills):
            # All do something, so that no kill strikes only those that start.
            wait_until(lambda: all(one.out.stat().st_size for one in running), running)
            time.sleep(generator.uniform(0.0, 0.15))
            killed = running.pop(generator.randrange(len(running)))
            kill(killed)
            ended.append(killed)
            tried("kills", 1)
            begin(killed.what, killed.name if killed.what == "backup" else f"{killed.what}-{number}")
        wait_until(lambda: all(one.out.stat().st_size for one in running), running)
    finally:
        while running:
            ended.append(running.pop())
            ended[-1].process.kill()
            ended[-1].process.communicate()
    wrote = {one.name: [(int(n), int(at)) for _, n, at in one.lines()] for one in ended if one.what == "write"}
    for place in PLACES:
        made = {int(ms): int(at) for one in ended if one.name == place for _, ms, at in one.lines()}
        sound = {one.time_ms for one in kstore.check_backups(root / place) if one.ok or _lost(one)}
        if missing := made.keys() - sound:
            raise Lost(f"the backups {missing} are not there")
        for time_ms in [max(made), *generator.sample(sorted(made), min(restores, len(made)))]:
            least = {
                name: max((number for number, at_ns in lines if at_ns < made[time_ms]), default=-1) + 1
                for name, lines in wrote.items()
            }
            shutil.rmtree(root / "new", ignore_errors=True)
            kstore.restore(root / place, root / "new", at_ms=time_ms)
            hold(root / "new", least)
            tried("states", 1)


def _lost(backup: kstore.CheckedBackup) -> bool:
    raise Lost(f"the backup {backup.time_ms}: {backup.errors}")


def counted(values: list[str], what: str) -> Counter[str]:
    """How many values each writer has there. Raises: Wrong unless they are its first ones, in order."""
    found: Counter[str] = Counter()
    for value in values:
        name, _, number = value.partition(":")
        if int(number) != found[name]:
            raise Wrong(f"{what}: {value}, expected number {found[name]} of {name}")
        found[name] += 1
    return found


def hold(path: Path, least: dict[str, int]) -> None:
    """``least``: how many values of each writer must be everywhere. Raises: Lost, Wrong."""
    with kstore.open(path, durability="os") as store:
        first, second = (
            [(record.value or b"").decode() for record in store.log("orders", partition).read()]
            for partition in range(2)
        )
        done = [(record.value or b"").decode() for record in store.log("done").read()]
        groups = {name: store.consumer_offsets.offset_at(name, ORDERS) or 0 for name in least}
        queue, waiting = store.queue("jobs", **{**QUEUE, "lease_seconds": 600}), Counter[str]()
        while queue.qsize():
            jobs = queue.get_many(1000, timeout=5)
            waiting.update((job.value or b"").decode() for job in jobs)
            queue.ack_many(jobs)
    in_first, in_second = counted(first, "orders-0"), counted(second, "orders-1")
    for name, count in least.items():
        committed = counted(second[: groups[name]], "committed")[name]
        if groups[name] and not second[groups[name] - 1].startswith(f"{name}:"):
            raise Wrong(f"{name} has committed {groups[name]}, which follows {second[groups[name] - 1]}")
        if not 0 <= in_first[name] - in_second[name] <= 1 or not 0 <= in_second[name] - committed <= 1:
            raise Wrong(f"{name}: {in_first[name]}, {in_second[name]}, {committed}, expected the same, or one less")
        if committed < count:
            raise Lost(f"{name}: {committed} values, and {count} were confirmed before the backup began")
    # Each value is put after its commit, and acked after it is in ``done``.
    put = {f"{name}:{number}" for name in least for number in range(in_second[name])}
    sure = {f"{name}:{number}" for name, count in least.items() for number in range(max(count, in_first[name] - 1))}
    if lost := sure - waiting.keys() - set(done):
        raise Lost(f"{sorted(lost)[:5]} are neither in the queue nor done")
    if extra := (waiting.keys() | set(done)) - put:
        raise Wrong(f"{sorted(extra)[:5]} are in the queue, or done, before they were put")
    if twice := [value for value, count in waiting.items() if count > 1]:
        raise Wrong(f"{twice[:5]} are in the queue twice")


def test_a_restore_that_is_not_of_one_moment_is_found(directory: Path) -> None:
    with kstore.open(directory / "store", durability="os") as store:
        store.create_topic("orders", 2)
        store.create_topic("done")
        for partition in range(2):
            store.log("orders", partition).append(b"w:0")
        store.consumer_offsets.commit("w", {TopicPartition("orders", 1): 1})
        store.queue("jobs", **QUEUE).put(b"w:0")
    shutil.copytree(directory / "store", directory / "copy")
    hold(directory / "store", {"w": 1})
    with pytest.raises(Lost):
        hold(directory / "store", {"w": 1})  # the queue was emptied
    with kstore.open(directory / "copy", durability="os") as store:
        store.log("orders", 1).append(b"w:1")
    with pytest.raises(Wrong):
        hold(directory / "copy", {"w": 1})


@pytest.mark.long
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_backups_by_processes_that_share_a_store_are_of_one_moment(
    durability: Durability, directory: Path, tried: Tried, seed: int
) -> None:
    run(directory, durability, KILLS, RESTORES, tried, seed)


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_backups_by_processes_that_share_a_store_are_of_one_moment_for_long(
    durability: Durability, directory: Path, tried: Tried, seed: int
) -> None:
    run(directory, durability, KILLS_LONG, RESTORES_LONG, tried, seed + 1)
