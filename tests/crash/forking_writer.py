"""A writer that forks repeatedly while its threads append; the children try what is forbidden to them, then end.

usage: python -m tests.crash.forking_writer DIRECTORY DURABILITY FORKS. Ends with 0 if everything was correct.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import kstore
from kstore.log import writer_of
from tests.support.lives.telling_values import hold_against, telling_value

THREADS = 3
# The most records of a thread for each fork: without a limit, the log would grow faster than a child opens it.
RECORDS_PER_FORK = 500


def _uses(log: kstore.Log, reader: Iterator[kstore.Record]) -> dict[str, Callable[[], object]]:
    """Everything that a child may try with a handle, and with a read that was started before the fork."""
    return {
        "append": lambda: log.append(b"child"),
        "append_many": lambda: log.append_many([b"child"]),
        "append_batches": lambda: log.append_batches(b""),
        "read": lambda: list(log.read()),
        "read_values": lambda: list(log.read_values()),
        "a read begun before": lambda: list(reader),
        "fetch": lambda: log.fetch(0),
        "offset_for_time": lambda: log.offset_for_time("latest"),
        "start_offset": lambda: log.start_offset,
        "end_offset": lambda: log.end_offset,
        "high_watermark": lambda: log.high_watermark,
        "last_stable_offset": lambda: log.last_stable_offset,
        "flush": log.flush,
        "roll": log.roll,
        "truncate_to": lambda: log.truncate_to(0),
        "truncate_fully_and_start_at": lambda: writer_of(log).truncate_fully_and_start_at(0),
        "delete_records": lambda: log.delete_records(1),
        "verify": log.verify,
    }


def _in_child(log: kstore.Log, reader: Iterator[kstore.Record], path: str, durability: Any) -> str:
    """The problem, "" if there is none."""
    for name, use in _uses(log, reader).items():
        try:
            use()
        except kstore.ForkedError:
            continue
        except BaseException as error:
            return f"{name}: {error!r}"
        return f"{name} works in a child"
    try:
        kstore.Log(path, durability=durability)
    except kstore.LockedError:
        pass
    else:
        return "the child could open its parent's log"
    with kstore.Log(path, read_only=True) as view:
        if not hold_against(view.read(stop=100), 0):
            return "the child reads nothing"
    log.close()
    log.close()
    return ""


def main(path: str, durability: Any, forks: int) -> None:
    """Append in threads, and fork in the middle of it."""
    log = kstore.Log(path, durability=durability, segment_bytes=8192, flush_ms=5)
    for first in range(0, 200, 50):
        log.append_many([telling_value(offset, 0, 50) for offset in range(first, first + 50)])
    stop = threading.Event()
    order = threading.Lock()
    acknowledged = [0] * THREADS
    allowed = 0
    failures: list[str] = []

    def append(number: int) -> None:
        try:
            while not stop.is_set():
                if acknowledged[number] >= allowed:
                    stop.wait(0.001)
                    continue
                log.append(b"thread %d: %d" % (number, acknowledged[number]))
                with order:
                    acknowledged[number] += 1
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for number in range(forks):
        reader = iter(log.read())
        next(reader)
        before = sum(acknowledged)
        allowed += RECORDS_PER_FORK  # after the sum, since the threads may be at their limit
        while sum(acknowledged) == before and not failures:
            pass  # fork in the middle of their work
        before = sum(acknowledged)
        pid = os.fork()
        if pid == 0:
            wrong = _in_child(log, reader, path, durability)
            if wrong:
                os.write(2, wrong.encode())
                os._exit(3)
            if number % 2:
                os._exit(0)
            return  # as a program ends: finalizers close what is still open
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            failures.append(f"child {number} ended with {code}")
        allowed += 1
        while sum(acknowledged) == before and not failures:
            stop.wait(0.001)  # the parent's threads continue
    stop.set()
    for thread in threads:
        thread.join()
    # Here the test checks from another process that the lock is still held.
    print("forked", flush=True)
    sys.stdin.readline()
    found: list[list[int]] = [[] for _ in range(THREADS)]
    for record in log.read(200):
        assert record.value is not None
        thread_number, _, count = record.value.removeprefix(b"thread ").partition(b": ")
        found[int(thread_number)].append(int(count))
    if found != [list(range(count)) for count in acknowledged]:
        failures.append(f"not the {acknowledged} records that were acknowledged")
    log.check()
    log.close()
    if failures:
        sys.exit("; ".join(failures))
    print(sum(acknowledged))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
