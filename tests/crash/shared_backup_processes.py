"""A process that writes to a shared store, works on its queue, or makes backups of it, until it is killed.

usage: python -m tests.crash.shared_backup_processes write|work|backup PATH DURABILITY NAME

What a writer does, for each number from 0 on, in this order: it appends NAME:NUMBER to both partitions of ``orders``,
commits the end that its record has in the second one, for a group of its name, and puts it into the queue. A worker
appends what it gets to ``done``, and then acks it. They report on standard output, a line each:

    wrote NUMBER AT_NS          all of this is confirmed; after a worker's ack too
    made TIME_MS BEGAN_NS       a backup is complete, in the directory NAME beside the store
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, cast

import kstore
from kstore.types import Durability

OUT = 1
ORDERS = kstore.TopicPartition("orders", 1)
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 13}
QUEUE: dict[str, Any] = {"lease_seconds": 0.5, "max_deliveries": 0, "segment_bytes": 1 << 14}


def _say(*words: object) -> None:
    # One write of a short line: a kill leaves it whole or absent.
    os.write(OUT, " ".join(map(str, words)).encode() + b"\n")


def write(store: kstore.Store, name: str) -> None:
    queue = store.queue("jobs", **QUEUE)
    for number in range(10**9):
        value = f"{name}:{number}".encode()
        store.log("orders", 0).append(value)
        offset = store.log("orders", 1).append(value)
        store.consumer_offsets.commit(name, {ORDERS: offset + 1})
        queue.put(value)
        _say("wrote", number, time.monotonic_ns())
        time.sleep(0.002)  # the others, too, are to get on


def work(store: kstore.Store, name: str) -> None:
    queue = store.queue("jobs", **QUEUE)
    for number in range(10**9):
        try:
            job = queue.get(timeout=0.5)
        except kstore.Empty:
            continue
        store.log("done").append(job.value)
        try:
            job.ack()
        except kstore.LeaseLostError:
            continue
        _say("wrote", number, time.monotonic_ns())


def back_up(store: kstore.Store, name: str) -> None:
    target = Path(store.path).parent / name
    while True:
        began_ns = time.monotonic_ns()
        try:
            made = store.backup(target, bytes_per_second=1e9)  # without the pauses beside appends
        except kstore.TruncatedFileError:
            continue  # killed writers had to be recovered, five times in a row
        _say("made", made.time_ms, began_ns)
        time.sleep(0.01)


def main() -> None:
    what, path, durability, name = sys.argv[1:]
    with kstore.open(path, shared=True, durability=cast(Durability, durability), **SETTINGS) as store:
        {"write": write, "work": work, "backup": back_up}[what](store, name)


if __name__ == "__main__":
    main()
