"""Decoders of what records hold, for ``kstore dump-log``."""
