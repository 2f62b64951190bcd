"""The codecs: Kafka's framing, exact where it is fixed; what Kafka reads is read, and all else is a typed error."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from typing import Any

import lz4.frame
import pytest
import zstandard
from cramjam import snappy

from kstore.errors import CorruptRecordError
from kstore.record.compression import CODECS, CODECS_BY_NAME, Codec, xxh32
from tests.decoded import DecodedPayload, payloads
from tests.support.harness.selection import tries

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


@pytest.mark.parametrize("size", [-1, 0, 1 << 29, 6])
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
        if codec.name == "snappy" and 16 <= size < 20:
            continue  # a header without blocks is an empty stream
        if codec.name == "zstd" and size == 0:
            continue  # no frames
        with pytest.raises(CorruptRecordError):
            codec.decompress(stream[:size], LIMIT, 2)


@pytest.mark.parametrize("row", payloads(), ids=lambda row: row.name.replace(" ", "-"))
def test_a_payload_is_read_as_kafka_reads_it(row: DecodedPayload) -> None:
    decompress = CODECS[row.codec_id].decompress
    if row.content is None:
        with pytest.raises(CorruptRecordError):
            decompress(row.data, LIMIT, row.magic)
        return
    assert decompress(row.data, LIMIT, row.magic) == row.content
    # The limit is that of all pieces together.
    assert decompress(memoryview(row.data), len(row.content), row.magic) == row.content
    if row.content:
        with pytest.raises(CorruptRecordError, match="more than"):
            decompress(row.data, len(row.content) - 1, row.magic)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("sizes", [(100_000, 3), (3, 100_000), (0, 70_000, 0, 1), (65_536,) * 3], ids=str)
def test_large_and_small_pieces_are_read_in_any_order(name: str, sizes: tuple[int, ...]) -> None:
    codec = CODECS_BY_NAME[name]
    parts = [os.urandom(size) for size in sizes]
    assert codec.decompress(b"".join([codec.compress(part, None) for part in parts]), LIMIT, 2) == b"".join(parts)


def test_skippable_frames_of_any_size_are_skipped() -> None:
    codec = CODECS_BY_NAME["zstd"]
    for size in (0, 1, 2047, 2048, 300_000):
        skipped = struct.pack("<II", 0x184D2A57, size) + bytes(size)
        assert codec.decompress(skipped + codec.compress(b"a", None) + skipped, 1, 2) == b"a"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_the_time_for_many_tiny_pieces_grows_as_their_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = CODECS_BY_NAME[name]
    copied = []

    class Counted:
        """A stream that counts how many bytes it is given."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def decompress(self, data: memoryview, *limit: int) -> bytes:
            copied.append(data.nbytes)
            return bytes(self.stream.decompress(data, *limit))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    class Decompressor:
        def __init__(self, **options: Any) -> None:
            self.decompressor = real(**options)

        def decompressobj(self) -> Counted:
            return Counted(self.decompressor.decompressobj())

    real, make = zstandard.ZstdDecompressor, zlib.decompressobj
    monkeypatch.setattr(zstandard, "ZstdDecompressor", Decompressor)
    monkeypatch.setattr(zlib, "decompressobj", lambda bits: Counted(make(bits)))
    data = codec.compress(b"a", None) * 2000
    assert codec.decompress(data, LIMIT, 2) == b"a" * 2000
    # The first piece of gzip is given all that there is; every other one little more than its own bytes.
    assert sum(copied) <= len(data) * 10


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
    # In pieces, each of which is within the limit.
    bombs_in_pieces = {name: CODECS_BY_NAME[name].compress(bytes(LIMIT // 2), None) * 1000 for name in ("gzip", "zstd")}
    for name, bomb in bombs_in_pieces.items():
        with pytest.raises(CorruptRecordError, match="more than"):
            CODECS_BY_NAME[name].decompress(bomb, LIMIT, 2)
    for name, bomb in bombs.items():
        with pytest.raises(CorruptRecordError):
            CODECS_BY_NAME[name].decompress(bomb, LIMIT, 2)


@pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name)
def test_garbage_is_a_typed_error(codec: Codec) -> None:
    for size in (1, 8, 17, 500):
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
