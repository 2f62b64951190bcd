"""``kstore.compaction``: how far a log is compacted, and which segments the one being swapped in replaces.

    line 1   version 2
    line 2   first_dirty <offset>                 every key below it was compacted
    line 3   swap <base> <base> ...               the new segment has the first base; it replaces all of them
             swap                                 none
    line 4   state_generation <generation>        with a swap: of kstore.state, before the swap changes it
    then     <name> ...                           fields of later releases; ignored
    last     crc <8 hex digits>                   CRC-32C of the lines before it

Replaced atomically and durably. It is not authoritative: without it a log is compacted from its start again, and the
range of an unfinished swap is found from the new segment, as Kafka does. A swap named here counts only if a
``.log.swap`` of that base is in the directory. Version 1, which has no later fields, is read; a later version is
refused and left unchanged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from kstore.errors import CorruptDataError, CorruptFileError, FileMissingError, StorageError, UnsupportedFormatError
from kstore.files.checkpoint import read_offset_checkpoint, read_small_file, replace_file
from kstore.files.fs import FileSystem
from kstore.files.paths import CLEANER_OFFSETS, topic_partition
from kstore.record.crc import crc32c
from kstore.types import OFFSET_MAX

KSTORE_COMPACTION = "kstore.compaction"
# A swap of as many segments as a log can have in one directory, 20 digits each.
SIZE_MAX = 4 << 20
VERSION = 2
# Common to all versions: the number first, and last the CRC of everything before.
ENVELOPE = re.compile(rb"version ([0-9]{1,9})\n(.*)crc ([0-9a-f]{8})\n", re.DOTALL)
FORM = re.compile(
    rb"first_dirty ([0-9]{1,19})\nswap((?: [0-9]{1,19})*)\n"
    rb"(?:state_generation ([0-9]{1,19})\n)?(?:[a-z_]+(?: [^\n]*)?\n)*"
)
CRC_LINE_SIZE = len(b"crc 00000000\n")


class CompactionState(NamedTuple):
    """``swap`` are the bases of the replaced segments, of which the new segment has the first; () for none.

    ``generation`` is that of the record in ``kstore.state`` when the swap was noted; -1 if unknown.
    """

    first_dirty: int
    swap: tuple[int, ...] = ()
    generation: int = -1


def read_compaction_state(fs: FileSystem, path: Path) -> CompactionState | None:
    """The contents of the file; None if it does not exist or is not valid.

    Raises: StorageError; UnsupportedFormatError for a later version.
    """
    try:
        data = read_small_file(fs, path, SIZE_MAX)
    except (FileMissingError, CorruptFileError):
        return None
    envelope = ENVELOPE.fullmatch(data)
    if envelope is None or int(envelope[3], 16) != crc32c(data[:-CRC_LINE_SIZE]):
        return None
    version = int(envelope[1])
    if version > VERSION:
        raise UnsupportedFormatError(
            f"version {version}, expected {VERSION} or earlier: a later kstore wrote it", path=path
        )
    match = FORM.fullmatch(envelope[2])
    if match is None:
        return None
    generation = -1 if match[3] is None else int(match[3])
    state = CompactionState(int(match[1]), tuple(map(int, match[2].split())), generation)
    return state if max((state.first_dirty, *state.swap)) <= OFFSET_MAX else None


def remembered_dirt(fs: FileSystem, directory: Path) -> int | None:
    """Where the last pass over the log in ``directory`` ended: kstore's, or else the broker's.

    Raises: as ``read_compaction_state``.
    """
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
    generation = f"state_generation {state.generation}\n" if state.generation >= 0 else ""
    body = f"version {VERSION}\nfirst_dirty {state.first_dirty}\nswap{swap}\n{generation}".encode("ascii")
    replace_file(fs, path, body + b"crc %08x\n" % crc32c(body), mode=mode)
