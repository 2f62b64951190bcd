"""A log that several processes write to. A map of its files:

opening      the first process recovers the log, later ones join
turn         one process at a time changes anything; a turn begins with catch_up and ends with telling
catch_up     applies what other processes did; recovers the log if one of them died in its turn, or left
telling      stores the ends in the record that all of them map (``engine.others``, ``state.shared_slot``)
durability   syncs by name, and after the turn

Why
===

Each process has the whole writer; what differs is its lock and what each change begins with (`shared/`), and when it
syncs. `.lock` is divided by bytes, with locks of open file descriptions. Byte 0 is read-locked by each process that
shares, so that they and a process that wants the log alone, kstore or a broker, keep each other out. Byte 1 is
read-locked by those that are open and in order: a process that finds none of them recovers, as after a crash. Byte 2
is the **turn**, held around one change. The system releases all three when the process ends. A process that is
stopped in its turn stops all writers: after 5 s a thread, which runs only while turns are contended, logs which
process has it (`files/turn_wait.py`, from `/proc`).

- **The end** is in a record of 132 bytes that all of them map (the shared slot of `kstore.state`), stored last in a
  turn. It holds everything that a writer knows of the end, indexes included, so the next one reads no file except the
  size of the `.log`. If segments came or went, it lists the directory. Storing the record wakes no process; a
  follower that was woken by the bytes, and finds the `.log` longer than the record says, waits for the turn.
- **A plain turn is compiled** (`shared/_turn.pyx`): the record and the length of the `.log` are as this process last
  left them, and at the end only an append to the open tail is to be announced. It makes four system calls: two for
  the lock, one for the length, and the write. Whatever else there is to do is left to the turn in Python, which
  begins from the start; a plain turn either happens as a whole, or has given the lock back.
- **A turn after another process's append is in Python**: 33 calls, and 14 us of processor time more than the 6 of a
  plain one. A third of them take the lock, read the record, check its CRC and decode it; the others let the tail, its
  two indexes and the published ends follow it. Nothing of it is done twice, except that the record before is decoded
  once more.
- **Whatever changes a file in a turn is announced in the record first**: segments that come or go, a new
  `kstore.state`, indexes that are rebuilt, epochs, a cut. Only an append to the open tail is not announced: the
  `.log` grows first, which shows it. (A new `kstore.state` that the other processes do not know would outdate the
  live durable end that they publish, and readers would lag.)
- **A process that joins, or that closed an idle tail, opens the tail as the record describes it**
  (`SegmentTail.join`): it changes no file, stores no `kstore.state`, walks nothing, and reads only the last entry of
  an index. All others wait during that time, about 1 ms; resuming or rebuilding the indexes of a segment of 1 GB took
  280 ms. Recovery leaves the tail open and announces it. Indexes that do not hold what was announced are rebuilt, and
  the rebuild is announced.
- **What producers have written is read before the turn** that needs it, from the newest snapshot on, into an object
  that the turn adopts; the turn itself reads only what was appended in the meantime. 200,000 batches take a second.
- **A writer that dies in its turn** leaves a `.log` of another length, an announced change, or a record that is not
  whole. The process that takes the next turn then recovers the log as an open does: whole batches stay, although none
  of them was acknowledged unless announced; the rest is cut. The record tells the other processes to look again.
- **`"sync"`**: the bytes are written in the turn and synced outside it, so that processes share the disk's work. One
  more turn then moves the durable end, up to where the file ended when the sync began. A segment is synced, in the
  turn, before it is sealed. A flush syncs every segment above the recovery point, whichever process wrote it, with
  the indexes of those that are sealed: nothing checks them below that point.
- **A failed sync** poisons the log for all processes, through the record; an open is refused until all have closed
  it.
- **A process that has no space left**, by its limit of file sizes, its quota or a full disk, leaves alone if it
  cannot undo or complete a change: its log is poisoned, and the record keeps the announced change. The next turn of
  another process recovers the log, as after a death, and a new process can join. The one that left stores nothing
  more in the record, except that a sync that was under way has failed. An append that fails, and is cut back, poisons
  no process.
- **Indexes are read and written, not mapped**: a mapping of a file that another process cuts ends in a SIGBUS. No
  blocks are allocated ahead, because the file's length reveals deaths. A log that one process has alone keeps both,
  and pays nothing.
- **Several processes may create the same log or store at the same instant.** A directory that another process makes
  first is used as it is; every process that finds no `kstore.state` in a log's directory (no `meta.properties` in a
  store's) syncs its name, because its maker may not have done that yet. Everything else happens in a turn.
- The last process that closes marks the log as cleanly closed. Retention, rolls, truncations and `delete_records` run
  in the turn. A store's root has a turn too, for making topics and reserving producer ids, after a look at what the
  others did; altering and deleting topics, checkpoints and the broker's clean marker are for a store that is alone.
  Compaction and transactions are refused, and `shared` needs Linux: without locks of open file descriptions no
  process could tell whether the others live. It is refused, too, on a file system that others may write to past this
  machine's kernel (a network's, a user-space program's, a virtual machine's host's): there locks and mapped memory
  may not reach every process.
"""
