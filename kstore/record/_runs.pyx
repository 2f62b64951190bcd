# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Runs: stretches of whole, plain batches of version 2, checked by one compiled call. No I/O here.

A run is what needs no decision: sizes that fit, CRCs that are right, offsets that rise, records whose structure holds.
It ends before the first batch that is anything else (damaged, compressed, of an older version, misplaced), and says
why; the walk over single batches (walk.py) then decides what that batch is. So a run accepts nothing that the walk
does not accept, and it may end early at any batch. The two are held together by tests.

Memory that another thread could change must not be walked without the GIL, so all of it is ``bytes``.
"""

from collections import namedtuple

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cimport cython

from kstore.record._codec cimport ConsumerRecord, Record, checked_origin, forbid_new
from kstore.record._layout cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    RECORD_SIZE_MIN,
)

from kstore.errors import CorruptRecordError
from kstore.record._codec import check_records
from kstore.record.batch import batch_crc, parse_v2

cdef extern from *:
    # gcc's and clang's, and Cython's own.
    int __builtin_clzll(uint64_t value) nogil
    bint unlikely(bint condition) nogil

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char* data, Py_ssize_t size, const char* errors)
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    # Index into TIMESTAMP_TYPES.
    LOG_APPEND_TIME = 1
    # A run ends when it has this many large batches: their CRCs are computed when the GIL is held again.
    LARGE_COUNT_MAX = 64
    # To get the GIL back can take 5 ms when another thread is busy: it is released only for longer work.
    SIZE_WITHOUT_GIL = 1 << 20

# The offsets that one segment can hold (walk.OFFSET_COUNT_MAX).
cdef int64_t OFFSET_COUNT_MAX = <int64_t>1 << 31

# Why a run ended.
cdef enum:
    DATA_END = 0
    SIZE_LIMIT
    BATCH_CUT
    OFFSET_STOP
    BAD_HEADER
    OTHER_FORMAT
    COMPRESSED
    BAD_OFFSETS
    LONE_GAP
    BAD_CRC
    BAD_RECORDS

cdef tuple REASONS = (
    "end", "limit", "cut", "stop", "header", "format", "codec", "offsets", "gap", "crc", "records",
)

include "_codec_varint.pxi"
include "_codec_read.pxi"
include "_codec_objects.pxi"
include "_crc.pxi"
include "_runs_head.pxi"


def checksum(data, bint by_table=False):
    """CRC-32C of ``data`` (bytes-like), as runs compute it for small batches; ``by_table``: without the instruction."""
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    at = <const uint8_t*>view.buf
    crc = kstore_crc_by_table(0, at, view.len) if by_table else small_crc(at, view.len)
    PyBuffer_Release(&view)
    return crc


# A walk over batches: ``at`` to ``stop`` is there, ``end`` is where the range ends, behind ``stop`` or there.
cdef struct RunWalk:
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t stop
    Py_ssize_t end
    Py_ssize_t limit
    int64_t next_offset
    int64_t offset_stop
    int64_t base_stop
    int64_t known_end
    int64_t base_offset
    Py_ssize_t batch_count
    int64_t record_count
    bint has_gap
    # Whether a producer with an id wrote one of the batches.
    bint has_producers
    # Whether batches may be compressed, and whether those of this run are: all of them, or none.
    bint with_compressed
    bint is_compressed
    int32_t leader_epoch_max
    Py_ssize_t large_count


cdef bint has_whole_records(const uint8_t* batch, Head* head) noexcept nogil:
    """Whether the structure of every record holds, and records and bytes end together (``check_records``)."""
    cdef Walk walk
    cdef RecordView record
    if not begin_records(&walk, batch, head):
        return False
    while walk.index < walk.count:
        if unlikely(not next_record(&walk, &record)):
            return False
    return walk.at == walk.stop


cdef int judge_gap(RunWalk* run, Head* head) noexcept nogil:
    """Whether the batch at ``run.at``, which begins above the expected offset, can be right (``walk._misplaced``).

    DATA_END if so. Where the bytes at hand cannot tell, the walk decides.
    """
    cdef Head behind
    cdef Py_ssize_t at = run.at + head.size
    if run.offset_stop == INT64_MAX and head.last_offset - run.next_offset >= OFFSET_COUNT_MAX:
        return LONE_GAP
    if run.next_offset < run.known_end <= head.last_offset:
        return LONE_GAP
    if at >= run.end:
        return DATA_END
    if run.stop - at < HEADER_SIZE or run.data[at + MAGIC_POSITION] != MAGIC:
        return LONE_GAP
    if read_head(run.data + at, &behind) and run.next_offset <= behind.base_offset <= head.last_offset:
        return BAD_OFFSETS
    return DATA_END


cdef int walk_batches(RunWalk* run, RunWalk* large) noexcept nogil:
    """Passes plain batches up to the first other one, and returns why it ended there.

    Only the CRC of batches of LARGE_SIZE and more is left open: ``large`` holds the walk as it stood before each.
    """
    cdef const uint8_t* batch
    cdef Head head
    cdef int problem
    cdef bint is_compressed
    while True:
        if run.at >= run.limit:
            return DATA_END if run.at >= run.end else SIZE_LIMIT
        if run.stop - run.at < HEADER_SIZE:
            return BATCH_CUT
        batch = run.data + run.at
        if batch[MAGIC_POSITION] != MAGIC:
            return OTHER_FORMAT
        if not read_head(batch, &head):
            return BAD_HEADER
        if head.size > run.stop - run.at:
            return BATCH_CUT
        if head.base_offset < run.next_offset or head.last_offset >= run.offset_stop:
            return BAD_OFFSETS
        if head.base_offset >= run.base_stop:
            return OFFSET_STOP
        if head.base_offset != run.next_offset:
            problem = judge_gap(run, &head)
            if problem != DATA_END:
                return problem
        is_compressed = (head.attributes & ATTRIBUTE_CODEC) != 0
        if is_compressed and not run.with_compressed or run.batch_count and is_compressed != run.is_compressed:
            return COMPRESSED
        if head.size >= LARGE_SIZE:
            if run.large_count == LARGE_COUNT_MAX:
                return SIZE_LIMIT
            large[run.large_count] = run[0]
            run.large_count += 1
        elif unlikely(small_crc(batch + CRC_START, head.size - CRC_START) != big_endian_32(batch + 17)):
            return BAD_CRC
        if unlikely(not is_compressed and not has_whole_records(batch, &head)):
            return BAD_RECORDS
        if run.batch_count == 0:
            run.base_offset = head.base_offset
            run.is_compressed = is_compressed
        run.has_gap |= head.base_offset != run.next_offset
        run.has_producers |= <int64_t>big_endian_64(batch + 43) >= 0
        run.leader_epoch_max = max(run.leader_epoch_max, <int32_t>big_endian_32(batch + 12))
        run.batch_count += 1
        run.record_count += head.record_count
        run.next_offset = head.last_offset + 1
        run.at += head.size


def walk_run(
    bytes data not None,
    Py_ssize_t start,
    Py_ssize_t size_left,
    Py_ssize_t position,
    int64_t next_offset,
    Py_ssize_t size_max,
    int64_t offset_stop,
    int64_t known_end,
    int64_t base_stop,
    bint with_compressed=False,
):
    """The Run of batches from byte ``start`` of ``data`` on; empty if the first batch there is not plain.

    Args:
        size_left: bytes from there to the end of the range that is walked, of which ``data`` may hold fewer.
        position: where ``data`` begins in its file.
        size_max: the run ends with the batch that reaches this size.
        next_offset, offset_stop, known_end: as in ``walk``.
        base_stop: the run ends before a batch that begins at or above it.
        with_compressed: a run may also be one of compressed batches only, whose records are not checked.
    """
    cdef RunWalk walk
    cdef RunWalk[LARGE_COUNT_MAX] large
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t number, stop
    cdef int reason
    cdef Run run
    if not 0 <= start <= size or size_left < 0:
        raise ValueError(f"start {start}, expected 0 to the {size} bytes there are")
    walk.data = <const uint8_t*>PyBytes_AS_STRING(data)
    walk.at = start
    walk.end = start + min(size_left, PY_SSIZE_T_MAX - start)
    walk.stop = min(size, walk.end)
    walk.limit = start + min(size_max, walk.stop - start)
    walk.next_offset = walk.base_offset = next_offset
    walk.offset_stop = offset_stop
    walk.base_stop = base_stop
    walk.known_end = known_end
    walk.batch_count = walk.record_count = walk.large_count = 0
    walk.has_gap = walk.has_producers = walk.is_compressed = False
    walk.with_compressed = with_compressed
    walk.leader_epoch_max = -1
    if walk.limit - start >= SIZE_WITHOUT_GIL:
        with nogil:
            reason = walk_batches(&walk, large)
    else:
        reason = walk_batches(&walk, large)
    if walk.large_count:
        view = memoryview(data)
        for number in range(walk.large_count):
            # The last one may be that before which the walk ended: its size was checked too.
            stop = large[number].at + LOG_OVERHEAD + <int32_t>big_endian_32(walk.data + large[number].at + 8)
            crc = batch_crc(view[large[number].at + CRC_START : stop])
            if <uint32_t>crc != big_endian_32(walk.data + large[number].at + 17):
                walk = large[number]
                reason = BAD_CRC
                break
    run = Run.__new__(Run)
    run.data = data
    run.position = position
    run.start = start
    run.stop = walk.at
    run.base_offset = walk.base_offset
    run.next_offset = walk.next_offset
    run.batch_count = walk.batch_count
    run.record_count = walk.record_count
    run.has_gap = walk.has_gap
    run.has_producers = walk.has_producers
    run.is_compressed = walk.is_compressed
    run.leader_epoch_max = walk.leader_epoch_max
    run.reason_index = reason
    return run


@cython.final
@cython.no_gc
@cython.freelist(4)
cdef class Run:
    """Whole batches, checked: bytes ``start`` to ``stop`` of ``data``, which begins at ``position`` of its file.

    The first one begins at offset ``base_offset``, the next batch at ``next_offset`` or above; ``has_gap``: offsets
    are missing between them, or before the first. ``record_count`` counts the records of control batches too.
    ``has_producers``: a producer with an id wrote one of them. ``is_compressed``: all of them are compressed, and their
    records are not checked: only ``batches`` gives them. ``leader_epoch_max`` is -1 if all epochs are negative.
    Immutable; ``data`` is kept.
    """

    cdef readonly bytes data
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t stop
    cdef readonly int64_t base_offset
    cdef readonly int64_t next_offset
    cdef readonly Py_ssize_t batch_count
    cdef readonly int64_t record_count
    cdef readonly bint has_gap
    cdef readonly bint has_producers
    cdef readonly bint is_compressed
    cdef readonly int32_t leader_epoch_max
    cdef int8_t reason_index

    @property
    def reason(self):
        """Why it ends: "end" of the range, "limit" of its size, "cut" (the data end within a batch), "stop", or what
        the walk has to decide: "header", "format", "codec", "offsets", "gap", "crc", "records"."""
        return REASONS[self.reason_index]

    def __repr__(self):
        return f"Run({self.batch_count} batches, {self.base_offset} to below {self.next_offset}, {self.reason})"

    def moved_to(self, Py_ssize_t position):
        """The same batches as a run that begins at ``position`` of a file."""
        cdef Run run = Run.__new__(Run)
        run.data = self.data
        run.position = position - self.start
        run.start = self.start
        run.stop = self.stop
        run.base_offset = self.base_offset
        run.next_offset = self.next_offset
        run.batch_count = self.batch_count
        run.record_count = self.record_count
        run.has_gap = self.has_gap
        run.has_producers = self.has_producers
        run.is_compressed = self.is_compressed
        run.leader_epoch_max = self.leader_epoch_max
        run.reason_index = self.reason_index
        return run

    def batches(self):
        """Its batches one by one, each with its position in the file."""
        cdef RunBatches batches = RunBatches.__new__(RunBatches)
        batches.run = self
        batches.at = self.start
        return batches

    def records(self, int64_t first_offset, int64_t stop_offset, array.array tally not None, array.array aborted=None):
        """The Records with offsets in [first_offset, stop_offset), without those of control batches.

        ``tally``: an ``array("q")`` of three, to which the batches that are reached, their records in the window and
        their bytes are added. ``aborted``: see ``RunCursor``.
        """
        cdef RunRecords cursor = RunRecords.__new__(RunRecords)
        cursor.begin(self, first_offset, stop_offset, tally, aborted)
        return cursor

    def values(self, int64_t first_offset, int64_t stop_offset, array.array tally not None, array.array aborted=None):
        """The values of the same records: bytes, or None."""
        cdef RunValues cursor = RunValues.__new__(RunValues)
        cursor.begin(self, first_offset, stop_offset, tally, aborted)
        return cursor


@cython.final
cdef class RunBatches:
    """Iterates over the batches of a run, each with its position in the file. Not thread-safe."""

    cdef Run run
    cdef Py_ssize_t at

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.run.stop:
            raise StopIteration
        position = self.run.position + self.at
        batch = parse_v2(self.run.data, self.at)
        self.at += batch.size
        return position, batch


cdef class RunCursor:
    """What iterators over a run share: the next record whose offset is wanted. Not thread-safe.

    Every length is checked once more on the way, though the bytes cannot have changed. ``aborted`` names the batches
    that are left out, those of aborted transactions: an ``array("q")`` of rows of three, producer id, first offset and
    the greatest last offset of this row and those of the producer before it, sorted by the first two.
    """

    cdef bytes data
    cdef array.array tally
    cdef array.array aborted
    cdef const uint8_t* at
    cdef const uint8_t* stop
    cdef Walk walk
    cdef int64_t first_offset
    cdef int64_t stop_offset
    cdef int64_t first_delta
    cdef int64_t stop_delta
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef int64_t append_time
    cdef int32_t leader_epoch
    cdef int8_t timestamp_type
    # Whether a record's object is being made: still set after a failure, and then the next call starts from ``before``.
    cdef bint is_making
    cdef Place before
    # After the last record that it gave; initially where it begins. It moves only when the record's object exists.
    cdef readonly int64_t next_offset
    # How many it gave.
    cdef readonly int64_t given_count

    cdef int begin(
        self, Run run, int64_t first_offset, int64_t stop_offset, array.array tally, array.array aborted
    ) except -1:
        if run.is_compressed:
            raise ValueError("a run of compressed batches has no records of its own")
        if tally.ob_descr.typecode != c"q" or len(tally) != 3:
            raise ValueError("a tally is an array('q') of three numbers")
        if aborted is not None and (aborted.ob_descr.typecode != c"q" or len(aborted) % 3):
            raise ValueError("aborted transactions are an array('q') of rows of three numbers")
        self.data = run.data
        self.tally = tally
        self.aborted = aborted
        self.at = <const uint8_t*>PyBytes_AS_STRING(self.data) + run.start
        self.stop = <const uint8_t*>PyBytes_AS_STRING(self.data) + run.stop
        self.walk.index = self.walk.count = 0
        self.first_offset = first_offset
        self.stop_offset = stop_offset
        self.next_offset = max(first_offset, run.base_offset)
        self.given_count = 0
        self.is_making = False
        return 0

    @property
    def has_more(self):
        """Whether there may be a record that it has not given, as far as is known without looking at that."""
        return self.is_making or self.walk.index < self.walk.count or self.at < self.stop

    def end(self):
        """Gives no more records."""
        self.finish()

    cdef void finish(self) noexcept:
        self.walk.index = self.walk.count = 0
        self.at = self.stop
        self.is_making = False

    def __iter__(self):
        return self

    cdef inline bint next_view(self, RecordView* view) except -1:
        """Comes to the next record that is wanted; False at the end. ``give`` says that its object was made."""
        if unlikely(self.is_making):
            step_back(&self.walk, &self.before)
            self.is_making = False
        while True:
            while self.walk.index < self.walk.count:
                note_place(&self.before, &self.walk)
                if unlikely(not next_record(&self.walk, view)):
                    error = corrupt(&self.walk, view)
                    self.finish()
                    raise error
                if view.offset_delta >= self.stop_delta:
                    self.finish()
                    return False
                if view.offset_delta >= self.first_delta:
                    self.is_making = True
                    return True
            if self.at >= self.stop:
                return False
            self.enter_batch()

    cdef inline void give(self, int64_t offset) noexcept:
        """The object of the record at ``offset``, to which ``next_view`` came, was made."""
        self.is_making = False
        self.given_count += 1
        self.next_offset = max(self.next_offset, offset + 1)

    cdef int enter_batch(self) except -1:
        """Comes to the next batch; of one that is not wanted the records are passed over."""
        cdef const uint8_t* batch = self.at
        cdef Head head
        cdef int64_t offset
        self.walk.index = self.walk.count = 0
        if unlikely(self.stop - batch < HEADER_SIZE or not read_head(batch, &head) or head.size > self.stop - batch):
            raise CorruptRecordError("a batch changed while it was read")
        self.at = batch + head.size
        offset = self.first_offset
        if head.last_offset < offset:
            return 0
        self.first_offset = head.last_offset + 1
        if head.attributes & ATTRIBUTE_CONTROL:
            return 0
        if self.aborted is not None and is_aborted(self.aborted, batch, &head):
            return 0
        begin_records(&self.walk, batch, &head)
        self.first_delta = max(offset - head.base_offset, <int64_t>0)
        self.stop_delta = self.stop_offset - head.base_offset
        self.describe(batch, &head)
        note_window(self.tally, &head, offset, self.stop_offset)
        return 0

    cdef inline void describe(self, const uint8_t* batch, Head* head) noexcept:
        """Notes what the records of a batch take from its header."""
        self.base_offset = head.base_offset
        self.leader_epoch = <int32_t>big_endian_32(batch + 12)
        self.base_timestamp = <int64_t>big_endian_64(batch + 27)
        self.append_time = <int64_t>big_endian_64(batch + 35)
        self.timestamp_type = LOG_APPEND_TIME if head.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0


@cython.final
@cython.no_gc
cdef class RunRecords(RunCursor):
    """An iterator over the Records of a run; see ``Run.records``. Not thread-safe."""

    cdef tuple _origin

    @property
    def origin(self):
        """The topic and partition, for ConsumerRecords; None for Records."""
        return self._origin

    @origin.setter
    def origin(self, given):
        self._origin = checked_origin(given)

    def __next__(self):
        cdef RecordView view
        cdef Record record
        if not self.next_view(&view):
            raise StopIteration
        record = make_record(self, &view, self._origin)
        self.give(record.offset)
        return record


cdef inline Record make_record(RunCursor cursor, RecordView* view, tuple origin):
    """The Record of a ``view`` into the batch that ``cursor`` entered last; a ConsumerRecord with an ``origin``."""
    cdef Record record
    if origin is None:
        record = Record.__new__(Record)
    else:
        record = ConsumerRecord.__new__(ConsumerRecord)
        record.origin = origin
    record.offset = cursor.base_offset + view.offset_delta
    record.timestamp_type_index = cursor.timestamp_type
    if cursor.timestamp_type == LOG_APPEND_TIME:
        record.timestamp = cursor.append_time
    else:
        record.timestamp = timestamp_of(cursor.base_timestamp, view)
    record.leader_epoch = cursor.leader_epoch
    record.key = field_object(view.key, view.key_size)
    record.value = field_object(view.value, view.value_size)
    # Last, since making them may run the garbage collector, and so code that uses the cursor.
    record.stored_headers = () if view.header_count == 0 else header_objects(view)
    return record


@cython.final
@cython.no_gc
cdef class RunValues(RunCursor):
    """An iterator over the values of a run's records; see ``Run.values``. Not thread-safe."""

    def __next__(self):
        cdef RecordView view
        cdef bytes value
        if not self.next_view(&view):
            raise StopIteration
        value = field_object(view.value, view.value_size)
        self.give(self.base_offset + view.offset_delta)
        return value


include "_runs_find.pxi"
include "_runs_lookup.pxi"
include "_runs_checked.pxi"
include "_runs_notes.pxi"
include "_runs_counts.pxi"
include "_runs_times.pxi"
include "_runs_keys.pxi"
include "_runs_checks.pxi"

forbid_new(Run)
forbid_new(RunBatches)
forbid_new(RunCursor)
forbid_new(RunRecords)
forbid_new(RunValues)
forbid_new(FoundRecords)
