"""Consumers: read topics from stored positions, alone or as members of a group.

Why
===

- **A consumer is composed of parts** (`consumer/parts.py`), and none of them refers to it: `SoleUse` (one thread at a
  time), `GroupPlace` (its membership), `Positions`, `Commits`, `Sharing` (which partitions it has) and `NextRecords`
  (what it returns next, and the wait for it). The consumer of an event loop has the same parts, with a waiter that
  wakes tasks.
- **Reading** is the log's own: a reader yields batches and hands each batch's compiled cursor to the caller's loop,
  so Python runs once per batch. The cursor knows its next offset and can be ended. So positions are exact, even
  within a batch, and a seek or a pause takes effect with the next record.
- **An idle poll asks no log.** In the process that writes, each growth of a log is signalled. So after a look that
  found nothing, the next one comes with a signal, after a seek or resume, or after a second: 0.4 ms for 2,000
  partitions in place of 9. A read-only or shared store has no such signals for a poll that does not wait.
- **A poll reads only logs that have grown.** Each change of a log's ends puts another object there, in the process
  that writes. A reader remembers the object at which it found nothing, and compares it: 1.2 ms for 2,000 partitions
  of which one has grown, in place of 10. This needs no signal, so none can be lost.
- **A group** is a value (`consumer/group_state.py`): members, the target that the assignor computes for them, what
  each owns. A member gives up what is not in its target when it next asks for records, and takes what is unowned. So
  a partition never has two owners, and reading continues for what stays. The group lives in memory, or in files of
  the store when several processes share it; a lock on a file of its own shows that a member is alive, the time of its
  last heartbeat that it is not stuck.
- **A commit** holds off changes of ownership, and a member without the partition is refused. Members commit at the
  same time. A dead member cannot commit; one that was mistaken for dead finds that it is not in the group.
- **One event wakes every wait**: logs of this process set it, directories of other processes are watched, and groups
  and changes of topics set it too.
- **Offsets above the end**, after a crash, are set back when the store is opened, before anything can be appended in
  their place. Only logs that had to be recovered are compared, so an open after a clean close reads nothing.
"""
