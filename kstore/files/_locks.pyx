# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Locks of threads, where Python code would lose one to Ctrl-C.

Signals are served between the byte codes of Python functions. In here they are served only while a thread waits.
"""

cimport cython

from _thread import TIMEOUT_MAX, allocate_lock

__all__ = ["Attempt", "Condition", "Released"]


@cython.final
cdef class Attempt:
    """``with Attempt(lock) as is_mine``: takes the lock if it is free, and does not wait. No interrupt leaves it held."""

    cdef object lock
    cdef bint is_mine

    def __init__(self, lock not None):
        self.lock = lock

    def __enter__(self):
        self.is_mine = self.lock.acquire(False)
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

    def wait(self, double seconds):
        """Waits for ``notify``, up to ``seconds``. Needs the lock, and releases it during the wait."""
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

    def notify(self, Py_ssize_t count=1):
        """Wakes up to ``count`` waiting threads. Needs the lock."""
        woken = self.waiters[:max(count, 0)]
        del self.waiters[:len(woken)]
        for waiter in woken:
            waiter.release()

    def notify_all(self):
        self.notify(len(self.waiters))
