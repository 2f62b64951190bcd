"""Decoders of record contents for ``kstore dump-log``."""
