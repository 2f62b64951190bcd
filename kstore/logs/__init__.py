"""Everything behind ``Store``: a directory of many logs, and the work in its background."""
