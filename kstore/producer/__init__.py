"""The producer: records go into batches in memory, and batches into logs in the background."""
