"""Lone logs without a flushing thread: their file operations are the same each time."""

from __future__ import annotations

import errno
from typing import Any

from kstore.engine import writer as log_writer
from kstore.errors import ThreadStartError
from kstore.log import Log


class NoFlusher:
    """Replaces ``Flusher``: there is no thread, so the roll flushes a sealed segment."""

    def __init__(self, log: object, delay_seconds: float) -> None:
        pass

    def note(self) -> None:
        pass

    def note_sealed(self) -> None:
        raise ThreadStartError(errno.EAGAIN, "there are no threads")

    def stop(self) -> None:
        pass


def log_without_flusher(path: Any, **options: Any) -> Log:
    """A ``Log`` that flushes sealed segments in its rolls."""
    names = vars(log_writer)
    kept = names["Flusher"]
    names["Flusher"] = NoFlusher
    try:
        return Log(path, **options)
    finally:
        names["Flusher"] = kept  # allocates nothing: a test that refuses allocations gets the log, or its error
