"""A program that appends to a new log until killed, and reports after each batch how many records are written.

usage: python -m tests.interop.killed_writer DIRECTORY
"""

from __future__ import annotations

import sys

import kstore
from tests.interop.author import FIRST_TIMESTAMP_MS
from tools.interop.records import Row

BATCH_RECORD_COUNT = 7
# It ends by itself if it is not killed.
BATCH_COUNT_MAX = 20_000


def record_at(offset: int) -> Row:
    """The record that this program writes at ``offset``."""
    key = b"key-%d" % (offset % 31)
    return Row(offset, FIRST_TIMESTAMP_MS + offset, "CreateTime", 0, key, b"value %d " % offset * 8, ())


def main(directory: str) -> None:
    """Appends batches of records without end, rolling frequently, so that a kill hits every step."""
    with kstore.Log(directory, durability="os", segment_bytes=32 * 1024, index_interval_bytes=256) as log:
        for number in range(BATCH_COUNT_MAX):
            start = number * BATCH_RECORD_COUNT
            rows = [record_at(offset) for offset in range(start, start + BATCH_RECORD_COUNT)]
            log.append_many(
                [row.value for row in rows],
                keys=[row.key for row in rows],
                timestamps=[row.timestamp for row in rows],
            )
            print(rows[-1].offset + 1, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
