# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Locks of threads, and blocks that hold them, where Python code would lose one to Ctrl-C.

Signals are served between the byte codes of Python functions. In here they are served only while a thread waits.
"""

cimport cython

from functools import wraps
from time import monotonic

from _thread import TIMEOUT_MAX, allocate_lock

__all__ = ["Attempt", "Block", "Condition", "Gate", "Released", "block"]


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
