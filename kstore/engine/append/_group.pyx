# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Group commit: appends that wait at the same time share one write and one sync.

One of the waiting threads leads: it takes all queued appends and commits them with a single call, then wakes the other
threads. A lone thread always leads. The next leader first gathers: it waits, for at most a share of what a sync costs on
this disk, until as many appends wait as the last group held, because those threads were just woken and will append again
soon (measured: without it a fast disk makes half as many syncs again).

Every append of every thread passes here, so this is compiled. The interpreter's lock guards the queue: where it changes,
nothing in here allocates or calls Python. Signals are served only while a thread waits, and within ``commit``.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)

cimport cython

from kstore.errors import ReentrantCallError, StorageError

cdef extern from "Python.h" nogil:
    ctypedef enum PyLockStatus:
        PY_LOCK_ACQUIRED
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int serves_signals)

# A leader waits for others for at most this share of a sync's usual time; a longer wait costs more than it saves.
cdef double GATHER_SHARE = 0.5
# Below this a sync is cheaper than waking threads for it.
cdef double GATHER_SECONDS_MIN = 20e-6
cdef double GATHER_SECONDS_MAX = 2e-3
# The weight of the newest measurement in the running mean of the duration of a commit.
cdef double MEAN_WEIGHT = 0.2

cdef enum:
    NO_WAIT = 0
    # A signal that comes just before a wait does not end it.
    SIGNALS_SERVED_MICROSECONDS = 100000


cdef PyThread_type_lock taken_lock() except NULL:
    cdef PyThread_type_lock lock = PyThread_allocate_lock()
    if lock == NULL:
        raise MemoryError("no memory for a lock")
    PyThread_acquire_lock(lock, NO_WAIT)
    return lock


cdef class Pending:
    """One append in progress; the commit sets ``result`` or ``error``."""

    def __dealloc__(self):
        if self.wake != NULL:
            PyThread_free_lock(self.wake)

    cdef int be_woken(self) except -1:
        """Waits until it is released. Raises what a signal's handler raises."""
        cdef PyLockStatus status
        while True:
            with nogil:
                status = PyThread_acquire_lock_timed(self.wake, SIGNALS_SERVED_MICROSECONDS, 1)
            if status == PY_LOCK_ACQUIRED:
                return 0
            PyErr_CheckSignals()

    cdef void release(self) noexcept:
        if self.waits:
            self.waits = False
            PyThread_release_lock(self.wake)

    cdef int raise_error(self) except -1:
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise StorageError("the append was abandoned: the thread that committed it was interrupted")
        return 0


@cython.final
cdef class PendingSingle(Pending):
    """An append of one plain record; its ``result`` is its offset."""

    def __init__(self, bytes value not None, bytes key):
        self.value, self.key = value, key


cdef PendingSingle single_of(bytes value, bytes key):
    cdef PendingSingle single = PendingSingle.__new__(PendingSingle)
    single.value, single.key = value, key
    return single


cdef class PendingBatches(Pending):
    def __init__(
        self,
        buffer not None,
        list batches not None,
        str codec not None,
        *,
        int64_t append_time_ms=-1,
        str source_codec="",
        spans=None,
        bint offsets_monotonic=True,
        bint with_producers=False,
        list buffers=None,
        stamp=None,
    ):
        self.buffer, self.buffers, self.batches = buffer, buffers, batches
        self.append_time_ms = append_time_ms
        self.source_codec = source_codec or codec
        self.target_codec = codec
        self.spans, self.stamp = spans, stamp
        self.offsets_monotonic = offsets_monotonic
        self.with_producers = with_producers
        self.repeated = ()


cdef class GroupCommit:
    """The queue of waiting appends, and the leader. Thread-safe; ``commit`` runs in one thread at a time.

    ``commit(group)`` sets each item's result or error; an exception from it goes to every item without one.
    """

    def __cinit__(self):
        self.gathered = taken_lock()

    def __init__(self, commit not None, clock not None, lock=None):
        """``lock``: what ``commit`` takes."""
        self.lock = lock
        self.commit = commit
        self.clock = clock
        self.last_count = 1

    def __dealloc__(self):
        if self.gathered != NULL:
            PyThread_free_lock(self.gathered)

    def submit(self, Pending item not None):
        """Returns when ``item`` is committed; raises its error.

        An exception from outside during the wait (KeyboardInterrupt) withdraws the item if no leader has taken it yet;
        otherwise it is committed although no thread waits for it.
        Raises: ReentrantCallError if this thread is inside ``submit``, or has the log's lock: it would wait for itself.
        """
        self.run(item)
        item.raise_error()

    cdef int run(self, Pending item) except -1:
        try:
            self.enqueue(item)
            if item.waits:
                item.be_woken()
            if item.leads:
                self.lead(item)
        except BaseException:
            self.withdraw(item)
            self.pass_on(item)
            raise
        return 0

    cdef int refuse_inside(self, unsigned long me) except -1:
        """Raises ReentrantCallError if this thread leads, or has an item in the queue that may have to lead."""
        cdef bint is_inside = self.leading == me
        cdef Pending each = self.first
        while each is not None and not is_inside:
            is_inside = each.thread == me
            each = each.next
        if is_inside:
            raise ReentrantCallError(
                "this append would wait for itself: a finalizer or a handler makes it inside an append of the same thread"
            )
        return 0

    cdef int enqueue(self, Pending item) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.lock is not None and self.lock.locked():
            # First: as the leader it would fail the appends of other threads.
            self.lock.refuse_inside()
        item.thread = me
        if self.is_led:
            self.refuse_inside(me)
            item.wake = taken_lock()
            item.waits = True
        else:
            self.is_led = item.leads = True
            self.leading = me
        if self.last is None:
            self.first = item
        else:
            self.last.next = item
        self.last = item
        self.waiting_count += 1
        if self.gathers and self.waiting_count >= self.last_count:
            self.gathers = False
            PyThread_release_lock(self.gathered)
        return 0

    cdef void withdraw(self, Pending item) noexcept:
        cdef Pending before = None
        cdef Pending each = self.first
        while each is not None and each is not item:
            before, each = each, each.next
        if each is None:
            return  # a leader has taken it
        if before is None:
            self.first = item.next
        else:
            before.next = item.next
        if self.last is item:
            self.last = before
        item.next = None
        self.waiting_count -= 1

    cdef int lead(self, Pending leader) except -1:
        cdef list group = None
        cdef double started
        try:
            self.gather()
            started = self.clock.monotonic()
            group = self.take()
            self.commit(group)
            self.commit_seconds += MEAN_WEIGHT * (<double>self.clock.monotonic() - started - self.commit_seconds)
        except Exception as error:
            if group is None:
                raise  # all items, the leader's too, are still in the queue
            for item in group:
                if (<Pending>item).result is None and (<Pending>item).error is None:
                    (<Pending>item).error = error
        finally:
            # Also if the leader is interrupted: the others must not wait for a leader that is gone.
            if group is not None:
                self.end(group, leader)
        return 0

    cdef int gather(self) except -1:
        cdef double seconds = min(self.commit_seconds * GATHER_SHARE, GATHER_SECONDS_MAX)
        cdef long long microseconds = <long long>(seconds * 1e6)
        if self.last_count <= 1 or seconds < GATHER_SECONDS_MIN or self.waiting_count >= self.last_count:
            return 0
        self.gathers = True
        with nogil:
            PyThread_acquire_lock_timed(self.gathered, microseconds, 1)
        if not self.gathers:
            # It was released, perhaps after the time was over.
            PyThread_acquire_lock(self.gathered, NO_WAIT)
        self.gathers = False
        PyErr_CheckSignals()
        return 0

    cdef list take(self):
        """Takes the queue's items. Only the list allocates: a finalizer may then let other threads change the queue."""
        cdef Py_ssize_t taken = 0
        cdef list group = [None] * self.waiting_count
        cdef Pending item
        while self.first is not None and taken < PyList_GET_SIZE(group):
            item = self.first
            self.first, item.next = item.next, None
            group[taken] = item
            taken += 1
        self.waiting_count -= taken
        if self.first is None:
            self.last = None
        del group[taken:]
        return group

    cdef void end(self, list group, Pending leader) noexcept:
        """Passes the lead on, and wakes the group."""
        cdef Py_ssize_t at
        self.last_count = PyList_GET_SIZE(group)
        self.pass_on(leader)
        for at in range(self.last_count):
            (<Pending>PyList_GET_ITEM(group, at)).release()

    cdef void pass_on(self, Pending leader) noexcept:
        """If ``leader`` leads, the first of the waiting threads leads next."""
        if leader.leads:
            leader.leads = False
            if self.first is None:
                self.is_led = False
                self.leading = 0
            else:
                self.first.leads = True
                self.leading = self.first.thread
                self.first.release()
