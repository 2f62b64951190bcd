"""What a compaction of a log would do: it runs over an overlay, and no byte of the log changes."""

from __future__ import annotations

from pathlib import Path

from kstore.compaction.blocks import CompactionReport
from kstore.compaction.cleaner import compact
from kstore.config import MAP_BYTES, LogConfig
from kstore.engine.open.opening import load
from kstore.engine.writer import lone_writer
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.log_lock import probe_log
from kstore.files.overlay import OverlayFs
from kstore.segment import SegmentContext


class _NoLock:
    """``WriteLock`` of a writer that writes to nothing but an overlay."""

    def release(self) -> None:
        """Does nothing."""


def plan_compaction(
    directory: Path,
    config: LogConfig,
    *,
    roll: bool = False,
    whole: bool = False,
    keep_keyless: bool | None = None,
    map_bytes: int = MAP_BYTES,
    bytes_per_second: float | None = None,
    fs: FileSystem = SYSTEM_FS,
) -> CompactionReport:
    """What ``Log.compact`` would do with the log in ``directory``; changes nothing and takes no lock.

    What would be left of the log goes to unnamed temporary files, which need as much space.

    Args:
        roll: as if the active segment were sealed first.

    Raises: LockedError if a writer is open; as ``Log`` and ``Log.compact``.
    """
    directory = directory.absolute()
    probe_log(directory)
    writer = lone_writer(load(SegmentContext.alone(OverlayFs(fs), directory, config), "os"), _NoLock())
    try:
        if roll:
            writer.roll()
        return compact(
            writer, whole=whole, keep_keyless=keep_keyless, map_bytes=map_bytes, bytes_per_second=bytes_per_second
        )
    finally:
        writer.close()
