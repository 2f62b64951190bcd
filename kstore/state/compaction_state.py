"""``kstore.compaction``: how far a log is cleaned, and which segments the one that is being swapped in replaces.

    line 1   version 1
    line 2   first_dirty <offset>                 below it each key was cleaned
    line 3   swap <base> <base> ...               the new segment has the first base; it replaces all of them
             swap                                 none
    line 4   crc <8 hex digits>                   CRC-32C of the lines before it

Replaced atomically and durably. It is no place of record: without it a log is cleaned from its start again, and the
range of an unfinished swap is found out from the new segment, as Kafka does. A swap named here counts only where a
``.log.swap`` of that base is in the directory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import crc32c

from kstore.errors import CorruptDataError, CorruptFileError, FileMissingError, StorageError
from kstore.files.checkpoint import read_offset_checkpoint, read_small_file, replace_file
from kstore.files.fs import FileSystem
from kstore.files.paths import CLEANER_OFFSETS, OFFSET_MAX, topic_partition

__all__ = ["KSTORE_COMPACTION", "CompactionState", "read_compaction_state", "remembered_dirt", "write_compaction_state"]

KSTORE_COMPACTION = "kstore.compaction"
# A swap of as many segments as a log can have in one directory, 20 digits each.
SIZE_MAX = 4 << 20
FORM = re.compile(rb"version 1\nfirst_dirty ([0-9]{1,19})\nswap((?: [0-9]{1,19})*)\ncrc ([0-9a-f]{8})\n")
CRC_LINE_SIZE = len(b"crc 00000000\n")


class CompactionState(NamedTuple):
    """``swap`` are the bases that the new segment, of the first of them, replaces; () for none."""

    first_dirty: int
    swap: tuple[int, ...] = ()


def read_compaction_state(fs: FileSystem, path: Path) -> CompactionState | None:
    """What the file says; None where there is none that can be believed. Raises: StorageError."""
    try:
        data = read_small_file(fs, path, SIZE_MAX)
    except (FileMissingError, CorruptFileError):
        return None
    match = FORM.fullmatch(data)
    if match is None or int(match[3], 16) != crc32c.crc32c(data[:-CRC_LINE_SIZE]):
        return None
    state = CompactionState(int(match[1]), tuple(map(int, match[2].split())))
    return state if max((state.first_dirty, *state.swap)) <= OFFSET_MAX else None


def remembered_dirt(fs: FileSystem, directory: Path) -> int | None:
    """Where the last pass over the log in ``directory`` ended: kstore's, or else that of the broker whose log it is."""
    state = read_compaction_state(fs, directory / KSTORE_COMPACTION)
    if state is not None:
        return state.first_dirty
    owner = topic_partition(directory.name)
    if owner is None:
        return None
    try:
        return read_offset_checkpoint(fs, directory.parent / CLEANER_OFFSETS).get(owner)
    except (CorruptDataError, StorageError):
        return None


def write_compaction_state(fs: FileSystem, path: Path, state: CompactionState, *, mode: int) -> None:
    """Replaces the file; durable on return. Raises: as ``replace_file``."""
    swap = "".join(f" {base}" for base in state.swap)
    body = f"version 1\nfirst_dirty {state.first_dirty}\nswap{swap}\n".encode("ascii")
    replace_file(fs, path, body + b"crc %08x\n" % crc32c.crc32c(body), mode=mode)
