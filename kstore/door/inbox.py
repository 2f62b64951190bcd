"""``Inbox``: the bytes that a peer has sent and that are not handled yet. A frame must come fast enough.

One receive takes all that is there: usually a whole frame, and of a peer that does not wait for answers several.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from kstore.door.call import ConnectionEnded
from kstore.door.frames import SIZE

if TYPE_CHECKING:
    from kstore.door.memory import Memory

# What every connection keeps; a larger frame gets memory of its own, for as long as it is handled.
BUFFER_BYTES = 64 << 10
# A frame must come at least this fast.
RATE_BYTES, RATE_SECONDS = 64 << 10, 10.0
# And this fast if it has memory that others wait for, from its first second on: else a few that send nothing would
# keep it from all others for hours.
WANTED_RATE_BYTES, GRACE_SECONDS = 256 << 10, 1.0


class Inbox:
    """For the connection's thread. ``next_size`` begins a frame; then ``start`` and ``whole``, or ``fill``, read it."""

    def __init__(self, peer: socket.socket, frames: Memory) -> None:
        """``frames``: the memory that large frames take."""
        self._socket = peer
        self._frames = frames
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        # The bytes of the buffer that came and were not read.
        self._at = self._stop = 0
        self._began = 0.0

    def next_size(self, idle_seconds: float) -> int | None:
        """The size of the next frame; None if the peer closes the connection, or sends nothing for ``idle_seconds``.

        Raises: ConnectionEnded, OSError.
        """
        if self._at == self._stop:
            self._at = self._stop = 0
            set_timeout(self._socket, idle_seconds)
            try:
                self._stop = self._socket.recv_into(self._buffer)
            except TimeoutError:
                return None
            if self._stop == 0:
                return None
        self._began = time.monotonic()
        [size] = SIZE.unpack(self._take(SIZE.size))
        return int(size)

    def start(self, size: int) -> memoryview:
        """The first ``size`` bytes of a frame, at most BUFFER_BYTES, which stay to be read. Raises: ConnectionEnded,
        OSError."""
        if self._at + size > BUFFER_BYTES:
            rest = self._stop - self._at
            self._buffer[:rest] = self._buffer[self._at : self._stop]
            self._at, self._stop = 0, rest
        while (got := self._stop - self._at) < size:
            self._stop += self._receive(self._buffer[self._stop :], got)
        return self._buffer[self._at : self._at + size]

    def whole(self, size: int) -> memoryview:
        """A whole frame of at most BUFFER_BYTES, until the next one is begun. Raises: ConnectionEnded, OSError."""
        return self._take(size)

    def fill(self, frame: memoryview) -> None:
        """Receives a larger frame into memory that others may wait for. Raises: ConnectionEnded, OSError.

        Its time begins here: before, the peer waited for the memory.
        """
        self._began = time.monotonic()
        got = self._stop - self._at
        frame[:got] = self._buffer[self._at : self._stop]
        self._at = self._stop = 0
        while got < len(frame):
            got += self._receive(frame[got:], got, is_lent=True)

    def _take(self, size: int) -> memoryview:
        taken = self.start(size)
        self._at += size
        return taken

    def _receive(self, target: memoryview, got: int, *, is_lent: bool = False) -> int:
        """Receives what is there, or waits for some; returns how many bytes, 0 after a wait in vain.

        ``got`` bytes of the frame came before; ``is_lent``: into memory that others may wait for. Raises:
        ConnectionEnded if that is too slow, ConnectionResetError if the peer leaves, OSError.
        """
        seconds = time.monotonic() - self._began
        rest = RATE_SECONDS * (1 + got // RATE_BYTES) - seconds
        if rest <= 0:
            raise ConnectionEnded(f"{got} bytes of a frame in {seconds:.0f} s: too slow")
        if is_lent and seconds > GRACE_SECONDS and got < WANTED_RATE_BYTES * seconds and self._frames.is_wanted:
            raise ConnectionEnded(f"{got} bytes of a frame in {seconds:.0f} s, while others wait for memory")
        # Almost always the second one, so that the socket keeps its timeout.
        set_timeout(self._socket, min(rest, GRACE_SECONDS))
        try:
            count = self._socket.recv_into(target)
        except TimeoutError:
            return 0
        if count == 0:
            raise ConnectionResetError("the peer left within a frame")
        return count


def set_timeout(peer: socket.socket, seconds: float) -> None:
    """Sets how long each call of ``peer`` may wait: the system is only asked if that changes."""
    if peer.gettimeout() != seconds:
        peer.settimeout(seconds)
