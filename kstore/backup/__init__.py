"""Consistent copies of a live store, and new stores made from them (docs/backup.md)."""
