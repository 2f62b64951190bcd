"""The implementation of ``Store``: a directory of many logs, and its background work.

Why
===

The layout is a Kafka log directory's: `<topic>-<partition>`, `.lock`, `meta.properties` (a broker's is kept),
`partition.metadata`, the four checkpoints, `.kafka_cleanshutdown`. One file is kstore's own, `kstore.topics`, and it
decides: **a topic exists if its entry says so**, and each change of it is one durable replacement.

- create, grow. Order: its name leaves the checkpoints; the entry, with how many partitions are *made* and how many
  are *promised*; the directories; the root is synced; the entry, all made. A crash, or an error, on the way: before
  the entry nothing exists; after it the next open makes the rest. The same call takes an error back, except a failed
  sync: then the state of the disk is unknown
- delete. Order: the entry, *deleting*; its groups' offsets, and its queue's journal, go; the logs are closed; each
  directory, locked, gets a name ending in `-delete`; the root is synced; its name leaves the checkpoints; the entry
  goes; after the delay the files. A crash, or an error, on the way: once *deleting* is there the topic is gone: the
  next removal, open or `create_topic` finishes it
- alter. Order: the entry; then each open log, including one that is being opened. A crash, or an error, on the way:
  the old settings or the new
- damaged `kstore.topics`. Order: set aside as `kstore.topics.damaged`; the topics are those that have directories;
  rewritten. A crash, or an error, on the way: each is marked: its settings are lost, and **nothing of it is deleted
  or compacted** until `alter_topic` says what they are, since the store's own may be stricter than they were

**Symbolic links.** `files/linked.py` decides. A name of a partition that is a link to a directory is that partition,
as for a broker that lists its directory: an operator moves one to another disk and leaves a link. Links are followed
once, and two names of one directory are refused, since their logs would write to one file. A link that leads nowhere
is no partition; the store notes it, and to `verify` it is damage. Deleting a topic renames and unlinks the link
alone. What is written for others (backups, restores, mirrors) follows no link.

A directory that no entry promises is not kstore's: it is taken for a topic if it is a log when the store is opened,
refused if it appears where a topic is to be made, and otherwise ignored and listed. The broker's own
`__cluster_metadata` is never a topic.

**Open and close.** Logs without a matching clean mark are recovered, several at a time, and closed again. Every other
log costs a listing and a small read, and opens at its first use. The marker `.kafka_cleanshutdown` is removed,
durably, before anything is written, and written again only if every log that was opened, or was not in order, is in
order. The checkpoints are for a broker, and for its logs that kstore has not opened yet; for a log of its own,
`kstore.state` counts. They also cover logs that only background work has opened and closed. A close first stops the
opening of logs, so that tasks cannot open any. Then it closes the logs, and waits for the tasks and for a topic that
is being made or deleted.

**Background work** is tasks of one scheduler, each in a lane of its own or in a common one, so that a compaction
delays no flush. An exception of a task is logged, kept and shown by `status()`, and the task runs again; if one log
fails, the task still runs for the others, and raises the failure at the end. A thread that cannot be started is shown
and tried again.

**Retention** has Kafka's three rules, oldest segment first, up to the first segment that is kept; ages are read only
that far. The start offset is stored before a file is renamed to `.deleted`; then the directory is synced, and the
files are removed after the delay. After a crash in between they lie below the start, and go at the next open. Three
guards: a time in the future does not keep a segment forever, because then its file's time counts; a segment with
damage, which may hide its youngest records, is no older than its file; and a clock that runs faster than time passes
is not believed. All logs of a store share that clock, because a log opened after a jump would not see it. The limit
for all logs together takes sealed segments by the time they were last written, whatever their records say. Internal
topics and queues ignore the store's limits and use only their own settings; in a broker's directory they have no
settings.

**A store that is dropped** without `close()` is released when it is collected: the threads of its scheduler have it
only while they work, and wait with nothing but a lock. Logs, queues and producers that a program still has keep what
they need of it, the root's lock too. Nothing is closed in the collector: the next open recovers, as after a kill.
That open collects garbage before it reports a lock of its own process, and waits up to 10 s for the producers of a
store that is gone.

Who may write to a log
======================

A store locks its root's `.lock`. It does not keep the locks of its partitions, because each costs a descriptor: it
takes a partition's lock when it opens it, which reveals a lone writer, and releases it at once. Each of its open logs
has a share of the root's lock, so the root stays locked until the last log is closed, even after a `close()` that was
interrupted. A lone writer (a `Log` outside a store, `recover`, `mirror`, an index rebuild) looks at the root's lock,
takes the partition's, and looks at the root's again before it changes anything.

- the store locks the root before the lone writer's second look: the lone writer finds the root locked, releases the
  partition, and raises LockedError
- ... and tries the partition's lock in between: the store finds it taken, and tries again for 0.2 s: the lone writer
  is about to release it
- the store locks the root after the second look: the lone writer keeps the partition's lock; the store tries it later
  than that, and raises LockedError for this partition after 0.2 s
- two lone writers: the partition's lock decides; one that then finds a store gives way
- `handover`: it holds the root's lock throughout, as a store does
- a shared log that no store opened: as a lone writer; a root that is shared too does not keep it out
- a broker (Java's `tryLock` on the root) starts before the second look: the lone writer finds the root locked, and
  gives way
- ... starts after it: both write: a broker knows no partition locks. Stop lone writers before a broker starts
- the store's process dies: the system drops the root's lock, and with it every claim

Each side writes its mark (the lock it takes) before it reads the other's, so at least one sees the other whatever the
order. A look that cannot be completed, as without a free descriptor, is an error and not a "free". The lone writer
looks at the parent of the path it was given and of the real path: a link to a partition leads to the same root. A
partition that a store reaches through a link has another real root, so the store keeps its lock; so do the members of
a shared store, because its root's lock does not keep them apart. One case is not covered: a partition's directory
that is mounted alone elsewhere (a bind mount into a container) has no root there to look at.
"""
