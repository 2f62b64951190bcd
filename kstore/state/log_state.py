"""``kstore.state``: what one log knows of itself, kept so that any crash leaves a believable record.

at    size  what
   0   512  slot 0 \\ the record, written to the two slots in turn, each time synced: a torn write spoils one slot,
 512   512  slot 1 / and the other still holds the record before it
1024   512  live: the durable end, stored without a sync after each append, for readers in other processes
1536   512  shared: where the log ends, of processes that share it (``shared_slot``)
2048  2048  zero: the file has the size of a page, since the live slot is stored through a mapping

record, at the start of a slot
 at  size  field                     meaning
  0     4  magic             bytes   "KST1"
  4     2  version           int16   1
  6     1  durability        int8    0 sync, 1 interval, 2 os: of the last writer
  7     1  flags             int8    bit 0: closed in order, the clean mark below holds
  8     8  generation        int64   rises by one with each write; the higher valid slot is the record
 16     8  recovery_point    int64   every batch below it is known to be on disk
 24     8  log_start_offset  int64   records below it are deleted
 32     8  durable_end       int64   the log's end when the record was written, as far as it was synced
 40    16  boot_id           bytes   the machine's boot in which the record was written
 56     8  clean_base        int64   clean mark: base offset of the active segment
 64     8  clean_inode       int64   inode, size and modification time of its .log; where one does not fit,
 72     8  clean_size        int64   the mark is not believed
 80     8  clean_mtime_ns    int64
 88     8  clean_txn_bytes   int64   size of all .txnindex files: one that is lost is noticed, since it is believed
 96     4  crc               uint32  CRC-32C of bytes 0 to 95

live, at the start of its slot
  0     4  magic             bytes   "KSL1"
  4     8  generation        int64   of the record it belongs to; another one's live slot is not believed
 12     8  durable_end       int64
 20     4  crc               uint32  CRC-32C of bytes 0 to 19
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

import crc32c

from kstore.errors import StorageError
from kstore.files.fs import File, FileStat, FileSystem, Mapping
from kstore.types import NO_OFFSET, Durability

__all__ = ["LogState", "StateFile", "read_state"]

MAGIC = b"KST1"
LIVE_MAGIC = b"KSL1"
VERSION = 1
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
CLEAN_FLAG = 1

SLOT_SIZE = 512
LIVE_POSITION = 2 * SLOT_SIZE
# So often a reader looks again at what the writer was just storing; it takes nanoseconds.
TORN_MAX = 8
FILE_SIZE = 4096
# No writer has counted so far, and from below it none counts to where int64 ends.
GENERATION_MAX = 1 << 62
RECORD = struct.Struct(">4shbbqqqq16sqqqqq")
LIVE = struct.Struct(">4sqq")
CRC = struct.Struct(">I")

assert RECORD.size == 96
assert LIVE.size == 20


def _as_int64(value: int) -> int:
    """Inodes, and times of a far future, may need the bit that is the field's sign."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True, slots=True)
class LogState:
    """One record of ``kstore.state``; the module's table says what each field means."""

    durability: Durability = "sync"
    clean: bool = False
    generation: int = 0
    recovery_point: int = 0
    log_start_offset: int = 0
    durable_end: int = 0
    boot_id: bytes = bytes(16)
    clean_base: int = NO_OFFSET
    clean_inode: int = 0
    clean_size: int = 0
    clean_mtime_ns: int = 0
    clean_txn_bytes: int = 0

    def fits(self, base_offset: int, stat: FileStat) -> bool:
        """Whether the clean mark holds for the active segment that was found."""
        return (
            self.clean
            and self.clean_base == base_offset
            and self.clean_size == stat.size
            and self.clean_inode == _as_int64(stat.inode)
            and self.clean_mtime_ns == _as_int64(stat.mtime_ns)
        )

    def encode(self) -> bytes:
        record = RECORD.pack(
            MAGIC,
            VERSION,
            DURABILITIES.index(self.durability),
            CLEAN_FLAG if self.clean else 0,
            self.generation,
            self.recovery_point,
            self.log_start_offset,
            self.durable_end,
            self.boot_id,
            self.clean_base,
            _as_int64(self.clean_inode),
            self.clean_size,
            _as_int64(self.clean_mtime_ns),
            self.clean_txn_bytes,
        )
        return record + CRC.pack(crc32c.crc32c(record))

    @staticmethod
    def decode(slot: bytes) -> LogState | None:
        """The record in ``slot``, or None where its bytes are not a whole, believable record."""
        if len(slot) < RECORD.size + CRC.size:
            return None
        magic, version, durability, flags, *rest = RECORD.unpack_from(slot)
        (crc,) = CRC.unpack_from(slot, RECORD.size)
        if magic != MAGIC or version != VERSION or crc != crc32c.crc32c(slot[: RECORD.size]):
            return None
        if not 0 <= durability < len(DURABILITIES):
            return None
        state = LogState(DURABILITIES[durability], bool(flags & CLEAN_FLAG), *rest)
        if min(state.generation, state.log_start_offset, state.recovery_point, state.durable_end) < 0:
            return None
        return state


def _newest(data: bytes) -> LogState | None:
    slots = [LogState.decode(data[at : at + SLOT_SIZE]) for at in (0, SLOT_SIZE)]
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot.generation, default=None)


def _live(data: bytes, generation: int) -> int:
    """The durable end in the live slot, NO_OFFSET where it is torn or belongs to another record."""
    live = data[LIVE_POSITION : LIVE_POSITION + LIVE.size + CRC.size]
    if len(live) < LIVE.size + CRC.size:
        return NO_OFFSET
    magic, owner, durable_end = LIVE.unpack_from(live)
    (crc,) = CRC.unpack_from(live, LIVE.size)
    if magic != LIVE_MAGIC or owner != generation or crc != crc32c.crc32c(live[: LIVE.size]):
        return NO_OFFSET
    return int(durable_end)


def _current(data: bytes) -> LogState | None:
    """The newest record with its durable end raised to the live one."""
    state = _newest(data)
    if state is None or state.clean:
        return state
    return replace(state, durable_end=max(state.durable_end, _live(data, state.generation)))


def _torn(data: bytes) -> bool:
    """Whether the live slot is half stored, or of a record that was stored while ``data`` was read."""
    live = data[LIVE_POSITION : LIVE_POSITION + LIVE.size + CRC.size]
    if not any(live):
        return False
    state = _newest(data)
    return (
        live[LIVE.size :] != CRC.pack(crc32c.crc32c(live[: LIVE.size]))
        or state is None
        or LIVE.unpack_from(live)[1] > state.generation
    )


def read_state(fs: FileSystem, path: Path) -> LogState | None:
    """The record in ``path`` with its durable end raised to the live one; None where there is none to be believed.

    Takes no lock and never writes. A live slot that stays torn (its writer died while it stored it) counts as not
    there; one that is just being stored is read again, lest the log seem to end where it ended long ago.
    """
    try:
        file = fs.open(path)
        data = file.pread(FILE_SIZE, 0)
        for _ in range(TORN_MAX):
            if not _torn(data):
                break
            data = file.pread(FILE_SIZE, 0)
        return _current(data)
    except FileNotFoundError:
        return None


class StateFile:
    """The writer's handle on ``kstore.state``. Not thread-safe: the log's lock guards it."""

    def __init__(self, fs: FileSystem, path: Path, file: File, current: LogState | None) -> None:
        self._fs = fs
        self.path = path
        self._file = file
        self._mapping: Mapping | None = None
        self._generation = current.generation if current is not None else 0
        # The record that stands; None where there is none to be believed.
        self.current = current

    @classmethod
    def open(cls, fs: FileSystem, path: Path, *, mode: int) -> StateFile:
        """Opens the file, or creates it with ``mode``; its directory is synced, so that the name is durable."""
        if fs.exists(path):
            file = fs.open(path, write=True)
            current = _current(file.pread(FILE_SIZE, 0))
            if current is not None and current.generation >= GENERATION_MAX:
                # Nothing can outrank it: what cannot be counted on from is not believed, and goes.
                current = None
                file.write_all([bytes(FILE_SIZE)], 0)
                file.fdatasync()
        else:
            file = fs.open(path, write=True, create=True, mode=mode)
            current = None
            file.write_all([bytes(FILE_SIZE)], 0)
            file.fdatasync()
            fs.sync_dir(path.parent)
        return cls(fs, path, file, current)

    def store(self, state: LogState) -> None:
        """Makes ``state`` the record, durably; the generation is counted on here.

        Raises: StorageError; the record before it still stands then.
        """
        state = replace(state, generation=self._generation + 1)
        slot = state.encode().ljust(SLOT_SIZE, b"\0")
        # The slot of the record that stands is never written to.
        self._file.write_all([slot], SLOT_SIZE * (state.generation % 2))
        self._file.fdatasync()
        self.current = state
        self._generation = state.generation

    def reload(self) -> None:
        """Takes in the record that another process has stored. Raises: StorageError."""
        self.current = _current(self._file.pread(FILE_SIZE, 0))
        self._generation = self.current.generation if self.current is not None else 0

    def publish_durable_end(self, offset: int) -> None:
        """Tells readers in other processes how far the log is durable; not synced, and never fails an append."""
        if self._mapping is None:
            try:
                if self._file.size() < FILE_SIZE:
                    self._file.write_all([bytes(FILE_SIZE - LIVE_POSITION)], LIVE_POSITION)
                self._mapping = self._file.map(FILE_SIZE)
            except StorageError:
                return
        live = LIVE.pack(LIVE_MAGIC, self._generation, offset)
        self._mapping.store(LIVE_POSITION, live + CRC.pack(crc32c.crc32c(live)))

    def close(self) -> None:
        """Drops the handle; writes nothing."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        self._file.close()
