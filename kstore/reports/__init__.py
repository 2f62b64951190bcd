"""Reports on directories of logs: one page to send, and the same numbers as JSON."""
