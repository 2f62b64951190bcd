"""``kstore.state``: one log's own state, kept so that every crash leaves a valid record.

at    size  what
   0  1024  the two slots of version 1, 512 bytes each; zero since version 2
1024   256  live: the durable end, stored without a sync after each append, for readers in other processes
1280   256  rolls: the segments that this writer has begun, for the same readers (``roll_slot``)
1536   512  shared: where the log ends, for processes that share it (``shared_slot``)
2048  1024  slot 0 \\ the record, written to the two slots in turn and synced each time: a torn write spoils one slot,
3072  1024  slot 1 / and the other still holds the record before it

record, version 2, at the start of a slot
 at  size  field                     meaning
  0     4  magic             bytes   "KST1"
  4     2  version           uint16  2
  6     2  size              uint16  of the whole record, the CRC included
  8     8  generation        int64   increases by one with each write; the higher valid slot is the record
 16     1  durability        uint8   0 sync, 1 interval, 2 os: of the last writer
 17     1  flags             uint8   bit 0: closed cleanly, the clean mark below holds; bit 1: there were leader
                                    epochs, so that their file exists
 18     1  lost_count        uint8   at most 16
 19     1  accepted_count    uint8   at most 32
 20     1  unconfirmed_count uint8   at most 8
 21     3  reserved          bytes   0
 24     8  recovery_point    int64   every batch below it is known to be on disk
 32     8  log_start_offset  int64   records below it are deleted
 40     8  durable_end       int64   the log's end when the record was written, as far as it was synced
 48    16  boot_id           bytes   the machine's boot in which the record was written
 64     8  clean_base        int64   clean mark: base offset of the active segment
 72     8  clean_inode       int64   inode, size and modification time of its .log; where one does not fit,
 80     8  clean_size        int64   the mark is not valid
 88     8  clean_mtime_ns    int64
 96     8  txn_bytes         int64   size of the .txnindex files, from the log start's segment up to that of the
                                    recovery point, which counts only if closed cleanly; -1 unknown
104    16  lost                      for each: first and last offset, int64, of records that were durable and are gone
  -    16  accepted                  for each: first and last offset, int64, of a loss that the user has accepted
  -    16  unconfirmed               for each: first and last offset, int64, of damage above every known durable end
  -     8  session           int64   the generation of the first record that the same open log wrote; 0 if not known
  -     -  later fields              ignored
  -     4  crc               uint32  CRC-32C of all bytes before it

Magic, version, size, generation and CRC keep their places in every later version, so that a record of an unknown
version is distinguished from damage and refused (``UnsupportedFormatError``). A later field that an older writer may
drop is appended; one that it must not drop raises the version. Version 1 is read, and replaced at the first open for
writing; it is at the start of its slot:

  0  4 magic   4  2 version 1   6  1 durability   7  1 flags   8  8 generation   16  8 recovery_point
 24  8 log_start_offset   32  8 durable_end   40 16 boot_id   56 32 clean_base, inode, size, mtime_ns
 88  8 size of all .txnindex files, if closed cleanly    96  4 CRC-32C of bytes 0 to 95

live, at the start of its slot
  0     4  magic             bytes   "KSL1"
  4     8  generation        int64   of the record it belongs to; another one's live slot is not valid
 12     8  durable_end       int64
 20     4  crc               uint32  CRC-32C of bytes 0 to 19
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kstore.errors import FileMissingError, StorageError, UnsupportedFormatError
from kstore.files._locks import block
from kstore.files.fs import File, FileStat, FileSystem, Mapping, read_file
from kstore.record.crc import crc32c
from kstore.rules.losses import NO_LOSSES, LossRanges, OffsetSpan, are_ranges
from kstore.state.roll_slot import ROLLS_POSITION, ROLLS_SIZE, RollSlot
from kstore.types import DURABILITIES, NO_OFFSET, Durability

MAGIC = b"KST1"
LIVE_MAGIC = b"KSL1"
VERSION = 2
CLEAN_FLAG = 1
EPOCHS_FLAG = 2

OLD_SLOT_SIZE = 512
OLD_SLOTS_SIZE = 2 * OLD_SLOT_SIZE
LIVE_POSITION = OLD_SLOTS_SIZE
SLOTS_POSITION = 2048
SLOT_SIZE = 1024
FILE_SIZE = 4096
# How many times a reader rereads a live slot that the writer was just storing; a store takes nanoseconds.
TORN_MAX = 8
# No writer reaches it by counting, and a writer that starts below it never reaches the end of int64.
GENERATION_MAX = 1 << 62
LOST_MAX = 16
ACCEPTED_MAX = 32
# Only a power cut inside a write causes one.
UNCONFIRMED_MAX = 8
UNKNOWN_TXN_BYTES = -1
ENVELOPE = struct.Struct(">4sHHq")
RECORD = struct.Struct(">4sHHqBBBBB3sqqq16sqqqqq")
RANGE = struct.Struct(">qq")
OLD_RECORD = struct.Struct(">4sHBBqqqq16sqqqqq")
LIVE = struct.Struct(">4sqq")
SESSION = struct.Struct(">q")
CRC = struct.Struct(">I")

assert RECORD.size == 104
assert RECORD.size + (LOST_MAX + ACCEPTED_MAX + UNCONFIRMED_MAX) * RANGE.size + SESSION.size + CRC.size <= SLOT_SIZE
assert SLOTS_POSITION + 2 * SLOT_SIZE == FILE_SIZE
assert OLD_RECORD.size == 96
assert LIVE.size == 20
assert LIVE_POSITION + LIVE.size + CRC.size <= ROLLS_POSITION


def _as_int64(value: int) -> int:
    """Inodes, and times in a far future, may need the bit that is the field's sign."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class LogState(NamedTuple):
    """One record of ``kstore.state``; the module's table describes the fields."""

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
    txn_bytes: int = UNKNOWN_TXN_BYTES
    lost: tuple[OffsetSpan, ...] = ()
    accepted: tuple[OffsetSpan, ...] = ()
    unconfirmed: tuple[OffsetSpan, ...] = ()
    has_epochs: bool = False
    session: int = 0

    def fits(self, base_offset: int, stat: FileStat) -> bool:
        """Whether the clean mark matches the active segment that was found."""
        return (
            self.clean
            and self.clean_base == base_offset
            and self.clean_size == stat.size
            and self.clean_inode == _as_int64(stat.inode)
            and self.clean_mtime_ns == _as_int64(stat.mtime_ns)
        )

    def encode(self) -> bytes:
        """The record, as it is at the start of a slot."""
        assert are_ranges(self.lost, LOST_MAX), self.lost
        assert are_ranges(self.accepted, ACCEPTED_MAX), self.accepted
        assert are_ranges(self.unconfirmed, UNCONFIRMED_MAX), self.unconfirmed
        ranges = b"".join(RANGE.pack(*each) for each in chain(self.lost, self.accepted, self.unconfirmed))
        head = RECORD.pack(
            MAGIC,
            VERSION,
            RECORD.size + len(ranges) + SESSION.size + CRC.size,
            self.generation,
            DURABILITIES.index(self.durability),
            (CLEAN_FLAG if self.clean else 0) | (EPOCHS_FLAG if self.has_epochs else 0),
            len(self.lost),
            len(self.accepted),
            len(self.unconfirmed),
            bytes(3),
            self.recovery_point,
            self.log_start_offset,
            self.durable_end,
            self.boot_id,
            self.clean_base,
            _as_int64(self.clean_inode),
            self.clean_size,
            _as_int64(self.clean_mtime_ns),
            self.txn_bytes,
        )
        record = head + ranges + SESSION.pack(self.session)
        return record + CRC.pack(crc32c(record))

    @staticmethod
    def decode(slot: bytes) -> LogState | None:
        """The record of version 2 in ``slot``, or None if its bytes are not a whole, valid one.

        Raises: UnsupportedFormatError: the record is whole, and of a later version.
        """
        if len(slot) < ENVELOPE.size:
            return None
        magic, version, size, generation = ENVELOPE.unpack_from(slot)
        if magic != MAGIC or version < VERSION or not ENVELOPE.size + CRC.size <= size <= len(slot):
            return None
        (crc,) = CRC.unpack_from(slot, size - CRC.size)
        if crc != crc32c(slot[: size - CRC.size]):
            return None
        if version > VERSION:
            raise UnsupportedFormatError(f"version {version}, expected {VERSION} or earlier: a later kstore wrote it")
        if size < RECORD.size + CRC.size:
            return None
        durability, flags, lost_count, accepted_count, unconfirmed_count, _, *rest = RECORD.unpack_from(slot)[4:]
        accepted_end = lost_count + accepted_count
        ranges_end = RECORD.size + (accepted_end + unconfirmed_count) * RANGE.size
        if ranges_end > size - CRC.size:
            return None
        ranges = list(RANGE.iter_unpack(slot[RECORD.size : ranges_end]))
        lost, accepted = tuple(ranges[:lost_count]), tuple(ranges[lost_count:accepted_end])
        unconfirmed = tuple(ranges[accepted_end:])
        if not (are_ranges(lost, LOST_MAX) and are_ranges(accepted, ACCEPTED_MAX)):
            return None
        if not are_ranges(unconfirmed, UNCONFIRMED_MAX):
            return None
        (session,) = SESSION.unpack_from(slot, ranges_end) if ranges_end + SESSION.size <= size - CRC.size else (0,)
        rest += [lost, accepted, unconfirmed, bool(flags & EPOCHS_FLAG), session]
        return _believable(durability, flags, generation, rest)

    @staticmethod
    def decode_old(slot: bytes) -> LogState | None:
        """The record of version 1 in ``slot``, or None if its bytes are not a whole, valid one."""
        if len(slot) < OLD_RECORD.size + CRC.size:
            return None
        magic, version, durability, flags, generation, *rest = OLD_RECORD.unpack_from(slot)
        if magic != MAGIC or version != 1:
            return None
        (crc,) = CRC.unpack_from(slot, OLD_RECORD.size)
        if crc != crc32c(slot[: OLD_RECORD.size]):
            return None
        if not flags & CLEAN_FLAG:
            rest[-1] = UNKNOWN_TXN_BYTES  # version 1 knew it only for a log that was closed cleanly
        return _believable(durability, flags, generation, rest)


def _believable(durability: int, flags: int, generation: int, rest: Sequence[Any]) -> LogState | None:
    """The record of these fields, ``rest`` from the recovery point; None if no writer produces them."""
    if not 0 <= durability < len(DURABILITIES):
        return None
    state = LogState(DURABILITIES[durability], bool(flags & CLEAN_FLAG), generation, *rest)
    if min(state.generation, state.log_start_offset, state.recovery_point, state.durable_end) < 0:
        return None
    return state


def _newest(data: bytes) -> LogState | None:
    """The record of the highest generation. Raises: as ``LogState.decode``."""
    states = [LogState.decode(data[at : at + SLOT_SIZE]) for at in (SLOTS_POSITION, SLOTS_POSITION + SLOT_SIZE)]
    # A record of version 1 survives a crash in the middle of its replacement; it then has the lower generation.
    states += [LogState.decode_old(data[at : at + OLD_SLOT_SIZE]) for at in (0, OLD_SLOT_SIZE)]
    return max((state for state in states if state is not None), key=lambda state: state.generation, default=None)


def _live(data: bytes, generation: int) -> int:
    """The durable end in the live slot, NO_OFFSET if it is torn or belongs to another record."""
    live = data[LIVE_POSITION : LIVE_POSITION + LIVE.size + CRC.size]
    if len(live) < LIVE.size + CRC.size:
        return NO_OFFSET
    magic, owner, durable_end = LIVE.unpack_from(live)
    (crc,) = CRC.unpack_from(live, LIVE.size)
    if magic != LIVE_MAGIC or owner != generation or crc != crc32c(live[: LIVE.size]):
        return NO_OFFSET
    return int(durable_end)


def _current(data: bytes) -> LogState | None:
    """The newest record with its durable end raised to the live one. Raises: as ``LogState.decode``."""
    return _with_live(_newest(data), data)


def _with_live(state: LogState | None, data: bytes) -> LogState | None:
    if state is None or state.clean:
        return state
    live = _live(data, state.generation)
    return state if live <= state.durable_end else state._replace(durable_end=live)


def _torn(data: bytes, state: LogState | None) -> bool:
    """Whether the live slot is half stored, or belongs to a record that was stored while ``data`` was read, whose
    newest one was ``state``."""
    live = data[LIVE_POSITION : LIVE_POSITION + LIVE.size + CRC.size]
    return any(live) and (
        live[LIVE.size :] != CRC.pack(crc32c(live[: LIVE.size]))
        or state is None
        or LIVE.unpack_from(live)[1] > state.generation
    )


class StateLook(NamedTuple):
    """What one read of the file showed: its ``data``, the ``state`` in it, and the writer's ``rolls`` if it tells of
    them."""

    data: bytes
    state: LogState | None
    rolls: RollSlot | None


def look_at_state(file: File, before: StateLook | None = None) -> StateLook:
    """As ``read_state``, of an open file; returns ``before`` if that showed the same bytes. Raises: StorageError;
    UnsupportedFormatError."""
    data, state = b"", None
    try:
        for _ in range(TORN_MAX):
            data = file.pread(FILE_SIZE, 0)
            if before is not None and data == before.data:
                return before
            state = _newest(data)
            if not _torn(data, state):
                break
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(error.reason, path=file.path) from None
    rolls = RollSlot.decode(data[ROLLS_POSITION : ROLLS_POSITION + ROLLS_SIZE])
    if rolls is not None and (state is None or state.clean or state.session != rolls.session):
        rolls = None  # another writer's, or an ended one's
    return StateLook(data, _with_live(state, data), rolls)


def read_state(fs: FileSystem, path: Path) -> LogState | None:
    """The record in ``path`` with its durable end raised to the live one; None if none is valid.

    Takes no lock and never writes. A live slot that stays torn, because its writer died while storing it, counts as
    absent. One that is being stored is read again: otherwise the log would seem to end at an old end.

    Raises: StorageError; UnsupportedFormatError for a record of a later version.
    """
    try:
        return look_at_state(fs.open(path)).state
    except FileNotFoundError:
        return None


def losses_of(state: LogState | None) -> LossRanges:
    """What ``kstore.state`` says of the log's losses."""
    return NO_LOSSES if state is None else LossRanges(state.lost, state.accepted, state.unconfirmed)


def stored_version(fs: FileSystem, path: Path) -> int | None:
    """The version of the newest record in ``path``, even if this kstore cannot read it; None without one.

    Takes no lock and never writes. Raises: StorageError.
    """
    data = fs.open(path).pread(FILE_SIZE, 0)
    try:
        state = _newest(data)
    except UnsupportedFormatError:
        slots = [data[at : at + SLOT_SIZE] for at in (SLOTS_POSITION, SLOTS_POSITION + SLOT_SIZE)]
        return max(int(ENVELOPE.unpack_from(slot)[1]) for slot in slots if slot.startswith(MAGIC))
    if state is None:
        return None
    olds = [LogState.decode_old(data[at : at + OLD_SLOT_SIZE]) for at in (0, OLD_SLOT_SIZE)]
    return 1 if state in olds else VERSION


def state_file_bytes(state: LogState) -> bytes:
    """A whole ``kstore.state`` with ``state`` in the slot of its generation."""
    slots = [bytes(SLOT_SIZE), bytes(SLOT_SIZE)]
    slots[state.generation % 2] = state.encode().ljust(SLOT_SIZE, b"\0")
    return bytes(SLOTS_POSITION) + b"".join(slots)


class StateFile:
    """The writer's handle on ``kstore.state``, which keeps no descriptor. Not thread-safe: the log's lock guards it."""

    def __init__(self, fs: FileSystem, path: Path, current: LogState | None, *, is_new: bool = False) -> None:
        self._fs = fs
        self.path = path
        # Neither its bytes nor its name are known to be on disk.
        self._is_new = is_new
        self._mapping: Mapping | None = None
        self._generation = current.generation if current is not None else 0
        # The current record; None if none is valid.
        self.current = current
        self._session = self._generation + 1
        # What readers know of the rolls; None before the first one.
        self._rolls: RollSlot | None = None

    @classmethod
    def open(cls, fs: FileSystem, path: Path, *, mode: int) -> StateFile:
        """Opens the file, or creates it with ``mode``: bytes and name are durable once a record is stored.

        A file of version 1 becomes one of version 2 with the same contents; a crash in between leaves one or the other.

        Raises: StorageError; UnsupportedFormatError for a record of a later version, without writing.
        """
        try:
            file = fs.open(path, write=True)
        except FileMissingError:
            file = fs.open(path, write=True, create=True, mode=mode)
            file.write_all([bytes(FILE_SIZE)], 0)
            file.close()
            return cls(fs, path, None, is_new=True)
        try:
            data = file.pread(FILE_SIZE, 0)
            current = _current(data)
        except UnsupportedFormatError as error:
            file.close()
            raise UnsupportedFormatError(error.reason, path=path) from None
        if current is not None and current.generation >= GENERATION_MAX:
            # No later record could outrank it: a generation that cannot be incremented is not valid, and is dropped.
            current = None
            file.write_all([bytes(FILE_SIZE)], 0)
            file.fdatasync()
        if len(data) < FILE_SIZE:
            # Cut by another program, or by a crash while it was created. It is mapped whole, so it must be whole.
            file.write_all([bytes(FILE_SIZE - len(data))], len(data))
        if data[ROLLS_POSITION : ROLLS_POSITION + ROLLS_SIZE].strip(b"\0"):
            # A killed writer left it. It tells nothing of what this one does, even before its first record.
            file.write_all([bytes(ROLLS_SIZE)], ROLLS_POSITION)
        file.close()
        opened = cls(fs, path, current)
        if data[:OLD_SLOTS_SIZE].strip(b"\0"):
            opened._replace_old()
        return opened

    def _replace_old(self) -> None:
        """Stores the contents of a version 1 file as version 2, and only then removes the old record."""
        if self.current is not None:
            self.store(self.current)
        self._write(0, bytes(OLD_SLOTS_SIZE))

    def _write(self, position: int, data: bytes) -> None:
        file = self._fs.open(self.path, write=True)
        file.write_all([data], position)
        file.fdatasync()
        file.close()

    def says(self, state: LogState) -> bool:
        """Whether this open log wrote the current record, with the contents of ``state``, whatever its generation."""
        state = state._replace(session=self._session)
        return self.current is not None and self.current._replace(generation=state.generation) == state

    def store(self, state: LogState) -> None:
        """Makes ``state`` the record, durably; increments the generation.

        Raises: StorageError; then the previous record still holds.
        """
        state = state._replace(generation=self._generation + 1, session=self._session)
        slot = state.encode().ljust(SLOT_SIZE, b"\0")
        # The slot of the current record is never written to.
        self._write(SLOTS_POSITION + SLOT_SIZE * (state.generation % 2), slot)
        if self._is_new:
            self._fs.sync_dir(self.path.parent)
            self._is_new = False
        self.current = state
        self._generation = state.generation

    def reload(self) -> None:
        """Reads the record that another process has stored. Raises: StorageError."""
        self.current = _current(read_file(self._fs, self.path, FILE_SIZE))
        self._generation = self.current.generation if self.current is not None else 0

    def publish_durable_end(self, offset: int) -> None:
        """Tells readers in other processes how far the log is durable. Not synced, and never fails an append."""
        mapping = self._mapped()
        if mapping is not None:
            live = LIVE.pack(LIVE_MAGIC, self._generation, offset)
            mapping.store(LIVE_POSITION, live + CRC.pack(crc32c(live)))

    def _mapped(self) -> Mapping | None:
        """The file as memory; None if that is impossible now."""
        if self._mapping is None:
            try:
                self._mapping = self._fs.open(self.path, write=True).map(FILE_SIZE)
            except StorageError:
                return None
        return self._mapping

    def begin_rolls(self) -> None:
        """Stores before the first roll that there was none: a reader that then lists the files need not do so twice."""
        if self._rolls is None:
            self._publish(RollSlot(self._session))

    def publish_roll(self, base_offset: int) -> None:
        """Tells readers in other processes of a roll that has begun the segment at ``base_offset``. As
        ``publish_durable_end``; it must be told of every other change of the names too (``renaming``)."""
        self._publish((self._rolls or RollSlot(self._session)).rolled(base_offset))

    def _publish(self, rolls: RollSlot) -> None:
        mapping = self._mapped()
        if mapping is not None:
            mapping.store(ROLLS_POSITION, rolls.encode())
            self._rolls = rolls

    @block
    def renaming(self) -> Iterator[None]:
        """A block that changes names of segments other than by a roll."""
        if self._rolls is not None:
            self._publish(self._rolls.changing())
        try:
            yield
        finally:
            if self._rolls is not None:
                self._publish(self._rolls.changed())

    def close(self) -> None:
        """Releases the memory; writes nothing."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
