"""Logs and their mirrors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kstore.files.paths import parse_segment_name
from kstore.log import Log
from kstore.upkeep.mirror import MirroredLog, mirror

Tried = Callable[[str, int], None]
SEGMENT_BYTES = 2_000


def value(number: int) -> bytes:
    return b"%06d" % number * 15


def fill(path: Path, start: int, stop: int, **settings: Any) -> None:
    """Appends the values of ``start`` to ``stop``, which are the offsets too, in small segments."""
    with Log(path, segment_bytes=SEGMENT_BYTES, **settings) as log:
        assert log.end_offset == start
        for number in range(start, stop):
            log.append(value(number), timestamp=1_700_000_000_000 + number)


def run(source: Path | str, target: Path | str, **options: Any) -> MirroredLog:
    """Mirrors one log; raises the error that ended it."""
    (result,) = mirror(source, target, **options)
    if result.error is not None:
        raise result.error
    return result


def segment_files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if parse_segment_name(file.name) is not None}


def values(path: Path, *, read_only: bool = True, start: int | None = None) -> list[bytes | None]:
    with Log(path, read_only=read_only) as log:
        return list(log.read_values(start))


def truncate(path: Path) -> None:
    with Log(path) as log:
        log.truncate_to(60)
