"""Which segments a writer has begun, for readers in other processes: with it they need not list the directory again.

It is in ``kstore.state`` at 1280, after the live slot. The writer of a log that is not shared stores it after each
roll, and before and after each other change of the segments' names. Nothing in it is ever synced. An open for writing
empties it, and the first roll fills it: it is valid only together with a record with the same ``session``.

 at  size  field
  0     4  magic      bytes   "KSR1"
  4     8  session    int64   of the open log that stores it, as in its record
 12     8  changes    int64   of the names other than by a roll; odd while one is under way
 20     8  rolls      int64   since this writer opened the log
 28   128  bases      int64   the base offsets of the segments that the rolls since the last other change began, oldest
                              first, at most 16; filled with -1 before them
156     4  crc        uint32  CRC-32C of bytes 0 to 155
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kstore.record.crc import crc32c
from kstore.types import NO_OFFSET

ROLLS_POSITION = 1280
MAGIC = b"KSR1"
BASES_KEPT = 16
SLOT = struct.Struct(f">4sqqq{BASES_KEPT}q")
CRC = struct.Struct(">I")
ROLLS_SIZE = SLOT.size + CRC.size
assert SLOT.size == 156


class RollSlot(NamedTuple):
    """The slot's content; the module's table describes the fields. ``bases`` has no -1."""

    session: int
    changes: int = 0
    rolls: int = 0
    bases: tuple[int, ...] = ()

    def rolled(self, base_offset: int) -> RollSlot:
        """After a roll that has begun the segment at ``base_offset``."""
        return self._replace(rolls=self.rolls + 1, bases=(*self.bases, base_offset)[-BASES_KEPT:])

    def changing(self) -> RollSlot:
        """While names are changed; the same if they already are."""
        return self._replace(changes=self.changes | 1)

    def changed(self) -> RollSlot:
        """After a change of names. The earlier rolls tell nothing any more."""
        return self._replace(changes=(self.changes | 1) + 1, bases=())

    def begun_since(self, earlier: RollSlot) -> tuple[int, ...] | None:
        """The segments that were begun since ``earlier``; None if the two do not tell what has become of the names."""
        count = self.rolls - earlier.rolls
        if self.session != earlier.session or self.changes != earlier.changes or self.changes % 2:
            return None
        return self.bases[len(self.bases) - count :] if 0 <= count <= len(self.bases) else None

    def encode(self) -> bytes:
        """The bytes at ``ROLLS_POSITION``."""
        bases = (NO_OFFSET,) * (BASES_KEPT - len(self.bases)) + self.bases
        slot = SLOT.pack(MAGIC, self.session, self.changes, self.rolls, *bases)
        return slot + CRC.pack(crc32c(slot))

    @staticmethod
    def decode(slot: bytes) -> RollSlot | None:
        """The content of ``slot``; None if it is empty, or being stored, or no writer's."""
        if len(slot) < ROLLS_SIZE:
            return None
        magic, session, changes, rolls, *stored = SLOT.unpack_from(slot)
        if magic != MAGIC or CRC.pack(crc32c(slot[: SLOT.size])) != slot[SLOT.size : ROLLS_SIZE]:
            return None
        return RollSlot(session, changes, rolls, tuple(base for base in stored if base != NO_OFFSET))
