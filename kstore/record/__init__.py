"""What the bytes mean: batches and records of every version. No I/O, clock or threads here.

Runs
====

**Runs.** A run is the longest stretch of whole, plain batches in a chunk: version 2, not compressed, right CRC,
offsets that rise, records whose structure holds (`record/_runs.pyx`). One compiled call checks it and says where and
why it ends; one compiled cursor returns its records, counts its batches and leaves out aborted transactions; a
consumer hands out runs as it hands out batches, unless its `max_partition_fetch_bytes` is less than four of them. So
Python runs once per run, and a batch of one record costs 0.04 us to check instead of 6.6. A run never decides: at
damage, an old version, or a gap that the chunk alone cannot judge, it ends, and the walk over single batches
(`record/walk.py`) continues with that batch by its own rules. `tests/property/test_run_properties.py` compares the
two walks. Reads ask for runs of compressed batches too: headers, CRCs and offsets are checked in the same call, and
each batch is then decompressed by its library and decoded by itself, since only that shows whether its records are
sound. A run is at most 256 KiB, so that its records are made from the processor's cache, and the first ones of a read
are shorter, because a reader may stop after a few records. Reads decode a batch above 64 KiB by itself, in one pass
instead of two. Runs walk `bytes` that `pread` returned, never a mapping, and from 1 MiB on without the GIL. CRCs of
batches below 4 KiB take the processor's instruction, chosen at run time, in three lanes at once, or a table; larger
ones take the package `crc32c`. The first batch of a read is a run of its own, up to 256 KiB: most reads that end in
it look up one record.
"""
