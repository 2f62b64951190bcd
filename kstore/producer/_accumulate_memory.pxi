"""The memory that records take until they are delivered, and the count of failures. Part of _accumulate.pyx."""


@cython.final
cdef class Account:
    """The bytes that a pool may still lend. Each change is one call, so that no interrupt tears it."""

    cdef readonly int64_t available

    def __init__(self, int64_t available):
        self.available = available


@cython.final
@cython.no_gc
cdef class Loan:
    """Bytes out of an account: ``wanted`` of them, all or nothing; ``taken`` so far.

    A loan repays itself when nothing refers to it any more, so an interrupt between the loan and its owner loses no
    memory.
    """

    cdef readonly Account account
    cdef readonly int64_t wanted
    cdef readonly int64_t taken

    def __cinit__(self, Account account not None, int64_t wanted):
        self.account = account
        self.wanted = wanted

    def __dealloc__(self):
        if self.account is not None:
            self.account.available += self.taken

    def take(self):
        """Takes the bytes; False if too few are available. Does nothing if it has them."""
        if not self.taken:
            if self.account.available < self.wanted:
                return False
            self.account.available -= self.wanted
            self.taken = self.wanted
        return True

    def repay(self):
        """Returns the bytes; a second call does nothing."""
        self.account.available += self.taken
        self.taken = 0


@cython.final
cdef class Failures:
    """Failed deliveries that the program has not examined. Thread-safe under the GIL."""

    cdef int64_t count
    cdef object first

    def add(self, int64_t count, error not None):
        """Counts ``count`` records that failed with ``error`` and have no callback that was called."""
        if count > 0:
            self.count += count
            if self.first is None:
                self.first = error

    def seen(self):
        """Notes that one of them was examined."""
        if self.count:
            self.count -= 1
            if not self.count:
                self.first = None

    def take(self):
        """Returns the count and the first error, and resets both; None if nothing failed."""
        cdef int64_t count = self.count
        cdef object first = self.first
        if first is None:
            return None
        found = (count, first)
        self.count, self.first = 0, None
        return found
