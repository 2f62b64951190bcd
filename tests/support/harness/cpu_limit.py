"""A limit for the processor time of a block: input that makes something slow fails a test instead of stopping it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tests.support.harness.evidence import Hung


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises Hung in the block once the process has used so much time; in the main thread."""

    def expired(number: int, frame: FrameType | None) -> None:
        raise Hung(f"more than {seconds} seconds of work")

    before = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
