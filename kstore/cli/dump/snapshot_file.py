"""Dumps a producer snapshot."""

from __future__ import annotations

from kstore.cli.dump.job import DumpJob
from kstore.state.producer_snapshot import SnapshotCrcError, decode_snapshot


def dump_producer_snapshot(job: DumpJob, path: str) -> None:
    """A line for each producer, or one that describes the file's problem. Raises CorruptDataError."""
    try:
        entries = decode_snapshot(job.read(path))
    except SnapshotCrcError as error:
        job.is_damaged = True
        job.printer.snapshot_crc(error.stored, error.computed)
        return
    for entry in entries:
        job.printer.producer(entry)
