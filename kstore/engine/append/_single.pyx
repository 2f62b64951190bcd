# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The short path of an append: one plain record, into the page cache, in one call (``_synced`` has the one to the disk).

It is ``Appends.append_many`` of one record where nothing needs a decision; otherwise it does nothing, and its caller
takes that way. So it does where the ``.log`` is not a file of this system, as in tests: they see every write.

Signals are served between the byte codes of Python functions, never in here. What may fail, such as an allocation, comes
before the write, and what comes after it is a few stores: so an append happens as a whole or not at all. The exceptions
call Python: an index entry, a flush that is due, producers that are known. An error there takes the append back, unless
it is published.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

cimport cython

from kstore.engine._ends cimport EndsMaker
from kstore.engine._fields cimport LogFields, publish
from kstore.files._direct cimport descriptor_of, write_whole
from kstore.record._codec cimport put_single, single_size
from kstore.segments._numbers cimport TailNumbers

import os
from functools import wraps

from kstore.clock import SystemClock
from kstore.engine.ends import ENDS_MAKER, Ends
from kstore.metrics import APPENDED

__all__ = ["SINGLE_BYTES_MAX", "SingleAppends", "WrittenAppends", "single_first", "wake_followers"]

cdef enum:
    # A larger batch of one record is copied less often by the general path.
    BYTES_MAX = 1 << 14
    # Of ``Ends``.
    RECOVERY_POINT = 1
    END_OFFSET = 4
    BASE_OFFSET = 5

SINGLE_BYTES_MAX = BYTES_MAX

assert Ends._fields[RECOVERY_POINT] == "recovery_point" and Ends._fields[END_OFFSET:] == (
    "end_offset", "base_offset", "position"
), Ends._fields
assert APPENDED == ("appends", "append_batches", "append_records", "append_bytes"), APPENDED

cdef EndsMaker maker = ENDS_MAKER

# How often this process is a child of the one that has loaded this module, or of a child of it.
cdef int forks = 0


def _count_fork():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


def wake_followers(growth not None):
    """Wakes the followers of a log, after an append or what may have been one.

    It comes before any signal is served, because this is compiled; and an interrupt in it leaves no follower asleep.
    """
    wake_all(growth)


cdef int wake_all(growth) except -1:
    if growth.follower_count:
        try:
            growth.wake()
        except BaseException:
            growth.wake()  # what an interrupt has left to do
            raise
    return 0


cdef class LogAppends:
    """What every compiled way of an append needs of its log."""

    def __init__(self, LogFields files not None, lock, durability, rolls, growth):
        self.files = files
        self.take, self.give_back = lock.acquire, lock.release
        self.clock = files.context.clock
        self.is_system_clock = type(self.clock) is SystemClock
        self.durability = durability
        self.rolls = rolls
        self.growth = growth
        self.counters = files.counters
        self.appended = files.counters.appended
        if self.appended.ob_descr.typecode != c"q" or len(self.appended) != len(APPENDED):
            raise TypeError(f"{self.appended!r}, expected the counts of {APPENDED}")

    cdef void count(self, int64_t appends, int64_t batches, int64_t records, int64_t size) noexcept:
        cdef long long* appended = self.appended.data.as_longlongs
        appended[0] += appends
        appended[1] += batches
        appended[2] += records
        appended[3] += size

    cdef int wake(self) except -1:
        return wake_all(self.growth)

    cdef int64_t now_ms(self) except? -1:
        cdef timespec now
        if self.is_system_clock and clock_gettime(CLOCK_REALTIME, &now) == 0:
            return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000
        return self.clock.now_ms()


cdef class SingleAppends(LogAppends):
    """Appends to one log, one plain record each. Thread-safe."""

    def __init__(self, LogFields files not None, lock, durability, rolls, growth):
        """Until ``use``, no record is plain."""
        LogAppends.__init__(self, files, lock, durability, rolls, growth)
        self.forks = forks
        self.size_max = 0

    def use(self, Py_ssize_t size_max, bint needs_key):
        """Takes records whose batch has at most ``size_max`` bytes, with a key if the log needs one."""
        self.size_max = min(size_max, <Py_ssize_t>BYTES_MAX)
        self.needs_key = needs_key

    def append(self, value, key):
        """The offset and the timestamp of the record; None, and nothing is done, if anything needs a decision. Raises:
        KstoreError."""
        return self.counted(value, key, True)

    cdef object counted(self, object value, object key, bint timed):
        raise NotImplementedError

    cdef bint is_plain(self, object value, object key) noexcept:
        if type(value) is not bytes or (self.needs_key if key is None else type(key) is not bytes):
            return False
        # No sum that could overflow.
        if PyBytes_GET_SIZE(value) > self.size_max or (key is not None and PyBytes_GET_SIZE(key) > self.size_max):
            return False
        return self.forks == forks


@cython.final
cdef class WrittenAppends(SingleAppends):
    """Appends that do not wait for the disk."""

    cdef bint is_prompt

    def __init__(self, LogFields files not None, lock, durability, rolls, growth):
        SingleAppends.__init__(self, files, lock, durability, rolls, growth)
        self.is_prompt = durability.is_prompt

    cdef object counted(self, object value, object key, bint timed):
        if not self.is_plain(value, key):
            return None
        result = None
        try:
            self.take()
            try:
                result = self.commit(<bytes>value, <bytes>key, timed)
            finally:
                self.give_back()
        except BaseException as error:
            self.wake()
            if result is None or not isinstance(error, MemoryError) or self.files.poisoned is not None:
                if isinstance(error, Exception):
                    self.counters.append_failed(error)
                raise
            return result  # it is in the log: an error would let its caller write it again
        if result is not None:
            self.wake()
        return result

    cdef object commit(self, bytes value, bytes key, bint timed):
        """Needs the lock."""
        cdef LogFields files = self.files
        cdef uint8_t batch[BYTES_MAX]
        cdef TailNumbers numbers
        cdef Py_ssize_t size
        cdef int64_t now_ms, offset, position
        cdef int32_t epoch
        cdef bint is_written, needs_entry
        cdef int fd
        tail, before = files.tail, files.ends
        if tail is None or files.closed is not None or files.poisoned is not None or type(before) is not Ends:
            return None
        now_ms = self.now_ms()
        latest_epoch = files.epochs.latest_epoch
        epoch = 0 if latest_epoch is None else latest_epoch
        numbers = tail.numbers
        first = <object>PyTuple_GET_ITEM(before, END_OFFSET)
        base_offset = <object>PyTuple_GET_ITEM(before, BASE_OFFSET)
        offset = first
        size = single_size(value, key)
        if size > self.size_max or not numbers.takes_single(size, offset, now_ms, files.last_append_ms):
            return None
        if numbers.base_offset != <int64_t>base_offset:
            return None  # an interrupt came between a roll and its publication
        position = numbers.position
        end = offset + 1
        ends = maker.grown_from(before, end, base_offset, position + size)
        result = (first, now_ms) if timed else first
        put_single(batch, size, value, key, now_ms, offset, epoch)
        file = tail.open_file
        fd = descriptor_of(file)
        if fd < 0:
            return None
        with nogil:
            is_written = write_whole(fd, <const char*>batch, size, position)
        if not is_written:
            # The blocks ahead went, too, if a part was cut off again.
            numbers.allocated = position
            return None
        files.last_append_ms = now_ms
        numbers.position = position + size
        needs_entry = numbers.since_entry > numbers.index_interval_bytes
        if not needs_entry:
            numbers.count(position, size, offset, now_ms)
        try:
            if needs_entry:
                tail.note(position, size, first, now_ms)
            publish(files, ends)
            if self.is_prompt or offset + 1 - <int64_t><object>PyTuple_GET_ITEM(ends, RECOVERY_POINT) >= files.flush_messages:
                self.durability.flush_as_due(ends)
            if files.producers._state is not None:
                files.producers.passed(first, end)
        except BaseException as error:
            files.note_failure(error)
            self.rolls.undo(before)
            if (
                not isinstance(error, MemoryError)
                or files.poisoned is not None
                or files.ends.extent == before.extent
            ):
                raise
            # Only for the work after the publication, which the next append or flush makes up for.
        self.count(1, 1, 1, size)
        return result


@cython.binding(True)
def single_first(general):
    """Decorates ``Log.append``: a record that ``self._single``, a SingleAppends or None, takes is not left to it."""

    # Errors about the arguments name it.
    def append(self, value, *, key=None, headers=(), timestamp=None):
        if timestamp is None and not headers:
            single = self._single
            if single is not None:
                offset = (<SingleAppends?>single).counted(value, key, False)
                if offset is not None:
                    return offset
        return general(self, value, key=key, headers=headers, timestamp=timestamp)

    return wraps(general)(append)
