"""Spark's own daemon for Python workers, except that a worker whose reader has gone ends without a traceback.

A query that needs only some rows (``limit``, ``take``) closes the connection to a worker that is still sending. That is
no failure, but the daemon prints the ``BrokenPipeError``. Spark starts this module if ``spark.python.daemon.module``
names it. Workers are forked from it, so no thread may run in it: it imports no more than Spark's own and ``kstore``.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

__all__ = ["main"]

STOPPED = 1

spark_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """A worker's life; its exit status."""
    try:
        status: int = spark_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return STOPPED  # the daemon then ends the process
    return status


def main() -> None:
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
