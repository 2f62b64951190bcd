"""A file read from one position to another, by a thread that is one piece ahead of its reader.

The thread reads, and advises the disk, while the caller works on the piece before: both gain where that work runs
without the interpreter's lock. A short range is read without a thread.
"""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from kstore.errors import ThreadStartError
from kstore.files.fs import File
from kstore.files.threads import start_thread

__all__ = ["ReadAhead"]

# What the thread reads at a time.
PIECE_BYTES = 1 << 20
# For fewer bytes a thread costs more than it gains.
THREAD_BYTES_MIN = 8 << 20
# The disk is advised of this much at a time, and at least this far ahead.
ADVISED_BYTES = 8 << 20


class ReadAhead:
    """Bytes ``start`` to ``stop`` of ``file``, as a source of a walk. For one thread, in a ``with`` block."""

    def __init__(self, file: File, start: int, stop: int) -> None:
        self._file = file
        self._stop = stop
        self._advised_to = start
        # Pieces that were read and may be asked for again, in order, each after the one before; and where they begin.
        self._pieces: deque[bytes] = deque()
        self._start = start
        # Where the next piece begins, which the thread is reading; -1 if it has nothing to do.
        self._reading = -1
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        # None once the thread ends.
        self._read: SimpleQueue[bytes | BaseException | None] = SimpleQueue()
        self._has_thread = False

    def __enter__(self) -> Self:
        if self._stop - self._start >= THREAD_BYTES_MIN:
            try:
                start_thread(self._serve, name="kstore-read-ahead")
                self._ask(self._start)
                self._has_thread = True
            except ThreadStartError:
                pass  # everything is read when it is asked for
            finally:
                if not self._has_thread:
                    self._asked.put(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def pread(self, size: int, position: int) -> bytes:
        """``File.pread``; only reads that go on from one another are ahead. Raises: StorageError."""
        stop = min(position + size, self._stop)
        held_to = self._start + sum(map(len, self._pieces))
        if not self._has_thread or not self._start <= position <= held_to:
            if not self._has_thread:
                self._advise(position)
            return self._file.pread(size, position)
        while self._pieces and self._start + len(self._pieces[0]) <= position:
            self._start += len(self._pieces.popleft())
        while held_to < stop and self._reading == held_to:
            piece = self._next()
            if piece is None:
                return self._file.pread(size, position)
            self._pieces.append(piece)
            held_to += len(piece)
        if held_to < stop:
            return self._file.pread(size, position)
        parts = []
        at = self._start
        for piece in self._pieces:
            parts.append(memoryview(piece)[max(position - at, 0) : max(stop - at, 0)])
            at += len(piece)
        return b"".join(parts)

    def close(self) -> None:
        """Ends the thread, and waits for what it is reading: on return nothing uses the file."""
        if self._has_thread:
            # First: an interrupt after it leaves no thread that waits for ever.
            self._asked.put(None)
            self._has_thread = False
            while self._read.get() is not None:
                pass
        self._pieces.clear()

    def _ask(self, position: int) -> None:
        self._reading = position if position < self._stop else -1
        if self._reading >= 0:
            self._asked.put(position)

    def _next(self) -> bytes | None:
        """The piece that was asked for; the next one is asked for first. None if the thread has ended, as without
        memory. Raises: what reading it raised."""
        found = self._read.get()
        if found is None:
            self._has_thread = False
            return None
        if isinstance(found, BaseException):
            self._reading = -1
            raise found
        # An empty one is the file's end, which came early.
        self._ask(self._reading + len(found) if found else self._stop)
        return found

    def _serve(self) -> None:
        try:
            while (position := self._asked.get()) is not None:
                try:
                    self._advise(position)
                    self._read.put(self._file.pread(min(PIECE_BYTES, self._stop - position), position))
                except BaseException as error:
                    self._read.put(error)
        finally:
            self._read.put(None)

    def _advise(self, position: int) -> None:
        if position >= self._advised_to - ADVISED_BYTES:
            self._file.advise(self._advised_to, ADVISED_BYTES, "willneed")
            self._advised_to += ADVISED_BYTES
