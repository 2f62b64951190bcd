"""The memory that records take until they are delivered, and the count of failures. Part of _accumulate.pyx."""


@cython.final
cdef class Account:
    """The bytes that a pool may still lend, and its free buffers, each made for ``buffer_size`` bytes.

    Each change is one call that runs no Python code. So no interrupt and no other thread comes between its parts.
    """

    cdef readonly int64_t available
    cdef readonly list free
    cdef readonly int64_t buffer_size
    # A buffer that has grown beyond this is not kept.
    cdef int64_t capacity_max
    # The requests that wait: while there are any, or if it is closed, nothing is lent besides.
    cdef readonly object waiting
    # What is called when memory is returned.
    cdef public list freed
    cdef public bint is_closed

    def __init__(self, int64_t available, int64_t buffer_size=0, int64_t capacity_max=0, waiting=()):
        self.available = available
        self.free = []
        self.buffer_size = buffer_size
        self.capacity_max = capacity_max
        self.waiting = waiting
        self.freed = []

    def pop_free(self):
        """A free buffer, which is no longer kept; None without one."""
        return self.free.pop() if self.free else None

    cpdef lend_free(self):
        """A free buffer, with its loan; None without one, without the bytes for it, or if a request waits."""
        cdef Loan loan = Loan(self, self.buffer_size)
        cdef BatchBuffer buffer
        if not self.free or self.available < self.buffer_size or self.is_closed or self.waiting:
            return None
        buffer = self.free.pop()
        self.available -= loan.wanted
        loan.taken = loan.wanted
        buffer.loan = loan
        return buffer

    cpdef take_back(self, BatchBuffer buffer, size=None):
        """Takes a lent buffer back, whose content is lost, and keeps it if it is one of ``buffer_size``.

        Raises: ValueError, BufferError; then nothing has changed.
        """
        cdef Loan loan
        cdef int64_t lent
        if buffer is None:
            raise TypeError("None, expected a buffer")
        given = buffer.loan
        if type(given) is not Loan or (<Loan>given).account is not self:
            raise ValueError("a buffer that the pool has not lent, or that was given back already")
        loan = given
        lent = loan.taken
        if size is not None and size != lent:
            raise ValueError(f"a buffer of {size} bytes given back, expected the {lent} that it was allocated for")
        buffer.truncate(0)
        buffer.loan = None
        loan.repay()
        # A buffer that grew, for a large record or in compression, would keep more than is counted.
        if lent == self.buffer_size and buffer.capacity <= self.capacity_max:
            self.free.append(buffer)

    def drop_excess(self):
        """Drops free buffers until all of them fit into the available bytes, which include theirs."""
        while self.free and len(self.free) * self.buffer_size > self.available:
            self.free.pop()


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

    cpdef repay(self):
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
