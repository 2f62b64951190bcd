"""A log's own state, kept in small files.

Why
===

The file holds the recovery point, the log's start, the durable end, the boot id, the durability, and a clean mark
with inode, size and modification time of the active `.log`; kstore believes the mark only if all of them match. It
writes two slots in turn and syncs each, so that a torn write leaves the other; a third, unsynced slot tells readers
in other processes how far the log is durable. Rejected: replacing the file by rename (two more syncs, and readers
would have to reopen it).

The clean mark is removed, durably, before the first append, and set by `close()`. A record that already says so, as
after a recovery, is not stored again.

A new log costs two syncs before its first append, with every durability: kstore creates its files, stores the first
record in `kstore.state` and syncs it, then syncs the directory. The record must be on disk before any batch can be,
because it says which durability the log has, and so what damage after a power cut means. There is nothing to recover,
so nothing is scanned.

**Transaction indexes are believed**: a lost one would hand aborted records to committed readers. So the record holds
the total size of those that recovery would not look at, in the segments below the recovery point. It is stored with
the recovery point and kept in memory, so it costs neither a sync nor a stat. If it differs after any stop, all of
them are rebuilt from the log, with a note and a warning. Truncation, retention and `delete_records` need nothing of
their own: the sum covers the log's start to the recovery point, and both are stored before any file goes. A swap
stores the new sum after its commit and before the old segments go. `kstore.compaction` holds the generation of the
record before that: if the process dies between commit and store, the next open knows that the sum still describes the
old segments, and stores the new one first. If a marker is damaged, a rebuilt index keeps the old entry for it.
Rejected: checksums of the indexes (Kafka's files have no room for them), and a field in Kafka's snapshots.

The record and the file that names swaps carry a version inside an envelope that no version changes: magic, version,
size, CRC. So kstore can tell a later version from damage, and refuses it. Taken for damage, a sound log would be
recovered from offset 0.

kstore also removes a broker's clean marker next to the partition, unless a store looks after it: a broker that finds
the marker checks none of its logs.

A directory without `kstore.state` is a broker's, or has lost its state. kstore believes the store's clean marker and
recovery point if the log ends exactly there with a whole batch; otherwise it checks the whole log.

**Evidence.** Such a log may have lost records of which its other files still tell: index entries, snapshots, leader
epochs, a recovery point. `rules/evidence.py` says which are believed and what they prove (FORMAT.md has the table);
`engine/open/evidence.py` gathers them, and `verify` uses the same code. Offsets up to the evidence are not assigned
again, because consumers may stand there. They are damage only if the evidence was written after a sync of the records;
otherwise a power cut may have taken them within the promise, and the report counts them as skipped: they become lost
offsets whose loss is accepted. Recovery rewrites the files that are the evidence, so it first copies those that prove
a loss and stores the offsets in `kstore.state`; a crash at any step forgets nothing. Rejected: using every entry of
the active segment as proof, because its pages may reach the disk before the records do.
"""
