"""The next pieces of a file far away, fetched by threads while the one before is used: several requests at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kstore.errors import ThreadStartError
from kstore.files._locks import Gate
from kstore.files.threads import start_thread

__all__ = ["PIECE_BYTES", "PiecesAhead"]

# At 20 ms a request and 100 MB/s a connection, a piece takes five times as long as its request.
PIECE_BYTES = 8 << 20


class PiecesAhead:
    """For one reader. Each piece is fetched once, and kept until it is taken or another position is read."""

    def __init__(self, fetch: Callable[[int, int], bytes], *, count: int) -> None:
        """``fetch`` returns the bytes from a start to a stop, fewer if the file ends; it raises StorageError. At most
        ``count`` pieces are kept, or on their way."""
        self._fetch = fetch
        self._count = count
        self._pieces: deque[_Piece] = deque()

    def begin(self, start: int, stop: int) -> None:
        """Makes the pieces from ``start`` on come, up to ``stop``."""
        if self._pieces and self._pieces[0].start != start:
            self._pieces.clear()
        at = self._pieces[-1].stop if self._pieces else start
        while at < stop and len(self._pieces) < self._count:
            piece = _Piece(self._fetch, at, min(at + PIECE_BYTES, stop))
            try:
                start_thread(piece.fetch, name="kstore-ahead")
            except ThreadStartError:
                return  # it is read when it is needed
            self._pieces.append(piece)
            at = piece.stop

    def take(self, start: int) -> bytes | None:
        """The piece that begins at ``start``, waited for; None if none does. Raises: what fetching it raised."""
        if not self._pieces or self._pieces[0].start != start:
            return None
        return self._pieces.popleft().bytes()


class _Piece:
    def __init__(self, fetch: Callable[[int, int], bytes], start: int, stop: int) -> None:
        self._fetch = fetch
        self.start = start
        self.stop = stop
        self._data = b""
        self._error: BaseException | None = None
        self._came = Gate()

    def fetch(self) -> None:
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
