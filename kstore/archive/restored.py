"""What a restored store has besides the files of its backup: the state of each log. No I/O but the sizes of files."""

from __future__ import annotations

from pathlib import Path

from kstore.archive.manifest import LogEntry
from kstore.files.fs import FileSystem
from kstore.files.paths import META_PROPERTIES, PRODUCER_IDS
from kstore.files.platform import boot_id
from kstore.indexes.transaction_index import TransactionIndexSizes
from kstore.state.log_state import LogState

# The small files of a root that a backup may bring; their names become paths.
ROOT_FILES = frozenset({META_PROPERTIES, PRODUCER_IDS})
STATE_GENERATION = 2


def restored_state(fs: FileSystem, directory: Path, log: LogEntry, recovery_point: int) -> LogState:
    """The state of ``log``, whose files are in ``directory``; an open for writing checks it from ``recovery_point`` on.

    Raises: StorageError.
    """
    bases = [segment.base for segment in log.segments]
    sizes = TransactionIndexSizes.found(fs, directory, bases)
    return LogState(
        generation=STATE_GENERATION,
        recovery_point=recovery_point,
        log_start_offset=log.start,
        durable_end=log.end,
        boot_id=boot_id(),
        lost=log.losses.lost,
        accepted=log.losses.accepted,
        unconfirmed=log.losses.unconfirmed,
        has_epochs=bool(log.epochs),
        txn_bytes=sizes.total(bases, log.start, recovery_point),
    )
