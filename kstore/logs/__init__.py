"""Everything behind ``Store``: a directory of many logs, and its background work."""
