"""What counts as a finding, and the two limits for every input: time and memory."""

from __future__ import annotations

import contextlib
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

from kstore.errors import KstoreError
from tests.support.harness.evidence import Hung, Wrong

# The setting max_batch_bytes_uncompressed of every target: small, so that a bomb is seen.
UNCOMPRESSED_BYTES_MAX = 64 << 10
# What a decompressor may hold besides its output, and the interpreter besides both.
MEMORY_SLACK_BYTES = 512 << 10
SECONDS_MAX = 5.0


class Finding(NamedTuple):
    """An input that ``target`` handled wrongly; ``verdict`` is a word of tests/support/harness/evidence.py."""

    target: str
    verdict: str
    message: str
    data: bytes


def expect(holds: bool, message: str) -> None:
    """Raises: Wrong unless ``holds``."""
    if not holds:
        raise Wrong(message)


@contextlib.contextmanager
def within_memory(size: int) -> Iterator[None]:
    """Compares the memory allocated inside with ``size`` bytes of input and the uncompressed maximum.

    Twice that, because the parts of an output are joined. Raises: Wrong.
    """
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    limit = 2 * (size + UNCOMPRESSED_BYTES_MAX) + MEMORY_SLACK_BYTES
    expect(peak <= limit, f"{peak} bytes allocated for {size}, expected at most {limit}")


def try_input(name: str, run: Callable[[bytes], None], data: bytes, seconds: float = SECONDS_MAX) -> Finding | None:
    """Runs a target on one input; ``seconds`` of processor time, which other processes do not take; 0 sets no limit.

    Only for the main thread: the limit is a signal.
    """

    def expired(number: int, frame: FrameType | None) -> None:
        raise Hung(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, expired) if seconds else None
    started = time.process_time()
    try:
        if seconds:
            signal.setitimer(signal.ITIMER_PROF, seconds)
        run(data)
    except KstoreError as error:
        # A target knows which errors may occur where: an exception that leaves it is a finding.
        return Finding(name, "wrong", _said(error), data)
    except Exception as error:
        verdict = "wrong" if isinstance(error, Wrong) else "hung" if isinstance(error, Hung) else "untyped"
        return Finding(name, verdict, _said(error), data)
    finally:
        if seconds:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    # The exception may have been swallowed, or the signal not handled.
    if seconds and time.process_time() - started > seconds:
        return Finding(name, "hung", f"more than {seconds} seconds", data)
    return None


def _said(error: BaseException) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f" ({at.tb_frame.f_code.co_filename}:{at.tb_lineno})" if at is not None else ""
    return f"{type(error).__name__}: {error}{where}"
