"""A member of a shared log that may write no file beyond a size; run by ``test_limited_member``.

    python -m tests.crash.limited_member DIRECTORY DURABILITY BYTES SEED

It does random changes until one fails for good, then an append that is too long for any limit, and closes the log when
its input ends. Prints, as JSON, what it has appended, by offset, and the type of the last error.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from kstore.errors import KstoreError, PoisonedError, StorageError
from kstore.log import Log
from kstore.types import Durability

SETTINGS: dict[str, Any] = {"shared": True, "segment_bytes": 16384, "index_interval_bytes": 64}
CHANGES_MAX = 100


def changed(log: Log, generator: random.Random, number: int) -> dict[int, str]:
    """One change; returns the values that it has appended, by offset."""
    value = f"limited {number} " + "x" * generator.choice((1, 100, 900))
    match generator.choice(("one", "one", "many", "roll", "flush", "delete")):
        case "one":
            return {log.append(value.encode()): value}
        case "many":
            first = log.append_many([value.encode()] * 3).first_offset
            return dict.fromkeys(range(first, first + 3), value)
        case "roll":
            log.roll()
        case "flush":
            log.flush()
        case "delete":
            log.delete_records(log.start_offset + 1)
    return {}


def main() -> None:
    directory, durability, size, seed = sys.argv[1:]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = Log(Path(directory), durability=cast(Durability, durability), **SETTINGS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    generator, appended, error = random.Random(int(seed)), dict[int, str](), ""
    for number in range(CHANGES_MAX):
        try:
            appended |= changed(log, generator, number)
        except StorageError as failed:
            error = type(failed).__name__
            if isinstance(failed, PoisonedError):
                break
    try:
        # Longer than any limit, so that something has failed.
        log.append(b"x" * 9000)
    except StorageError as failed:
        error = type(failed).__name__
    print(json.dumps([error, appended]), flush=True)
    sys.stdin.read()
    with suppress(KstoreError):
        log.close()


if __name__ == "__main__":
    main()
