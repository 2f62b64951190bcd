"""Everything under ``Log``: opens, appends to, reads and maintains one log. A map of its files:

what a log is    ends, segments, source (what readers need of it), files (what an open finds, and its writer has)
opening          directory, opening (believe), recovery (or check), segment_end, evidence (of what is gone)
appending        append (compiled: _*), foreign (batches from elsewhere), pending (one append), roll
durability       durability (when), flush (how: at once, in the background, at the close)
whose turn       turn, others (processes that share the log), growth (waiting for appends)
reading          reads, reader (a range), lookup (one record), onward (news), fetch, checking (of it), columns (Arrow)
without writing  view (a read-only log), known_names (what spares it a listing)
by time          times, segment_times (in memory)
producers        producers (their state), head_search (for readers), transactions, transaction_rebuild
removing         retention, cuts (truncate, delete, swap), swap, split
maintaining      check (find and accept damage), index_repairs, metrics, describe, snapshots (for the store)

``writer`` puts together what changes a log; ``log.py`` puts the writer, or the view, together with what reads.
"""
