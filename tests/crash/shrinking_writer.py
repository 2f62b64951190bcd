"""A writer whose mapped files, indexes that are cut and sealed, shrink repeatedly under its own readers.

usage: python -m tests.crash.shrinking_writer DIRECTORY STEPS SEED. Ends with 0; a SIGBUS ends it otherwise.
"""

from __future__ import annotations

import random
import sys

import kstore
from kstore.log import writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.support.lives.telling_values import telling_value
from tests.support.lives.watching_reader import watched_by_threads

# Entries of 8 and 12 bytes: several pages of each index.
BATCHES = 1200


def main(path: str, steps: int, seed: int) -> None:
    """Lets the indexes grow by pages, then cuts them to nearly nothing, by truncation or by a seal."""
    generator = random.Random(seed)
    sys.setswitchinterval(1e-5)
    with (
        kstore.Log(path, durability="os", index_interval_bytes=0, segment_bytes=1 << 20) as log,
        watched_by_threads(log, 4) as counts,
    ):
        for serial in range(steps):
            first, data = log.end_offset, bytearray()
            for offset in range(first, first + BATCHES):
                data += build_batch([Record(0, 1_700_000_000_000 + offset, value=telling_value(offset, serial))])
            log.append_batches(data)
            match generator.randrange(3):
                case 0:
                    log.roll()
                case 1:
                    log.truncate_to(first + generator.randint(0, 10))
                case _:
                    writer_of(log).truncate_fully_and_start_at(first)
            if log.end_offset - log.start_offset > 10 * BATCHES:
                log.delete_records(log.end_offset - BATCHES)
    print(sum(counts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
