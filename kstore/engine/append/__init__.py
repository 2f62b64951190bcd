"""Appends: batches get their offsets, are written and published, completely or not at all.

Records come in as values and are encoded into a ``pending`` append, before any lock is taken. With the log's turn it
gets its offsets, is written with one call, noted for the indexes, and published as new ``ends``; an error before that
cuts the files back, and one after it leaves the append in the log. Then followers are woken.

    appends      the general path, which decides: a roll, offsets that are kept, producers, several appends at once
    pending      one append in progress, and the buffers that are used again
    (compiled)   _path: the steps of every append, and the ways that need no decision; _group: appends of several
                 threads, as one

Every append is the same four steps of `AppendPath`: **plan** (offsets, places in the active segment, the next `Ends`),
**write**, **publish**, and after a failure **take back**. What needs no decision runs through them without a byte code
of Python; the general path puts its decisions between them.

Why
===

- **A plain record** (`append` without headers or codec, with CreateTime) is compiled from the arguments to the result:
  the limits of the active segment, the batch with its CRC, the log's lock, the write, the next `Ends`; in one call if
  it is not synced. A synced one waits in the group, whose leader makes a batch of each record there, in one buffer,
  and writes them with one call: a waiting thread costs only a value, a key and a lock. All that may fail comes before
  the write. After it, Python is called only for an index entry, a flush that is due, known producers, or the durable
  end for other processes; an error there undoes the append unless it is published. Signals are not served within
  compiled code. It writes by itself only where the `.log` is a file of this system (`files/_direct.pyx`); any other
  file system sees every write. Whatever is not plain (a roll may be due, blocks must be allocated, compressed, large,
  another kind of append in the group) is left to the general path. So is a write that the system refuses: the general
  path reports the error. A sync that fails after its write is not repeated. The bytes are the same.
- **Batches that certainly fit** need no decision either. An append is left to the general path if the segment may have
  to roll, was idle, or must be opened. A producer's append is not if its batches certainly continue the producer
  outside of transactions.
- **A plan knows the segment as it will be**: the time of its first batch and the entries of its indexes, after each
  batch that it takes. So batches of one write roll where they would if each were written by itself. How many entries
  an index gets is known only for certain once they are there: a plan that may have used up the room is written first.
- **A result is given with the publication**, before anything that may fail: an append in the log is never reported as
  lost, except to a caller that gets the error of a flush.
- **The `.log` has blocks allocated 4 MiB ahead of its end** (`fallocate` with its size kept), because the search for
  space took a third of the time of a write; never beyond the size at which the segment rolls, and in a new file not
  before 64 KiB are written. Sealing and closing give them back. That takes 0.1 to 1 ms, so with `"os"` and
  `"interval"` the flush of the sealed segment does it, without the log's lock. A tail that is opened for the same
  segment later, after a failed roll or a truncation, first takes this right from the sealed one, which would cut off
  what was appended since; so does `close()`. If the process dies first, the file keeps the blocks; its size is right.

**Group commit.** Threads that append at the same time queue. One of them leads: it takes everything that waits and
commits it with one write-and-sync while it holds the log's lock. One `pwritev` with `RWF_DSYNC` is one system call
and one release of the interpreter's lock; a write and a sync are two, each of which may wait 5 ms to get that lock
back. The next leader first *gathers*: it waits, for at most half the cost of a sync, for as many appends as the last
group held. Rejected: every thread writes for itself and they share a sync outside the lock (each must then take the
interpreter's lock again to write, and the syncing thread does not wait for them), and a condition variable (each
signal wakes all waiters).

Rejected: `preallocate`
=======================

Zeros that are written and synced ahead of the end, over which a durable append changes no size and so needs no commit
of the file system's journal. Prototypes on kstore's own way of an append (ext4, two cores, one thread, records of 100
bytes; medians of five to seven rounds of 2 s with and without, in turn; the zeros' cost is in the time):

- a thread writes zeros, 1 MiB at a time, 4 MiB ahead. One record: 1.30 x. P50: 0.73 x
- the same, 256 KiB at a time, past the page cache or through it. One record: 1.28, 1.33 x. P50: 0.81, 0.79 x
- the same, 4 MiB at a time, 32 MiB ahead, of which a round uses little. One record: 1.19 x. P50: 0.79 x. Batches of
  1,000: 0.63 x, p99 1.6 to 16.7 ms
- the append that comes to their end writes the next 256 KiB, or 1 MiB. One record: 1.11, 1.26 x. P50: 0.84, 0.86 x
- the same in blocks of 200 appends, while others use the disk. One record: 1.05 to 1.14 x. P50: 0.55 to 0.84 x

The disk had other users, and single rounds scattered widely: only the order of size is certain. A bare writer in C
gains 1.50 x, and has 0.72 x with batches. So the gain is at most a third, for one thread with small records and a
disk of its own, and zeros would have to stop while writes are large. Its price is that the size of the file no longer
says where the log ends. A failed write over zeros cannot be told from a failed sync, and so poisons the log. A
segment must be cut, and the cut synced, before the next one has a name: otherwise its zeros are damage in the middle
of the log. Each close has one more sync. A follower would search the zeros after every append.
"""
