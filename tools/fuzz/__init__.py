"""Fuzzing: hostile bytes against every reader of kstore (``python -m tools.fuzz``, ``make fuzz``)."""
