"""One worker of a queue that several processes share: takes and finishes items until none is left. Prints how many it
had, and when it finished the last one, in seconds of the machine's clock.

usage: python -m tools.bench.shared_queue_child kstore|sqlite3 PATH os|sync ITEMS_A_CALL
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import kstore
from kstore.types import Durability

# How long a worker of kstore's queue waits for items that others may return.
TIMEOUT_SECONDS = 0.5


def opened_by_hand(path: Path, durability: str) -> sqlite3.Connection:
    """A database of SQLite in WAL mode; the others wait for a writer for up to a minute."""
    base = sqlite3.connect(path / "queue.db", isolation_level=None, timeout=60)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute(f"PRAGMA synchronous = {'FULL' if durability == 'sync' else 'OFF'}")
    return base


def fill(kind: str, path: Path, durability: str, values: Sequence[bytes]) -> None:
    """Makes the queue, with one item for each of ``values``."""
    if kind == "kstore":
        with kstore.open(path, shared=True, durability=cast(Durability, durability)) as store:
            store.queue("jobs").put_many(values)
        return
    path.mkdir()
    base = opened_by_hand(path, durability)
    base.execute("CREATE TABLE queue (number INTEGER PRIMARY KEY, leased INTEGER DEFAULT 0, value BLOB NOT NULL)")
    base.execute("CREATE INDEX waiting ON queue (leased, number)")
    base.execute("BEGIN")
    base.executemany("INSERT INTO queue (value) VALUES (?)", ((value,) for value in values))
    base.execute("COMMIT")
    base.close()


def of_kstore(path: Path, durability: str, bulk: int) -> Callable[[], int]:
    """Takes and finishes some items; returns how many, 0 if none was left."""
    queue = kstore.open(path, shared=True, durability=cast(Durability, durability)).queue("jobs")

    def take_one() -> int:
        try:
            queue.get(timeout=TIMEOUT_SECONDS).ack()
        except kstore.Empty:
            return 0
        return 1

    def take_many() -> int:
        try:
            jobs = queue.get_many(bulk, timeout=TIMEOUT_SECONDS)
        except kstore.Empty:
            return 0
        queue.ack_many(jobs)
        return len(jobs)

    return take_one if bulk == 1 else take_many


def by_hand(path: Path, durability: str, bulk: int) -> Callable[[], int]:
    base = opened_by_hand(path, durability)

    def take() -> int:
        items: list[Any] = base.execute(
            "UPDATE queue SET leased = 1 WHERE number IN"
            " (SELECT number FROM queue WHERE leased = 0 ORDER BY number LIMIT ?) RETURNING number, value",
            (bulk,),
        ).fetchall()
        base.execute("BEGIN IMMEDIATE")
        base.executemany("DELETE FROM queue WHERE number = ?", [(number,) for number, _ in items])
        base.execute("COMMIT")
        return len(items)

    return take


def main() -> None:
    kind, path, durability, bulk = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    take = (of_kstore if kind == "kstore" else by_hand)(path, durability, bulk)
    print("ready", flush=True)
    sys.stdin.readline()
    taken, ended = 0, time.monotonic()
    while count := take():
        taken, ended = taken + count, time.monotonic()
    print(taken, ended, flush=True)


if __name__ == "__main__":
    main()
