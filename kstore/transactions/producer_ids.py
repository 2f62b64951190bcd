"""Producer ids: each assigned once, in blocks that are reserved in ``kstore.producer-ids`` before the first is used.

    line 1   kstore.producer-ids 1 <CRC-32C of the rest, 8 hex digits>
    rest     the first id that is not reserved, in decimal, and a newline

A block also starts above every id known in the store: in producers' snapshots, open logs and transactions. So ids that
came with foreign logs are never assigned again, and a lost file costs nothing. A crash skips the rest of its block.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from kstore.errors import CorruptDataError, CorruptFileError, FileMissingError, StorageError, UnsupportedFormatError
from kstore.files._locks import OwnedLock
from kstore.files.checkpoint import CheckedText, read_small_file
from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import PRODUCER_IDS, SNAPSHOT_SUFFIX, classify, segment_name
from kstore.state.producer_snapshot import decode_snapshot
from kstore.types import INT64_MAX

logger = logging.getLogger(__name__)

FORM = CheckedText("kstore.producer-ids", 1)
BODY = re.compile(rb"(0|[1-9][0-9]{0,18})\n")
ID_MAX = INT64_MAX
NO_ID = -1

# A cluster counts from 0: when a broker takes over kstore's logs, its ids must differ from kstore's.
FIRST_PRODUCER_ID = 1 << 40
BLOCK_SIZE = 1000
# If the file is damaged, forgotten ids are below this.
GAP_AFTER_DAMAGE = 1 << 32


class ProducerIds:
    """Assigns ids. Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        replace_file: Callable[[str, bytes], None],
        highest_known: Callable[[], int],
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``replace_file`` writes a file in ``directory``, the store's root; ``highest_known`` returns the highest id
        in its logs, or -1, and is called once per block. ``turn`` keeps other processes from the file."""
        self._turn = turn
        self._fs = fs
        self._path = directory / PRODUCER_IDS
        self._replace_file = replace_file
        self._highest_known = highest_known
        self._lock = OwnedLock()
        # Ids that are reserved but not assigned: from the first up to, excluding, the second.
        self._next = self._stop = 0

    def take(self, also_known: Callable[[], int] = lambda: NO_ID) -> int:
        """An id that was never used; ``also_known`` returns the highest id that the caller knows.

        Raises: DiskFullError, PoisonedError, UnsupportedFormatError, StorageError.
        """
        with self._lock:
            if self._next == self._stop:
                highest = max(self._highest_known(), also_known())
                with self._turn():
                    self._reserve(highest)
            self._next += 1
            return self._next - 1

    def _reserve(self, highest: int) -> None:
        first = max(self._stored(highest), highest + 1, FIRST_PRODUCER_ID)
        stop = first + BLOCK_SIZE
        if stop > ID_MAX:
            raise StorageError(None, f"the producer ids are used up: the next would be {first}", str(self._path))
        self._replace_file(PRODUCER_IDS, _encode(stop))
        self._next, self._stop = first, stop

    def _stored(self, highest: int) -> int:
        """The first unreserved id according to the file."""
        try:
            return _decode(read_small_file(self._fs, self._path), self._path)
        except FileMissingError:
            return 0
        except UnsupportedFormatError:
            raise
        except CorruptFileError as error:
            logger.warning("%s; producer ids continue above the known ones", error)
            return max(highest, FIRST_PRODUCER_ID) + GAP_AFTER_DAMAGE


def _encode(stop: int) -> bytes:
    body = b"%d\n" % stop
    return FORM.encode(body)


def _decode(data: bytes, path: Path) -> int:
    body = FORM.decode(data, path)
    match = BODY.fullmatch(body)
    if match is None or int(match[1]) > ID_MAX:
        raise CorruptFileError("line 2 is not a producer id", path=path)
    return int(match[1])


def highest_in_snapshots(fs: FileSystem, directories: Iterable[Path]) -> int:
    """The highest producer id in the newest readable snapshot of each partition, or -1."""
    highest = NO_ID
    for directory in directories:
        try:
            offsets = classify(fs.list(directory)).bases[SNAPSHOT_SUFFIX]
        except FileNotFoundError:
            continue  # it has just been deleted
        for offset in reversed(offsets):
            path = directory / segment_name(offset, SNAPSHOT_SUFFIX)
            try:
                entries = decode_snapshot(read_file(fs, path))
            except (CorruptDataError, FileNotFoundError):
                continue
            highest = max([highest, *(entry.producer_id for entry in entries)])
            break
    return highest
