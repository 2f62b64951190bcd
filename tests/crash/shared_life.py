"""A writer that shares its log is killed at one operation after another, beside one that lives; run by
``test_shared_kills``.

    python -m tests.crash.shared_life DIRECTORY DURABILITY alone|beside FIRST STEP

The child of number n dies of SIGKILL before its n-th operation that changes something, in its turn or outside it, or in
the middle of a write. ``beside``: another writer has the log open meanwhile, and continues. Ends with the first child
that survives; prints a line for each death; the last line is their number.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, cast

from kstore.log import Log
from kstore.types import Durability
from tests.crash.killed_life import KillingFs
from tests.support.harness.evidence import Lost, Wrong

SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 100}
APPENDS = 12


def live(path: Path, durability: Durability, number: int, go: int, told: int) -> None:
    """In the child: appends, and reports each acknowledgement."""
    os.read(go, 1)
    log = Log(path, shared=True, durability=durability, fs=KillingFs(number // 2 + 1, half=number % 2 == 1), **SETTINGS)
    for index in range(APPENDS):
        if index == 6:
            log.append_many([b"c%02d-%d" % (index, each) + b"x" * 90 for each in range(3)])
        else:
            log.append(b"c%02d" % index + b"x" * 90)
        os.write(told, b".")
    log.close()


def try_one(path: Path, durability: Durability, number: int, *, beside: bool) -> bool:
    """Whether the child died."""
    go, begin = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        os.close(begin)
        live(path, durability, number, go, tell)
        os._exit(0)
    os.close(go)
    os.close(tell)
    peer = Log(path, shared=True, durability=durability, **SETTINGS) if beside else None
    mine: dict[int, bytes] = {}

    def append(log: Log, count: int) -> None:
        for _ in range(count):
            value = b"p%02d" % len(mine) + b"y" * 90
            mine[log.append(value)] = value

    if peer is not None:
        append(peer, 3)
    os.write(begin, b"!")
    acknowledged = 0
    while os.read(told, 1):
        acknowledged += 1
        if peer is not None:
            append(peer, 1)
    os.close(told)
    os.close(begin)
    _, status = os.waitpid(child, 0)
    died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not died and status:
        raise Wrong(f"the child of number {number} ended with status {status}")
    if peer is None:
        peer = Log(path, shared=True, durability=durability, **SETTINGS)
    append(peer, 3)
    look(peer, acknowledged, mine, number)
    peer.check()
    peer.close()
    with Log(path, **SETTINGS) as log:
        if not log.recovery.clean:
            raise Wrong(f"number {number}: not clean after the last writer's close")
        look(log, acknowledged, mine, number)
        log.check()
        assert log.verify().clean
    return died


def look(log: Log, acknowledged: int, mine: dict[int, bytes], number: int) -> None:
    records = list(log.read())
    if [record.offset for record in records] != list(range(len(records))):
        raise Wrong(f"number {number}: offsets {[record.offset for record in records]}")
    for offset, value in mine.items():
        if records[offset].value != value:
            raise Lost(f"number {number}: offset {offset} was acknowledged with {value!r}")
    theirs = [record.value[:3] for record in records if record.value and record.value[:1] == b"c"]
    order = sorted(set(theirs))
    if theirs != sorted(theirs) or order != [b"c%02d" % index for index in range(len(order))]:
        raise Wrong(f"number {number}: {theirs}")
    if not acknowledged <= len(order) <= acknowledged + 1:
        raise Lost(f"number {number}: {acknowledged} were acknowledged, and {len(order)} are there")
    if acknowledged > 6 and theirs.count(b"c06") != 3:
        raise Lost(f"number {number}: an append of three records has {theirs.count(b'c06')}")


def main() -> None:
    root, durability, beside = Path(sys.argv[1]), cast(Durability, sys.argv[2]), sys.argv[3] == "beside"
    first, step = int(sys.argv[4]), int(sys.argv[5])
    logging.disable()
    number, deaths = first, 0
    while True:
        path = root / str(number) / "log"
        path.parent.mkdir()
        if not try_one(path, durability, number, beside=beside):
            break
        deaths += 1
        print(deaths, flush=True)
        shutil.rmtree(path.parent)
        number += step
    print(deaths)


if __name__ == "__main__":
    main()
