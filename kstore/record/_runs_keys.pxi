"""What the keys of many records are like, in fixed memory. Part of _runs.pyx.

Three summaries of hashes: a HyperLogLog for the number of distinct keys; counters of the most frequent ones (Misra and
Gries; a full table loses the median of some of its counts); and of a sample of the keys, chosen by their hashes, how
many bytes their records take and how many the last one takes (Wegman's adaptive sampling).

Keys made to collide cannot make it slow: a search looks at PROBES_MAX slots at most, and the sample is thinned at most
LEVEL_MAX times.
"""

cdef enum:
    REGISTER_BITS = 14
    REGISTER_COUNT = 1 << REGISTER_BITS
    FREQUENT_SLOTS = 2048
    # Fuller tables have long searches.
    FREQUENT_MAX = 1024
    SAMPLE_SLOTS = 16384
    SAMPLE_MAX = 8192
    PROBES_MAX = 128
    # The most bytes of a frequent key.
    KEY_BYTES_MAX = 48
    # How many counts a median is taken of.
    MEDIAN_OF = 64
    # The last bits of a hash choose the sample, the first ones a register: more levels than that would share them.
    LEVEL_MAX = 64 - REGISTER_BITS

cdef uint64_t HASH_FACTOR = 0xC6A4A7935BD1E995
cdef uint64_t SLOT_FACTOR = 0x9E3779B97F4A7C15

# Empty with a count of 0.
cdef struct Frequent:
    uint64_t hash
    int64_t count
    Py_ssize_t size
    uint8_t[KEY_BYTES_MAX] key

# Empty with a total of 0.
cdef struct Sampled:
    uint64_t hash
    int64_t total
    int64_t last


cdef inline uint64_t key_hash(const uint8_t* key, Py_ssize_t size) noexcept nogil:
    """MurmurHash64A, by words in network order."""
    cdef const uint8_t* stop = key + size
    cdef uint64_t word
    cdef uint64_t hashed = <uint64_t>size * HASH_FACTOR
    while stop - key >= 8:
        word = big_endian_64(key) * HASH_FACTOR
        hashed = (hashed ^ (word ^ word >> 47) * HASH_FACTOR) * HASH_FACTOR
        key += 8
    if key < stop:
        word = 0
        while key < stop:
            word = word << 8 | key[0]
            key += 1
        hashed = (hashed ^ word) * HASH_FACTOR
    hashed = (hashed ^ hashed >> 47) * HASH_FACTOR
    return hashed ^ hashed >> 47


cdef int64_t median(int64_t* counts, Py_ssize_t size) noexcept nogil:
    """The lower median; sorts ``counts``."""
    cdef Py_ssize_t at, place
    cdef int64_t count
    for at in range(1, size):
        count = counts[at]
        place = at
        while place > 0 and counts[place - 1] > count:
            counts[place] = counts[place - 1]
            place -= 1
        counts[place] = count
    return counts[(size - 1) // 2]


@cython.final
@cython.no_gc
cdef class KeySketch:
    """The keys of the records that were added. Not thread-safe."""

    # Whether records go into the sample too: those of the active segment do not, which no compaction changes.
    cdef public bint is_sampling
    # How many bits of a sampled key's hash are 0: one key of 2 ** level is in the sample.
    cdef readonly int level
    cdef readonly int64_t keyed_count
    # How much lower than right the count of a frequent key may be; one that is not listed has at most as many records.
    cdef readonly int64_t missed_count
    cdef Py_ssize_t _frequent_count
    cdef Py_ssize_t _sampled_count
    cdef uint8_t[REGISTER_COUNT] _registers
    cdef Frequent[FREQUENT_SLOTS] _frequent
    cdef Frequent[FREQUENT_SLOTS] _frequent_before
    cdef Sampled[SAMPLE_SLOTS] _sampled
    cdef Sampled[SAMPLE_SLOTS] _sampled_before

    def add(self, Run run not None):
        """Adds the records of a run that is not compressed, without markers."""
        cdef Head head
        cdef Walk walk
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.start
        cdef const uint8_t* stop = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.stop
        cdef const uint8_t* following
        if run.is_compressed:
            raise ValueError("a compressed run, expected a plain one")
        while at < stop:
            following = next_head(at, stop, &head)
            if not head.attributes & ATTRIBUTE_CONTROL and begin_records(&walk, at, &head):
                self._add(&walk)
            at = following

    def add_records(self, payload not None, int32_t count, int32_t last_offset_delta):
        """Adds the ``count`` records of a batch in ``payload``, up to the first that is not sound."""
        cdef Py_buffer view
        cdef Walk walk
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            walk.buffer = walk.at = <const uint8_t*>view.buf
            walk.stop = walk.at + view.len
            walk.index = 0
            walk.count = count
            walk.previous_delta = -1
            walk.last_offset_delta = last_offset_delta
            self._add(&walk)
        finally:
            PyBuffer_Release(&view)

    def add_key(self, bytes key not None, Py_ssize_t record_size):
        """Adds a record."""
        if record_size < 1:
            raise ValueError(f"a record of {record_size} bytes, expected at least 1")
        self._note(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), record_size)

    def registers(self):
        """Those of the HyperLogLog: bytes, from 0 to 51."""
        return PyBytes_FromStringAndSize(<char*>self._registers, REGISTER_COUNT)

    def frequent(self, Py_ssize_t count_max):
        """The most frequent keys, as rows of (count, hash, size, up to KEY_BYTES_MAX bytes of the key)."""
        cdef Py_ssize_t slot
        cdef list rows = []
        for slot in range(FREQUENT_SLOTS):
            if self._frequent[slot].count:
                rows.append((
                    self._frequent[slot].count, self._frequent[slot].hash, self._frequent[slot].size,
                    PyBytes_FromStringAndSize(
                        <char*>self._frequent[slot].key, min(self._frequent[slot].size, KEY_BYTES_MAX)
                    ),
                ))
        rows.sort(reverse=True)
        return rows[:count_max]

    def sampled(self):
        """How many keys are in the sample, the bytes of their records, and of the last record of each."""
        cdef Py_ssize_t slot
        cdef int64_t total = 0
        cdef int64_t last = 0
        for slot in range(SAMPLE_SLOTS):
            total += self._sampled[slot].total
            last += self._sampled[slot].last
        return self._sampled_count, total, last

    cdef void _add(self, Walk* walk) noexcept:
        cdef RecordView record
        cdef const uint8_t* start
        while walk.index < walk.count:
            start = walk.at
            if unlikely(not next_record(walk, &record)):
                return
            if record.key_size >= 0:
                self._note(record.key, record.key_size, walk.at - start)

    cdef inline void _note(self, const uint8_t* key, Py_ssize_t size, int64_t record_size) noexcept:
        cdef uint64_t hashed = key_hash(key, size)
        # The first bits choose a register, which holds the place of the first 1 among the others.
        cdef Py_ssize_t register = hashed >> (64 - REGISTER_BITS)
        cdef uint8_t rank = __builtin_clzll(hashed << REGISTER_BITS | <uint64_t>1 << (REGISTER_BITS - 1)) + 1
        self.keyed_count += 1
        if rank > self._registers[register]:
            self._registers[register] = rank
        self._count(hashed, key, size)
        if self.is_sampling and not hashed & ((<uint64_t>1 << self.level) - 1):
            self._sample(hashed, record_size)

    cdef void _count(self, uint64_t hashed, const uint8_t* key, Py_ssize_t size) noexcept:
        cdef Py_ssize_t slot = hashed * SLOT_FACTOR >> 53
        cdef Py_ssize_t probe
        for probe in range(PROBES_MAX):
            if self._frequent[slot].count == 0:
                self._frequent[slot].hash = hashed
                self._frequent[slot].count = 1
                self._frequent[slot].size = size
                memcpy(self._frequent[slot].key, key, min(size, KEY_BYTES_MAX))
                self._frequent_count += 1
                if self._frequent_count > FREQUENT_MAX:
                    self._lower()
                return
            if self._frequent[slot].hash == hashed:
                self._frequent[slot].count += 1
                return
            slot = (slot + 1) % FREQUENT_SLOTS
        self.missed_count += 1

    cdef void _lower(self) noexcept:
        """Subtracts from all counts the median of some of them: about half of the keys go."""
        cdef int64_t[MEDIAN_OF] some
        cdef Py_ssize_t found = 0
        cdef Py_ssize_t slot, place
        cdef int64_t less
        memcpy(self._frequent_before, self._frequent, sizeof(self._frequent))
        memset(self._frequent, 0, sizeof(self._frequent))
        self._frequent_count = 0
        for slot in range(FREQUENT_SLOTS):
            if self._frequent_before[slot].count and found < MEDIAN_OF:
                some[found] = self._frequent_before[slot].count
                found += 1
        less = median(some, found)
        self.missed_count += less
        for slot in range(FREQUENT_SLOTS):
            if self._frequent_before[slot].count <= less:
                continue
            place = self._frequent_before[slot].hash * SLOT_FACTOR >> 53
            while self._frequent[place].count:
                place = (place + 1) % FREQUENT_SLOTS
            self._frequent[place] = self._frequent_before[slot]
            self._frequent[place].count -= less
            self._frequent_count += 1

    cdef void _sample(self, uint64_t hashed, int64_t record_size) noexcept:
        cdef Py_ssize_t slot = hashed * SLOT_FACTOR >> 50
        cdef Py_ssize_t probe
        for probe in range(PROBES_MAX):
            if self._sampled[slot].total == 0:
                if self._sampled_count > SAMPLE_MAX and self.level == LEVEL_MAX:
                    return  # its other keys were made for it
                self._sampled[slot].hash = hashed
                self._sampled_count += 1
            elif self._sampled[slot].hash != hashed:
                slot = (slot + 1) % SAMPLE_SLOTS
                continue
            self._sampled[slot].total += record_size
            self._sampled[slot].last = record_size
            if self._sampled_count > SAMPLE_MAX and self.level < LEVEL_MAX:
                self._thin()
            return

    cdef void _thin(self) noexcept:
        """Keeps about half of the sampled keys. The level is below the last one."""
        cdef Py_ssize_t slot, place
        memcpy(self._sampled_before, self._sampled, sizeof(self._sampled))
        memset(self._sampled, 0, sizeof(self._sampled))
        self._sampled_count = 0
        self.level += 1
        for slot in range(SAMPLE_SLOTS):
            if not self._sampled_before[slot].total or self._sampled_before[slot].hash & (
                (<uint64_t>1 << self.level) - 1
            ):
                continue
            place = self._sampled_before[slot].hash * SLOT_FACTOR >> 50
            while self._sampled[place].total:
                place = (place + 1) % SAMPLE_SLOTS
            self._sampled[place] = self._sampled_before[slot]
            self._sampled_count += 1


def greatest_bytes(bytes one not None, bytes other not None):
    """The greater byte in each place of two ``bytes`` of one size: the registers of both sketches together."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(one)
    cdef Py_ssize_t at
    cdef bytes merged
    cdef uint8_t* out
    cdef const uint8_t* left = <const uint8_t*>PyBytes_AS_STRING(one)
    cdef const uint8_t* right = <const uint8_t*>PyBytes_AS_STRING(other)
    if PyBytes_GET_SIZE(other) != size:
        raise ValueError(f"{PyBytes_GET_SIZE(other)} bytes, expected {size}")
    merged = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AS_STRING(merged)
    for at in range(size):
        out[at] = max(left[at], right[at])
    return merged
