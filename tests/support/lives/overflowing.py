"""Logs with a segment whose offsets are too far apart for its indexes, as compaction by old brokers left them."""

from __future__ import annotations

from pathlib import Path

from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from kstore.log import Log, writer_of
from tests.support.lives.log_cases import data, offsets
from tests.support.lives.log_helpers import TIME

NEAR = range(20)
FAR = range(2**31 + 7, 2**31 + 27)


def overflowing_log(path: Path, fs: FileSystem, *, last: bool = False, size: int = 10) -> list[int]:
    """A cleanly closed log: segment 0 holds ``NEAR`` and ``FAR``; unless it is the ``last``, the next one holds one
    record. Returns all offsets."""
    with Log(path, fs=fs, index_interval_bytes=0) as log:
        for offset in [*NEAR, *FAR]:
            log.append_batches(data(offset, timestamp=TIME + offset % 1000, size=size), assign_offsets=False)
        log.roll()
        if not last:
            log.append(b"last")
        wanted = offsets(log)
        first, second = writer_of(log).segments.bases[:2]
    file = fs.open(path / segment_name(first, LOG_SUFFIX), write=True)
    file.write_all([read_file(fs, path / segment_name(second, LOG_SUFFIX))], file.size())
    file.close()
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        fs.unlink(path / segment_name(second, suffix))
        if last:
            # The empty segment after it.
            fs.unlink(path / segment_name(FAR[-1] + 1, suffix))
    if last:
        # The clean mark belongs to the deleted segment: a recovery opens the log and does not split it.
        Log(path, fs=fs).close()
    return wanted
