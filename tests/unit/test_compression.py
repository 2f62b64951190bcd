"""The codecs: Kafka's framing, exact where it is fixed, and typed errors for anything but a whole stream."""

from __future__ import annotations

import gzip
import os
import struct

import lz4.frame
import pytest
import zstandard
from cramjam import snappy

from kstore.errors import CorruptRecordError
from kstore.record.compression import CODECS, CODECS_BY_NAME, Codec, xxh32
from tests.selection import tries

LIMIT = 1 << 20
PAYLOADS = {
    "empty": b"",
    "short": b"hello",
    "repeating": b"kafka " * 20_000,
    "random": os.urandom(100_000),
    "several-blocks": bytes(range(256)) * 700,
}
COMPRESSING = [codec for codec in CODECS if codec.id]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_what_is_compressed_comes_back(codec: Codec, payload: bytes) -> None:
    assert codec.decompress(codec.compress(payload, None), LIMIT, 2) == payload
    assert codec.decompress(memoryview(codec.compress(memoryview(payload), None)), LIMIT, 2) == payload


@pytest.mark.parametrize(
    ("name", "level"),
    [("gzip", 1), ("gzip", 9), ("gzip", -1), ("lz4", 1), ("lz4", 9), ("lz4", 17), ("zstd", -5), ("zstd", 22)],
)
def test_every_level_is_read_alike(name: str, level: int) -> None:
    codec = CODECS_BY_NAME[name]
    payload = PAYLOADS["repeating"]
    assert codec.decompress(codec.compress(payload, level), LIMIT, 2) == payload


def test_snappy_is_framed_as_xerial_streams_are() -> None:
    payload = PAYLOADS["several-blocks"]
    stream = CODECS_BY_NAME["snappy"].compress(payload, None)
    assert stream[:16] == bytes.fromhex("82534e41505059000000000100000001")
    (size,) = struct.unpack_from(">i", stream, 16)
    assert bytes(snappy.decompress_raw(stream[20 : 20 + size])) == payload[: 32 * 1024]


def test_a_raw_snappy_block_is_read() -> None:
    assert CODECS_BY_NAME["snappy"].decompress(bytes(snappy.compress_raw(b"raw block")), LIMIT, 2) == b"raw block"


def test_snappy_streams_one_after_the_other_are_read() -> None:
    codec = CODECS_BY_NAME["snappy"]
    streams = codec.compress(b"one", None) + codec.compress(b"two", None)
    assert codec.decompress(streams, LIMIT, 2) == b"onetwo"


@pytest.mark.parametrize("size", [-1, 1 << 29, 6])
def test_a_snappy_block_of_an_impossible_size_is_refused(size: int) -> None:
    stream = bytearray(CODECS_BY_NAME["snappy"].compress(b"ab", None))
    struct.pack_into(">i", stream, 16, size)
    with pytest.raises(CorruptRecordError, match="a block of"):
        CODECS_BY_NAME["snappy"].decompress(stream, LIMIT, 2)


def test_lz4_frames_begin_as_kafka_s_do() -> None:
    assert CODECS_BY_NAME["lz4"].compress(b"x", None)[:7] == bytes.fromhex("04224d18604082")


def test_the_old_lz4_header_checksum_is_read_in_version_0_and_refused_later() -> None:
    codec = CODECS_BY_NAME["lz4"]
    frame = bytearray(codec.compress(b"quirk", None))
    frame[6] = 0x1A
    assert codec.decompress(frame, LIMIT, 0) == b"quirk"
    with pytest.raises(CorruptRecordError, match="checksum of the frame header"):
        codec.decompress(frame, LIMIT, 1)


def test_lz4_with_checksums_sizes_and_large_blocks_is_read() -> None:
    payload = PAYLOADS["several-blocks"]
    for block_size in (5, 6, 7):
        frame = lz4.frame.compress(
            payload,
            block_size=block_size,
            block_linked=False,
            content_checksum=True,
            block_checksum=True,
            store_size=True,
        )
        assert CODECS_BY_NAME["lz4"].decompress(frame, LIMIT, 2) == payload


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (0, 0, "no frame header"),
        (4, 0x20, "frame descriptor"),
        (4, 0x40, "depend on each other"),
        (5, 0x30, "frame descriptor"),
        (7 + 3, 0x10, "a block of"),
    ],
    ids=["magic", "version", "dependent", "block-size", "too-large"],
)
def test_a_broken_lz4_frame_is_refused(at: int, new: int, message: str) -> None:
    frame = bytearray(CODECS_BY_NAME["lz4"].compress(b"abc" * 100, None))
    frame[at] = new
    with pytest.raises(CorruptRecordError, match=message):
        CODECS_BY_NAME["lz4"].decompress(frame, LIMIT, 0)


@pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name)
def test_a_stream_that_is_cut_short_is_refused_at_every_byte(codec: Codec) -> None:
    stream = codec.compress(b"some records " * 20, None)
    for size in range(len(stream)):
        if codec.name == "snappy" and size == 16:
            continue  # a header without blocks is an empty stream
        with pytest.raises(CorruptRecordError):
            codec.decompress(stream[:size], LIMIT, 2)


@pytest.mark.parametrize("codec", [c for c in COMPRESSING if c.name != "snappy"], ids=lambda codec: codec.name)
def test_bytes_after_the_stream_are_refused(codec: Codec) -> None:
    with pytest.raises(CorruptRecordError, match="follow"):
        codec.decompress(codec.compress(b"records", None) + b"\0", LIMIT, 2)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_no_more_than_the_limit_comes_out(codec: Codec) -> None:
    stream = codec.compress(bytes(1000), None)
    assert len(codec.decompress(stream, 1000, 2)) == 1000
    with pytest.raises(CorruptRecordError, match="more than 999 bytes"):
        codec.decompress(stream, 999, 2)


def test_bombs_stop_at_the_limit() -> None:
    size = tries(256, quick=32) << 20
    bombs = {
        "gzip": gzip.compress(bytes(size), 9),
        "zstd": zstandard.ZstdCompressor().compress(bytes(size)),
        "snappy": b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\x00" * 100,
    }
    for name, bomb in bombs.items():
        with pytest.raises(CorruptRecordError):
            CODECS_BY_NAME[name].decompress(bomb, LIMIT, 2)


@pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name)
def test_garbage_is_a_typed_error(codec: Codec) -> None:
    for size in (0, 1, 8, 17, 500):
        data = bytes((i * 37 + 11) % 256 for i in range(size))
        with pytest.raises(CorruptRecordError):
            codec.decompress(data, LIMIT, 2)


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)], ids=["empty", "a", "abc"]
)
def test_xxh32_gives_the_published_values(data: bytes, expected: int) -> None:
    assert xxh32(data) == expected


@pytest.mark.parametrize("size", [15, 16, 17, 48, 1000])
def test_xxh32_is_that_of_the_lz4_library(size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    frame = lz4.frame.compress(data, block_linked=False, content_checksum=True, store_size=False)
    assert xxh32(data) == int.from_bytes(frame[-4:], "little")
