"""The records of a queue's journal. No I/O here.

A record's value is any number of groups, each a byte for the kind, the number of rows (uint32), and the rows:

    kind  row                                                   meaning
    D     first int64, count uint32                             these items are done
    R     offset int64, count uint32, due_ms int64, owner uint64   delivered ``count`` times, and waits until then
    M     old int64, new int64                                  the copy at ``new`` replaces the item
    B     old int64, new int64, owner uint64                    M, by its lease holder; void if another has it
    A     first int64, count uint32                             D, for leases: so are copies that count by then
    C     offset int64, count uint32, owner uint64, now_ms int64, expires_ms int64   a process leases the item
    O     boot uint64, uint64                                   leases of other boots of the machine are over
    F     floor int64                                           everything below is done
    E     end int64                                             the items end there: events about later ones are void
    G     end int64                                             earlier events may be lost: copies below count
    S     as_of int64, id uint64, part uint32, parts uint32, boot uint64, uint64   the record is of a snapshot
    H     as C                                                  in a snapshot: a process leases the item

All numbers are big-endian. Times of leases use the machine's monotonic clock; ``due_ms`` is since the epoch. A snapshot
is the state where the journal ended at ``as_of``. A reader starts with the last whole one, and continues at its
``as_of``; for others it contains nothing new.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from kstore.errors import CorruptFileError

DONE, RETRY, MOVED, MOVED_BY, ACKED, CLAIM = b"D", b"R", b"M", b"B", b"A", b"C"
BOOT, FLOOR, END, GAP, SNAPSHOT, HELD = b"O", b"F", b"E", b"G", b"S", b"H"

# A kind, and its row.
Event = tuple[bytes, tuple[int, ...]]

ROWS = {
    DONE: struct.Struct(">qI"),
    RETRY: struct.Struct(">qIqQ"),
    MOVED: struct.Struct(">qq"),
    MOVED_BY: struct.Struct(">qqQ"),
    ACKED: struct.Struct(">qI"),
    CLAIM: struct.Struct(">qIQqq"),
    BOOT: struct.Struct(">QQ"),
    FLOOR: struct.Struct(">q"),
    END: struct.Struct(">q"),
    GAP: struct.Struct(">q"),
    SNAPSHOT: struct.Struct(">qQIIQQ"),
    HELD: struct.Struct(">qIQqq"),
}
HEAD = struct.Struct(">cI")
COUNT_MAX = 2**32 - 1
# The largest record of the journal: it must fit every segment.
ROWS_MAX = 10_000
assert HEAD.size == 5


def encode_events(kind: bytes, rows: Sequence[tuple[int, ...]]) -> bytes:
    """One group."""
    pack = ROWS[kind].pack
    return HEAD.pack(kind, len(rows)) + b"".join([pack(*row) for row in rows])


def decode_events(value: bytes) -> Iterator[Event]:
    """Each row with its kind. Raises: CorruptFileError."""
    at, end = 0, len(value)
    while at < end:
        if end - at < HEAD.size:
            raise CorruptFileError(
                f"a group of events has {end - at} bytes, expected {HEAD.size} at least", position=at
            )
        kind, count = HEAD.unpack_from(value, at)
        row = ROWS.get(kind)
        if row is None:
            raise CorruptFileError(f"events of kind {kind!r}, expected one of {b''.join(ROWS)!r}", position=at)
        at += HEAD.size
        if count * row.size > end - at:
            raise CorruptFileError(f"{count} events in {end - at} bytes, expected {count * row.size}", position=at)
        for _ in range(count):
            yield kind, row.unpack_from(value, at)
            at += row.size


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Offsets as (first, count), increasing."""
    ranges: list[tuple[int, int]] = []
    first = last = -2
    for offset in sorted(offsets):
        if offset == last + 1 and offset - first < COUNT_MAX:
            last = offset
            continue
        if first >= 0:
            ranges.append((first, last - first + 1))
        first = last = offset
    if first >= 0:
        ranges.append((first, last - first + 1))
    return ranges
