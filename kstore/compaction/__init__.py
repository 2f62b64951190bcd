"""Compaction: which records go, and the segments that are written without them."""
