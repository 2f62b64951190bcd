"""Compaction: which records are removed, and the segments that are rewritten without them.

Why
===

A pass reads the keys of the dirty part into a map of bounded size, then rewrites the segments, group by group, each
group as one `.cleaned` segment; only putting it in place takes the log's lock. kstore keeps what Kafka keeps: the
last record of each key, tombstones and ends of transactions until the delete horizon that the first pass puts into
their batch, and an empty batch where a live producer's last sequence or the last offset would be lost. Offsets never
change.

- **The map** holds 128-bit hashes (SipHash with a secret of its own), not keys: 24 bytes each. It grows fourfold with
  its keys, so that few keys stay in the processor's cache, and asks for huge pages: faults for each 4 KiB of fresh
  memory slowed down appends alongside a pass more than the interpreter's lock did. When it is full the pass ends there,
  and the next one continues. All work per record happens in blocks of 1 MiB, one compiled call each, without the
  interpreter's lock. A run of plain batches without producers enters the map in one call, and is copied whole if
  nothing of it changes. Nothing of an unreadable batch enters the map.
- **The swap** commits by renaming `.log.cleaned` to `.log.swap`. `kstore.compaction` first names what it replaces:
  the new segment cannot tell, since a whole old one may have become nothing, and a damaged one must not. The next
  open finishes a committed swap and undoes any other; it undoes a damaged one while everything that it replaces still
  exists. Replaced segments go before the new one gets its name, so two never overlap.
- **Only what is on disk** is compacted: missing offsets above the recovery point would look like a lost tail.
- **A plan** (`compaction/plan.py`, `kstore compact --dry-run`) is the same pass over an overlay: no byte of the log
  changes, no lock is taken, and what would stay goes to unnamed temporary files.
- **A segment with damage** stays as it is: neighbours reveal a false base offset, and compaction would remove them.
  After it no tombstone and no marker is removed, because the damage may hold what they hide.
- **A marker whose transaction began before the log's first segment** stays while the snapshot there shows the
  transaction as open: a reader of that snapshot would wait for its end forever. Kafka's cleaner removes it.
- **Readers** continue with the files they have open. A reader that reopens one learns that the segment was replaced,
  and looks it up again. Other processes learn it from the state's new generation, which is written within the swap.
- Message sets of version 0 and 1 that lose records become batches of version 2, the only version that kstore writes.
- Everything at or above the first uncleanable offset is copied unchanged, where Kafka already sets delete horizons.
"""
