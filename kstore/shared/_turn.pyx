# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The lock of a shared log, and the plain turn: nothing has changed since this process's last one, and at its end it
announces an append to the open tail.

That is most turns of most logs, so it is compiled. Any other turn is ``SharedTurn``'s, in Python: when another process has
the turn, or has had it; when files have changed, and their change was announced; when a log is closed, poisoned, or has
no open tail; and where the files are not this system's own, as in tests.

Signals are served between the byte codes of Python functions, never in here. So a plain turn begins as a whole or not at
all, and ends as a whole or not at all.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from threading import RLock

from kstore.files._direct cimport descriptor_of
from kstore.files._memory cimport SharedMemory
from kstore.segments._numbers cimport TailNumbers

from kstore.engine.ends import Ends
from kstore.errors import ReentrantCallError
from kstore.files.local import OsMapping
from kstore.files.lock import TURN, DirectoryLock
from kstore.state.shared_slot import MAGIC, POSITION, SIZE, SLOT, TAIL_KNOWN, VERSION, SharedState

cdef extern from *:
    """
    #include <fcntl.h>
    #include <string.h>
    #include <unistd.h>

    #ifdef F_OFD_SETLK
    static int kstore_set_turn(int fd, int byte, int is_taken) {
        struct flock lock;
        memset(&lock, 0, sizeof lock);
        lock.l_type = is_taken ? F_WRLCK : F_UNLCK;
        lock.l_whence = SEEK_SET;
        lock.l_start = byte;
        lock.l_len = 1;
        return fcntl(fd, F_OFD_SETLK, &lock);
    }
    #else
    static int kstore_set_turn(int fd, int byte, int is_taken) { return -1; }
    #endif
    """
    # 0, or -1 if another process has the turn, or the system refuses.
    int set_turn "kstore_set_turn"(int fd, int byte, int is_taken) nogil

cdef extern from "Python.h":
    # Borrowed: the frame of the Python function that has called.
    PyObject* PyEval_GetFrame()

cdef extern from "<unistd.h>" nogil:
    ctypedef long long off_t
    off_t lseek(int fd, off_t position, int whence)
    int SEEK_END

cdef enum:
    TURN_BYTE = 2
    RECORD_SIZE = 132
    CRC_AT = 128
    FIELDS_AT = 8
    # The fields of 8 bytes; an append does not change those before them.
    END_OFFSET = 4
    BASE_OFFSET = 5
    LOG_POSITION = 6
    DURABLE_END = 7
    FIRST_TIMESTAMP = 8
    MAX_TIMESTAMP = 9
    OFFSET_OF_MAX_TIMESTAMP = 10
    SINCE_ENTRY = 11
    OFFSET_ENTRY_COUNT = 12
    TIME_ENTRY_COUNT = 13
    LAST_APPEND_MS = 14
    # Of ``Ends``.
    ENDS_DURABLE_END = 2
    ENDS_END_OFFSET = 4
    ENDS_BASE_OFFSET = 5
    ENDS_POSITION = 6

assert TURN[1] == TURN_BYTE and SIZE == RECORD_SIZE and SLOT.size == CRC_AT
assert SharedState._fields[1 + END_OFFSET :] == (
    "end_offset", "base_offset", "position", "durable_end", "first_timestamp", "max_timestamp",
    "offset_of_max_timestamp", "since_entry", "offset_entry_count", "time_entry_count", "last_append_ms",
), SharedState._fields
assert Ends._fields[ENDS_DURABLE_END:] == (
    "durable_end", "high_watermark", "end_offset", "base_offset", "position"
), Ends._fields

cdef Py_ssize_t RECORD_POSITION = POSITION
# What such a record begins with: the version, and a flag.
cdef bytes HEAD = SLOT.pack(MAGIC, VERSION, TAIL_KNOWN, *[0] * 15)[:FIELDS_AT]

include "../record/_crc.pxi"


cdef class SharedTurnLock:
    """The log's lock: that of the threads and, inside it, that of the processes.

    An exception from outside (KeyboardInterrupt) may end either method anywhere. The turn is released nevertheless, at
    the latest when the same thread takes it again. While the function that took it still runs, that raises
    ReentrantCallError:     a handler of signals or of log messages is inside a change, whose files are not in order.
    """

    cdef object _turn, _files, _others, _directory_lock
    # The record's; None if no turn is plain.
    cdef SharedMemory _memory
    # Reentrant only to reveal its owner.
    cdef public object _mutex
    cdef unsigned long _owner
    # That of the function that took it.
    cdef object _frame

    def __init__(self, turn, files, others, directory_lock):
        self._turn = turn
        self._files = files
        self._others = others
        self._directory_lock = directory_lock
        self._memory = memory_of(others.slot) if type(directory_lock) is DirectoryLock else None
        self._mutex = RLock()

    @property
    def is_mine(self):
        """Whether this thread holds it."""
        return self._owner == PyThread_get_thread_ident()

    def acquire(self, bint blocking=True, double timeout=-1.0):
        """Takes the turn, as any lock. With a limit it asks for that of the processes again and again."""
        return self.take(timeout if blocking else 0.0)

    def release(self):
        self.leave()

    def __enter__(self):
        self.take(-1.0)

    def __exit__(self, *error):
        self.leave()

    cdef bint take(self, double timeout) except -1:
        """Takes the turn; False if ``timeout`` seconds were not enough. Negative: there is no limit."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._owner == me:
            self.refuse_in_frames()
            self.leave()  # an interrupt came before the release
        try:
            if timeout < 0:
                self._mutex.acquire()
            elif not self._mutex.acquire(True, timeout):
                return False
            self._owner = me
            self._frame = frame_of_caller()
            if not self.begin_plain():
                if timeout < 0:
                    self._turn.take_turn()
                elif not self._turn.take_turn(timeout):
                    self.give_back()
                    return False
        except BaseException:
            self.give_back()
            raise
        return True

    def has_news(self):
        """Whether the record is not as this process last left it; None if that must be asked in another way."""
        cdef SharedMemory memory = self._memory
        cdef bytes seen
        if memory is None or memory._is_closed:
            return None
        seen = self._others.seen_data
        return (
            PyBytes_GET_SIZE(seen) != RECORD_SIZE
            or memcmp(memory._start + RECORD_POSITION, PyBytes_AS_STRING(seen), RECORD_SIZE) != 0
        )

    def locked(self):
        """Whether a thread has it."""
        return self._owner != 0

    def refuse_inside(self):
        """Raises: ReentrantCallError, if this thread has it."""
        if self._owner == PyThread_get_thread_ident():
            self.refuse_in_frames()

    cdef int refuse_in_frames(self) except -1:
        """Raises: ReentrantCallError if the function that took the turn still runs."""
        frame = frame_of_caller()
        while frame is not None:
            if frame is self._frame:
                reason = "this thread is in the middle of a change of the log: a handler that runs inside it cannot use it"
                raise ReentrantCallError(f"{self._files.context.directory}: {reason}")
            frame = frame.f_back
        return 0

    cdef int leave(self) except -1:
        try:
            try:
                if not self.end_plain():
                    self._turn.leave_turn()
            except BaseException:
                self._turn.leave_turn()  # what an interrupt has left to do
                raise
        finally:
            self.give_back()
        return 0

    cdef int give_back(self) except -1:
        if self._owner == PyThread_get_thread_ident():
            self._owner = 0  # an interrupt may have come while another thread held it
            self._frame = None
        try:
            self._mutex.release()
        except RuntimeError:
            pass  # an interrupt came before it was taken
        return 0

    cdef bint begin_plain(self) except -1:
        """Takes the turn of the processes, if there is nothing to catch up with. False: then nothing is done."""
        cdef SharedMemory memory = self._memory
        cdef bytes seen
        cdef const uint8_t* data
        cdef int lock_fd, log_fd
        files, others = self._files, self._others
        if memory is None or files.closed is not None or files.poisoned is not None:
            return False
        if self._turn.closes_alone:
            return False
        log_fd = -1 if files.tail is None else descriptor_of(files.tail.open_file)
        lock_fd = self._directory_lock._fd
        seen = others.seen_data
        if log_fd < 0 or lock_fd < 0 or not is_plain(seen):
            return False
        if set_turn(lock_fd, TURN_BYTE, True) != 0:
            return False
        data = <const uint8_t*>PyBytes_AS_STRING(seen)
        if (
            # Now: to look at the others may have let another thread close it.
            not memory._is_closed
            and memcmp(memory._start + RECORD_POSITION, data, RECORD_SIZE) == 0
            and lseek(log_fd, 0, SEEK_END) == <off_t>field_of(data, LOG_POSITION)
        ):
            try:
                others.has_turn = True
                return True
            except BaseException:
                set_turn(lock_fd, TURN_BYTE, False)
                raise
        set_turn(lock_fd, TURN_BYTE, False)
        return False

    cdef bint end_plain(self) except -1:
        """Stores the record, if an append has changed it, and passes the turn on. False: something else is left to do."""
        cdef SharedMemory memory = self._memory
        cdef TailNumbers numbers
        cdef bytes seen, record
        cdef uint8_t data[RECORD_SIZE]
        cdef int lock_fd
        files, others = self._files, self._others
        if memory is None or memory._is_closed:
            return False
        if not others.has_turn:
            return True
        if others.is_changing or files.poisoned is not None:
            return False
        tail, ends = files.tail, files.ends
        lock_fd = self._directory_lock._fd
        seen = others.seen_data
        if (
            tail is None
            or lock_fd < 0
            or not is_plain(seen)
            or type(ends) is not Ends
            or tail.base_offset != <object>PyTuple_GET_ITEM(ends, ENDS_BASE_OFFSET)
        ):
            return False
        numbers = tail.numbers
        # What only announced changes change stays: the counts, the generation, the epoch.
        memcpy(data, PyBytes_AS_STRING(seen), RECORD_SIZE)
        put(data, END_OFFSET, <object>PyTuple_GET_ITEM(ends, ENDS_END_OFFSET))
        put(data, BASE_OFFSET, <object>PyTuple_GET_ITEM(ends, ENDS_BASE_OFFSET))
        put(data, LOG_POSITION, <object>PyTuple_GET_ITEM(ends, ENDS_POSITION))
        put(data, DURABLE_END, <object>PyTuple_GET_ITEM(ends, ENDS_DURABLE_END))
        put(data, FIRST_TIMESTAMP, numbers.first_timestamp)
        put(data, MAX_TIMESTAMP, numbers.max_timestamp)
        put(data, OFFSET_OF_MAX_TIMESTAMP, numbers.offset_of_max_timestamp)
        put(data, SINCE_ENTRY, numbers.since_entry)
        put(data, OFFSET_ENTRY_COUNT, tail.offset_index._count)
        put(data, TIME_ENTRY_COUNT, tail.time_index._count)
        put(data, LAST_APPEND_MS, files.last_append_ms)
        if memcmp(data, PyBytes_AS_STRING(seen), CRC_AT) != 0:
            put_big_endian(data + CRC_AT, small_crc(data, CRC_AT), 4)
            record = PyBytes_FromStringAndSize(<char*>data, RECORD_SIZE)
            memory.store(RECORD_POSITION, record)
            others._seen = None
            others.seen_data = record
        if set_turn(lock_fd, TURN_BYTE, False) != 0:
            return False
        others.has_turn = False
        return True


cdef object frame_of_caller():
    cdef PyObject* frame = PyEval_GetFrame()
    return None if frame == NULL else <object>frame


cdef inline bint is_plain(bytes record) noexcept:
    """Whether the record describes the tail, and says nothing else that is special."""
    return (
        PyBytes_GET_SIZE(record) == RECORD_SIZE
        and memcmp(PyBytes_AS_STRING(record), PyBytes_AS_STRING(HEAD), FIELDS_AT) == 0
    )


cdef SharedMemory memory_of(slot):
    """The memory that has the record for as long as it is not closed, or None."""
    cdef SharedMemory memory
    if type(slot.mapping) is not OsMapping:
        return None
    memory = slot.mapping._memory
    return memory if memory._size >= RECORD_POSITION + RECORD_SIZE else None


cdef inline uint64_t field_of(const uint8_t* record, int number) noexcept:
    cdef uint64_t value = 0
    cdef int at
    for at in range(8):
        value = value << 8 | record[FIELDS_AT + 8 * number + at]
    return value


cdef inline int put(uint8_t* record, int number, value) except -1:
    cdef int64_t as_int = value
    put_big_endian(record + FIELDS_AT + 8 * number, <uint64_t>as_int, 8)
    return 0


cdef inline void put_big_endian(uint8_t* data, uint64_t number, int size) noexcept:
    cdef int at
    for at in range(size - 1, -1, -1):
        data[at] = <uint8_t>(number & 0xFF)
        number >>= 8
