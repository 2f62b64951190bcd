# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The compiled part of compaction: a map from keys to their last offsets, and the choice among a block's records.

    slot   first, second   uint64   128-bit hash of the key (SipHash-2-4 with a secret of the map's own)
           offset          int64    the last offset of the key, plus 1: 0 is an empty slot

The key itself is not kept: two keys with one hash would count as one, which among 2^32 keys happens with a
probability of 2^-65, and cannot be provoked because the secret is random. Memory is allocated once and never grows.

A *block* is a list of batches with uncompressed records, about 1 MiB of them. All work for the records of a block is
one call without the GIL, because releasing it can cost 5 ms. As in the codec, every length is checked before it is
used. Nothing of an unreadable batch enters the map.
"""

import os
from collections import namedtuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from kstore.errors import CorruptRecordError

__all__ = ["FilteredBatch", "OffsetMap", "siphash128"]

cdef extern from *:
    """
    static inline size_t kstore_scale(unsigned long long hash, size_t count) {
        return (size_t)(((unsigned __int128)hash * count) >> 64);
    }
    """
    int __builtin_clzll(uint64_t value) nogil
    void __builtin_prefetch(const void* address) nogil
    bint unlikely(bint condition) nogil
    size_t kstore_scale(uint64_t hash, size_t count) nogil

cdef enum:
    # length, attributes, two deltas, two null or empty fields, header count: one byte each.
    RECORD_SIZE_MIN = 7
    # Space before each batch's records for the header that the caller writes.
    HEADER_SIZE = 61
    # How much a record may grow when its time is stored relative to another base: the delta and the length before it.
    GROWTH_MAX = 14
    SLOT_SIZE = 24
    # How far ahead of its use a slot is fetched into the cache.
    AHEAD = 16

# The flags of a batch in ``filter_block``.
cdef enum:
    KEEP_ALL = 1
    DROP_TOMBSTONES = 2
    HAS_HORIZON = 4
    NEEDS_HORIZON = 8
    LOG_APPEND_TIME = 16
    KEEP_KEYLESS = 32

include "_codec_varint.pxi"
include "_codec_read.pxi"

# The result for a batch. ``damage`` says why it is unreadable, or is ""; ``rewritten``: its kept records are in bytes
# ``start`` to ``stop`` of the output (otherwise all of them stay unchanged); times are ms.
FilteredBatch = namedtuple(
    "FilteredBatch",
    "damage record_count kept_count tombstone_count keyless_count rewritten has_horizon base_timestamp max_timestamp "
    "start stop",
    module=__name__,
)


cdef struct Slot:
    uint64_t first
    uint64_t second
    int64_t offset


# One record of a block; without a key there is no hash. Small, because there may be one for every 7 bytes.
cdef struct Entry:
    uint64_t first
    uint64_t second
    int64_t offset
    int64_t timestamp_delta
    # Where it begins in the batch's records; its offset delta, which is stored from there on; and its end.
    uint32_t start
    uint32_t rest
    uint32_t stop
    uint8_t has_key
    uint8_t is_tombstone
    uint8_t is_kept


cdef struct Span:
    Py_buffer view
    const uint8_t* stop
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t last_offset_delta
    int32_t count
    int flags
    Walk walk
    RecordView problem
    bint is_damaged
    bint has_leftover
    # Its entries in the block.
    Py_ssize_t entry
    int32_t kept_count
    int32_t tombstone_count
    int32_t keyless_count
    bint is_rewritten
    bint has_horizon
    int64_t new_base
    int64_t new_max
    Py_ssize_t out_start
    Py_ssize_t out_stop


cdef inline uint64_t rotated(uint64_t value, int by) noexcept nogil:
    return (value << by) | (value >> (64 - by))


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] = rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] = rotated(v[2], 32)


cdef inline uint64_t little_endian(const uint8_t* at) noexcept nogil:
    return (
        <uint64_t>at[0] | <uint64_t>at[1] << 8 | <uint64_t>at[2] << 16 | <uint64_t>at[3] << 24
        | <uint64_t>at[4] << 32 | <uint64_t>at[5] << 40 | <uint64_t>at[6] << 48 | <uint64_t>at[7] << 56
    )


cdef void hash_key(
    const uint8_t* data, Py_ssize_t size, const uint64_t* secret, uint64_t* first, uint64_t* second
) noexcept nogil:
    """SipHash-2-4 with 128 bits of output (Aumasson, Bernstein)."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef Py_ssize_t left = size
    cdef int i
    v[0] = <uint64_t>0x736F6D6570736575 ^ secret[0]
    v[1] = <uint64_t>0x646F72616E646F6D ^ secret[1] ^ 0xEE
    v[2] = <uint64_t>0x6C7967656E657261 ^ secret[0]
    v[3] = <uint64_t>0x7465646279746573 ^ secret[1]
    while left >= 8:
        word = little_endian(data)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
        data += 8
        left -= 8
    word = <uint64_t>size << 56
    for i in range(<int>left):
        word |= <uint64_t>data[i] << (8 * i)
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for i in range(4):
        sip_round(v)
    first[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        sip_round(v)
    second[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


def siphash128(bytes key not None, bytes secret not None):
    """The 16 bytes of SipHash-2-4's longer form; for tests."""
    cdef uint64_t words[2]
    cdef uint64_t first, second
    if PyBytes_GET_SIZE(secret) != 16:
        raise ValueError("a secret of 16 bytes is expected")
    words[0] = little_endian(<const uint8_t*>PyBytes_AS_STRING(secret))
    words[1] = little_endian(<const uint8_t*>PyBytes_AS_STRING(secret) + 8)
    hash_key(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), words, &first, &second)
    return int(first).to_bytes(8, "little") + int(second).to_bytes(8, "little")


cdef class Block:
    """The batches of one call, with their buffers held, and an entry for each of their records."""

    cdef Span* spans
    cdef Entry* entries
    cdef Py_ssize_t span_count
    cdef Py_ssize_t held_count
    cdef Py_ssize_t entry_count
    cdef Py_ssize_t entry_max

    def __cinit__(self, list batches not None):
        cdef Py_ssize_t number, size
        cdef Span* span
        # What converts a number may be the caller's code.
        cdef tuple kept = tuple(batches)
        self.spans = NULL
        self.entries = NULL
        self.span_count = len(kept)
        self.held_count = self.entry_count = self.entry_max = 0
        if not self.span_count:
            return
        self.spans = <Span*>PyMem_RawCalloc(self.span_count, sizeof(Span))
        if self.spans == NULL:
            raise MemoryError(f"no memory for {self.span_count} batches")
        for number in range(self.span_count):
            span = &self.spans[number]
            (
                data, span.count, span.base_offset, span.last_offset_delta, span.base_timestamp, span.max_timestamp,
                span.flags,
            ) = kept[number]
            PyObject_GetBuffer(data, &span.view, PyBUF_SIMPLE)
            self.held_count += 1
            size = span.view.len
            # Impossible batches are skipped: no input can make this allocate for records that do not exist.
            if (
                not 0 <= span.count <= <int64_t>span.last_offset_delta + 1
                or span.count > size // RECORD_SIZE_MIN
                or size > INT32_MAX
            ):
                span.is_damaged = span.has_leftover = True
                continue
            span.walk.buffer = span.walk.at = <const uint8_t*>span.view.buf
            span.walk.stop = span.walk.buffer + size
            span.walk.index = 0
            span.walk.count = span.count
            span.walk.previous_delta = -1
            span.walk.last_offset_delta = span.last_offset_delta
            self.entry_max += span.count
        self.entries = <Entry*>PyMem_RawMalloc(max(self.entry_max, 1) * sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError(f"no memory for {self.entry_max} records")

    def __dealloc__(self):
        cdef Py_ssize_t number
        for number in range(self.held_count):
            PyBuffer_Release(&self.spans[number].view)
        PyMem_RawFree(self.spans)
        PyMem_RawFree(self.entries)

    cdef void read(self, const uint64_t* secret) noexcept nogil:
        """Makes an entry for each record of every readable batch."""
        cdef Py_ssize_t number
        cdef Span* span
        for number in range(self.span_count):
            span = &self.spans[number]
            span.entry = self.entry_count
            if not span.is_damaged and not self.read_batch(span, secret):
                span.is_damaged = True
                self.entry_count = span.entry

    cdef bint read_batch(self, Span* span, const uint64_t* secret) noexcept nogil:
        cdef RecordView record
        cdef Entry* entry
        cdef const uint8_t* start
        cdef const uint8_t* at
        cdef int32_t index
        cdef int32_t size = 0
        cdef int64_t delta = 0
        for index in range(span.count):
            start = span.walk.at
            if unlikely(not next_record(&span.walk, &record)):
                span.problem = record
                return False
            entry = &self.entries[self.entry_count]
            self.entry_count += 1
            entry.start = <uint32_t>(start - span.walk.buffer)
            # After the length, the attributes and the time, which were all checked.
            at = get_varint(start, span.walk.stop, &size)
            entry.rest = <uint32_t>(get_varlong(at + 1, span.walk.stop, &delta) - span.walk.buffer)
            entry.stop = <uint32_t>(record.stop - span.walk.buffer)
            entry.timestamp_delta = record.timestamp_delta
            entry.offset = span.base_offset + record.offset_delta
            entry.has_key = record.key_size >= 0
            entry.is_tombstone = record.value_size < 0
            if entry.has_key:
                hash_key(record.key, record.key_size, secret, &entry.first, &entry.second)
        if unlikely(span.walk.at != span.walk.stop):
            span.has_leftover = True
            return False
        return True

    cdef str damage(self, Span* span):
        """What is wrong with a batch; "" for a sound one."""
        if not span.is_damaged:
            return ""
        if span.has_leftover:
            return f"{span.view.len} bytes that do not hold the {span.count} records of the header"
        return str(corrupt(&span.walk, &span.problem).reason)


@cython.final
cdef class OffsetMap:
    """The last offset of each key, for at most ``capacity`` keys. Not thread-safe.

    ``memory_bytes`` bounds its memory; ``count_max`` is the largest possible number of keys, if known.
    """

    cdef Slot* slots
    cdef uint64_t secret[2]
    cdef readonly Py_ssize_t slot_count
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t count

    def __cinit__(self, Py_ssize_t memory_bytes, count_max=None):
        cdef Py_ssize_t slot_count = max(memory_bytes // SLOT_SIZE, 1)
        if count_max is not None:
            if count_max < 0:
                raise ValueError(f"count_max {count_max}, expected 0 or more")
            slot_count = min(slot_count, count_max + count_max // 4 + 1)
        secret = os.urandom(16)
        memcpy(self.secret, PyBytes_AS_STRING(secret), 16)
        self.slots = <Slot*>PyMem_RawCalloc(slot_count + 1, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError(f"no memory for {slot_count} keys")
        self.slot_count = slot_count
        # Linear probing takes 13 steps for a missing key if a fifth of the slots is free.
        self.capacity = max(slot_count * 4 // 5, 1)
        self.count = 0

    def __dealloc__(self):
        PyMem_RawFree(self.slots)

    def __len__(self):
        return self.count

    cdef inline Slot* slot_of(self, uint64_t first, uint64_t second) noexcept nogil:
        """The slot of a key, or the empty one for it."""
        cdef Py_ssize_t at = <Py_ssize_t>kstore_scale(first, self.slot_count)
        cdef Slot* slot
        while True:
            slot = &self.slots[at]
            if slot.offset == 0 or (slot.first == first and slot.second == second):
                return slot
            at += 1
            # One slot more than counted is never filled, so the search ends even in a full map.
            if at > self.slot_count:
                at = 0

    cdef inline void fetch(self, uint64_t first) noexcept nogil:
        __builtin_prefetch(&self.slots[kstore_scale(first, self.slot_count)])

    cdef bint set_offset(self, uint64_t first, uint64_t second, int64_t offset) noexcept nogil:
        """False if no space is left for another key."""
        cdef Slot* slot = self.slot_of(first, second)
        if slot.offset == 0:
            if self.count >= self.capacity:
                return False
            slot.first = first
            slot.second = second
            self.count += 1
        if slot.offset <= offset:
            slot.offset = offset + 1
        return True

    def put(self, bytes key not None, int64_t offset):
        """Notes that ``key`` is at ``offset``; False if no space is left for another key."""
        cdef uint64_t first, second
        hash_key(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), self.secret, &first, &second)
        return self.set_offset(first, second, offset)

    def get(self, bytes key not None):
        """The last offset of ``key``, or -1."""
        cdef uint64_t first, second
        hash_key(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), self.secret, &first, &second)
        return self.slot_of(first, second).offset - 1

    def put_block(self, list batches not None, int64_t start_offset):
        """Notes the keys of all records from ``start_offset`` on, in order, while space is left.

        A batch is (records, count, base_offset, last_offset_delta, base_timestamp, max_timestamp, flags); the map
        ignores what it does not need. Returns the offset of the first record without space, or -1, and the numbers of
        the unreadable batches, of which nothing is noted.
        """
        cdef Block block = Block(batches)
        cdef Py_ssize_t number
        cdef int64_t refused
        with nogil:
            block.read(self.secret)
            refused = self.put_entries(block, start_offset)
        return refused, [number for number in range(block.span_count) if block.spans[number].is_damaged]

    cdef int64_t put_entries(self, Block block, int64_t start_offset) noexcept nogil:
        cdef Py_ssize_t number
        cdef Entry* entry
        for number in range(min(block.entry_count, <Py_ssize_t>AHEAD)):
            if block.entries[number].has_key:
                self.fetch(block.entries[number].first)
        for number in range(block.entry_count):
            if number + AHEAD < block.entry_count and block.entries[number + AHEAD].has_key:
                self.fetch(block.entries[number + AHEAD].first)
            entry = &block.entries[number]
            if entry.has_key and entry.offset >= start_offset:
                if not self.set_offset(entry.first, entry.second, entry.offset):
                    return entry.offset
        return -1

    def filter_block(self, list batches not None, int64_t last_offset, int64_t horizon):
        """Decides which records of each batch stay; returns the bytes of the batches that change.

        A batch is as in ``put_block``. Its flags: 1 all records stay; 2 tombstones go; 4 it has a delete horizon, which
        is its base timestamp; 8 it gets one in any case; 16 its records have its max timestamp; 32 records without a
        key stay. A record stays if it is after ``last_offset``, the map's end, or if its key has no later record, and
        it is no tombstone that goes. A batch that keeps a tombstone and has no horizon gets ``horizon``.

        Returns a FilteredBatch for each batch, and the output: for each rewritten batch 61 free bytes and the records.
        """
        cdef Block block = Block(batches)
        cdef Py_ssize_t number, size = 0
        cdef Span* span
        cdef Py_buffer view
        with nogil:
            block.read(self.secret)
            self.choose(block, last_offset)
            for number in range(block.span_count):
                size += self.settle(block, &block.spans[number], horizon)
        output = bytearray(size)
        PyObject_GetBuffer(output, &view, PyBUF_WRITABLE)
        try:
            with nogil:
                self.write(block, <uint8_t*>view.buf)
        finally:
            PyBuffer_Release(&view)
        results = []
        for number in range(block.span_count):
            span = &block.spans[number]
            results.append(
                FilteredBatch(
                    block.damage(span), span.count, span.kept_count, span.tombstone_count, span.keyless_count,
                    bool(span.is_rewritten), bool(span.has_horizon), span.new_base, span.new_max,
                    span.out_start, span.out_stop,
                )
            )
        return results, output

    cdef void choose(self, Block block, int64_t last_offset) noexcept nogil:
        cdef Py_ssize_t number, at, stop, ahead
        cdef Span* span
        cdef Entry* entry
        cdef Slot* slot
        for number in range(min(block.entry_count, <Py_ssize_t>AHEAD)):
            if block.entries[number].has_key:
                self.fetch(block.entries[number].first)
        for number in range(block.span_count):
            span = &block.spans[number]
            if span.is_damaged:
                continue
            stop = span.entry + span.count
            for at in range(span.entry, stop):
                ahead = at + AHEAD
                if ahead < block.entry_count and block.entries[ahead].has_key:
                    self.fetch(block.entries[ahead].first)
                entry = &block.entries[at]
                if span.flags & KEEP_ALL or entry.offset > last_offset:
                    entry.is_kept = True
                elif not entry.has_key:
                    entry.is_kept = (span.flags & KEEP_KEYLESS) != 0
                    span.keyless_count += not entry.is_kept
                else:
                    slot = self.slot_of(entry.first, entry.second)
                    entry.is_kept = slot.offset <= entry.offset + 1 and not (
                        entry.is_tombstone and span.flags & DROP_TOMBSTONES
                    )
                if entry.is_kept:
                    span.kept_count += 1
                    span.tombstone_count += entry.is_tombstone

    cdef Py_ssize_t settle(self, Block block, Span* span, int64_t horizon) noexcept nogil:
        """Decides whether a batch is rewritten, and how much space that needs at most."""
        cdef Py_ssize_t at, size
        cdef Entry* entry
        cdef int64_t timestamp
        cdef bint is_first = True, gets_horizon
        span.has_horizon = (span.flags & HAS_HORIZON) != 0
        span.new_base = span.base_timestamp
        span.new_max = span.max_timestamp
        if span.is_damaged or not span.kept_count:
            return 0
        gets_horizon = not span.has_horizon and (span.tombstone_count > 0 or (span.flags & NEEDS_HORIZON) != 0)
        if span.kept_count == span.count and not gets_horizon:
            return 0
        span.is_rewritten = True
        if gets_horizon:
            span.has_horizon = True
            span.new_base = horizon
        size = HEADER_SIZE
        if not span.flags & LOG_APPEND_TIME:
            span.new_max = -1
        for at in range(span.entry, span.entry + span.count):
            entry = &block.entries[at]
            if not entry.is_kept:
                continue
            timestamp = <int64_t>(<uint64_t>span.base_timestamp + <uint64_t>entry.timestamp_delta)
            if span.flags & LOG_APPEND_TIME:
                timestamp = span.max_timestamp
            # From here on the absolute time.
            entry.timestamp_delta = timestamp
            if is_first and not span.has_horizon:
                span.new_base = timestamp
            is_first = False
            if timestamp > span.new_max:
                span.new_max = timestamp
            size += entry.stop - entry.start + GROWTH_MAX
        return size

    cdef void write(self, Block block, uint8_t* output) noexcept nogil:
        cdef Py_ssize_t number, at, rest, body
        cdef Span* span
        cdef Entry* entry
        cdef uint8_t* to = output
        cdef int64_t delta
        for number in range(block.span_count):
            span = &block.spans[number]
            if not span.is_rewritten:
                continue
            to += HEADER_SIZE
            span.out_start = to - output
            for at in range(span.entry, span.entry + span.count):
                entry = &block.entries[at]
                if not entry.is_kept:
                    continue
                delta = <int64_t>(<uint64_t>entry.timestamp_delta - <uint64_t>span.new_base)
                rest = entry.stop - entry.rest
                body = 1 + size_of_varint(delta) + rest
                to = put_varint(to, body)
                to[0] = 0
                to = put_varint(to + 1, delta)
                memcpy(to, span.walk.buffer + entry.rest, rest)
                to += rest
            span.out_stop = to - output


assert sizeof(Slot) == SLOT_SIZE
assert sizeof(Entry) == 48
