"""What changes the files of an open log, apart from the append itself, and who waits for a change.

All of it needs the log's turn. Each change has one order: store what lowers a promise, act, sync, store what raises
one, publish. A failure before the act leaves nothing to undo; a failure of unknown outcome poisons the log.

    roll          where one segment ends and the next one begins, and how a failed append goes back
    durability    when the bytes of an append are on disk: one strategy for each setting
    flush         how they get there: at once, in the background, at the close
    cuts          truncation, deletion, the swap of a compacted segment
    retention     which segments go by age and size
    growth        followers of the log: woken by its writer, or looking for what other processes appended

Why
===

**Roll.** The new file comes first and its name is made durable (`"sync"`); then the old segment is sealed. Without
space for a new file, the old one continues. A segment rolls on size, on the time between its records, on a full
index, on an offset too far from its base, and after `segment_ms` without appends. It creates three files and looks
for nothing: what a crash may have left of these names was removed when the log was opened, and a file that still
blocks the name is replaced. An index that was never mapped is not opened to be sealed; the last entry of a time index
is then written, not mapped.

**A roll** is `Rolls.roll` (`engine/change/roll.py`). The append that no longer fits calls it, and so do `Log.roll`
and the look for idle segments. If a sync within it fails, the log is poisoned: reads go up to the durable end,
nothing is written or synced again, and the next open recovers. If anything else in it fails, the new files are
removed, durably, and the old segment goes on: if a power cut brought them back, recovery would cut what the old
segment got since. Readers see neither: they read what `Ends` covers, which has nothing of the new segment until the
append that rolled is published.

**The flush of a sealed segment.** Without syncs, a roll leaves a segment that is not on disk. As in Kafka, a thread
then syncs it with its indexes, and the recovery point moves to the start of the active segment, so what a kill leaves
to recover does not grow with the log. A lone log does this at once; the logs of a store share a thread and wait for
`flush_ms`. At most 16 sealed segments wait: the next roll flushes them itself, and so does every roll if no thread
can be started. Each log has one sync in flight at a time. The system reports a failed writeback once to each
descriptor, so a second thread that synced the same file would believe that everything is on disk; it waits instead,
and gets the failure, which poisons the log.

**Truncate.** kstore lowers what is known of the end in `kstore.state`, synced, before it cuts the files, newest
segment first: a crash in between leaves more than was asked for, never less. The recovery point and the durable end
become at most the end of the last batch that stays, damaged or not: damage there was flushed, so it is not a torn
write. Neither rises: a truncation does not flush what stays. Offsets below a durable end are never assigned twice.

If the cut falls inside the first batch of a segment, that segment would stay empty, and a broker's search by time
ends at an empty segment. So kstore begins the segment named by the next offset, flushes (its name and the recovery
point are then on disk), and removes the emptied one. Until the recovery point is stored, a crash leaves a log that
ends at the emptied segment's base, or at its old end; after that the next offset is the one that was asked for. A
power cut may bring some of its files back: the next open for writing removes what precedes the last segment, is
empty, and begins below the recovery point. If it was the log's first segment, the log has no record left and starts
at that offset, because a log starts at its first segment at the latest.

- **A fourth durability** would be a word in `types.Durability`, whose position is the number in `kstore.state`
  (FORMAT.md); a class in `engine/change/durability.py`; a branch where the writers are made (`engine/writer.py`,
  `shared/opening.py`); what its append makes of the log's ends and is due after it, `make_ends` and `show` in
  `engine/append/_path.pyx`; and an answer to "what may a stop have lost?" where `"sync"`
  differs today: `engine/open/recovery.py`, `engine/view.py`, `upkeep/verify/partition.py` and, for a queue's journal,
  `queue/of_store.py`.
"""
