"""Sound batches of unusual form: payloads in pieces, header keys that are not UTF-8, sets of mixed versions.

kstore writes none of them; brokers store and serve them. ``ODD`` has each with the records that Kafka reads from it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kstore.record.compression import CODECS_BY_NAME
from tests.support.oracles import oracle_codec, oracle_legacy
from tests.support.oracles.oracle_codec import OracleBatch, OracleRecord

TIME = 1_700_000_000_000
LATIN = "größe".encode("latin-1")
APPEND_TIME = 8


class Odd(NamedTuple):
    """A batch of one segment, and its records as (offset, value)."""

    data: bytes
    records: list[tuple[int, bytes | None]]


def records_from(first: int, count: int) -> list[OracleRecord]:
    return [OracleRecord(first + n, TIME + n, b"key %d" % n, b"value %d" % n, ((LATIN, b"h"),)) for n in range(count)]


def payload_of(records: list[OracleRecord]) -> list[bytes]:
    return [oracle_codec.encode_record(record, records[0].offset, TIME) for record in records]


def batch_of(records: list[OracleRecord], payload: bytes, codec: str, *, count: int | None = None) -> bytes:
    """A batch that says it has these records, whose bytes are ``payload``."""
    codec_id = CODECS_BY_NAME[codec].id
    batch = OracleBatch(records[0].offset, tuple(records), attributes=codec_id)
    return oracle_codec.encode(batch, payload=payload, count=count)


def compressed(codec: str, data: bytes) -> bytes:
    return CODECS_BY_NAME[codec].compress(data, None)


def in_pieces(codec: str, *, after: bytes = b"", between: bytes = b"") -> Odd:
    records = records_from(0, 6)
    parts = payload_of(records)
    pieces = [compressed(codec, b"".join(parts[:2])), compressed(codec, b"".join(parts[2:]))]
    payload = pieces[0] + between + pieces[1] + after
    return Odd(batch_of(records, payload, codec), [(r.offset, r.value) for r in records])


def with_rest(codec: str, rest: bytes) -> Odd:
    records = records_from(0, 3)
    payload = compressed(codec, b"".join(payload_of(records))) + rest
    return Odd(batch_of(records, payload, codec), [(r.offset, r.value) for r in records])


def plain(codec: str) -> Odd:
    return with_rest(codec, b"")


def without_records(codec: str, payload: bytes = b"") -> Odd:
    """As a broker's cleaner leaves a batch of which only the offsets matter, but with a codec."""
    records = records_from(0, 3)
    return Odd(batch_of(records, payload, codec, count=0), [])


def legacy(
    messages: list[tuple[int, int]],
    *,
    magic: int,
    offset: int,
    first: int,
    rest: bytes = b"",
    append_time: bool = False,
) -> Odd:
    """A wrapper around (magic, offset) messages, the first of which has offset ``first``."""
    inner = [
        oracle_legacy.message(at, b"value %d" % n, b"key %d" % n, magic=inner_magic, timestamp=TIME + n)
        for n, (inner_magic, at) in enumerate(messages)
    ]
    data = oracle_legacy.wrapper(
        [*inner, rest], offset=offset, codec="gzip", magic=magic, timestamp=TIME + 9, append_time=append_time
    )
    base = first - messages[0][1]
    return Odd(data, [(base + at, b"value %d" % n) for n, (_, at) in enumerate(messages)])


SKIPPABLE = struct.pack("<II", 0x184D2A55, 5) + b"notes"
CUT = oracle_legacy.message(3, b"a value", magic=1, timestamp=TIME)[:-1]

ODD: dict[str, Odd] = {
    **{f"header-keys-{codec}": plain(codec) for codec in CODECS_BY_NAME},
    "gzip-members": in_pieces("gzip"),
    "gzip-members-and-zeros": in_pieces("gzip", after=bytes(30)),
    "gzip-and-half-a-member": with_rest("gzip", compressed("gzip", b"")[:9]),
    "zstd-frames": in_pieces("zstd"),
    "zstd-frames-and-skippable": in_pieces("zstd", between=SKIPPABLE, after=SKIPPABLE),
    "zstd-and-half-a-frame": with_rest("zstd", compressed("zstd", b"abc")[:7]),
    "snappy-streams": in_pieces("snappy"),
    "snappy-and-a-rest": with_rest("snappy", b"abc"),
    "lz4-and-another-frame": with_rest("lz4", compressed("lz4", b"what no reader sees")),
    "lz4-and-a-rest": with_rest("lz4", b"rest"),
    **{f"no-records-{codec}": without_records(codec) for codec in CODECS_BY_NAME},
    "no-records-garbage": without_records("lz4", b"no frame"),
    "no-records-plain-rest": without_records("none", b"\xff rest"),
}

ODD_LEGACY: dict[str, Odd] = {
    "zeros-in-one": legacy([(0, 0), (0, 1), (0, 2)], magic=1, offset=2, first=0),
    "zeros-in-one-absolute": legacy([(0, 10), (0, 14)], magic=1, offset=14, first=10),
    "mixed-in-one": legacy([(0, 0), (1, 1), (0, 2)], magic=1, offset=12, first=10),
    "mixed-in-one-append-time": legacy([(0, 0), (1, 1)], magic=1, offset=1, first=0, append_time=True),
    "ones-in-zero": legacy([(1, 4), (1, 5)], magic=0, offset=5, first=4),
    "cut-at-the-end": legacy([(1, 0), (1, 1), (1, 2)], magic=1, offset=2, first=0, rest=CUT),
    "cut-in-a-prefix": legacy([(1, 0), (1, 1), (1, 2)], magic=1, offset=2, first=0, rest=CUT[:11]),
    "cut-after-a-size": legacy([(0, 0), (0, 1)], magic=0, offset=1, first=0, rest=CUT[:13]),
}
