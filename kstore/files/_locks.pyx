# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Locks of threads, and blocks that hold them, where Python code would lose one to Ctrl-C.

Signals are served between the byte codes of Python functions. In here they are served only while a thread waits.
"""

cimport cython

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)

from functools import wraps
from time import monotonic

from _thread import TIMEOUT_MAX, allocate_lock

from kstore.errors import ReentrantCallError

cdef extern from "Python.h" nogil:
    ctypedef enum PyLockStatus:
        PY_LOCK_ACQUIRED
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int serves_signals)

cdef enum:
    NO_WAIT = 0
    # A signal that comes just before a wait does not end it.
    SIGNALS_SERVED_MICROSECONDS = 100000


def block(function not None):
    """As ``contextlib.contextmanager``, for generators that hold a lock or undo a step at the end of the block.

    The ``__exit__`` of ``contextlib`` is a Python function. A signal that is served as it begins leaves the generator
    suspended, with what it holds, for as long as the traceback lives. Here the generator always gets to its end.
    """

    @wraps(function)
    @cython.binding(True)
    def begin(*arguments, **options):
        return Block(function(*arguments, **options))

    return begin


@cython.final
cdef class Block:
    """A ``with`` block around which a generator runs: the part before its value, and the part after."""

    cdef object steps

    def __init__(self, steps not None):
        self.steps = steps

    def __enter__(self):
        try:
            return next(self.steps)
        except StopIteration:
            raise RuntimeError("the generator of a block has no value") from None

    def __exit__(self, kind, error, traceback):
        if error is None:
            try:
                next(self.steps)
            except StopIteration:
                return False
            raise RuntimeError("the generator of a block goes on after its value")
        try:
            self.steps.throw(error)
        except StopIteration as end:
            return end is not error
        except BaseException as raised:
            # A generator cannot raise StopIteration: it comes out as the cause of a RuntimeError.
            if raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error):
                error.__traceback__ = traceback
                return False
            raise
        raise RuntimeError("the generator of a block goes on after an error")


@cython.final
cdef class Attempt:
    """``with Attempt(lock) as is_mine``: takes the lock if it is free, or becomes free within ``seconds``. No interrupt
    leaves it held."""

    cdef object lock
    cdef double seconds
    cdef bint is_mine

    def __init__(self, lock not None, double seconds=0.0):
        self.lock = lock
        self.seconds = seconds

    def __enter__(self):
        self.is_mine = self.lock.acquire(True, self.seconds) if self.seconds > 0.0 else self.lock.acquire(False)
        return self.is_mine

    def __exit__(self, *_):
        if self.is_mine:
            self.is_mine = False
            self.lock.release()


@cython.final
cdef class Released:
    """``with Released(lock)``: the thread, which has the lock, lets others have it. Afterwards it has it again, also if it
    is interrupted while it waits for it: the block around this one releases the lock."""

    cdef object lock
    cdef bint is_released

    def __init__(self, lock not None):
        self.lock = lock

    def __enter__(self):
        self.lock.release()
        self.is_released = True

    def __exit__(self, *_):
        if self.is_released:
            self.is_released = False
            take(self.lock)


cdef int take(lock) except -1:
    """Waits for the lock, however often it is interrupted; then raises the last interrupt."""
    interrupt = None
    while True:
        try:
            lock.acquire()
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return 0


@cython.final
cdef class Condition:
    """As ``threading.Condition``. A thread that is interrupted in ``wait`` has the lock, too, when that raises."""

    cdef object lock
    cdef list waiters

    def __init__(self, lock not None):
        self.lock = lock
        self.waiters = []

    def __len__(self):
        """How many threads wait, and were not woken."""
        return len(self.waiters)

    def wait(self, double seconds=TIMEOUT_MAX):
        """Waits for ``notify``, up to ``seconds``. Needs the lock, once if it is reentrant, and releases it during the
        wait."""
        waiter = allocate_lock()
        waiter.acquire()
        self.waiters.append(waiter)
        self.lock.release()
        try:
            return waiter.acquire(True, min(max(seconds, 0.0), TIMEOUT_MAX))
        finally:
            try:
                take(self.lock)
            finally:
                if waiter in self.waiters:
                    self.waiters.remove(waiter)

    def wait_for(self, is_over, seconds=None):
        """Waits until ``is_over()``, up to ``seconds``; returns whether it is. As ``wait``."""
        deadline = None if seconds is None else monotonic() + seconds
        while not is_over():
            left = TIMEOUT_MAX if deadline is None else deadline - monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self, Py_ssize_t count=1):
        """Wakes up to ``count`` waiting threads. Needs the lock."""
        while count > 0 and self.waiters:
            count -= 1
            self.waiters.pop(0).release()

    def notify_all(self):
        self.notify(len(self.waiters))


@cython.final
cdef class Gate:
    """Closed until ``open``, which any threads ``wait`` for. No interrupt of one of them keeps the others waiting."""

    cdef object lock
    cdef readonly bint is_open

    def __init__(self):
        self.lock = allocate_lock()
        self.lock.acquire()

    def open(self):
        """A second call does nothing."""
        if not self.is_open:
            self.is_open = True
            self.lock.release()

    def wait(self, seconds=None):
        """Waits up to ``seconds``; returns whether it is open."""
        if not self.is_open:
            if not self.lock.acquire(True, -1 if seconds is None else min(max(seconds, 0.0), TIMEOUT_MAX)):
                return False
            # For the next thread; no signal is served in between.
            self.lock.release()
        return True


@cython.final
cdef class OwnedLock:
    """As ``threading.Lock``, but a thread that has it does not wait for it: ``ReentrantCallError``.

    The garbage collector and signals run Python code anywhere, also in a thread that holds a lock. If that code needs the
    lock, a plain one waits forever. The owner is compared only if the lock is not free.
    """

    cdef PyThread_type_lock lock
    # 0 while it is free.
    cdef unsigned long owner

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        if self.lock != NULL:
            if self.owner:
                PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cdef bint acquired(self, bint waits, double seconds) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef PyLockStatus status
        cdef long long slice_microseconds = SIGNALS_SERVED_MICROSECONDS
        cdef double deadline = 0.0
        if PyThread_acquire_lock(self.lock, NO_WAIT):
            self.owner = me
            return True
        if not waits or seconds == 0.0:
            return False
        if self.owner == me:
            raise ReentrantCallError(
                "this call would wait for itself: a finalizer or a handler makes it inside a call of the same thread"
            )
        if seconds > 0.0:
            deadline = <double>monotonic() + seconds
        while True:
            if seconds > 0.0:
                slice_microseconds = <long long>min(max((deadline - <double>monotonic()) * 1e6, 0.0), 1e5)
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, slice_microseconds, 1)
            if status == PY_LOCK_ACQUIRED:
                self.owner = me
                return True
            PyErr_CheckSignals()
            if slice_microseconds == 0:
                return False

    def acquire(self, bint blocking=True, double timeout=-1.0):
        """As ``threading.Lock.acquire``. Raises: ReentrantCallError, and what a signal's handler raises."""
        return self.acquired(blocking, timeout)

    def release(self):
        if not self.owner:
            raise RuntimeError("release unlocked lock")
        self.owner = 0
        PyThread_release_lock(self.lock)

    def locked(self):
        return self.owner != 0

    @property
    def is_mine(self):
        """Whether this thread has it."""
        return self.owner == PyThread_get_thread_ident()

    def refuse_inside(self):
        """Raises: ReentrantCallError, if this thread has it."""
        if self.owner == PyThread_get_thread_ident():
            self.acquired(True, -1.0)

    def __enter__(self):
        self.acquired(True, -1.0)
        return True

    def __exit__(self, kind, error, traceback):
        self.release()


@cython.final
cdef class Presence:
    """The threads that are inside something: ``with presence.entered() as is_outermost``. No interrupt leaves one."""

    cdef set idents

    def __init__(self):
        self.idents = set()

    def entered(self):
        cdef Entered made = Entered.__new__(Entered)
        made.idents = self.idents
        return made

    @property
    def has_me(self):
        """Whether this thread is inside."""
        return PyThread_get_thread_ident() in self.idents


@cython.final
cdef class Entered:
    cdef set idents
    cdef object ident

    def __enter__(self):
        # Boxed once: nothing is allocated after the set has it.
        cdef object ident = PyThread_get_thread_ident()
        if ident in self.idents:
            return False
        self.ident = ident
        try:
            self.idents.add(ident)
        except BaseException:
            # A set that has no memory to grow keeps what was added.
            self.idents.discard(ident)
            raise
        return True

    def __exit__(self, kind, error, traceback):
        if self.ident is not None:
            self.idents.discard(self.ident)
            self.ident = None
