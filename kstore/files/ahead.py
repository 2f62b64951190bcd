"""Pieces of a file far away, fetched by threads before they are needed: several requests at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from kstore.errors import ThreadStartError
from kstore.files._locks import Gate
from kstore.files.threads import start_thread

# At 20 ms a request and 100 MB/s a connection, a piece takes five times as long as its request.
PIECE_BYTES = 8 << 20


class PiecesAhead:
    """For one reader. Each piece is fetched once, and kept until it is taken or another position is read."""

    def __init__(self, fetch: Callable[[int, int], bytes], *, count: int, piece_bytes: int | None = None) -> None:
        """``fetch`` returns the bytes from a start to a stop, fewer if the file ends; it raises StorageError. At most
        ``count`` pieces are kept, or on their way."""
        self._fetch = fetch
        self._count = count
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self._pieces: deque[_Arrival] = deque()

    def begin(self, start: int, stop: int) -> None:
        """Makes the pieces from ``start`` on come, up to ``stop``."""
        if self._pieces and self._pieces[0].start != start:
            self._pieces.clear()
        at = self._pieces[-1].stop if self._pieces else start
        while at < stop and len(self._pieces) < self._count:
            piece = _Arrival(self._fetch, at, min(at + self._piece_bytes, stop))
            if not piece.begin():
                return
            self._pieces.append(piece)
            at = piece.stop

    def take(self, start: int) -> bytes | None:
        """The piece that begins at ``start``, waited for; None if none does. Raises: what fetching it raised."""
        if not self._pieces or self._pieces[0].start != start:
            return None
        return self._pieces.popleft().bytes()


class PiecesAt:
    """Small pieces at positions that are known before, rising, for one reader that may leave some out."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], positions: Iterable[int], *, piece_bytes: int, count: int
    ) -> None:
        """``fetch`` and ``count`` as of ``PiecesAhead``."""
        self._fetch = fetch
        self._positions = deque(positions)
        self._piece_bytes = piece_bytes
        self._count = count
        self._pieces: deque[_Arrival] = deque()

    def take(self, position: int) -> bytes | None:
        """The piece at ``position``, waited for; None if ``position`` is not one of them. Raises: what fetching it
        raised."""
        while self._pieces and self._pieces[0].start < position:
            self._pieces.popleft()
        while self._positions and self._positions[0] < position:
            self._positions.popleft()
        while self._positions and len(self._pieces) < self._count:
            piece = _Arrival(self._fetch, self._positions[0], self._positions[0] + self._piece_bytes)
            if not piece.begin():
                break
            self._pieces.append(piece)
            self._positions.popleft()
        if not self._pieces or self._pieces[0].start != position:
            return None
        return self._pieces.popleft().bytes()


class _Arrival:
    def __init__(self, fetch: Callable[[int, int], bytes], start: int, stop: int) -> None:
        self._fetch = fetch
        self.start = start
        self.stop = stop
        self._data = b""
        self._error: BaseException | None = None
        self._came = Gate()

    def begin(self) -> bool:
        """Makes it come; False if no thread can be started: then it is read when it is needed."""
        try:
            start_thread(self._come, name="kstore-ahead")
        except ThreadStartError:
            return False
        return True

    def _come(self) -> None:
        try:
            self._data = self._fetch(self.start, self.stop)
        except BaseException as error:
            self._error = error
        finally:
            self._came.open()

    def bytes(self) -> bytes:
        # Every request has a time limit.
        self._came.wait()
        if self._error is not None:
            raise self._error
        return self._data
