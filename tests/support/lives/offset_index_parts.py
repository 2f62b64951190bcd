"""Offset indexes with known entries."""

from __future__ import annotations

from pathlib import Path

from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.index import OffsetIndex
from kstore.types import OffsetPosition

BASE = 45


def create(path: Path, *, entries: int = 30, fs: FileSystem = SYSTEM_FS) -> OffsetIndex:
    return OffsetIndex.create(fs, path, BASE, index_bytes_max=entries * 8)


def fill(index: OffsetIndex, count: int, *, start: int = 1) -> list[OffsetPosition]:
    """Entries at every tenth offset and every hundredth position."""
    entries = [OffsetPosition(BASE + slot * 10, slot * 100) for slot in range(start, start + count)]
    for entry in entries:
        index.append(*entry)
    return entries


def encoded(*entries: tuple[int, int]) -> bytes:
    return b"".join(delta.to_bytes(4, "big", signed=True) + at.to_bytes(4, "big", signed=True) for delta, at in entries)
