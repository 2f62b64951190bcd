"""Logs with keys, to be compacted, and what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kstore.log import Log
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.log_helpers import TIME

DAY_MS = 86_400_000


def opened(path: Path, **settings: Any) -> Log:
    settings = {"clock": ManualClock(TIME + DAY_MS), "durability": "os", "index_interval_bytes": 64, **settings}
    return Log(path, **settings)


def put(log: Log, *pairs: tuple[str, str | None]) -> None:
    """One batch of keys and values."""
    keys = [key.encode() for key, _ in pairs]
    values = [None if value is None else value.encode() for _, value in pairs]
    log.append_many(values, keys=keys, timestamps=[TIME] * len(pairs))


def pairs(log: Log, **options: Any) -> list[tuple[int, str, str | None]]:
    return [
        (one.offset, (one.key or b"").decode(), None if one.value is None else one.value.decode())
        for one in log.read(**options)
    ]


def latest(log: Log) -> dict[bytes | None, bytes]:
    values = {one.key: one.value for one in log.read(isolation_level="read_committed") if one.key is not None}
    return {key: value for key, value in values.items() if value is not None}


def filled(path: Path, **settings: Any) -> Log:
    """Two batches of each key or more, in sealed segments."""
    log = opened(path, segment_bytes=1024, **settings)
    for number in range(60):
        put(log, (f"key-{number % 7}", "v" * 20), (f"other-{number % 3}", "w"))
    log.roll()
    return log
