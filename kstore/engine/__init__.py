"""Everything under ``Log``: opens, appends to, reads and maintains one log. A map of its files:

what a log is    ends, segments, source (what readers need of it), files (what its writer has open)
opening          directory, opening (believe), recovery, recovery_scan (or check), segment_end, loaded (the result)
appending        append (compiled: _*), foreign (batches from elsewhere), pending (one append), spare_buffers, roll
durability       durability (when), flush (how), flusher (a thread), syncs (one at a time)
whose turn       turn, others (processes that share the log), growth, following (waiting for appends)
reading          reads, reader (a range), lookup (one record), last, fetch, columns (Arrow), view (read-only)
by time          times, segment_times (in memory)
producers        producers (their state), transactions, transaction_rebuild
removing         retention, cuts (truncate, delete, swap), swap, split
maintaining      check (find and accept damage), index_repairs, metrics, describe, snapshots (for the store), closing

``writer`` puts together what changes a log; ``log.py`` puts the writer, or the view, together with what reads.
"""
