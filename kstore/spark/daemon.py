"""Spark's own daemon for Python workers, except that a worker whose reader has gone ends without a traceback.

A query that needs only some rows (``limit``, ``take``) closes the connection to a worker that is still sending, or that
is just being started. That is no failure, but the daemon prints the ``BrokenPipeError``. Spark starts this module if
``spark.python.daemon.module`` names it. Workers are forked from it, so no thread may run in it: it imports no more than
Spark's own and ``kstore``.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import SimpleNamespace

from pyspark import daemon


def print_exc() -> None:
    """Prints the traceback of the exception that is handled, unless it says that the worker's reader has gone."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()


def main() -> None:
    # What ends a worker reaches the one place where the daemon prints it; a failed last flush is printed elsewhere
    # unless it ends the worker too, which is Spark's default.
    os.environ.setdefault("PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "1")
    daemon.traceback = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    daemon.manager()


if __name__ == "__main__":
    main()
