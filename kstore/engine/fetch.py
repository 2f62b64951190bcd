"""A fetch: one slice of one segment, named but not yet read.

Everything that reads the log is built on it. A slice begins with the batch that holds the offset asked for, so it may
hold earlier records; it may end within a batch. A slice keeps its file open: what retention unlinks stays readable.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import TruncatedFileError
from kstore.files.fs import File
from kstore.record._codec import Record
from kstore.record.batch import Batch
from kstore.record.walk import OFFSET_COUNT_MAX, Damage, walk
from kstore.rules.losses import NO_LOSSES, LossRanges, corrupt_batch_error
from kstore.types import OFFSET_MAX, AbortedTransaction, CorruptRange

if TYPE_CHECKING:
    import socket

__all__ = ["FetchSlice"]


class FetchSlice(NamedTuple):
    """``size`` bytes from ``position`` of ``file``, the segment with base ``base_offset``.

    ``fetch_offset`` is what was asked for, ``next_offset`` the least offset that any batch in the slice may have,
    ``stop_offset`` where reading must end (exclusive). ``aborted`` lists the aborted transactions that overlap, for
    isolation level "read_committed"; None for "read_uncommitted". No batch in the slice ends at or above
    ``batch_stop``.
    """

    file: File
    base_offset: int
    position: int
    size: int
    fetch_offset: int
    stop_offset: int = OFFSET_MAX
    aborted: Sequence[AbortedTransaction] | None = None
    max_batch_bytes_uncompressed: int = 64 << 20
    losses: LossRanges = NO_LOSSES
    batch_stop: int = OFFSET_MAX

    @property
    def path(self) -> Path:
        return Path(self.file.path)

    def read(self) -> bytes:
        """The bytes. Raises TruncatedFileError where the file has become shorter."""
        data = self.file.pread(self.size, self.position)
        if len(data) != self.size:
            raise _shrunk(self.file, self.position + self.size, self.position + len(data))
        return data

    def batches(self) -> Iterator[Batch]:
        """The whole batches of the slice, CRC and offsets checked.

        Raises CorruptBatchError at damage whose loss is not accepted.
        """
        stop = self.position + self.size
        # A batch may hold ``stop_offset``, and reach beyond it.
        offset_stop = min(self.stop_offset + OFFSET_COUNT_MAX, self.batch_stop)
        for item in walk(self.file, self.position, stop, next_offset=self.base_offset, offset_stop=offset_stop):
            if isinstance(item, Damage):
                if item.torn and item.stop == stop:
                    return  # the slice ends within a batch
                last = item.next_offset - 1 if item.next_offset is not None else item.first_offset
                path = str(self.file.path)
                for lost in self.losses.judged(CorruptRange(item.first_offset, last, item.position, item.reason, path)):
                    raise corrupt_batch_error(lost)
                continue
            yield item[1]

    def records(self) -> Iterator[Record]:
        """The records of the whole batches, from ``fetch_offset`` to ``stop_offset``, without control records."""
        for batch in self.batches():
            if batch.base_offset >= self.stop_offset:
                return
            if not batch.is_control and batch.last_offset >= self.fetch_offset:
                yield from batch.records(
                    first_offset=self.fetch_offset,
                    stop_offset=self.stop_offset,
                    max_bytes_uncompressed=self.max_batch_bytes_uncompressed,
                )

    def send_to(self, target: socket.socket, *, start: int = 0, count: int | None = None) -> int:
        """Sends the slice's bytes from ``start`` on through ``target`` with sendfile, without copying them here.

        A blocking socket, with or without a timeout, gets all ``count`` bytes (default: the rest of the slice). A
        non-blocking one gets what it takes at once: the result says how many bytes; 0 where it takes none now. Nothing
        is checked: the receiver must (``kstore.parse_batches``).

        Raises: TruncatedFileError where the file has become shorter; TimeoutError; OSError of the socket.
        """
        rest = self.size - start if count is None else count
        if start < 0 or rest < 0 or start + rest > self.size:
            raise ValueError(f"bytes {start} to {start + rest} are outside a slice of {self.size} bytes")
        sent = 0
        timeout = target.gettimeout()
        while sent < rest:
            try:
                done = os.sendfile(target.fileno(), self.file.fileno(), self.position + start + sent, rest - sent)
            except BlockingIOError:
                if timeout == 0:
                    return sent
                if not select.select([], [target], [], timeout)[1]:
                    raise TimeoutError(f"the socket took {sent} of {rest} bytes within {timeout} s") from None
                continue
            if done == 0:
                end = self.position + start + sent
                raise _shrunk(self.file, self.position + self.size, end)
            sent += done
            if timeout == 0:
                return sent
        return sent


def _shrunk(file: File, expected: int, found: int) -> TruncatedFileError:
    return TruncatedFileError(
        None, f"the file ends at {found} bytes, expected at least {expected}: it was truncated", str(file.path)
    )
