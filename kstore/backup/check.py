"""``check_backups``: reads every byte of every backup in a place, and compares it with the manifests."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, NamedTuple

from kstore.archive.manifest import StoredFile
from kstore.archive.target import BackupTarget
from kstore.errors import KstoreError, LogNotFoundError, PathLike
from kstore.files.fs import FileSystem, plain_text
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition


class CheckedBackup(NamedTuple):
    """One backup; ``errors`` say which of its files are damaged or missing. It is sound if ``errors`` is empty."""

    time_ms: int
    file_count: int
    total_bytes: int
    errors: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.errors


def check_backups(
    target: PathLike, *, storage_options: Mapping[str, Any] | None = None, fs: FileSystem = SYSTEM_FS
) -> list[CheckedBackup]:
    """Checks every backup in ``target``, the oldest first; files that they share are read once.

    Raises: LogNotFoundError if there is no backup; ConfigError, StorageError.
    """
    place = BackupTarget(target, storage_options=storage_options, fs=fs)
    names = place.names()
    if not names:
        raise LogNotFoundError(errno.ENOENT, "there is no backup", place.url)
    known: dict[tuple[TopicPartition, StoredFile], str] = {}
    checked = []
    for time_ms, name in names.items():
        try:
            manifest = place.manifest(name)
        except FileNotFoundError:
            continue  # a replicator has removed it since
        except KstoreError as error:
            checked.append(CheckedBackup(time_ms, 0, 0, (plain_text(error),)))
            continue
        files = [(log.owner, file) for log in manifest.logs for file in log.files]
        for owner, file in files:
            if (owner, file) not in known:
                known[owner, file] = _check(place, owner, file)
        errors = tuple(known[key] for key in files if known[key])
        checked.append(CheckedBackup(time_ms, len(files), sum(file.size for _, file in files), errors))
    return checked


def _check(place: BackupTarget, owner: TopicPartition, file: StoredFile) -> str:
    try:
        for _ in place.chunks(owner, file):
            pass
    except KstoreError as error:
        return plain_text(error)
    return ""
