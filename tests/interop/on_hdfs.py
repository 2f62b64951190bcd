"""Puts a broker's files on HDFS."""

from __future__ import annotations

from pathlib import Path

from kstore.files.remote import Location
from tests.support.harness.golden_data import golden_root

# From the log directory of a broker: every codec, transactions, compaction, several segments, a later start.
PARTITIONS = ("compacted-txn-0", "deleted-records-0", "headers-0", "lz4-0", "rolled-0", "txn-rolled-0", "zstd-0")


def put_broker_s(target: Location) -> Path:
    """Copies PARTITIONS, and the checkpoints beside them with the logs' starts; returns their local directory."""
    source = golden_root() / "clean"
    put_files(source, target)
    for partition in PARTITIONS:
        put_files(source / partition, target / partition)
    return source


def put_files(source: Path, target: Location) -> None:
    """Copies the files of a directory unchanged, whatever they hold."""
    target.fs.make_dirs(target.path)
    for name, data in files_of(source).items():
        target.fs.put(target.path / name, [data])


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
