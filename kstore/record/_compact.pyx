# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The compiled part of compaction: a map from keys to their last offsets, and the choice among a block's records.

    slot   first, second   uint64   128-bit hash of the key (SipHash-2-4 with a secret of the map's own)
           offset          int64    the last offset of the key, plus 1: 0 is an empty slot

The key itself is not kept: two keys with one hash would count as one, which among 2^32 keys happens with a
probability of 2^-65, and cannot be provoked because the secret is random. The map grows with its keys, so that those of a
log with few keys stay in the processor's cache.

A *block* is a list of batches with uncompressed records, about 1 MiB of them. All work for the records of a block is
one call without the GIL, because releasing it can cost 5 ms. As in the codec, every length is checked before it is
used. Nothing of an unreadable batch enters the map.
"""

import os
from collections import namedtuple

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from kstore.record._layout cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    RECORD_SIZE_MIN,
)

from kstore.errors import CorruptRecordError

cdef extern from *:
    """
    static inline size_t kstore_scale(unsigned long long hash, size_t count) {
        return (size_t)(((unsigned __int128)hash * count) >> 64);
    }
    """
    int __builtin_clzll(uint64_t value) nogil
    void __builtin_prefetch(const void* address) nogil
    bint unlikely(bint condition) nogil
    Py_ssize_t PY_SSIZE_T_MAX
    size_t kstore_scale(uint64_t hash, size_t count) nogil

cdef enum:
    # How much a record may grow when its time is stored relative to another base: the delta and the length before it.
    GROWTH_MAX = 14
    SLOT_SIZE = 24
    # A map begins with at most this many slots, and grows fourfold.
    SLOTS_FIRST = 1 << 16
    # How far ahead of its use a slot is fetched into the cache.
    AHEAD = 16
    # In place of an offset: bytes that are not the batches they were said to be.
    NOT_BATCHES = -2
    # In place of the count of a run: some of it changes.
    SOME_CHANGES = -1

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
include "_runs_head.pxi"
include "_siphash.pxi"
include "_huge_pages.pxi"

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


include "_compact_block.pxi"


cdef Slot* new_slots(Py_ssize_t count) noexcept nogil:
    """That many empty slots and one more, or NULL."""
    cdef Slot* slots = <Slot*>PyMem_RawCalloc(count + 1, sizeof(Slot))
    if slots != NULL:
        kstore_advise_huge(slots, (count + 1) * sizeof(Slot))
    return slots


@cython.final
cdef class OffsetMap:
    """The last offset of each key, for at most ``capacity`` keys. Not thread-safe.

    ``memory_bytes`` bounds its memory, and while it grows to that size a quarter more; ``count_max`` is the largest
    possible number of keys, if known.
    """

    cdef Slot* slots
    # How many slots there are now, and with how many keys it grows; ``slot_count`` is how many it may have.
    cdef Py_ssize_t size
    cdef Py_ssize_t grows_at
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
        self.slot_count = slot_count
        self.size = slot_count
        while self.size > SLOTS_FIRST:
            self.size = (self.size + 3) // 4
        self.slots = new_slots(self.size)
        if self.slots == NULL:
            raise MemoryError(f"no memory for {self.size} keys")
        self.grows_at = self.size * 4 // 5 if self.size < slot_count else PY_SSIZE_T_MAX
        # Linear probing takes 13 steps for a missing key if a fifth of the slots is free.
        self.capacity = max(slot_count * 4 // 5, 1)
        self.count = 0

    def __dealloc__(self):
        PyMem_RawFree(self.slots)

    def __len__(self):
        return self.count

    cdef inline Slot* slot_of(self, uint64_t first, uint64_t second) noexcept nogil:
        """The slot of a key, or the empty one for it."""
        cdef Py_ssize_t at = <Py_ssize_t>kstore_scale(first, self.size)
        cdef Slot* slot
        while True:
            slot = &self.slots[at]
            if slot.offset == 0 or (slot.first == first and slot.second == second):
                return slot
            at += 1
            # One slot more than counted is never filled, so the search ends even in a full map.
            if at > self.size:
                at = 0

    cdef inline void fetch(self, uint64_t first) noexcept nogil:
        __builtin_prefetch(&self.slots[kstore_scale(first, self.size)])

    cdef bint set_offset(self, uint64_t first, uint64_t second, int64_t offset) noexcept nogil:
        """False if no space is left for another key."""
        cdef Slot* slot = self.slot_of(first, second)
        if slot.offset == 0:
            if self.count >= self.capacity:
                return False
            if self.count >= self.grows_at:
                if not self.grow():
                    return False
                slot = self.slot_of(first, second)
            slot.first = first
            slot.second = second
            self.count += 1
        if slot.offset <= offset:
            slot.offset = offset + 1
        return True

    cdef bint grow(self) noexcept nogil:
        """Makes it larger; False without memory for that."""
        cdef Slot* old = self.slots
        cdef Py_ssize_t old_size = self.size, number
        cdef Py_ssize_t size = min(4 * old_size, self.slot_count)
        cdef Slot* slots = new_slots(size)
        if slots == NULL:
            return False
        self.slots = slots
        self.size = size
        self.grows_at = size * 4 // 5 if size < self.slot_count else PY_SSIZE_T_MAX
        for number in range(old_size + 1):
            if old[number].offset:
                self.slot_of(old[number].first, old[number].second)[0] = old[number]
        PyMem_RawFree(old)
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
        cdef list damaged = []
        with nogil:
            block.read(self.secret)
            refused = self.put_entries(block, start_offset)
        for number in range(block.span_count):
            if block.spans[number].is_damaged:
                damaged.append(number)
        return refused, damaged

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

    def put_run(
        self, bytes data not None, Py_ssize_t start, Py_ssize_t stop, int64_t start_offset, int64_t stop_offset
    ):
        """Notes the keys of a run (``_runs.Run``), bytes ``start`` to ``stop`` of ``data``, in order, while space is left:
        of records from ``start_offset`` on, up to the first batch that ends at or above ``stop_offset``.

        Markers have no keys. Returns the offset of the first record without space, or -1.
        """
        cdef const uint8_t* first
        cdef int64_t refused
        if not 0 <= start <= stop <= PyBytes_GET_SIZE(data):
            raise ValueError(f"bytes {start} to {stop}, expected some of the {PyBytes_GET_SIZE(data)} there are")
        first = <const uint8_t*>PyBytes_AS_STRING(data)
        with nogil:
            refused = self.put_batches(first + start, first + stop, start_offset, stop_offset)
        if refused == NOT_BATCHES:
            raise CorruptRecordError("bytes that are not a run")
        return refused

    cdef int64_t put_batches(
        self, const uint8_t* at, const uint8_t* stop, int64_t start_offset, int64_t stop_offset
    ) noexcept nogil:
        # What was fetched and not put: those from ``put_count`` to ``count``, each at its number modulo AHEAD.
        cdef Slot[AHEAD] fetched
        cdef Slot* slot
        cdef Py_ssize_t count = 0, put_count = 0
        cdef Head head
        cdef Walk walk
        cdef RecordView record
        cdef int64_t offset
        while at < stop:
            if unlikely(stop - at < HEADER_SIZE or not read_head(at, &head) or head.size > stop - at):
                return NOT_BATCHES
            if head.last_offset >= stop_offset:
                break
            if unlikely(head.attributes & ATTRIBUTE_CODEC or not begin_records(&walk, at, &head)):
                return NOT_BATCHES
            at += head.size
            if head.attributes & ATTRIBUTE_CONTROL or head.last_offset < start_offset:
                continue
            while walk.index < walk.count:
                if unlikely(not next_record(&walk, &record)):
                    return NOT_BATCHES
                offset = head.base_offset + record.offset_delta
                if record.key_size < 0 or offset < start_offset:
                    continue
                slot = &fetched[count % AHEAD]
                if count - put_count == AHEAD:
                    if not self.set_offset(slot.first, slot.second, slot.offset):
                        return slot.offset
                    put_count += 1
                hash_key(record.key, record.key_size, self.secret, &slot.first, &slot.second)
                slot.offset = offset
                self.fetch(slot.first)
                count += 1
        while put_count < count:
            slot = &fetched[put_count % AHEAD]
            if not self.set_offset(slot.first, slot.second, slot.offset):
                return slot.offset
            put_count += 1
        return -1

    def keeps_run(
        self, bytes data not None, Py_ssize_t start, Py_ssize_t stop, int64_t last_offset, int64_t now_ms, int flags
    ):
        """How many tombstones a run has if ``filter_block`` keeps all its records, and changes none of its batches; else
        -1, as for a run with markers, transactions or empty batches.

        Bytes and ``last_offset`` as in ``put_run`` and ``filter_block``; of the flags only 32 counts, and 2, which holds
        for batches whose delete horizon is not after ``now_ms``.
        """
        cdef const uint8_t* first
        cdef int64_t found
        if not 0 <= start <= stop <= PyBytes_GET_SIZE(data):
            raise ValueError(f"bytes {start} to {stop}, expected some of the {PyBytes_GET_SIZE(data)} there are")
        first = <const uint8_t*>PyBytes_AS_STRING(data)
        with nogil:
            found = self.keeps_batches(first + start, first + stop, last_offset, now_ms, flags)
        if found == NOT_BATCHES:
            raise CorruptRecordError("bytes that are not a run")
        return found

    cdef int64_t keeps_batches(
        self, const uint8_t* at, const uint8_t* stop, int64_t last_offset, int64_t now_ms, int flags
    ) noexcept nogil:
        cdef Slot[AHEAD] fetched
        cdef Slot* slot
        cdef Py_ssize_t count = 0, seen_count = 0
        cdef Head head
        cdef Walk walk
        cdef RecordView record
        cdef int64_t offset, tombstone_count = 0
        cdef bint has_horizon, is_expired
        while at < stop:
            if unlikely(stop - at < HEADER_SIZE or not read_head(at, &head) or head.size > stop - at):
                return NOT_BATCHES
            if unlikely(head.attributes & ATTRIBUTE_CODEC or not begin_records(&walk, at, &head)):
                return NOT_BATCHES
            if head.attributes & (ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL) or not walk.count:
                return SOME_CHANGES
            has_horizon = (head.attributes & ATTRIBUTE_DELETE_HORIZON) != 0
            is_expired = has_horizon and flags & DROP_TOMBSTONES and <int64_t>big_endian_64(at + 27) <= now_ms
            at += head.size
            while walk.index < walk.count:
                if unlikely(not next_record(&walk, &record)):
                    return NOT_BATCHES
                offset = head.base_offset + record.offset_delta
                if record.value_size < 0:
                    # It needs a horizon, or may have to go.
                    if not has_horizon or (is_expired and offset <= last_offset and record.key_size >= 0):
                        return SOME_CHANGES
                    tombstone_count += 1
                if offset > last_offset:
                    continue
                if record.key_size < 0:
                    if not flags & KEEP_KEYLESS:
                        return SOME_CHANGES
                    continue
                slot = &fetched[count % AHEAD]
                if count - seen_count == AHEAD:
                    if self.slot_of(slot.first, slot.second).offset > slot.offset + 1:
                        return SOME_CHANGES
                    seen_count += 1
                hash_key(record.key, record.key_size, self.secret, &slot.first, &slot.second)
                slot.offset = offset
                self.fetch(slot.first)
                count += 1
        while seen_count < count:
            slot = &fetched[seen_count % AHEAD]
            if self.slot_of(slot.first, slot.second).offset > slot.offset + 1:
                return SOME_CHANGES
            seen_count += 1
        return tombstone_count

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
