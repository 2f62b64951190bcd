# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The append of batches to a log, in four steps: plan, write, publish, and take back.

    plan       gives each batch its offsets and its place in the active segment, and decides whether it certainly belongs
               there; what may fail for lack of memory comes now
    write      one write, which is on disk when it returns if the log syncs its writes; then the index entries
    publish    one store shows the next ``Ends``; then the results, the counts, what is due to the disk, producers
    take back  after a failure: the log is as before, unless the append is published, or nothing is known of the disk

Two ways need no decision and run whole in here: ``commit_singles`` of plain records, and ``commit_batches`` of encoded
ones, also a producer's. If anything needs a decision they do nothing, and the general path (``Appends``) takes the same
steps with its decisions between them: a roll, kept offsets, producers, the appends of several threads.

Signals are served between the byte codes of Python functions, never in here. After the write only these call Python: an
index entry, the durable end for other processes, a flush that is due, known producers. An error there takes the append
back, unless it is published.

Plain records are written where the ``.log`` is a file of this system, and left to the general path elsewhere, as in
tests: they see every write.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

cimport cython

from kstore.engine._ends cimport EndsMaker
from kstore.engine._fields cimport LogFields, publish
from kstore.engine.append._group cimport GroupCommit, Pending, PendingBatches, PendingSingle, single_of
from kstore.files._direct cimport descriptor_of, write_synced, write_whole
from kstore.record._codec cimport BatchBuffer, named_tuple, put_place, put_single, single_size
from kstore.segments._numbers cimport TailNumbers

import os
from functools import wraps

from kstore.clock import SystemClock
from kstore.engine.ends import ENDS_MAKER, Ends
from kstore.engine.producers import EXPIRY_INTERVAL_MS as _EXPIRY_INTERVAL_MS
from kstore.errors import KstoreError
from kstore.metrics import APPENDED
from kstore.record._codec import EncodedBatch
from kstore.rules.sequence import NO_SEQUENCE, REMEMBERED_MAX, KnownProducer, RememberedBatch
from kstore.types import AppendInfo

cdef enum:
    # A larger batch of one record, or a larger group of them, is copied less often by the general path.
    SINGLE_SIZE_MAX = 1 << 14
    GROUP_SIZE_MAX = 1 << 18
    # Of ``Ends``.
    START_OFFSET = 0
    RECOVERY_POINT = 1
    DURABLE_END = 2
    HIGH_WATERMARK = 3
    END_OFFSET = 4
    BASE_OFFSET = 5
    # Of an EncodedBatch.
    POSITION = 1
    SIZE = 2
    RECORD_COUNT = 3
    MAX_TIMESTAMP = 5
    DELTA_OF_MAX = 6
    # None.
    NO_OFFSET = -1
    NO_TIMESTAMP = -1

SINGLE_BYTES_MAX = SINGLE_SIZE_MAX

assert Ends._fields == (
    "start_offset", "recovery_point", "durable_end", "high_watermark", "end_offset", "base_offset", "position"
), Ends._fields
assert EncodedBatch._fields[POSITION:RECORD_COUNT + 1] == ("position", "size", "record_count"), EncodedBatch._fields
assert EncodedBatch._fields[MAX_TIMESTAMP:] == ("max_timestamp", "max_timestamp_delta_offset"), EncodedBatch._fields
assert len(AppendInfo._fields) == 12, AppendInfo._fields
assert APPENDED == ("appends", "append_batches", "append_records", "append_bytes"), APPENDED

cdef EndsMaker maker = ENDS_MAKER
cdef int64_t EXPIRY_INTERVAL_MS = _EXPIRY_INTERVAL_MS

# How often this process is a child of the one that has loaded this module, or of a child of it.
cdef int forks = 0


def _count_fork():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


# --- plan -------------------------------------------------------------------------------------------------------------


@cython.final
cdef class Plan:
    """What one write puts into a log, and what the log then is. Used with the log's lock; see ``AppendPath.plan``.

    ``before`` are the ends to which a failure leads back, ``group`` the appends that get ``results``.
    """

    def __cinit__(self):
        self.parts, self.part_room = self.few, FEW_PARTS

    def __dealloc__(self):
        if self.parts != self.few:
            PyMem_Free(self.parts)

    cdef int go_on(self, object tail, TailNumbers numbers) except -1:
        """Continues at the end of ``tail``, with nothing to write yet."""
        self.tail, self.numbers = tail, numbers
        self.views = None
        self.buffer = None
        self.position, self.size, self.part_count = numbers.position, 0, 0
        self.first_timestamp, self.since_entry = numbers.first_timestamp, numbers.since_entry
        self.entry_room = numbers.entry_room
        return 0

    cdef void clear(self) noexcept:
        """Forgets everything, to be used again."""
        self.before = self.tail = self.ends = self.producer = self.checked = None
        self.group = self.results = self.views = None
        self.numbers = None
        self.buffer = None
        if self.parts != self.few:
            PyMem_Free(self.parts)
            self.parts, self.part_room = self.few, FEW_PARTS
        self.append_count = self.batch_count = self.record_count = self.byte_count = 0
        self.with_producers = self.is_published = self.is_whole = False

    cdef bint takes(self, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept:
        """Whether a batch certainly belongs into the segment. False means: check closer."""
        cdef TailNumbers numbers = self.numbers
        cdef int64_t position = self.position + self.size
        if size > numbers.segment_bytes - position or last_offset > numbers.last_offset_max:
            return False
        return position == 0 or (
            self.first_timestamp >= 0
            and max_timestamp - self.first_timestamp <= numbers.segment_ms
            and self.entry_room > 0
        )

    cdef int put(self, int64_t size, int64_t record_count, int64_t last_offset, int64_t max_timestamp) except -1:
        """Adds a batch. Raises: MemoryError."""
        cdef Part* part
        cdef Part* more
        cdef Py_ssize_t room
        if self.part_count == self.part_room:
            room = 4 * self.part_room
            more = <Part*>PyMem_Realloc(NULL if self.parts == self.few else self.parts, room * sizeof(Part))
            if more == NULL:
                raise MemoryError("no memory for the batches of an append")
            if self.parts == self.few:
                memcpy(more, self.few, sizeof(self.few))
            self.parts, self.part_room = more, room
        part = &self.parts[self.part_count]
        part.size, part.last_offset, part.max_timestamp = size, last_offset, max_timestamp
        self.part_count += 1
        if self.position + self.size == 0:
            self.first_timestamp = max_timestamp
        if self.since_entry > self.numbers.index_interval_bytes:
            self.entry_room -= 1
            self.since_entry = 0
        self.since_entry += size
        self.size += size
        self.end = last_offset + 1
        self.batch_count += 1
        self.record_count += record_count
        self.byte_count += size
        return 0

    cdef bint add_batch(
        self, BatchBuffer buffer, object batch, int64_t base_offset, int64_t last_offset, int32_t epoch, bint keeps
    ) except -1:
        """See ``add``, of a batch that certainly belongs into the segment or that ``keeps`` its header."""
        cdef tuple fields = as_tuple(batch)
        cdef Py_ssize_t position = fields[POSITION], size = fields[SIZE]
        if not keeps:
            put_place(buffer, position, base_offset, epoch)
        if buffer is not self.buffer or position != self.stop:
            self.end_view()
            self.buffer, self.start = buffer, position
        self.stop = position + size
        self.put(size, fields[RECORD_COUNT], last_offset, fields[MAX_TIMESTAMP])
        return True

    cdef int end_view(self) except -1:
        if self.buffer is not None:
            if self.views is None:
                self.views = []
            self.views.append(self.buffer.view(self.start, self.stop))
            self.buffer = None
        return 0

    def add(
        self,
        BatchBuffer buffer not None,
        batch not None,
        int64_t base_offset,
        int64_t last_offset,
        leader_epoch,
        *,
        bint is_certain=False,
    ):
        """Adds an EncodedBatch of ``buffer``, which gets these offsets and the epoch; None: its header stays.

        Returns False, and has done nothing, if its segment may have to roll first, unless the caller ``is_certain``.
        Raises: ValueError if no batch is there, TypeError, MemoryError.
        """
        cdef tuple fields = as_tuple(batch)
        if not is_certain and not self.takes(fields[SIZE], last_offset, fields[MAX_TIMESTAMP]):
            return False
        keeps = leader_epoch is None
        return self.add_batch(buffer, batch, base_offset, last_offset, -1 if keeps else leader_epoch, keeps)

    @property
    def segment_end(self):
        """Where the segment ends once the batches so far are written."""
        return self.position + self.size

    @property
    def indexes_full(self):
        """Whether there may be no room for one more entry in the indexes; certain if nothing is to be written."""
        return self.entry_room <= 0


cdef inline tuple as_tuple(batch):
    """An EncodedBatch, whose fields are then read without a Python call."""
    if type(batch) is not EncodedBatch:
        raise TypeError(f"{batch!r:.80}, expected an EncodedBatch")
    return <tuple>batch


# --- the path ---------------------------------------------------------------------------------------------------------


@cython.final
cdef class AppendPath:
    """The appends to one log. Thread-safe, but for the steps by themselves, which need the lock."""

    def __init__(
        self, appends not None, LogFields files not None, lock, durability, rolls, growth, GroupCommit group=None
    ):
        """``appends`` has ``stable_offset_max``, which an error may lower. ``group`` is that of synced appends.

        Until ``use``, no record is plain.
        """
        self.appends, self.files, self.group = appends, files, group
        self.take, self.give_back = lock.acquire, lock.release
        self.clock = files.context.clock
        self.is_system_clock = type(self.clock) is SystemClock
        self.durability, self.rolls, self.growth = durability, rolls, growth
        self.is_shared = files.others is not None
        self.is_sync, self.syncs_writes = durability.is_sync, durability.syncs_writes
        self.is_prompt = not self.is_sync and durability.is_prompt
        self.counters = files.counters
        self.appended = files.counters.appended
        if self.appended.ob_descr.typecode != c"q" or len(self.appended) != len(APPENDED):
            raise TypeError(f"{self.appended!r}, expected the counts of {APPENDED}")
        self.buffer = BatchBuffer()
        self.forks = forks

    def use(self, Py_ssize_t size_max, bint needs_key):
        """Takes records whose batch has at most ``size_max`` bytes, with a key if the log needs one."""
        self.size_max = min(size_max, <Py_ssize_t>SINGLE_SIZE_MAX)
        self.needs_key = needs_key

    # --- what needs no decision ---------------------------------------------------------------------------------------

    def append(self, value, key):
        """Appends one plain record; returns its offset and timestamp. None, and nothing is done, if anything needs a
        decision. Raises: KstoreError."""
        return self.counted(value, key, True)

    cdef object counted(self, object value, object key, bint timed):
        cdef PendingSingle single
        if not self.is_plain(value, key) or single_size(<bytes>value, <bytes>key) > self.size_max:
            return None
        try:
            if self.group is None:
                return self.in_turn(None, <bytes>value, <bytes>key, timed)
            if self.files.closed is not None or self.files.poisoned is not None:
                return None
            single = single_of(<bytes>value, <bytes>key)
            self.group.run(single)
            single.raise_error()
        except Exception as error:
            self.counters.append_failed(error)
            raise
        return (single.result, single.timestamp) if timed else single.result

    cdef bint is_plain(self, object value, object key) noexcept:
        if type(value) is not bytes or (self.needs_key if key is None else type(key) is not bytes):
            return False
        # No sum that could overflow.
        if PyBytes_GET_SIZE(value) > self.size_max or (key is not None and PyBytes_GET_SIZE(key) > self.size_max):
            return False
        return self.forks == forks

    def commit_group(self, list group not None):
        """Commits PendingSingles, or one PendingAppend; False, and nothing is done, if anything needs a decision.
        Raises: KstoreError."""
        cdef Py_ssize_t at
        if PyList_GET_SIZE(group) == 1 and isinstance(<object>PyList_GET_ITEM(group, 0), PendingBatches):
            return self.commit(group[0])
        for at in range(PyList_GET_SIZE(group)):
            if type(<object>PyList_GET_ITEM(group, at)) is not PendingSingle:
                return False
        return self.in_turn(group, None, None, False) is not None

    def commit(self, PendingBatches append not None):
        """Commits a PendingAppend; False, and nothing is done, if anything needs a decision. Raises: KstoreError."""
        if append.spans is not None or (append.with_producers and (self.is_shared or append.stamp is None)):
            return False
        # A log that is synced after the turn leaves everything to the general path.
        return self.is_sync == self.syncs_writes and self.in_turn(append, None, None, False) is not None

    cdef object in_turn(self, object appends, bytes value, bytes key, bint timed):
        """Takes the lock for a PendingAppend, for a list of PendingSingles, or without either for one record; then wakes
        followers, also after a failure. Returns None, and nothing is done, if anything needs a decision."""
        result = None
        try:
            self.take()
            try:
                if appends is None or type(appends) is list:
                    result = self.commit_singles(<list>appends, value, key, timed)
                elif self.commit_batches(<PendingBatches>appends):
                    result = True
            finally:
                self.give_back()
        except BaseException as error:
            self.wake()
            if result is None or not isinstance(error, MemoryError):
                raise
            return result
        if result is not None:
            if self.files.follower_count:
                self.wake()
            if self.syncs_writes:
                self.counters.group_appends.observe(PyList_GET_SIZE(appends) if type(appends) is list else 1)
        return result

    cdef object commit_singles(self, list singles, bytes value, bytes key, bint timed):
        """Needs the lock. A batch of each record, in one buffer. Without ``singles`` returns the offset of the one record,
        and the timestamp if it is ``timed``."""
        cdef Plan plan = self.begin()
        cdef PendingSingle single
        cdef Py_ssize_t at, size, count = 1 if singles is None else PyList_GET_SIZE(singles)
        cdef int64_t offset
        cdef int32_t epoch
        cdef int fd
        cdef uint8_t few[SINGLE_SIZE_MAX]
        cdef uint8_t* data = few
        if plan is None or plan.now_ms < 0:
            return None
        for at in range(count):
            if singles is not None:
                single = <PendingSingle>PyList_GET_ITEM(singles, at)
                value, key = single.value, single.key
            size = single_size(value, key)
            if size > self.size_max or not plan.takes(size, plan.end, plan.now_ms):
                return None
            plan.put(size, 1, plan.end, plan.now_ms)
        if plan.size > min(plan.numbers.allocated - plan.position, <int64_t>GROUP_SIZE_MAX):
            return None
        fd = descriptor_of(plan.tail.open_file)
        if fd < 0:
            return None
        if plan.size > SINGLE_SIZE_MAX:
            self.buffer.make_room(plan.size)
            data = <uint8_t*>self.buffer.data
        latest_epoch = self.files.epochs.latest_epoch
        epoch = 0 if latest_epoch is None else latest_epoch
        plan.append_count = count
        result = <object>PyTuple_GET_ITEM(plan.before, END_OFFSET)
        if timed:
            result = (result, plan.now_ms)
        if singles is not None:
            plan.group, plan.results = singles, list(range(plan.first, plan.end))
        self.make_ends(plan)
        offset, size = plan.first, 0
        for at in range(count):
            if singles is not None:
                single = <PendingSingle>PyList_GET_ITEM(singles, at)
                value, key, single.timestamp = single.value, single.key, plan.now_ms
            put_single(data + size, plan.parts[at].size, value, key, plan.now_ms, offset + at, epoch)
            size += plan.parts[at].size
        return result if self.carry_out(plan, fd, <const char*>data) else None

    cdef bint commit_batches(self, PendingBatches append) except -1:
        """Needs the lock."""
        cdef Plan plan = self.begin()
        cdef list batches = append.batches
        cdef list buffers = append.buffers
        cdef tuple fields
        cdef Py_ssize_t at, count = PyList_GET_SIZE(batches)
        cdef int64_t last_offset, record_count
        cdef int32_t epoch
        if plan is None or count == 0:
            return False
        if buffers is not None and PyList_GET_SIZE(buffers) != count:
            raise ValueError(f"{len(buffers)} buffers, expected one for each of the {count} batches")
        latest_epoch = self.files.epochs.latest_epoch
        epoch = 0 if latest_epoch is None else latest_epoch
        for at in range(count):
            fields = as_tuple(<object>PyList_GET_ITEM(batches, at))
            record_count = fields[RECORD_COUNT]
            if record_count - 1 > plan.numbers.last_offset_max - plan.end:
                return False
            last_offset = plan.end + record_count - 1
            if not plan.takes(fields[SIZE], last_offset, fields[MAX_TIMESTAMP]):
                return False
            plan.add_batch(
                append.buffer if buffers is None else <object>PyList_GET_ITEM(buffers, at),
                fields, plan.end, last_offset, epoch, False,
            )
        if append.stamp is not None:
            plan.producer = next_producer(self.files.producers, append.stamp, batches, plan.first, plan.now_ms)
            if plan.producer is None:
                return False
        plan.append_count, plan.with_producers = 1, append.with_producers
        plan.group = [append]
        if count == 1 and append.append_time_ms == NO_TIMESTAMP:
            plan.results = [info_of_one(append, batches[0], plan.first, plan.end - 1)]
        else:
            plan.results = [append.info(plan.first, plan.end - 1)]
        self.make_ends(plan)
        return self.carry_out(plan, -1, NULL)

    cdef bint carry_out(self, Plan plan, int fd, const char* data) except -1:
        """Writes and publishes ``data``, or the views of the plan. False, and nothing is done, if the system does not
        take ``data``."""
        try:
            if data == NULL:
                self.write_views(plan)
            elif self.write_directly(plan, fd, data):
                self.note(plan)
            else:
                return False
            self.show(plan)
        except BaseException as error:
            self.undo(plan, error)
            if not plan.is_published or not isinstance(error, MemoryError) or self.files.poisoned is not None:
                raise
            # Only for the work after the publication, which the next append or flush makes up for.
        plan.clear()
        self.spare = plan
        return True

    # --- the steps ----------------------------------------------------------------------------------------------------

    cdef Plan begin(self):
        """The plan of an append for which the log is ready; None if that needs a decision."""
        cdef LogFields files = self.files
        cdef Plan plan
        before = files.ends
        if files.open_tail is None or files.closed is not None or files.poisoned is not None or type(before) is not Ends:
            return None
        plan, self.spare = self.spare, None
        if plan is None:
            plan = Plan.__new__(Plan)
        self.start(plan, self.now_ms())
        if plan.now_ms - files.last_append_ms > plan.numbers.segment_ms:
            return None
        if plan.numbers.base_offset != <int64_t><object>PyTuple_GET_ITEM(before, BASE_OFFSET):
            return None  # an interrupt came between a roll and its publication
        if plan.position == 0:
            return None  # retention may be due, after the roll that has begun the segment
        return plan

    cdef int start(self, Plan plan, int64_t now_ms) except -1:
        plan.before = self.files.ends
        plan.now_ms = now_ms
        plan.first = plan.end = plan.stable_offset = <object>PyTuple_GET_ITEM(plan.before, END_OFFSET)
        return plan.go_on(self.files.open_tail, self.files.numbers)

    def plan(self, int64_t now_ms):
        """A plan without batches, at the log's end; the log has a tail."""
        cdef Plan plan = Plan.__new__(Plan)
        self.start(plan, now_ms)
        return plan

    def write(self, Plan plan not None):
        """Writes the batches of the plan, if any, with one call, and notes them. Raises: as ``SegmentTail.write``."""
        if plan.part_count:
            self.write_views(plan)
            plan.go_on(plan.tail, plan.numbers)

    def go_on(self, Plan plan not None):
        """Continues, once everything is written, in the segment that a roll has begun."""
        plan.go_on(self.files.open_tail, self.files.numbers)

    def publish(self, Plan plan not None, list appends not None, list results not None, checked):
        """Shows what is written to readers. Each of ``appends`` then has its result, and its producers are known.

        ``checked``: the ProducerBatches of the appends, or None.
        """
        plan.group, plan.results = appends, results
        plan.checked = checked or None
        self.make_ends(plan)
        self.show(plan)

    def take_back(self, Plan plan not None, error not None):
        """Restores the log after ``error``, unless the append is published. The first step says whether a sync may have
        failed; if it has, or the log cannot be restored, the log is poisoned."""
        self.undo(plan, error)

    cdef int make_ends(self, Plan plan) except -1:
        # Those of now: a roll has changed them.
        cdef object now = self.files.ends
        cdef object base_offset = <object>PyTuple_GET_ITEM(now, BASE_OFFSET)
        cdef bint is_same = <int64_t>base_offset == plan.numbers.base_offset
        if not is_same:
            base_offset = plan.numbers.base_offset
        end, position = plan.end, plan.position + plan.size
        if not self.is_sync:
            plan.ends = maker.grown_from(now, end, base_offset, position)
            return 0
        # A roll has synced what is below it.
        recovery_point = <object>PyTuple_GET_ITEM(now, RECOVERY_POINT) if is_same else base_offset
        start_offset = <object>PyTuple_GET_ITEM(now, START_OFFSET)
        if self.syncs_writes:
            plan.ends = maker.filled((start_offset, recovery_point, end), end, end, base_offset, position)
        else:
            # Readers wait for the sync.
            on_disk = (start_offset, recovery_point, <object>PyTuple_GET_ITEM(now, DURABLE_END))
            plan.ends = maker.filled(on_disk, <object>PyTuple_GET_ITEM(now, HIGH_WATERMARK), end, base_offset, position)
        return 0

    cdef bint write_directly(self, Plan plan, int fd, const char* data) except -1:
        """Writes the ``plan.size`` bytes at ``data``; False, and nothing of them is in the file, if the system refuses
        them. Raises: as ``SegmentTail.write``."""
        cdef TailNumbers numbers = plan.numbers
        cdef int64_t position = plan.position, size = plan.size
        cdef bint is_synced = self.syncs_writes
        cdef int failed
        started = self.clock.monotonic() if is_synced else None
        with nogil:
            if is_synced:
                failed = write_synced(fd, data, size, position)
            else:
                failed = 0 if write_whole(fd, data, size, position) else -1
        if failed < 0:
            # The blocks ahead went, too, if a part was cut off again.
            numbers.allocated = position
            return False
        if failed > 0:
            # The first step: an interrupt may replace the error, and a sync that failed is not repeated.
            plan.tail.open_file._has_failed_sync = True
            plan.tail.cut_unsynced(failed)
        numbers.position = position + size
        if is_synced:
            self.counters.sync_seconds.observe(self.clock.monotonic() - started)
        return True

    cdef int write_views(self, Plan plan) except -1:
        cdef Py_buffer data
        cdef bint is_written = False
        cdef int fd = -1
        plan.end_view()
        if PyList_GET_SIZE(plan.views) == 1 and plan.size <= plan.numbers.allocated - plan.position:
            fd = descriptor_of(plan.tail.open_file)
        if fd >= 0:
            PyObject_GetBuffer(<object>PyList_GET_ITEM(plan.views, 0), &data, PyBUF_SIMPLE)
            try:
                is_written = data.len == plan.size and self.write_directly(plan, fd, <const char*>data.buf)
            finally:
                PyBuffer_Release(&data)
        if not is_written:
            started = self.clock.monotonic() if self.syncs_writes else None
            plan.tail.write(plan.views, plan.size, sync=self.syncs_writes)
            if started is not None:
                self.counters.sync_seconds.observe(self.clock.monotonic() - started)
        return self.note(plan)

    cdef int note(self, Plan plan) except -1:
        """Notes what is written, and gives the indexes the entries that are due."""
        cdef TailNumbers numbers = plan.numbers
        cdef int64_t position = plan.position
        cdef Part* part
        cdef Py_ssize_t at
        self.files.last_append_ms = plan.now_ms
        for at in range(plan.part_count):
            part = &plan.parts[at]
            if numbers.since_entry > numbers.index_interval_bytes:
                plan.tail.note(position, part.size, part.last_offset, part.max_timestamp)
            else:
                numbers.count(position, part.size, part.last_offset, part.max_timestamp)
            position += part.size
        return 0

    cdef int show(self, Plan plan) except -1:
        cdef LogFields files = self.files
        cdef long long* appended = self.appended.data.as_longlongs
        cdef Py_ssize_t at
        cdef int64_t end = plan.end
        ends = plan.ends
        # All of its appends may be repetitions.
        if end != plan.first or plan.numbers.base_offset != <int64_t><object>PyTuple_GET_ITEM(plan.before, BASE_OFFSET):
            plan.is_published = True
            publish(files, ends)
        appended[0] += plan.append_count
        appended[1] += plan.batch_count
        appended[2] += plan.record_count
        appended[3] += plan.byte_count
        if plan.group is not None:
            for at in range(PyList_GET_SIZE(plan.results)):
                (<Pending>PyList_GET_ITEM(plan.group, at)).result = <object>PyList_GET_ITEM(plan.results, at)
        if not plan.is_published:
            pass
        elif self.syncs_writes:
            files.state_file.publish_durable_end(end)
        elif not self.is_sync and (
            self.is_prompt or end - <int64_t><object>PyTuple_GET_ITEM(ends, RECOVERY_POINT) >= files.flush_messages
        ):
            self.durability.flush_as_due(ends)
        self.note_producers(plan)
        plan.is_whole = True
        return 0

    cdef int note_producers(self, Plan plan) except -1:
        """If that fails the append stays and the log is poisoned: only recovery can complete what is known of producers,
        and the transaction index. Until then committed reads end where they ended before."""
        producers = self.files.producers
        if plan.producer is None and plan.checked is None:
            if producers._state is not None:
                producers.passed(plan.first, plan.end)
            return 0
        if self.files.poisoned is not None:
            return 0
        try:
            if plan.producer is not None:
                producers.take_in_run(plan.producer, plan.end)
            else:
                producers.take_in(plan.checked, plan.end)
        except BaseException as error:
            self.appends.stable_offset_max = plan.stable_offset
            self.files.poison(error)
            if not isinstance(error, Exception):
                raise
        return 0

    cdef int undo(self, Plan plan, object error) except -1:
        cdef Py_ssize_t at
        self.files.note_failure(error)
        if plan.is_published and not plan.is_whole:
            if plan.with_producers:
                # What is known of producers may lack the batches.
                self.appends.stable_offset_max = plan.stable_offset
                self.files.poison(error)
            if plan.group is not None and isinstance(error, KstoreError):
                # Their callers get it. After any other error they have a result: they would write them again.
                for at in range(PyList_GET_SIZE(plan.group)):
                    (<Pending>PyList_GET_ITEM(plan.group, at)).result = None
        self.rolls.undo(plan.before)
        return 0

    # --- the clock, and followers -------------------------------------------------------------------------------------

    cdef int64_t now_ms(self) except? -1:
        cdef timespec now
        if self.is_system_clock and clock_gettime(CLOCK_REALTIME, &now) == 0:
            return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000
        return self.clock.now_ms()

    cpdef object wake(self):
        """Wakes the followers of the log, after an append or what may have been one.

        It comes before any signal is served, because this is compiled; and an interrupt in it leaves no follower asleep.
        """
        if self.files.follower_count:
            try:
                self.growth.wake()
            except BaseException:
                self.growth.wake()  # what an interrupt has left to do
                raise


@cython.binding(True)
def single_first(general):
    """Decorates ``Log.append``: a record that ``self._single``, an AppendPath or None, takes is not left to it."""

    # Errors about the arguments name it.
    def append(self, value, *, key=None, headers=(), timestamp=None):
        if timestamp is None and not headers:
            single = self._single
            if single is not None:
                offset = (<AppendPath?>single).counted(value, key, False)
                if offset is not None:
                    return offset
        return general(self, value, key=key, headers=headers, timestamp=timestamp)

    return wraps(general)(append)


# --- results, and producers -------------------------------------------------------------------------------------------


def settle(list singles not None, list appends not None):
    """Gives each PendingSingle the outcome of the PendingAppend that was made of it; others are their own."""
    for single, append in zip(singles, appends):
        if single is not append and append is not None:
            if append.result is not None:
                (<PendingSingle?>single).timestamp = append.result.max_timestamp
                (<PendingSingle?>single).result = append.result.first_offset
            (<PendingSingle?>single).error = append.error


cdef object info_of_one(PendingBatches append, batch, first, last):
    """The result of an append of one batch that the log does not stamp, as of ``PendingAppend.info``."""
    cdef tuple fields = as_tuple(batch)
    timestamp = fields[MAX_TIMESTAMP]
    offset_of_max = NO_OFFSET if timestamp == NO_TIMESTAMP else first + fields[DELTA_OF_MAX]
    return named_tuple(AppendInfo, (
        first, last, timestamp, offset_of_max, NO_TIMESTAMP, append.source_codec, append.target_codec,
        1, fields[RECORD_COUNT], fields[SIZE], append.offsets_monotonic, False,
    ))


cdef object next_producer(producers, stamp, list batches, int64_t offset, int64_t now_ms):
    """The producer after ``batches``, which are written at ``offset``, the log's end; None if that needs a closer look:
    see ``LogProducers.pending``."""
    state = producers._state
    if state is None or producers._next_offset != offset or state.has_open_transactions:
        return None
    if not 0 <= now_ms - <int64_t>producers._expired_ms < EXPIRY_INTERVAL_MS:
        return None
    known = state.producers.get(stamp[0])
    return None if known is None else continued(known, stamp, batches, offset)


def continued(known not None, stamp not None, list batches not None, int64_t offset):
    """The producer after ``batches``, data batches outside transactions that get the offsets from ``offset`` on; None
    unless they are certainly its next ones.

    As ``after`` of ``run_of`` in ``rules.sequence``, for what every write of a producer passes.
    """
    cdef list kept
    cdef int64_t sequence, count
    cdef tuple fields
    _, epoch, first_sequence, is_transactional = stamp
    producer_id, known_epoch, seen, _, coordinator_epoch, transaction_offset = known
    kept = list(seen)
    sequence = kept[len(kept) - 1].last_sequence if kept else NO_SEQUENCE
    if (
        is_transactional
        or transaction_offset != NO_OFFSET
        or known_epoch != epoch
        or first_sequence != ((sequence + 1) & INT32_MAX)
    ):
        return None
    # After the batch, that is: those of its last record, and one more.
    sequence = first_sequence
    timestamp = NO_TIMESTAMP
    for batch in batches:
        fields = as_tuple(batch)
        count, timestamp = fields[RECORD_COUNT], fields[MAX_TIMESTAMP]
        sequence, offset = sequence + count, offset + count
        kept.append(named_tuple(RememberedBatch, ((sequence - 1) & INT32_MAX, offset - 1, count - 1, timestamp)))
    del kept[:max(len(kept) - <Py_ssize_t>REMEMBERED_MAX, 0)]
    return named_tuple(KnownProducer, (producer_id, epoch, tuple(kept), timestamp, coordinator_epoch, NO_OFFSET))
