"""Compaction: which records are removed, and the segments that are rewritten without them."""
