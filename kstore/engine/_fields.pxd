"""For compiled modules that append to a log."""

from libc.stdint cimport int64_t

from kstore.segments._numbers cimport TailNumbers


cdef class LogFields:
    cdef public object epochs, producers, closed, poisoned
    # The property ``tail``, and its numbers, or None.
    cdef object open_tail
    cdef TailNumbers numbers
    # The next three are set in this module alone.
    cdef readonly object ends
    # Incremented before a cut or a swap begins, and again after a cut: it reveals the change to a reader that met half
    # of it, even if the reader started during a cut.
    cdef readonly int64_t truncation_count
    # Counts cuts alone: segments may then differ from before, even if they are the same objects.
    cdef readonly int64_t cut_count
    cdef public int64_t last_append_ms, flush_messages
    # Threads that wait for this log to grow, and watchers of it. Guarded by the lock of ``Growth``; each append reads it
    # without.
    cdef public int64_t follower_count


cdef inline int publish(LogFields files, object ends) except -1:
    """Shows ``ends`` to readers: the store is the first step. Each new end of an open log passes here.

    Needs the turn. A caller counts as published what it has given to this, whether or not it raises.
    """
    files.ends = ends
    return 0
