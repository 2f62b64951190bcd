# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The short path of synced appends: plain records of any number of threads, with one write that is on disk when it returns.

A thread leaves its record in the group (``_group``); the one that leads makes a batch of each record of the group, in one
buffer. If anything needs a decision nothing is done, and the leader takes the general way: so it does where the ``.log``
is not a file of this system, as in tests: they see every write.

What may fail, such as an allocation, comes before the write. What comes after it is a few stores, except for index entries,
known producers, and the durable end for other processes, which call Python: an error there takes the group back, unless it
is published.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int32_t, int64_t, uint8_t

cimport cython

from kstore.engine._ends cimport EndsMaker
from kstore.engine._fields cimport LogFields, publish
from kstore.engine.append._group cimport GroupCommit, Pending
from kstore.engine.append._single cimport SingleAppends
from kstore.files._direct cimport descriptor_of, write_synced
from kstore.record._codec cimport BatchBuffer, put_single, single_size
from kstore.segments._numbers cimport TailNumbers

from kstore.engine.ends import ENDS_MAKER, Ends

__all__ = ["PendingSingle", "SyncedAppends", "settle"]

cdef enum:
    # More is left to the general path, which copies nothing.
    GROUP_BYTES_MAX = 1 << 18
    # Of ``Ends``.
    RECOVERY_POINT = 1
    END_OFFSET = 4
    BASE_OFFSET = 5

assert Ends._fields == (
    "start_offset", "recovery_point", "durable_end", "high_watermark", "end_offset", "base_offset", "position"
), Ends._fields

cdef EndsMaker maker = ENDS_MAKER


@cython.final
cdef class PendingSingle(Pending):
    """An append of one plain record; its ``result`` is its offset."""

    cdef readonly bytes value, key
    cdef readonly int64_t timestamp

    def __init__(self, bytes value not None, bytes key):
        self.value, self.key = value, key


def settle(list singles not None, list appends not None):
    """Gives each PendingSingle the outcome of the PendingAppend that was made of it; others are their own."""
    for single, append in zip(singles, appends):
        if single is not append and append is not None:
            if append.result is not None:
                (<PendingSingle?>single).timestamp = append.result.max_timestamp
                (<PendingSingle?>single).result = append.result.first_offset
            (<PendingSingle?>single).error = append.error


@cython.final
cdef class SyncedAppends(SingleAppends):
    """Appends that wait for the disk."""

    cdef GroupCommit group
    # Guarded by the log's lock.
    cdef BatchBuffer buffer

    def __init__(self, LogFields files not None, lock, durability, rolls, growth, GroupCommit group not None):
        SingleAppends.__init__(self, files, lock, durability, rolls, growth)
        self.group = group
        self.buffer = BatchBuffer()

    cdef object counted(self, object value, object key, bint timed):
        cdef PendingSingle single
        if not self.is_plain(value, key) or single_size(<bytes>value, <bytes>key) > self.size_max:
            return None
        if self.files.closed is not None or self.files.poisoned is not None:
            return None
        try:
            single = PendingSingle(value, key)
            self.group.run(single)
            single.raise_error()
            return (single.result, single.timestamp) if timed else single.result
        except Exception as error:
            self.counters.append_failed(error)
            raise

    def commit(self, list group not None):
        """Commits the group; False, and nothing is done, if anything needs a decision. Raises: KstoreError."""
        cdef Py_ssize_t at
        for at in range(PyList_GET_SIZE(group)):
            if type(<object>PyList_GET_ITEM(group, at)) is not PendingSingle:
                return False
        try:
            self.take()
            try:
                is_committed = self.commit_singles(group)
            finally:
                self.give_back()
        except BaseException:
            self.wake()
            raise
        if is_committed:
            self.wake()
            self.counters.group_appends.observe(PyList_GET_SIZE(group))
        return is_committed

    cdef bint commit_singles(self, list group) except -1:
        """Needs the lock."""
        cdef LogFields files = self.files
        cdef PendingSingle single
        cdef TailNumbers numbers
        cdef Py_ssize_t at, count = PyList_GET_SIZE(group)
        cdef Py_ssize_t size, total = 0
        cdef int64_t now_ms, offset, position
        cdef int32_t epoch
        cdef int fd, failed
        cdef uint8_t* data
        tail, before = files.tail, files.ends
        if tail is None or files.closed is not None or files.poisoned is not None or type(before) is not Ends:
            return False
        now_ms = self.now_ms()
        latest_epoch = files.epochs.latest_epoch
        epoch = 0 if latest_epoch is None else latest_epoch
        numbers = tail.numbers
        offset = <object>PyTuple_GET_ITEM(before, END_OFFSET)
        base_offset = <object>PyTuple_GET_ITEM(before, BASE_OFFSET)
        position = numbers.position
        for at in range(count):
            single = <PendingSingle>PyList_GET_ITEM(group, at)
            size = single_size(single.value, single.key)
            if size > self.size_max or not numbers.has_room(position + total, size, offset + at, now_ms):
                return False
            total += size
        # An interrupt may come between a roll and its publication: then the base offset differs.
        if (
            now_ms < 0
            or now_ms - files.last_append_ms > numbers.segment_ms
            or total > min(numbers.allocated - position, <int64_t>GROUP_BYTES_MAX)
            or numbers.base_offset != <int64_t>base_offset
        ):
            return False
        file = tail.open_file
        fd = descriptor_of(file)
        if fd < 0:
            return False
        self.buffer.make_room(total)
        offsets = list(range(offset, offset + count))
        first, end = before[END_OFFSET], offset + count
        on_disk = (before[0], before[RECOVERY_POINT], end)
        ends = maker.filled(on_disk, end, end, base_offset, position + total)
        observe = self.counters.sync_seconds.observe
        started = self.clock.monotonic()
        data = self.buffer.data
        for at in range(count):
            single = <PendingSingle>PyList_GET_ITEM(group, at)
            size = single_size(single.value, single.key)
            put_single(data, size, single.value, single.key, now_ms, offset + at, epoch)
            data += size
        with nogil:
            failed = write_synced(fd, <const char*>self.buffer.data, total, position)
        if failed == -1:
            # The blocks ahead went, too, if a part was cut off again.
            numbers.allocated = position
            return False
        try:
            if failed:
                # The first step: an interrupt may replace the error, and a sync that failed is not repeated.
                file._has_failed_sync = True
                tail.cut_unsynced(failed)
            files.last_append_ms = now_ms
            numbers.position = position + total
            for at in range(count):
                single = <PendingSingle>PyList_GET_ITEM(group, at)
                size = single_size(single.value, single.key)
                if numbers.since_entry > numbers.index_interval_bytes:
                    tail.note(position, size, offsets[at], now_ms)
                else:
                    numbers.count(position, size, offset + at, now_ms)
                position += size
            publish(files, ends)
            for at in range(count):
                single = <PendingSingle>PyList_GET_ITEM(group, at)
                single.result, single.timestamp = offsets[at], now_ms
            self.count(count, count, count, total)
            files.state_file.publish_durable_end(end)
            if files.producers._state is not None:
                files.producers.passed(first, end)
            observe(self.clock.monotonic() - started)
        except BaseException as error:
            files.note_failure(error)
            self.rolls.undo(before)
            raise
        return True
