"""The durable queue: the interface of ``queue.Queue`` over two logs, with leases.

Why
===

`kstore/queue/` stands next to `consumer/` and shares nothing with it: a consumer has one position, a queue knows every
item. An item is a record of the topic; what became of it is an event in the topic `__queue_<name>`, the journal.
`known.py` applies events and `state.py` says what is next, as pure functions of items, events and times. `ledger.py`
has the state, its lock and the journal; `leasing.py` leases and returns items, or `shared.py` if several processes
use the queue; `core.py` reads items and waits; `space.py` keeps the queue small.

- **On disk**: what is done, always; how often an item was delivered, with the next record that is written, or before
  the delivery if `note_deliveries` asks for it; delays. Not on disk: leases. A process that opens the queue alone
  expires them all.
- **A snapshot** is the same events, for what is not done, appended while others work; everything below the offset
  that it covers is removed after it. An opener takes the snapshot as the state at that offset and continues from
  there, so all processes apply the same events in the same order, and agree. No process has to pause.
- **One append makes an item done**, outside the lock while it waits for the disk, so the items of many threads share
  a sync. The state is updated afterwards, and `applied_end` keeps a snapshot from removing what is still being
  written. An append that waits for no disk happens under the lock: then no item has to be held in the meantime.
- **The loops over the items of a call are compiled** (`queue/_jobs.pyx`): records and jobs are made, leases are
  checked and ended, and events are written there, if nothing needs a decision: each job is open, and leased in the
  order of its deadline. So are claims and acks of a shared queue, whichever process wrote them (`queue/_known.pyx`),
  unless copies of an item are known. Any other call takes one item after another in Python. A signal is served before
  or after such a loop, never in it.
- **Space**: `delete_records` below the first item that is not done. If a few items hold a segment back, they are
  copied to the end, each with the offset of its original; one *moved* record in the journal makes the copies count
  and the originals done. A copy that no such record names does not count. What is not `"sync"` is flushed first, so
  that the journal never reaches the disk alone; and the journal is flushed before the removal of what it says is
  done. A process that sees the log's start rise reads the journal before it counts the missing items as done: the
  journal recorded earlier where each item moved.
- **The journal ahead of the items**, after a power cut without syncs: its events about offsets beyond the end are
  revoked, durably, before these offsets are assigned again.
- **Several processes**: a lease is a *claim* in the journal, in times of the monotonic clock, one for all processes.
  A worker appends a claim and applies the journal up to it; the first claim of a free item wins, in every process
  alike. If its own records come next, it applies the very bytes that it has appended; only if others have appended
  before them, it reads them all back, most often by one read of the file from where it last stopped
  (`engine/read/onward.py`), without a search. The journal's place in the state moves last, so what an interrupt has
  left is read back by the next call. The first process to open the queue after a restart of the machine writes its
  boot id: earlier claims are void.
- **Counts** are of items. In a log with transactions the offsets above the reading position also hold markers and
  aborted items. The queue counts them by walking the batches once, up to the last stable offset, and keeps one bit
  per offset; it decodes no record. A log that no producer ever wrote to is not walked.
- **Damage** in the journal brings items back; damage in the items' log keeps them in place. Neither loses an item
  silently: a process that meets damage records it in the journal, permanently, and from then on existing copies
  count, since it is unknown which of them do.
- **What waits** (for the next get, for a time of day, for another process's lease) is in three sorted lists
  (`queue/waiting.py`, `sortedcontainers`), each item in exactly one; leases of mixed lengths are sorted by deadline.
  A MemoryError or an interrupt may leave half a change in them. Then the order counts as lost, and the next call
  rebuilds it from the journal: every item that is not done, leased or held waits.
"""
