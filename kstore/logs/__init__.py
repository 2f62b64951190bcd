"""The implementation of ``Store``: a directory of many logs, and its background work."""
