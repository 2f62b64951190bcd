"""``Reply``: an answer that sends its own bytes, and ``ReplySink``: where it sends them. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kstore.engine.read.fetch import FetchSlice


class ReplySink(Protocol):
    """Where a ``Reply`` writes. Both raise OSError, and TimeoutError for a peer that takes nothing."""

    def write(self, data: bytes | memoryview, *, more: bool = False) -> None:
        """``more``: other bytes follow at once, so that the system need not send a packet now."""

    def send_slice(self, part: FetchSlice, count: int) -> None:
        """The first ``count`` bytes of a slice, without a copy where the connection allows it.

        Raises: TruncatedFileError; the connection is then closed, because its answer stays incomplete.
        """


class Reply(Protocol):
    """A response body that sends itself."""

    @property
    def length(self) -> int:
        """The bytes after the response header."""

    def send(self, sender: ReplySink) -> None:
        """Sends exactly ``length`` bytes, or raises."""
