# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The short path of encoded batches: one append, also a producer's, whose batches certainly go into the active segment.

It is ``Appends._commit`` of one append where nothing needs a decision; otherwise it does nothing, and its caller takes
that way. It writes by itself where that is one plain write to a file of this system; else the tail does.

Signals are served between the byte codes of Python functions, never in here. Until the append is published any exception
takes it back.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t

cimport cython

from kstore.engine._ends cimport EndsMaker
from kstore.engine._fields cimport LogFields, publish
from kstore.engine.append._group cimport PendingBatches
from kstore.engine.append._single cimport LogAppends
from kstore.files._direct cimport descriptor_of, write_synced, write_whole
from kstore.record._codec cimport named_tuple
from kstore.segments._numbers cimport TailNumbers

from kstore.engine.ends import ENDS_MAKER, Ends
from kstore.engine.producers import EXPIRY_INTERVAL_MS as _EXPIRY_INTERVAL_MS
from kstore.errors import KstoreError
from kstore.record._codec import EncodedBatch
from kstore.rules.sequence import NO_SEQUENCE, REMEMBERED_MAX, Producer, RememberedBatch
from kstore.types import AppendInfo

__all__ = ["PlacedAppends", "continued"]

cdef enum:
    # Of ``Ends``.
    RECOVERY_POINT = 1
    END_OFFSET = 4
    BASE_OFFSET = 5
    # Of an EncodedBatch.
    SIZE = 2
    RECORD_COUNT = 3
    MAX_TIMESTAMP = 5
    DELTA_OF_MAX = 6
    # None.
    NO_OFFSET = -1
    NO_TIMESTAMP = -1

assert Ends._fields == (
    "start_offset", "recovery_point", "durable_end", "high_watermark", "end_offset", "base_offset", "position"
), Ends._fields
assert EncodedBatch._fields.index("size") == SIZE, EncodedBatch._fields
assert EncodedBatch._fields.index("record_count") == RECORD_COUNT, EncodedBatch._fields
assert EncodedBatch._fields[MAX_TIMESTAMP:] == ("max_timestamp", "max_timestamp_delta_offset"), EncodedBatch._fields
assert len(AppendInfo._fields) == 12, AppendInfo._fields

cdef EndsMaker maker = ENDS_MAKER
cdef int64_t EXPIRY_INTERVAL_MS = _EXPIRY_INTERVAL_MS


@cython.final
cdef class PlacedAppends(LogAppends):
    """Appends of encoded batches to one log. Thread-safe."""

    cdef object appends
    cdef bint is_shared, is_sync, is_prompt

    def __init__(self, appends not None, LogFields files not None, lock, durability, rolls, growth):
        """``appends`` has ``stable_offset_max``, which an error may lower."""
        LogAppends.__init__(self, files, lock, durability, rolls, growth)
        self.appends = appends
        self.is_shared = files.others is not None
        self.is_sync = durability.is_sync
        self.is_prompt = not self.is_sync and durability.is_prompt

    def commit(self, PendingBatches append not None):
        """Commits a PendingAppend; False, and nothing is done, if anything needs a decision. Raises: KstoreError."""
        stamp = append.stamp
        if append.spans is not None or (append.with_producers and (self.is_shared or stamp is None)):
            return False
        try:
            self.take()
            try:
                is_committed = self.commit_placed(append, stamp)
            finally:
                self.give_back()
        except BaseException:
            self.wake()
            raise
        if is_committed:
            self.wake()
            if self.is_sync:
                self.counters.group_appends.observe(1)
        return is_committed

    cdef bint commit_placed(self, PendingBatches append, stamp) except -1:
        """Needs the lock."""
        cdef LogFields files = self.files
        cdef TailNumbers numbers
        cdef list batches = append.batches
        cdef tuple batch
        cdef Py_ssize_t at
        cdef int64_t now_ms, offset, position, size, batch_size, max_timestamp, record_count
        cdef int32_t epoch
        cdef bint is_published = False
        tail, before, producers = files.tail, files.ends, files.producers
        if tail is None or files.closed is not None or files.poisoned is not None or type(before) is not Ends:
            return False
        now_ms = self.now_ms()
        latest_epoch = files.epochs.latest_epoch
        epoch = 0 if latest_epoch is None else latest_epoch
        numbers = tail.numbers
        first = <object>PyTuple_GET_ITEM(before, END_OFFSET)
        base_offset = <object>PyTuple_GET_ITEM(before, BASE_OFFSET)
        offset, position = first, numbers.position
        if numbers.base_offset != <int64_t>base_offset:
            return False  # an interrupt came between a roll and its publication
        placed = numbers.place(append.buffers or append.buffer, batches, offset, epoch, now_ms, files.last_append_ms)
        if placed is None:
            return False
        views, size, record_count = placed[0], placed[1], placed[2]
        producer = None
        if stamp is not None:
            producer = next_producer(producers, stamp, batches, offset, now_ms)
            if producer is None:
                return False
        end = offset + record_count
        if self.is_sync:
            on_disk = (before[0], before[RECOVERY_POINT], end)
            ends = maker.filled(on_disk, end, end, base_offset, position + size)
        else:
            ends = maker.grown_from(before, end, base_offset, position + size)
        files.last_append_ms = now_ms
        try:
            self.write(tail, views, size)
            for at in range(PyList_GET_SIZE(batches)):
                batch = <tuple>PyList_GET_ITEM(batches, at)
                batch_size, max_timestamp = batch[SIZE], batch[MAX_TIMESTAMP]
                offset += <int64_t>batch[RECORD_COUNT]
                if numbers.since_entry > numbers.index_interval_bytes:
                    tail.note(position, batch_size, offset - 1, max_timestamp)
                else:
                    numbers.count(position, batch_size, offset - 1, max_timestamp)
                position += batch_size
            is_published = True
            publish(files, ends)
            self.count(1, PyList_GET_SIZE(batches), record_count, size)
            if self.is_sync:
                files.state_file.publish_durable_end(end)
            elif self.is_prompt or end - <int64_t><object>PyTuple_GET_ITEM(ends, RECOVERY_POINT) >= files.flush_messages:
                self.durability.flush_as_due(ends)
            if PyList_GET_SIZE(batches) == 1 and append.append_time_ms == NO_TIMESTAMP:
                append.result = info_of_one(append, batches[0], first, end - 1)
            else:
                append.finish(first, end - 1)
            if producer is not None:
                self.note_producer(producer, first, end)
            elif producers._state is not None:
                producers.passed(first, end)
        except BaseException as error:
            self.failed(append, before, end, is_published, error)
            raise
        return True

    cdef int write(self, tail, list views, int64_t size) except -1:
        """Writes the bytes of ``views`` at the end. Raises: as ``SegmentTail.write``."""
        cdef TailNumbers numbers = tail.numbers
        cdef Py_buffer data
        cdef int fd = -1
        cdef int failed = -1
        cdef int64_t position = numbers.position
        started = self.clock.monotonic() if self.is_sync else None
        if PyList_GET_SIZE(views) == 1 and size <= numbers.allocated - position:
            file = tail.open_file
            fd = descriptor_of(file)
        if fd >= 0:
            PyObject_GetBuffer(<object>PyList_GET_ITEM(views, 0), &data, PyBUF_SIMPLE)
            if data.len == size:
                with nogil:
                    if self.is_sync:
                        failed = write_synced(fd, <const char*>data.buf, size, position)
                    elif write_whole(fd, <const char*>data.buf, size, position):
                        failed = 0
            PyBuffer_Release(&data)
            if failed == 0:
                numbers.position = position + size
            elif failed > 0:
                # The first step: an interrupt may replace the error, and a sync that failed is not repeated.
                file._has_failed_sync = True
                tail.cut_unsynced(failed)
            else:
                # The blocks ahead went, too, if a part was cut off again.
                numbers.allocated = position
        if failed < 0:
            tail.write(views, size, sync=self.is_sync)
        if started is not None:
            self.counters.sync_seconds.observe(self.clock.monotonic() - started)
        return 0

    cdef int note_producer(self, producer, first, end) except -1:
        """If that fails the append stays and the log is poisoned, as in ``Appends``: only recovery can complete what is
        known of producers."""
        if self.files.poisoned is not None:
            return 0
        try:
            self.files.producers.take_in_run(producer, end)
        except BaseException as error:
            self.appends.stable_offset_max = first
            self.files.poison(error)
            if not isinstance(error, Exception):
                raise
        return 0

    cdef int failed(self, PendingBatches append, before, int64_t end, bint is_published, error) except -1:
        first = before[END_OFFSET]
        self.files.note_failure(error)
        if is_published:
            if append.with_producers:
                # An interrupt: what is known of producers may lack the batches.
                self.appends.stable_offset_max = first
                self.files.poison(error)
            if append.result is None and not isinstance(error, KstoreError):
                # They are in the log: a caller without an answer would write them again.
                append.finish(first, end - 1)
        self.rolls.undo(before)
        return 0


cdef object info_of_one(PendingBatches append, batch, first, last):
    """The result of an append of one batch that the log does not stamp, as of ``PendingAppend.finish``."""
    cdef tuple fields = as_tuple(batch)
    timestamp = fields[MAX_TIMESTAMP]
    offset_of_max = NO_OFFSET if timestamp == NO_TIMESTAMP else first + fields[DELTA_OF_MAX]
    return named_tuple(AppendInfo, (
        first, last, timestamp, offset_of_max, NO_TIMESTAMP, append.source_codec, append.target_codec,
        1, fields[RECORD_COUNT], fields[SIZE], append.offsets_monotonic, False,
    ))


cdef inline tuple as_tuple(batch):
    """An EncodedBatch, whose fields are then read without a Python call."""
    if type(batch) is not EncodedBatch:
        raise TypeError(f"{batch!r:.80}, expected an EncodedBatch")
    return <tuple>batch


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
    return named_tuple(Producer, (producer_id, epoch, tuple(kept), timestamp, coordinator_epoch, NO_OFFSET))
