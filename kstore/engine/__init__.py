"""Everything under ``Log``: opens, appends to, reads and maintains one log."""
