"""Exactly checked reads of every kind of a changing log: where each starts, continues and ends.

For logs without gaps: only whole batches are cut. Record ``offset`` has the time ``TIME + offset``, and a value with a
serial number that increases with each cut, so that cut records that are still served differ from the rewritten ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from zlib import crc32

from kstore.errors import CorruptBatchError, TruncatedFileError
from kstore.log import Log, reads_of
from kstore.record._codec import Record
from tests.support.harness.evidence import Wrong

TIME = 1_700_000_000_000
FOLLOW_SECONDS = 0.002
# At most this many records in one read, so that its time does not grow with the log.
COUNT_MAX = 200

Cut = tuple[int, int]


class Lives:
    """The lowest serial number that may be read, by offset: rewritten records have higher ones. Written by one thread,
    read by all."""

    def __init__(self) -> None:
        self.cuts: tuple[Cut, ...] = ()

    def began(self, offset: int, serial: int) -> None:
        """Everything from ``offset`` was cut, or never existed; new records there have ``serial`` or more."""
        self.cuts = (*(cut for cut in self.cuts if cut[0] < offset), (offset, serial))


class StrictReads:
    """One read a call, of one kind, from a random place. Raises: Wrong.

    With ``learns`` no cuts are announced: each read shows what later reads must not go back to.
    """

    def __init__(self, lives: Lives | None = None) -> None:
        self._learns = lives is None
        self._lives = lives or Lives()

    def __call__(self, log: Log, generator: random.Random) -> int:
        truncation_count = reads_of(log).truncation_count
        start, end = log.start_offset, log.high_watermark
        first = generator.randint(start, max(start, end))
        stop = first + generator.randint(1, COUNT_MAX)
        cuts = self._lives.cuts
        read: Iterator[tuple[int, bytes | None]]
        kind = generator.randrange(7)
        match kind:
            case 0:
                read = _pairs(log.read(first, stop))
            case 1:
                stop = first + 1
                read = _pairs(log.read(first, stop))
            case 2:
                read = enumerate(log.read_values(first, stop), first)
            case 3:
                read = _pairs(log.read(first, stop, isolation_level="read_committed"))
            case 4:
                read = _pairs(log.read(first, stop, follow=True, timeout=FOLLOW_SECONDS))
            case 5:
                return self._fetch(log, first, cuts, truncation_count)
            case _:
                return self._offset_for_time(log, first, end, truncation_count)
        count = self.hold(read, first, stop, cuts)
        if first + count < min(stop, end) and not _truncated(log, truncation_count):
            raise Wrong(
                f"a read of kind {kind} from {first} to {stop} ended at {first + count}, the high watermark is {end}"
            )
        return count

    def hold(self, read: Iterable[tuple[int, bytes | None]], first: int, stop: int, cuts: tuple[Cut, ...]) -> int:
        """Every offset from ``first`` to below ``stop``, none from before a known cut."""
        expected, last_serial = first, -1
        for offset, value in read:
            assert value is not None
            checksum, _, body = value.partition(b":")
            named, serial, _ = body.split(b":", 2)
            if int(checksum, 16) != crc32(body) or int(named) != offset:
                raise Wrong(f"offset {offset} has {value[:40]!r}")
            if offset != expected or offset >= stop:
                raise Wrong(f"a read from {first} to {stop} gave offset {offset}, expected {expected}")
            expected += 1
            if int(serial) != last_serial:
                if int(serial) < last_serial:
                    raise Wrong(f"offset {offset} has serial {int(serial)}, the one before it has {last_serial}")
                last_serial = int(serial)
                if self._learns and last_serial > max((at[1] for at in self._lives.cuts if at[0] <= offset), default=0):
                    self._lives.began(offset, last_serial)
            if any(last_serial < least for begin, least in cuts if begin <= offset):
                raise Wrong(f"offset {offset} was cut, but is read: serial {last_serial}, known are {cuts}")
        return expected - first

    def _fetch(self, log: Log, first: int, cuts: tuple[Cut, ...], truncation_count: int) -> int:
        # A slice is bytes of a file: a later truncation looks like damage.
        try:
            pairs = [(record.offset, record.value) for record in log.fetch(first, 4096).records()]
        except (CorruptBatchError, TruncatedFileError):
            if not _truncated(log, truncation_count):
                raise
            return 0
        if _truncated(log, truncation_count):
            return len(pairs)
        return self.hold(pairs, first, first + len(pairs), cuts)

    def _offset_for_time(self, log: Log, first: int, end: int, truncation_count: int) -> int:
        found = log.offset_for_time(TIME + first)
        latest = log.offset_for_time("max_timestamp")
        start = log.start_offset
        if _truncated(log, truncation_count):
            return 0
        if first >= start and first < end and found != first:
            raise Wrong(f"offset {found} for the time of offset {first}; the log holds {start} to {end}")
        if found is not None and found < first:
            raise Wrong(f"offset {found} for the time of offset {first}")
        if end > start and (latest is None or latest < end - 1):
            raise Wrong(f"offset {latest} has the greatest time, of {start} to {end}")
        return 2


def _pairs(records: Iterable[Record]) -> Iterator[tuple[int, bytes | None]]:
    return ((record.offset, record.value) for record in records)


def _truncated(log: Log, truncation_count: int) -> bool:
    reads_of(log).settle()
    return reads_of(log).truncation_count != truncation_count
