# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""What tasks leave for the threads that write, and who writes next.

Each log and queue has lines of items that wait. A line with items is ready; a thread serves one line at a time, takes
what waits in it, and comes back when that is on disk. The loop is not asked in between.

Every item passes here, so this is compiled. The interpreter's lock guards all of it: where it changes, nothing in here
allocates or calls Python. So a task and a thread see each item either in its line or taken, and a signal, which is served
between the byte codes of Python functions, leaves no item without a thread that comes for it.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)

cimport cython

import os
from asyncio import get_running_loop

from kstore.errors import ClosedError, ThreadStartError

__all__ = ["Entry", "Line", "Lines", "Server", "are_bytes", "items_of", "loops_of", "settle"]

cdef enum:
    NO_WAIT = 0
    WAIT = 1
    # What an entry needs besides its item, bytes.
    ENTRY_BYTES = 256

# How often this process is a child of the one that has loaded this module, or of a child of it.
cdef int forks = 0


def _count_fork():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


@cython.final
@cython.freelist(256)
@cython.trashcan(True)  # a long line that is dropped would be a deep recursion
cdef class Entry:
    """One item, and the future that its task awaits. ``settle`` sets ``outcome``: the result, or the exception."""

    cdef readonly object loop, item, outcome
    cdef public object future
    cdef readonly bint is_settled
    cdef Py_ssize_t size
    # Its neighbours in the line.
    cdef Entry before, after
    cdef bint waits


@cython.final
cdef class Line:
    """Items that wait for one log, in order of arrival. One thread serves it at a time.

    Its items need at most about ``size_max`` bytes, or it holds one item.
    """

    cdef Lines lines
    # ``serve()`` is called in a thread for what waits.
    cdef readonly object serve
    cdef Py_ssize_t size_max
    cdef readonly Py_ssize_t size
    # How many tasks wait for room, and the future of the first of them.
    cdef public Py_ssize_t waiting_count
    cdef public object freed
    cdef Entry first, last
    cdef bint is_ready, is_served
    # The next one that is ready.
    cdef Line next

    def __init__(self, Lines lines not None, serve not None, Py_ssize_t size_max):
        self.lines, self.serve, self.size_max = lines, serve, size_max

    def join(self, item, Py_ssize_t size):
        """The entry of an item of the running loop's task. None, and it has not joined, if there is no room or
        ``waiting_count`` tasks wait for some. Raises: ClosedError, ForkedError, ThreadStartError."""
        return None if self.waiting_count else self.join_first(item, size)

    cpdef Entry join_first(self, item, Py_ssize_t size):
        """``join`` for the first of the tasks that wait for room."""
        cdef Lines lines = self.lines
        cdef Entry entry
        if lines.is_closed or lines.forks != forks:
            lines.refuse()
        if self.size >= self.size_max:
            return None
        entry = Entry.__new__(Entry)
        entry.loop, entry.item = get_running_loop(), item
        entry.size = size + ENTRY_BYTES
        entry.future = entry.loop.create_future()
        entry.before = self.last
        if self.last is None:
            self.first = entry
        else:
            self.last.after = entry
        self.last = entry
        self.size += entry.size
        entry.waits = True
        if self.is_served:
            return entry
        if not self.is_ready:
            lines.make_ready(self)
        if lines.call():
            try:
                lines.start_server(lines)
            except BaseException as error:
                # If there are others, one of them comes later.
                if not lines.running_count or not isinstance(error, ThreadStartError):
                    self.withdraw(entry)
                    raise
        return entry

    def withdraw(self, Entry entry not None):
        """Takes an entry out; returns whether it still waited."""
        if not entry.waits:
            return False
        self.remove(entry)
        # Perhaps nothing is left to serve, and no thread tells of the room.
        self.tell_room()
        return True

    cdef int tell_room(self) except -1:
        """Ends the wait of the first task that waits for room, on its loop."""
        freed = self.freed
        if freed is not None and not freed.done():
            freed.set_result(None)
        return 0

    cdef void remove(self, Entry entry) noexcept:
        entry.waits = False
        self.size -= entry.size
        if entry.before is None:
            self.first = entry.after
        else:
            entry.before.after = entry.after
        if entry.after is None:
            self.last = entry.before
        else:
            entry.after.before = entry.before
        entry.before = entry.after = None

    def take(self, Py_ssize_t count_max, Py_ssize_t size_max):
        """The first entries, at most ``count_max`` of together ``size_max`` bytes, or one. For the thread that serves."""
        cdef Py_ssize_t count = 0, taken = 0, size = 0
        cdef Entry entry = self.first
        while entry is not None and count < count_max:
            size += entry.size
            if count and size > size_max:
                break
            count += 1
            entry = entry.after
        # Only this allocates: a finalizer may then let tasks change the line.
        cdef list group = [None] * count
        while self.first is not None and taken < count:
            entry = self.first
            self.remove(entry)
            group[taken] = entry
            taken += 1
        del group[taken:]
        return group


@cython.final
cdef class Server:
    """One thread that serves lines, and the lock on which it sleeps."""

    cdef Line line
    cdef PyThread_type_lock bell
    cdef Server next
    # Whether its thread has not begun yet, and has not been given up.
    cdef bint is_starting

    def __cinit__(self):
        self.bell = PyThread_allocate_lock()
        if self.bell == NULL:
            raise MemoryError("no memory for a lock")
        PyThread_acquire_lock(self.bell, NO_WAIT)

    def __dealloc__(self):
        if self.bell != NULL:
            PyThread_free_lock(self.bell)

    def serve(self):
        """Serves the line that ``Lines.next`` has chosen."""
        self.line.serve()


@cython.final
cdef class Lines:
    """The lines that are ready, and the threads that serve them: at most ``server_max``.

    ``guard`` is the ForkGuard of the store; ``start_server(lines)`` starts a thread.
    """

    cdef object guard, start_server
    cdef int forks
    cdef readonly bint is_closed
    cdef Py_ssize_t server_max
    cdef Line first, last
    cdef Py_ssize_t ready_count
    # Of the threads that sleep, the last one that began to.
    cdef Server idle
    # Threads that run, that are being started, and that were woken and have not looked yet.
    cdef readonly Py_ssize_t running_count
    cdef Py_ssize_t starting_count, waking_count

    def __init__(self, guard not None, start_server not None, Py_ssize_t server_max):
        self.guard, self.start_server = guard, start_server
        self.forks = forks
        self.server_max = server_max

    cdef int refuse(self) except -1:
        self.guard.check("the store")
        raise ClosedError("the store is closed")

    cdef void make_ready(self, Line line) noexcept:
        line.is_ready = True
        if self.last is None:
            self.first = line
        else:
            self.last.next = line
        self.last = line
        self.ready_count += 1

    cdef void wake(self) noexcept:
        """Wakes one of the threads that sleep."""
        cdef Server server = self.idle
        self.idle, server.next = server.next, None
        self.waking_count += 1
        PyThread_release_lock(server.bell)

    cdef bint call(self) noexcept:
        """Wakes a thread for each ready line. Whether there are too few, and one more may be started."""
        while self.idle is not None and self.waking_count + self.starting_count < self.ready_count:
            self.wake()
        return (
            self.waking_count + self.starting_count < self.ready_count
            and self.running_count + self.starting_count < self.server_max
        )

    # --- the threads ------------------------------------------------------------------------------------------------

    def begin_start(self, Server server not None):
        """Before the start of a thread, which calls ``begin``; if it fails, its starter calls ``give_up``."""
        server.is_starting = True
        self.starting_count += 1

    def begin(self, Server server not None):
        """Called by the new thread first. False if its starter has given it up."""
        if not server.is_starting:
            return False
        server.is_starting = False
        self.starting_count -= 1
        self.running_count += 1
        return True

    def give_up(self, Server server not None):
        """After a start that failed or was interrupted, perhaps before ``begin_start``, or after ``begin``."""
        if server.is_starting:
            server.is_starting = False
            self.starting_count -= 1

    def next(self, Server server not None):
        """Waits for a line that is ready, for the thread to ``serve``. False: the thread ends."""
        cdef Line line = server.line
        if line is not None:
            # It comes after the others.
            server.line = None
            line.is_served = False
            if line.first is not None:
                self.make_ready(line)
        while self.first is None:
            line = None
            if self.is_closed:
                self.running_count -= 1
                return False
            server.next, self.idle = self.idle, server
            with nogil:
                PyThread_acquire_lock(server.bell, WAIT)
            self.waking_count -= 1
        line = self.first
        self.first, line.next = line.next, None
        if self.first is None:
            self.last = None
        self.ready_count -= 1
        line.is_ready, line.is_served = False, True
        server.line = line
        self.call()
        return True

    def close(self):
        """Nothing more joins, and the threads end after what waits. Takes no lock, for a finalizer."""
        self.is_closed = True
        while self.idle is not None:
            self.wake()


# --- taken entries ----------------------------------------------------------------------------------------------------


def items_of(list entries not None):
    """Their items."""
    cdef Py_ssize_t at
    cdef list items = [None] * PyList_GET_SIZE(entries)
    for at in range(PyList_GET_SIZE(items)):
        items[at] = (<Entry?><object>PyList_GET_ITEM(entries, at)).item
    return items


def are_bytes(list items not None):
    """Whether each is of the class bytes."""
    cdef Py_ssize_t at
    for at in range(PyList_GET_SIZE(items)):
        if type(<object>PyList_GET_ITEM(items, at)) is not bytes:
            return False
    return True


def loops_of(list entries not None):
    """The loops of their tasks: almost always one."""
    cdef Py_ssize_t at
    cdef object loop = (<Entry?>entries[0]).loop
    for at in range(1, PyList_GET_SIZE(entries)):
        if (<Entry?><object>PyList_GET_ITEM(entries, at)).loop is not loop:
            return list({(<Entry?>entry).loop for entry in entries})
    return [loop]


def settle(loop, done not None, Line line not None):
    """Gives the entries of ``loop`` that are in ``done`` their outcomes, on that loop, and tells the task that waits for
    room in ``line``.

    ``done`` is a deque of pairs: entries, and a result or an exception each, or one exception for all. An interrupt that
    comes in between is raised at the end: no task waits in vain. If one comes before, the next call makes up for it.
    """
    cdef object interrupt = None
    while done:
        entries, outcomes = done.popleft()
        interrupt = settle_all(loop, entries, outcomes) or interrupt
    line.tell_room()
    if interrupt is not None:
        raise interrupt


cdef object settle_all(object loop, list entries, object outcomes):
    """Returns an exception that came in between."""
    cdef Entry entry
    cdef Py_ssize_t at
    cdef object future, outcome, interrupt = None
    cdef bint is_one = isinstance(outcomes, BaseException)
    for at in range(PyList_GET_SIZE(entries)):
        entry = <Entry?><object>PyList_GET_ITEM(entries, at)
        if entry.is_settled or entry.loop is not loop:
            continue
        future = entry.future
        try:
            outcome = outcomes if is_one else outcomes[at]
            entry.outcome = outcome
            entry.is_settled = True
            if future.done():
                continue  # its task was cancelled
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
                future.exception()  # the waiting task may be gone
            else:
                future.set_result(outcome)
        except BaseException as error:
            interrupt = error
            if not future.done():
                future.set_exception(error)
    return interrupt
