"""The journal of a queue: a log of what happened to its items, short because it is written anew from time to time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from kstore.errors import CorruptFileError
from kstore.log import Log
from kstore.queue.events import ROWS_MAX, decode_events, encode_events
from kstore.types import CorruptRange

__all__ = ["SEGMENT_BYTES", "Journal"]

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 1 << 20
# What a batch and a record add to a value, about.
BATCH_BYTES = 75


class Journal:
    """Appends events, and reads them. Thread-safe."""

    def __init__(self, log: Log, *, is_sync: bool) -> None:
        self.log = log
        self._is_sync = is_sync
        # Bytes since the last snapshot, about; not guarded, since nothing depends on it but when the next one comes.
        self.size = 0

    @property
    def end(self) -> int:
        return self.log.high_watermark

    def append(self, value: bytes) -> int:
        """Appends one record; returns the offset behind it. As durable as the log's setting. Raises: as ``Log``."""
        self.size += len(value) + BATCH_BYTES
        single = self.log.append_single(value)
        return (self.log.append(value) if single is None else single[0]) + 1

    def append_rows(self, kind: bytes, rows: Sequence[tuple[int, ...]], notes: bytes = b"") -> int:
        """Appends events of a kind; a crash may leave the first of them only, where they are very many."""
        if len(rows) <= ROWS_MAX:
            return self.append(encode_events(kind, rows) + notes)
        values = [encode_events(kind, rows[at : at + ROWS_MAX]) for at in range(0, len(rows), ROWS_MAX)]
        self.size += sum(map(len, values))
        return self.append_many([*values, notes] if notes else values)

    def append_many(self, values: Sequence[bytes]) -> int:
        """Appends records, of which a crash leaves a prefix."""
        return self.log.append_many(values).last_offset + 1

    def flush(self) -> None:
        """Puts on disk what is to be there before something else is removed."""
        if not self._is_sync:
            self.log.flush()

    def read(self, start: int | None = None) -> Iterator[tuple[int, bytes, tuple[Any, ...]]]:
        """The events from ``start`` on, each with the offset of its record. What is damaged is passed over, with a
        warning: items whose end is lost are delivered again. Raises: OffsetOutOfRangeError, StorageError."""
        for record in self.log.read(start, on_corrupt="yield"):
            if isinstance(record, CorruptRange):
                logger.warning(
                    "%s: offsets %d to %d are damaged: items that are done may be delivered again",
                    self.log.path,
                    record.first,
                    record.last,
                )
                continue
            try:
                for kind, row in decode_events(record.value or b""):
                    yield record.offset, kind, row
            except CorruptFileError as error:
                logger.warning("%s: the record at offset %d is passed over: %s", self.log.path, record.offset, error)

    def rewrite(self, values: Sequence[bytes], first_needed: int) -> None:
        """Appends a snapshot, and removes the segments below ``first_needed``, which it makes needless."""
        self.append_many(values)
        self.size = 0
        found = self.log.segment_for(self.log.start_offset)
        if found is not None and found[1] <= first_needed:
            self.flush()
            self.log.delete_records(first_needed)
