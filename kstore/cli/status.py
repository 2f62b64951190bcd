"""The exit statuses of ``kstore``."""

from __future__ import annotations

OK = 0
# One status for damaged data and for errors of the system: scripts ask only whether all is well.
DAMAGED = FAILED = 1
USAGE = 2
# A search ends with these, as grep does.
NOTHING_FOUND = 1
NOT_ALL_READ = 2
# 128 + the number of the signal, as a shell reports it: SIGINT, SIGPIPE.
INTERRUPTED = 130
BROKEN_PIPE = 141
