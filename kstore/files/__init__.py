"""The only door to the operating system.

Why
===

An open log without appends keeps no descriptor. A log that was appended to keeps its active `.log`; a lone log also
keeps its `.lock`. Memory shared with a file needs none (`files/_memory.pyx`; Python's `mmap` keeps a duplicate of the
descriptor), so `kstore.state` and the indexes are opened by name for each step that writes to them.

A **tail** is that open `.log`. All tails of a process together may use half of its soft limit of descriptors, handles
for reading a quarter (`files/descriptors.py`, `files/handles.py`); kstore reads the limit each time. Opening a tail
beyond the bound *parks* the least recently used one. Parking syncs the file, also with `"os"` and `"interval"`,
because the system reports a writeback error to no descriptor that is opened later (a failed sync poisons the log). It
gives back the blocks ahead of the end and closes the file. What is known of the end stays in memory and the indexes
stay mapped, so the next append opens the file, checks its inode and size, and writes: no scan, no record, no other
file.

- "Least recently used" means second chance: an append pays nothing for it. The bound notes the published value it
  saw, and a tail that has published another one since moves to the end of the queue once.
- A thread that opens a tail holds its own log's lock and parks another log, whose lock it takes only if it is free at
  that moment. In a cycle of threads waiting for one another, each would have found the next one's lock free after it
  took its own, so each lock would have been taken after the one before it: no such cycle exists. A busy log is passed
  over; if all are busy, the bound is exceeded by one per such thread.
- If an open still fails because no descriptor is left, since the rest of the program may use them up, kstore parks
  eight tails, drops the handles for reading, and tries again. Then it reports the error at once, in a producer's
  delivery too.
- The library never raises the soft limit; the command line does.
- The members of a shared log keep their tails, because another process may continue where they end.

**Finalizers.** The garbage collector may run a finalizer, and with it a `close()`, at any allocation, even inside a
lock. kstore's own finalizers take no lock that may be held then: they ring bells (`Bell` of `files/threads.py`, no
`threading.Event`), leave notes for the next visitor (`files/watch.py`), or set flags. A close waits for other
threads, so nothing on its way uses `ThreadPoolExecutor`, whose `submit` holds a lock of all pools;
`files/threads.side_by_side` waits only for threads that are already at work. If the collector interrupts the lock
registry, the one lock of the process that those threads may need, a separate thread finishes `close()`.

**Reentrant calls.** The collector and signals run a program's code anywhere, so a finalizer, a signal handler or a
logging handler may call kstore inside a call of the same thread. A plain lock would then wait for itself. `OwnedLock`
(`files/_locks.pyx`) notes its owner; only where it is not free it compares the owner, so an uncontended append pays
one store. The owner gets `ReentrantCallError`, before anything has changed. A group commit also knows its leader and
the threads in its queue, and asks for the log's lock before an append joins: as a leader the inner append would fail
the appends of other threads. `send` does not fail: a record that meets a lock of its own thread becomes a batch of
its own, counted in `buffer_memory`, in a bounded list that the outer call puts into the queue when it has released
the lock (`RecordAccumulator.take_over`); the sender's rounds do it too. Inside an append or a write of its own thread
it never waits for memory, and does not write. What would wait for the outer call, such as `flush` or `result`, is
refused. Locks that are taken after an append was published (the scheduler's, those of counters) are reentrant: an
error there would let the caller append again.
"""
