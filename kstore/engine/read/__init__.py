"""Reads: records out of what is published. They take no lock, and the same code serves a writer's log and a view.

A read takes the ``ends`` of its ``source`` once. It finds the segment, then the index entry at or before its offset,
and reads ahead from there; the batches are checked and decoded by compiled code. If something is wrong it looks again:
only what is still wrong after the same ``truncation_count`` is damage.

    reads         what readers ask of a log, and the second look
    reader        a range of offsets, as an iterator; onward: the same for what was just appended
    lookup        one record
    fetch         one slice of a segment, named and not read, and checked before it is sent
    times         records by time; segment_times: the greatest time of each segment, kept in memory
    columns       Arrow tables, out and in
    describe      what ``metrics()`` measures, and what ``repr`` says

Why
===

An index is a hint. A lookup takes the two entries around the offset and reads what lies between them, or first the
batch of the upper one where entries are far apart; one compiled call walks the headers up to the batch of the offset,
whose base offset must follow from them or agree with an index entry (`engine/read/lookup.py`: one read, at most
three). Otherwise it walks headers from the entry below. If anything on the way cannot be right, it walks the segment
from its start with CRCs. Reads are positional, in chunks of 1 MiB. `Log.read` is `itertools.chain` over compiled
cursors. Each batch is checked as a whole before its first record is returned.

**`Log.get`** adds one more compiled call: the CRC of that batch, then the record; of the records before it only the
sizes are read. So it may return a record of a batch whose CRC is right and another record of which is malformed,
which no writer produces; `read` refuses such a batch whole. Whatever is not plain (no such record, an old version,
damage, a segment that is being removed) takes the path of `read`, with its rules and errors, and so do the reads that
return None.

**A batch that a lookup has checked is not read whole again** (`record/_runs_checked.pxi`). The pass that computes its
CRC divides it into pieces of whole records, of at most 15.5 KiB, and notes where each begins, its first offset, and
the CRC up to its end. The next lookup finds the batch's place in the index as ever, reads its header, which must be
the same 61 bytes, and one piece, whose CRC continues from that of the piece before it: nothing is decoded unchecked,
and if anything differs, the batch is forgotten and the general path says what is wrong. A lookup in a batch of 1 MiB
then takes a tenth of the time of the first one, and the first one takes as long as without this. A compressed batch
is decompressed once, and its records stay in memory: up to 64 KiB of it are read and checked again by each lookup, of
a larger one only the header, so damage to the rest is noticed by the next `read`, or when the batch is no longer
kept. All logs of a store share 8 MiB, and so does a lone log have; what was used last stays, and a log that is closed
frees its part. A key stands for one open segment and a place in it: a segment that is replaced, cut, renamed or
opened again has another one, so the comparison of the header is the second line, not the first. Batches below 32 KiB
are read whole, which takes as long, and scans neither use nor fill this. Rejected: a cache by offset, sorted, which
would spare the search in the index (1 us of 12) and would need its own rules for what the index decides; a CRC of
each piece on its own, which takes a second pass over the batch. Rejected: raising for an offset within the log that
has no record. Compaction removes records and transactions leave markers, so a caller that follows offsets must expect
such offsets, as with a dictionary's `get`; an offset outside the log is a mistake.

**A lost or damaged index** of a sealed segment is rebuilt by the first lookup that needs it
(`engine/index_repairs.py`). The listing at open shows a missing one. A lookup finds a wrong one: an entry that its
batch contradicts, an entry beyond the end, a time index that ends before the greatest time, a walk past four
intervals and a batch. The lookup then scans the segment instead of walking on, so no lookup reads it twice; threads
that wait for it share the scan. The scan runs outside the log's lock, because appends must not wait for it. Under the
lock each file is replaced by a rename, if the `.log` still has the inode and size that were scanned and nothing was
cut since; a file that the scan finds sound stays. What cannot be written (a read-only log, a full disk) stays in
memory, at most 64 MiB per log. Lookups under the lock (a truncation, the replay of producers) use a bad index as a
hint and leave the repair to readers; retention looks up ages before it takes the lock. Not repaired: the last segment
while a writer may be using it, because its writer checks those indexes when it begins (one of more than 2 MiB without
indexes is a copy of the `.log` alone, since a broker creates the offset index no later than with its first entry);
the last segment of a shared log, because another process may have the old file open; and remote logs, where each
reader would fetch whole segments. Rejected: checking every index at open, which costs two opens per segment, and
replacing a file in place, which a crash may cut in the middle.

**A search by time** looks for the first segment with a record at or after a time: a binary search over the greatest
timestamps so far of the segments, which are kept in memory (`engine/read/segment_times.py`). They come from the last
entries of the time indexes. An entry is checked against the batches if it does not follow its predecessor, is below
the segment before, or leaves more than a sixteenth of the segment's offsets uncovered. Markers count, as in Kafka, so
a broker that takes over a log gives the same answers. Rejected: checking each last entry against its batch, which
opens every segment (four times the cost of the first call).

Sealed segments open when they are first read. At most `open_files_max` handles stay open, and all of them are closed
if the process has no descriptor left. Eviction drops a reference and never closes a file under a reader. A sealed
index is read as bytes.

**Reading from another process** (`read_only=True`) takes no lock and writes nothing. It lists the directory until the
listing is stable (and next time only if need be, see below), walks the last segment from its last believable index
entry, and ends where nothing whole follows: with a live writer that means "not yet". A view remembers how the last
batch that it saw begins; if that batch is gone, the log was truncated and the view starts again. A reader that meets
damage, a gap, or a missing file first asks whether the log was truncated in the meantime. If the writer's durability is
`"sync"`, it stops at the durable end in `kstore.state`. If whole batches end below the durable end, with any
durability, the offsets between count as lost at once: recovery would fence them, and reads raise for them before it
does. The view first lists the directory and reads the state again, because a roll or a truncation between the two
looks the same.

A broker's cleaner leaves no record of its work: it renames a compacted file over a segment and removes those it
merged. So a view pins the inode of each `.log` at its first use, and opens no other file for that segment: a
position, size or index of one file is never applied to another. A reader in the middle of the old file finishes it;
each read that begins in a segment first compares the name with the file that is open, and the members of a shared log
compare the shared record: else a read could go on from a record after a truncation to one before it. Before it
believes in damage, or in missing offsets at a segment's end, every reader looks again (`LogView.settle`): a segment
whose name is another file now, or that ends at another segment, was replaced, and the reader looks up its offset
again. The same file between the same neighbours is damaged. Rejected: comparing every file at every look, which costs
a system call per segment; a look does that only when the directory's times may have changed. `verify` holds several
files of a segment against each other: it compares their inodes, sizes and times before and after only if it found
damage there, for the last segment the generation of `kstore.state` too, and then goes back to what it knew before the
segment. It reads the durable end before it lists the segments: what is appended later is not missing.

A tail without a whole batch, as a broker with `log.preallocate` leaves it, is searched once. The view remembers the
inode, size and time of the file and the bytes at the tail's start, where the next batch is written: so it notices
that batch even if the time stays the same. Searches skip holes (`SEEK_DATA`). A walk says of the bytes after the last
whole batch whether all are zeros (`Damage.is_space`). In the last segment that is space, and no damage, unless
offsets are known to have been there: a file cannot tell it from a write of which only the size reached the disk, and
such a write was not acknowledged as durable.

**A look lists no names that it knows** (`engine/known_names.py`). A listing of ten thousand segments takes 40 ms. The
names are those of the last listing if the directory is: the same device and inode, modification and change times that
were two seconds old before that listing, and are the same now. A younger time, one in the future, or one of whole
seconds proves nothing: a second change may have the same one. A writer that rolls often keeps the times young, so it
tells of its rolls itself: the roll slot of `kstore.state` has the bases of the segments it has begun, and a count of
all other changes of names, odd during one. The word of the writer is believed only while the times are young: so a
reader finds what anything else has changed as soon as the directory rests. On such names a look stats the directory,
reads `kstore.state`, and reads the last batch with the bytes after it: if all are as before, nothing is new. The size
of the file proves nothing, since space may lie at its end. The directory of another writer than kstore, one on a
network, and that of a log that several processes share, is listed as before. Rejected: a generation per roll in the
synced record, as a roll with `"os"` syncs nothing; and to watch the last `.log` instead of the directory, as no
report comes when a new one takes its place.

**A follower sleeps.** inotify reports the next change in the directory, once, so a busy writer pays only for
followers that wait; all followers of a process share one thread and two descriptors. The second one, which is not
read, holds a watch on each directory that is followed: without it the kernel visits every name of the directory each
time the first one is armed (4 ms for ten thousand segments). The durable end is stored through a mapping, which wakes
no reader, but it follows right after the bytes: a follower that sees whole batches beyond it looks again within
fractions of a millisecond. Without inotify (another system, no watches left, a network file system) a follower looks
at intervals from 1 ms to 50 ms; and once a second everywhere.
"""
