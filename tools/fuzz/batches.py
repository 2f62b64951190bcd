"""Damage that knows what a batch is: fields, compressed payloads, and checksums that are corrected again."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence

import crc32c

from kstore.errors import KstoreError
from kstore.record.batch import ATTRIBUTE_CODEC, BATCH_HEADER_BYTES, CRC_START, LOG_OVERHEAD_BYTES, parse_v2
from kstore.record.compression import CODECS
from kstore.state.log_state import (
    CRC,
    ENVELOPE,
    LIVE,
    LIVE_POSITION,
    OLD_RECORD,
    OLD_SLOT_SIZE,
    SLOT_SIZE,
    SLOTS_POSITION,
)
from kstore.state.producer_snapshot import CRC_START as SNAPSHOT_CRC_START
from tests.support.oracles.oracle_legacy import wrapper
from tools.fuzz.mutate import INTERESTING, Mutator, mended, mutate

MAGIC_POSITION = 16
CRC_POSITION = 17
LEGACY_CRC_POSITION = 12
LEGACY_CRC_START = 16
LEGACY_SIZE_MIN = 26
# An entry of version 1 with an empty key and value.
WRAPPER_BYTES_MIN = 34
PAYLOAD_BYTES_MAX = 1 << 20
SNAPPY, LZ4, ZSTD = 2, 3, 4
# Position and size of each header field of version 2, and of the lengths of versions 0 and 1.
FIELDS_V2 = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))
FIELDS_LEGACY = ((0, 8), (8, 4), (16, 1), (17, 1), (18, 8), (18, 4), (22, 4), (26, 4), (30, 4))


def batch_bounds(data: bytes) -> list[tuple[int, int]]:
    """Start and end of the entries from the beginning, as long as their sizes are possible."""
    at, bounds = 0, []
    while len(data) - at > MAGIC_POSITION:
        size = LOG_OVERHEAD_BYTES + struct.unpack_from(">i", data, at + 8)[0]
        if not MAGIC_POSITION < size <= len(data) - at:
            break
        bounds.append((at, at + size))
        at += size
    return bounds


def mend_batches(data: bytes) -> bytes:
    """``data`` with the CRC of every entry corrected."""
    found = bytearray(data)
    for start, stop in batch_bounds(data):
        if found[start + MAGIC_POSITION] == 2 and stop - start >= BATCH_HEADER_BYTES:
            struct.pack_into(">I", found, start + CRC_POSITION, crc32c.crc32c(bytes(found[start + CRC_START : stop])))
        elif found[start + MAGIC_POSITION] < 2 and stop - start >= LEGACY_SIZE_MIN:
            crc = zlib.crc32(found[start + LEGACY_CRC_START : stop])
            struct.pack_into(">I", found, start + LEGACY_CRC_POSITION, crc)
    return bytes(found)


def mend_snapshot(data: bytes) -> bytes:
    """``data`` with the CRC of a producer snapshot corrected."""
    if len(data) < SNAPSHOT_CRC_START:
        return data
    return data[:2] + struct.pack(">I", crc32c.crc32c(data[SNAPSHOT_CRC_START:])) + data[SNAPSHOT_CRC_START:]


def mend_state(data: bytes) -> bytes:
    """``data`` with the CRCs of a ``kstore.state`` corrected: of both versions, and of the live slot."""
    found = bytearray(data)
    places = [(0, OLD_RECORD.size), (OLD_SLOT_SIZE, OLD_RECORD.size), (LIVE_POSITION, LIVE.size)]
    for start in (SLOTS_POSITION, SLOTS_POSITION + SLOT_SIZE):
        if len(found) >= start + ENVELOPE.size:
            size = ENVELOPE.unpack_from(found, start)[2]
            if CRC.size <= size <= SLOT_SIZE:
                places.append((start, size - CRC.size))
    for start, size in places:
        if len(found) >= start + size + CRC.size:
            CRC.pack_into(found, start + size, crc32c.crc32c(bytes(found[start : start + size])))
    return bytes(found)


def _set_field(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """Sets a header field to a value where its meaning changes, or changes it a little."""
    bounds = batch_bounds(data)
    if not bounds:
        return mutate(data, rng, pool)
    start, stop = rng.choice(bounds)
    at, size = rng.choice(FIELDS_V2 if data[start + MAGIC_POSITION] == 2 else FIELDS_LEGACY)
    if start + at + size > stop:
        return mutate(data, rng, pool)
    field = slice(start + at, start + at + size)
    old = int.from_bytes(data[field], "big")
    number = rng.choice((rng.choice(INTERESTING), old + rng.choice((-1, 1, 2, 256)), rng.getrandbits(8 * size)))
    return data[: field.start] + (number % (1 << 8 * size)).to_bytes(size, "big") + data[field.stop :]


def _repack(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """A batch whose uncompressed records are damaged, and compressed again with any codec: its frame is sound."""
    bounds = batch_bounds(data)
    bounds = [(start, stop) for start, stop in bounds if stop - start >= WRAPPER_BYTES_MIN]
    if not bounds:
        return mutate(data, rng, pool)
    start, stop = rng.choice(bounds)
    try:
        packed = _repacked(data[start:stop], rng)
    except KstoreError:
        return _set_field(data, rng, pool)
    return data[:start] + packed + data[stop:]


def _repacked(entry: bytes, rng: random.Random) -> bytes:
    if entry[MAGIC_POSITION] != 2:
        return _rewrapped(entry, rng)
    batch = parse_v2(entry)
    payload = entry[BATCH_HEADER_BYTES:]
    codec_id = batch.attributes & ATTRIBUTE_CODEC
    if 0 < codec_id < len(CODECS):
        payload = CODECS[codec_id].decompress(payload, PAYLOAD_BYTES_MAX, 2)
    payload = mutate(payload, rng, (payload,))
    codec = rng.choice(CODECS)
    header = bytearray(entry[:BATCH_HEADER_BYTES])
    packed = codec.compress(payload, None)
    struct.pack_into(">i", header, 8, BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES + len(packed))
    struct.pack_into(">h", header, 21, batch.attributes & ~ATTRIBUTE_CODEC | codec.id)
    return bytes(header) + packed


def _rewrapped(entry: bytes, rng: random.Random) -> bytes:
    """A wrapper of version 0 or 1 around the damaged contents of the given one; or around a plain message."""
    magic = entry[MAGIC_POSITION]
    codec_id = entry[CRC_POSITION] & ATTRIBUTE_CODEC
    inner = entry
    if 0 < codec_id < ZSTD:
        value = entry[(26 if magic else 18) + 8 :]
        inner = CODECS[codec_id].decompress(value, PAYLOAD_BYTES_MAX, magic)
    damaged = inner if rng.random() < 0.2 else mutate(inner, rng, (inner,))
    if rng.random() < 0.8:
        damaged = mend_batches(damaged)
    offset = rng.choice((struct.unpack_from(">Q", entry)[0] % 2**63, 0, 1, 2**63 - 2))
    return wrapper([damaged], offset=offset, codec=rng.choice(("gzip", "snappy", "lz4")), magic=magic & 1)


def _reorder(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """Whole batches in another order, one of them twice, or one of them gone."""
    bounds = batch_bounds(data)
    entries = [data[start:stop] for start, stop in bounds]
    if not entries:
        return mutate(data, rng, pool)
    rng.choice((lambda: rng.shuffle(entries), lambda: entries.append(rng.choice(entries)), entries.pop))()
    return b"".join(entries) + data[bounds[-1][1] :]


def _damage_batches(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    step = rng.choices((mutate, _set_field, _repack, _reorder), (5, 3, 3, 1))[0]
    return step(data, rng, pool)


mutate_batches: Mutator = mended(_damage_batches, mend_batches)
