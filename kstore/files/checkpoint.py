"""Small files that are replaced as a whole: Kafka's checkpoints and markers, and the form of kstore's own text files.

    *-offset-checkpoint        0 \\n count \\n then lines of "<topic> <partition> <offset>"
    leader-epoch-checkpoint    0 \\n count \\n then lines of "<epoch> <start offset>"; an empty file has no entries
    partition.metadata         version: 0 \\n topic_id: <22 characters, URL-safe base64 of the UUID>
    .kafka_cleanshutdown       {"version":0,"brokerEpoch":399}, in older releases empty; only its presence counts
    kstore's own               <name> <version> <CRC-32C of the rest, 8 hex digits> \\n then the content

A file is written next to its place, synced, renamed over it, and the directory synced: after a crash it is the old one
or the new one. A reader bounds the size and expects any damage until it has parsed the file; then the only error is a
CorruptFileError. All of these files can be rebuilt or are dispensable.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import (
    CorruptFileError,
    FileInTheWayError,
    FileMissingError,
    PathLike,
    StorageError,
    UnsupportedFormatError,
)
from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import PARTITION_MAX, TEMPORARY_SUFFIX, TopicPartition
from kstore.record.crc import crc32c
from kstore.types import OFFSET_MAX

if TYPE_CHECKING:
    import uuid

SIZE_MAX = 64 * 1024
# A store's checkpoint has a line for each of its partitions, of which a broker may have 100,000; that of a partition's
# epochs one for each election of a leader, of which years bring thousands.
CHECKPOINT_SIZE_MAX = 16 << 20

VERSION_LINE = b"0"
COUNT_LINE = re.compile(rb"0|[1-9][0-9]{0,8}")
OFFSET_LINE = re.compile(rb"([a-zA-Z0-9._-]{1,249})[ \t]+([0-9]{1,10})[ \t]+([0-9]{1,19})")
EPOCH_LINE = re.compile(rb"([0-9]{1,10})[ \t]+([0-9]{1,19})")
EPOCH_MAX = (1 << 31) - 1
CHECKED_LINE = re.compile(rb"(\S{1,40}) ([0-9]{1,9}) ([0-9a-f]{8})\n")

TOPIC_ID_FILE = re.compile(rb"version: *([0-9]{1,5})\r?\ntopic_id: *([a-zA-Z0-9_-]{22})(?:\r?\n)?")
NO_BROKER_EPOCH = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def replace_file(fs: FileSystem, path: PathLike, data: bytes, *, mode: int = 0o600) -> None:
    """Replaces the content of ``path`` with ``data``, durably, or leaves it unchanged.

    Not for two concurrent writers of one file.

    Raises: DiskFullError, SyncFailedError, StorageError. Only an error in the last step, the sync of the directory, may
    leave the new content in place.
    """
    target = os.fspath(path)
    temporary = target + TEMPORARY_SUFFIX
    try:
        file = fs.open(temporary, write=True, create=True, mode=mode)
    except FileInTheWayError:
        # Left by a crash: nothing reads it.
        fs.unlink(temporary)
        file = fs.open(temporary, write=True, create=True, mode=mode)
    try:
        file.write_all([data], 0)
        file.fsync()
        file.close()
        fs.rename(temporary, target)
    except StorageError:
        with suppress(StorageError):
            fs.unlink(temporary)
        raise
    # Until then a crash may restore the old file.
    fs.sync_dir(os.path.dirname(target) or os.curdir)


def read_small_file(fs: FileSystem, path: PathLike, size_max: int = SIZE_MAX) -> bytes:
    """The content of ``path``.

    Raises: CorruptFileError if it has more than ``size_max`` bytes; FileMissingError, StorageError.
    """
    data = read_file(fs, path, size_max + 1)
    if len(data) > size_max:
        raise CorruptFileError(f"over {size_max} bytes, too many for such a file", path=path)
    return data


def read_offset_checkpoint(fs: FileSystem, path: PathLike) -> dict[TopicPartition, int]:
    """The offset of each partition; empty if there is no file.

    Raises: CorruptFileError, StorageError.
    """
    offsets: dict[TopicPartition, int] = {}
    for number, line in _read_lines(fs, path, CHECKPOINT_SIZE_MAX):
        match = OFFSET_LINE.fullmatch(line)
        if match is None or int(match[2]) > PARTITION_MAX or int(match[3]) > OFFSET_MAX:
            raise CorruptFileError(f"line {number} is not '<topic> <partition> <offset>'", path=path)
        offsets[TopicPartition(match[1].decode("ascii"), int(match[2]))] = int(match[3])
    return offsets


def write_offset_checkpoint(
    fs: FileSystem, path: PathLike, offsets: Mapping[TopicPartition, int], *, mode: int = 0o600
) -> None:
    """Replaces the checkpoint; durable on return. Raises: as ``replace_file``."""
    lines = (f"{owner.topic} {owner.partition} {offset}" for owner, offset in sorted(offsets.items()))
    replace_file(fs, path, _encode_lines(lines), mode=mode)


def read_leader_epochs(fs: FileSystem, path: PathLike) -> list[EpochEntry]:
    """The leader epochs of a partition in the file; empty if there is no file.

    Raises: CorruptFileError, StorageError.
    """
    entries: list[EpochEntry] = []
    for number, line in _read_lines(fs, path, CHECKPOINT_SIZE_MAX):
        match = EPOCH_LINE.fullmatch(line)
        if match is None or int(match[1]) > EPOCH_MAX or int(match[2]) > OFFSET_MAX:
            raise CorruptFileError(f"line {number} is not '<epoch> <start offset>'", path=path)
        entries.append(EpochEntry(int(match[1]), int(match[2])))
    return entries


def write_leader_epochs(fs: FileSystem, path: PathLike, entries: Iterable[EpochEntry], *, mode: int = 0o600) -> None:
    """Replaces the epochs; durable on return. Raises: as ``replace_file``."""
    replace_file(fs, path, encode_leader_epochs(entries), mode=mode)


def encode_leader_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """The content of a ``leader-epoch-checkpoint``."""
    return _encode_lines(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def read_topic_id(fs: FileSystem, path: PathLike) -> uuid.UUID:
    """The topic id in a ``partition.metadata``.

    Raises: CorruptFileError (also for the zero id, which Kafka refuses); FileMissingError, StorageError.
    """
    match = TOPIC_ID_FILE.fullmatch(read_small_file(fs, path))
    if match is None:
        raise CorruptFileError("expected the lines 'version: 0' and 'topic_id: <22 characters>'", path=path)
    import uuid

    try:
        topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(match[2] + b"=="))
    except binascii.Error as error:
        raise CorruptFileError("a topic id that is not base64", path=path) from error
    if topic_id.int == 0:
        raise CorruptFileError("the zero topic id, which no topic has", path=path)
    return topic_id


def write_topic_id(fs: FileSystem, path: PathLike, topic_id: uuid.UUID, *, mode: int = 0o600) -> None:
    """Replaces a ``partition.metadata``; durable on return. Raises: as ``replace_file``."""
    replace_file(fs, path, encode_topic_id(topic_id), mode=mode)


def encode_topic_id(topic_id: uuid.UUID) -> bytes:
    """The content of a ``partition.metadata``."""
    return b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=")


def read_broker_epoch(fs: FileSystem, path: PathLike) -> int | None:
    """The broker epoch in a clean-shutdown marker: -1 if it names none, None if there is no marker.

    Raises: StorageError. Invalid content counts as empty: only the marker's presence matters.
    """
    try:
        data = read_small_file(fs, path)
    except FileMissingError:
        return None
    except CorruptFileError:
        return NO_BROKER_EPOCH
    import json

    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return NO_BROKER_EPOCH
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else NO_BROKER_EPOCH


def write_clean_shutdown(
    fs: FileSystem, path: PathLike, broker_epoch: int = NO_BROKER_EPOCH, *, mode: int = 0o600
) -> None:
    """Marks a store as closed cleanly; durable on return. Raises: as ``replace_file``."""
    import json

    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    replace_file(fs, path, text.encode("ascii"), mode=mode)


def _read_lines(fs: FileSystem, path: PathLike, size_max: int) -> list[tuple[int, bytes]]:
    """The numbered entry lines of a checkpoint, as many as its second line says."""
    try:
        data = read_small_file(fs, path, size_max)
    except FileMissingError:
        return []
    if not data:
        return []
    lines = data.splitlines()
    if lines[0] != VERSION_LINE:
        raise CorruptFileError("line 1 is not a known version, expected 0", path=path)
    if len(lines) < 2 or not COUNT_LINE.fullmatch(lines[1]):
        raise CorruptFileError("line 2 is not a count of entries", path=path)
    count = int(lines[1])
    if len(lines) - 2 != count:
        raise CorruptFileError(f"{len(lines) - 2} entries, expected {count}", path=path)
    return list(enumerate(lines[2:], start=3))


def _encode_lines(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return ("\n".join([VERSION_LINE.decode("ascii"), str(len(entries)), *entries]) + "\n").encode("ascii")


class CheckedText(NamedTuple):
    """One kind of file, by its ``name``, of which this program writes ``version``, and reads it and those from
    ``oldest`` on."""

    name: str
    version: int
    oldest: int | None = None

    def encode(self, body: bytes, version: int | None = None) -> bytes:
        """The file. ``version``: an older one, which can express the content too."""
        head = self.name.encode("ascii"), self.version if version is None else version, crc32c(body)
        return b"%s %d %08x\n" % head + body

    def decode(self, data: bytes, path: PathLike) -> bytes:
        """The content. Raises: CorruptFileError; UnsupportedFormatError for another version."""
        head = CHECKED_LINE.match(data)
        if head is None or head[1] != self.name.encode("ascii"):
            raise CorruptFileError(f"line 1 is not '{self.name} <version> <CRC>'", path=path)
        body = data[head.end() :]
        if int(head[3], 16) != crc32c(body):
            raise CorruptFileError("the CRC does not fit", path=path)
        oldest = self.version if self.oldest is None else self.oldest
        if not oldest <= int(head[2]) <= self.version:
            expected = f"{self.version}" if oldest == self.version else f"{oldest} to {self.version}"
            raise UnsupportedFormatError(f"version {int(head[2])}, expected {expected}", path=path)
        return body
