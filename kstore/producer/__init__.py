"""The producer: records go into batches in memory, and batches into logs in the background.

Why
===

`send` puts a record into a batch in memory; one thread, the sender, writes batches to their logs. This section says
what a sending thread may wait for.

- **Memory, not the disk.** A send waits for the disk only when `buffer_memory` is full. Before that a slow or stalled
  disk costs a send nothing.
- **Batches of 64 KiB**, not Kafka's 16. There a batch is a request that shares a network and a broker with others.
  Here it is a turn of the log and some 40 µs of work however large it is: sends run 1.4 times as fast with 64 KiB,
  and records of 10 KB, of which only one fits into 16 KiB, 4 times; 128 KiB gain nothing more. With a small
  `buffer_memory` the default is smaller, so that many partitions still have open batches. While more partitions have
  batches than half the memory has room for, a batch gets its share: of the memory, by the most partitions of the last
  minute, and of what is left, as long as that number still grows. Otherwise open batches took all of the memory, and
  each send wrote another partition's batch to get some: 20 to 90 µs a record with 1,000 partitions, and 2.4 at 2,000
  now, against 2.0 at 100. Rejected: the share by the partitions of the moment alone. After each flush the first ones
  took full batches again.
- **Inline writes, while they are fast.** A busy Python thread gives up the interpreter's lock every 5 ms. A thread
  that sends all the time would fill the memory faster than the sender empties it, and the caches with it (`send_many`
  then runs at half its speed). So the thread that closes the 16th waiting batch of a partition writes them itself if
  one of the partition's last two writes took less than 1 ms. One slow write of two is forgiven, because other
  processes delay a write now and then; a disk that becomes slow therefore delays two sends. The sender does the first
  write of a partition. Rejected: an inline write whenever 16 batches wait (with writes of 50 ms a send took up to 136
  ms, with 0.2 of 32 MiB used), and no inline writes at all.
- **A thread that waits for a result, or for memory, writes** what it waits for, unless another thread is writing it.
  The thread of an event loop never writes.
- **What every write passes is compiled** (`ReadyWriter`, `_accumulate_write.pxi`): taking the batches, sealing them,
  their result, and the return of their memory. One waiting send costs a third less than in Python. Signals are then
  served only in the few Python functions on the way, above all in the append; what fails, is retried, split or
  expired is Python.
- **Ctrl-C costs no memory.** CPython serves signals after calls, at backward jumps and at the start of functions, so
  a Python statement with a call in it is not atomic: `total += lent.pop(buffer)` loses what it popped. The accounts
  of the memory are therefore compiled, each change is one call, and lent memory repays itself when nothing refers to
  it any more.
- **A topic that does not exist** fails a send at once in an exclusive store, since no other process can create it. A
  shared store waits for it, and so does a producer with an explicit `max_block_ms`.

**What `send` has accepted** belongs to a producer's background (`producer/background.py`: its memory, batches and
thread), not to the producer object. A set of the process holds the background from the producer's creation until it
is closed, or gone and everything has a result, so `send` pays nothing. `Store.close` and the interpreter's exit
deliver what they find there. They hurry all producers first, so that a stuck one does not use up the time of the
others. At exit the producers' own threads write, which are alive until `atexit` is done; none is started, because
from Python 3.12 on none can be. A forked child empties the set first, or it would write its parent's records again.
Forked children of `multiprocessing` end without `atexit`, so the first producer of a child registers a finalizer of
that package. The child calls it before it waits for its threads, so it leaves a thread that waits for them too and
then delivers.
"""
