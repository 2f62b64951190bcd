"""Writes directories with a release of kstore, for later releases to open.

    python -m tests.golden.own_directories TARGET

It uses only the public interface, so that it runs with the checkout of any release. Below TARGET it makes a tree for
each way in which a log or a store may end, and ``expected.json`` with what each must still hold.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kstore

Expected = dict[str, Any]
# Objects that stay open until the process is killed: no finalizer may close them earlier.
KEPT: list[object] = []


def values(log: kstore.Log) -> list[list[Any]]:
    """Offset and value of each record."""
    return [[record.offset, (record.value or b"").decode()] for record in log.read()]


def write_closed(root: Path) -> Expected:
    """Three segments each, with deleted records at the start, closed cleanly."""
    for durability in ("sync", "interval", "os"):
        with kstore.Log(root / durability, durability=durability, segment_bytes=1024) as log:
            for number in range(30):
                log.append_many([b"value %d.%d %s" % (number, part, b"x" * 20) for part in range(3)])
            log.delete_records(5)
    return {name: read_log(root / name) for name in ("sync", "interval", "os")}


def read_log(path: Path) -> Expected:
    with kstore.Log(path, read_only=True) as log:
        return {"start": log.start_offset, "end": log.end_offset, "records": values(log)}


def write_killed(root: Path) -> Expected:
    """A process is killed with its logs open; everything is acknowledged."""
    for durability in ("sync", "interval", "os"):
        log = kstore.Log(root / durability, durability=durability, segment_bytes=1024)
        for number in range(30):
            log.append_many([b"value %d.%d %s" % (number, part, b"x" * 20) for part in range(3)])
        log.delete_records(5)
        KEPT.append(log)
    return {name: read_log(root / name) for name in ("sync", "interval", "os")}


def write_shared(root: Path) -> Expected:
    """Two processes append in turn to one log; both are killed."""
    script = (
        "import sys, kstore\n"
        "log = kstore.Log(sys.argv[1], shared=True, segment_bytes=1024)\n"
        "for line in sys.stdin:\n"
        "    print(log.append(line.strip().encode()), flush=True)\n"
    )
    members = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(root / "log")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for number in range(40):
        member = members[number % 2]
        assert member.stdin is not None
        assert member.stdout is not None
        member.stdin.write(f"value {number} {'y' * 30}\n")
        member.stdin.flush()
        assert int(member.stdout.readline()) == number
    for member in members:
        member.kill()
        member.wait()
    return {"log": read_log(root / "log")}


def write_queue(root: Path) -> Expected:
    """Items that are done, leased, delayed and waiting, and one that was returned; closed cleanly."""
    with kstore.open(root) as store:
        queue = store.queue("jobs")
        for number in range(20):
            queue.put(b"item %d" % number)
        queue.put(b"late", delay=60)
        for _ in range(5):
            queue.get().ack()
        queue.get().nack()
        KEPT.extend(queue.get() for _ in range(2))
    return {"jobs": [*(f"item {number}" for number in range(5, 20)), "late"]}


def write_transactions(root: Path) -> Expected:
    """One transaction committed, one aborted, one open when the process is killed; committed offsets of a group."""
    store = kstore.open(root)
    store.create_topic("orders", partitions=2)
    with store.producer(transactional_id="payments") as producer:
        producer.init_transactions()
        for end in ("committed", "aborted"):
            producer.begin_transaction()
            for number in range(4):
                producer.send("orders", f"{end} {number}".encode(), partition=number % 2)
            if end == "committed":
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    with store.consumer("orders", group="billing") as consumer:
        for _ in range(2):
            consumer.poll(timeout=5)
        consumer.commit()
    left_open = store.producer(transactional_id="invoices")
    left_open.init_transactions()
    left_open.begin_transaction()
    left_open.send("orders", b"open 0", partition=0)
    left_open.flush()
    KEPT.extend((store, left_open))
    return {
        "orders-0": {"committed": ["committed 0", "committed 2"]},
        "orders-1": {"committed": ["committed 1", "committed 3"]},
        "group": "billing",
    }


def write_compacted(root: Path) -> Expected:
    """A log whose older segments are compacted; closed cleanly."""
    with kstore.open(root) as store:
        store.create_topic(
            "state", partitions=1, cleanup_policy="compact", segment_bytes=1024, min_cleanable_dirty_ratio=0
        )
        log = store.log("state", 0)
        for number in range(100):
            log.append(b"value %d" % number, key=b"key %d" % (number % 7))
        log.roll()
        log.compact()
        log.append(b"value 100", key=b"key 0")
    with kstore.open(root, read_only=True) as store:
        return {"state-0": {"records": values(store.log("state", 0))}}


WRITERS = {
    "closed": write_closed,
    "killed": write_killed,
    "shared": write_shared,
    "queue": write_queue,
    "transactions": write_transactions,
    "compacted": write_compacted,
}


def main(target: Path) -> None:
    expected = {}
    for name in WRITERS:
        # Each in its own process, which dies with everything open.
        done = subprocess.run(
            [sys.executable, "-m", "tests.golden.own_directories", str(target), name], stdout=subprocess.PIPE, text=True
        )
        assert done.returncode == -signal.SIGKILL, f"{name}: {done.returncode}"
        expected[name] = json.loads(done.stdout)
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def write_one(target: Path, name: str) -> None:
    print(json.dumps(WRITERS[name](target / name)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write_one(Path(sys.argv[1]), sys.argv[2])
    else:
        main(Path(sys.argv[1]))
