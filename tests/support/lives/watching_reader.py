"""Readers that read a log repeatedly while others change it: in a thread of the writer, or in another process.

They may meet a typed error about missing records, but no wrong record, no other error, and no death of the process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from kstore.errors import (
    ClosedError,
    CorruptBatchError,
    LogNotFoundError,
    NotALogError,
    OffsetOutOfRangeError,
    StorageError,
)
from kstore.log import Log
from tests.support.harness.evidence import Crashed, Hung, Untyped, Wrong
from tests.support.lives.telling_values import hold_against

# The errors that truncation, deletion and closing may cause in a read. Damage is not among them: a log that is changed
# properly never shows any.
EXPECTED = (ClosedError, OffsetOutOfRangeError)
# A reader in another process may come before the directory exists, or between two of its files.
EXPECTED_ELSEWHERE = (*EXPECTED, LogNotFoundError, NotALogError)
# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0

# One read of one kind, from a random place; returns the number of records.
ReadOnce = Callable[[Log, random.Random], int]


def read_once(log: Log, generator: random.Random) -> int:
    """One read of one kind, from a random place; returns the number of records."""
    start, stop = log.start_offset, log.high_watermark
    first = generator.randint(start, max(start, stop))
    match generator.randrange(4):
        case 0:
            return hold_against(log.read(start), start)
        case 1:
            return hold_against(log.read(first, isolation_level="read_committed"), first)
        case 2:
            # A slice is bytes of a file: a truncation under it looks like damage.
            with contextlib.suppress(CorruptBatchError):
                return hold_against(log.fetch(first).records(), first)
            return 0
        case _:
            return hold_against(log.read(first, first + 3), first)


@contextlib.contextmanager
def watched_by_threads(
    log: Log, count: int, *, corrupt: bool = False, read: ReadOnce = read_once
) -> Iterator[list[int]]:
    """Reads ``log`` in ``count`` threads while the block runs; yields the list of each one's number of records.

    Raises, at the end of the block: Wrong, Untyped, Hung.
    """
    stop = threading.Event()
    found: list[BaseException] = []
    reads = [0] * count

    def work(number: int) -> None:
        generator = random.Random(number)
        while not stop.is_set():
            try:
                reads[number] += read(log, generator)
            except EXPECTED:
                if log.closed:
                    return
            except CorruptBatchError as error:
                if not corrupt:
                    found.append(Wrong(f"damage in a sound log: {error!r}"))
                    return
            except BaseException as error:
                found.append(error if isinstance(error, AssertionError) else Untyped(traceback.format_exc()))
                return

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield reads
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS_MAX)
    if any(thread.is_alive() for thread in threads):
        raise Hung("a reader did not stop")
    if found:
        raise found[0]


def _serve(connection: Connection) -> None:
    """In the other process: reads the log at the last path that was sent, until the next message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    generator = random.Random(0)
    path: str | None = None
    corrupt = False
    read: ReadOnce = read_once
    log: Log | None = None
    count, verdict = 0, ""
    while True:
        if path is None or verdict or connection.poll():
            message = connection.recv()
            connection.send((count, verdict))
            if message == "end":
                return
            (path, corrupt, read), log, count, verdict = message, None, 0, ""
            continue
        try:
            if log is None or generator.random() < 0.1:
                log = Log(path, read_only=True)
            count += read(log, generator)
        except EXPECTED_ELSEWHERE:
            log = None
        except CorruptBatchError as error:
            if not corrupt:
                verdict = f"Wrong: damage in a sound log: {error!r}"
        except AssertionError as error:
            verdict = f"{type(error).__name__}: {error}"
        except StorageError as error:
            verdict = f"StorageError: {error!r}\n{traceback.format_exc()}"
        except BaseException as error:
            verdict = f"Untyped: {error!r}\n{traceback.format_exc()}"


class ReadingProcess:
    """A process that reads a log, read-only, as many times as it can."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def watch(self, path: Path | None, *, corrupt: bool = False, read: ReadOnce = read_once) -> int:
        """Reads the log at ``path`` from now on, or none; returns how many records were read before.

        ``corrupt``: there is damage in it. ``read`` is pickled.

        Raises: Wrong, Untyped for what was found; Crashed if the process has died; Hung.
        """
        try:
            self._connection.send((None if path is None else str(path), corrupt, read))
            if not self._connection.poll(SECONDS_MAX):
                raise Hung("the reading process does not answer")
            count, verdict = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(1)
            raise Crashed(f"the reading process ended with {self._process.exitcode}") from error
        if verdict:
            kind = Wrong if verdict.startswith("Wrong") else Untyped
            raise kind(verdict)
        return int(count)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.send("end")
        self._process.join(SECONDS_MAX)
