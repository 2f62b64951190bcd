"""The logs and tables for measuring Spark: records as applications write them.

A key of 12 bytes, one of 100,000; a value of about 100 bytes of JSON, which compresses to about a third; a time each
millisecond. Batches of 1,000 records.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import kstore
from kstore.config import CompressionType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_COUNT = 1_000
# The records repeat after this many, more than any codec or dictionary sees at once.
DISTINCT = 200_000
FIRST_MS = 1_700_000_000_000
SEGMENT_BYTES = 128 << 20
COUNTRIES = ("AT", "CA", "DE", "FR", "GB", "IN", "JP", "US")

Rows = tuple[list[bytes], list[bytes]]


def _batches() -> list[Rows]:
    """Keys and values of the repeating records, batch after batch."""
    generator = random.Random(7)
    made = []
    for _ in range(DISTINCT // BATCH_COUNT):
        users = [generator.randrange(100_000) for _ in range(BATCH_COUNT)]
        keys = [b"user-%07d" % user for user in users]
        values = [
            json.dumps(
                {
                    "order": generator.getrandbits(40),
                    "user": f"user-{user:07d}",
                    "amount": round(generator.uniform(1, 999), 2),
                    "country": generator.choice(COUNTRIES),
                    "items": generator.randrange(1, 20),
                }
            ).encode()
            for user in users
        ]
        made.append((keys, values))
    return made


_MADE: list[Rows] = []


def fill(
    path: Path,
    batches: int,
    *,
    codec: CompressionType = "uncompressed",
    roll_after: int | None = None,
    start: int = 0,
    batch_count: int = BATCH_COUNT,
) -> None:
    """Appends to the log in ``path`` until it has the records of ``start`` + ``batches`` batches of 1,000.

    ``roll_after``: a segment each so many of them; ``batch_count``: the records of a batch, which divide 1,000 or
    are a multiple of it.
    """
    if not _MADE:
        _MADE.extend(_batches())
    with kstore.Log(path, durability="os", compression_type=codec, segment_bytes=SEGMENT_BYTES) as log:
        # As many of the made batches as fill one.
        group = max(batch_count // BATCH_COUNT, 1)
        for number in range(start, start + batches, group):
            made = [_MADE[each % len(_MADE)] for each in range(number, min(number + group, start + batches))]
            keys, values = ([row for rows in columns for row in rows] for columns in zip(*made, strict=True))
            first = FIRST_MS + number * BATCH_COUNT
            for at in range(0, len(keys), batch_count):
                some = slice(at, at + batch_count)
                times = list(range(first + at, first + min(at + batch_count, len(keys))))
                log.append_many(values[some], keys=keys[some], timestamps=times)
            if roll_after and (number + group) % roll_after == 0:
                log.roll()


def drain(frame: DataFrame) -> None:
    """Makes Spark produce every row of ``frame``, and drop it."""
    frame.write.format("noop").mode("overwrite").save()
