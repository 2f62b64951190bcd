"""What reads find in a log that has lost records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kstore.log import Log
from kstore.types import CorruptRange


def corrupt_ranges(log: Log) -> list[CorruptRange]:
    found: list[object] = list(log.read(on_corrupt="yield"))
    return [each for each in found if isinstance(each, CorruptRange)]


def openings(path: Path) -> Iterator[Log]:
    """The log as its writer and as a reader sees it."""
    for read_only in (True, False, True):
        with Log(path, read_only=read_only) as log:
            yield log
