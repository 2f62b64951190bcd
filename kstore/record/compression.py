"""The compression codecs of Kafka's record formats: a table, one row for each codec. No I/O here.

    id  name    bytes of a payload
     0  none    the records themselves
     1  gzip    one RFC 1952 member; read: one or more, up to bytes that are no member's header
     2  snappy  xerial stream: magic 82 53 4e 41 50 50 59 00, int32 1, int32 1, then [int32 size][raw snappy block]...
                of up to 32 KiB of input each; read: also several streams, one raw block, and up to 3 bytes at the end
     3  lz4     frame of independent 64 KiB blocks without checksums or size; for magic 0 the header checksum is
                computed over the frame magic too (KAFKA-3160), and not checked when read; read: up to the end mark
     4  zstd    one frame; magic 2 only; read: any number of frames, skippable ones too, of which the last may be cut

Every ``decompress`` limits its output and compares every length with the available bytes before using it. What it
accepts after the first stream is what Kafka's own decoders accept there: the batch's CRC covers these bytes, and the
record count says whether records are missing. The libraries are imported on first use.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import CorruptRecordError

if TYPE_CHECKING:
    from typing_extensions import Buffer

INT32 = struct.Struct(">i")
GZIP_WINDOW_BITS = 31
RAW_WINDOW_BITS = -15
GZIP_MAGIC_AND_METHOD = b"\x1f\x8b\x08"
GZIP_HEADER_BYTES = 10
GZIP_HEADER_CRC, GZIP_EXTRA, GZIP_TEXTS = 0x02, 0x04, (0x08, 0x10)
GZIP_TRAILER = struct.Struct("<II")
# Java examines no smaller rest than this after a member: it cannot be a whole one.
GZIP_REST_BYTES_MIN = 19
SNAPPY_MAGIC = bytes.fromhex("82534e4150505900")
SNAPPY_HEADER = SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
SNAPPY_BLOCK_BYTES = 32 * 1024
SNAPPY_VERSION_POSITION, SNAPPY_VERSION_MIN = 8, 1
# The value of a length field that is the start of a second stream's header.
SNAPPY_MAGIC_AS_SIZE = INT32.unpack(SNAPPY_MAGIC[:4])[0]
LZ4_FRAME_MAGIC = bytes.fromhex("04224d18")
LZ4_VERSION = 0x40
LZ4_BLOCK_INDEPENDENCE = 0x20
LZ4_BLOCK_CHECKSUM = 0x10
LZ4_CONTENT_SIZE = 0x08
LZ4_CONTENT_CHECKSUM = 0x04
LZ4_RESERVED = 0x03
LZ4_BLOCK_BYTES_MAX = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
# A byte of a block expands to at most 255 bytes.
LZ4_GROWTH_MAX = 255
LZ4_STORED = 0x80000000
# Kafka's level for the fast compressor; every other level belongs to the HC compressor.
LZ4_LEVEL_FAST = 9
# zstd itself decodes a window of up to 2^27 bytes by default.
ZSTD_WINDOW_BYTES_MAX = 1 << 27
# 4 bytes of zstd can expand to 128 KiB: steps are small, so that one cannot exceed the limit by much.
ZSTD_GROWTH_MAX = 32 << 10
READ_BYTES_MIN, READ_BYTES_MAX = 16, 1 << 11
# The first step into a later member or frame, which may be tiny: what follows it is copied, so steps double.
PIECE_BYTES = 64
# The name of the codec that does nothing.
NO_CODEC = "none"


class Codec(NamedTuple):
    """One row: ``compress(data, level)`` and ``decompress(data, size_max, magic)`` work on whole payloads.

    ``level`` None is the default. ``decompress`` raises CorruptRecordError for what Kafka does not decompress either,
    and for more than ``size_max`` bytes of output.
    """

    id: int
    name: str
    compress: Callable[[Buffer, int | None], bytes]
    decompress: Callable[[Buffer, int, int], bytes]


def _too_large(name: str, size_max: int) -> CorruptRecordError:
    return CorruptRecordError(f"{name} data of more than {size_max} bytes uncompressed (max_batch_bytes_uncompressed)")


def _bad(name: str, what: object) -> CorruptRecordError:
    return CorruptRecordError(f"{name} data that cannot be decompressed: {what}")


def _same(data: Buffer, level: int | None) -> bytes:
    return bytes(data)


def _same_back(data: Buffer, size_max: int, magic: int) -> bytes:
    if memoryview(data).nbytes > size_max:
        raise _too_large("none", size_max)
    return bytes(data)


def _gzip(data: Buffer, level: int | None) -> bytes:
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, GZIP_WINDOW_BITS)
    return compressor.compress(memoryview(data)) + compressor.flush()


def _gunzip(data: Buffer, size_max: int, magic: int) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = []
    total, at = 0, _gzip_body(view, 0)
    if at is None:
        raise _bad("gzip", "no member header")
    # Almost always the only one.
    step = view.nbytes
    while at is not None:
        part, at = _inflate(view, at, step, size_max - total)
        if part is None:
            raise _too_large("gzip", size_max)
        parts.append(part)
        total += len(part)
        step = PIECE_BYTES
        at = _gzip_body(view, at) if view.nbytes - at >= GZIP_REST_BYTES_MIN else None
    return b"".join(parts)


def _gzip_body(view: memoryview, start: int) -> int | None:
    """Where the compressed bytes of a member begin whose header is at ``start``; None if there is no whole header.

    As in Java, flags that have no meaning are ignored.
    """
    at = start + GZIP_HEADER_BYTES
    if at > view.nbytes or bytes(view[start : start + 3]) != GZIP_MAGIC_AND_METHOD:
        return None
    flags = view[start + 3]
    if flags & GZIP_EXTRA:
        at += 2 + int.from_bytes(view[at : at + 2], "little")
    for flag in GZIP_TEXTS:
        if flags & flag:
            at = _after_zero(view, at)
    if flags & GZIP_HEADER_CRC:
        if at + 2 > view.nbytes or int.from_bytes(view[at : at + 2], "little") != zlib.crc32(view[start:at]) & 0xFFFF:
            return None
        at += 2
    return at if at <= view.nbytes else None


def _after_zero(view: memoryview, at: int) -> int:
    """The position after the first zero from ``at`` on, or beyond the end."""
    while at < view.nbytes:
        found = bytes(view[at : at + PIECE_BYTES]).find(0)
        if found >= 0:
            return at + found + 1
        at += PIECE_BYTES
    return view.nbytes + 1


def _inflate(view: memoryview, at: int, step: int, size_max: int) -> tuple[bytes | None, int]:
    """The content of a gzip member whose compressed bytes begin at ``at``, None if too large; and where it ends."""
    stream = zlib.decompressobj(RAW_WINDOW_BITS)
    parts: list[bytes] = []
    size = 0
    while not stream.eof:
        if at >= view.nbytes:
            raise _bad("gzip", "it ends within the stream")
        try:
            part = stream.decompress(view[at : at + step], size_max - size + 1)
        except zlib.error as error:
            raise _bad("gzip", error) from None
        size += len(part)
        if size > size_max:
            return None, at
        parts.append(part)
        at = min(at + step, view.nbytes)
        step *= 2
    content = b"".join(parts)
    at -= len(stream.unused_data)
    if view.nbytes - at < GZIP_TRAILER.size:
        raise _bad("gzip", "it ends within the stream")
    if GZIP_TRAILER.unpack_from(view, at) != (zlib.crc32(content), size & 0xFFFFFFFF):
        raise _bad("gzip", "a bad checksum or size")
    return content, at + GZIP_TRAILER.size


def _snappy(data: Buffer, level: int | None) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [SNAPPY_HEADER]
    for at in range(0, view.nbytes, SNAPPY_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(bytes(view[at : at + SNAPPY_BLOCK_BYTES])))
        parts += [INT32.pack(len(block)), block]
    return b"".join(parts)


def _unsnappy(data: Buffer, size_max: int, magic: int) -> bytes:
    view = memoryview(data)
    if not view.nbytes:
        raise _bad("snappy", "no bytes")
    if bytes(view[: len(SNAPPY_MAGIC)]) != SNAPPY_MAGIC or view.nbytes < len(SNAPPY_HEADER):
        return _unsnappy_block(view, size_max, 0)
    parts: list[bytes] = []
    size, at = 0, len(SNAPPY_HEADER)
    # Fewer bytes than a size has are ignored.
    while view.nbytes - at >= INT32.size:
        (block_size,) = INT32.unpack_from(view, at)
        if block_size == SNAPPY_MAGIC_AS_SIZE:
            if view.nbytes - at < len(SNAPPY_HEADER):
                raise _bad("snappy", "it ends within a stream's header")
            # Only the version of a later header is checked, and only the magic of the first one.
            (version,) = INT32.unpack_from(view, at + SNAPPY_VERSION_POSITION)
            if version < SNAPPY_VERSION_MIN:
                raise _bad("snappy", f"a stream of version {version}, expected at least {SNAPPY_VERSION_MIN}")
            at += len(SNAPPY_HEADER)
            continue
        at += INT32.size
        if not 0 < block_size <= view.nbytes - at:
            raise _bad("snappy", f"a block of {block_size} bytes, expected 1 to the {view.nbytes - at} that remain")
        parts.append(_unsnappy_block(view[at : at + block_size], size_max, size))
        size += len(parts[-1])
        at += block_size
    return b"".join(parts)


def _unsnappy_block(block: memoryview, size_max: int, size_before: int) -> bytes:
    from cramjam import DecompressionError, snappy

    data = bytes(block)
    try:
        # The block states its uncompressed size, which is used only for the limit.
        size = snappy.decompress_raw_len(data)
        if size_before + size > size_max:
            raise _too_large("snappy", size_max)
        # No block expands more than 64 times: a copy of up to 64 bytes takes 2.
        if size > 64 * len(data):
            raise _bad("snappy", f"{len(data)} bytes that claim to be {size}")
        return bytes(snappy.decompress_raw(data))
    except DecompressionError as error:
        raise _bad("snappy", error) from None


def _lz4(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    fast = level is None or level == LZ4_LEVEL_FAST
    return bytes(
        frame.compress(
            data,
            compression_level=0 if fast else max(level or 0, 3),
            block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
    )


def _lz4_header(view: memoryview, magic: int) -> tuple[int, int, bool, bool]:
    """Position of the first block, the largest block size, and whether blocks and content have checksums."""
    if view.nbytes < 7 or bytes(view[:4]) != LZ4_FRAME_MAGIC:
        raise _bad("lz4", "no frame header")
    flags, descriptor = view[4], view[5]
    size_max = LZ4_BLOCK_BYTES_MAX.get(descriptor >> 4 & 7, 0)
    if flags & 0xC0 != LZ4_VERSION or flags & LZ4_RESERVED or descriptor & 0x8F or not size_max:
        raise _bad("lz4", f"a frame descriptor of {flags:#04x} {descriptor:#04x}")
    if not flags & LZ4_BLOCK_INDEPENDENCE:
        raise _bad("lz4", "blocks that depend on each other")
    end = 14 if flags & LZ4_CONTENT_SIZE else 6
    if view.nbytes <= end:
        raise _bad("lz4", "it ends within the frame header")
    if magic and view[end] != xxh32(bytes(view[4:end])) >> 8 & 0xFF:
        raise _bad("lz4", "a bad checksum of the frame header")
    return end + 1, size_max, bool(flags & LZ4_BLOCK_CHECKSUM), bool(flags & LZ4_CONTENT_CHECKSUM)


def _unlz4(data: Buffer, size_max: int, magic: int) -> bytes:
    from lz4 import block as lz4_block

    view = memoryview(data)
    at, block_max, block_checksums, content_checksum = _lz4_header(view, magic)
    parts: list[bytes] = []
    total = 0
    while True:
        if view.nbytes - at < 4:
            raise _bad("lz4", "it ends without an end mark")
        size = int.from_bytes(view[at : at + 4], "little")
        at += 4
        stored, size = bool(size & LZ4_STORED), size & ~LZ4_STORED
        if size == 0:
            break
        tail = 4 if block_checksums else 0
        if size > block_max or size + tail > view.nbytes - at:
            raise _bad("lz4", f"a block of {size} bytes, expected at most {min(block_max, view.nbytes - at)}")
        block = bytes(view[at : at + size])
        at += size
        if block_checksums:
            if int.from_bytes(view[at : at + 4], "little") != xxh32(block):
                raise _bad("lz4", "a bad checksum of a block")
            at += 4
        if not stored:
            # This much memory is allocated before the block is examined.
            room = min(block_max, LZ4_GROWTH_MAX * size, size_max - total)
            try:
                block = lz4_block.decompress(block, uncompressed_size=room)
            except lz4_block.LZ4BlockError as error:
                if room == size_max - total:
                    raise _too_large("lz4", size_max) from None
                raise _bad("lz4", error) from None
        total += len(block)
        if total > size_max:
            raise _too_large("lz4", size_max)
        parts.append(block)
    if content_checksum and view.nbytes - at < 4:
        raise _bad("lz4", "it ends within the content's checksum")
    return b"".join(parts)


def xxh32(data: bytes) -> int:
    """xxHash with 32 bits and seed 0, in plain Python: for frame headers, of a few bytes, and optional checksums."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask, size, at = 0xFFFFFFFF, len(data), 0

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> 32 - by) & mask

    if size >= 16:
        lanes = [(prime1 + prime2) & mask, prime2, 0, -prime1 & mask]
        for at in range(0, size - 15, 16):
            words = struct.unpack_from("<4I", data, at)
            lanes = [rotate((v + w * prime2) & mask, 13) * prime1 & mask for v, w in zip(lanes, words, strict=True)]
        at = size // 16 * 16
        result = sum(rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
    else:
        result = prime5
    result = (result + size) & mask
    while size - at >= 4:
        result = rotate((result + struct.unpack_from("<I", data, at)[0] * prime3) & mask, 17) * prime4 & mask
        at += 4
    for byte in data[at:]:
        result = rotate((result + byte * prime5) & mask, 11) * prime1 & mask
    result = (result ^ result >> 15) * prime2 & mask
    result = (result ^ result >> 13) * prime3 & mask
    return result ^ result >> 16


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=3 if level is None else level, write_content_size=False)
    return compressor.compress(memoryview(data))


def _unzstd(data: Buffer, size_max: int, magic: int) -> bytes:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    view = memoryview(data)
    # Not a list that is joined at the end: that takes the output's memory twice.
    output = io.BytesIO()
    at = 0
    step_max = READ_BYTES_MAX
    while at < view.nbytes:
        stream = decompressor.decompressobj()
        is_first = at == 0
        try:
            while at < view.nbytes and not stream.eof:
                # In small steps: the input of a step bounds its output, so the limit applies in time.
                step = min(max((size_max - output.tell()) // ZSTD_GROWTH_MAX, READ_BYTES_MIN), step_max)
                part = stream.decompress(view[at : at + step])
                at = min(at + step, view.nbytes)
                if output.tell() + len(part) > size_max:
                    raise _too_large("zstd", size_max)
                output.write(part)
                step_max = min(2 * step_max, READ_BYTES_MAX)
        except zstandard.ZstdError as error:
            raise _bad("zstd", error) from None
        if is_first and not stream.eof:
            raise _bad("zstd", "it ends within the frame")
        at -= len(stream.unused_data)
        step_max = PIECE_BYTES
    return output.getvalue()


CODECS: tuple[Codec, ...] = (
    Codec(0, NO_CODEC, _same, _same_back),
    Codec(1, "gzip", _gzip, _gunzip),
    Codec(2, "snappy", _snappy, _unsnappy),
    Codec(3, "lz4", _lz4, _unlz4),
    Codec(4, "zstd", _zstd, _unzstd),
)
CODECS_BY_NAME: dict[str, Codec] = {codec.name: codec for codec in CODECS}

assert [codec.id for codec in CODECS] == list(range(len(CODECS)))
