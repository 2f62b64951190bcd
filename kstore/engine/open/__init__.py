"""Opening a log for writing: what its files say, and what a crash has left of them.

``opening`` locks and lists the directory, and believes the record in ``kstore.state`` if the files fit it. Otherwise
``recovery`` scans the segments from the recovery point on, decides what damage means, and cuts or fences it. Both end
in ``Loaded`` (``files``), from which the writer is made. A crash may come at any step: the next open starts again.

    opening               lock, list, believe or recover
    recovery              scans, decides, cuts
    evidence              what other files prove of records that are gone
    segment_end           where the last whole batch of a segment ends
    transaction_rebuild   indexes of transactions, from the batches
    swap, split           one segment in the place of others, and a segment whose offsets are too far apart in parts

Why
===

One synced write may carry many batches (from a producer, a group commit, `append_batches`). If the power fails within
it and an early sector is missing, nothing in it was acknowledged, and still kstore fences it. Nothing that is written
without a sync can tell it from rot in acknowledged data, and cutting acknowledged data is the worse defect by far. So
recovery remembers, in `kstore.state`, which fenced ranges lie above each known durable end (the last 8). The report,
`verify` and every `CorruptBatchError` say that these offsets may never have been acknowledged, and how reads can
continue.

Without syncs a segment may also lose its end at the border between two batches while the next segment is whole. After
a restart, above the recovery point, missing offsets between two segments count as damage, and what follows is cut.

Every read finds a fenced batch in the file. Records of which no byte is left cannot be found there, so kstore keeps
their offsets in `kstore.state`: 16 ranges; beyond that, the two nearest merge. Merging hides no record, because only
offsets that no batch holds count as lost. Only what was known to be durable counts: what `"interval"` and `"os"` lose
above their last flush is within their promise. A damaged end followed by nothing whole counts too, because readers in
other processes would take it for a write in progress. So does damage of which nothing remains, if a file became
shorter while recovery scanned it, as after a failed sync. Reads, fetches, columns and Spark raise at a lost range as
at a fenced one, and `verify` names it.

`Log.accept_loss` adds a range of fenced or lost offsets to the accepted ones; `kstore.state` keeps 32 of them. The
record is durable before any read uses it. A read passes over damage and gaps inside accepted ranges, and over nothing
else: it serves a whole batch there. A mirror carries both lists. Rejected: merging accepted ranges, because later
damage between two of them would be skipped unseen; kstore refuses the 33rd range instead.

Both lists follow the log, in an order that a crash may cut anywhere:

- truncation: are removed from the cut on by one more write of the state: after the cut, or a crash would hide the
  loss; before an offset is assigned again, or a new record would count as accepted
- `delete_records`, retention: are removed below the new start, with the state that stores it
- compaction: are removed where they were accepted, with the state that commits the new segment; an unreadable batch
  that was copied keeps its entry, and so does a loss that is not accepted: compaction would hide it
- recovery: are removed above the end; a log that ends with a lost range still does, because its durable end includes
  the range, also while a truncation is under way

Compaction leaves a damaged segment as it is, unless the loss of the damaged batches is accepted: then it leaves them
out.

A real broker cuts at the first damage and deletes every later segment. After fenced damage at the end of the last
segment, or missing offsets there, the next append starts a new segment.

A base offset is not under the CRC. Damaged bytes at the start of a log held offset 0, so no batch after them begins
there, although a torn write may leave zeros in place of its base offset. Offsets must not go back, and the next
batch, or the segment's end, must confirm a gap; so a flipped bit in a base offset costs that batch and no other. A
gap larger than the offsets that a segment's indexes can hold (2^31) is believed on the same terms, but never for the
last batch of a log. The same holds for a gap that reaches across the durable end: whenever the log ended there, a
batch ended there too or the next one began a segment, so within a segment nothing was written across it. Recovery,
readers of other processes and `verify` take the durable end from `kstore.state`. What it cannot contradict is a last
batch above it, whose base offset rots before anything else is appended or flushed.

After damage the search looks for the next header whose CRC and offsets match and which is followed by another: the
records of a damaged batch may themselves hold bytes that form a batch. The first index entry at which a whole batch
stands bounds the search, in recovery (which asks the old index) as for readers; a batch after damage always gets an
entry. So does the place where the damaged batch claims to end: if a whole batch stands there, it counts although what
follows it is damaged too. The damage is one batch then, and as no batch reaches across the durable end, the next one
starts at it or below: else it is believed only if another one confirms it. Each walk bounds the bytes that it
checksums without success: headers that all claim half the file would make the work grow with the square of its size.

Offsets that overflow their segment
===================================

Old brokers compacted segments so that offsets lie more than 2^31 above the base, which an index entry cannot hold.
All readers read them; lookups walk from the last entry that could be stored. An open for writing splits such a
segment, as Kafka does: it copies the batches unchanged, and the parts replace the segment through compaction's swap.
All names but the first part's are durable before that one is renamed, which is the commit; a crash leaves the old
segment or the parts. Only segments whose next base, or the log's end, lies that far from their base are examined.
Three cases stay as they are: a segment with damage, one without space for the split, and the last segment of a log
that had to be recovered, which the next open splits. In all three, appends continue in a new segment.

How fast a recovery is
======================

Recovery takes runs of up to a chunk of 1 MiB (`engine/open/recovery.py`). Compiled calls over a run note its index
entries, its leader epochs, and what became of its producers: their last five batches, open transactions, and aborted
ones, by the rules of `ProducerState.apply`. Python then takes in the result, once per run. What is written is byte
for byte what the walk over single batches writes (`tests/property/test_recovery_properties.py`). Index entries are
stored many at a time, in order, so that a reader in another process still finds at most the last one half stored.
Chunks are read by the thread that checks them, because the system reads ahead by itself. Rejected: a thread that
reads the next chunk (its pieces have to be joined, in memory that is new each time), and `POSIX_FADV_WILLNEED` (it
fills the page cache page by page, where the system's own read-ahead takes large ones). Each made a recovery take up
to twice as long. Also rejected: a thread whose reads only fill the page cache (up to 0.1 of the rate less), larger
and smaller chunks, `POSIX_FADV_SEQUENTIAL` (no difference), and reads of one byte that do not wait (`RWF_NOWAIT`), 8
MiB ahead, which make the system read ahead earlier. Where read-ahead is 8 MiB earlier, recovery of batches of ten
went from 0.75 of the disk's rate to 0.85; where it is 2.5 MiB earlier, recovery took twice as long.
"""
